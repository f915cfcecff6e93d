#include "tuner/commands/interrupt.hpp"

#include <signal.h>

#include <csignal>
#include <initializer_list>

namespace quarterturn {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void note(int) { interrupted = 1; }

// A signal that whoever began this has it ignore stays ignored: by nohup, or `&` in a script.
void watch(int signal, const struct sigaction& action) {
  struct sigaction before {};
  if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void watch_interrupts(SecondSignal second) {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  watch(SIGINT, action);
  if (second == SecondSignal::ignored) action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  watch(SIGHUP, action);
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace quarterturn
