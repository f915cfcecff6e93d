#include "tuner/commands/interrupt.hpp"

#include <signal.h>

#include <csignal>
#include <initializer_list>

namespace quarterturn {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void note(int) { interrupted = 1; }

}  // namespace

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace quarterturn
