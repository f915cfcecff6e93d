// A compile sweep: variants of every family that a target has, on problems that cover what families
// do, each compiled and nothing run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/backend.hpp"

namespace quarterturn {

/// What became of one variant.
struct SweepRow {
  const Family* family = nullptr;
  Problem problem;
  Variant variant;
  Status status;  ///< why it was refused: spills, products serialised, an error
  Binary binary;  ///< where it was not
};

/// Problems between which every op, grouping, epilogue, layout and rounding occurs that kernels
/// branch on, static in the dimensions that are usually so.
std::vector<Problem> covering_problems();

/// `count` variants of the families that solve `problems` on `target`, in turn: first the default
/// of each family for each problem, then others from all over their spaces. The same for the same
/// arguments; fewer where there are not so many.
std::vector<SweepRow> sample_variants(const std::vector<Problem>& problems, const Target& target,
                                      std::size_t count);

/// Compiles each of them; `done` sees each as it is.
void compile_sweep(Backend& backend, std::vector<SweepRow>& rows,
                   const std::function<void(const SweepRow&)>& done);

}  // namespace quarterturn
