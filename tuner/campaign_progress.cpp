#include "tuner/campaign_progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace quarterturn {
namespace {

constexpr double kSilentCopies = 3, kSilentSeconds = 60, kSkewSeconds = 60;

// Problems with an answer in a copy, and how many trials it holds.
struct CopyContent {
  std::set<std::string> answered;
  std::int64_t trials = 0;
};

Result<CopyContent> content_of(const std::string& path, const std::string& target) {
  auto database = Database::open_snapshot(path, Verify::nothing);
  if (!database.ok()) return database.status();
  const auto info = database->info();
  if (!info.ok()) return info.status();
  const auto winners = database->winners(target);
  if (!winners.ok()) return winners.status();
  CopyContent out;
  out.trials = info->trials;
  for (const auto& winner : *winners)
    if (is_finished(winner)) out.answered.insert(winner.problem);
  return out;
}

std::string state_of(const SeenHeartbeat& seen) {
  const auto& heartbeat = seen.heartbeat;
  const double patience = std::max(kSilentSeconds, kSilentCopies * heartbeat.interval);
  if (heartbeat.state == Heartbeat::State::running && seen.age > patience) return "silent";
  return std::string(state_name(heartbeat.state));
}

void note_troubles(const SeenHeartbeat& seen, std::vector<std::string>& notes) {
  const auto& h = seen.heartbeat;
  if (!h.trouble.empty())
    notes.push_back(fmt::format("shard {} on {}: {}", h.shard, h.host, h.trouble));
  if (std::abs(seen.skew) > kSkewSeconds)
    notes.push_back(fmt::format(
        "the clock of {} is {:.0f} s {} that of the campaign's file system; ages here do not "
        "depend on it, times of trials do",
        h.host, std::abs(seen.skew), seen.skew > 0 ? "ahead of" : "behind"));
}

// What the heartbeats say, by shard; the latest last.
using Heard = std::map<std::size_t, std::vector<SeenHeartbeat>>;

Result<Heard> hear(const Campaign& campaign, const CampaignFolder& folder) {
  auto all = folder.heartbeats();
  if (!all.ok()) return all.status();
  // Of an earlier plan under the same name, whose trials count all the same.
  std::erase_if(*all, [id = campaign.id()](const SeenHeartbeat& seen) {
    return seen.heartbeat.campaign != id;
  });
  std::stable_sort(all->begin(), all->end(),
                   [](const SeenHeartbeat& a, const SeenHeartbeat& b) { return a.age > b.age; });
  Heard out;
  for (auto& seen : *all) out[seen.heartbeat.shard].push_back(std::move(seen));
  return out;
}

}  // namespace

Result<CampaignProgress> progress_of(const Campaign& campaign, const CampaignFolder& folder) {
  const auto copies = folder.databases();
  if (!copies.ok()) return copies.status();
  const auto heard = hear(campaign, folder);
  if (!heard.ok()) return heard.status();
  CampaignProgress out;
  std::vector<std::set<std::string>> answered(campaign.shards);
  out.shards.resize(campaign.shards);
  for (const auto& copy : *copies) {
    if (copy.shard >= campaign.shards) continue;
    const auto content = content_of(copy.path, campaign.target);
    if (!content.ok()) {
      out.notes.push_back(fmt::format("{}: {}", copy.path, content.status().message()));
      continue;
    }
    answered[copy.shard].insert(content->answered.begin(), content->answered.end());
    // Later copies of a shard hold what earlier ones did.
    auto& trials = out.shards[copy.shard].trials;
    trials = std::max(trials, content->trials);
  }
  std::set<std::string> classes;
  double spent = 0, estimated = 0;
  for (const auto& [shard, seen] : *heard) {
    if (shard >= campaign.shards) continue;
    auto& one = out.shards[shard];
    for (const auto& s : seen) {
      one.compiled += s.heartbeat.compiled;
      if (!s.heartbeat.performance_class.empty() && s.heartbeat.stage == "tune")
        classes.insert(s.heartbeat.performance_class);
      if (s.heartbeat.estimated_seconds <= 0 || s.heartbeat.stage != "tune") continue;
      spent += s.heartbeat.seconds;
      estimated += s.heartbeat.estimated_seconds;
    }
    const auto& last = seen.back();
    one.state = state_of(last);
    if (last.heartbeat.stage == "compile") one.state = "compile: " + one.state;
    one.workers = seen.size();
    one.host = last.heartbeat.host;
    one.job = last.heartbeat.job;
    one.now = last.heartbeat.now;
    one.age = last.age;
    out.running += state_of(last) == "running";
    note_troubles(last, out.notes);
  }
  std::sort(out.notes.begin(), out.notes.end());
  out.notes.erase(std::unique(out.notes.begin(), out.notes.end()), out.notes.end());
  out.classes = {classes.begin(), classes.end()};
  if (out.classes.size() > 1)
    out.notes.push_back(fmt::format(
        "workers ran on {} kinds of devices, whose answers do not stand in for each other: give "
        "each a campaign of its own (sbatch's --constraint tells them apart)",
        out.classes.size()));
  if (estimated > 0) out.pace = spent / estimated;
  for (const auto& problem : campaign.problems) {
    auto& shard = out.shards[problem.shard];
    const auto key = problem.item.problem.key();
    ++shard.problems;
    if (answered[problem.shard].count(key) > 0) {
      ++shard.answered;
      continue;
    }
    shard.left += out.pace * (problem.compile_seconds + problem.device_seconds);
    const auto seen = heard->find(problem.shard);
    if (seen == heard->end()) continue;
    for (const auto& failure : seen->second.back().heartbeat.failures)
      if (failure.problem == key) out.failures.push_back(failure);
  }
  double left = 0, longest = 0;
  for (std::size_t i = 0; i < out.shards.size(); ++i) {
    auto& shard = out.shards[i];
    shard.shard = i;
    out.problems += shard.problems;
    out.answered += shard.answered;
    out.trials += shard.trials;
    left += shard.left;
    longest = std::max(longest, shard.left);
  }
  const auto workers = static_cast<double>(std::max<std::size_t>(1, out.running));
  out.seconds_left = std::max(longest, left / workers);
  return out;
}

namespace {

// Why a problem of a shard has no answer.
std::string reason_for(const std::string& key, std::size_t shard, const Heard& heard) {
  const auto found = heard.find(shard);
  if (found == heard.end()) return fmt::format("nobody began shard {}", shard);
  const auto& last = found->second.back();
  for (auto seen = found->second.rbegin(); seen != found->second.rend(); ++seen)
    for (const auto& failure : seen->heartbeat.failures)
      if (failure.problem == key) return failure.reason;
  return fmt::format("shard {} is not done: {}", shard, state_of(last));
}

// An answer that rests on what an interrupted search left serves, and the search goes on later.
Status mark_unfinished(Database& database, const std::string& target,
                       const std::set<std::string>& problems) {
  auto winners = database.winners(target);
  if (!winners.ok()) return winners.status();
  std::vector<Winner> changed;
  for (auto& winner : *winners) {
    if (problems.count(winner.problem) == 0 || !is_finished(winner)) continue;
    winner.certificate +=
        (winner.certificate.empty() ? "" : " ") + std::string("search=unfinished");
    changed.push_back(std::move(winner));
  }
  return database.set_winners(changed);
}

}  // namespace

Result<Collected> collect(const Campaign& campaign, const CampaignFolder& folder, Database& into) {
  const auto copies = folder.databases();
  if (!copies.ok()) return copies.status();
  const auto heard = hear(campaign, folder);
  if (!heard.ok()) return heard.status();
  std::set<std::string> answered, before;
  {
    const auto winners = into.winners(campaign.target);
    if (!winners.ok()) return winners.status();
    for (const auto& winner : *winners)
      if (is_finished(winner)) before.insert(winner.problem);
  }
  Collected out;
  for (const auto& copy : *copies) {
    const auto content = content_of(copy.path, campaign.target);
    if (!content.ok())
      return Status(content.status().code(),
                    fmt::format("{}: {}", copy.path, content.status().message()));
    answered.insert(content->answered.begin(), content->answered.end());
    const auto report = adopt(into, copy.path);
    if (!report.ok()) return report.status();
    ++out.copies;
    out.trials += report->trials;
    out.conflicts += report->conflicts;
  }
  const auto decided = redecide(into);
  if (!decided.ok()) return decided.status();
  out.decided = *decided;
  std::set<std::string> unfinished;
  for (const auto& problem : campaign.problems) {
    const auto key = problem.item.problem.key();
    ++out.problems;
    if (answered.count(key) > 0) {
      ++out.answered;
      continue;
    }
    out.missing.push_back({key, reason_for(key, problem.shard, *heard)});
    if (before.count(key) == 0) unfinished.insert(key);
  }
  if (auto status = mark_unfinished(into, campaign.target, unfinished); !status.ok()) return status;
  return out;
}

}  // namespace quarterturn
