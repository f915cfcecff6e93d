// qturn cluster work: one shard of a campaign, or a rank's share of them.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "cache/file_lock.hpp"
#include "cache/filesystem.hpp"
#include "cache/trusted_file.hpp"
#include "runtime/cuda/backend.hpp"
#include "tuner/campaign_worker.hpp"
#include "tuner/commands/cluster.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

struct ShardOptions {
  std::string file, scratch, stage = "tune";
  std::int64_t shard = -1;
  std::size_t cores = 0;
  double interval = 60, patience = 600;
};

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

}  // namespace

std::function<int()> register_cluster_work(CLI::App& app) {
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

}  // namespace quarterturn
