// Compiling candidates ahead of their trials, several at once; what is compiled lies in the code
// store.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generator/family.hpp"
#include "runtime/backend.hpp"

namespace quarterturn {

/// What the compiler said of a plan's steps together.
struct Compiled {
  Status status;
  std::int64_t milliseconds = 0;  ///< spent now; 0 when every step was in the store
  std::int64_t kernels = 0;       ///< compiled now
  std::int64_t registers = 0, spills = 0, shared_bytes = 0;
};

/// One plan; `jobs` threads share the plans. Once `interrupted` says so, plans not begun get the
/// status `interrupted`.
std::vector<Compiled> compile_plans(Backend& backend, const Problem& problem,
                                    const std::vector<Plan>& plans, std::size_t jobs,
                                    const std::function<bool()>& interrupted);

}  // namespace quarterturn
