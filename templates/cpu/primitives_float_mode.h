// The floating-point environment a CPU kernel needs: round to nearest even, subnormals kept.
#ifndef QT_CPU_PRIMITIVES_FLOAT_MODE_H
#define QT_CPU_PRIMITIVES_FLOAT_MODE_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qt {
namespace cpu {

/// Sets that environment for its lifetime and gives the caller's back, exception flags included.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // all exceptions masked
  ~FloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(0ull) : "memory");
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }
#else
  FloatMode() : saved_(0) {}
  ~FloatMode() {}
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  unsigned long long saved_;
#endif
};

}  // namespace cpu
}  // namespace qt

#endif
