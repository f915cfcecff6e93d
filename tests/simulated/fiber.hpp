// Fibers over Boost.Context's fcontext: a switch costs some nanoseconds and no system call.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace quarterturn::simulated {

/// A stack that is run on, switched away from, and gone on with later. Not thread-safe: one host
/// thread runs a fiber and whoever resumes it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next resume() begin `body(about)`, which must not return but leave by `suspend`.
  /// What the stack held is forgotten, not unwound.
  void prepare(void (*body)(void*), void* about);
  /// Goes on with the fiber until it suspends.
  void resume();
  /// On the fiber, or in a signal handler that interrupted it: back to who resumed it.
  void suspend();

  /// Whether an address lies in the page below the stack: the fiber needs a larger one.
  bool is_overflow(const void* address) const;

 private:
  static constexpr std::size_t kStack = 256 << 10, kGuard = 4096;
  static void begin(boost::context::detail::transfer_t from);

  std::byte* memory_ = nullptr;
  boost::context::detail::fcontext_t inside_ = nullptr, outside_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* about_ = nullptr;
};

}  // namespace quarterturn::simulated
