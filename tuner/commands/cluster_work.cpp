// qturn cluster work: one shard of a campaign, or a rank's share of them.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "runtime/cuda/backend.hpp"
#include "tuner/campaign_worker.hpp"
#include "tuner/commands/cluster.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/leased_worker.hpp"
#include "tuner/node_scratch.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

struct ShardOptions {
  std::string file, scratch, store, stage = "tune";
  std::int64_t shard = -1;
  std::size_t cores = 0;
  double interval = 60, patience = 600, lease = 120;
  bool retry = false;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
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

CampaignWork work_of(const Campaign& campaign, const ShardOptions& options, std::string scratch,
                     std::size_t number, const std::string& name) {
  return {.campaign = campaign,
          .shard = number,
          .folder = CampaignFolder(options.file),
          .scratch = std::move(scratch),
          .interval = options.interval,
          .patience = options.patience,
          .session = session_options_of(campaign, options),
          .say = [name](const std::string& line) {
            std::fprintf(stderr, "qturn: %s: %s\n", name.c_str(), line.c_str());
          }};
}

// Says how it ended, and leaves nothing behind that is safe elsewhere.
int conclude(const Result<Heartbeat>& outcome, const std::string& scratch,
             const std::string& name) {
  if (!outcome.ok()) {
    std::fprintf(stderr, "qturn: what %s has is kept in %s\n", name.c_str(), scratch.c_str());
    return fail(outcome.status());
  }
  const auto state = outcome->state;
  if (state == Heartbeat::State::done || state == Heartbeat::State::incomplete) {
    std::error_code ignored;
    fs::remove_all(scratch, ignored);
  }
  std::fprintf(stderr,
               "qturn: %s: %s: %zu of %zu problems, %lld plans tried (%lld failed), %lld "
               "kernels compiled, %s\n",
               name.c_str(), std::string(state_name(state)).c_str(), outcome->answered,
               outcome->problems, static_cast<long long>(outcome->tried),
               static_cast<long long>(outcome->failed), static_cast<long long>(outcome->compiled),
               clock_text(outcome->seconds).c_str());
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

// Whoever looks whether a folder is in use has it for a moment.
constexpr std::chrono::milliseconds kLockWait{100};

int work_on(const Campaign& campaign, const GlobalOptions& global, const ShardOptions& options,
            const std::string& base, std::size_t number) {
  const auto name = fmt::format("shard {}", number);
  CampaignWork work = work_of(campaign, options, shard_scratch(base, number), number, name);
  if (auto status = work.folder.make(); !status.ok()) return fail(status);
  const auto lock = lock_scratch(work.scratch, kLockWait, is_interrupted);
  if (lock.status().code() == Code::busy)
    return fail(
        Status(Code::busy, fmt::format("somebody works on shard {} on this node already", number)));
  if (!lock.ok()) return fail(lock.status());
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
  return conclude(outcome, work.scratch, name);
}

struct OwnScratch {
  std::string path;
  std::size_t number = 0;
  FileLock lock;
};

// Of a worker that has no shard: the first folder of this node that nobody works in, and with it
// what an earlier worker left there.
Result<OwnScratch> free_scratch(const std::string& base, std::size_t shards) {
  for (std::size_t i = 0; i < 1000; ++i) {
    auto path = worker_scratch(base, i);
    auto lock = lock_scratch(path, std::chrono::milliseconds(0), is_interrupted);
    if (lock.ok()) return OwnScratch{std::move(path), shards + i, std::move(*lock)};
    if (lock.status().code() != Code::busy) return lock.status();
  }
  return Status(Code::busy, fmt::format("too many workers have folders in {}", base));
}

Result<OwnScratch> scratch_of(const std::string& base, const Campaign& campaign,
                              const std::vector<std::size_t>& shards) {
  if (shards.empty()) return free_scratch(base, campaign.shards);
  auto path = shard_scratch(base, shards.front());
  auto lock = lock_scratch(path, kLockWait, is_interrupted);
  if (!lock.ok()) return lock.status();
  return OwnScratch{std::move(path), shards.front(), std::move(*lock)};
}

int work_leased(const Campaign& campaign, const GlobalOptions& global, const ShardOptions& options,
                const std::string& base, const std::vector<std::size_t>& shards) {
  if (options.stage == "compile")
    return fail(Status(Code::invalid_argument,
                       "--stage compile packs the code of a shard, and leases nothing: give it "
                       "without --store"));
  auto scratch = scratch_of(base, campaign, shards);
  if (!scratch.ok()) return fail(scratch.status());
  const std::string name = "worker";
  LeasedWork leased{.work = work_of(campaign, options, scratch->path, scratch->number, name),
                    .shards = shards,
                    .lease_seconds = options.lease};
  if (auto status = leased.work.folder.make(); !status.ok()) return fail(status);
  Result<Heartbeat> outcome = Status(Code::internal, "nothing was done");
  {
    auto context = context_for(campaign, global, base, scratch->path, false);
    if (!context.ok()) return fail(context.status());
    const auto info = (*context)->database().info();
    if (!info.ok()) return fail(info.status());
    const auto own = parse_uuid(info->uuid);
    if (!own.ok()) return fail(own.status());
    StoreLink link({.url = options.store,
                    .campaign = &leased.work.campaign,
                    .worker = *own,
                    .lease_seconds = options.lease,
                    .say = leased.work.say});
    if (auto status = link.begin(); !status.ok()) return fail(status);
    if (auto status = take_up(**context, leased.work); !status.ok()) return fail(status);
    if (options.retry)
      if (const auto opened = link.retry(); opened.ok() && *opened > 0)
        leased.work.say(fmt::format("{} failed lots are tried again", *opened));
    outcome = tune_leased(**context, leased, link);
  }
  return conclude(outcome, scratch->path, name);
}

// What workers that were killed left on this node.
Status copy_out(const Campaign& campaign, const ShardOptions& options, const std::string& base) {
  const CampaignFolder folder(options.file);
  if (auto status = folder.make(); !status.ok()) return status;
  return bring_out_left(campaign, folder, base, [](const std::string& line) {
    std::fprintf(stderr, "qturn: %s\n", line.c_str());
  });
}

int work(const GlobalOptions& global, const ShardOptions& options) {
  watch_interrupts(SecondSignal::ignored);
  const auto campaign = read_campaign(options.file);
  if (!campaign.ok()) return fail(campaign.status());
  const auto base = node_scratch(*campaign, options.scratch);
  if (!base.ok()) return fail(base.status());
  if (options.stage == "copy") {
    const Status status = copy_out(*campaign, options, *base);
    return status.ok() ? kExitOk : fail(status);
  }
  auto shards = options.shard >= 0
                    ? Result<std::vector<std::size_t>>({static_cast<std::size_t>(options.shard)})
                    : shards_of_environment(variable, campaign->shards);
  // With a store, a shard is what is gone on with while that is away.
  if (!shards.ok() && !options.store.empty()) shards = std::vector<std::size_t>();
  if (!shards.ok()) return fail(shards.status());
  for (const auto shard : *shards)
    if (shard >= campaign->shards)
      return fail(
          Status(Code::out_of_range, fmt::format("{} has the shards 0 to {}, and not {}",
                                                 options.file, campaign->shards - 1, shard)));
  // Their shards may go on elsewhere meanwhile. Troubles are said, and are not this worker's.
  if (options.stage == "tune") (void)copy_out(*campaign, options, *base);
  if (!options.store.empty()) return work_leased(*campaign, global, options, *base, *shards);
  int code = kExitOk;
  for (const auto shard : *shards) {
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
  add_store(*command, options->store);
  command
      ->add_option("--lease", options->lease,
                   "Seconds after which others take what a worker holds that is not heard of")
      ->capture_default_str()
      ->check(number_between(1.0, 86400.0));
  command->add_flag("--retry", options->retry,
                    "Of a store: lots that failed, or ended too many workers, are open again");
  command
      ->add_option("--shard", options->shard,
                   "Which (default: SLURM_ARRAY_TASK_ID; or by rank and size: "
                   "OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--stage", options->stage,
                   "compile: only compile, on a node without the device, and pack the code; "
                   "tune: the rest, from packed code where there is some; copy: only bring out "
                   "what workers that were killed left on this node")
      ->capture_default_str()
      ->check(CLI::IsMember({"compile", "tune", "copy"}));
  command->add_option("--scratch", options->scratch,
                      "A folder on the node's own disk (default: TMPDIR, else /tmp)");
  command
      ->add_option("--cores", options->cores,
                   "Compilers at once (default: all cores that this process may use)")
      ->check(whole_between(1, 4096));
  command->add_option("--interval", options->interval, "Seconds between copies")
      ->capture_default_str()
      ->check(number_between(0.1, 86400.0));
  command->add_option("--patience", options->patience, "Seconds that a full disk is waited for")
      ->capture_default_str()
      ->check(number_between(0.0, 1e6));
  return [=] { return work(*global, *options); };
}

}  // namespace quarterturn
