#include "runtime/layers.hpp"

#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "cache/publication.hpp"

namespace quarterturn {
namespace {

// Appends the winners of one database that can serve `here`; rows that this version cannot read
// were written by another one, and are left to it.
Status append_winners(Database& database, const Env& here, Layer layer, std::int32_t order,
                      const std::string& place, LoadedLayers& out) {
  auto stored = database.answers(here.target);
  if (!stored.ok()) return stored.status();
  std::vector<Validity> validities;
  for (const auto& env : stored->envs) validities.push_back(compare(*env, here));
  std::vector<std::optional<SharedPlan>> plans;  // of many rows each: read once
  for (const auto& text : stored->plans) {
    auto plan = parse_plan(text);
    plans.push_back(plan.ok() ? std::optional<SharedPlan>(std::move(*plan)) : std::nullopt);
  }
  out.answers.reserve(out.answers.size() + stored->rows.size());
  ProblemReader reader;
  for (const auto& row : stored->rows) {
    const Validity validity = validities[row.env];
    if (validity == Validity::foreign || !plans[row.plan]) continue;
    const auto problem = reader.read(stored->problem(row));
    if (!problem.ok()) continue;
    out.answers.push_back({*problem, *plans[row.plan], validity, layer, order, place});
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  const auto from = text.find_first_not_of(" \t\r");
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r") - from + 1);
}

}  // namespace

void parse_pins(std::string_view text, const std::string& name, LoadedLayers& out) {
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const auto line = trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (line.empty() || line.front() == '#') continue;
    const auto arrow = line.find(" -> ");
    const auto say = [&](std::string_view what) {
      out.notes.push_back(fmt::format("{}:{}: {}; the line is skipped", name, number, what));
    };
    if (arrow == std::string_view::npos) {
      say("a pin reads 'PROBLEM KEY -> PLAN'");
      continue;
    }
    auto problem = parse_problem(trimmed(line.substr(0, arrow)));
    auto plan = parse_plan(trimmed(line.substr(arrow + 4)));
    if (!problem.ok())
      say(problem.status().message());
    else if (!plan.ok())
      say(plan.status().message());
    else
      out.answers.push_back(
          {std::move(*problem), std::move(*plan), Validity::valid, Layer::pin, 0, name});
  }
}

LoadedLayers load_layers(Database& local, const LayerPaths& paths, const Env& here) {
  LoadedLayers out;
  if (!paths.pins.empty()) {
    std::ifstream in(paths.pins, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (in.is_open())
      parse_pins(text.view(), paths.pins, out);
    else
      out.notes.push_back(fmt::format("the pins file {} cannot be read", paths.pins));
  }
  if (auto status = append_winners(local, here, Layer::database, 0, "database", out); !status.ok())
    out.notes.push_back(fmt::format("the tuning database cannot be read: {}", status.message()));
  for (std::size_t i = 0; i < paths.snapshots.size(); ++i) {
    auto snapshot = open_published(paths.snapshots[i], paths.keys);
    Status status = snapshot.ok()
                        ? append_winners(*snapshot, here, Layer::snapshot,
                                         static_cast<std::int32_t>(i), paths.snapshots[i], out)
                        : snapshot.status();
    if (!status.ok())
      out.notes.push_back(
          fmt::format("snapshot {} is left out: {}", paths.snapshots[i], status.message()));
  }
  if (!paths.bundle.empty()) {
    // Whose it is was checked when the bundle was opened.
    auto bundled = Database::open_snapshot(paths.bundle);
    Status status = bundled.ok() ? append_winners(*bundled, here, Layer::snapshot,
                                                  static_cast<std::int32_t>(paths.snapshots.size()),
                                                  paths.bundle, out)
                                 : bundled.status();
    if (!status.ok())
      out.notes.push_back(
          fmt::format("the bundle's answers are left out: {}: {}", paths.bundle, status.message()));
  }
  return out;
}

}  // namespace quarterturn
