#include "tuner/fleet_lines.hpp"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

namespace quarterturn::fleet_lines {
namespace {

Result<Item> item_of(const Json& from) {
  auto problem = parse_problem(from.at("problem").get<std::string>());
  if (!problem.ok()) return problem.status();
  return Item{from.at("layers").get<std::string>(), std::move(*problem),
              from.at("calls").get<std::int64_t>()};
}

}  // namespace

Json json_of(const Item& item) {
  return {{"problem", item.problem.key()}, {"layers", item.layers}, {"calls", item.calls}};
}

Json json_of(const std::vector<Item>& items) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(json_of(item));
  return out;
}

Result<std::vector<Item>> items_of(const Json& from) {
  std::vector<Item> out;
  for (const auto& row : from) {
    auto item = item_of(row);
    if (!item.ok()) return item.status();
    out.push_back(std::move(*item));
  }
  return out;
}

Json json_of(const Tuned& t) {
  return {{"answer", static_cast<int>(t.answer)},
          {"code", static_cast<int>(t.status.code())},
          {"message", t.status.message()},
          {"plan", t.plan},
          {"speedup", t.speedup},
          {"low", t.low},
          {"high", t.high},
          {"noise", t.noise},
          {"median", t.median_seconds},
          {"tried", t.tried},
          {"failed", t.failed},
          {"compiled", t.compiled},
          {"seconds", t.seconds},
          {"first_failure", t.first_failure},
          {"reason", t.reason}};
}

Tuned tuned_of(const Item& item, const Json& from) {
  Tuned t;
  t.item = item;
  t.answer = static_cast<Tuned::Answer>(
      std::clamp(from.at("answer").get<int>(), 0, static_cast<int>(Tuned::Answer::failed)));
  if (const auto code = from.at("code").get<int>(); code != 0)
    t.status = Status(static_cast<Code>(code), from.at("message").get<std::string>());
  from.at("plan").get_to(t.plan);
  from.at("speedup").get_to(t.speedup);
  from.at("low").get_to(t.low);
  from.at("high").get_to(t.high);
  from.at("noise").get_to(t.noise);
  from.at("median").get_to(t.median_seconds);
  from.at("tried").get_to(t.tried);
  from.at("failed").get_to(t.failed);
  from.at("compiled").get_to(t.compiled);
  from.at("seconds").get_to(t.seconds);
  from.at("first_failure").get_to(t.first_failure);
  from.at("reason").get_to(t.reason);
  return t;
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace quarterturn::fleet_lines
