// Prover: has plans held against the scalar reference by quarterturn-trial, in a process of its
// own, so that kernels which crash or hang cost the host nothing.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "generator/problem.hpp"
#include "generator/variant.hpp"
#include "runtime/worker.hpp"

namespace quarterturn {

/// One plan of one problem, tried at the sizes that admission chooses.
struct ProofTask {
  Problem problem;
  Plan plan;
};

/// What became of a task.
struct Proof {
  enum class End {
    right,
    wrong,     ///< it ran, and the reference gives something else
    crashed,   ///< the process or the device's context was lost
    hung,      ///< it did not end within the limit and was killed
    undecided  ///< nothing was learnt of the plan: no memory, no device, ...
  };
  End end = End::undecided;
  Status status;  ///< ok when right
  double max_error = 0, bias_z = 0;
  std::int64_t outputs = 0, code_rows = 0, repeatable = -1;
};

class Prover {
 public:
  /// `program`: quarterturn-trial; empty: beside the library. `settings`, by name, are those that
  /// the process opens its device with. `seconds`: for all tasks of one run.
  Prover(Worker worker, std::string program, std::map<std::string, std::string> settings,
         std::int64_t seconds);

  /// Whether the program is there.
  Status available() const;

  /// In order, up to the first that is not right: that one is the last of the answer, which is
  /// never empty.
  std::vector<Proof> run(std::span<const ProofTask> tasks) const;

 private:
  Worker worker_;
  std::string program_;
  std::map<std::string, std::string> settings_;
  std::int64_t seconds_;
};

}  // namespace quarterturn
