#include "runtime/proofs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cache/file_lock.hpp"
#include "cache/publication.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kRows = 256;  // tokens, so that a proof sees whole tiles, tails and one row

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

QuarantineReason reason_of(Proof::End end) {
  return end == Proof::End::hung      ? QuarantineReason::hung
         : end == Proof::End::crashed ? QuarantineReason::crashed
                                      : QuarantineReason::wrong;
}

TrialStatus trial_status_of(Proof::End end) {
  return end == Proof::End::right     ? TrialStatus::ok
         : end == Proof::End::hung    ? TrialStatus::hung
         : end == Proof::End::crashed ? TrialStatus::crashed
                                      : TrialStatus::wrong;
}

bool fits(const Problem& problem, const Target& target, const Plan& plan) {
  return validate(problem).ok() && check_plan(problem, target, plan).ok();
}

// The problem with as many tokens as show a kernel's edges, where the plan goes with them.
Problem with_all_sizes(const Problem& problem, const Target& target, const Plan& plan) {
  Problem out = problem;
  Extent& tokens = problem.role == Role::wgrad ? out.k : out.m;
  if (problem.role == Role::wgrad && tokens.is_static()) return out;
  tokens = {std::min<std::int64_t>(tokens.lo, 1), std::max(tokens.hi, kRows)};
  return fits(out, target, plan) ? out : problem;
}

// Where groups stand in admission's way, one of them shows as much of the kernel.
Problem ungrouped(Problem problem) {
  problem.grouping = Grouping::none;
  problem.groups = Extent::exactly(1);
  return problem;
}

}  // namespace

std::string_view proof_state_name(ProofState state) {
  constexpr std::string_view names[] = {"proven", "proven here", "unproven", "failed"};
  return names[static_cast<std::size_t>(state)];
}

Proofs::Proofs(Place place, const Settings& settings, Prover prover, Status why_not, const Log& log,
               Compile compile)
    : place_(std::move(place)),
      mode_(place_.device == Device::present ? settings.text(Setting::unproven) : "serve"),
      prover_(std::move(prover)),
      why_not_(std::move(why_not)),
      log_(log),
      compile_(std::move(compile)) {
  if (mode_ == "refuse")
    why_not_ = Status(Code::unproven,
                      "QTURN_UNPROVEN is refuse; with admit, prepare proves a family once in a "
                      "child process, and `qturn tune` proves what it times");
  else if (why_not_.ok())
    why_not_ = prover_.available();
}

void Proofs::forget() {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& one) { return one.second.state != ProofState::here; });
  undecided_.clear();
}

void Proofs::forget_open() {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& one) { return one.second.state == ProofState::open; });
}

bool Proofs::is_on_record(const Variant& v) {
  const auto here = place_.database.has_admission(v.family, v.revision, place_.env);
  if (here.ok() && *here) return true;
  const auto holds_it = [&](Result<Database> snapshot) {
    if (!snapshot.ok()) return false;
    const auto there = snapshot->has_admission(v.family, v.revision, place_.env);
    return there.ok() && *there;
  };
  for (const auto& path : place_.snapshots)
    if (holds_it(open_published(path, place_.keys))) return true;
  return !place_.bundle.empty() && holds_it(Database::open_snapshot(place_.bundle));
}

Proofs::Answer Proofs::state_of(const Variant& variant) {
  const Family* family = find_family(variant.family);
  if (family && family->evidence(place_.target) == Family::Evidence::hardware)
    return {ProofState::known, {}};
  const auto name = variant.family_text();
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(name); found != known_.end()) return found->second;
  }
  Answer out;
  const Plan family_alone{{{StepKind::whole, {variant.family, variant.revision, {}}}}};
  const auto held = place_.database.quarantine_of(family_alone, "", place_.env);
  if (held.ok() && held->has_value())
    out = {ProofState::failed,
           fmt::format("{}: {}", quarantine_reason_name((*held)->reason), (*held)->detail)};
  else if (is_on_record(variant))
    out = {ProofState::here, {}};
  const std::lock_guard lock(mutex_);
  return known_[name] = out;
}

bool Proofs::serves_open(const Variant& variant) const {
  if (mode_ != "serve") return false;
  const Family* family = find_family(variant.family);
  return place_.device == Device::missing || !family ||
         family->evidence(place_.target) != Family::Evidence::documents;
}

Status Proofs::refusal(const Variant& variant) const {
  const Family* family = find_family(variant.family);
  const auto rounding = family ? family->hardware_rounding() : std::nullopt;
  const std::string instead =
      rounding ? fmt::format(
                     "What its instruction does is known from documents alone, so it serves "
                     "after a proof only; rounding sr16 instead of {} runs everywhere",
                     name_of(*rounding))
               : "QTURN_UNPROVEN=serve runs it as it is";
  return Status(Code::unproven,
                fmt::format("{} has not run on {} so far, and is not proved on this device: {}. {}",
                            variant.family, place_.env.target, why_not_.message(), instead));
}

Status Proofs::allows(const Plan& plan) {
  for (const auto& step : plan.steps) {
    const auto answer = state_of(step.variant);
    if (answer.state == ProofState::failed)
      return Status(Code::quarantined, fmt::format("{} is in quarantine on this device ({})",
                                                   step.variant.family_text(), answer.detail));
    if (answer.state != ProofState::open || serves_open(step.variant)) continue;
    if (!why_not_.ok()) return refusal(step.variant);
    const std::lock_guard lock(mutex_);
    if (const auto found = undecided_.find(step.variant.family_text()); found != undecided_.end())
      return found->second;
  }
  return {};
}

// A plan's quantisers are proved as problems of their own where they can be, so that a wrong
// product is nobody's fault but its main kernel's. The plan itself comes last.
std::vector<ProofTask> Proofs::tasks_for(const Problem& given, const Plan& plan) {
  const Problem problem = with_all_sizes(given, place_.target, plan);
  std::vector<ProofTask> out;
  std::vector<std::string> named;
  for (const auto& step : plan.steps) {
    if (step == plan.main_step() || !is_open(step.variant)) continue;
    const Problem part = step_problem(problem, place_.target, plan, step.kind);
    const Plan alone{{{StepKind::whole, step.variant}}};
    const auto name = step.variant.family_text();
    if (part.op != Op::quantize || std::count(named.begin(), named.end(), name) > 0 ||
        !fits(part, place_.target, alone))
      continue;
    named.push_back(name);
    out.push_back({part, alone});
  }
  const bool whole = std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return is_open(step.variant) &&
           std::count(named.begin(), named.end(), step.variant.family_text()) == 0;
  });
  if (whole) out.push_back({problem, plan});
  return out;
}

void Proofs::record(const ProofTask& task, const Proof& proof, TrialStatus status) {
  Trial trial;
  trial.problem = task.problem.key();
  trial.plan = task.plan.text();
  trial.env = std::make_shared<Env>(place_.env);
  trial.kind = TrialKind::admission;
  trial.status = status;
  trial.max_error = proof.max_error;
  trial.bias_z = proof.bias_z;
  trial.repeatable = proof.repeatable;
  trial.started = nanoseconds_now();
  trial.detail = proof.status.message();
  if (const auto stored = place_.database.add_trial(trial); !stored.ok())
    log_(LogLevel::info, "the proof of {} is not remembered: {}", task.plan.text(),
         stored.message());
}

// The families of a right plan are proved; of a wrong one its main step's is to blame, as the steps
// before it were proved alone.
Status Proofs::judge(const ProofTask& task, const Proof& proof) {
  const Variant& main = task.plan.main_step().variant;
  const auto name = main.family_text();
  if (proof.end == Proof::End::undecided) {
    const Status status(
        Code::unproven,
        fmt::format("{} has not run on {} so far, and could not be proved on this device: {}",
                    main.family, place_.env.target, proof.status.message()));
    const std::lock_guard lock(mutex_);
    return undecided_[name] = status;
  }
  record(task, proof, trial_status_of(proof.end));
  if (proof.end == Proof::End::right) {
    const std::lock_guard lock(mutex_);
    for (const auto& step : task.plan.steps)
      if (auto& known = known_[step.variant.family_text()]; known.state == ProofState::open)
        known.state = ProofState::here;
    return {};
  }
  Quarantine entry;
  entry.subject = name;
  entry.target = place_.env.target;
  entry.performance_class = place_.env.performance_class;
  entry.compiler = place_.env.compiler;
  entry.reason = reason_of(proof.end);
  entry.detail = fmt::format("{} with plan {}: {}", task.problem.key(), task.plan.text(),
                             proof.status.message());
  const auto stored = place_.database.add_quarantine(entry);
  log_(LogLevel::warning, "{} failed its proof on this device and is put in quarantine, {}: {}{}",
       name,
       find_family(main.family)->hardware_rounding() ? "and no other family rounds so"
                                                     : "the next family serves",
       proof.status.message(),
       stored.ok() ? "" : fmt::format(" (not remembered: {})", stored.message()));
  const std::lock_guard lock(mutex_);
  known_[name] = {ProofState::failed, fmt::format("{}: {}", quarantine_reason_name(entry.reason),
                                                  proof.status.message())};
  return Status(Code::quarantined, fmt::format("{} failed its proof on this device: {}", name,
                                               proof.status.message()));
}

Status Proofs::compile(const Problem& problem, const Plan& plan) {
  for (const auto& step : plan.steps) {
    const Problem part = step_problem(problem, place_.target, plan, step.kind);
    const auto source = find_family(step.variant.family)->emit(part, place_.target, step.variant);
    if (auto status = compile_(source); !status.ok()) return status;
  }
  return {};
}

Status Proofs::prove(const Problem& problem, const Plan& plan) {
  auto tasks = tasks_for(problem, plan);
  // What does not compile is found out here, and the child's time is its kernels' alone.
  for (const auto& task : tasks) {
    if (auto status = compile(task.problem, task.plan); !status.ok()) return status;
    // What a D that is quantised where it is computed is compared with.
    if (quantizes_in_product(task.problem, task.plan))
      if (const auto apart = with_result_step(task.problem, place_.target, task.plan))
        if (auto status = compile(task.problem, *apart); !status.ok()) return status;
  }
  while (!tasks.empty()) {
    ++started_;
    const auto proofs = prover_.run(tasks);
    Status status;
    std::size_t done = 0;
    for (; done < proofs.size() && status.ok(); ++done) {
      const ProofTask& task = tasks[done];
      if (proofs[done].status.code() == Code::not_supported &&
          task.problem.grouping != Grouping::none &&
          fits(ungrouped(task.problem), place_.target, task.plan)) {
        tasks = {{ungrouped(task.problem), task.plan}};
        break;
      }
      status = judge(task, proofs[done]);
    }
    if (!status.ok()) return status;
    if (done == proofs.size()) break;
  }
  return {};
}

Status Proofs::ensure(const Problem& problem, const Plan& plan) {
  const auto is_settled = [&] {
    return std::none_of(plan.steps.begin(), plan.steps.end(),
                        [this](const Step& step) { return is_open(step.variant); });
  };
  const auto serves = [&] {
    return std::all_of(plan.steps.begin(), plan.steps.end(), [this](const Step& step) {
      return serves_open(step.variant) || !is_open(step.variant);
    });
  };
  if (auto status = allows(plan); !status.ok() || serves()) return status;
  const std::lock_guard one(proving_);
  // Another process may be at it; where there are no such locks, both prove.
  auto lock = FileLock::acquire(place_.lock_folder + "/proof.lock", 0, std::chrono::minutes(10));
  forget_open();
  if (auto status = allows(plan); !status.ok() || is_settled()) return status;
  return prove(problem, plan);
}

}  // namespace quarterturn
