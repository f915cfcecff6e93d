#include "runtime/lock_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cache/filesystem.hpp"
#include "generator/source.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kFormat = 1;

// Of a member that is there and a text; else empty.
std::string text_of(const Json& from, const char* member) {
  const auto found = from.find(member);
  return found != from.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Result<Digest> digest_of(const std::string& hex_digits) {
  Digest out{};
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (hex_digits.size() != 2 * out.size()) return Status(Code::damaged, "a hash has 64 hex digits");
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = digit(hex_digits[2 * i]), low = digit(hex_digits[2 * i + 1]);
    if (high < 0 || low < 0) return Status(Code::damaged, "a hash has 64 hex digits");
    out[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return out;
}

}  // namespace

Digest LockFile::hash() const {
  std::string all = fmt::format("quarterturn lock {}\n{}\n", kFormat, target);
  for (const auto& [problem, locked] : plans)
    all += fmt::format("{}\n{}\n{}\n", problem, locked.plan.text(), hex(locked.code));
  return sha256(all);
}

std::string LockFile::text() const {
  std::string out = fmt::format(
      "{{\n\"quarterturn_lock\": {},\n\"library\": {},\n\"target\": {},\n\"hash\": \"{}\",\n"
      "\"plans\": [",
      kFormat, Json(library).dump(), Json(target).dump(), hex(hash()));
  const char* separator = "\n";
  for (const auto& [problem, locked] : plans) {
    out +=
        separator +
        Json{{"problem", problem}, {"plan", locked.plan.text()}, {"code", hex(locked.code)}}.dump();
    separator = ",\n";
  }
  return out + "\n]\n}\n";
}

Result<Digest> code_digest(const Problem& problem, const Target& target, const Plan& plan) {
  if (auto status = check_plan(problem, target, plan); !status.ok()) return status;
  std::string all;
  for (const auto& step : plan.steps) {
    const auto source =
        find_family(step.variant.family)
            ->emit(step_problem(problem, target, plan, step.kind), target, step.variant);
    const auto digest = source_digest(source, target);
    if (!digest.ok()) return digest.status();
    all += fmt::format("{} {}\n", step_name(step.kind), hex(*digest));
  }
  return sha256(all);
}

Result<LockFile> parse_lock(std::string_view text, const std::string& name) {
  const auto damaged = [&name](const std::string& what) {
    return Status(Code::damaged,
                  fmt::format("{} cannot be used as a lock file: {}; `qturn lock write` makes one",
                              name, what));
  };
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return damaged("it is not a JSON object");
  const auto format = json.find("quarterturn_lock");
  if (format == json.end() || !format->is_number_integer())
    return damaged("it has no member quarterturn_lock");
  if (format->get<std::int64_t>() != kFormat)
    return Status(Code::newer_version,
                  fmt::format("{} is a lock file of format {}; this version reads {}", name,
                              format->get<std::int64_t>(), kFormat));
  LockFile out;
  out.library = text_of(json, "library");
  out.target = text_of(json, "target");
  const auto rows = json.find("plans");
  if (rows == json.end() || !rows->is_array()) return damaged("it has no list of plans");
  for (const auto& row : *rows) {
    const auto problem = row.is_object() ? text_of(row, "problem") : std::string();
    auto plan = parse_plan(row.is_object() ? text_of(row, "plan") : std::string());
    if (problem.empty()) return damaged("a plan without its problem");
    if (!plan.ok()) return damaged(plan.status().message());
    const auto code = digest_of(text_of(row, "code"));
    if (!code.ok()) return damaged(code.status().message());
    if (!out.plans.emplace(problem, LockedPlan{std::move(*plan), *code}).second)
      return damaged(fmt::format("{} is there twice", problem));
  }
  if (text_of(json, "hash") != hex(out.hash()))
    return damaged("its content is not what its hash says, so somebody changed it");
  return out;
}

Result<LockFile> read_lock(const std::string& path) {
  const auto text = read_whole_file(path);
  if (!text.ok())
    return Status(text.status().code(), fmt::format("the lock file {} cannot be read: {}", path,
                                                    text.status().message()));
  return parse_lock(*text, path);
}

}  // namespace quarterturn
