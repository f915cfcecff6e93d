#include "runtime/layers.hpp"

#include <fmt/format.h>

#include <filesystem>
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

bool is_absent(const std::string& path, const Status& status) {
  std::error_code error;
  return status.code() == Code::miss || (!std::filesystem::exists(path, error) && !error);
}

// Notes a layer, and what was wrong with it.
void add_layer(LayerRead layer, LoadedLayers& out) {
  if (!layer.status.ok())
    out.notes.push_back(fmt::format("{} is left out: {}", layer.place, layer.status.message()));
  out.layers.push_back(std::move(layer));
}

void add_pins(const std::string& path, LoadedLayers& out) {
  LayerRead layer;
  layer.place = fmt::format("the pins file {}", path);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (in.is_open()) {
    parse_pins(text.view(), path, out);
  } else {
    layer.status = Status(Code::io_error, "it cannot be read");
    layer.absent = is_absent(path, layer.status);
  }
  add_layer(std::move(layer), out);
}

void add_snapshot(const LayerPaths& paths, std::size_t index, const Env& here,
                  std::int64_t least_sequence, LoadedLayers& out) {
  const auto& path = paths.snapshots[index];
  LayerRead layer;
  layer.place = fmt::format("snapshot {}", path);
  auto snapshot = open_current(path, paths.keys, least_sequence);
  layer.status = snapshot.status();
  if (snapshot.ok()) {
    layer.generation = snapshot->number;
    layer.sequence = snapshot->sequence;
    layer.status = append_winners(snapshot->database, here, Layer::snapshot,
                                  static_cast<std::int32_t>(index), path, out);
  }
  layer.absent = !layer.status.ok() && is_absent(path, layer.status);
  add_layer(std::move(layer), out);
}

void add_bundle(const LayerPaths& paths, const Env& here, LoadedLayers& out) {
  LayerRead layer;
  layer.place = fmt::format("the bundle's database {}", paths.bundle);
  // Whose it is was checked when the bundle was opened.
  auto bundled = Database::open_snapshot(paths.bundle);
  layer.status = bundled.ok() ? append_winners(*bundled, here, Layer::snapshot,
                                               static_cast<std::int32_t>(paths.snapshots.size()),
                                               paths.bundle, out)
                              : bundled.status();
  add_layer(std::move(layer), out);
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

LoadedLayers load_layers(Database& local, const LayerPaths& paths, const Env& here,
                         const std::vector<LayerRead>& before) {
  LoadedLayers out;
  if (!paths.pins.empty()) add_pins(paths.pins, out);
  LayerRead own;
  own.place = "the tuning database";
  own.status = append_winners(local, here, Layer::database, 0, "database", out);
  add_layer(std::move(own), out);
  for (std::size_t i = 0; i < paths.snapshots.size(); ++i) {
    const auto at = out.layers.size();
    add_snapshot(paths, i, here, at < before.size() ? before[at].sequence : 0, out);
  }
  if (!paths.bundle.empty()) add_bundle(paths, here, out);
  return out;
}

const LayerRead* lost_layer(const std::vector<LayerRead>& now,
                            const std::vector<LayerRead>& before) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    const bool was_absent = i < before.size() && before[i].absent;
    if (!now[i].status.ok() && !(now[i].absent && was_absent)) return &now[i];
  }
  return nullptr;
}

}  // namespace quarterturn
