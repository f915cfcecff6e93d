// qturn cluster: one campaign of tuning on many machines, by Slurm, MPI or ssh.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "cache/filesystem.hpp"
#include "cache/publication.hpp"
#include "cache/trusted_file.hpp"
#include "tuner/campaign_progress.hpp"
#include "tuner/commands/cluster.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/missed.hpp"
#include "tuner/slurm_script.hpp"

namespace quarterturn {

Result<Campaign> read_campaign(const std::string& file) {
  const auto text = read_whole_file(file);
  if (!text.ok()) return text.status();
  auto campaign = parse_campaign(*text);
  if (!campaign.ok())
    return Status(campaign.status().code(),
                  fmt::format("{}: {}", file, campaign.status().message()));
  return campaign;
}

std::string backend_name(Vendor vendor) {
  return vendor == Vendor::nvidia ? "cuda" : vendor == Vendor::amd ? "hip" : "cpu";
}

void add_campaign(CLI::App& app, std::string& file) {
  app.add_option("FILE", file, "The campaign, as `qturn cluster plan` wrote it")->required();
}

namespace {

constexpr const char* kClusterFooter = R"(A campaign, from a login node:
  qturn cluster plan --model Llama-3.1-8B --tokens 1,16,512 --roles fprop,dgrad,wgrad \
        --target sm_90a --shards 64 -o llama.campaign
  qturn cluster submit llama.campaign --partition gpu --time 4:00:00 --print   # then without --print
  qturn cluster status llama.campaign
  qturn cluster collect llama.campaign -o tuned.db --publish /shared/quarterturn --key publishing.key

Workers that share a PostgreSQL database lease problems one after the other (docs/cluster.md):
  qturn cluster store init --store postgresql://db.site/quarterturn
  qturn cluster submit llama.campaign --partition gpu --store postgresql://db.site/quarterturn

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

struct CollectOptions {
  std::string file, output, publish, key, store;
  bool partial = false;
};

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

// ---- status and collect ----

// Nothing where none is asked for.
Result<std::optional<SharedStore>> store_of(const std::string& url) {
  if (url.empty()) return std::optional<SharedStore>();
  auto store = SharedStore::open(url, std::chrono::seconds(600));
  if (!store.ok()) return store.status();
  return std::optional<SharedStore>(std::move(*store));
}

void print_workers(const CampaignProgress& progress, bool json) {
  Table table({"worker", "state", "answered", "problems", "tried", "compiled", "seen_s", "host",
               "job", "now"});
  for (const auto& [h, age, skew] : progress.workers)
    table.add({h.worker, std::string(state_name(h.state)), fmt::format("{}", h.answered),
               fmt::format("{}", h.problems), fmt::format("{}", h.tried),
               fmt::format("{}", h.compiled), fmt::format("{:.0f}", age), h.host, h.job, h.now});
  table.print(json);
  const auto& lots = progress.lots;
  std::fprintf(stderr,
               "qturn: lots: %lld open, %lld leased (%lld expired, of which %lld were begun too "
               "often), %lld done, %lld failed\n",
               static_cast<long long>(lots.open), static_cast<long long>(lots.leased),
               static_cast<long long>(lots.expired), static_cast<long long>(lots.given_up),
               static_cast<long long>(lots.done), static_cast<long long>(lots.failed));
}

void print_shards(const CampaignProgress& progress, bool json) {
  Table table({"shard", "state", "answered", "problems", "trials", "compiled", "workers", "left_s",
               "seen_s", "host", "job", "now"});
  for (const auto& s : progress.shards)
    table.add({fmt::format("{}", s.shard), s.state, fmt::format("{}", s.answered),
               fmt::format("{}", s.problems), fmt::format("{}", s.trials),
               fmt::format("{}", s.compiled), fmt::format("{}", s.workers),
               fmt::format("{:.0f}", s.left), s.workers > 0 ? fmt::format("{:.0f}", s.age) : "",
               s.host, s.job, s.now});
  table.print(json);
}

int status(const std::string& file, const std::string& url, bool json) {
  const auto campaign = read_campaign(file);
  if (!campaign.ok()) return fail(campaign.status());
  auto store = store_of(url);
  if (!store.ok()) return fail(store.status());
  const auto progress =
      progress_of(*campaign, CampaignFolder(file), store->has_value() ? &**store : nullptr);
  if (!progress.ok()) return fail(progress.status());
  if (store->has_value())
    print_workers(*progress, json);
  else
    print_shards(*progress, json);
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
  auto store = store_of(options.store);
  if (!store.ok()) return fail(store.status());
  const auto collected = collect(*campaign, CampaignFolder(options.file), *database,
                                 store->has_value() ? &**store : nullptr);
  if (!collected.ok()) return fail(collected.status());
  if (collected->uploaded > 0)
    std::fprintf(stderr, "qturn: gave the store %lld trials that only files had\n",
                 static_cast<long long>(collected->uploaded));
  if (!collected->not_uploaded.empty())
    std::fprintf(stderr, "qturn: what only files have is collected, but not in the store: %s\n",
                 collected->not_uploaded.c_str());
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
      ->check(positive_number());
  command->add_option("--search", options->search.strategy, "learned or predicted")
      ->capture_default_str()
      ->check(CLI::IsMember({"learned", "predicted"}));
  command->add_option("--rounds", options->search.rounds, "Paired rounds of every candidate")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  return [=] { return plan(*work, *global, *options); };
}

std::function<int()> register_status(CLI::App& app) {
  auto* command = app.add_subcommand("status", "Say how far a campaign is, from any node");
  auto global = std::make_shared<GlobalOptions>();
  auto file = std::make_shared<std::string>(), store = std::make_shared<std::string>();
  add_campaign(*command, *file);
  add_store(*command, *store);
  add_json(*command, *global);
  return [=] { return status(*file, *store, global->json); };
}

std::function<int()> register_collect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "collect", "Put what the workers did into one database, check it, and publish it");
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<CollectOptions>();
  add_campaign(*command, options->file);
  add_store(*command, options->store);
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
  for (const auto one : {register_plan, register_cluster_submit, register_cluster_work,
                         register_status, register_collect, register_cluster_store}) {
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
