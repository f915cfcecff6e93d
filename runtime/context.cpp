#include "runtime/context.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "runtime/estimate.hpp"
#include "runtime/layers.hpp"
#include "runtime/open_backend.hpp"
#include "runtime/version.hpp"

namespace quarterturn {
namespace {

constexpr std::chrono::seconds kMissInterval{60};  ///< between counts of plans that run on
constexpr std::size_t kMostPlans = 16384;  ///< looked through for one without disabled families
constexpr std::size_t kHeuristicTries =
    12;  ///< plans, the default first, before the reference kernel

LogLevel level_of(const Settings& settings, LogLevel fallback) {
  const auto& text = settings.text(Setting::log);
  return text == "error"     ? LogLevel::error
         : text == "warning" ? LogLevel::warning
         : text == "info"    ? LogLevel::info
         : text == "debug"   ? LogLevel::debug
                             : fallback;
}

Env env_of(const DeviceInfo& device, const Settings& settings) {
  Env env;
  env.target = device.target.key();
  env.performance_class = device.performance_class;
  if (const auto& profile = settings.text(Setting::data_profile); !profile.empty())
    env.performance_class += fmt::format(" data={}", profile);
  env.driver = device.driver;
  env.compiler = device.compiler;
  env.library = kVersion;
  env.product = device.name;
  return env;
}

// What is asked for and would otherwise pass in silence.
std::vector<std::string> vain_settings(const Settings& settings) {
  std::vector<std::string> out;
  for (const auto& name : settings.list(Setting::disable))
    if (name != "cpu" && name != "cuda" && name != "hip" && !find_family(name)) {
      std::vector<std::string_view> known;
      for (const Family* family : families()) known.push_back(family->name());
      out.push_back(
          fmt::format("disable = '{}' (QTURN_DISABLE): no family or back end is called '{}'; they "
                      "are cpu, cuda, hip, {}",
                      settings.text(Setting::disable), name, fmt::join(known, ", ")));
    }
  if (const auto& folder = settings.text(Setting::dump); !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || ::access(folder.c_str(), W_OK) != 0)
      out.push_back(fmt::format("dump = '{}' (QTURN_DUMP): {}; sources are not dumped", folder,
                                error ? error.message() : "it cannot be written"));
  }
  return out;
}

std::string bundle_targets(const Bundle& bundle) {
  std::string out;
  for (const auto& one : bundle.targets) out += (out.empty() ? "" : ", ") + one.target;
  return out;
}

// What is wrong with the plan itself, and would be wrong again; not a full disk or a missing
// compiler.
bool is_the_plans_fault(Code code) {
  return code == Code::compile_failed || code == Code::compile_timeout || code == Code::rejected ||
         code == Code::launch_failed;
}

QuarantineReason reason_of(Code code) {
  return code == Code::compile_timeout ? QuarantineReason::compile_timeout
         : code == Code::launch_failed ? QuarantineReason::launch_failed
                                       : QuarantineReason::compile_failed;
}

}  // namespace

Result<std::shared_ptr<Context>> Context::create(ContextOptions options) {
  std::shared_ptr<Context> out(new Context);
  out->settings_ = Settings::load(options.sources);
  out->log_ = Log(std::move(options.log), level_of(out->settings_, options.log_level));
  out->say(out->settings_.problems());
  out->say(vain_settings(out->settings_));
  auto locations = out->settings_.locations();
  if (!locations.ok()) return locations.status();
  out->locations_ = std::move(*locations);
  if (!out->locations_.note.empty()) out->say({out->locations_.note});

  if (const auto& folder = out->settings_.text(Setting::bundle); !folder.empty()) {
    // As for the cache: code must not depend on where a process was started.
    if (folder.front() != '/')
      return Status(Code::invalid_argument,
                    fmt::format("bundle = '{}' (QTURN_BUNDLE): it must begin with '/'", folder));
    auto bundle = read_bundle(folder, out->settings_.list(Setting::snapshot_keys));
    if (!bundle.ok()) return bundle.status();
    out->bundle_ = std::move(*bundle);
  }
  if (auto status = out->open_store(); !status.ok()) return status;
  out->backend_ = std::move(options.backend);
  if (auto status = out->open_device(); !status.ok()) return status;

  // What a simulated device measures must not lie among real measurements.
  if (is_simulated(out->env_.performance_class) && !out->locations_.database.empty())
    out->locations_.database += ".simulated";
  auto database = Database::open(out->locations_.database);
  if (!database.ok()) return database.status();
  out->database_ = std::make_unique<Database>(std::move(*database));
  out->open_proofs();
  if (const auto& path = out->settings_.text(Setting::lock); !path.empty()) {
    auto lock = read_lock(path);
    if (!lock.ok()) return lock.status();
    out->lock_ = std::move(*lock);
  }
  auto layers = out->load({});
  out->say(layers.notes);
  out->table_.store(std::make_shared<const LookupTable>(std::move(layers.answers)));
  out->layers_ = std::move(layers.layers);
  out->background_.every(kMissInterval, [context = out.get()] { context->flush_misses(); });
  out->log_(LogLevel::info, "Quarterturn {} on {} ({}), {} stored answers", kVersion,
            out->env_.target, out->env_.performance_class, out->table()->size());
  return out;
}

// With a bundle and no compiler, nothing but the bundle is opened.
Status Context::open_store() {
  const bool sealed = bundle_ && settings_.text(Setting::no_jit) == "1";
  CodeStoreOptions options;
  if (sealed) {
    locations_.code_cache = bundle_->code_path();
    locations_.database.clear();
    locations_.note.clear();
    options.use = StoreUse::frozen;
    options.fallback = StoreFallback::none;
  } else if (bundle_) {
    options.more.push_back(bundle_->code_path());
  }
  auto store = CodeStore::open(locations_.code_cache, options);
  if (!store.ok()) return store.status();
  store_ = std::make_shared<CodeStore>(std::move(*store));
  return {};
}

Status Context::open_device() {
  if (!backend_) {
    std::vector<std::string> targets;
    if (bundle_ && settings_.text(Setting::no_jit) == "1")
      for (const auto& one : bundle_->targets) targets.push_back(one.target);
    auto backend = open_backend(settings_, store_, targets);
    if (!backend.ok()) return backend.status();
    backend_ = std::move(*backend);
  }
  env_ = env_of(backend_->device(), settings_);
  if (!bundle_) return {};
  const auto* target = bundle_->find(env_.target);
  if (target && env_.compiler.empty()) env_.compiler = target->compiler;
  if (!target)
    log_(LogLevel::warning, "the bundle {} has nothing for {}: it was made for {}", bundle_->folder,
         env_.target, bundle_targets(*bundle_));
  return {};
}

void Context::open_proofs() {
  Proofs::Place place{*database_,
                      backend_->device().target,
                      env_,
                      backend_->usable().ok() ? Proofs::Device::present : Proofs::Device::missing,
                      store_->folder(),
                      settings_.list(Setting::snapshots),
                      settings_.list(Setting::snapshot_keys),
                      bundle_ ? bundle_->database_path() : std::string()};
  Status why_not;
  if (settings_.text(Setting::no_jit) == "1")
    why_not = Status(Code::unproven,
                     "with no_jit no process is started that could prove it. Let a process without "
                     "no_jit prepare it, or `qturn tune` it, and serve from that database, a "
                     "snapshot or a bundle of it");
  proofs_ = std::make_unique<Proofs>(
      std::move(place), settings_,
      Prover(Worker(settings_.text(Setting::worker)), settings_.text(Setting::prover),
             settings_for_child(), settings_.count(Setting::proof_seconds)),
      std::move(why_not), log_,
      [this](const Source& source) { return backend_->compile(source).status(); });
}

std::map<std::string, std::string> Context::settings_for_child() const {
  std::map<std::string, std::string> out;
  for (const auto& spec : setting_specs()) {
    const auto& value = settings_.of(spec.id);
    if (value.origin != SettingOrigin::standard) out[std::string(spec.name)] = value.text;
  }
  const DeviceInfo& device = backend_->device();
  // The device that this context found, not one that the other process might find.
  out["backend"] = device.target.vendor == Vendor::nvidia ? "cuda"
                   : device.target.vendor == Vendor::amd  ? "hip"
                                                          : "cpu";
  out["device"] = fmt::format("{}", device.ordinal);
  out["code_cache"] = store_->folder();
  return out;
}

Context::~Context() {
  try {
    flush_misses();
  } catch (const std::exception&) {
    // Misses are hints; a destructor has nobody to tell.
  }
}

void Context::say(const std::vector<std::string>& notes) {
  for (const auto& note : notes) log_(LogLevel::warning, "{}", note);
}

bool Context::is_disabled(const Plan& plan) const {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [this](const Step& step) {
    return settings_.lists(Setting::disable, step.variant.family);
  });
}

std::vector<Plan> Context::plans_without(const Problem& problem, std::size_t limit,
                                         const std::function<bool(const Plan&)>& is_out) const {
  const Target& target = backend_->device().target;
  // Which families a plan uses shows only once it is put together.
  for (std::size_t look = std::max<std::size_t>(64, limit);; look *= 16) {
    auto all = plans(problem, target, look);
    const bool complete = all.size() < look || look >= kMostPlans;
    std::erase_if(all, is_out);
    if (all.size() > limit) all.resize(limit);
    if (complete || all.size() == limit) return all;
  }
}

std::vector<Plan> Context::enabled_plans(const Problem& problem, std::size_t limit) const {
  if (settings_.text(Setting::disable).empty())
    return plans(problem, backend_->device().target, limit);
  return plans_without(problem, limit, [this](const Plan& plan) { return is_disabled(plan); });
}

std::vector<Plan> Context::servable_plans(const Problem& problem, std::size_t limit) const {
  auto first = enabled_plans(problem, limit);
  const auto is_out = [this](const Plan& plan) { return !proofs_->allows(plan).ok(); };
  if (std::none_of(first.begin(), first.end(), is_out)) return first;
  return plans_without(problem, limit,
                       [&](const Plan& plan) { return is_disabled(plan) || is_out(plan); });
}

Status Context::supports(const Problem& problem) const {
  if (auto status = validate(problem); !status.ok()) return status;
  if (!servable_plans(problem, 1).empty()) return {};
  auto plan = default_plan(problem, backend_->device().target);
  if (!plan.ok()) return plan.status();
  if (const auto enabled = enabled_plans(problem, 1); !enabled.empty())
    return proofs_->allows(enabled.front());
  return Status(Code::not_supported,
                fmt::format("every family that computes this is disabled (QTURN_DISABLE = {}): {}",
                            settings_.text(Setting::disable), problem.key()));
}

Result<std::uint64_t> Context::window_fallbacks() {
  std::vector<std::shared_ptr<const Executable>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, executable] : executables_) all.push_back(executable);
  }
  std::uint64_t sum = 0;
  for (const auto& executable : all) {
    auto rows = executable->window_fallbacks();
    if (!rows.ok()) return rows.status();
    sum += *rows;
  }
  // Of two that read at once, the later value stays.
  auto last = statistics_.window_fallbacks.load();
  while (last < sum && !statistics_.window_fallbacks.compare_exchange_weak(last, sum)) {
  }
  return sum;
}

Context::Built Context::build(const Problem& problem, const Plan& plan) {
  const auto key = std::pair(problem.key(), plan.text());
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = executables_.find(key); found != executables_.end())
      return found->second;
  }
  auto built = Executable::build(*backend_, problem, plan);
  if (!built.ok()) return built;
  for (const auto& binary : (*built)->binaries())
    ++(binary.cached ? statistics_.code_hits : statistics_.compiles);
  const std::lock_guard lock(mutex_);
  return executables_.emplace(key, std::move(*built)).first->second;
}

void Context::quarantine(const Problem& problem, const Plan& plan, const Status& status) {
  ++statistics_.quarantined;
  Quarantine entry;
  entry.subject = plan.text();
  entry.problem = problem.key();
  entry.target = env_.target;
  entry.performance_class = env_.performance_class;
  entry.compiler = env_.compiler;
  entry.reason = reason_of(status.code());
  entry.detail = status.message();
  const auto stored = database_->add_quarantine(entry);
  log_(LogLevel::warning, "plan {} is put in quarantine for {}: {}{}", entry.subject, entry.problem,
       status.message(), stored.ok() ? "" : fmt::format(" (not remembered: {})", stored.message()));
}

Context::Built Context::try_plan(const Problem& problem, const Plan& plan) {
  const auto held = database_->quarantine_of(plan, problem.key(), env_);
  if (held.ok() && held->has_value())
    return Status(Code::quarantined,
                  fmt::format("plan {} is in quarantine ({}): {}", plan.text(),
                              quarantine_reason_name((*held)->reason), (*held)->detail));
  const auto proved = proofs_->ensure(problem, plan);
  auto built = proved.ok() ? build(problem, plan) : Built(proved);
  if (!built.ok() && is_the_plans_fault(built.status().code()))
    quarantine(problem, plan, built.status());
  return built;
}

std::optional<Context::Served> Context::stored_answer(const LookupTable& table,
                                                      const Problem& problem, Status& why_not) {
  for (const auto& [answer, match] : table.candidates(problem)) {
    if (is_disabled(answer->plan)) continue;
    // Other ranges and other revisions of a family may not allow this plan here.
    if (auto status = check_plan(problem, backend_->device().target, answer->plan); !status.ok()) {
      log_(LogLevel::debug, "stored plan {} does not fit {}: {}", answer->plan.text(),
           problem.key(), status.message());
      continue;
    }
    auto built = try_plan(problem, answer->plan);
    if (built.ok()) return Served{match, answer->place, std::move(*built)};
    why_not = built.status();
  }
  return std::nullopt;
}

Context::Built Context::build_heuristic(const Problem& problem) {
  Status first;
  auto tries = servable_plans(problem, kHeuristicTries);
  for (std::size_t i = 0; i < tries.size(); ++i) {
    auto built = try_plan(problem, tries[i]);
    if (built.ok()) return built;
    if (first.ok()) first = built.status();
    // Without a compiler every plan fails alike, unless its code is stored.
    const Code code = built.status().code();
    if (!is_the_plans_fault(code) && code != Code::quarantined && code != Code::unproven) break;
    if (proofs_->allows(tries[i]).ok()) continue;
    // A family of it is out now, and with it more plans than this one.
    tries = servable_plans(problem, kHeuristicTries);
    i = static_cast<std::size_t>(-1);
  }
  if (first.ok()) first = supports(problem);
  if (first.ok()) first = Status(Code::internal, "a supported problem has no plan");
  return first;
}

Result<std::shared_ptr<const Executable>> Context::prebuilt(const Problem& problem) const {
  return Executable::prebuilt(*backend_, problem,
                              [this](const Plan& plan) { return !is_disabled(plan); });
}

bool Context::is_at_hand(const Problem& problem, const Plan& plan) {
  {
    const std::lock_guard lock(mutex_);
    if (executables_.contains({problem.key(), plan.text()})) return true;
  }
  const Target& target = backend_->device().target;
  return std::all_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return backend_->has_code(
        find_family(step.variant.family)
            ->emit(step_problem(problem, target, plan, step.kind), target, step.variant));
  });
}

std::optional<Context::Served> Context::in_background(const Problem& problem) {
  const auto wanted = servable_plans(problem, 1);
  if (wanted.empty() || backend_->device().compiler.empty() || is_at_hand(problem, wanted[0]))
    return std::nullopt;
  auto now = prebuilt(problem);
  if (!now.ok()) return std::nullopt;
  const auto key = problem.key();
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    is_new = compiling_.insert(key).second;
  }
  const auto job = [this, problem, key] {
    const auto built = build_heuristic(problem);
    if (!built.ok())
      log_(LogLevel::warning, "compiling in the background failed, the prebuilt kernel goes on: {}",
           built.status().message());
    const std::lock_guard lock(mutex_);
    compiling_.erase(key);
  };
  if (is_new && !background_.add(job)) {
    const std::lock_guard lock(mutex_);
    compiling_.erase(key);
    return std::nullopt;
  }
  return Served{Match::reference, "", std::move(*now)};
}

Result<Context::Served> Context::reference(const Problem& problem, const Status& why) {
  auto executable = prebuilt(problem);
  if (!executable.ok()) return why.ok() ? executable.status() : why;
  if (why.code() == Code::no_compiler) {
    if (!said_no_compiler_.exchange(true))
      log_(LogLevel::warning,
           "prebuilt portable kernels serve, many times slower than compiled ones: {}",
           why.message());
  } else {
    log_(LogLevel::warning, "the prebuilt portable kernel serves {}: {}", problem.key(),
         why.message());
  }
  return Served{Match::reference, "", std::move(*executable)};
}

Result<Context::Served> Context::serve_locked(const Problem& problem) {
  const auto plan = locked_plan(problem);
  if (!plan.ok()) return plan.status();
  auto built = try_plan(problem, *plan);
  if (!built.ok()) return built.status();
  return Served{Match::exact, settings_.text(Setting::lock), std::move(*built)};
}

Result<std::shared_ptr<PreparedPlan>> Context::prepare(const Problem& problem) {
  if (auto status = validate(problem); !status.ok()) return status;
  ++statistics_.prepares;
  auto served = serve(problem);
  if (!served.ok()) {
    ++statistics_.failures;
    return served.status();
  }
  ++statistics_.matched[static_cast<std::size_t>(served->match)];
  const auto out = std::make_shared<PreparedPlan>(problem, served->match, std::move(served->place),
                                                  std::move(served->executable));
  if (out->match() >= Match::stale) record_miss(out);
  return out;
}

Result<std::shared_ptr<PreparedPlan>> Context::prepare_packing(const Problem& problem) {
  if (auto status = supports(problem); !status.ok()) return status;
  Status ignored;
  const auto stored = stored_answer(*table(), problem, ignored);
  auto served = stored ? Result<Served>(*stored) : default_answer(problem);
  if (!served.ok()) return served.status();
  return std::make_shared<PreparedPlan>(problem, served->match, std::move(served->place),
                                        std::move(served->executable));
}

Result<Context::Served> Context::serve(const Problem& problem) {
  if (lock_) return serve_locked(problem);
  for (;;) {
    const auto table = this->table();
    if (auto held = held_answer(problem)) return *held;
    auto served = serve_from(*table, problem);
    if (!served.ok() || remember(table, problem, *served)) return served;
  }
}

Result<Context::Served> Context::serve_from(const LookupTable& table, const Problem& problem) {
  Status why;
  if (auto served = stored_answer(table, problem, why)) {
    log_(LogLevel::info, "{}: {} ({})", problem.key(), match_name(served->match), served->place);
    return *served;
  }
  if (auto status = supports(problem); !status.ok()) return status;
  const auto& policy = settings_.text(Setting::on_miss);
  if (policy == "error") {
    misses_.add(problem.key(), estimated_seconds(problem, backend_->device()));
    flush_soon();
    return Status(Code::miss,
                  fmt::format("nobody tuned {} for {} ({}), and the miss policy is error. Tune it: "
                              "qturn tune --problem '{}'",
                              problem.key(), env_.target, env_.performance_class, problem.key()));
  }
  if (policy == "background")
    if (auto served = in_background(problem)) return *served;
  return default_answer(problem);
}

Result<Context::Served> Context::default_answer(const Problem& problem) {
  auto built = build_heuristic(problem);
  Result<Served> out = built.ok() ? Result<Served>(Served{Match::heuristic, "", std::move(*built)})
                                  : reference(problem, built.status());
  if (out.ok())
    log_(LogLevel::info, "{}: {}, as nobody tuned it", problem.key(), match_name(out->match));
  return out;
}

void Context::record_miss(const std::shared_ptr<PreparedPlan>& plan) {
  misses_.add(plan, estimated_seconds(plan->problem(), backend_->device()));
  flush_soon();
}

void Context::flush_soon() {
  if (flush_waits_.exchange(true)) return;
  // Where no thread can be had, they are written at the end.
  (void)background_.add([this] { flush_misses(); });
}

void Context::flush_misses() {
  flush_waits_ = false;
  const auto rows = misses_.take(env_.target, env_.performance_class);
  if (rows.empty()) return;
  if (auto status = database_->record_misses(rows); !status.ok())
    log_(LogLevel::debug, "misses are not recorded: {}", status.message());
}

}  // namespace quarterturn
