// qturn explain: what would run for a problem, by what right, and what else there is.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tuner/commands/command.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::json;

void line(const std::string& what, const std::string& value) {
  std::printf("%-12s %s\n", what.c_str(), value.c_str());
}

// The answer of Context::explain, for people.
void print_text(const Json& answer) {
  const auto text = [](const Json& from, const char* field) { return from.value(field, ""); };
  line("problem", text(answer, "problem"));
  if (answer.contains("device"))
    line("device", fmt::format("{} ({})", text(answer, "device"), text(answer, "target")));
  if (answer.contains("plan")) {
    line("answer", text(answer, "match"));
    if (answer.contains("reason")) line("", text(answer, "reason"));
    line("plan", text(answer, "plan"));
  } else {
    line("answer", (answer.value("supported", false) ? "refused: " : "not supported: ") +
                       text(answer, "reason"));
  }
  for (const auto& step : answer.value("steps", Json::array())) {
    line(text(step, "step"), text(step, "variant"));
    for (const auto& [family, reason] : step.at("refused").items())
      line("", fmt::format("not {}: {}", family, reason.get<std::string>()));
  }
  for (const auto& row : answer.value("proof", Json::array()))
    line("proof", fmt::format("{}: {}{}", text(row, "family"), text(row, "state"),
                              row.contains("detail") ? ", " + text(row, "detail") : ""));
  if (const auto passed = answer.value("held_back", Json::object()); !passed.empty()) {
    line("held back", text(passed, "plan"));
    line("", text(passed, "reason"));
  }
  for (const auto& row : answer.value("stored", Json::array())) {
    line("stored", fmt::format("{} ({}), decided for {}", text(row, "match"), text(row, "place"),
                               text(row, "decided_for")));
    line("", text(row, "plan"));
    if (!row.value("usable", true)) line("", "not usable: " + text(row, "reason"));
  }
}

}  // namespace

std::function<int()> register_explain(CLI::App& app) {
  auto* command = app.add_subcommand(
      "explain", "Say what would run for a problem, how it matched, and which families refused");
  command->footer(
      "Examples:\n  qturn explain --shape 512x4096x14336\n"
      "  qturn explain --model Qwen3-8B --json\n"
      "How it matched: exact (tuned here), bucket (tuned for another range), borrowed (tuned on "
      "another machine),\nstale (tuned with another compiler or driver), heuristic (nobody tuned "
      "it), reference (prebuilt kernel).\n"
      "Proof: proven (its tests have run on such hardware), proven here (an admission on this "
      "device "
      "is on record),\nunproven (the first prepare proves it, as QTURN_UNPROVEN says), failed (in "
      "quarantine here).");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  return [work, global] {
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    auto context = open_context(*global);
    if (!context.ok()) return fail(context.status());
    bool first = true;
    for (const auto& item : workload->items) {
      const auto answer = (*context)->explain(item.problem);
      if (global->json) {
        std::printf("%s\n", answer.c_str());
      } else {
        if (!first) std::printf("\n");
        print_text(Json::parse(answer));
      }
      first = false;
    }
    return static_cast<int>(workload->items.empty() ? kExitFailed : kExitOk);
  };
}

}  // namespace quarterturn
