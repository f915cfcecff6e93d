// qturn check: holds plans against the scalar reference again.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/session.hpp"

namespace quarterturn {
namespace {

constexpr const char* kCheckFooter = R"(Examples:
  qturn check                                  every stored answer for this device
  qturn check --model Llama-3.1-8B --tokens 1,512
  qturn check --shape 512x4096x14336 --rotation 128

Poisoned outputs, guard bands, several kinds of inputs; codes bit for bit, products within the
contract's bound, stochastic rounding unbiased. A stored answer that fails is taken back; a plan in
quarantine that is right is released.

Exit codes: 0 all are right; 1 some are wrong or could not be tried; 2 the command line makes no
sense; 3 the machine lacks something; 130 interrupted.)";

constexpr std::size_t kHeuristics = 4;  // plans in order that a context would serve

struct Subject {
  Problem problem;
  Plan plan;
  std::string origin;
};

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What would serve a problem: the best stored answer, else the default.
Result<Subject> subject_of(Context& context, const Problem& problem) {
  if (auto status = context.supports(problem); !status.ok()) return status;
  const Target& target = context.backend().device().target;
  const auto is_free = [&](const Plan& plan) {
    const auto held = context.database().quarantine_of(plan, problem.key(), context.env());
    return !held.ok() || !held->has_value();
  };
  for (const auto& found : context.table()->candidates(problem))
    if (check_plan(problem, target, found.answer->plan).ok() && is_free(found.answer->plan))
      return Subject{problem, found.answer->plan, std::string(match_name(found.match))};
  const auto plans = context.enabled_plans(problem, kHeuristics);
  // Where all are in quarantine, the first is held against the reference once more.
  const auto free = std::find_if(plans.begin(), plans.end(), is_free);
  return Subject{problem, free == plans.end() ? plans.front() : *free, "heuristic"};
}

Result<std::vector<Subject>> subjects_of(Context& context, const WorkOptions& work) {
  std::vector<Subject> out;
  if (!work.model.empty() || !work.shape.empty() || !work.problem.empty()) {
    auto workload = workload_of(work);
    if (!workload.ok()) return workload.status();
    report_refusals(*workload);
    for (const auto& item : workload->items) {
      auto subject = subject_of(context, item.problem);
      if (!subject.ok()) return subject.status();
      out.push_back(std::move(*subject));
    }
    return out;
  }
  auto winners = context.database().winners(context.env().target);
  if (!winners.ok()) return winners.status();
  for (const auto& winner : *winners) {
    if (!winner.env || winner.env->performance_class != context.env().performance_class) continue;
    auto problem = parse_problem(winner.problem);
    auto plan = parse_plan(winner.plan);
    if (problem.ok() && plan.ok()) out.push_back({*problem, *plan, "stored"});
  }
  return out;
}

void remember(Context& context, const Subject& subject, const Verdict& verdict, Loss loss) {
  Trial trial;
  trial.problem = subject.problem.key();
  trial.plan = subject.plan.text();
  trial.env = std::make_shared<Env>(context.env());
  trial.kind = TrialKind::admission;
  trial.status = verdict.status.ok()     ? TrialStatus::ok
                 : loss == Loss::crashed ? TrialStatus::crashed
                 : loss == Loss::hung    ? TrialStatus::hung
                                         : TrialStatus::wrong;
  trial.max_error = verdict.certificate.max_error;
  trial.bias_z = verdict.certificate.bias_z;
  trial.repeatable = verdict.certificate.repeatable;
  trial.started = nanoseconds_now();
  trial.extra = verdict.certificate.text();
  trial.detail = verdict.status.message();
  auto status = context.database().add_trial(trial);
  if (status.ok() && trial.status != TrialStatus::ok) {
    Quarantine entry;
    entry.subject = trial.plan;
    entry.problem = trial.problem;
    entry.target = trial.env->target;
    entry.performance_class = trial.env->performance_class;
    entry.compiler = trial.env->compiler;
    entry.reason = trial.status == TrialStatus::crashed ? QuarantineReason::crashed
                   : trial.status == TrialStatus::hung  ? QuarantineReason::hung
                                                        : QuarantineReason::wrong;
    entry.detail = trial.detail;
    status = context.database().add_quarantine(entry);
    if (status.ok() && subject.origin != "heuristic")
      status =
          context.database().remove_winner(trial.problem, entry.target, entry.performance_class);
  }
  if (status.ok() && trial.status == TrialStatus::ok) {
    const auto held = context.database().quarantine_of(subject.plan, trial.problem, *trial.env);
    if (held.ok() && held->has_value()) status = context.database().remove_quarantine(**held);
  }
  if (!status.ok())
    std::fprintf(stderr, "qturn: the result is not kept: %s\n", status.message().c_str());
}

int check(const WorkOptions& work, const GlobalOptions& global) {
  watch_interrupts();
  auto context = open_context(global);
  if (!context.ok()) return fail(context.status());
  auto subjects = subjects_of(**context, work);
  if (!subjects.ok()) return fail(subjects.status());
  if (subjects->empty()) {
    std::fprintf(
        stderr,
        "qturn: no answer is stored for this device; name a --model or a --shape, or tune first\n");
    return kExitFailed;
  }
  TrialProcessOptions options;
  options.settings = (*context)->settings_for_child();
  options.interrupted = is_interrupted;
  Table table({"problem", "origin", "state", "max_error", "outputs", "all_outputs", "code_rows",
               "bias_z", "repeatable", "plan", "reason"});
  int code = kExitOk;
  for (const auto& subject : *subjects) {
    if (is_interrupted()) break;
    if (has_no_rows(subject.problem)) {
      table.add({short_name(subject.problem), subject.origin, "right", "0", "0", "0", "0", "0", "1",
                 subject.plan.text(), "no rows: a call does nothing"});
      continue;
    }
    TrialProcess process(subject.problem, options);
    const auto index = process.add(subject.plan);
    const Verdict verdict = process.admit(index);
    if (verdict.status.code() == Code::interrupted) break;
    const bool judged = verdict.status.ok() || verdict.status.code() == Code::rejected ||
                        process.loss(index) != Loss::none;
    if (judged) remember(**context, subject, verdict, process.loss(index));
    if (!verdict.status.ok())
      code = judged || code == kExitFailed ? kExitFailed : exit_code_of(verdict.status);
    const Certificate& proved = verdict.certificate;
    table.add({short_name(subject.problem), subject.origin,
               verdict.status.ok() ? "right"
               : judged            ? "wrong"
                                   : "not tried",
               fmt::format("{:.3g}", proved.max_error), fmt::format("{}", proved.outputs),
               fmt::format("{}", proved.all_outputs), fmt::format("{}", proved.code_rows),
               fmt::format("{:.3g}", proved.bias_z), fmt::format("{}", proved.repeatable),
               subject.plan.text(), verdict.status.message()});
  }
  table.print(global.json);
  return is_interrupted() ? kExitInterrupted : code;
}

}  // namespace

std::function<int()> register_check(CLI::App& app) {
  auto* command = app.add_subcommand("check", "Hold plans against the scalar reference again");
  command->footer(kCheckFooter);
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  return [=] { return check(*work, *global); };
}

}  // namespace quarterturn
