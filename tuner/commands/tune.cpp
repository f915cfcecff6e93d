// qturn tune: finds the fastest right plan for each problem and stores it.
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "runtime/cuda/backend.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/fleet.hpp"
#include "tuner/fleet_server.hpp"
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

--devices all (or cuda:0,cuda:1) runs one process a device. Devices of one kind share the problems,
the database and the compilers, of which as many run as the process may use cores (its cgroup, and
SLURM_CPUS_PER_TASK). A process that dies costs the trial that it had in flight: it is reported, and
its problems are tried again.

--from-misses works on what programs asked for and nobody had tuned, most time first, counted as
calls times estimated time; what gets its answer is taken off the list.

Exit codes: 0 every problem has its answer; 1 some problem has none; 2 the command line makes no
sense; 3 the machine lacks something; 130 interrupted.)";

struct TuneOptions {
  double time_limit = 0, problem_time_limit = 0;
  bool dry_run = false, exhaustive = false, again = false, from_misses = false;
  std::size_t candidates = 0;
  std::string search = "learned", data, devices;
  std::int64_t fleet_slots = 0;  ///< > 0: this is a device's process, and so many compilers run
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
  Table table({"problem", "layers", "decided", "space", "candidates", "seconds", "device_mib"});
  double seconds = 0, most = 0;
  std::size_t candidates = 0;
  for (const auto& e : *estimates) {
    table.add({short_name(e.item.problem), e.item.layers, e.decided ? "yes" : "no",
               fmt::format("{}", e.space), fmt::format("{}", e.candidates),
               fmt::format("{:.0f}", e.seconds), fmt::format("{:.0f}", e.bytes / 1048576)});
    seconds += e.seconds;
    candidates += e.candidates;
    if (!e.decided) most = std::max(most, e.bytes);
  }
  table.print(global.json);
  if (options.time_limit > 0) seconds = std::min(seconds, options.time_limit);
  std::fprintf(
      stderr,
      "qturn: %zu problems, at most %zu candidates, about %s (%.2f hours) on this machine and %.1f "
      "GiB of its device; nothing was tried\n",
      workload.items.size(), candidates, clock_text(seconds).c_str(), seconds / 3600,
      most / (1 << 30));
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

SessionOptions session_options_of(const TuneOptions& options) {
  SessionOptions out;
  out.process.data = options.data;
  out.time_limit = options.time_limit;
  out.problem_time_limit = options.problem_time_limit;
  out.search = options.exhaustive              ? SearchKind::exhaustive
               : options.search == "predicted" ? SearchKind::predicted
                                               : SearchKind::learned;
  out.cached = options.again ? Cached::tuned_again : Cached::reused;
  out.order.most = options.candidates;
  out.race.screening_rounds = options.rounds;
  out.interrupted = is_interrupted;
  return out;
}

int tune(const WorkOptions& work, const GlobalOptions& global, const TuneOptions& options) {
  // Before a device is opened: it may be wrong.
  if (!options.from_misses && options.fleet_slots == 0)
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
  auto context = profile.empty() ? open_context(global)
                                 : open_context(global, {{Setting::data_profile, profile}});
  if (!context.ok()) return fail(context.status());
  SessionOptions session_options = session_options_of(options);
  if (options.fleet_slots > 0) {
    session_options.slots =
        std::make_shared<CompileSlots>((*context)->code_store()->folder() + "/compilers.lock",
                                       static_cast<std::size_t>(options.fleet_slots));
    std::optional<std::vector<Item>> missed;
    if (options.from_misses) {
      auto workload = missed_workload(**context);
      if (!workload.ok()) return fail(workload.status());
      report_refusals(*workload);
      missed = std::move(workload->items);
    }
    return serve_fleet(**context, session_options, missed, STDIN_FILENO, STDOUT_FILENO);
  }
  auto workload = wanted(**context, work, options);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  if (workload->items.empty()) {
    if (!options.from_misses) return kExitFailed;
    std::fprintf(stderr, "qturn: nothing was missed on %s (%s)\n", (*context)->env().target.c_str(),
                 (*context)->env().performance_class.c_str());
    return kExitOk;
  }
  Session session(**context, session_options);
  if (options.dry_run) return dry_run(session, *workload, global, options);

  ProgressDisplay display;
  Table all = result_table();
  const auto results = session.run(
      workload->items, [&](const Progress& progress) { display.show(progress); },
      [&](const Tuned& tuned) {
        if (auto status = clear_missed(**context, tuned); !status.ok())
          display.say("misses stay on the list: " + status.message());
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
          display.say(fmt::format("{} failed ({}): {}", tuned.failed, failures_text(tuned),
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

// "all", or names like those of --device.
Result<std::vector<std::string>> device_names(const std::string& given) {
  std::vector<std::string> out;
  if (given == "all") {
    const auto settings = Settings::load(SettingSources());
    const auto count = cuda::device_count(settings.text(Setting::cuda_driver));
    for (std::int32_t i = 0; count.ok() && i < *count; ++i)
      out.push_back(fmt::format("cuda:{}", i));
    if (out.empty()) out.emplace_back("cpu");
    return out;
  }
  for (std::size_t at = 0; at <= given.size();) {
    const auto end = std::min(given.find(',', at), given.size());
    std::string name = given.substr(at, end - at);
    if (name == "cuda") name = "cuda:0";
    GlobalOptions one;
    one.device = name;
    if (name.empty() || !sources_of(one).ok())
      return Status(Code::invalid_argument,
                    fmt::format("--devices '{}': '{}' is no device; write all, cpu, cuda:0,cuda:1",
                                given, name));
    if (std::find(out.begin(), out.end(), name) != out.end())
      return Status(Code::invalid_argument,
                    fmt::format("--devices '{}': {} is there twice", given, name));
    out.push_back(std::move(name));
    at = end + 1;
  }
  return out;
}

std::vector<std::string> fleet_command(const std::string& device, const GlobalOptions& global,
                                       const TuneOptions& options) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> out{error ? "qturn" : self.string(),
                               "tune",
                               "--device",
                               device,
                               "--fleet-process",
                               fmt::format("{}", usable_cores()),
                               "--search",
                               options.search,
                               "--rounds",
                               fmt::format("{}", options.rounds)};
  const auto add = [&out](const char* name, const std::string& value) {
    if (!value.empty()) out.insert(out.end(), {name, value});
  };
  add("--db", global.database);
  add("--log", global.log);
  add("--data", options.data);
  if (global.threads > 0) add("--threads", fmt::format("{}", global.threads));
  if (options.candidates > 0) add("--candidates", fmt::format("{}", options.candidates));
  if (options.problem_time_limit > 0)
    add("--problem-time-limit", fmt::format("{}", options.problem_time_limit));
  if (options.exhaustive) out.emplace_back("--exhaustive");
  if (options.again) out.emplace_back("--again");
  if (options.from_misses) out.emplace_back("--from-misses");
  return out;
}

int dry_fleet(Fleet& fleet, const Workload& workload, const GlobalOptions& global,
              const TuneOptions& options) {
  const auto kinds = fleet.estimate(workload.items);
  if (!kinds.ok()) return fail(kinds.status());
  Table table({"problem", "layers", "target", "devices", "decided", "space", "candidates",
               "seconds", "device_mib"});
  for (const auto& kind : *kinds) {
    double seconds = 0, most = 0;
    std::size_t candidates = 0;
    for (const auto& e : kind.problems) {
      table.add({short_name(e.item.problem), e.item.layers, kind.kind.target,
                 fmt::format("{}", kind.devices), e.decided ? "yes" : "no",
                 fmt::format("{}", e.space), fmt::format("{}", e.candidates),
                 fmt::format("{:.0f}", e.seconds), fmt::format("{:.0f}", e.bytes / 1048576)});
      seconds += e.seconds;
      candidates += e.candidates;
      if (!e.decided) most = std::max(most, e.bytes);
    }
    seconds /= static_cast<double>(kind.devices);
    if (options.time_limit > 0) seconds = std::min(seconds, options.time_limit);
    std::fprintf(stderr,
                 "qturn: %s: %zu devices, at most %zu candidates, about %.2f hours, %.1f GiB of "
                 "each device; %zu compilers at once take about %.1f GiB of memory\n",
                 kind.kind.target.c_str(), kind.devices, candidates, seconds / 3600,
                 most / (1 << 30), usable_cores(), 0.5 * static_cast<double>(usable_cores()));
  }
  table.print(global.json);
  std::fprintf(stderr, "qturn: nothing was tried\n");
  return kExitOk;
}

int tune_fleet(const WorkOptions& work, const GlobalOptions& global, const TuneOptions& options) {
  auto names = device_names(options.devices);
  if (!names.ok()) return fail(names.status());
  // Each kind of device has a list of misses of its own.
  auto workload = options.from_misses ? Workload{} : workload_of(work);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  if (workload->items.empty() && !options.from_misses) return kExitFailed;
  watch_interrupts();
  ProgressDisplay display;
  FleetOptions fleet_options;
  for (const auto& name : *names)
    fleet_options.devices.push_back({name, fleet_command(name, global, options)});
  fleet_options.time_limit = options.time_limit;
  fleet_options.interrupted = is_interrupted;
  fleet_options.say = [&display](const std::string& device, const std::string& line) {
    display.say(fmt::format("{}: {}", device, line));
  };
  Fleet fleet(fleet_options);
  if (options.dry_run) return dry_fleet(fleet, *workload, global, options);
  const auto results = fleet.run(
      workload->items,
      [&](const std::string& device, Progress progress) {
        progress.name = device + " " + progress.name;
        display.show(progress);
      },
      [&](const std::string& device, const Tuned& tuned) {
        if (tuned.answer != Tuned::Answer::cached)
          display.say(
              fmt::format("{}: {}: {}", device, short_name(tuned.item.problem), tuned.reason));
        if (!tuned.first_failure.empty())
          display.say(fmt::format("{}: {} failed: {}", device, tuned.failed,
                                  tuned.first_failure.substr(0, tuned.first_failure.find('\n'))));
      });
  display.clear();
  if (results.empty() && !is_interrupted()) {
    if (!fleet.has_devices()) return fail(Status(Code::no_device, "no device can be used"));
    std::fprintf(stderr, "qturn: nothing was missed on these devices\n");
    return kExitOk;
  }
  Table table = result_table();
  for (const auto& tuned : results) table.add(row_of(tuned));
  table.print(global.json);
  return finish(results, results.size());
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
      ->check(positive_number());
  command
      ->add_option("--problem-time-limit", options->problem_time_limit,
                   "Seconds for each problem (default: none)")
      ->check(positive_number());
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
  command->add_option("--devices", options->devices,
                      "One process for each: all, or cuda:0,cuda:1 or cpu (instead of --device)");
  command->add_option("--fleet-process", options->fleet_slots)->group("");
  return [=] {
    return options->devices.empty() ? tune(*work, *global, *options)
                                    : tune_fleet(*work, *global, *options);
  };
}

}  // namespace quarterturn
