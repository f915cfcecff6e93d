// qturn lock: a file of plans that a run is held to, and whether it fits this machine.
#include <fmt/format.h>

#include "runtime/version.hpp"
#include "tuner/commands/command.hpp"

namespace quarterturn {
namespace {

constexpr const char* kLockFooter = R"(Examples:
  qturn lock write -o tuning.lock --model Qwen3-8B --tokens 1..4096 --roles fprop,dgrad,wgrad
  QTURN_LOCK=tuning.lock python train.py
  qturn lock check tuning.lock --model Qwen3-8B --tokens 1..4096

With a lock file, a program prepares what the file names, by the plan that it names, and is refused
everything else (status not_locked), whatever databases say and whatever is tuned meanwhile. Each
plan is there with the hash of its kernels' text, so another library version whose kernels differ is
refused as well.

Exit codes: 0 all is well; 1 something is missing or would be refused; 2, 3 as everywhere.)";

struct LockOptions {
  std::string file;
  bool stored = false;
};

// What is written follows the databases, not another lock file.
Result<std::shared_ptr<Context>> open_with_lock(const GlobalOptions& global,
                                                const std::string& lock) {
  return open_context(global, {{Setting::lock, lock}});
}

Result<std::vector<Problem>> problems_of(Context& context, const WorkOptions& work, bool stored) {
  std::vector<Problem> out;
  if (stored)
    for (const auto& answer : context.table()->answers()) out.push_back(answer.problem);
  if (stored && work.model.empty() && work.shape.empty() && work.problem.empty()) return out;
  auto workload = workload_of(work);
  if (!workload.ok()) return workload.status();
  report_refusals(*workload);
  for (auto& item : workload->items) out.push_back(std::move(item.problem));
  return out;
}

int write_lock(const WorkOptions& work, const GlobalOptions& global, const LockOptions& options) {
  auto context = open_with_lock(global, "");
  if (!context.ok()) return fail(context.status());
  const auto problems = problems_of(**context, work, options.stored);
  if (!problems.ok()) return fail(problems.status());
  const Target& target = (*context)->backend().device().target;
  LockFile lock{std::string(kVersion), target.key(), {}};
  Table table({"problem", "match", "plan"});
  for (const auto& problem : *problems) {
    auto choice = (*context)->choose(problem);
    if (!choice.ok()) return fail(choice.status());
    const auto code = code_digest(problem, target, choice->plan);
    if (!code.ok()) return fail(code.status());
    table.add({short_name(problem), std::string(match_name(choice->match)), choice->plan.text()});
    lock.plans.insert_or_assign(problem.key(), LockedPlan{std::move(choice->plan), *code});
  }
  if (lock.plans.empty())
    return fail(Status(Code::miss, "there is nothing to lock: the databases hold no answer here"));
  if (auto status = write_file(options.file, lock.text()); !status.ok()) return fail(status);
  table.print(global.json);
  std::fprintf(stderr, "qturn: %zu problems in %s, hash %s\n", lock.plans.size(),
               options.file.c_str(), hex(lock.hash()).c_str());
  return kExitOk;
}

int check_lock(const WorkOptions& work, const GlobalOptions& global, const LockOptions& options) {
  auto context = open_with_lock(global, options.file);
  if (!context.ok()) return fail(context.status());
  std::vector<Problem> problems;
  Table table({"problem", "state", "reason"});
  std::size_t refused = 0;
  const bool given = !work.model.empty() || !work.shape.empty() || !work.problem.empty();
  if (given) {
    auto workload = workload_of(work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    for (auto& item : workload->items) problems.push_back(std::move(item.problem));
  }
  for (const auto& [key, locked] : (*context)->lock()->plans) {
    auto problem = parse_problem(key);
    if (problem.ok() && !given) problems.push_back(std::move(*problem));
    if (problem.ok()) continue;
    table.add({key, "refused", problem.status().message()});
    ++refused;
  }
  for (const auto& problem : problems) {
    const auto choice = (*context)->choose(problem);
    refused += !choice.ok();
    table.add({short_name(problem), choice.ok() ? "locked" : "refused",
               choice.ok() ? "" : choice.status().message()});
  }
  table.print(global.json);
  std::fprintf(stderr, "qturn: %zu of %zu problems are refused; hash %s\n", refused,
               problems.size(), hex((*context)->lock()->hash()).c_str());
  return refused == 0 ? kExitOk : kExitFailed;
}

}  // namespace

std::function<int()> register_lock(CLI::App& app) {
  auto* command = app.add_subcommand("lock", "Write and check files that hold a run to its plans");
  command->footer(kLockFooter);
  command->require_subcommand(1);
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<LockOptions>();
  auto* write = command->add_subcommand("write", "Write what problems are served by now");
  auto* check = command->add_subcommand("check", "Say what a lock file would refuse here");
  for (auto* sub : {write, check}) {
    add_work(*sub, *work);
    add_database(*sub, *global);
    add_device(*sub, *global);
    add_json(*sub, *global);
  }
  write->add_option("-o,--output", options->file, "The lock file")->required();
  write->add_flag("--stored", options->stored, "Every problem that a database has an answer for");
  check->add_option("FILE", options->file, "The lock file; all it names, or what --model asks for")
      ->required();
  return [=] {
    return write->parsed() ? write_lock(*work, *global, *options)
                           : check_lock(*work, *global, *options);
  };
}

}  // namespace quarterturn
