// qturn recheck: confirms answers that a new driver, compiler or library version made stale.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/recheck.hpp"

namespace quarterturn {
namespace {

constexpr const char* kRecheckFooter = R"(Examples:
  qturn recheck --time-limit 600
  qturn recheck --served --json

After an update of the driver, the compiler or the library, stored answers go on to serve as stale.
This compiles each anew, holds it against the scalar reference, and times it against the default in
three trials, what programs were served first. An answer that holds is valid again (kept). One that
still beats the default, but by less than it did, serves and is put on the list of `qturn tune
--from-misses` (queued); one that does not leaves its place to the default, and is on that list, too
(default).

Exit codes: 0 each was rechecked, or is waiting for a later run; 1 something failed; 3 the machine
lacks something; 130 interrupted.)";

struct RecheckOptions {
  double time_limit = 0;
  bool served = false, dry_run = false;
};

Table recheck_table() {
  return Table(
      {"problem", "answer", "calls", "before", "now", "low", "high", "seconds", "plan", "reason"});
}

void add_row(Table& table, const Rechecked& r) {
  const auto ratio = [](double x) { return x > 0 ? fmt::format("{:.3f}", x) : std::string(); };
  table.add({short_name(r.stale.problem), std::string(recheck_answer_name(r.answer)),
             fmt::format("{}", r.stale.calls), ratio(r.stale.winner.speedup), ratio(r.speedup),
             ratio(r.low), ratio(r.high), fmt::format("{:.1f}", r.seconds), r.plan, r.reason});
}

int recheck(const GlobalOptions& global, const RecheckOptions& options) {
  watch_interrupts();
  auto context = open_context(global);
  if (!context.ok()) return fail(context.status());
  auto stale = stale_answers(**context);
  if (!stale.ok()) return fail(stale.status());
  if (options.served) std::erase_if(*stale, [](const auto& one) { return one.calls == 0; });
  Table table = recheck_table();
  if (options.dry_run) {
    for (const auto& one : *stale) {
      Rechecked waiting;
      waiting.stale = one;
      waiting.answer = Rechecked::Answer::waiting;
      waiting.plan = one.winner.plan;
      waiting.reason = "nothing was tried";
      add_row(table, waiting);
    }
    table.print(global.json);
    return kExitOk;
  }
  SessionOptions session;
  session.time_limit = options.time_limit;
  session.interrupted = is_interrupted;
  Rechecker rechecker(**context, session);
  ProgressDisplay display;
  std::size_t counts[5] = {};
  const auto results = rechecker.run(*stale, [&](const Rechecked& r) {
    ++counts[static_cast<std::size_t>(r.answer)];
    add_row(table, r);
    if (!global.json && r.answer != Rechecked::Answer::waiting)
      display.say(fmt::format("{}: {}: {}", short_name(r.stale.problem),
                              recheck_answer_name(r.answer), r.reason));
  });
  table.print(global.json);
  std::fprintf(stderr,
               "qturn: %zu stale answers: %zu kept, %zu queued, %zu left to the default, %zu "
               "waiting, %zu failed\n",
               results.size(), counts[0], counts[1], counts[2], counts[3], counts[4]);
  if (is_interrupted()) return kExitInterrupted;
  for (const auto& r : results)
    if (r.answer == Rechecked::Answer::failed) {
      const int code = fail(r.status);
      return code == kExitUsage ? static_cast<int>(kExitFailed) : code;
    }
  return kExitOk;
}

}  // namespace

std::function<int()> register_recheck(CLI::App& app) {
  auto* command = app.add_subcommand(
      "recheck", "Confirm answers that another driver, compiler or version made stale");
  command->footer(kRecheckFooter);
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<RecheckOptions>();
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  command
      ->add_option("--time-limit", options->time_limit,
                   "Seconds, after which the rest waits for a later run (default: none)")
      ->check(positive_number());
  command->add_flag("--served", options->served, "Only answers that programs were served");
  command->add_flag("--dry-run", options->dry_run, "List the stale answers; try nothing");
  return [=] { return recheck(*global, *options); };
}

}  // namespace quarterturn
