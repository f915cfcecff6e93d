// The HTML of a report: sections of tables and charts over what collect_report read.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <map>
#include <set>

#include "tuner/chart.hpp"
#include "tuner/embedded.hpp"
#include "tuner/report.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kMostMisses = 20, kMostReasons = 8, kMostHeatSide = 16, kMostHeatMaps = 3;
constexpr double kDay = 86400e9;

class Page {
 public:
  template <class... Values>
  void add(fmt::format_string<Values...> form, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), form, std::forward<Values>(values)...);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string date_text(std::int64_t nanoseconds) {
  const std::time_t seconds = nanoseconds / 1'000'000'000;
  std::tm fields{};
  if (nanoseconds <= 0 || gmtime_r(&seconds, &fields) == nullptr) return "unknown";
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fields);
}

std::string age_text(std::int64_t then, std::int64_t now) {
  const double days = static_cast<double>(now - then) / kDay;
  if (then <= 0) return "unknown";
  if (days < 0) return "in the future";  // of a clock that was set back
  return days < 2 ? fmt::format("{:.0f} h", 24 * days) : fmt::format("{:.0f} d", days);
}

std::string rate_text(double operations) {
  return operations >= 1e12 ? fmt::format("{:.4g} T", operations / 1e12)
                            : fmt::format("{:.4g} G", operations / 1e9);
}

const ReportClass& class_of(const ReportData& data, const ReportProblem& problem) {
  for (const auto& one : data.classes)
    if (one.target == problem.target && one.performance_class == problem.performance_class)
      return one;
  static const ReportClass none;
  return none;
}

bool is_timed(const Trial& trial) {
  return is_evidence(trial.kind) && trial.median_ns > 0 && trial.ratio > 0 &&
         (trial.status == TrialStatus::ok || trial.status == TrialStatus::noisy ||
          trial.status == TrialStatus::pruned);
}

// ---- coverage and staleness ----

void add_summary(Page& page, const ReportData& data) {
  std::int64_t measured = 0, tuned = 0, fallback = 0, undecided = 0, stale = 0;
  for (const auto& one : data.classes) {
    measured += one.measured, tuned += one.tuned, fallback += one.fallback;
    undecided += one.undecided;
    for (const auto count : one.stale) stale += count;
  }
  page.add("<div class=\"cards\">");
  const auto card = [&](std::int64_t number, const char* what) {
    page.add("<div><b>{}</b><span>{}</span></div>", number, what);
  };
  card(measured, "problems measured");
  card(tuned, "answered by a tuned plan");
  card(fallback, "best by default");
  card(undecided, "to be decided (again)");
  card(stale, "winners stale");
  card(data.info.misses, "problems missed");
  card(data.info.trials, "trials");
  card(data.info.quarantined, "in quarantine");
  page.add("</div>");
}

void add_class(Page& page, const ReportClass& one, std::int64_t now, const std::string& library) {
  page.add("<h3>{}</h3><p class=\"quiet\">{}<br>{}</p>", html(one.target),
           html(one.performance_class), html(one.roof.assumption));
  if (!one.envs.empty()) {
    page.add(
        "<table><tr><th>environment<th class=\"n\">winners<th class=\"n\">stale<th>decided"
        "<th class=\"n\">oldest</tr>");
    for (std::size_t i = 0; i < one.envs.size(); ++i) {
      const Env& env = *one.envs[i];
      std::string name = "library " + env.library;
      if (env.library != library) name += " (this is " + library + ")";
      for (const auto& [what, value] :
           {std::pair<const char*, const std::string&>{"compiler", env.compiler},
            {"driver", env.driver},
            {"toolkit", env.toolkit},
            {"", env.product}})
        if (!value.empty()) name += fmt::format(", {}{}{}", what, *what ? " " : "", value);
      page.add("<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td>{} to {}<td class=\"n\">{}</tr>",
               html(name), one.winners[i], one.stale[i], date_text(one.oldest[i]),
               date_text(one.newest[i]), age_text(one.oldest[i], now));
    }
    page.add("</table>");
  }
  if (one.misses.empty()) return;
  page.add("<table><tr><th>missed most<th class=\"n\">calls<th class=\"n\">time in them</tr>");
  for (std::size_t i = 0; i < std::min(kMostMisses, one.misses.size()); ++i) {
    const auto& miss = one.misses[i];
    page.add("<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}</tr>", html(miss.problem), miss.calls,
             time_text(static_cast<double>(miss.ns)));
  }
  page.add("</table>");
  if (one.misses.size() > kMostMisses)
    page.add("<p class=\"quiet\">and {} more</p>", one.misses.size() - kMostMisses);
}

// ---- speed ----

void add_roofline(Page& page, const ReportData& data, const ReportClass& one) {
  RooflineChart chart;
  chart.peak_operations = one.roof.operations, chart.peak_bytes = one.roof.bytes;
  for (const auto& p : data.problems)
    if (p.target == one.target && p.performance_class == one.performance_class && p.winner &&
        p.winner->median_ns > 0 && p.work > 0 && p.traffic > 0) {
      const double rate = 1e9 * p.work / p.winner->median_ns;
      chart.points.push_back(
          {p.work / p.traffic, rate, fmt::format("{}: {}op/s", p.name, rate_text(rate))});
    }
  if (chart.points.empty()) return;
  page.add(
      "<h3>{}</h3>{}<p class=\"quiet\">{}. Bytes are those that a call must at least read "
      "and write.</p>",
      html(one.target), roofline_chart(chart), html(one.roof.assumption));
}

struct Ends {
  double from = 0.9, to = 1.1;
};

Ends ends_of(const ReportData& data) {
  Ends out;
  for (const auto& problem : data.problems)
    if (problem.winner) {
      out.from = std::min(out.from, std::clamp(problem.winner->speedup_low, 0.2, 1.0));
      out.to = std::max(out.to, std::clamp(problem.winner->speedup_high, 1.0, 50.0));
    }
  return out;
}

void add_speed(Page& page, const ReportData& data, std::int64_t now) {
  const Ends ends = ends_of(data);
  page.add(
      "<div class=\"wide\"><table><tr><th>problem<th>device<th>answer<th class=\"n\">time"
      "<th class=\"n\">op/s<th>of the roof<th class=\"n\">against the default"
      "<th>{:.2g}x to {:.2g}x<th class=\"n\">trials<th class=\"n\">age</tr>",
      ends.from, ends.to);
  for (const auto& p : data.problems) {
    page.add("<tr><td title=\"{}\">{}<td title=\"{}\">{}", html(p.problem), html(p.name),
             html(p.performance_class), html(p.target.substr(0, p.target.find(':'))));
    if (!p.winner) {
      page.add("<td>undecided<td><td><td><td><td><td><td></tr>");
      continue;
    }
    const Winner& w = *p.winner;
    const double rate = w.median_ns > 0 ? 1e9 * p.work / w.median_ns : 0;
    const double roof = class_of(data, p).roof.operations_at(p.work, p.traffic);
    const double share = roof > 0 ? rate / roof : 0;
    page.add("<td>{}{}<td class=\"n\">{}<td class=\"n\">{}<td>{}",
             w.choice == Choice::tuned ? "tuned" : "default", p.stale ? ", stale" : "",
             w.median_ns > 0 ? time_text(w.median_ns) : "", rate > 0 ? rate_text(rate) : "",
             share > 0 ? fmt::format("{} {:.0f} %", share_chart(share), 100 * share)
                       : std::string("not known"));
    page.add(
        "<td class=\"n\">{:.3f} ({:.3f} to {:.3f})<td>{}<td class=\"n\">{}<td "
        "class=\"n\">{}</tr>",
        w.speedup, w.speedup_low, w.speedup_high,
        interval_chart({w.speedup, w.speedup_low, w.speedup_high}, ends.from, ends.to), w.evidence,
        age_text(w.decided, now));
  }
  page.add("</table></div>");
  if (data.left_out > 0)
    page.add("<p class=\"quiet\">and {} more, with less evidence</p>", data.left_out);
}

// ---- one problem ----

// "gemm (cpu_gemm/1{...}): the reason" without the plan's own words, so that equal reasons meet.
std::string reason_of(const Trial& trial) {
  std::string line = trial.detail.substr(0, trial.detail.find('\n'));
  const auto at = line.find("}): ");
  return at == std::string::npos ? line : line.substr(at + 4);
}

TuningCurve curve_of(const ReportProblem& problem) {
  TuningCurve out;
  std::map<std::string, std::int64_t> tried;
  for (const auto& trial : problem.trials) {
    const auto [at, fresh] = tried.emplace(trial.plan, static_cast<std::int64_t>(tried.size()) + 1);
    if (is_timed(trial))
      out.points.push_back({at->second, trial.ratio, trial.plan});
    else if (fresh && trial.status != TrialStatus::ok)
      out.failures.push_back(
          {at->second, 0, fmt::format("{}: {}", trial_status_name(trial.status), trial.plan)});
  }
  out.tried = static_cast<std::int64_t>(tried.size());
  std::stable_sort(out.points.begin(), out.points.end(),
                   [](const auto& a, const auto& b) { return a.tried < b.tried; });
  if (problem.winner)
    out.answer = {problem.winner->speedup, problem.winner->speedup_low,
                  problem.winner->speedup_high};
  return out;
}

// A timed plan of one family: its parameters, by "step.name".
struct Timed {
  std::map<std::string, std::int64_t> values;
  double median = 0;
};

std::map<std::string, std::vector<Timed>> timed_by_family(const ReportProblem& problem) {
  std::map<std::string, Timed> plans;
  std::map<std::string, std::vector<Timed>> out;
  for (const auto& trial : problem.trials) {
    if (!is_timed(trial)) continue;
    auto& one = plans[trial.plan];
    one.median = one.median == 0 ? trial.median_ns : std::min(one.median, trial.median_ns);
  }
  for (auto& [text, one] : plans) {
    const auto plan = parse_plan(text);
    if (!plan.ok() || plan->steps.empty()) continue;
    for (const auto& step : plan->steps)
      for (const auto& [name, value] : step.variant.values)
        one.values[fmt::format("{}.{}", step_name(step.kind), name)] = value;
    out[plan->main_step().variant.family].push_back(std::move(one));
  }
  return out;
}

std::set<std::int64_t> values_of(const std::vector<Timed>& plans, const std::string& name) {
  std::set<std::int64_t> out;
  for (const auto& plan : plans)
    if (const auto at = plan.values.find(name); at != plan.values.end()) out.insert(at->second);
  return out;
}

std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> cells_of(
    const std::vector<Timed>& plans, const std::string& x, const std::string& y) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> out;
  for (const auto& plan : plans) {
    const auto at_x = plan.values.find(x), at_y = plan.values.find(y);
    if (at_x != plan.values.end() && at_y != plan.values.end())
      out[{at_x->second, at_y->second}].push_back(plan.median);
  }
  return out;
}

// How far plans of one cell lie from each other, in the mean over plans: small where the two
// parameters tell most. A cell of one plan tells nothing.
double spread_within(const std::vector<Timed>& plans, const std::string& x, const std::string& y) {
  double sum = 0;
  std::size_t count = 0;
  for (const auto& [at, times] : cells_of(plans, x, y)) {
    if (times.size() < 2) continue;
    const double middle = std::log(median(times));
    for (const double time : times) sum += std::fabs(std::log(time) - middle);
    count += times.size();
  }
  return count * 2 < plans.size() ? 1e9 : sum / static_cast<double>(count);
}

std::pair<std::string, std::string> axes_of(const std::vector<Timed>& plans,
                                            const ReportOptions& options) {
  std::set<std::string> names;
  for (const auto& plan : plans)
    for (const auto& [name, value] : plan.values) names.insert(name);
  std::vector<std::string> axes;
  for (const auto& name : names)
    if (const auto count = values_of(plans, name).size(); count >= 2 && count <= kMostHeatSide)
      axes.push_back(name);
  std::pair<std::string, std::string> best{options.x, options.y};
  if (names.contains(options.x) && names.contains(options.y)) return best;
  best = {};
  double least = 1e300;
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t j = i + 1; j < axes.size(); ++j)
      if (const double spread = spread_within(plans, axes[i], axes[j]); spread < least)
        least = spread, best = {axes[i], axes[j]};
  // The longer side across.
  if (values_of(plans, best.first).size() < values_of(plans, best.second).size())
    std::swap(best.first, best.second);
  return best;
}

void add_heat(Page& page, const std::string& family, const std::vector<Timed>& plans,
              const ReportOptions& options) {
  HeatMap map;
  std::tie(map.x, map.y) = axes_of(plans, options);
  if (map.x.empty() || map.y.empty()) return;
  const auto columns = values_of(plans, map.x), rows = values_of(plans, map.y);
  if (columns.size() > kMostHeatSide || rows.size() > kMostHeatSide) return;
  const auto cells = cells_of(plans, map.x, map.y);
  map.columns.assign(columns.begin(), columns.end());
  map.rows.assign(rows.begin(), rows.end());
  for (const auto row : map.rows)
    for (const auto column : map.columns) {
      HeatMap::Cell cell;
      if (const auto at = cells.find({column, row}); at != cells.end())
        cell = {median(at->second), *std::min_element(at->second.begin(), at->second.end()),
                at->second.size()};
      map.cells.push_back(cell);
    }
  page.add("<figure>{}<figcaption>{}: median time over {} plans</figcaption></figure>",
           heat_chart(map), html(family), plans.size());
}

void add_failures(Page& page, const ReportProblem& problem) {
  std::map<std::pair<std::string_view, std::string>, std::size_t> reasons;
  for (const auto& trial : problem.trials)
    if (trial.status != TrialStatus::ok && !is_timed(trial))
      ++reasons[{trial_status_name(trial.status), reason_of(trial)}];
  if (reasons.empty()) return;
  std::vector<std::pair<std::size_t, std::pair<std::string_view, std::string>>> sorted;
  for (const auto& [reason, count] : reasons) sorted.push_back({count, reason});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  page.add("<table><tr><th class=\"n\">failed<th>how<th class=\"why\">why</tr>");
  for (std::size_t i = 0; i < std::min(sorted.size(), kMostReasons); ++i)
    page.add("<tr><td class=\"n\">{}<td>{}<td>{}</tr>", sorted[i].first,
             html(sorted[i].second.first), html(sorted[i].second.second.substr(0, 300)));
  page.add("</table>");
}

void add_problem(Page& page, const ReportProblem& problem, const ReportOptions& options) {
  const TuningCurve curve = curve_of(problem);
  if (curve.tried == 0) return;
  page.add(
      "<details open><summary>{} <span class=\"quiet\">on {}: {} plans tried, {} failed"
      "</span></summary>",
      html(problem.name), html(problem.target.substr(0, problem.target.find(':'))), curve.tried,
      curve.failures.size());
  page.add("<p class=\"quiet\">{}</p>", html(problem.problem));
  if (problem.winner)
    page.add("<p>{} <code>{}</code></p>",
             problem.winner->choice == Choice::tuned ? "Tuned:" : "Default:",
             html(problem.winner->plan));
  page.add("<div class=\"figures\">");
  if (!curve.points.empty())
    page.add(
        "<figure>{}<figcaption>each plan as timed (at the bottom: that slow or slower), and the "
        "best so far; band: the "
        "answer's interval after confirmation{}</figcaption></figure>",
        tuning_chart(curve), curve.failures.empty() ? "" : "; on the axis: failures");
  const auto families = timed_by_family(problem);
  std::vector<decltype(families)::const_pointer> largest;
  for (const auto& family : families)
    if (family.second.size() >= 4) largest.push_back(&family);
  std::stable_sort(largest.begin(), largest.end(), [](const auto* a, const auto* b) {
    return a->second.size() > b->second.size();
  });
  if (largest.size() > kMostHeatMaps) largest.resize(kMostHeatMaps);
  for (const auto* family : largest) add_heat(page, family->first, family->second, options);
  page.add("</div>");
  add_failures(page, problem);
  page.add("</details>");
}

std::string replaced(std::string text, const std::string& mark, const std::string& with) {
  const auto at = text.find(mark);
  if (at != std::string::npos) text.replace(at, mark.size(), with);
  return text;
}

}  // namespace

std::string report_page(const ReportData& data, const ReportOptions& options) {
  Page page;
  page.add("<h1>Tuning report</h1><p class=\"quiet\">Quarterturn {}, {}; database {}</p>",
           html(options.library), date_text(options.now), html(data.info.uuid));
  add_summary(page, data);
  page.add("<h2>Speed</h2>");
  add_speed(page, data, options.now);
  for (const auto& one : data.classes) add_roofline(page, data, one);
  page.add("<h2>Search</h2>");
  for (const auto& problem : data.problems)
    if (!problem.trials.empty()) add_problem(page, problem, options);
  page.add(
      "<h2>Coverage and staleness</h2><p class=\"quiet\">Stale: decided under another driver, "
      "toolkit, compiler or library than the newest decision on the same kind of device. "
      "Stale answers are served.</p>");
  for (const auto& one : data.classes) add_class(page, one, options.now, options.library);
  // The body last: marks in what the database holds stay as they are.
  return replaced(replaced(std::string(embedded_report()), "{{title}}", "Tuning report"),
                  "{{body}}", page.take());
}

}  // namespace quarterturn
