#include "tests/simulated/fiber.hpp"

#include <sys/mman.h>

#include <new>

namespace quarterturn::simulated {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  mprotect(memory_, kGuard, PROT_NONE);
}

Fiber::~Fiber() { munmap(memory_, kStack + kGuard); }

void Fiber::begin(transfer_t from) {
  auto& fiber = *static_cast<Fiber*>(from.data);
  fiber.outside_ = from.fctx;
  fiber.body_(fiber.about_);
}

void Fiber::prepare(void (*body)(void*), void* about) {
  body_ = body;
  about_ = about;
  inside_ = make_fcontext(memory_ + kGuard + kStack, kStack, begin);
}

void Fiber::resume() { inside_ = jump_fcontext(inside_, this).fctx; }

void Fiber::suspend() { outside_ = jump_fcontext(outside_, nullptr).fctx; }

bool Fiber::is_overflow(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= memory_ && at < memory_ + kGuard;
}

}  // namespace quarterturn::simulated
