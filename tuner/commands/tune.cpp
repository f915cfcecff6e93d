// qturn tune: finds the fastest right plan for each problem and stores it.
#include <fmt/format.h>

#include <cstdio>

#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/missed.hpp"

namespace quarterturn {
namespace {

constexpr const char* kTuneFooter = R"(Examples:
  qturn tune --model Qwen2.5-0.5B
  qturn tune --model Llama-3.1-8B --tokens 1,16,512 --roles fprop,dgrad,wgrad --time-limit 3600
  qturn tune --shape 1..16x4096x14336 --type f32
  qturn tune --model path/to/config.json --dry-run
  qturn tune --from-misses --time-limit 3600

Every candidate is first held against the scalar reference, then timed beside the default in
alternating runs; another plan is stored only where it is surely faster, else the default is the
answer. Each result is kept at once: Ctrl-C loses nothing, the same command goes on, and what is
decided is not tried again. A time limit that runs out leaves the default in place for what was
not reached, and the next run goes on there.

--from-misses works on what programs asked for and nobody had tuned, most time first, counted as
calls times estimated time; what gets its answer is taken off the list.

Exit codes: 0 every problem has its answer; 1 some problem has none; 2 the command line makes no
sense; 3 the machine lacks something; 130 interrupted.)";

struct TuneOptions {
  double time_limit = 0, problem_time_limit = 0;
  bool dry_run = false, exhaustive = false, again = false, from_misses = false;
  std::size_t candidates = 0;
  std::string search = "learned", data;
  std::int64_t rounds = RaceSettings{}.screening_rounds;
};

std::string gflops(const Tuned& tuned) {
  const double work =
      operations(tuned.item.problem, representative_sizes(tuned.item.problem).front());
  if (work == 0 || tuned.median_seconds <= 0) return "";
  return fmt::format("{:.1f}", 1e-9 * work / tuned.median_seconds);
}

Table result_table() {
  return Table({"problem", "layers", "answer", "speedup", "low", "high", "us", "gflops", "tried",
                "failed", "compiled", "seconds", "plan", "reason"});
}

std::vector<std::string> row_of(const Tuned& t) {
  return {short_name(t.item.problem),
          t.item.layers,
          std::string(answer_name(t.answer)),
          fmt::format("{:.3f}", t.speedup),
          fmt::format("{:.3f}", t.low),
          fmt::format("{:.3f}", t.high),
          t.median_seconds > 0 ? fmt::format("{:.1f}", 1e6 * t.median_seconds) : "",
          gflops(t),
          fmt::format("{}", t.tried),
          fmt::format("{}", t.failed),
          fmt::format("{}", t.compiled),
          fmt::format("{:.1f}", t.seconds),
          t.plan,
          t.reason};
}

int dry_run(Session& session, const Workload& workload, const GlobalOptions& global,
            const TuneOptions& options) {
  const auto estimates = session.estimate(workload.items);
  if (!estimates.ok()) return fail(estimates.status());
  Table table({"problem", "layers", "decided", "space", "candidates", "seconds"});
  double seconds = 0;
  std::size_t candidates = 0;
  for (const auto& e : *estimates) {
    table.add({short_name(e.item.problem), e.item.layers, e.decided ? "yes" : "no",
               fmt::format("{}", e.space), fmt::format("{}", e.candidates),
               fmt::format("{:.0f}", e.seconds)});
    seconds += e.seconds;
    candidates += e.candidates;
  }
  table.print(global.json);
  if (options.time_limit > 0) seconds = std::min(seconds, options.time_limit);
  std::fprintf(
      stderr,
      "qturn: %zu problems, at most %zu candidates, about %s on this machine; nothing was tried\n",
      workload.items.size(), candidates, clock_text(seconds).c_str());
  return kExitOk;
}

void show_site(const Site& site, const GlobalOptions& global) {
  if (!global.json) {
    std::fprintf(stderr, "qturn: %s: %s\n", site.members.front().problem.c_str(),
                 site.text().c_str());
    return;
  }
  Table table({"site", "layout", "bits_per_element", "problem", "lost", "plan"});
  for (const auto& member : site.members)
    table.add({site.site, std::string(name_of(site.layout)),
               fmt::format("{:.3f}", site.bits_per_element), member.problem,
               fmt::format("{:.4f}", member.lost), member.plan});
  table.print(true);
}

int finish(const std::vector<Tuned>& results, std::size_t wanted) {
  std::size_t counts[5] = {};
  std::int64_t compiled = 0, tried = 0, failed = 0;
  double seconds = 0;
  for (const auto& t : results) {
    ++counts[static_cast<std::size_t>(t.answer)];
    compiled += t.compiled, tried += t.tried, failed += t.failed, seconds += t.seconds;
  }
  std::fprintf(stderr,
               "qturn: %zu of %zu problems: %zu tuned, %zu best by default, %zu cached, %zu "
               "unfinished, %zu failed; "
               "%lld plans tried (%lld failed), %lld kernels compiled, %s\n",
               results.size(), wanted, counts[1], counts[2], counts[0], counts[3], counts[4],
               static_cast<long long>(tried), static_cast<long long>(failed),
               static_cast<long long>(compiled), clock_text(seconds).c_str());
  int code = kExitOk;
  for (const auto& t : results)
    if (t.answer == Tuned::Answer::failed) {
      const int one = fail(Status(
          t.status.code(), fmt::format("{}: {}", short_name(t.item.problem), t.status.message())));
      code = code == kExitOk || one == kExitUnavailable ? one : code;
      // The command line made sense; the machine could not do it.
      if (code == kExitUsage) code = kExitFailed;
    }
  if (is_interrupted()) {
    std::fprintf(stderr,
                 "qturn: interrupted; everything so far is kept, the same command goes on\n");
    return kExitInterrupted;
  }
  return code;
}

Result<Workload> wanted(Context& context, const WorkOptions& work, const TuneOptions& options) {
  if (options.from_misses) return missed_workload(context);
  return workload_of(work);
}

// What has its answer is no miss any more.
void clear_miss(Context& context, const Tuned& tuned) {
  if (tuned.answer == Tuned::Answer::unfinished || tuned.answer == Tuned::Answer::failed) return;
  const Env& env = context.env();
  if (auto status = context.database().clear_misses(tuned.item.problem.key(), env.target,
                                                    env.performance_class);
      !status.ok())
    std::fprintf(stderr, "qturn: misses stay on the list: %s\n", status.message().c_str());
}

int tune(const WorkOptions& work, const GlobalOptions& global, const TuneOptions& options) {
  // Before a device is opened: it may be wrong.
  if (!options.from_misses)
    if (auto given = workload_of(work); !given.ok()) return fail(given.status());
  std::string profile;
  if (!options.data.empty()) {
    const auto data = Captured::open(options.data);
    if (!data.ok()) return fail(data.status());
    profile = (*data)->name();
    std::fprintf(stderr,
                 "qturn: timing with %s, %lld x %lld: these answers are served first where "
                 "QTURN_DATA_PROFILE=%s\n",
                 options.data.c_str(), static_cast<long long>((*data)->rows()),
                 static_cast<long long>((*data)->columns()), profile.c_str());
  }
  watch_interrupts();
  auto context =
      profile.empty() ? open_context(global)
                      : open_context(global, {{Setting::data_profile, profile}});
  if (!context.ok()) return fail(context.status());
  auto workload = wanted(**context, work, options);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  if (workload->items.empty()) {
    if (!options.from_misses) return kExitFailed;
    std::fprintf(stderr, "qturn: nothing was missed on %s (%s)\n", (*context)->env().target.c_str(),
                 (*context)->env().performance_class.c_str());
    return kExitOk;
  }
  SessionOptions session_options;
  session_options.process.data = options.data;
  session_options.time_limit = options.time_limit;
  session_options.problem_time_limit = options.problem_time_limit;
  session_options.search = options.exhaustive              ? SearchKind::exhaustive
                           : options.search == "predicted" ? SearchKind::predicted
                                                           : SearchKind::learned;
  session_options.cached = options.again ? Cached::tuned_again : Cached::reused;
  session_options.order.most = options.candidates;
  session_options.race.screening_rounds = options.rounds;
  session_options.interrupted = is_interrupted;
  Session session(**context, session_options);
  if (options.dry_run) return dry_run(session, *workload, global, options);

  ProgressDisplay display;
  Table all = result_table();
  const auto results = session.run(
      workload->items, [&](const Progress& progress) { display.show(progress); },
      [&](const Tuned& tuned) {
        clear_miss(**context, tuned);
        if (global.json) {
          // As they come, for whoever reads along.
          display.clear();
          Table one = result_table();
          one.add(row_of(tuned));
          one.print(true);
          std::fflush(stdout);
        } else if (tuned.answer != Tuned::Answer::cached && tuned.answer != Tuned::Answer::failed) {
          display.say(fmt::format("{}: {}", short_name(tuned.item.problem), tuned.reason));
        }
        if (tuned.tried > 0)
          display.say(fmt::format("{}: {:.1f} s for {} plans, {} kernels: {}",
                                  short_name(tuned.item.problem), tuned.seconds, tuned.tried,
                                  tuned.compiled, tuned.phases.text()));
        if (!tuned.first_failure.empty())
          display.say(fmt::format("{} failed: {}", tuned.failed,
                                  tuned.first_failure.substr(0, tuned.first_failure.find('\n'))));
        all.add(row_of(tuned));
      });
  display.clear();
  for (const auto& note : (*context)->database().take_notes())
    std::fprintf(stderr, "qturn: %s\n", note.c_str());
  if (!global.json) all.print(false);
  for (const auto& site : session.sites()) show_site(site, global);
  return finish(results, workload->items.size());
}

}  // namespace

std::function<int()> register_tune(CLI::App& app) {
  auto* command =
      app.add_subcommand("tune", "Find and store the fastest right plan for each problem");
  command->footer(kTuneFooter);
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<TuneOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  command
      ->add_option("--time-limit", options->time_limit,
                   "Seconds for all problems together (default: none)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--problem-time-limit", options->problem_time_limit,
                   "Seconds for each problem (default: none)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--candidates", options->candidates,
                   "Plans of one problem that are tried at most (default: a tenth of its kernels)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{100000}));
  command
      ->add_option("--search", options->search,
                   "learned: by a model of what was tried; predicted: by the families' own models")
      ->capture_default_str()
      ->check(CLI::IsMember({"learned", "predicted"}));
  command
      ->add_option("--rounds", options->rounds,
                   "Paired rounds of every candidate, before the best are timed further")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  command->add_option("--data", options->data,
                      "A captured matrix [tokens, features] that activations (or gradients) are "
                      "timed with: FILE.npy, or FILE.safetensors[:NAME]");
  command->add_flag("--from-misses", options->from_misses,
                    "Instead of a model or shape: what was asked for here and nobody had tuned");
  command->add_flag("--exhaustive", options->exhaustive, "Try every legal plan");
  command->add_flag("--again", options->again,
                    "Tune what is decided already, too, and try again what is in quarantine");
  command->add_flag("--dry-run", options->dry_run,
                    "Say what would be tried and how long it may take; try nothing");
  return [=] { return tune(*work, *global, *options); };
}

}  // namespace quarterturn
