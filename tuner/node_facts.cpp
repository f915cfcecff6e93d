#include "tuner/node_facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace quarterturn {
namespace {

using OrderedJson = nlohmann::ordered_json;
using State = Finding::State;

constexpr double kClockNote = 1, kClockWrong = 30;  // seconds
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kFreeNote = 2048, kFreeWrong = 256;  // MiB
constexpr std::size_t kMostNamed = 8;

// How nodes' values of a fact are judged.
enum class Rule {
  equal,       // different values are wrong
  alike,       // different values work, and cost something
  local_disk,  // "network ..." is wrong
  clock,       // seconds ahead of the shared file system
  room,        // bytes
  range,       // numbers that may differ: from the least to the most
};

struct FactRule {
  std::string_view fact;  // or its beginning, where it ends in a space
  Rule rule;
  std::string_view remedy;
};

constexpr FactRule kRules[] = {
    {"library", Rule::equal,
     "install one version on all nodes: answers of another version serve as stale, and hashes "
     "differ"},
    {"snapshot ", Rule::equal,
     "the folder is not the same there, or a copy is old: mount or copy it again, then "
     "qturn_reload"},
    {"setting ", Rule::equal, "set it alike (QTURN_* or /etc/quarterturn/config.json)"},
    {"device ", Rule::alike,
     "answers of another class are borrowed: tune once on a node of each class and merge"},
    {"driver ", Rule::alike,
     "answers decided under another driver are stale: update it, or run `qturn recheck` there"},
    {"compiler ", Rule::alike,
     "code is compiled again for each, and answers decided under another are stale: install one "
     "version, or ship a bundle"},
    {"clock", Rule::clock, "synchronise it (chrony or ntpd)"},
    {"database filesystem", Rule::local_disk,
     "set QTURN_DATABASE or QTURN_CACHE_DIR to a local disk; share by `qturn db publish`"},
    {"code filesystem", Rule::local_disk,
     "set QTURN_CODE_CACHE to a local disk: kernels are loaded from it by every process"},
    {"scratch filesystem", Rule::local_disk, "set TMPDIR to a local disk"},
    {"database free", Rule::room, "free space, or set QTURN_CACHE_DIR elsewhere"},
    {"code free", Rule::room, "free space: qturn db prune --code-bytes 1G"},
    {"scratch free", Rule::room, "free space, or set TMPDIR elsewhere"},
    {"shared free", Rule::room, "free space there"},
    {"shared filesystem", Rule::alike, "the folder is another one there: mount the shared one"},
    {"code kernels", Rule::range, ""},
    {"cores", Rule::range, ""},
};

const FactRule* rule_of(std::string_view fact) {
  const auto* const found =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const FactRule& rule) {
        return rule.fact.ends_with(' ') ? fact.starts_with(rule.fact) : fact == rule.fact;
      });
  return found == std::end(kRules) ? nullptr : found;
}

std::string names_of(const std::vector<std::string>& nodes, std::size_t all) {
  if (nodes.size() == all) return all == 1 ? nodes[0] : fmt::format("all {}", all);
  const auto named = std::min(nodes.size(), kMostNamed);
  auto out =
      fmt::format("{}", fmt::join(nodes.begin(), nodes.begin() + static_cast<long>(named), " "));
  if (named < nodes.size()) out += fmt::format(" and {} more", nodes.size() - named);
  return out;
}

std::optional<double> number_in(const std::string& text) {
  double out = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out);
  if (read.ec != std::errc() || !std::isfinite(out)) return std::nullopt;
  return out;
}

// One value by itself.
State judge(Rule rule, const std::string& value) {
  if (rule == Rule::local_disk) return value.starts_with("network") ? State::wrong : State::ok;
  if (rule != Rule::clock && rule != Rule::room) return State::ok;
  const auto number = number_in(value);
  if (!number) return State::note;
  const double size = rule == Rule::clock ? std::abs(*number) : -*number / kMiB;
  const double note = rule == Rule::clock ? kClockNote : -kFreeNote;
  const double wrong = rule == Rule::clock ? kClockWrong : -kFreeWrong;
  return size > wrong ? State::wrong : size > note ? State::note : State::ok;
}

std::string shown(Rule rule, const std::string& value) {
  if (value.empty()) return "(none)";
  const auto number = number_in(value);
  if (!number) return value;
  if (rule == Rule::room) return fmt::format("{:.0f} MiB free", *number / kMiB);
  if (rule == Rule::clock) return fmt::format("{:+.3f} s", *number);
  return value;
}

using Groups = std::vector<std::pair<std::string, std::vector<std::string>>>;

// Values and who has them, what most have first.
Groups groups_of(const NodeFacts& nodes, const std::string& fact) {
  std::map<std::string, std::vector<std::string>> by_value;
  for (const auto& [node, facts] : nodes) {
    const auto found = facts.find(fact);
    by_value[found == facts.end() ? std::string() : found->second].push_back(node);
  }
  Groups out(by_value.begin(), by_value.end());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return out;
}

void compare_values(const NodeFacts& nodes, const std::string& fact, const FactRule& rule,
                    std::vector<Finding>& out) {
  const auto groups = groups_of(nodes, fact);
  const State different = rule.rule == Rule::equal   ? State::wrong
                          : rule.rule == Rule::alike ? State::note
                                                     : State::ok;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const State state = i == 0 ? State::ok : different;
    out.push_back({state, fact, names_of(groups[i].second, nodes.size()),
                   shown(rule.rule, groups[i].first),
                   state == State::ok ? std::string() : std::string(rule.remedy)});
  }
}

// Numbers and kinds that stand for themselves: who is well is counted, who is not is named.
void judge_values(const NodeFacts& nodes, const std::string& fact, const FactRule& rule,
                  std::vector<Finding>& out) {
  std::vector<std::string> well;
  std::string example;
  for (const auto& [node, facts] : nodes) {
    const auto found = facts.find(fact);
    if (found == facts.end()) continue;
    const State state = judge(rule.rule, found->second);
    if (state != State::ok) {
      out.push_back({state, fact, node, shown(rule.rule, found->second), std::string(rule.remedy)});
      continue;
    }
    well.push_back(node);
    if (example.empty()) example = found->second;
  }
  if (!well.empty())
    out.push_back({State::ok,
                   fact,
                   names_of(well, nodes.size()),
                   well.size() == 1 || rule.rule == Rule::local_disk ? shown(rule.rule, example)
                                                                     : "within the limits",
                   {}});
}

void show_range(const NodeFacts& nodes, const std::string& fact, std::vector<Finding>& out) {
  std::vector<std::string> having;
  std::set<double> numbers;
  for (const auto& [node, facts] : nodes)
    if (const auto found = facts.find(fact); found != facts.end()) {
      having.push_back(node);
      if (const auto number = number_in(found->second)) numbers.insert(*number);
    }
  if (numbers.empty()) return;
  out.push_back({State::ok,
                 fact,
                 names_of(having, nodes.size()),
                 numbers.size() == 1 ? fmt::format("{}", *numbers.begin())
                                     : fmt::format("{} to {}", *numbers.begin(), *numbers.rbegin()),
                 {}});
}

}  // namespace

std::string line_of(const NodeFact& fact) {
  const OrderedJson json{{"node", fact.node}, {"fact", fact.fact}, {"value", fact.value}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Status add_facts(std::string_view text, const std::string& place, NodeFacts& out) {
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto brace = line.find('{');
    const auto json = OrderedJson::parse(
        brace == std::string_view::npos ? line : line.substr(brace), nullptr, false);
    const auto text_of = [&](const char* name) {
      return json.is_object() && json.contains(name) && json[name].is_string()
                 ? std::optional(json[name].template get<std::string>())
                 : std::nullopt;
    };
    const auto node = text_of("node"), fact = text_of("fact"), value = text_of("value");
    if (!node || node->empty() || !fact || !value)
      return Status(Code::invalid_argument,
                    fmt::format("{}:{}: not a line of `qturn doctor --cluster`", place, number));
    out[*node][*fact] = *value;
  }
  return {};
}

std::string_view state_name(Finding::State state) {
  constexpr std::string_view names[] = {"ok", "note", "wrong"};
  return names[static_cast<std::size_t>(state)];
}

std::vector<Finding> compare_nodes(const NodeFacts& nodes) {
  std::set<std::string> facts;
  for (const auto& [node, own] : nodes)
    for (const auto& [fact, value] : own) facts.insert(fact);
  std::vector<Finding> out;
  for (const auto& rule : kRules)
    for (const auto& fact : facts) {
      if (rule_of(fact) != &rule) continue;
      if (rule.rule == Rule::equal || rule.rule == Rule::alike)
        compare_values(nodes, fact, rule, out);
      else if (rule.rule == Rule::range)
        show_range(nodes, fact, out);
      else
        judge_values(nodes, fact, rule, out);
    }
  return out;
}

}  // namespace quarterturn
