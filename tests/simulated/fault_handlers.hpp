// Turns faults of kernels (memory, division) into calls, on a stack of their own.
#pragma once

#include <signal.h>

#include <array>
#include <vector>

namespace quarterturn::simulated {

/// For the length of its life; one at a time.
class FaultHandlers {
 public:
  /// `tell` gets the signal and the address. Where it returns, the fault was not a kernel's: it
  /// happens again, and ends the program.
  using Tell = void (*)(int signal, const void* address);
  explicit FaultHandlers(Tell tell);
  ~FaultHandlers();
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGSEGV, SIGBUS, SIGFPE};
  static void handle(int number, siginfo_t* info, void*);

  static inline Tell tell_ = nullptr;
  std::vector<char> memory_ = std::vector<char>(1 << 18);
  stack_t stack_ = {}, stack_before_ = {};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace quarterturn::simulated
