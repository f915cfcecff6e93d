// CPU kernels as the back end starts them: compiled and loaded, or built into the library.
#pragma once

#include <cstdint>

#include "runtime/backend.hpp"
#include "runtime/cpu/thread_pool.hpp"
#include "templates/args.h"

namespace quarterturn::cpu {

class CpuKernel : public Kernel {
 public:
  /// Runs every part, on the pool's threads; no allocation.
  virtual void run(const ThreadPool& pool, const qt_args& args, std::int64_t parts) const = 0;
};

}  // namespace quarterturn::cpu
