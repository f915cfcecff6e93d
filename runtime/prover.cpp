#include "runtime/prover.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace quarterturn {
namespace {

using nlohmann::json;

std::string request_of(const std::map<std::string, std::string>& settings,
                       std::span<const ProofTask> tasks) {
  json list = json::array();
  for (const auto& task : tasks)
    list.push_back({{"problem", task.problem.key()}, {"plan", task.plan.text()}});
  return json{{"settings", settings}, {"tasks", std::move(list)}}.dump();
}

Status status_of(const json& line) {
  const auto code = static_cast<Code>(line.value("code", static_cast<int>(Code::internal)));
  return code == Code::ok ? Status() : Status(code, line.value("message", "no reason was given"));
}

Proof proof_of(const json& line) {
  Proof out;
  out.status = status_of(line);
  const Code code = out.status.code();
  out.end = code == Code::ok              ? Proof::End::right
            : line.value("lost", false)   ? Proof::End::crashed
            : code == Code::rejected      ? Proof::End::wrong
            : code == Code::launch_failed ? Proof::End::crashed
                                          : Proof::End::undecided;
  out.max_error = line.value("max_error", 0.0);
  out.bias_z = line.value("bias_z", 0.0);
  out.outputs = line.value("outputs", std::int64_t{0});
  out.code_rows = line.value("code_rows", std::int64_t{0});
  out.repeatable = line.value("repeatable", std::int64_t{-1});
  return out;
}

Proof ended(Proof::End end, Status status) {
  Proof out;
  out.end = end;
  out.status = std::move(status);
  return out;
}

// What the end of the process says of the task that it was at.
Proof proof_of(const WorkerReport& report, const WorkerLimits& limits, bool opened) {
  using End = WorkerReport::End;
  const auto how = report.ending(limits);
  if (report.end == End::not_started || !opened)
    return ended(Proof::End::undecided,
                 Status(Code::unproven, fmt::format("the process that proves it {}: {}",
                                                    report.end == End::not_started
                                                        ? "did not start"
                                                        : "ended before it had opened the device",
                                                    how)));
  if (report.end == End::timed_out)
    return ended(Proof::End::hung, Status(Code::launch_failed, "hung: " + how));
  return ended(Proof::End::crashed, Status(Code::launch_failed, "crashed: " + how));
}

}  // namespace

Prover::Prover(Worker worker, std::string program, std::map<std::string, std::string> settings,
               std::int64_t seconds)
    : worker_(std::move(worker)),
      program_(program.empty() ? find_program("quarterturn-trial") : std::move(program)),
      settings_(std::move(settings)),
      seconds_(seconds) {}

Status Prover::available() const {
  if (!program_.empty() && ::access(program_.c_str(), X_OK) == 0) return {};
  return Status(
      Code::unproven,
      fmt::format("the program that proves families, {}, is not there; install it beside the "
                  "library (it comes with the command qturn), or name it (QTURN_PROVER)",
                  program_.empty() ? "quarterturn-trial" : program_));
}

std::vector<Proof> Prover::run(std::span<const ProofTask> tasks) const {
  WorkerCommand command;
  command.arguments = {program_, "prove", request_of(settings_, tasks)};
  command.limits = {seconds_, 0, 0};
  const auto report = worker_.run(command);
  if (!report.ok()) return {ended(Proof::End::undecided, report.status())};
  std::vector<Proof> out;
  bool opened = false;
  std::istringstream lines(report->output);
  for (std::string text; std::getline(lines, text) && out.size() < tasks.size();) {
    const auto line = json::parse(text, nullptr, false);
    if (!line.is_object()) continue;
    if (line.contains("opened")) {
      opened = status_of(line).ok();
      if (!opened) return {ended(Proof::End::undecided, status_of(line))};
      continue;
    }
    out.push_back(proof_of(line));
    if (out.back().end != Proof::End::right) return out;
  }
  if (out.size() < tasks.size()) out.push_back(proof_of(*report, command.limits, opened));
  return out;
}

}  // namespace quarterturn
