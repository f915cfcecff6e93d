#include "tuner/bundle_maker.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "cache/trusted_file.hpp"
#include "generator/digest.hpp"
#include "runtime/cpu/backend.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/hip/backend.hpp"
#include "runtime/lookup_table.hpp"
#include "runtime/open_backend.hpp"
#include "runtime/version.hpp"
#include "tuner/compile.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

// Each plan that some class of devices takes for a problem, once.
Result<std::vector<BundleRow>> rows_for(const Answers& answers, const std::vector<Item>& items,
                                        const Target& target) {
  std::vector<BundleRow> out;
  for (const auto& item : items) {
    std::set<std::string> seen;
    for (const auto& performance_class : answers.classes_of(target.key())) {
      auto served = answers.served(item.problem, target, performance_class);
      BundleRow row{item.problem, target.key(), performance_class, {}, {}, served.status()};
      if (served.ok()) {
        row.plan = served->plan.text();
        row.match = served->match;
      }
      if (seen.insert(row.plan).second) out.push_back(std::move(row));
    }
  }
  return out;
}

// For whoever runs the program, whoever made the bundle.
Status open_to_all(const fs::path& folder) {
  std::error_code error;
  const auto open = [&](const fs::path& path, bool is_folder) {
    if (chmod(path.c_str(), is_folder ? 0755 : 0644) != 0)
      error = std::error_code(errno, std::generic_category());
  };
  open(folder, true);
  for (const auto& entry : fs::recursive_directory_iterator(folder, error))
    open(entry.path(), entry.is_directory());
  if (!error) return {};
  return Status(Code::io_error,
                fmt::format("set the modes of {}: {}", folder.string(), error.message()));
}

Status write_database(const Answers& answers, const std::vector<std::string>& targets,
                      const std::string& path) {
  auto database = Database::open("");
  if (!database.ok()) return database.status();
  std::vector<Winner> wanted;
  for (const auto& winner : answers.winners())
    if (std::find(targets.begin(), targets.end(), winner.env->target) != targets.end())
      wanted.push_back(winner);
  if (auto status = database->set_winners(wanted); !status.ok()) return status;
  SnapshotOptions options;
  options.trials = TrialRows::left_out;
  return database->export_snapshot(path, options).status();
}

Status write_manifest(Bundle& bundle, const fs::path& folder, const SigningKey* key) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto content = read_trusted(entry.path().string());
    if (!content.ok()) return content.status();
    bundle.files[fs::relative(entry.path(), folder).string()] = hex(sha256(*content));
  }
  if (key) {
    bundle.key = key->public_hex();
    bundle.signature = key->sign(bundle.message());
  }
  return create_durably((folder / Bundle::kManifest).string(), bundle.text());
}

}  // namespace

Status Answers::add(Database& database) {
  const auto targets = database.targets();
  if (!targets.ok()) return targets.status();
  std::set<std::tuple<std::string, std::string, std::string>> known;
  for (const auto& winner : winners_)
    known.emplace(winner.problem, winner.env->target, winner.env->performance_class);
  for (const auto& target : *targets) {
    auto winners = database.winners(target);
    if (!winners.ok()) return winners.status();
    for (auto& winner : *winners)
      if (winner.env && known.emplace(winner.problem, target, winner.env->performance_class).second)
        winners_.push_back(std::move(winner));
  }
  return {};
}

std::vector<std::string> Answers::targets_like(const std::string& target) const {
  std::set<std::string> out{target};
  for (const auto& winner : winners_)
    if (winner.env->target.substr(0, winner.env->target.find(':')) == target)
      out.insert(winner.env->target);
  return {out.begin(), out.end()};
}

std::vector<std::string> Answers::classes_of(const std::string& target) const {
  std::set<std::string> out{""};
  for (const auto& winner : winners_)
    if (winner.env->target == target) out.insert(winner.env->performance_class);
  return {out.begin(), out.end()};
}

Result<Answers::Served> Answers::served(const Problem& problem, const Target& target,
                                        const std::string& performance_class) const {
  if (auto status = validate(problem); !status.ok()) return status;
  std::vector<Answer> rows;
  for (const auto& winner : winners_) {
    // The driver and the compiler of the device are not known here: what was tuned for its class
    // counts as valid.
    Validity validity = Validity::borrowed;
    if (winner.env->target != target.key()) continue;
    if (winner.env->performance_class == performance_class) validity = Validity::valid;
    auto decided_for = parse_problem(winner.problem);
    auto plan = parse_plan(winner.plan);
    if (!decided_for.ok() || !plan.ok()) continue;
    rows.push_back({std::move(*decided_for), std::move(*plan), validity, Layer::snapshot, 0, {}});
  }
  const LookupTable table(std::move(rows));
  for (const auto& [answer, match] : table.candidates(problem))
    if (check_plan(problem, target, answer->plan).ok())
      return Served{answer->plan, std::string(match_name(match))};
  auto plan = default_plan(problem, target);
  if (!plan.ok()) return plan.status();
  return Served{std::move(*plan), std::string(match_name(Match::heuristic))};
}

Result<std::unique_ptr<Backend>> compile_only_backend(const std::string& target,
                                                      const Settings& settings,
                                                      std::shared_ptr<CodeStore> store, bool jit) {
  const auto parsed = parse_target(target);
  if (!parsed.ok()) return parsed.status();
  if (parsed->vendor == Vendor::amd) {
    hip::BackendOptions options;
    options.target = target;
    options.jit = jit ? hip::Jit::on : hip::Jit::off;
    options.runtime = settings.text(Setting::hip_runtime);
    options.compiler = {settings.text(Setting::hiprtc), settings.text(Setting::hip_clang)};
    options.worker = Worker(settings.text(Setting::worker));
    options.limits = compile_limits(settings);
    return hip::open_backend(std::move(store), options);
  }
  if (parsed->vendor == Vendor::nvidia) {
    cuda::BackendOptions options;
    options.target = target;
    options.jit = jit ? cuda::Jit::on : cuda::Jit::off;
    options.nvrtc = settings.text(Setting::nvrtc);
    options.worker = Worker(settings.text(Setting::worker));
    options.limits = compile_limits(settings);
    return cuda::open_backend(std::move(store), options);
  }
  cpu::BackendOptions options;
  options.target = target;
  options.compile_only = true;
  options.jit = jit ? cpu::Jit::on : cpu::Jit::off;
  options.compiler = settings.text(Setting::cxx);
  options.worker = Worker(settings.text(Setting::worker));
  options.limits = compile_limits(settings);
  return cpu::open_backend(std::move(store), options);
}

Result<std::vector<BundleRow>> make_bundle(const Answers& answers, const Settings& settings,
                                           const BundleRequest& request) {
  std::error_code error;
  if (fs::exists(request.folder, error) && !fs::is_empty(request.folder, error))
    return Status(
        Code::invalid_argument,
        fmt::format("{} is there already and not empty; give another folder", request.folder));
  const fs::path folder = request.folder + ".part";
  fs::remove_all(folder, error);
  if (!fs::create_directories(folder, error))
    return Status(Code::io_error, fmt::format("create {}: {}", folder.string(), error.message()));
  const struct Cleaner {
    const fs::path& folder;
    ~Cleaner() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  } cleaner{folder};
  fs::permissions(folder, fs::perms::owner_all, error);

  CodeStoreOptions store_options;
  store_options.fallback = StoreFallback::none;
  store_options.quota_bytes = std::int64_t{1} << 40;
  store_options.quota_entries = std::int64_t{1} << 30;
  auto opened = CodeStore::open((folder / Bundle::kCode).string(), store_options);
  if (!opened.ok()) return opened.status();
  const auto store = std::make_shared<CodeStore>(std::move(*opened));

  Bundle bundle;
  bundle.library = kVersion;
  std::vector<std::string> targets;
  for (const auto& given : request.targets)
    for (const auto& target : answers.targets_like(given))
      if (std::find(targets.begin(), targets.end(), target) == targets.end())
        targets.push_back(target);
  std::vector<BundleRow> out;
  for (const auto& name : targets) {
    auto backend = compile_only_backend(name, settings, store, true);
    if (!backend.ok()) return backend.status();
    if ((*backend)->device().compiler.empty())
      return Status(Code::no_compiler, fmt::format("nothing here compiles for {}", name));
    const Target& target = (*backend)->device().target;
    auto rows = rows_for(answers, request.items, target);
    if (!rows.ok()) return rows.status();
    CompilePool pool(**backend, request.jobs > 0 ? request.jobs : usable_cores());
    std::vector<CompilePool::Job> jobs;
    for (const auto& row : *rows)
      if (row.status.ok())
        jobs.push_back(pool.submit(row.problem, *parse_plan(row.plan), CompilePool::Urgency::now));
    pool.wait(jobs, jobs.size(), request.interrupted);
    auto job = jobs.begin();
    for (auto& row : *rows) {
      if (row.status.ok()) row.status = pool.result(*job++).status;
      if (row.status.code() == Code::interrupted || row.status.code() == Code::disk_full)
        return row.status;
      out.push_back(std::move(row));
    }
    bundle.targets.push_back({target.key(), (*backend)->device().compiler});
  }
  // What only a store that is written needs.
  fs::remove_all(folder / Bundle::kCode / "tmp", error);
  fs::remove(folder / Bundle::kCode / "lock", error);
  if (auto status = write_database(answers, targets, (folder / Bundle::kDatabase).string());
      !status.ok())
    return status;
  fs::remove((folder / Bundle::kDatabase).string() + ".lock", error);
  if (auto status = write_manifest(bundle, folder, request.key); !status.ok()) return status;
  if (auto status = open_to_all(folder); !status.ok()) return status;
  fs::remove(request.folder, error);
  fs::rename(folder, request.folder, error);
  if (error)
    return Status(Code::io_error, fmt::format("rename {} to {}: {}", folder.string(),
                                              request.folder, error.message()));
  return out;
}

Result<std::vector<BundleRow>> check_bundle(const Bundle& bundle, const Settings& settings,
                                            const std::vector<Item>& items) {
  auto database = Database::open_snapshot(bundle.database_path());
  if (!database.ok()) return database.status();
  Answers answers;
  if (auto status = answers.add(*database); !status.ok()) return status;
  CodeStoreOptions options;
  options.use = StoreUse::frozen;
  options.fallback = StoreFallback::none;
  auto opened = CodeStore::open(bundle.code_path(), options);
  if (!opened.ok()) return opened.status();
  const auto store = std::make_shared<CodeStore>(std::move(*opened));
  std::vector<BundleRow> out;
  for (const auto& one : bundle.targets) {
    auto backend = compile_only_backend(one.target, settings, store, false);
    if (!backend.ok()) return backend.status();
    const Target& target = (*backend)->device().target;
    auto rows = rows_for(answers, items, target);
    if (!rows.ok()) return rows.status();
    for (auto& row : *rows) {
      if (row.status.ok())
        for (const auto plan = parse_plan(row.plan); const auto& step : plan->steps) {
          const auto source =
              find_family(step.variant.family)
                  ->emit(step_problem(row.problem, target, *plan, step.kind), target, step.variant);
          if (row.status.ok() && !(*backend)->has_code(source))
            row.status = Status(Code::miss, fmt::format("no code for {} ({})", step_name(step.kind),
                                                        step.variant.text()));
        }
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace quarterturn
