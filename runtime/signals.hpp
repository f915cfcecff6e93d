// SignalsBlocked: threads of the library never run their host's signal handlers.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace quarterturn {

/// Of the calling thread while it lives; threads that are made meanwhile inherit it for good.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace quarterturn
