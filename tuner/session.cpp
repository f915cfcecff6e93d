#include "tuner/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "generator/digest.hpp"
#include "tuner/gpu_observer.hpp"
#include "tuner/nvml.hpp"
#include "tuner/problem_tuner.hpp"

namespace quarterturn {
namespace {

// Of a layout that another token range of the same weight would choose.
constexpr std::size_t kPlansOfLayout = 6;

/// Works out the next problem's plans, and has what it will try first compiled, while kernels of
/// this one are admitted and timed on a GPU, which leaves most of the host idle.
class LookAhead {
 public:
  LookAhead(Context& context, const Item& item, const SessionOptions& options, CompilePool& pool)
      : key_(item.problem.key()),
        pool_(pool),
        thread_([this, &context, problem = item.problem, &options] {
          plans_ = plans_for(options, context, problem);
          const Target& target = context.backend().device().target;
          const Space space{problem, target, plans_, {}, {}, context.backend().device().units};
          for (const auto& plan : strategy_for(options, space)->next({}, pool_.threads()))
            for (auto& job : submit_all(pool_, problem, target, plan, CompilePool::Urgency::later))
              jobs_.push_back(std::move(job));
        }) {}
  ~LookAhead() {
    if (thread_.joinable()) thread_.join();
    for (const auto& job : jobs_) pool_.drop(job);
  }
  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;

  /// Of this problem; empty for another.
  std::vector<Plan> take_plans(const Problem& problem) {
    if (problem.key() != key_) return {};
    thread_.join();
    return std::move(plans_);
  }

 private:
  std::string key_;
  CompilePool& pool_;
  std::vector<Plan> plans_;
  std::vector<CompilePool::Job> jobs_;
  std::thread thread_;
};

bool is_unfinished(const Winner& winner) {
  return winner.certificate.find("search=unfinished") != std::string::npos;
}

// The time is over: the default is the answer until a later run finds a better one.
Tuned leave_default(Context& context, const Item& item) {
  Tuned out;
  out.item = item;
  out.status = context.supports(item.problem);
  if (!out.status.ok()) return out;
  Winner winner;
  winner.problem = item.problem.key();
  winner.plan = context.enabled_plans(item.problem, 1).front().text();
  winner.env = std::make_shared<Env>(context.env());
  winner.choice = Choice::fallback;
  winner.certificate = "search=unfinished";
  winner.decided = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  out.plan = winner.plan;
  out.reason = "the time limit ran out: the default, until a later run goes on";
  out.answer = Tuned::Answer::unfinished;
  // An answer of an earlier run, even a stale one, is worth more.
  const auto stored = context.database().winner_of(winner.problem, winner.env->target,
                                                   winner.env->performance_class);
  if (stored.ok() && !stored->has_value()) out.status = context.database().set_winner(winner);
  if (!out.status.ok()) out.answer = Tuned::Answer::failed;
  return out;
}

// The operands that trials rotate through, with what is quantised on the way, and as much again for
// what admission holds beside them.
double tuning_bytes(const Problem& p, const DeviceInfo& device) {
  const Sizes most = most_sizes(p);
  const auto m = static_cast<double>(most.m), k = static_cast<double>(most.k);
  const double n = std::max(1.0, static_cast<double>(most.n));
  const double groups = p.grouping == Grouping::none ? 1 : static_cast<double>(most.groups);
  const double copies = static_cast<double>(most.batch) * groups;
  const auto bytes = [](DType type) {
    return type == DType::none ? 0.0 : type == DType::f32 ? 4.0 : type == DType::mxfp4 ? 0.6 : 2.0;
  };
  const double call = copies * ((bytes(p.a_type) + 0.6) * m * k + (bytes(p.b_type) + 0.6) * n * k +
                                bytes(p.d_type) * m * n);
  const auto rotation = rotation_for(device, static_cast<std::int64_t>(call));
  return 2 * call * static_cast<double>(rotation.copies);
}

// The share of a problem that is done, as far as its candidates tell; the decision takes the rest.
double progress_within(const Tuned& tuned, std::size_t remaining) {
  constexpr double kSearch = 0.7;
  const auto tried = static_cast<double>(tuned.tried);
  return tried > 0 ? kSearch * tried / (tried + static_cast<double>(remaining)) : 0;
}

}  // namespace

Result<FileLock> device_lock(const Context& context, const std::function<bool()>& interrupted) {
  const DeviceInfo& device = context.backend().device();
  auto number = static_cast<std::uint64_t>(device.ordinal);
  // Workers that are given one GPU each all count theirs as the first.
  if (device.target.vendor == Vendor::nvidia)
    if (const auto uuid = gpu_uuid(device.ordinal); !uuid.empty()) {
      const Digest digest = sha256(uuid);
      number = 0;
      for (std::size_t i = 0; i < 5; ++i) number = number << 8 | digest[i];
    }
  const auto byte = number * 4 + static_cast<std::uint64_t>(device.target.vendor);
  return FileLock::acquire(context.code_store()->folder() + "/tuning.lock", byte,
                           std::chrono::hours(24), LockKind::exclusive, interrupted);
}

std::string_view phase_name(Progress::Phase phase) {
  constexpr std::string_view names[] = {"waiting for another tuner",
                                        "preparing",
                                        "compiling",
                                        "admitting",
                                        "timing",
                                        "confirming",
                                        "decided"};
  return names[static_cast<std::size_t>(phase)];
}

std::string failures_text(const Tuned& tuned) {
  std::string out;
  for (const auto& [how, count] : tuned.failures)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, how);
  return out;
}

std::string_view answer_name(Tuned::Answer answer) {
  constexpr std::string_view names[] = {"cached", "tuned", "default", "unfinished", "failed"};
  return names[static_cast<std::size_t>(answer)];
}

Result<std::optional<Winner>> valid_winner(Context& context, const Problem& problem) {
  const Env& env = context.env();
  auto winner = context.database().winner_of(problem.key(), env.target, env.performance_class);
  if (!winner.ok() || !winner->has_value()) return winner;
  const bool valid = (*winner)->env && compare(*(*winner)->env, env) == Validity::valid;
  if (!valid || is_unfinished(**winner)) return std::optional<Winner>();
  const auto plan = parse_plan((*winner)->plan);
  if (!plan.ok() || !check_plan(problem, context.backend().device().target, *plan).ok())
    return std::optional<Winner>();
  return winner;
}

Session::Session(Context& context, SessionOptions options)
    : context_(context), options_(std::move(options)), campaign_(random_uuid()) {
  if (options_.jobs == 0) options_.jobs = usable_cores();
  // A GPU's kernels take longer to admit than to compile: small batches, so that patience counts.
  const bool cpu = context.backend().device().target.vendor == Vendor::cpu;
  options_.batch = std::max(options_.batch, (cpu ? 2 : 1) * options_.jobs);
  if (options_.process.settings.empty()) options_.process.settings = context.settings_for_child();
  options_.process.interrupted = options_.interrupted;
  options_.measure = settings_for(context.backend().device(), options_.measure);
}
Session::~Session() = default;

std::vector<Tuned> Session::run(const std::vector<Item>& items,
                                const std::function<void(const Progress&)>& changed,
                                const std::function<void(const Tuned&)>& done) {
  const SteadyClock clock;
  const double begun = clock.now();
  const auto interrupted = [this] { return options_.interrupted && options_.interrupted(); };
  std::vector<Tuned> out;

  const auto cached = [&](const Item& item) -> std::optional<Tuned> {
    if (options_.cached == Cached::tuned_again) return std::nullopt;
    const auto winner = valid_winner(context_, item.problem);
    if (!winner.ok() || !winner->has_value()) return std::nullopt;
    Tuned tuned;
    tuned.item = item;
    tuned.answer = Tuned::Answer::cached;
    tuned.plan = (*winner)->plan;
    tuned.speedup = (*winner)->speedup;
    tuned.low = (*winner)->speedup_low;
    tuned.high = (*winner)->speedup_high;
    tuned.noise = (*winner)->noise;
    tuned.median_seconds = 1e-9 * (*winner)->median_ns;
    tuned.reason =
        (*winner)->choice == Choice::tuned ? "tuned before" : "the default was found best before";
    return tuned;
  };
  // Compilers run beside what a GPU is timed with, not beside what this machine's CPU is; the
  // threads that measure and prepare data keep cores of their own.
  const bool look_ahead = context_.backend().device().target.vendor != Vendor::cpu;
  CompilePool pool(context_.backend(),
                   look_ahead ? std::max<std::size_t>(options_.jobs, 3) - 2 : options_.jobs,
                   options_.slots);
  std::unique_ptr<TrialProcess> process;
  std::unique_ptr<LookAhead> present, next;
  std::size_t left = 0, worked = 0;
  for (const auto& item : items) left += !cached(item).has_value();

  for (std::size_t i = 0; i < items.size() && !interrupted(); ++i) {
    Progress progress;
    progress.problem = i + 1;
    progress.problems = items.size();
    progress.name = short_name(items[i].problem);
    const auto report = [&](Progress::Phase phase, const Tuned& tuned, std::size_t remaining) {
      progress.phase = phase;
      progress.tried = tuned.tried;
      progress.failed = tuned.failed;
      progress.failures = failures_text(tuned);
      progress.left = static_cast<std::int64_t>(remaining);
      progress.best = tuned.speedup;
      progress.elapsed = clock.now() - begun;
      // What was stored before took no time and tells nothing of it.
      const double within = progress_within(tuned, remaining);
      const double behind = static_cast<double>(worked) + within;
      const double ahead = static_cast<double>(left) - within;
      progress.remaining = behind > 0 ? std::max(0.0, progress.elapsed / behind * ahead) : 0;
      if (options_.time_limit > 0) {
        const double limit = std::max(0.0, options_.time_limit - progress.elapsed);
        progress.remaining = behind > 0 ? std::min(progress.remaining, limit) : limit;
      }
      if (changed) changed(progress);
    };
    auto known = cached(items[i]);
    if (!known) {
      FileLock lock;
      report(Progress::Phase::waiting, {}, 0);
      auto held = device_lock(context_, interrupted);
      if (held.ok()) lock = std::move(*held);
      if (interrupted()) break;
      known = cached(items[i]);  // another tuner may have decided it meanwhile
      if (!known) {
        const double elapsed = clock.now() - begun;
        if (options_.time_limit > 0 && elapsed >= options_.time_limit) {
          out.push_back(leave_default(context_, items[i]));
          if (done) done(out.back());
          continue;
        }
        present = std::move(next);
        for (std::size_t j = i + 1; look_ahead && j < items.size() && !next; ++j)
          if (!cached(items[j]))
            next = std::make_unique<LookAhead>(context_, items[j], options_, pool);
        if (!process) process = std::make_unique<TrialProcess>(items[i].problem, options_.process);
        ProblemTuner tuner(
            context_, options_, campaign_, items[i],
            {pool, *process, present ? present->take_plans(items[i].problem) : std::vector<Plan>()},
            deadline_for(clock.now(), elapsed, left), report);
        known = tuner.tune();
        // Its time ran out before there was anything to decide by.
        if (known->answer == Tuned::Answer::unfinished && known->plan.empty() && !interrupted())
          known = leave_default(context_, items[i]);
        ++worked;
      }
      left -= left > 0;
    }
    if (done) done(*known);
    out.push_back(std::move(*known));
    const Code code = out.back().status.code();
    // These would meet every further problem alike.
    if (code == Code::no_compiler || code == Code::disk_full || code == Code::read_only) return out;
  }
  next.reset();
  if (interrupted()) return out;
  if (auto status = settle(items, pool, process, begun, out); !status.ok() && !out.empty()) {
    out.back().status = status;
    out.back().answer = Tuned::Answer::failed;
  }
  return out;
}

Status Session::settle(const std::vector<Item>& items, CompilePool& pool,
                       std::unique_ptr<TrialProcess>& process, double begun,
                       std::vector<Tuned>& results) {
  const SteadyClock clock;
  const Env& env = context_.env();
  const auto item_of = [&](const std::string& key) {
    return std::find_if(items.begin(), items.end(),
                        [&](const Item& item) { return item.problem.key() == key; });
  };
  const auto untimed = untimed_layouts(context_.database(), env.target, env.performance_class);
  if (!untimed.ok()) return untimed.status();
  SessionOptions few = options_;
  few.order.most = kPlansOfLayout;
  std::size_t left = untimed->size();
  for (const auto& [problem, layout] : *untimed) {
    const double elapsed = clock.now() - begun;
    const auto item = item_of(problem);
    const bool late = options_.time_limit > 0 && elapsed >= options_.time_limit;
    if (item == items.end() || late || (options_.interrupted && options_.interrupted())) continue;
    auto plans = plans_for(options_, context_, item->problem);
    std::erase_if(plans, [&](const Plan& plan) {
      const Step& main = plan.main_step();
      const Family* family = find_family(main.variant.family);
      return !family || family->b_layout(item->problem, main.variant) != layout;
    });
    if (plans.empty()) continue;
    if (!process) process = std::make_unique<TrialProcess>(item->problem, options_.process);
    FileLock lock;
    if (auto held = device_lock(context_, options_.interrupted); held.ok()) lock = std::move(*held);
    ProblemTuner tuner(context_, few, campaign_, *item, {pool, *process, std::move(plans)},
                       deadline_for(clock.now(), elapsed, left), [](auto...) {});
    const Tuned tuned = tuner.tune();
    left -= left > 0;
    for (auto& result : results)
      if (result.item.problem.key() == problem) {
        result.tried += tuned.tried;
        result.failed += tuned.failed;
        result.compiled += tuned.compiled;
        result.seconds += tuned.seconds;
      }
  }
  auto sites = settle_sites(context_.database(), env.target, env.performance_class);
  if (!sites.ok()) return sites.status();
  sites_.clear();
  for (auto& site : *sites) {
    bool here = false;
    for (const auto& member : site.members)
      for (auto& result : results) {
        if (result.item.problem.key() != member.problem) continue;
        here = true;
        if (result.plan == member.plan || result.answer == Tuned::Answer::failed) continue;
        result.plan = member.plan;
        result.speedup = result.low = result.high = member.speedup;
        result.reason = fmt::format("{}; {}", result.reason, site.text());
        const auto winner =
            context_.database().winner_of(member.problem, env.target, env.performance_class);
        if (winner.ok() && winner->has_value()) {
          result.median_seconds = 1e-9 * (*winner)->median_ns;
          result.low = (*winner)->speedup_low;
          result.high = (*winner)->speedup_high;
        }
      }
    if (here) sites_.push_back(std::move(site));
  }
  return {};
}

// The share of the time that is left, and no more than one problem may have; 0 = no limit.
double Session::deadline_for(double now, double elapsed, std::size_t problems_left) const {
  double seconds = options_.problem_time_limit;
  if (options_.time_limit > 0) {
    const double share = (options_.time_limit - elapsed) /
                         static_cast<double>(std::max<std::size_t>(1, problems_left));
    seconds = seconds > 0 ? std::min(seconds, share) : share;
    seconds = std::max(seconds, 1e-3);
  }
  return seconds > 0 ? now + seconds : 0;
}

Result<std::vector<Estimate>> Session::estimate(const std::vector<Item>& items) {
  double compile_seconds = kCompileSeconds;
  if (const auto recent = context_.database().recent_trials(context_.env().target, 200);
      recent.ok()) {
    double sum = 0, count = 0;
    for (const auto& trial : *recent)
      if (trial.compile_ms > 0) sum += 1e-3 * static_cast<double>(trial.compile_ms), count += 1;
    if (count > 0) compile_seconds = sum / count;
  }
  std::vector<Estimate> out;
  for (const auto& item : items) {
    Estimate estimate;
    estimate.item = item;
    if (auto status = context_.supports(item.problem); !status.ok()) return status;
    auto winner = valid_winner(context_, item.problem);
    if (!winner.ok()) return winner.status();
    estimate.decided = winner->has_value() && options_.cached == Cached::reused;
    const Space space{item.problem, context_.backend().device().target,
                      plans_for(options_, context_, item.problem)};
    estimate.space = space.plans.size();
    estimate.candidates =
        options_.search == SearchKind::exhaustive
            ? space.plans.size()
            : std::min(space.plans.size(),
                       options_.order.most > 0 ? options_.order.most : standard_budget(space));
    if (estimate.decided) estimate.candidates = 0;
    const auto candidates = static_cast<double>(estimate.candidates);
    estimate.compile_seconds = candidates * compile_seconds;
    estimate.device_seconds = candidates * kTrialSeconds;
    estimate.seconds =
        estimate.compile_seconds / static_cast<double>(options_.jobs) + estimate.device_seconds;
    estimate.bytes = tuning_bytes(item.problem, context_.backend().device());
    out.push_back(estimate);
  }
  return out;
}

}  // namespace quarterturn
