#include "tuner/commands/interrupt.hpp"

#include <signal.h>

#include <csignal>
#include <initializer_list>

namespace quarterturn {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void note(int) { interrupted = 1; }

}  // namespace

void watch_interrupts(SecondSignal second) {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  if (second == SecondSignal::ignored) action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace quarterturn
