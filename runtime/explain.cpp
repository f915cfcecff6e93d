// Context::explain: how a problem would be served and by what right, as JSON for people and tools.
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/context.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::ordered_json;

// Bytes of paths that are no UTF-8 are shown as U+FFFD.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What every family says to one step: the chosen one its variant, the others their reasons.
Json step_json(const Problem& problem, const Target& target, const Plan& plan, const Step& step) {
  const Problem part = step_problem(problem, target, plan, step.kind);
  Json out{
      {"step", step_name(step.kind)}, {"variant", step.variant.text()}, {"problem", part.key()}};
  Json refused = Json::object();
  for (const Family* family : families()) {
    if (family->vendor() != target.vendor || family->name() == step.variant.family) continue;
    auto reason = family->refuses(part, target);
    if (reason.empty()) reason = refuse_rounding(*family, part);
    if (!reason.empty()) refused[std::string(family->name())] = reason;
  }
  out["refused"] = std::move(refused);
  return out;
}

// Why a plan cannot be had where nothing compiles: what is stored is looked up, no compiler starts.
Status missing_code(Backend& backend, const Problem& problem, const Plan& plan) {
  if (!backend.device().compiler.empty()) return {};
  for (const auto& step : plan.steps) {
    const Target& target = backend.device().target;
    const auto source =
        find_family(step.variant.family)
            ->emit(step_problem(problem, target, plan, step.kind), target, step.variant);
    if (const auto binary = backend.compile(source); !binary.ok()) return binary.status();
  }
  return {};
}

Json plan_json(const Problem& problem, const Target& target, const Plan& plan) {
  Json out = Json::array();
  for (const auto& step : plan.steps) out.push_back(step_json(problem, target, plan, step));
  return out;
}

// What shows that a plan's families compute rightly on the device, one row a family.
Json proof_json(Proofs& proofs, const Plan& plan) {
  Json out = Json::array();
  std::set<std::string> named;
  for (const auto& step : plan.steps) {
    if (!named.insert(step.variant.family).second) continue;
    const auto answer = proofs.state_of(step.variant);
    Json row{{"family", step.variant.family}, {"state", proof_state_name(answer.state)}};
    if (!answer.detail.empty()) row["detail"] = answer.detail;
    out.push_back(std::move(row));
  }
  return out;
}

// The plan that would serve, had its families been proved.
Json held_back(Proofs& proofs, const std::vector<Plan>& enabled, const Plan& served) {
  if (enabled.empty() || enabled.front() == served) return {};
  const auto why = proofs.allows(enabled.front());
  if (why.ok()) return {};
  return {{"plan", enabled.front().text()},
          {"reason", why.message()},
          {"proof", proof_json(proofs, enabled.front())}};
}

}  // namespace

std::string Context::explain(const Problem& problem) {
  const Target& target = backend_->device().target;
  Json out{{"problem", problem.key()},
           {"target", env_.target},
           {"performance_class", env_.performance_class},
           {"device", backend_->device().name},
           {"compiler", env_.compiler}};
  if (auto status = validate(problem); !status.ok()) {
    out["supported"] = false;
    out["reason"] = status.message();
    return text_of(out);
  }
  Json stored = Json::array();
  const auto table = this->table();
  const auto candidates = table->candidates(problem);
  for (const auto& found : candidates) {
    Json row{{"match", match_name(found.match)},
             {"place", found.answer->place},
             {"decided_for", found.answer->problem.key()},
             {"plan", found.answer->plan.text()}};
    auto fits = check_plan(problem, target, found.answer->plan);
    if (fits.ok() && is_disabled(found.answer->plan))
      fits = Status(Code::not_supported, "uses a family that is disabled (QTURN_DISABLE)");
    if (fits.ok())
      if (const auto held = database_->quarantine_of(found.answer->plan, problem.key(), env_);
          held.ok() && held->has_value())
        fits = Status(Code::quarantined, "in quarantine: " + (*held)->detail);
    if (fits.ok()) fits = proofs_->allows(found.answer->plan);
    row["usable"] = fits.ok();
    if (!fits.ok()) row["reason"] = fits.message();
    stored.push_back(std::move(row));
  }
  if (lock_) out["lock"] = settings_.text(Setting::lock);
  const auto choice = choose(problem);
  out["supported"] = choice.ok() || choice.status().code() == Code::not_locked;
  if (!choice.ok()) {
    out["reason"] = choice.status().message();
  } else {
    const auto missing = missing_code(*backend_, problem, choice->plan);
    out["match"] = match_name(missing.ok() ? choice->match : Match::reference);
    if (!missing.ok()) out["reason"] = missing.message();
    out["plan"] = choice->plan.text();
    if (choice->held) out["held"] = true;  // of an earlier prepare: a reload keeps it
    out["steps"] = plan_json(problem, target, choice->plan);
    if (choice->match == Match::heuristic)
      if (auto passed = held_back(*proofs_, enabled_plans(problem, 1), choice->plan);
          !passed.empty())
        out["held_back"] = std::move(passed);
    out["proof"] = proof_json(*proofs_, choice->plan);
  }
  out["stored"] = std::move(stored);
  return text_of(out);
}

}  // namespace quarterturn
