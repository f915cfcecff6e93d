// qturn cluster submit: a campaign as an array of Slurm.
#include <fmt/format.h>

#include <filesystem>

#include "cache/postgresql.hpp"
#include "cache/trusted_file.hpp"
#include "runtime/worker.hpp"
#include "tuner/campaign_folder.hpp"
#include "tuner/commands/cluster.hpp"
#include "tuner/slurm_script.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

struct SubmitOptions {
  SlurmScript script;
  std::string file, cpu_partition, gres, store;
  std::size_t cpu_cores = 0;
  bool two_stage = false, print = false;
};

std::string own_program() {
  std::error_code error;
  const auto self = fs::read_symlink("/proc/self/exe", error);
  return error ? "qturn" : self.string();
}

// The job's number.
Result<std::string> submit_script(const std::string& path, const std::string& after) {
  WorkerCommand command;
  command.arguments = {"sbatch", "--parsable"};
  if (!after.empty()) command.arguments.push_back("--dependency=afterany:" + after);
  command.arguments.push_back(path);
  command.limits.memory_bytes = 0;
  const auto report = Worker().run(command);
  if (!report.ok()) return report.status();
  if (report->end == WorkerReport::End::not_started)
    return Status(Code::no_device,
                  "sbatch is not here: submit from a node of the cluster, or print the script with "
                  "--print");
  const auto end = report->output.find_first_not_of("0123456789");
  const auto number = report->output.substr(0, end);
  if (!report->succeeded() || number.empty())
    return Status(Code::launch_failed, fmt::format("sbatch {}: {}\n{}", path,
                                                   report->ending(command.limits), report->output));
  return number;
}

// A script is a file that others read.
Status check_no_password(const std::vector<std::string>& words) {
  for (const auto& word : words) {
    const auto at = word.find("postgres");
    if (at == std::string::npos || !pg::is_url(word.substr(at))) continue;
    const auto holds = pg::holds_password(word.substr(at));
    if (!holds.ok() && holds.status().code() != Code::no_driver) return holds.status();
    // Without libpq here, whatever looks like one is taken for one.
    const auto user = word.find('@', at), colon = word.find(':', at + 13);
    if (holds.ok() ? *holds
                   : (user != word.npos && colon < user) || word.find("password=") != word.npos)
      return {Code::invalid_argument,
              "the store's URL holds a password, which would stand in the job's script: leave it "
              "out, and put it into a password file (~/.pgpass, mode 0600) or a service file that "
              "workers can read"};
  }
  return {};
}

int submit(const SubmitOptions& options) {
  const auto campaign = read_campaign(options.file);
  if (!campaign.ok()) return fail(campaign.status());
  if (campaign->shards == 0)
    return fail(Status(Code::invalid_argument, options.file + " has no shards"));
  const auto target = parse_target(campaign->target);
  if (!target.ok()) return fail(target.status());
  SlurmScript script = options.script;
  if (!options.store.empty()) {
    script.worker.emplace_back("--store");
    script.worker.push_back(options.store);
  }
  if (auto checked = check_no_password(script.worker); !checked.ok()) return fail(checked);
  std::error_code error;
  script.campaign = fs::absolute(options.file, error).string();
  const CampaignFolder folder(script.campaign);
  script.folder = folder.path();
  script.shards = campaign->shards;
  if (script.name.empty()) script.name = "qturn-" + fs::path(options.file).stem().string();
  if (script.qturn.empty()) script.qturn = script.container.empty() ? own_program() : "qturn";
  script.gres = options.gres;
  if (options.gres.empty() && target->vendor != Vendor::cpu) script.gres = "gpu:1";
  if (options.gres == "none") script.gres.clear();
  SlurmScript compile = script;
  compile.stage = SlurmStage::compile;
  compile.worker = options.script.worker;
  compile.gres.clear();
  compile.constraint.clear();
  compile.name += "-compile";
  if (!options.cpu_partition.empty()) compile.partition = options.cpu_partition;
  if (options.cpu_cores > 0) compile.cores = options.cpu_cores;
  if (options.print) {
    if (options.two_stage)
      std::printf("%s\n# ---- after any end of it (--dependency=afterany:JOB) ----\n",
                  compile.text().c_str());
    std::printf("%s", script.text().c_str());
    return kExitOk;
  }
  Status status = folder.make();
  fs::create_directories(folder.path() + "/logs", error);
  std::string first;
  Table table({"stage", "job", "tasks", "script"});
  for (const auto* one : {&compile, &script}) {
    if (one == &compile && !options.two_stage) continue;
    const bool compiles = one->stage == SlurmStage::compile;
    const auto path = folder.path() + (compiles ? "/compile.sh" : "/tune.sh");
    if (status.ok()) status = replace_durably(path, one->text());
    if (!status.ok()) return fail(status);
    const auto job = submit_script(path, first);
    if (!job.ok()) return fail(job.status());
    table.add({compiles ? "compile" : "tune", *job, fmt::format("{}", one->shards), path});
    first = *job;
  }
  table.print(false);
  std::fprintf(stderr, "qturn: `qturn cluster status %s` tells how far it is\n",
               options.file.c_str());
  return kExitOk;
}

}  // namespace

std::function<int()> register_cluster_submit(CLI::App& app) {
  auto* command =
      app.add_subcommand("submit", "Submit a campaign to Slurm: an array of one task a shard");
  auto options = std::make_shared<SubmitOptions>();
  auto& script = options->script;
  script.qturn.clear();
  add_campaign(*command, options->file);
  add_store(*command, options->store);
  const auto text = [&](const char* name, std::string& value, const char* meaning) {
    command->add_option(name, value, meaning);
  };
  text("--partition", script.partition, "As sbatch has it; so are the next six");
  text("--account", script.account, "");
  text("--time", script.time, "Of a task; at its end it goes back to the queue and goes on");
  text("--mem", script.memory, "");
  text("--constraint", script.constraint, "");
  text("--qos", script.qos, "");
  text("--job-name", script.name, "");
  text("--gres", options->gres,
       "What a worker gets (default: gpu:1; for a MIG slice gpu:1g.10gb:1 and the like; none)");
  command->add_option("--cores", script.cores, "Of each task")
      ->capture_default_str()
      ->check(whole_between(1, 4096));
  command->add_option("--at-once", script.at_once, "Tasks that run at a time (default: any)")
      ->check(whole_between(0, 100000));
  command
      ->add_option("--restarts", script.restarts,
                   "Times that a task goes back to the queue after its worker was killed")
      ->capture_default_str()
      ->check(whole_between(0, 1000));
  text("--container", script.container,
       "An image that holds qturn: .sif by apptainer, anything else by srun --container-image");
  text("--qturn", script.qturn, "The program's path on the nodes (default: this one)");
  text("--scratch", script.scratch, "A folder on the nodes' own disks (default: TMPDIR)");
  command->add_option("--sbatch", script.more, "A further option of sbatch; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--work", script.worker,
                   "A further word for `qturn cluster work`; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--two-stage", options->two_stage,
                    "Compile on nodes without devices first; then an array that only tries");
  text("--cpu-partition", options->cpu_partition, "Of the first stage");
  command->add_option("--cpu-cores", options->cpu_cores, "Of each task of the first stage")
      ->check(whole_between(1, 4096));
  command->add_flag("--print", options->print, "Show the script; submit nothing");
  return [=] { return submit(*options); };
}

}  // namespace quarterturn
