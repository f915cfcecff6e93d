#include "tuner/site.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "cache/rows.hpp"
#include "generator/family.hpp"
#include "tuner/evidence.hpp"

namespace quarterturn {
namespace {

constexpr double kZone = 0.01;  // what a plan must gain over the default, as decisions ask

std::optional<Layout> weight_layout(const Problem& problem, const std::string& text) {
  const auto plan = parse_plan(text);
  if (!plan.ok() || plan->steps.empty()) return std::nullopt;
  const Step& main = plan->main_step();
  const Family* family = find_family(main.variant.family);
  if (!family) return std::nullopt;
  return family->b_layout(problem, main.variant);
}

double bits_of(const Problem& problem, Layout layout) {
  const auto bytes = operand_bytes(layout, problem.n.hi, problem.k.hi, padding_unit(problem));
  return 8.0 * static_cast<double>(bytes.codes + bytes.scales) /
         (static_cast<double>(problem.n.hi) * static_cast<double>(problem.k.hi));
}

// The best that is known of a problem under one layout, as log speed-up over its default.
struct LayoutChoice {
  std::string plan;
  double speed = 0;
  const PlanEvidence* evidence = nullptr;  // null: the default
};

struct Member {
  Winner winner;
  Problem problem;
  std::vector<Trial> trials;
  Evidence evidence;
  std::map<Layout, LayoutChoice> best;
  Layout wanted = Layout::plain;  // of the winner
};

// Every layout that the member was timed with. The default needs no evidence; a plan in its own
// layout must surely beat it.
void rank(Member& member, const std::optional<std::string>& fallback) {
  if (fallback)
    if (const auto layout = weight_layout(member.problem, *fallback))
      member.best[*layout] = {*fallback, 0, nullptr};
  const auto beside_default = [&](Layout layout) {
    const auto it = member.best.find(layout);
    return it != member.best.end() && !it->second.evidence;
  };
  for (const auto& [plan, known] : member.evidence.plans) {
    const auto layout = weight_layout(member.problem, plan);
    if (!layout) continue;
    if (beside_default(*layout) && !known.beats_default(member.evidence.noise, kZone)) continue;
    const auto it = member.best.find(*layout);
    if (it == member.best.end() || known.mean() > it->second.speed)
      member.best[*layout] = {plan, known.mean(), &known};
  }
}

double best_speed(const Member& member) {
  double out = -INFINITY;
  for (const auto& [layout, choice] : member.best) out = std::max(out, choice.speed);
  return out;
}

using Members = std::vector<Member>;

Result<std::map<std::string, Members>> sites_in(Database& database, std::string_view target,
                                                std::string_view performance_class) {
  const auto winners = database.winners(target);
  if (!winners.ok()) return winners.status();
  std::map<std::string, Members> out;
  for (const auto& winner : *winners) {
    if (winner.env->performance_class != performance_class) continue;
    const auto problem = parse_problem(winner.problem);
    if (!problem.ok()) continue;
    const auto site = site_of(*problem);
    const auto layout = site.empty() ? std::nullopt : weight_layout(*problem, winner.plan);
    if (!layout) continue;
    Member member;
    member.winner = winner;
    member.problem = *problem;
    member.wanted = *layout;
    out[site].push_back(std::move(member));
  }
  std::erase_if(out, [](const auto& site) { return site.second.size() < 2; });
  return out;
}

bool agree(const Members& members) {
  return std::all_of(members.begin(), members.end(),
                     [&](const Member& m) { return m.wanted == members.front().wanted; });
}

Status look_up_evidence(Database& database, std::string_view target,
                        std::string_view performance_class, Members& members) {
  const auto parsed = parse_target(target);
  if (!parsed.ok()) return parsed.status();
  for (auto& member : members) {
    auto trials = database.trials(member.winner.problem, target, performance_class);
    if (!trials.ok()) return trials.status();
    member.trials = std::move(*trials);
    member.evidence = evidence_of(member.trials);
    const auto fallback = default_plan(member.problem, *parsed);
    rank(member, fallback.ok() ? std::optional(fallback->text()) : std::nullopt);
  }
  return {};
}

std::optional<Layout> cheapest(const Members& members) {
  std::optional<Layout> out;
  double least = INFINITY;
  for (const auto& [layout, first] : members.front().best) {
    double lost = 0;
    for (const auto& member : members) {
      const auto it = member.best.find(layout);
      lost += it == member.best.end() ? INFINITY : best_speed(member) - it->second.speed;
    }
    const auto bits = [&](Layout one) { return bits_of(members.front().problem, one); };
    if (lost < least || (out && lost == least && bits(layout) < bits(*out))) {
      out = layout;
      least = lost;
    }
  }
  return std::isinf(least) ? std::nullopt : out;
}

Winner answer_in(const Member& member, Layout layout) {
  const LayoutChoice& choice = member.best.at(layout);
  Winner out = member.winner;
  out.plan = choice.plan;
  out.ties.clear();
  out.choice = choice.evidence ? Choice::tuned : Choice::fallback;
  out.speedup = std::exp(choice.speed);
  out.speedup_low = out.speedup_high = out.speedup;
  out.median_ns = member.winner.median_ns * member.winner.speedup;  // of the default
  if (choice.evidence) {
    out.env = choice.evidence->latest().env;
    out.median_ns = choice.evidence->latest().median_ns;
    out.speedup_low = std::exp(choice.speed - 1.96 * choice.evidence->error());
    out.speedup_high = std::exp(choice.speed + 1.96 * choice.evidence->error());
  }
  out.regret = std::max(0.0, std::expm1(best_speed(member) - choice.speed));
  // Before what admission proved of the plan.
  out.certificate = fmt::format("weight_layout={} site_lost={:.4f}", name_of(layout), out.regret);
  if (choice.evidence && !choice.evidence->latest().extra.empty())
    out.certificate += " " + choice.evidence->latest().extra;
  out.decided = rows::nanoseconds_now();
  return out;
}

Site describe(const std::string& name, const Members& members) {
  Site out;
  out.site = name;
  out.layout = members.front().wanted;
  out.bits_per_element = bits_of(members.front().problem, out.layout);
  for (const auto& member : members)
    out.members.push_back(
        {member.winner.problem, member.winner.plan,
         member.winner.certificate.starts_with("weight_layout=") ? member.winner.regret : 0.0,
         member.winner.speedup});
  return out;
}

}  // namespace

std::string site_of(const Problem& problem) {
  const bool prepared = multiplies(problem.op) && problem.role != Role::wgrad &&
                        problem.b_type == DType::mxfp4 && problem.b_layout == Layout::chosen;
  if (!prepared) return {};
  Problem site = problem;
  site.m = Extent::exactly(0);
  return site.key();
}

std::string Site::text() const {
  std::string losses;
  for (const auto& member : members) {
    const auto problem = parse_problem(member.problem);
    const auto tokens = problem.ok() ? fmt::format("{}", problem->m.hi) : std::string("?");
    losses += fmt::format("{}{:.1f} % at {} tokens", losses.empty() ? "" : ", ", 100 * member.lost,
                          tokens);
  }
  return fmt::format("one weight in layout {}, {:.2f} bits an element; it costs {}",
                     name_of(layout), bits_per_element, losses);
}

Result<std::vector<UntimedLayout>> untimed_layouts(Database& database, std::string_view target,
                                                   std::string_view performance_class) {
  auto sites = sites_in(database, target, performance_class);
  if (!sites.ok()) return sites.status();
  std::vector<UntimedLayout> out;
  for (auto& [name, members] : *sites) {
    if (agree(members)) continue;
    if (auto status = look_up_evidence(database, target, performance_class, members); !status.ok())
      return status;
    std::set<Layout> wanted;
    for (const auto& member : members) wanted.insert(member.wanted);
    for (const auto& member : members)
      for (const Layout layout : wanted)
        if (!member.best.contains(layout)) out.push_back({member.winner.problem, layout});
  }
  return out;
}

Result<std::vector<Site>> settle_sites(Database& database, std::string_view target,
                                       std::string_view performance_class) {
  auto sites = sites_in(database, target, performance_class);
  if (!sites.ok()) return sites.status();
  std::vector<Site> out;
  std::vector<Winner> changed;
  for (auto& [name, members] : *sites) {
    if (!agree(members)) {
      if (auto status = look_up_evidence(database, target, performance_class, members);
          !status.ok())
        return status;
      const auto layout = cheapest(members);
      if (!layout) continue;
      for (auto& member : members) {
        member.winner = answer_in(member, *layout);
        member.wanted = *layout;
        changed.push_back(member.winner);
      }
    }
    out.push_back(describe(name, members));
  }
  if (!changed.empty())
    if (auto status = database.set_winners(changed); !status.ok()) return status;
  return out;
}

}  // namespace quarterturn
