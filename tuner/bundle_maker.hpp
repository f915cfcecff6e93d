// BundleMaker: makes bundles without the devices they are for, and says what one lacks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/code_store.hpp"
#include "cache/database.hpp"
#include "cache/signature.hpp"
#include "runtime/backend.hpp"
#include "runtime/bundle.hpp"
#include "runtime/settings.hpp"
#include "tuner/workload.hpp"

namespace quarterturn {

/// Winners of several databases, and how problems are answered by them on a target.
class Answers {
 public:
  /// The first database's row is taken where several have one.
  Status add(Database& database);

  /// Targets of that architecture: "x86-64-v4" also stands for every set of its features that
  /// something was decided for.
  std::vector<std::string> targets_like(const std::string& target) const;
  /// Every class of devices that something was decided for on a target, and "" for any other.
  std::vector<std::string> classes_of(const std::string& target) const;
  const std::vector<Winner>& winners() const { return winners_; }

  struct Served {
    Plan plan;
    std::string match;  ///< Match's name
  };
  /// What a context on such a device would take first.
  Result<Served> served(const Problem& problem, const Target& target,
                        const std::string& performance_class) const;

 private:
  std::vector<Winner> winners_;
};

/// Compiles for a target on this machine, whatever devices it has; `jit off`: only looks.
Result<std::unique_ptr<Backend>> compile_only_backend(const std::string& target,
                                                      const Settings& settings,
                                                      std::shared_ptr<CodeStore> store, bool jit);

struct BundleRequest {
  std::string folder;                ///< must not exist yet, or be empty
  std::vector<std::string> targets;  ///< as given: see Answers::targets_like
  std::vector<Item> items;
  std::size_t jobs = 0;  ///< compilers at once; 0 = usable_cores()
  const SigningKey* key = nullptr;
  std::function<bool()> interrupted;
};

struct BundleRow {
  Problem problem;
  std::string target, performance_class, plan, match;
  Status status;  ///< not ok: the code is not there, and why
};

/// One row for each problem, target and class whose plan differs. A plan that does not compile is a
/// row with its reason, and the bundle goes without it.
Result<std::vector<BundleRow>> make_bundle(const Answers& answers, const Settings& settings,
                                           const BundleRequest& request);

/// The same rows for a bundle that is there: `status` says whether its code is.
Result<std::vector<BundleRow>> check_bundle(const Bundle& bundle, const Settings& settings,
                                            const std::vector<Item>& items);

}  // namespace quarterturn
