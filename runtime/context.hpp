// Context: a device, its code store, the database layers, and the way from a problem to a prepared
// plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/code_store.hpp"
#include "cache/database.hpp"
#include "runtime/backend.hpp"
#include "runtime/background.hpp"
#include "runtime/bundle.hpp"
#include "runtime/layers.hpp"
#include "runtime/lock_file.hpp"
#include "runtime/log.hpp"
#include "runtime/lookup_table.hpp"
#include "runtime/misses.hpp"
#include "runtime/prepared_plan.hpp"
#include "runtime/proofs.hpp"
#include "runtime/settings.hpp"

namespace quarterturn {

struct ContextOptions {
  SettingSources sources;
  Log::Function log;
  LogLevel log_level = LogLevel::warning;
  std::unique_ptr<Backend> backend;  ///< made-up devices of tests; null = by the settings
};

struct Statistics {
  std::atomic<std::uint64_t> prepares{0}, runs{0}, compiles{0}, code_hits{0}, quarantined{0};
  std::array<std::atomic<std::uint64_t>, 6> matched{};
  std::atomic<std::uint64_t> failures{0};          ///< prepares that gave no plan
  std::atomic<std::uint64_t> window_fallbacks{0};  ///< as the device last told them
  std::atomic<std::uint64_t> reloads_changed{0}, reloads_unchanged{0}, reloads_refused{0};
};

/// What a reload does to problems that were prepared before.
enum class Reload { keep, replace };

/// See qturn_reload_report.
struct Reloaded {
  Digest before{}, after{};
  std::size_t answers_before = 0, answers_after = 0, problems_changed = 0;
  std::size_t prepared_changed = 0, prepared_held = 0;
  std::int64_t generation_before = 0, generation_after = 0;
};

/// Thread-safe. Plans keep it alive.
class Context {
 public:
  static Result<std::shared_ptr<Context>> create(ContextOptions options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Settings& settings() const { return settings_; }
  Backend& backend() { return *backend_; }
  const Backend& backend() const { return *backend_; }
  Database& database() { return *database_; }
  const std::shared_ptr<CodeStore>& code_store() const { return store_; }
  const Locations& locations() const { return locations_; }
  /// Who we are, for comparing stored answers with.
  const Env& env() const { return env_; }
  const Log& log() const { return log_; }
  Statistics& statistics() const { return statistics_; }

  /// Ok when some kernel computes the problem here. Compiles nothing.
  Status supports(const Problem& problem) const;

  /// The best stored answer that compiles, else what the miss policy says, else the prebuilt
  /// kernel.
  Result<std::shared_ptr<PreparedPlan>> prepare(const Problem& problem);
  /// Of what brings a weight into the layout of a plan that is served already: whatever the lock
  /// file and the miss policy say, since every plan of it gives the same bits, and no miss.
  Result<std::shared_ptr<PreparedPlan>> prepare_packing(const Problem& problem);

  struct Choice {
    Plan plan;
    Match match = Match::heuristic;
    std::string place;  ///< where the answer was stored; empty: nowhere
    bool held = false;  ///< of an earlier prepare: a reload keeps it
  };
  /// The plan that prepare would try first. Compiles nothing.
  Result<Choice> choose(const Problem& problem);

  /// Over what prepare goes by: see qturn_snapshot_hash.
  Digest snapshot_hash() const;
  /// The lock file's; null where none is set.
  const LockFile* lock() const { return lock_ ? &*lock_ : nullptr; }

  /// See qturn_reload.
  Result<Reloaded> reload(Reload mode);
  /// How the layers that serve now were read.
  std::vector<LayerRead> layers() const;

  /// JSON: how the problem would be served, and by what right.
  std::string explain(const Problem& problem);

  /// The immutable table of stored answers, for benchmarks of the look-up.
  std::shared_ptr<const LookupTable> table() const { return table_.load(); }

  /// Plans for a problem by families that are not disabled, the default first.
  std::vector<Plan> enabled_plans(const Problem& problem, std::size_t limit) const;
  /// Those of them that may serve here, or may be proved to.
  std::vector<Plan> servable_plans(const Problem& problem, std::size_t limit) const;

  Proofs& proofs() const { return *proofs_; }
  /// Settings, by name, with which another process opens this device and finds its code.
  std::map<std::string, std::string> settings_for_child() const;

  /// Rows that plans of this context have computed outside their kernels' windows. Waits for the
  /// device.
  Result<std::uint64_t> window_fallbacks();

  /// Calls without a valid decision, and the time they took by estimate, recorded or not yet.
  MissLog::Totals miss_totals() { return misses_.totals(); }
  /// Writes recorded misses now; else a thread does it soon after a miss, now and then while plans
  /// run, and at the end.
  void flush_misses();
  /// Waits for background compilations.
  void wait_for_background() { background_.wait_until_idle(); }

 private:
  Context() = default;

  Status open_store();
  Status open_device();
  void open_proofs();
  std::vector<Plan> plans_without(const Problem& problem, std::size_t limit,
                                  const std::function<bool(const Plan&)>& is_out) const;

  using Built = Result<std::shared_ptr<const Executable>>;
  bool is_disabled(const Plan& plan) const;
  Built build(const Problem& problem, const Plan& plan);
  /// Builds unless quarantined or unproven; a plan that does not compile or load is quarantined.
  Built try_plan(const Problem& problem, const Plan& plan);
  Built build_heuristic(const Problem& problem);
  /// What prepare found for a problem.
  struct Served {
    Match match = Match::reference;
    std::string place;
    std::shared_ptr<const Executable> executable;
    bool held = false;  ///< stays the answer, whatever the table says
  };
  Result<Served> serve(const Problem& problem);
  Result<Served> serve_from(const LookupTable& table, const Problem& problem);
  /// False when another table has come meanwhile: the answer is not that one's.
  bool remember(const std::shared_ptr<const LookupTable>& table, const Problem& problem,
                const Served& served);
  std::optional<Served> stored_answer(const LookupTable& table, const Problem& problem,
                                      Status& why_not);
  Result<Choice> choose_from(const LookupTable& table, const Problem& problem);
  std::optional<Served> held_answer(const Problem& problem) const;
  /// Whether a prepared problem gets the same plan by another table.
  bool stays(const Served& served, const LookupTable& old, const LookupTable& fresh);
  /// Marks what a reload keeps, and forgets what it replaces. Under mutex_. `known`: stays, of
  /// what was served before.
  void sort_out_served(const std::map<const Executable*, bool>& known, const LookupTable& old,
                       const LookupTable& fresh, Reload mode, Reloaded& out);
  LoadedLayers load(const std::vector<LayerRead>& before);
  /// `held`: keys and plans of problems that keep an answer other than the table's.
  Digest hash_of(const LookupTable& table,
                 const std::vector<std::pair<std::string, std::string>>& held) const;
  Result<std::shared_ptr<const Executable>> prebuilt(const Problem& problem) const;
  Result<Plan> locked_plan(const Problem& problem) const;
  Result<Served> serve_locked(const Problem& problem);
  Result<Served> default_answer(const Problem& problem);
  /// Whether the default plan is had without compiling.
  bool is_at_hand(const Problem& problem, const Plan& plan);
  std::optional<Served> in_background(const Problem& problem);
  Result<Served> reference(const Problem& problem, const Status& why);
  void quarantine(const Problem& problem, const Plan& plan, const Status& status);
  void record_miss(const std::shared_ptr<PreparedPlan>& plan);
  void flush_soon();
  void say(const std::vector<std::string>& notes);

  Settings settings_;
  Log log_;
  Locations locations_;
  std::shared_ptr<CodeStore> store_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Database> database_;
  Env env_;
  std::unique_ptr<Proofs> proofs_;
  std::optional<LockFile> lock_;
  std::optional<Bundle> bundle_;
  mutable Statistics statistics_;
  std::atomic<std::shared_ptr<const LookupTable>> table_;
  std::atomic<bool> said_no_compiler_{false};

  std::mutex reloading_;  ///< one reload at a time; before mutex_

  mutable std::mutex mutex_;              ///< guards the members below, and changes of table_
  std::vector<LayerRead> layers_;         ///< that table_ came from
  std::map<std::string, Served> served_;  ///< by problem key: what prepare answered last
  mutable std::optional<Digest> hash_;    ///< the snapshot hash, once it was asked for
  /// By problem key and plan text. Loaded code stays loaded while the context lives.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const Executable>> executables_;
  std::set<std::string> compiling_;  ///< problems whose default is compiled in the background

  MissLog misses_;
  std::atomic<bool> flush_waits_{false};  ///< among the jobs of the background thread

  BackgroundQueue background_;  ///< last: its thread uses all of the above
};

}  // namespace quarterturn
