// Context: what prepare goes by, without compiling: the plan it would take first, the lock file,
// and a hash of all of it.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "runtime/context.hpp"
#include "runtime/version.hpp"

namespace quarterturn {
namespace {

// Every text with its length, so that no two lists give the same bytes.
void append(std::string& to, std::string_view text) {
  to += fmt::format("{}:", text.size());
  to += text;
}

}  // namespace

Result<Plan> Context::locked_plan(const Problem& problem) const {
  const auto& path = settings_.text(Setting::lock);
  const auto refuse = [&](const std::string& why) {
    return Status(Code::not_locked,
                  fmt::format("{} is not prepared: the lock file {} {}. Write it anew (qturn lock "
                              "write), or run without it (QTURN_LOCK)",
                              problem.key(), path, why));
  };
  const Target& target = backend_->device().target;
  if (lock_->target != target.key())
    return refuse(fmt::format("is for {}, and this device is {}", lock_->target, target.key()));
  const auto found = lock_->plans.find(problem.key());
  if (found == lock_->plans.end()) return refuse("does not name it");
  const Plan& plan = found->second.plan;
  if (is_disabled(plan)) return refuse("names a family that is disabled (QTURN_DISABLE)");
  const auto code = code_digest(problem, target, plan);
  if (!code.ok())
    return refuse(fmt::format("names a plan that is none here: {}", code.status().message()));
  if (*code != found->second.code)
    return refuse(fmt::format("was written by version {} for other kernel text than version {} has",
                              lock_->library, kVersion));
  return plan;
}

Result<Context::Choice> Context::choose(const Problem& problem) {
  if (auto status = validate(problem); !status.ok()) return status;
  if (lock_) {
    auto plan = locked_plan(problem);
    if (!plan.ok()) return plan.status();
    return Choice{std::move(*plan), Match::exact, settings_.text(Setting::lock)};
  }
  const auto table = this->table();
  if (const auto held = held_answer(problem))
    return Choice{held->executable->plan(), held->match, held->place, true};
  return choose_from(*table, problem);
}

Result<Context::Choice> Context::choose_from(const LookupTable& table, const Problem& problem) {
  for (const auto& [answer, match] : table.candidates(problem)) {
    if (is_disabled(answer->plan) ||
        !check_plan(problem, backend_->device().target, answer->plan).ok() ||
        !proofs_->allows(answer->plan).ok())
      continue;
    const auto held = database_->quarantine_of(answer->plan, problem.key(), env_);
    if (held.ok() && held->has_value()) continue;
    return Choice{answer->plan, match, answer->place};
  }
  auto plans = servable_plans(problem, 1);
  if (plans.empty()) return supports(problem);
  return Choice{std::move(plans.front()), Match::heuristic, {}};
}

Digest Context::snapshot_hash() const {
  std::vector<std::pair<std::string, std::string>> held;
  std::shared_ptr<const LookupTable> table;
  {
    const std::lock_guard lock(mutex_);
    if (hash_) return *hash_;
    table = this->table();
    for (const auto& [problem, served] : served_)
      if (served.held) held.emplace_back(problem, served.executable->plan().text());
  }
  const Digest out = hash_of(*table, held);
  const std::lock_guard lock(mutex_);
  if (this->table() == table) hash_ = out;
  return out;
}

Digest Context::hash_of(const LookupTable& table,
                        const std::vector<std::pair<std::string, std::string>>& held) const {
  std::string all;
  for (const auto& text : {std::string("quarterturn served 1"), std::string(kVersion), env_.target,
                           env_.performance_class, settings_.text(Setting::disable)})
    append(all, text);
  if (lock_) {
    append(all, "lock");
    append(all, hex(lock_->hash()));
    return sha256(all);
  }
  using Row = std::tuple<std::string, Layer, std::int32_t, Validity, std::string>;
  std::vector<Row> rows;
  for (const auto& answer : table.answers())
    rows.emplace_back(answer.problem.key(), answer.layer, answer.order, answer.validity,
                      answer.plan.text());
  std::sort(rows.begin(), rows.end());
  for (const auto& [problem, layer, order, validity, plan] : rows) {
    append(all, problem);
    append(all,
           fmt::format("{} {} {}", static_cast<int>(layer), order, static_cast<int>(validity)));
    append(all, plan);
  }
  for (const auto& [problem, plan] : held) {
    append(all, "held");
    append(all, problem);
    append(all, plan);
  }
  return sha256(all);
}

}  // namespace quarterturn
