#include "tuner/recorded_space.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tuner/workload.hpp"

namespace quarterturn {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // of the JSON text

struct Close {
  void operator()(gzFile file) const { gzclose(file); }
};
using File = std::unique_ptr<std::remove_pointer_t<gzFile>, Close>;

Result<std::string> read_compressed(const std::string& path) {
  const File file(gzopen(path.c_str(), "rb"));
  if (!file) return Status(Code::io_error, fmt::format("cannot read {}", path));
  std::string out;
  std::vector<char> part(1 << 16);
  for (;;) {
    const int count = gzread(file.get(), part.data(), static_cast<unsigned>(part.size()));
    if (count < 0) return Status(Code::io_error, fmt::format("{} is damaged", path));
    if (count == 0) return out;
    out.append(part.data(), static_cast<std::size_t>(count));
    if (out.size() > kMostBytes)
      return Status(Code::invalid_argument, fmt::format("{} is too large to be a recording", path));
  }
}

double rounded(double value, double step) { return std::round(value / step) * step; }

json entry_json(const RecordedSpace::Entry& entry) {
  const Outcome& o = entry.outcome;
  return {o.plan.text(),
          static_cast<int>(o.status),
          rounded(o.log_speedup, 1e-5),
          std::llround(entry.median_ns),
          entry.compile_ms,
          o.registers,
          o.spills,
          o.shared_bytes,
          entry.cost.main,
          entry.cost.preparation};
}

Result<RecordedSpace::Entry> parse_entry(const json& from) {
  RecordedSpace::Entry out;
  auto plan = parse_plan(from.at(0).get<std::string>());
  if (!plan.ok()) return plan.status();
  out.outcome = {std::move(*plan),
                 static_cast<TrialStatus>(from.at(1).get<int>()),
                 from.at(2).get<double>(),
                 from.at(5).get<std::int64_t>(),
                 from.at(6).get<std::int64_t>(),
                 from.at(7).get<std::int64_t>()};
  out.median_ns = from.at(3).get<double>();
  out.compile_ms = from.at(4).get<std::int64_t>();
  out.cost = {from.at(8).get<double>(), from.at(9).get<double>()};
  return out;
}

Result<RecordedSpace> parse(const std::string& text, const std::string& path) {
  const json from = json::parse(text);
  if (from.at("format").get<int>() != kFormat)
    return Status(Code::newer_version, fmt::format("{} has format {}, {} is known", path,
                                                   from.at("format").get<int>(), kFormat));
  RecordedSpace out;
  auto problem = parse_problem(from.at("problem").get<std::string>());
  if (!problem.ok()) return problem.status();
  out.problem = *problem;
  auto target = parse_target(from.at("target").get<std::string>());
  if (!target.ok()) return target.status();
  out.target = *target;
  out.target.shared_bytes = from.at("shared_bytes").get<std::int64_t>();
  out.performance_class = from.at("performance_class").get<std::string>();
  out.compiler = from.at("compiler").get<std::string>();
  out.library = from.at("library").get<std::string>();
  out.units = from.at("units").get<std::int64_t>();
  for (const auto& one : from.at("plans")) {
    auto entry = parse_entry(one);
    if (!entry.ok()) return entry.status();
    out.entries.push_back(std::move(*entry));
  }
  if (out.entries.empty())
    return Status(Code::invalid_argument, fmt::format("{} holds no plans", path));
  return out;
}

struct Best {
  const Trial* timed = nullptr;
  const Trial* failed = nullptr;
  const Trial* admitted = nullptr;
  std::int64_t compile_ms = 0;
};

std::map<std::string, Best> by_plan(const std::vector<Trial>& trials) {
  std::map<std::string, Best> out;
  for (const Trial& trial : trials) {
    Best& best = out[trial.plan];
    best.compile_ms = std::max(best.compile_ms, trial.compile_ms);
    if (trial.status != TrialStatus::ok)
      best.failed = &trial;
    else if (trial.kind == TrialKind::admission)
      best.admitted = &trial;
    else if (trial.kind == TrialKind::timing && (!best.timed || trial.rounds > best.timed->rounds))
      best.timed = &trial;
  }
  return out;
}

}  // namespace

std::string RecordedSpace::name() const {
  return fmt::format("{} on {}", short_name(problem), target.arch);
}

Result<RecordedSpace> read_recording(const std::string& path) {
  auto text = read_compressed(path);
  if (!text.ok()) return text.status();
  try {
    return parse(*text, path);
  } catch (const json::exception& error) {
    return Status(Code::invalid_argument,
                  fmt::format("{} is not a recording: {}", path, error.what()));
  }
}

Status write_recording(const RecordedSpace& recording, const std::string& path) {
  json out{{"format", kFormat},
           {"problem", recording.problem.key()},
           {"target", recording.target.key()},
           {"shared_bytes", recording.target.shared_bytes},
           {"performance_class", recording.performance_class},
           {"compiler", recording.compiler},
           {"library", recording.library},
           {"units", recording.units},
           {"plans", json::array()}};
  for (const auto& entry : recording.entries) out["plans"].push_back(entry_json(entry));
  const std::string text = out.dump();
  File file(gzopen(path.c_str(), "wb9"));
  if (!file) return Status(Code::io_error, fmt::format("cannot write {}", path));
  const bool written = gzwrite(file.get(), text.data(), static_cast<unsigned>(text.size())) ==
                       static_cast<int>(text.size());
  if (gzclose(file.release()) != Z_OK || !written)
    return Status(Code::io_error, fmt::format("cannot write {}", path));
  return {};
}

Result<RecordedSpace> record(Database& database, const Problem& problem, const Target& target,
                             const std::string& performance_class) {
  const auto trials = database.trials(problem.key(), target.key(), performance_class);
  if (!trials.ok()) return trials.status();
  const auto known = by_plan(*trials);
  RecordedSpace out;
  out.problem = problem;
  out.target = target;
  out.performance_class = performance_class;
  out.units = units_of(performance_class);
  if (!trials->empty() && trials->front().env) {
    out.compiler = trials->front().env->compiler;
    out.library = trials->front().env->library;
  }
  bool has_control = false;
  for (auto& plan : plans(problem, target, 20000)) {
    const auto at = known.find(plan.text());
    if (at == known.end()) continue;
    const Best& best = at->second;
    RecordedSpace::Entry entry;
    entry.cost = predicted_cost(problem, target, plan, out.units);
    entry.compile_ms = best.compile_ms;
    const bool is_control = !has_control && !best.timed && best.admitted;
    has_control = has_control || is_control;
    const Trial* trial = best.timed ? best.timed : is_control ? best.admitted : best.failed;
    if (!trial) continue;  // admitted, but the recording ended before it was timed
    entry.outcome = {std::move(plan),  trial->status, best.timed ? std::log(trial->ratio) : 0,
                     trial->registers, trial->spills, trial->shared_bytes};
    entry.median_ns = best.timed ? trial->median_ns : 0;
    out.entries.push_back(std::move(entry));
  }
  if (out.entries.empty())
    return Status(Code::unknown_name,
                  fmt::format("the database holds no trials of {}", problem.key()));
  return out;
}

Space space_of(const RecordedSpace& recording) {
  Space out;
  out.problem = recording.problem;
  out.target = recording.target;
  out.units = recording.units;
  auto costs = std::make_shared<std::map<std::string, PlanCost>>();
  for (const auto& entry : recording.entries) {
    out.plans.push_back(entry.outcome.plan);
    (*costs)[entry.outcome.plan.text()] = entry.cost;
  }
  out.cost = [costs](const Plan& plan) {
    const auto at = costs->find(plan.text());
    return at == costs->end() ? PlanCost{} : at->second;
  };
  return out;
}

}  // namespace quarterturn
