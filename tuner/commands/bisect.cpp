// qturn db bisect: the generation since which a problem is served by another plan, or slower.
#include "tuner/commands/bisect.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/bisect.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/compile.hpp"
#include "tuner/gpu_observer.hpp"
#include "tuner/memory.hpp"
#include "tuner/session.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

constexpr const char* kBisectFooter = R"(Examples:
  qturn db bisect /shared/quarterturn --shape 512x4096x14336
  qturn db bisect /shared/quarterturn --problem 'op=gemm ...' --measure --good 3

Lists what each generation stores for the problem, and since which one the plan is what it is now, and
since which one the stored time is longer than before. Stored times come from different days and
devices of one class. With --measure the plans are compiled, held against the reference and timed in
turns with the good generation's on the device at hand, by binary search: about log2 of the number of
generations. Then `qturn db rollback` returns to a generation, or a pin holds one plan.

Exit codes: 0 done; 1 a plan could not be timed; 2 no generation has an answer, or the command line
does not make sense; 3 the machine lacks something; 130 interrupted.)";

constexpr int kRounds = 16;

struct BisectOptions {
  std::string folder;
  WorkOptions work;
  bool measure = false;
  std::int64_t good = 0, bad = 0;
  double noise = 0.01;
};

std::string date_of(std::int64_t nanoseconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(static_cast<std::time_t>(nanoseconds / 1'000'000'000)));
}

// Times two plans of one problem in turns, in a process of their own.
Result<TimeRatio> time_in_turns(Context& context, const Problem& problem, const std::string& good,
                                const std::string& other) {
  std::vector<Plan> plans;
  for (const auto& text : {good, other}) {
    auto plan = parse_plan(text);
    if (!plan.ok()) return plan.status();
    if (auto s = check_plan(problem, context.backend().device().target, *plan); !s.ok()) return s;
    plans.push_back(std::move(*plan));
  }
  for (const auto& one :
       compile_plans(context.backend(), problem, plans, usable_cores(), is_interrupted))
    if (!one.status.ok()) return one.status;
  const auto lock = device_lock(context, is_interrupted);
  if (!lock.ok()) return lock.status();
  TrialProcessOptions options;
  options.settings = context.settings_for_child();
  options.interrupted = is_interrupted;
  TrialProcess process(problem, options);
  for (const auto& plan : plans)
    if (auto verdict = process.admit(process.add(plan), Depth::sampled); !verdict.status.ok())
      return verdict.status;
  const auto observer = observer_for(context.backend().device());
  const SteadyClock clock;
  PairedTimer timer(process, clock, *observer, settings_for(context.backend().device(), {}));
  for (int i = 0; i < kRounds; ++i) {
    if (is_interrupted()) return Status(Code::interrupted, "interrupted");
    if (auto status = timer.round({1}); !status.ok()) return status;
  }
  const Series& series = timer.series(1);
  if (!series.failure.ok() && series.log_speedups.empty()) return series.failure;
  const auto interval = bootstrap_median(series.log_speedups, 0.95);
  return TimeRatio{std::exp(-median(series.log_speedups)), std::exp(-interval.high),
                   std::exp(-interval.low)};
}

void add_steps(Table& table, const History& history, const Problem& problem,
               const Bisected& measured) {
  const auto number = [](double x) { return x > 0 ? fmt::format("{:.3f}", x) : std::string(); };
  for (std::size_t i = 0; i < history.steps.size(); ++i) {
    const StoredStep& step = history.steps[i];
    const auto found =
        std::find_if(measured.measured.begin(), measured.measured.end(),
                     [&](const auto& one) { return one.generation == step.generation; });
    const TimeRatio time = found == measured.measured.end() ? TimeRatio{0, 0, 0} : found->time;
    const auto& winner = step.winner;
    table.add({short_name(problem), history.target, history.performance_class,
               fmt::format("{}", step.generation), date_of(step.published),
               std::string(change_name(change_at(history, i))),
               winner ? number(1e-3 * winner->median_ns) : "",
               winner ? number(winner->speedup) : "", number(time.ratio), number(time.low),
               number(time.high), winner ? winner->plan : step.unreadable});
  }
}

// Those of the device at hand, when something is to be timed on it.
Status keep_measurable(const Context* context, const std::string& folder,
                       std::vector<History>& all) {
  const auto none = [&](const std::string& why) {
    return Status(Code::invalid_argument, fmt::format("no generation of {} {}", folder, why));
  };
  if (all.empty()) return none("holds an answer to this problem");
  if (!context) return {};
  const Env& env = context->env();
  std::string classes;
  for (const auto& history : all)
    classes += fmt::format("\n  {} ({})", history.target, history.performance_class);
  std::erase_if(all, [&](const History& history) {
    return history.target != env.target || history.performance_class != env.performance_class;
  });
  if (!all.empty()) return {};
  return none(fmt::format("has one for this device, {} ({}); there are some for:{}", env.target,
                          env.performance_class, classes));
}

int bisect_all(const GlobalOptions& global, const BisectOptions& options) {
  watch_interrupts();
  const auto workload = workload_of(options.work);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  std::shared_ptr<Context> context;
  if (options.measure) {
    auto opened = open_context(global);
    if (!opened.ok()) return fail(opened.status());
    context = std::move(*opened);
  }
  Table steps({"problem", "target", "class", "generation", "published", "change", "stored_us",
               "stored_speedup", "times_as_long", "low", "high", "plan"});
  Table verdicts({"problem", "target", "class", "plan_changed_since", "slower_since", "evidence"});
  Status failure;
  for (const auto& item : workload->items) {
    auto all = histories(options.folder, item.problem);
    if (!all.ok()) return fail(all.status());
    if (auto status = keep_measurable(context.get(), options.folder, *all); !status.ok()) {
      failure = status;
      std::fprintf(stderr, "qturn: %s: %s\n", short_name(item.problem).c_str(),
                   status.message().c_str());
      continue;
    }
    for (const auto& history : *all) {
      Bisected found;
      if (context) {
        auto measured = bisect(history, options.good, options.bad, options.noise,
                               [&](const std::string& good, const std::string& other) {
                                 return time_in_turns(*context, item.problem, good, other);
                               });
        if (!measured.ok()) return fail(measured.status());
        found = std::move(*measured);
      }
      add_steps(steps, history, item.problem, found);
      const auto since = [](std::int64_t n) { return n > 0 ? fmt::format("{}", n) : "never"; };
      verdicts.add({short_name(item.problem), history.target, history.performance_class,
                    since(plan_changed_since(history)),
                    since(context ? found.slower_since : stored_slower_since(history)),
                    context ? "measured" : "stored"});
    }
  }
  if (!failure.ok() && workload->items.size() == 1) return exit_code_of(failure);
  steps.print(global.json);
  if (!global.json) std::printf("\n");
  verdicts.print(global.json);
  return kExitOk;
}

}  // namespace

std::function<int()> register_bisect(CLI::App& db) {
  auto* command = db.add_subcommand(
      "bisect", "Find the generation since which a problem is slower, or served by another plan");
  command->footer(kBisectFooter);
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<BisectOptions>();
  command->add_option("FOLDER", options->folder, "The published folder")->required();
  add_work(*command, options->work);
  auto* measure = command->add_flag("--measure", options->measure,
                                    "Time the generations' plans on the device at hand");
  command
      ->add_option("--good", options->good,
                   "The generation that was fast (default: the first with an answer)")
      ->needs(measure)
      ->check(positive_number());
  command
      ->add_option("--bad", options->bad, "The one that is slow (default: the last with an answer)")
      ->needs(measure)
      ->check(positive_number());
  command
      ->add_option("--noise", options->noise,
                   "Slower by more than this share counts, the whole interval being above it")
      ->needs(measure)
      ->capture_default_str()
      ->check(number_between(0.0, 10.0));
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  return [=] { return bisect_all(*global, *options); };
}

}  // namespace quarterturn
