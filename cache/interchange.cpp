#include "cache/interchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/rows.hpp"

namespace quarterturn {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostBytes = std::size_t{1} << 28;

std::string hex_of(const std::vector<unsigned char>& bytes) {
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// What went wrong in a row; caught below and turned into a status.
struct BadRow {
  std::string why;
};

std::vector<unsigned char> bytes_of(const std::string& hex) {
  if (hex.size() % 2 != 0) throw BadRow{fmt::format("'{}' is not hex", hex)};
  std::vector<unsigned char> out;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit_of(hex[i]), low = digit_of(hex[i + 1]);
    if (high < 0 || low < 0) throw BadRow{fmt::format("'{}' is not hex", hex)};
    out.push_back(static_cast<unsigned char>(high * 16 + low));
  }
  return out;
}

Uuid uuid_of(const std::string& given) {
  auto out = parse_uuid(given);
  if (!out.ok()) throw BadRow{out.status().message()};
  return *out;
}

void put(OrderedJson& row, const char* name, const std::string& value) { row[name] = value; }
void put(OrderedJson& row, const char* name, std::int64_t value) { row[name] = value; }
void put(OrderedJson& row, const char* name, double value) { row[name] = value; }
void put(OrderedJson& row, const char* name, TrialKind value) {
  row[name] = trial_kind_name(value);
}
void put(OrderedJson& row, const char* name, TrialStatus value) {
  row[name] = trial_status_name(value);
}

void take(const OrderedJson& value, std::string& out) { out = value.get<std::string>(); }
void take(const OrderedJson& value, std::int64_t& out) { out = value.get<std::int64_t>(); }
void take(const OrderedJson& value, double& out) { out = value.get<double>(); }
template <class Enum, class Name>
void take_named(const OrderedJson& value, Enum& out, int most, const Name& name_of) {
  const auto given = value.get<std::string>();
  for (int i = 0; i <= most; ++i)
    if (name_of(static_cast<Enum>(i)) == given) {
      out = static_cast<Enum>(i);
      return;
    }
  throw BadRow{fmt::format("'{}' is not known", given)};
}
void take(const OrderedJson& value, TrialKind& out) {
  take_named(value, out, static_cast<int>(TrialKind::control), trial_kind_name);
}
void take(const OrderedJson& value, TrialStatus& out) {
  take_named(value, out, static_cast<int>(TrialStatus::rejected), trial_status_name);
}

template <class T>
void take(const OrderedJson& row, const char* name, T& out) {
  const auto found = row.find(name);
  if (found == row.end()) throw BadRow{fmt::format("'{}' is missing", name)};
  try {
    take(*found, out);
  } catch (const OrderedJson::exception&) {
    throw BadRow{fmt::format("'{}' has the wrong type", name)};
  }
}

std::string env_name(const Env& env) { return hex(env.hash()).substr(0, 16); }

OrderedJson to_row(const Env& env) {
  return {{"env", env_name(env)},   {"target", env.target},   {"class", env.performance_class},
          {"driver", env.driver},   {"toolkit", env.toolkit}, {"compiler", env.compiler},
          {"library", env.library}, {"product", env.product}};
}

OrderedJson to_row(const Trial& trial) {
  OrderedJson row = {{"uuid", text(trial.uuid)},
                     {"problem", trial.problem},
                     {"plan", trial.plan},
                     {"env", env_name(*trial.env)},
                     {"campaign", text(trial.campaign)}};
#define X(type, name, meaning) put(row, #name, trial.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  row["samples"] = trial.samples;
  return row;
}

OrderedJson to_row(const Winner& winner) {
  return {{"problem", winner.problem},
          {"env", env_name(*winner.env)},
          {"plan", winner.plan},
          {"choice", winner.choice == Choice::tuned ? "tuned" : "default"},
          {"speedup", winner.speedup},
          {"speedup_low", winner.speedup_low},
          {"speedup_high", winner.speedup_high},
          {"median_ns", winner.median_ns},
          {"regret", winner.regret},
          {"noise", winner.noise},
          {"evidence", winner.evidence},
          {"ties", winner.ties},
          {"certificate", winner.certificate},
          {"decided", winner.decided}};
}

OrderedJson to_row(const Quarantine& entry) {
  return {{"subject", entry.subject},   {"problem", entry.problem},
          {"target", entry.target},     {"class", entry.performance_class},
          {"compiler", entry.compiler}, {"reason", quarantine_reason_name(entry.reason)},
          {"count", entry.count},       {"first", entry.first},
          {"last", entry.last}};
}

OrderedJson to_row(const Tombstone& tombstone) {
  return {{"kind", static_cast<std::int32_t>(tombstone.kind)},
          {"subject", hex_of(tombstone.subject)},
          {"reason", tombstone.reason},
          {"at", tombstone.at}};
}

// "name": [ one row a line, sorted ]
std::string section(const char* name, std::vector<std::string> rows) {
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::string out = fmt::format(",\n\"{}\": [", name);
  for (std::size_t i = 0; i < rows.size(); ++i) out += (i > 0 ? ",\n " : "\n ") + rows[i];
  return out + (rows.empty() ? "]" : "\n]");
}

using Envs = std::map<std::string, std::shared_ptr<const Env>>;

std::shared_ptr<const Env> env_of(const OrderedJson& row, const Envs& envs) {
  std::string name;
  take(row, "env", name);
  const auto found = envs.find(name);
  if (found == envs.end()) throw BadRow{fmt::format("env '{}' is not among the envs", name)};
  return found->second;
}

Trial trial_of(const OrderedJson& row, const Envs& envs) {
  Trial out;
  std::string uuid, campaign;
  take(row, "uuid", uuid);
  take(row, "campaign", campaign);
  out.uuid = uuid_of(uuid);
  out.campaign = uuid_of(campaign);
  take(row, "problem", out.problem);
  take(row, "plan", out.plan);
  out.env = env_of(row, envs);
#define X(type, name, meaning) take(row, #name, out.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  const auto samples = row.find("samples");
  if (samples != row.end())
    for (const auto& sample : *samples) {
      double value = 0;
      take(sample, value);
      out.samples.push_back(value);
    }
  if (const auto status = rows::check(out); !status.ok()) throw BadRow{status.message()};
  if (!parse_plan(out.plan).ok()) throw BadRow{fmt::format("'{}' is no plan", out.plan)};
  return out;
}

Winner winner_of(const OrderedJson& row, const Envs& envs) {
  Winner out;
  std::string choice;
  take(row, "problem", out.problem);
  take(row, "plan", out.plan);
  out.env = env_of(row, envs);
  take(row, "choice", choice);
  if (choice != "tuned" && choice != "default")
    throw BadRow{fmt::format("choice '{}': tuned or default", choice)};
  out.choice = choice == "tuned" ? Choice::tuned : Choice::fallback;
  take(row, "speedup", out.speedup);
  take(row, "speedup_low", out.speedup_low);
  take(row, "speedup_high", out.speedup_high);
  take(row, "median_ns", out.median_ns);
  take(row, "regret", out.regret);
  take(row, "noise", out.noise);
  take(row, "evidence", out.evidence);
  take(row, "ties", out.ties);
  take(row, "certificate", out.certificate);
  take(row, "decided", out.decided);
  if (const auto status = rows::check(out); !status.ok()) throw BadRow{status.message()};
  if (!parse_plan(out.plan).ok()) throw BadRow{fmt::format("'{}' is no plan", out.plan)};
  return out;
}

Quarantine quarantine_of(const OrderedJson& row) {
  Quarantine out;
  take(row, "subject", out.subject);
  take(row, "problem", out.problem);
  take(row, "target", out.target);
  take(row, "class", out.performance_class);
  take(row, "compiler", out.compiler);
  take_named(row.at("reason"), out.reason, static_cast<int>(QuarantineReason::launch_failed),
             quarantine_reason_name);
  take(row, "count", out.count);
  take(row, "first", out.first);
  take(row, "last", out.last);
  if (out.subject.empty() || out.target.empty() || out.compiler.empty())
    throw BadRow{"needs a subject, a target and a compiler"};
  return out;
}

Tombstone tombstone_of(const OrderedJson& row) {
  Tombstone out;
  std::int64_t kind = 0;
  std::string subject;
  take(row, "kind", kind);
  if (kind < 0 || kind > static_cast<int>(TombstoneKind::env))
    throw BadRow{fmt::format("kind {} is not known", kind)};
  out.kind = static_cast<TombstoneKind>(kind);
  take(row, "subject", subject);
  out.subject = bytes_of(subject);
  const std::size_t bytes = out.kind == TombstoneKind::env ? Digest{}.size() : Uuid{}.size();
  if (out.subject.size() != bytes || subject.find_first_not_of('0') == std::string::npos)
    throw BadRow{fmt::format("the subject needs {} bytes, not all zero", bytes)};
  take(row, "reason", out.reason);
  take(row, "at", out.at);
  return out;
}

// Taken in twice, an entry must not count twice.
bool is_same(const Quarantine& a, const Quarantine& b) {
  return a.subject == b.subject && a.problem == b.problem && a.target == b.target &&
         a.performance_class == b.performance_class && a.compiler == b.compiler &&
         a.reason == b.reason;
}

struct Rows {
  std::vector<Trial> trials;
  std::vector<Winner> winners;
  std::vector<Quarantine> quarantine;
  std::vector<Tombstone> tombstones;
};

Result<Rows> parse(std::string_view given) {
  if (given.size() > kMostBytes)
    return Status(Code::invalid_argument,
                  fmt::format("{} bytes of JSON; at most {} are read", given.size(), kMostBytes));
  const OrderedJson json = OrderedJson::parse(given, nullptr, false);
  if (!json.is_object() || !json.contains("quarterturn_database"))
    return Status(Code::not_ours,
                  "this is not the JSON of a tuning database: it does not begin "
                  "with {\"quarterturn_database\": 1");
  const auto& version = json["quarterturn_database"];
  if (!version.is_number_integer() || version.get<std::int64_t>() > kVersion)
    return Status(Code::newer_version, fmt::format("version {} of the JSON; this version reads {}",
                                                   version.dump(), kVersion));
  Rows out;
  Envs envs;
  const auto each = [&](const char* name, const auto& work) -> Status {
    const auto found = json.find(name);
    if (found == json.end()) return {};
    if (!found->is_array())
      return Status(Code::invalid_argument, fmt::format("{} is not an array", name));
    std::size_t number = 0;
    for (const auto& row : *found) {
      const auto bad = [&](std::string_view why) {
        return Status(Code::invalid_argument, fmt::format("{}[{}]: {}", name, number, why));
      };
      try {
        if (!row.is_object()) return bad("is not an object");
        work(row);
      } catch (const BadRow& error) {
        return bad(error.why);
      } catch (const OrderedJson::exception& error) {
        return bad(error.what());
      }
      ++number;
    }
    return {};
  };
  Status status = each("envs", [&](const OrderedJson& row) {
    auto env = std::make_shared<Env>();
    std::string name;
    take(row, "env", name);
    take(row, "target", env->target);
    take(row, "class", env->performance_class);
    take(row, "driver", env->driver);
    take(row, "toolkit", env->toolkit);
    take(row, "compiler", env->compiler);
    take(row, "library", env->library);
    take(row, "product", env->product);
    if (env_name(*env) != name)
      throw BadRow{fmt::format("is called '{}', but what it holds is '{}'", name, env_name(*env))};
    envs[name] = std::move(env);
  });
  if (status.ok())
    status =
        each("trials", [&](const OrderedJson& row) { out.trials.push_back(trial_of(row, envs)); });
  if (status.ok())
    status = each("winners",
                  [&](const OrderedJson& row) { out.winners.push_back(winner_of(row, envs)); });
  if (status.ok())
    status = each("quarantine",
                  [&](const OrderedJson& row) { out.quarantine.push_back(quarantine_of(row)); });
  if (status.ok())
    status = each("tombstones",
                  [&](const OrderedJson& row) { out.tombstones.push_back(tombstone_of(row)); });
  if (!status.ok()) return status;
  return out;
}

Result<std::string> whole_text(Database& database, TrialRows wanted) {
  const auto targets = database.targets();
  if (!targets.ok()) return targets.status();
  std::map<std::string, std::string> envs;
  std::vector<std::string> trials, winners, quarantine, tombstones;
  const auto note_env = [&](const std::shared_ptr<const Env>& env) {
    envs.emplace(env_name(*env), to_row(*env).dump());
  };
  for (const auto& target : *targets) {
    const auto of_target = database.winners(target);
    if (!of_target.ok()) return of_target.status();
    for (const auto& winner : *of_target) {
      note_env(winner.env);
      winners.push_back(to_row(winner).dump());
    }
    if (wanted == TrialRows::left_out) continue;
    const auto all = database.recent_trials(target, SIZE_MAX >> 1);
    if (!all.ok()) return all.status();
    for (const auto& trial : *all) {
      note_env(trial.env);
      trials.push_back(to_row(trial).dump());
    }
  }
  const auto entries = database.quarantine();
  if (!entries.ok()) return entries.status();
  for (const auto& entry : *entries) quarantine.push_back(to_row(entry).dump());
  const auto stones = database.tombstones();
  if (!stones.ok()) return stones.status();
  for (const auto& stone : *stones) tombstones.push_back(to_row(stone).dump());
  std::vector<std::string> env_rows;
  for (const auto& [name, row] : envs) env_rows.push_back(row);
  return fmt::format("{{\"quarterturn_database\": {}", kVersion) +
         section("envs", std::move(env_rows)) + section("winners", std::move(winners)) +
         section("quarantine", std::move(quarantine)) +
         section("tombstones", std::move(tombstones)) + section("trials", std::move(trials)) +
         "\n}\n";
}

}  // namespace

Result<std::string> to_json(Database& database, TrialRows wanted) {
  try {
    return whole_text(database, wanted);
  } catch (const OrderedJson::exception&) {
    return Status(Code::damaged,
                  "a row holds text that is not UTF-8, which JSON cannot hold; `qturn db check` "
                  "looks for damage");
  }
}

Result<ImportReport> import_json(Database& database, std::string_view given, Winners policy) {
  auto content = parse(given);
  if (!content.ok()) return content.status();
  // What simulated devices measured goes into no other database.
  std::erase_if(content->trials,
                [](const Trial& one) { return is_simulated(one.env->performance_class); });
  std::erase_if(content->winners,
                [](const Winner& one) { return is_simulated(one.env->performance_class); });
  std::erase_if(content->quarantine,
                [](const Quarantine& one) { return is_simulated(one.performance_class); });
  ImportReport report;
  report.trials = static_cast<std::int64_t>(content->trials.size());
  report.winners = static_cast<std::int64_t>(content->winners.size());
  report.quarantined = static_cast<std::int64_t>(content->quarantine.size());
  report.tombstones = static_cast<std::int64_t>(content->tombstones.size());
  std::vector<Winner> taken;
  for (auto& winner : content->winners) {
    const auto ours =
        database.winner_of(winner.problem, winner.env->target, winner.env->performance_class);
    if (!ours.ok()) return ours.status();
    if (ours->has_value() && policy == Winners::keep_ours)
      ++report.kept;
    else
      taken.push_back(std::move(winner));
  }
  // Trials are a union; the rest follows only when all of them could be stored.
  if (auto status = database.add_trials(content->trials); !status.ok()) return status;
  for (const auto& stone : content->tombstones)
    if (auto status = database.add_tombstone(stone); !status.ok()) return status;
  const auto known = database.quarantine();
  if (!known.ok()) return known.status();
  for (const auto& entry : content->quarantine)
    if (std::none_of(known->begin(), known->end(),
                     [&](const Quarantine& other) { return is_same(entry, other); }))
      if (auto status = database.add_quarantine(entry); !status.ok()) return status;
  if (auto status = database.set_winners(taken); !status.ok()) return status;
  return report;
}

}  // namespace quarterturn
