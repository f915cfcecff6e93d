#include "tuner/campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "generator/digest.hpp"
#include "tuner/site.hpp"

namespace quarterturn {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kCampaignVersion = 1;
constexpr std::size_t kMostShards = 100000;
// A compiler, and the data of trials beside it.
constexpr double kCompilerBytes = 0.5 * (1 << 30), kWorkerBytes = 1.0 * (1 << 30);

OrderedJson to_row(const CampaignProblem& p) {
  return {{"shard", p.shard},
          {"problem", p.item.problem.key()},
          {"layers", p.item.layers},
          {"calls", p.item.calls},
          {"candidates", p.candidates},
          {"compile_seconds", p.compile_seconds},
          {"device_seconds", p.device_seconds},
          {"device_bytes", p.device_bytes}};
}

Result<CampaignProblem> problem_of(const OrderedJson& row) {
  CampaignProblem out;
  auto problem = parse_problem(row.at("problem").get<std::string>());
  if (!problem.ok()) return problem.status();
  out.item = {row.at("layers").get<std::string>(), std::move(*problem),
              row.at("calls").get<std::int64_t>()};
  row.at("shard").get_to(out.shard);
  row.at("candidates").get_to(out.candidates);
  row.at("compile_seconds").get_to(out.compile_seconds);
  row.at("device_seconds").get_to(out.device_seconds);
  row.at("device_bytes").get_to(out.device_bytes);
  return out;
}

Status bad(const std::string& why) {
  return Status(Code::invalid_argument, fmt::format("this is no campaign: {}", why));
}

double wall_seconds(const CampaignProblem& p, std::size_t cores) {
  return p.compile_seconds / static_cast<double>(std::max<std::size_t>(1, cores)) +
         p.device_seconds;
}

// Problems that are to be tuned together.
struct Lot {
  double seconds = 0;
  std::vector<CampaignProblem> problems;  // by key
};

std::vector<Lot> lots_of(const std::vector<Estimate>& estimates, std::size_t cores) {
  std::map<std::string, std::map<std::string, CampaignProblem>> all;
  for (const auto& e : estimates) {
    if (e.decided) continue;
    const auto key = e.item.problem.key();
    auto site = site_of(e.item.problem);
    if (site.empty()) site = key;
    all[site][key] = {e.item, 0, e.candidates, e.compile_seconds, e.device_seconds, e.bytes};
  }
  std::vector<Lot> out;
  for (auto& [site, problems] : all) {
    Lot lot;
    for (auto& [key, problem] : problems) {
      lot.seconds += wall_seconds(problem, cores);
      lot.problems.push_back(std::move(problem));
    }
    out.push_back(std::move(lot));
  }
  // Equal ones in the order of their keys.
  std::stable_sort(out.begin(), out.end(),
                   [](const Lot& a, const Lot& b) { return a.seconds > b.seconds; });
  return out;
}

// When the last of `seconds`, begun in this order by so many workers, is done.
double finish_time(const std::vector<double>& seconds, std::size_t workers) {
  std::multiset<double> free;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, workers); ++i) free.insert(0);
  for (const double duration : seconds) {
    const double begin = *free.begin();
    free.erase(free.begin());
    free.insert(begin + duration);
  }
  return *free.rbegin();
}

Result<std::size_t> number_in(const std::function<std::string(const char*)>& variable,
                              const char* name) {
  const std::string text = variable(name);
  std::size_t number = 0;
  const auto* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number > kMostShards)
    return Status(Code::invalid_argument, fmt::format("{}='{}' is no number", name, text));
  return number;
}

}  // namespace

std::string Campaign::text() const {
  const OrderedJson head = {{"candidates", search.candidates},
                            {"problem_time_limit", search.problem_time_limit},
                            {"strategy", search.strategy},
                            {"rounds", search.rounds}};
  std::string out = fmt::format(
      "{{\"quarterturn_campaign\": {},\n\"target\": {},\n\"search\": {},\n\"shards\": {},\n"
      "\"problems\": [",
      kCampaignVersion, OrderedJson(target).dump(), head.dump(), shards);
  for (std::size_t i = 0; i < problems.size(); ++i)
    out += (i == 0 ? "\n " : ",\n ") + to_row(problems[i]).dump();
  return out + "\n]}\n";
}

std::string Campaign::id() const { return hex(sha256(text())).substr(0, 12); }

std::vector<Item> Campaign::items_of(std::size_t shard) const {
  std::vector<Item> out;
  for (const auto& problem : problems)
    if (problem.shard == shard) out.push_back(problem.item);
  return out;
}

std::vector<CampaignLot> Campaign::lots() const {
  std::map<std::string, CampaignLot> by_site;
  for (const auto& problem : problems) {
    auto site = site_of(problem.item.problem);
    if (site.empty()) site = problem.item.problem.key();
    auto& lot = by_site[fmt::format("{} {}", problem.shard, site)];
    lot.shard = problem.shard;
    lot.seconds += problem.compile_seconds + problem.device_seconds;
    lot.problems.push_back(problem);
  }
  std::vector<CampaignLot> out;
  for (auto& [site, lot] : by_site) out.push_back(std::move(lot));
  std::stable_sort(out.begin(), out.end(), [](const CampaignLot& a, const CampaignLot& b) {
    return a.seconds > b.seconds;
  });
  return out;
}

Result<Campaign> parse_campaign(std::string_view text) {
  const auto json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("quarterturn_campaign"))
    return bad("it has no member quarterturn_campaign; `qturn cluster plan -o FILE` writes one");
  Campaign out;
  try {
    const auto version = json.at("quarterturn_campaign").get<std::int64_t>();
    if (version > kCampaignVersion)
      return Status(Code::newer_version,
                    fmt::format("the campaign has version {}; this program reads {}", version,
                                kCampaignVersion));
    json.at("target").get_to(out.target);
    const auto& search = json.at("search");
    search.at("candidates").get_to(out.search.candidates);
    search.at("problem_time_limit").get_to(out.search.problem_time_limit);
    search.at("strategy").get_to(out.search.strategy);
    search.at("rounds").get_to(out.search.rounds);
    json.at("shards").get_to(out.shards);
    for (const auto& row : json.at("problems")) {
      auto problem = problem_of(row);
      if (!problem.ok()) return bad(problem.status().message());
      if (problem->shard >= out.shards)
        return bad(
            fmt::format("a problem is of shard {}, and there are {}", problem->shard, out.shards));
      out.problems.push_back(std::move(*problem));
    }
  } catch (const OrderedJson::exception& error) {
    return bad(error.what());
  }
  if (out.shards > kMostShards) return bad(fmt::format("{} shards are too many", out.shards));
  if (out.search.strategy != "learned" && out.search.strategy != "predicted")
    return bad(fmt::format("the strategy '{}' is not known; allowed: learned, predicted",
                           out.search.strategy));
  if (out.search.rounds < 1) return bad("it has no rounds");
  return out;
}

Campaign divide(std::string target, CampaignSearch search, const std::vector<Estimate>& estimates,
                std::size_t shards, std::size_t cores) {
  const auto lots = lots_of(estimates, cores);
  struct Shard {
    double seconds = 0;
    std::vector<CampaignProblem> problems;
  };
  std::vector<Shard> all(std::min(std::max<std::size_t>(1, shards), lots.size()));
  for (const auto& lot : lots) {
    auto& least = *std::min_element(all.begin(), all.end(), [](const Shard& a, const Shard& b) {
      return a.seconds < b.seconds;
    });
    least.seconds += lot.seconds;
    least.problems.insert(least.problems.end(), lot.problems.begin(), lot.problems.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Shard& a, const Shard& b) { return a.seconds > b.seconds; });
  Campaign out{std::move(target), std::move(search), all.size(), {}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& problems = all[i].problems;
    std::stable_sort(problems.begin(), problems.end(),
                     [cores](const CampaignProblem& a, const CampaignProblem& b) {
                       return wall_seconds(a, cores) > wall_seconds(b, cores);
                     });
    for (auto& problem : problems) {
      problem.shard = i;
      out.problems.push_back(std::move(problem));
    }
  }
  return out;
}

CampaignPrice price(const Campaign& campaign, const CampaignWorkers& workers, CampaignForm form) {
  CampaignPrice out;
  std::vector<double> compiling(campaign.shards), timing(campaign.shards);
  const auto cores = static_cast<double>(std::max<std::size_t>(1, workers.cores));
  for (const auto& p : campaign.problems) {
    compiling[p.shard] += p.compile_seconds / cores;
    timing[p.shard] += p.device_seconds;
    out.core_hours += p.compile_seconds / 3600;
    out.device_bytes = std::max(out.device_bytes, p.device_bytes);
  }
  const auto hours = [](const std::vector<double>& seconds) {
    return std::accumulate(seconds.begin(), seconds.end(), 0.0) / 3600;
  };
  out.host_bytes = kWorkerBytes + cores * kCompilerBytes;
  if (form == CampaignForm::two_stage) {
    out.device_hours = hours(timing);
    out.seconds = finish_time(compiling, workers.count) + finish_time(timing, workers.count);
    return out;
  }
  for (std::size_t i = 0; i < timing.size(); ++i) timing[i] += compiling[i];
  out.device_hours = hours(timing);
  out.seconds = finish_time(timing, workers.count);
  return out;
}

Result<std::vector<std::size_t>> shards_of_environment(
    const std::function<std::string(const char*)>& variable, std::size_t shards) {
  struct Origin {
    const char *number, *count;
  };
  constexpr Origin origins[] = {{"SLURM_ARRAY_TASK_ID", nullptr},
                                {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                {"PMIX_RANK", "PMIX_SIZE"},
                                {"PMI_RANK", "PMI_SIZE"},
                                {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (const auto& origin : origins) {
    if (variable(origin.number).empty()) continue;
    const auto first = number_in(variable, origin.number);
    if (!first.ok()) return first.status();
    if (!origin.count || variable(origin.count).empty()) return std::vector{*first};
    const auto count = number_in(variable, origin.count);
    if (!count.ok()) return count.status();
    std::vector<std::size_t> out;
    for (std::size_t shard = *first; shard < shards; shard += std::max<std::size_t>(1, *count))
      out.push_back(shard);
    return out;
  }
  return Status(Code::invalid_argument,
                "which shard is to be done is not known: give --shard K, or start this as a task "
                "of a Slurm array, by srun or by mpirun");
}

}  // namespace quarterturn
