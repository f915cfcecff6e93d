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

// A worker that spoke in both places counts once, by what it said last.
void add_heard(std::vector<SeenHeartbeat>& all, SeenHeartbeat seen) {
  for (auto& known : all)
    if (known.heartbeat.worker == seen.heartbeat.worker &&
        known.heartbeat.shard == seen.heartbeat.shard) {
      if (seen.age <= known.age) known = std::move(seen);
      return;
    }
  all.push_back(std::move(seen));
}

Result<Heard> hear(const Campaign& campaign, const CampaignFolder& folder,
                   const leases::CampaignView& view) {
  auto all = folder.heartbeats();
  if (!all.ok()) return all.status();
  for (const auto& worker : view.workers) {
    auto heartbeat = parse_heartbeat(worker.heartbeat);
    if (!heartbeat.ok()) continue;
    const double skew = 1e-9 * static_cast<double>(heartbeat->written) - worker.seen;
    add_heard(*all, {std::move(*heartbeat), worker.age, skew});
  }
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

// By problem: why it has no answer, as a worker said last.
std::map<std::string, std::string> failure_reasons(const Heard& heard) {
  std::map<std::string, std::string> out;
  for (const auto& [shard, seen] : heard)
    for (const auto& one : seen)
      for (const auto& failure : one.heartbeat.failures) out[failure.problem] = failure.reason;
  return out;
}

Result<leases::CampaignView> view_of(const Campaign& campaign, SharedStore* store) {
  if (!store) return leases::CampaignView{};
  return leases::view(store->connection(), campaign.id());
}

}  // namespace

Result<CampaignProgress> progress_of(const Campaign& campaign, const CampaignFolder& folder,
                                     SharedStore* store) {
  const auto copies = folder.databases();
  if (!copies.ok()) return copies.status();
  const auto view = view_of(campaign, store);
  if (!view.ok()) return view.status();
  const auto heard = hear(campaign, folder, *view);
  if (!heard.ok()) return heard.status();
  CampaignProgress out;
  out.lots = view->lots;
  // A worker that leases does problems of any shard.
  std::set<std::string> answered;
  if (store) {
    const auto theirs = store->answered(campaign.target);
    if (!theirs.ok()) return theirs.status();
    answered.insert(theirs->begin(), theirs->end());
    for (const auto& worker : view->workers) out.trials += worker.trials;
  }
  out.shards.resize(campaign.shards);
  for (const auto& copy : *copies) {
    const auto content = content_of(copy.path, campaign.target);
    if (!content.ok()) {
      out.notes.push_back(fmt::format("{}: {}", copy.path, content.status().message()));
      continue;
    }
    answered.insert(content->answered.begin(), content->answered.end());
    if (copy.shard >= campaign.shards) continue;
    // Later copies of a shard hold what earlier ones did.
    auto& trials = out.shards[copy.shard].trials;
    trials = std::max(trials, content->trials);
  }
  std::set<std::string> classes;
  double spent = 0, estimated = 0;
  for (const auto& [shard, seen] : *heard) {
    // Workers that only lease have numbers above the shards'.
    ShardProgress of_no_shard;
    auto& one = shard < campaign.shards ? out.shards[shard] : of_no_shard;
    out.workers.insert(out.workers.end(), seen.begin(), seen.end());
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
    for (const auto& s : seen)
      if (&s == &last || store) {
        out.running += state_of(s) == "running";
        note_troubles(s, out.notes);
      }
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
  std::stable_sort(out.workers.begin(), out.workers.end(),
                   [](const auto& a, const auto& b) { return a.age > b.age; });
  const auto why = failure_reasons(*heard);
  for (const auto& problem : campaign.problems) {
    auto& shard = out.shards[problem.shard];
    const auto key = problem.item.problem.key();
    ++shard.problems;
    if (answered.count(key) > 0) {
      ++shard.answered;
      continue;
    }
    shard.left += out.pace * (problem.compile_seconds + problem.device_seconds);
    if (const auto known = why.find(key); known != why.end())
      out.failures.push_back({key, known->second});
  }
  double left = 0, longest = 0;
  for (std::size_t i = 0; i < out.shards.size(); ++i) {
    auto& shard = out.shards[i];
    shard.shard = i;
    out.problems += shard.problems;
    out.answered += shard.answered;
    if (!store) out.trials += shard.trials;
    left += shard.left;
    longest = std::max(longest, shard.left);
  }
  const auto workers = static_cast<double>(std::max<std::size_t>(1, out.running));
  out.seconds_left = std::max(longest, left / workers);
  return out;
}

namespace {

// Why a problem of a shard has no answer.
std::string reason_for(const std::string& key, std::size_t shard, const Heard& heard,
                       const std::map<std::string, std::string>& why) {
  if (const auto known = why.find(key); known != why.end()) return known->second;
  const auto found = heard.find(shard);
  if (found == heard.end()) return fmt::format("nobody began shard {}", shard);
  return fmt::format("shard {} is not done: {}", shard, state_of(found->second.back()));
}

// Left files, of workers that ended while the store was away.
Status upload_copies(const std::vector<CampaignFolder::Copy>& copies, SharedStore& store,
                     Collected& out) {
  for (const auto& copy : copies) {
    auto database = Database::open_snapshot(copy.path);
    if (!database.ok()) return database.status();
    UploadMark mark;
    const auto report = store.upload(*database, mark, SharedStore::Tombstones::left_out);
    if (report.ok()) out.uploaded += report->trials;
    if (report.ok()) continue;
    // Readers may not; the files hold everything all the same.
    if (report.status().code() != Code::read_only && report.status().code() != Code::not_supported)
      return report.status();
    out.not_uploaded = report.status().message();
  }
  return {};
}

Result<std::set<std::string>> download_campaign(const Campaign& campaign, SharedStore& store,
                                                Database& into, Collected& out) {
  StoreFilter filter{campaign.target, {}};
  for (const auto& problem : campaign.problems)
    filter.problems.push_back(problem.item.problem.key());
  const auto report = store.download(into, filter);
  if (!report.ok()) return report.status();
  out.trials += report->new_trials;
  const auto answered = store.answered(campaign.target);
  if (!answered.ok()) return answered.status();
  return std::set<std::string>(answered->begin(), answered->end());
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

Result<Collected> collect(const Campaign& campaign, const CampaignFolder& folder, Database& into,
                          SharedStore* store) {
  const auto copies = folder.databases();
  if (!copies.ok()) return copies.status();
  const auto view = view_of(campaign, store);
  if (!view.ok()) return view.status();
  const auto heard = hear(campaign, folder, *view);
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
  if (store) {
    if (auto status = upload_copies(*copies, *store, out); !status.ok()) return status;
    auto theirs = download_campaign(campaign, *store, into, out);
    if (!theirs.ok()) return theirs.status();
    answered.merge(*theirs);
  }
  const auto decided = redecide(into);
  if (!decided.ok()) return decided.status();
  out.decided = *decided;
  std::set<std::string> unfinished;
  const auto why = failure_reasons(*heard);
  for (const auto& problem : campaign.problems) {
    const auto key = problem.item.problem.key();
    ++out.problems;
    if (answered.count(key) > 0) {
      ++out.answered;
      continue;
    }
    out.missing.push_back({key, reason_for(key, problem.shard, *heard, why)});
    if (before.count(key) == 0) unfinished.insert(key);
  }
  if (auto status = mark_unfinished(into, campaign.target, unfinished); !status.ok()) return status;
  return out;
}

}  // namespace quarterturn
