#include "tuner/bisect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace quarterturn {
namespace {

constexpr double kNoiseOfWinners = 0.01;

using Class = std::pair<std::string, std::string>;  // target, performance class

// The winners of one problem in one file, by class.
Result<std::map<Class, Winner>> winners_in(const std::string& path, const Problem& problem) {
  const auto key = problem.key();
  // Other versions wrote other texts for the same problem.
  const auto is_it = [&](const std::string& stored) {
    if (stored == key) return true;
    const auto other = parse_problem(stored);
    return other.ok() && *other == problem;
  };
  auto snapshot = Database::open_snapshot(path);
  if (!snapshot.ok()) return snapshot.status();
  const auto targets = snapshot->targets();
  if (!targets.ok()) return targets.status();
  std::map<Class, Winner> out;
  for (const auto& target : *targets) {
    const auto winners = snapshot->winners(target);
    if (!winners.ok()) return winners.status();
    for (const auto& winner : *winners)
      if (is_it(winner.problem)) out[{target, winner.env->performance_class}] = winner;
  }
  return out;
}

// The step before that could be read; null for the first.
const StoredStep* before(const History& history, std::size_t step) {
  while (step-- > 0)
    if (history.steps[step].unreadable.empty()) return &history.steps[step];
  return nullptr;
}

bool is_slower(const Winner& winner, const Winner& than) {
  const double noise = std::max({winner.noise, than.noise, kNoiseOfWinners});
  return winner.median_ns > 0 && than.median_ns > 0 &&
         winner.median_ns > (1 + noise) * than.median_ns;
}

}  // namespace

Result<std::vector<History>> histories(const std::string& folder, const Problem& problem) {
  const auto manifest = read_manifest(folder);
  if (!manifest.ok()) return manifest.status();
  std::vector<StoredStep> blank;
  std::vector<std::map<Class, Winner>> found;
  std::set<Class> classes;
  for (const auto& generation : manifest->generations) {
    StoredStep step{generation.number, generation.published, std::nullopt, {}};
    auto winners = winners_in(folder + "/" + generation.file, problem);
    if (!winners.ok()) step.unreadable = winners.status().message();
    found.push_back(winners.ok() ? std::move(*winners) : std::map<Class, Winner>{});
    for (const auto& [key, winner] : found.back()) classes.insert(key);
    blank.push_back(std::move(step));
  }
  std::vector<History> out;
  for (const auto& key : classes) {
    History history{problem.key(), key.first, key.second, blank};
    for (std::size_t i = 0; i < found.size(); ++i)
      if (const auto at = found[i].find(key); at != found[i].end())
        history.steps[i].winner = at->second;
    out.push_back(std::move(history));
  }
  return out;
}

std::string_view change_name(Change change) {
  constexpr std::string_view names[] = {"first", "", "plan", "appeared", "gone", "unreadable"};
  return names[static_cast<std::size_t>(change)];
}

Change change_at(const History& history, std::size_t step) {
  const StoredStep& now = history.steps[step];
  if (!now.unreadable.empty()) return Change::unreadable;
  const StoredStep* last = before(history, step);
  if (!last) return Change::first;
  if (now.winner && last->winner)
    return now.winner->plan == last->winner->plan ? Change::none : Change::plan;
  return now.winner ? Change::appeared : last->winner ? Change::gone : Change::none;
}

std::int64_t plan_changed_since(const History& history) {
  for (std::size_t i = history.steps.size(); i-- > 0;) {
    const Change change = change_at(history, i);
    if (change == Change::plan || change == Change::appeared || change == Change::gone)
      return history.steps[i].generation;
  }
  return 0;
}

std::int64_t stored_slower_since(const History& history) {
  const Winner* fastest = nullptr;
  std::int64_t since = 0;
  for (const auto& step : history.steps) {
    if (!step.winner) continue;
    const Winner& now = *step.winner;
    const bool slower = fastest && is_slower(now, *fastest);
    if (slower && since == 0) since = step.generation;
    if (!slower) since = 0;
    if (now.median_ns > 0 && (!fastest || now.median_ns < fastest->median_ns)) fastest = &now;
  }
  return since;
}

Result<Bisected> bisect(const History& history, std::int64_t good, std::int64_t bad, double noise,
                        const MeasureRatio& measure) {
  std::vector<const StoredStep*> steps;
  for (const auto& step : history.steps)
    if (step.winner) steps.push_back(&step);
  const auto place = [&](std::int64_t generation, std::size_t otherwise) -> Result<std::size_t> {
    if (generation == 0 && !steps.empty()) return otherwise;
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (steps[i]->generation == generation) return i;
    return Status(Code::invalid_argument,
                  fmt::format("generation {} holds no answer to {} on {} ({})", generation,
                              history.problem, history.target, history.performance_class));
  };
  const auto from = place(good, 0), to = place(bad, steps.empty() ? 0 : steps.size() - 1);
  if (!from.ok()) return from.status();
  if (!to.ok()) return to.status();
  if (*from > *to)
    return Status(Code::invalid_argument,
                  fmt::format("generation {} (good) comes after {} (bad)", steps[*from]->generation,
                              steps[*to]->generation));
  const std::string reference = steps[*from]->winner->plan;
  Bisected out;
  std::map<std::string, TimeRatio> known{{reference, {}}};
  const auto is_slow = [&](std::size_t i) -> Result<bool> {
    const auto& plan = steps[i]->winner->plan;
    if (!known.contains(plan)) {
      const auto time = measure(reference, plan);
      if (!time.ok()) return time.status();
      known[plan] = *time;
    }
    const TimeRatio time = known[plan];
    const bool slower = time.low > 1 + noise;
    out.measured.push_back({steps[i]->generation, plan, time, slower});
    return slower;
  };
  const auto last = is_slow(*to);
  if (!last.ok()) return last.status();
  if (!*last) return out;
  std::size_t fine = *from, slow = *to;
  while (slow - fine > 1) {
    const std::size_t middle = fine + (slow - fine) / 2;
    const auto slower = is_slow(middle);
    if (!slower.ok()) return slower.status();
    (*slower ? slow : fine) = middle;
  }
  out.slower_since = steps[slow]->generation;
  return out;
}

}  // namespace quarterturn
