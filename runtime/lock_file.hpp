// LockFile: the plans that a run may use, and the very kernel texts they were written with, so that
// a training run prepares the same kernels today, tomorrow and on every rank, or says why not.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "generator/digest.hpp"
#include "generator/family.hpp"
#include "generator/status.hpp"

namespace quarterturn {

struct LockedPlan {
  Plan plan;
  Digest code{};  ///< code_digest of the plan

  bool operator==(const LockedPlan&) const = default;
};

struct LockFile {
  std::string library;                      ///< the version that wrote it
  std::string target;                       ///< Target::key
  std::map<std::string, LockedPlan> plans;  ///< by Problem::key

  /// Over target and plans: what the file states, and what ranks compare.
  Digest hash() const;
  /// JSON, one plan a line, sorted.
  std::string text() const;
};

/// SHA-256 over the source texts of a plan's kernels: the same plan of another library version has
/// another one where its kernels changed.
Result<Digest> code_digest(const Problem& problem, const Target& target, const Plan& plan);

/// damaged: it is no lock file, or was changed after it was written. newer_version.
Result<LockFile> parse_lock(std::string_view text, const std::string& name);
/// io_error: it cannot be read.
Result<LockFile> read_lock(const std::string& path);

}  // namespace quarterturn
