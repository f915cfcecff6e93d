// Prometheus text, read as strictly as the exposition format 0.0.4 is written.
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "tests/runtime/api.hpp"

using namespace quarterturn::api;
using quarterturn::test::TemporaryFolder;
using Labels = std::map<std::string, std::string>;

namespace {

struct Family {
  std::string type, help;
  std::map<Labels, double> samples;
};

bool is_name(const std::string& text, bool colons) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && !(colons && c == ':'))
      return false;
  return true;
}

// {a="x",b="y"}, from `at` on, which moves behind it.
std::optional<Labels> read_labels(const std::string& line, std::size_t& at) {
  Labels out;
  if (at >= line.size() || line[at] != '{') return out;
  ++at;
  for (;;) {
    const auto equals = line.find("=\"", at);
    if (equals == std::string::npos) return std::nullopt;
    const auto name = line.substr(at, equals - at);
    std::string value;
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] == '\\') {
        if (++at == line.size() || (line[at] != 'n' && line[at] != '"' && line[at] != '\\'))
          return std::nullopt;
        value += line[at] == 'n' ? '\n' : line[at];
      } else {
        value += line[at];
      }
    }
    if (at >= line.size() || !is_name(name, false) || !out.emplace(name, value).second)
      return std::nullopt;
    const char next = ++at < line.size() ? line[at++] : '\0';
    if (next == '}') return out;
    if (next != ',') return std::nullopt;
  }
}

// Each family once: HELP, TYPE, then its samples, none of them twice.
std::map<std::string, Family> parse(const std::string& text) {
  std::map<std::string, Family> out;
  REQUIRE_FALSE(text.empty());
  CHECK(text.back() == '\n');
  std::istringstream in(text);
  std::string line, current;
  while (std::getline(in, line)) {
    CAPTURE(line);
    if (line.starts_with("# HELP ")) {
      const auto space = line.find(' ', 7);
      REQUIRE(space != std::string::npos);
      current = line.substr(7, space - 7);
      REQUIRE(is_name(current, true));
      REQUIRE(out.emplace(current, Family{"", line.substr(space + 1), {}}).second);
    } else if (line.starts_with("# TYPE ")) {
      REQUIRE(line.substr(7, current.size() + 1) == current + " ");
      auto& family = out[current];
      REQUIRE(family.type.empty());
      family.type = line.substr(8 + current.size());
      REQUIRE((family.type == "counter" || family.type == "gauge"));
      CHECK(current.ends_with("_total") == (family.type == "counter"));
    } else {
      REQUIRE(line.starts_with(current));
      REQUIRE_FALSE(out[current].type.empty());
      std::size_t at = current.size();
      const auto labels = read_labels(line, at);
      REQUIRE(labels.has_value());
      REQUIRE(line.substr(at, 1) == " ");
      double value = -1;
      const auto end = line.data() + line.size();
      const auto read = std::from_chars(line.data() + at + 1, end, value);
      REQUIRE(read.ec == std::errc());
      REQUIRE(read.ptr == end);
      CHECK(value >= 0);
      CHECK(out[current].samples.emplace(*labels, value).second);
    }
  }
  for (const auto& [name, family] : out) {
    CHECK_MESSAGE(name.starts_with("qturn_"), name);
    CHECK_MESSAGE(family.help.size() > 8, name);
  }
  return out;
}

std::string metrics(const std::vector<qturn_context*>& contexts,
                    int32_t flags = QTURN_METRICS_WITHOUT_DEVICE) {
  std::size_t needed = 0;
  REQUIRE(qturn_metrics_text(contexts.data(), contexts.size(), flags, nullptr, 0, &needed) ==
          QTURN_OK);
  std::string text(needed, '?');
  REQUIRE(qturn_metrics_text(contexts.data(), contexts.size(), flags, text.data(), text.size(),
                             &needed) == QTURN_OK);
  CHECK(text.back() == '\0');
  text.pop_back();
  return text;
}

Labels on_cpu(const Labels& more = {}) {
  Labels out{{"backend", "cpu"}, {"device", "0"}};
  out.insert(more.begin(), more.end());
  return out;
}

}  // namespace

TEST_CASE("qturn_metrics_text.counts what was prepared, run, missed and reloaded") {
  const Options options;
  const auto context = make_context(options);
  const auto fresh = parse(metrics({context.get()}));
  CHECK(fresh.at("qturn_prepares_total").samples.size() == 6);
  CHECK(fresh.at("qturn_untuned_calls_total").samples.at(on_cpu()) == 0);
  {
    const auto plan = prepare(context, linear(24, 32, 64));
    const auto a = values(24 * 64, 7), b = values(32 * 64, 8);
    Run call(plan, 24, 32, a);
    call.args.b = f32(b);
    for (int i = 0; i < 3; ++i) REQUIRE(qturn_run(plan.get(), &call.args) == QTURN_OK);
    REQUIRE(qturn_reload(context.get(), QTURN_RELOAD_KEEP, nullptr) == QTURN_OK);
    const auto now = parse(metrics({context.get()}, QTURN_METRICS_WITH_DEVICE));
    CHECK(now.at("qturn_prepares_total").samples.at(on_cpu({{"match", "heuristic"}})) == 1);
    CHECK(now.at("qturn_prepares_total").samples.at(on_cpu({{"match", "exact"}})) == 0);
    CHECK(now.at("qturn_prepare_failures_total").samples.at(on_cpu()) == 0);
    CHECK(now.at("qturn_runs_total").samples.at(on_cpu()) == 3);
    CHECK(now.at("qturn_untuned_calls_total").samples.at(on_cpu()) == 3);
    CHECK(now.at("qturn_untuned_seconds_total").samples.at(on_cpu()) > 0);
    CHECK(now.at("qturn_reloads_total").samples.at(on_cpu({{"result", "unchanged"}})) == 1);
    CHECK(now.at("qturn_window_fallback_rows_total").samples.at(on_cpu()) == 0);
  }
  // Counters do not fall when a plan ends.
  const auto last = parse(metrics({context.get()}));
  CHECK(last.at("qturn_untuned_calls_total").samples.at(on_cpu()) == 3);
  unsigned char hash[32];
  REQUIRE(qturn_snapshot_hash(context.get(), hash) == QTURN_OK);
  std::string text;
  for (const auto byte : hash) {
    constexpr const char* digits = "0123456789abcdef";
    text += {digits[byte >> 4], digits[byte & 15]};
  }
  CHECK(last.at("qturn_snapshot_info").samples.at(on_cpu({{"hash", text}})) == 1);
}

TEST_CASE("qturn_metrics_text.of several contexts names each, every family once") {
  Options one, two;
  one.c.miss_policy = QTURN_MISS_ERROR;
  const auto first = make_context(one), second = make_context(two);
  const auto problem = linear(24, 32, 64);
  qturn_plan* none = nullptr;
  CHECK(qturn_prepare(first.get(), &problem, &none) == QTURN_MISS);
  prepare(second, problem);
  const auto both = parse(metrics({first.get(), second.get()}));
  const auto& prepares = both.at("qturn_prepares_total").samples;
  CHECK(prepares.size() == 12);
  CHECK(prepares.at(on_cpu({{"context", "0"}, {"match", "heuristic"}})) == 0);
  CHECK(prepares.at(on_cpu({{"context", "1"}, {"match", "heuristic"}})) == 1);
  CHECK(both.at("qturn_prepare_failures_total").samples.at(on_cpu({{"context", "0"}})) == 1);
  CHECK(both.at("qturn_untuned_calls_total").samples.at(on_cpu({{"context", "0"}})) == 1);
  CHECK(both.at("qturn_prepare_failures_total").samples.at(on_cpu({{"context", "1"}})) == 0);
  const auto page = TemporaryFolder::read(QTURN_DOCS "/cluster.md");
  for (const auto& [name, family] : both)
    CHECK_MESSAGE(page.find("`" + name) != std::string::npos, name << " is not in docs/cluster.md");
  // Few samples, however much happened.
  std::size_t samples = 0;
  for (const auto& [name, family] : both) samples += family.samples.size();
  CHECK(samples < 60);
}

TEST_CASE("qturn_metrics_text and qturn_reload.arguments that make no sense") {
  const Options options;
  const auto context = make_context(options);
  qturn_context* const contexts[] = {context.get(), nullptr};
  char small[16];
  std::size_t needed = 0;
  CHECK(qturn_metrics_text(contexts, 0, 0, nullptr, 0, &needed) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_metrics_text(nullptr, 1, 0, nullptr, 0, &needed) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_metrics_text(contexts, 2, 0, nullptr, 0, &needed) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_metrics_text(contexts, 1, 2, nullptr, 0, &needed) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_metrics_text(contexts, 1, 0, nullptr, 16, &needed) == QTURN_INVALID_ARGUMENT);
  CHECK(needed == 0);
  CHECK(qturn_metrics_text(contexts, 1, 0, small, sizeof small, &needed) == QTURN_OK);
  CHECK(std::string(small) == "# HELP qturn_pr");
  CHECK(needed > sizeof small);

  CHECK(qturn_reload(nullptr, 0, nullptr) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_reload(context.get(), 2, nullptr) == QTURN_INVALID_ARGUMENT);
  qturn_reload_report report{};
  CHECK(qturn_reload(context.get(), 0, &report) == QTURN_INVALID_ARGUMENT);
  report.struct_size = sizeof report + 1;
  CHECK(qturn_reload(context.get(), 0, &report) == QTURN_INVALID_ARGUMENT);
  report.struct_size = offsetof(qturn_reload_report, hash_before);
  report.changed = 7;
  report.hash_before[0] = 99;
  CHECK(qturn_reload(context.get(), 0, &report) == QTURN_OK);
  CHECK(report.changed == 0);
  CHECK(report.hash_before[0] == 99);  // an older caller has no room for it
}

TEST_CASE("qturn_reload.reports what changed for the caller") {
  Options options;
  const auto problem = linear(24, 32, 64);
  const auto pins = options.folder.file("pins");
  setenv("QTURN_PINS", pins.c_str(), 1);
  const auto context = make_context(options);
  unsetenv("QTURN_PINS");
  const auto first = prepare(context, problem);
  std::size_t needed = 0;
  std::string text(4096, ' '), key(1024, ' ');
  REQUIRE(qturn_explain(context.get(), &problem, text.data(), text.size(), &needed) == QTURN_OK);
  REQUIRE(qturn_problem_key(&problem, key.data(), key.size(), &needed) == QTURN_OK);
  const auto at = text.find("\"plan\":\"") + 8;
  options.folder.write("pins", key.c_str() + (" -> " + text.substr(at, text.find('"', at) - at)));

  qturn_reload_report report{};
  report.struct_size = sizeof report;
  REQUIRE_MESSAGE(qturn_reload(context.get(), QTURN_RELOAD_KEEP, &report) == QTURN_OK,
                  qturn_last_error());
  CHECK(report.changed == 1);
  CHECK(report.answers_before == 0);
  CHECK(report.answers_after == 1);
  CHECK(report.problems_changed == 1);
  CHECK(report.prepared_changed == 0);  // the same plan as the default
  CHECK(report.generation_after == 0);
  unsigned char hash[32];
  REQUIRE(qturn_snapshot_hash(context.get(), hash) == QTURN_OK);
  CHECK(std::equal(hash, hash + 32, report.hash_after));
  std::filesystem::remove(pins);
  CHECK(qturn_reload(context.get(), QTURN_RELOAD_KEEP, &report) == QTURN_IO_ERROR);
  CHECK(std::string(qturn_last_error()).find("goes on to serve") != std::string::npos);
  int32_t match = -1;
  REQUIRE(qturn_plan_match(prepare(context, problem).get(), &match) == QTURN_OK);
  CHECK(match == QTURN_MATCH_EXACT);
}
