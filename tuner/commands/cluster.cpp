// qturn cluster: one campaign of tuning on many machines, by Slurm, MPI or ssh.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "cache/file_lock.hpp"
#include "cache/filesystem.hpp"
#include "cache/publication.hpp"
#include "cache/trusted_file.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/worker.hpp"
#include "tuner/campaign_progress.hpp"
#include "tuner/campaign_worker.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/missed.hpp"
#include "tuner/slurm_script.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kClusterFooter = R"(A campaign, from a login node:
  qturn cluster plan --model Llama-3.1-8B --tokens 1,16,512 --roles fprop,dgrad,wgrad \
        --target sm_90a --shards 64 -o llama.campaign
  qturn cluster submit llama.campaign --partition gpu --time 4:00:00 --print   # then without --print
  qturn cluster status llama.campaign
  qturn cluster collect llama.campaign -o tuned.db --publish /shared/quarterturn --key publishing.key

Without Slurm: mpirun -n 64 qturn cluster work llama.campaign, or --shard K by ssh. The campaign's
file, and the folder beside it where workers leave what they did (llama.campaign.d), lie where all
nodes see them. docs/cluster.md tells it step by step.

Exit codes: 0 done; 1 some problem has no answer; 2, 3 as everywhere; 130 asked to end, with
everything kept: the same command goes on.)";

struct PlanOptions {
  std::string output, target;
  std::size_t shards = 0, cores = 8, workers = 0;
  bool from_misses = false;
  CampaignSearch search;
};

struct ShardOptions {
  std::string file, scratch, stage = "tune";
  std::int64_t shard = -1;
  std::size_t cores = 0;
  double interval = 60, patience = 600;
};

struct SubmitOptions {
  SlurmScript script;
  std::string file, cpu_partition, gres;
  std::size_t cpu_cores = 0;
  bool two_stage = false, print = false;
};

struct CollectOptions {
  std::string file, output, publish, key;
  bool partial = false;
};

Result<Campaign> read_campaign(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return Status(Code::io_error, fmt::format("{} cannot be read", file));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto campaign = parse_campaign(text);
  if (!campaign.ok())
    return Status(campaign.status().code(),
                  fmt::format("{}: {}", file, campaign.status().message()));
  return campaign;
}

std::string backend_name(Vendor vendor) {
  return vendor == Vendor::nvidia ? "cuda" : vendor == Vendor::amd ? "hip" : "cpu";
}

// ---- plan ----

Result<std::map<Setting, std::string>> settings_for_target(const std::string& name) {
  std::map<Setting, std::string> out;
  if (name.empty()) return out;
  const auto target = parse_target(name);
  if (!target.ok()) return target.status();
  out[Setting::target] = name;
  out[Setting::backend] = backend_name(target->vendor);
  return out;
}

void print_price(const Campaign& campaign, const CampaignWorkers& workers, bool json) {
  Table table({"form", "workers", "cores_each", "core_hours", "device_hours", "until_done",
               "device_gib", "host_gib_each"});
  for (const auto form : {CampaignForm::one_stage, CampaignForm::two_stage}) {
    const auto p = price(campaign, workers, form);
    table.add({form == CampaignForm::one_stage ? "one stage" : "two stages",
               fmt::format("{}", workers.count), fmt::format("{}", workers.cores),
               fmt::format("{:.2f}", p.core_hours), fmt::format("{:.2f}", p.device_hours),
               clock_text(p.seconds), fmt::format("{:.1f}", p.device_bytes / (1 << 30)),
               fmt::format("{:.1f}", p.host_bytes / (1 << 30))});
  }
  table.print(json);
}

int plan(const WorkOptions& work, const GlobalOptions& global, const PlanOptions& options) {
  const auto settings = settings_for_target(options.target);
  if (!settings.ok()) return fail(settings.status());
  if (!options.from_misses)
    if (auto given = workload_of(work); !given.ok()) return fail(given.status());
  auto context = open_context(global, *settings);
  if (!context.ok()) return fail(context.status());
  auto workload = options.from_misses ? missed_workload(**context) : workload_of(work);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  if (workload->items.empty())
    return fail(Status(Code::miss, options.from_misses ? fmt::format("nothing was missed on {}",
                                                                     (*context)->env().target)
                                                       : std::string("nothing is left to tune")));
  SessionOptions session_options;
  session_options.jobs = options.cores;
  session_options.order.most = options.search.candidates;
  const auto estimates = Session(**context, session_options).estimate(workload->items);
  if (!estimates.ok()) return fail(estimates.status());
  const Campaign campaign = divide((*context)->backend().device().target.key(), options.search,
                                   *estimates, options.shards, options.cores);
  if (campaign.problems.empty()) {
    std::fprintf(stderr, "qturn: all %zu problems have their answers in the database\n",
                 estimates->size());
    return kExitOk;
  }
  if (auto status = replace_durably(options.output, campaign.text()); !status.ok())
    return fail(status);
  const auto workers = options.workers > 0 ? options.workers : campaign.shards;
  print_price(campaign, {workers, options.cores}, global.json);
  std::size_t candidates = 0;
  for (const auto& problem : campaign.problems) candidates += problem.candidates;
  std::fprintf(stderr,
               "qturn: %s: campaign %s for %s: %zu problems (%zu decided before), at most %zu "
               "plans, in %zu shards; nothing was started\n",
               options.output.c_str(), campaign.id().c_str(), campaign.target.c_str(),
               campaign.problems.size(), estimates->size() - campaign.problems.size(), candidates,
               campaign.shards);
  return kExitOk;
}

// ---- work ----

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// On the node's own disk; the campaign's shards on one node share it.
Result<std::string> scratch_for(const Campaign& campaign, const std::string& given) {
  std::string above = given.empty() ? variable("TMPDIR") : given;
  if (above.empty()) above = "/tmp";
  const auto filesystem = filesystem_of(above);
  if (filesystem.kind == FilesystemKind::network)
    return Status(Code::network_filesystem,
                  fmt::format("{} lies on a network file system ({}); give the node's own disk, or "
                              "memory: --scratch /dev/shm",
                              above, filesystem.name));
  const auto path = fmt::format("{}/quarterturn-{}-{}", above, geteuid(), campaign.id());
  if (auto status = make_folder(path); !status.ok()) return status;
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return system_status(errno, "examine " + path);
  if (auto status = check_trusted(info, path); !status.ok()) return status;
  return path;
}

SessionOptions session_options_of(const Campaign& campaign, const ShardOptions& options) {
  SessionOptions out;
  out.search =
      campaign.search.strategy == "predicted" ? SearchKind::predicted : SearchKind::learned;
  out.order.most = campaign.search.candidates;
  out.race.screening_rounds = campaign.search.rounds;
  out.problem_time_limit = campaign.search.problem_time_limit;
  out.jobs = options.cores;
  out.interrupted = is_interrupted;
  return out;
}

// Of several ranks on a node that all see its GPUs, each takes another; one that srun gave a GPU of
// its own sees no others.
std::string device_of_rank(Vendor vendor) {
  if (vendor != Vendor::nvidia) return {};
  const auto count = cuda::device_count();
  for (const auto* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const auto text = variable(name);
    if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != text.npos)
      continue;
    return count.ok() && *count > 1 ? std::to_string(std::stol(text) % *count) : "";
  }
  return {};
}

Result<std::shared_ptr<Context>> context_for(const Campaign& campaign, const GlobalOptions& global,
                                             const std::string& base, const std::string& shard,
                                             bool compiles) {
  const auto target = parse_target(campaign.target);
  if (!target.ok()) return target.status();
  auto sources = sources_of(global);
  if (!sources.ok()) return sources.status();
  const auto settings = Settings::load(*sources);
  std::map<Setting, std::string> more{{Setting::database, shard + "/tuning.db"}};
  if (compiles) more[Setting::target] = campaign.target;
  if (compiles || global.device.empty()) more[Setting::backend] = backend_name(target->vendor);
  if (const auto device = device_of_rank(target->vendor); global.device.empty() && !device.empty())
    more[Setting::device] = device;
  // Shards on one node compile what they share once. The first stage packs all that its store
  // holds.
  const bool chosen = settings.of(Setting::code_cache).origin != SettingOrigin::standard;
  if (compiles || target->vendor == Vendor::amd)
    more[Setting::code_cache] = shard + "/code";
  else if (!chosen)
    more[Setting::code_cache] = base + "/code";
  auto context = open_context(global, more);
  if (!context.ok()) return context;
  const auto here = (*context)->backend().device().target.key();
  if (here != campaign.target)
    return Status(Code::no_device,
                  fmt::format("this device is {}, and the campaign is for {}: run it where `qturn "
                              "devices` lists that, or plan one for this",
                              here, campaign.target));
  return context;
}

int work_on(const Campaign& campaign, const GlobalOptions& global, const ShardOptions& options,
            const std::string& base, std::size_t number) {
  CampaignWork work{.campaign = campaign,
                    .shard = number,
                    .folder = CampaignFolder(options.file),
                    .scratch = fmt::format("{}/shard-{:04}", base, number),
                    .interval = options.interval,
                    .patience = options.patience,
                    .session = session_options_of(campaign, options),
                    .say = [number](const std::string& line) {
                      std::fprintf(stderr, "qturn: shard %zu: %s\n", number, line.c_str());
                    }};
  if (auto status = work.folder.make(); !status.ok()) return fail(status);
  if (auto status = make_folder(work.scratch); !status.ok()) return fail(status);
  const auto lock =
      FileLock::acquire(work.scratch + "/working.lock", 0, std::chrono::milliseconds(0));
  if (lock.status().code() == Code::busy)
    return fail(
        Status(Code::busy, fmt::format("somebody works on shard {} on this node already", number)));
  const bool compiles = options.stage == "compile";
  Result<Heartbeat> outcome = Status(Code::internal, "nothing was done");
  {
    auto context = context_for(campaign, global, base, work.scratch, compiles);
    if (!context.ok()) return fail(context.status());
    if (!compiles) {
      if (auto status = take_up(**context, work); !status.ok()) return fail(status);
      if (auto status = unpack_code(**context, work); !status.ok()) return fail(status);
    }
    outcome = compiles ? compile_shard(**context, work) : tune_shard(**context, work);
  }
  if (!outcome.ok()) {
    std::fprintf(stderr, "qturn: what shard %zu has is kept in %s\n", number, work.scratch.c_str());
    return fail(outcome.status());
  }
  const auto state = outcome->state;
  if (state == Heartbeat::State::done || state == Heartbeat::State::incomplete) {
    std::error_code ignored;
    fs::remove_all(work.scratch, ignored);
  }
  std::fprintf(stderr,
               "qturn: shard %zu: %s: %zu of %zu problems, %lld plans tried (%lld failed), %lld "
               "kernels compiled, %s\n",
               number, std::string(state_name(state)).c_str(), outcome->answered, outcome->problems,
               static_cast<long long>(outcome->tried), static_cast<long long>(outcome->failed),
               static_cast<long long>(outcome->compiled), clock_text(outcome->seconds).c_str());
  switch (state) {
    case Heartbeat::State::done:
      return kExitOk;
    case Heartbeat::State::interrupted:
      return kExitInterrupted;
    case Heartbeat::State::stopped:
      return kExitUnavailable;
    default:
      return kExitFailed;
  }
}

int work(const GlobalOptions& global, const ShardOptions& options) {
  watch_interrupts(SecondSignal::ignored);
  const auto campaign = read_campaign(options.file);
  if (!campaign.ok()) return fail(campaign.status());
  auto shards = options.shard >= 0
                    ? Result<std::vector<std::size_t>>({static_cast<std::size_t>(options.shard)})
                    : shards_of_environment(variable, campaign->shards);
  if (!shards.ok()) return fail(shards.status());
  const auto base = scratch_for(*campaign, options.scratch);
  if (!base.ok()) return fail(base.status());
  int code = kExitOk;
  for (const auto shard : *shards) {
    if (shard >= campaign->shards)
      return fail(
          Status(Code::out_of_range, fmt::format("{} has the shards 0 to {}, and not {}",
                                                 options.file, campaign->shards - 1, shard)));
    const int one = work_on(*campaign, global, options, *base, shard);
    if (one != kExitOk) code = one;
    if (is_interrupted()) return kExitInterrupted;
  }
  return code;
}

// ---- submit ----

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

int submit(const SubmitOptions& options) {
  const auto campaign = read_campaign(options.file);
  if (!campaign.ok()) return fail(campaign.status());
  if (campaign->shards == 0)
    return fail(Status(Code::invalid_argument, options.file + " has no shards"));
  const auto target = parse_target(campaign->target);
  if (!target.ok()) return fail(target.status());
  SlurmScript script = options.script;
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

// ---- status and collect ----

int status(const std::string& file, bool json) {
  const auto campaign = read_campaign(file);
  if (!campaign.ok()) return fail(campaign.status());
  const auto progress = progress_of(*campaign, CampaignFolder(file));
  if (!progress.ok()) return fail(progress.status());
  Table table({"shard", "state", "answered", "problems", "trials", "compiled", "workers", "left_s",
               "seen_s", "host", "job", "now"});
  for (const auto& s : progress->shards)
    table.add({fmt::format("{}", s.shard), s.state, fmt::format("{}", s.answered),
               fmt::format("{}", s.problems), fmt::format("{}", s.trials),
               fmt::format("{}", s.compiled), fmt::format("{}", s.workers),
               fmt::format("{:.0f}", s.left), s.workers > 0 ? fmt::format("{:.0f}", s.age) : "",
               s.host, s.job, s.now});
  table.print(json);
  for (const auto& note : progress->notes) std::fprintf(stderr, "qturn: %s\n", note.c_str());
  for (const auto& failure : progress->failures)
    std::fprintf(stderr, "qturn: failed: %s: %s\n", failure.problem.c_str(),
                 failure.reason.c_str());
  std::fprintf(stderr, "qturn: %zu of %zu problems, %lld trials, %zu workers run%s\n",
               progress->answered, progress->problems, static_cast<long long>(progress->trials),
               progress->running,
               progress->answered == progress->problems
                   ? ""
                   : fmt::format(", about {} left at {:.1f} times the estimated cost",
                                 clock_text(progress->seconds_left), progress->pace)
                         .c_str());
  return kExitOk;
}

int publish_collected(Database& database, const CollectOptions& options) {
  std::optional<SigningKey> key;
  if (!options.key.empty()) {
    auto read = read_signing_key(options.key);
    if (!read.ok()) return fail(read.status());
    key = *read;
  }
  const auto content = database.content_hash();
  if (!content.ok()) return fail(content.status());
  if (const auto manifest = read_manifest(options.publish); manifest.ok())
    if (const auto* now = manifest->find(manifest->current);
        now && now->content == hex(*content) && (!key || now->key == key->public_hex())) {
      std::fprintf(stderr, "qturn: generation %lld of %s holds this already\n",
                   static_cast<long long>(now->number), options.publish.c_str());
      return kExitOk;
    }
  const auto generation = publish(database, options.publish, {}, key ? &*key : nullptr);
  if (!generation.ok()) return fail(generation.status());
  std::fprintf(stderr, "qturn: published as generation %lld of %s\n",
               static_cast<long long>(generation->number), options.publish.c_str());
  return kExitOk;
}

int collect_all(const CollectOptions& options, bool json) {
  const auto campaign = read_campaign(options.file);
  if (!campaign.ok()) return fail(campaign.status());
  DatabaseOptions database_options;
  database_options.fallback = Fallback::none;
  auto database = Database::open(options.output, database_options);
  if (!database.ok()) return fail(database.status());
  const auto collected = collect(*campaign, CampaignFolder(options.file), *database);
  if (!collected.ok()) return fail(collected.status());
  Table table({"problems", "answered", "missing", "copies", "new_trials", "conflicts", "decided",
               "changed"});
  table.add({fmt::format("{}", collected->problems), fmt::format("{}", collected->answered),
             fmt::format("{}", collected->missing.size()), fmt::format("{}", collected->copies),
             fmt::format("{}", collected->trials), fmt::format("{}", collected->conflicts),
             fmt::format("{}", collected->decided.problems - collected->decided.undecidable),
             fmt::format("{}", collected->decided.changed)});
  table.print(json);
  for (const auto& missing : collected->missing)
    std::fprintf(stderr, "qturn: no answer: %s: %s\n", missing.problem.c_str(),
                 missing.reason.c_str());
  const auto faults = database->check();
  if (!faults.ok()) return fail(faults.status());
  for (const auto& fault : *faults) std::fprintf(stderr, "qturn: %s\n", fault.c_str());
  const bool whole = collected->missing.empty() && faults->empty();
  if (!options.publish.empty()) {
    if (!whole && !(options.partial && faults->empty()))
      return fail(Status(Code::rejected,
                         "nothing was published, as the campaign is not complete; --partial "
                         "publishes what there is"));
    if (const int code = publish_collected(*database, options); code != kExitOk) return code;
  }
  return whole ? kExitOk : kExitFailed;
}

// ---- the command line ----

void add_campaign(CLI::App& app, std::string& file) {
  app.add_option("FILE", file, "The campaign, as `qturn cluster plan` wrote it")->required();
}

std::function<int()> register_plan(CLI::App& app) {
  auto* command = app.add_subcommand(
      "plan", "Divide problems over shards and say what they cost; start nothing");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<PlanOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  command->add_option("-o,--output", options->output, "The campaign's file")->required();
  command->add_option("--target", options->target,
                      "What is tuned for (sm_90a, ...), where this machine has none of it");
  command
      ->add_option("--shards", options->shards,
                   "Parts; one worker does each. Some more than devices even out what is estimated")
      ->required()
      ->check(CLI::Range(std::size_t{1}, std::size_t{10000}));
  command->add_option("--cores", options->cores, "Cores of each worker, for estimates")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{4096}));
  command
      ->add_option("--workers", options->workers,
                   "Workers at a time, for estimates (default: one a shard)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{100000}));
  command->add_flag("--from-misses", options->from_misses,
                    "Instead of a model or shape: what was asked for and nobody had tuned");
  command
      ->add_option("--candidates", options->search.candidates,
                   "Plans of one problem that are tried at most (default: a tenth of its kernels)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{100000}));
  command
      ->add_option("--problem-time-limit", options->search.problem_time_limit,
                   "Seconds for each problem (default: none)")
      ->check(CLI::PositiveNumber);
  command->add_option("--search", options->search.strategy, "learned or predicted")
      ->capture_default_str()
      ->check(CLI::IsMember({"learned", "predicted"}));
  command->add_option("--rounds", options->search.rounds, "Paired rounds of every candidate")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  return [=] { return plan(*work, *global, *options); };
}

std::function<int()> register_work(CLI::App& app) {
  auto* command = app.add_subcommand("work", "Do one shard, or a rank's share of them");
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<ShardOptions>();
  add_campaign(*command, options->file);
  add_device(*command, *global);
  command
      ->add_option("--shard", options->shard,
                   "Which (default: SLURM_ARRAY_TASK_ID; or by rank and size: "
                   "OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--stage", options->stage,
                   "compile: only compile, on a node without the device, and pack the code; "
                   "tune: the rest, from packed code where there is some")
      ->capture_default_str()
      ->check(CLI::IsMember({"compile", "tune"}));
  command->add_option("--scratch", options->scratch,
                      "A folder on the node's own disk (default: TMPDIR, else /tmp)");
  command->add_option("--cores", options->cores,
                      "Compilers at once (default: all cores that this process may use)");
  command->add_option("--interval", options->interval, "Seconds between copies")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  command->add_option("--patience", options->patience, "Seconds that a full disk is waited for")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  return [=] { return work(*global, *options); };
}

std::function<int()> register_submit(CLI::App& app) {
  auto* command =
      app.add_subcommand("submit", "Submit a campaign to Slurm: an array of one task a shard");
  auto options = std::make_shared<SubmitOptions>();
  auto& script = options->script;
  script.qturn.clear();
  add_campaign(*command, options->file);
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
  command->add_option("--cores", script.cores, "Of each task")->capture_default_str();
  command->add_option("--at-once", script.at_once, "Tasks that run at a time (default: any)");
  command
      ->add_option("--restarts", script.restarts,
                   "Times that a task goes back to the queue after its worker was killed")
      ->capture_default_str();
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
  command->add_option("--cpu-cores", options->cpu_cores, "Of each task of the first stage");
  command->add_flag("--print", options->print, "Show the script; submit nothing");
  return [=] { return submit(*options); };
}

std::function<int()> register_status(CLI::App& app) {
  auto* command = app.add_subcommand("status", "Say how far a campaign is, from any node");
  auto global = std::make_shared<GlobalOptions>();
  auto file = std::make_shared<std::string>();
  add_campaign(*command, *file);
  add_json(*command, *global);
  return [=] { return status(*file, global->json); };
}

std::function<int()> register_collect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "collect", "Put what the workers did into one database, check it, and publish it");
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<CollectOptions>();
  add_campaign(*command, options->file);
  add_json(*command, *global);
  command->add_option("-o,--output", options->output, "The database, on a local disk")->required();
  command->add_option("--publish", options->publish, "Add it to this folder as a generation");
  command->add_option("--key,--sign", options->key,
                      "Sign it with this secret key (qturn db keygen)");
  command->add_flag("--partial", options->partial, "Publish although some problem has no answer");
  return [=] { return collect_all(*options, global->json); };
}

}  // namespace

std::function<int()> register_campaign(CLI::App& app) {
  auto* command = app.add_subcommand("cluster", "Tune on many machines: Slurm, MPI or ssh");
  command->footer(kClusterFooter);
  command->require_subcommand(1);
  std::vector<std::pair<CLI::App*, std::function<int()>>> all;
  for (const auto one :
       {register_plan, register_submit, register_work, register_status, register_collect}) {
    auto run = one(*command);
    all.emplace_back(command->get_subcommands({}).back(), std::move(run));
  }
  return [all] {
    for (const auto& [chosen, run] : all)
      if (chosen->parsed()) return run();
    return static_cast<int>(kExitUsage);
  };
}

}  // namespace quarterturn
