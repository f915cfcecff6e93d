#include "tests/simulated/fault_handlers.hpp"

namespace quarterturn::simulated {

FaultHandlers::FaultHandlers(Tell tell) {
  tell_ = tell;
  stack_.ss_sp = memory_.data();
  stack_.ss_size = memory_.size();
  sigaltstack(&stack_, &stack_before_);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

FaultHandlers::~FaultHandlers() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  if (!(stack_before_.ss_flags & SS_DISABLE)) {
    sigaltstack(&stack_before_, nullptr);
  } else {
    stack_.ss_flags = SS_DISABLE;
    sigaltstack(&stack_, nullptr);
  }
}

void FaultHandlers::handle(int number, siginfo_t* info, void*) {
  tell_(number, info->si_addr);
  signal(number, SIG_DFL);
}

}  // namespace quarterturn::simulated
