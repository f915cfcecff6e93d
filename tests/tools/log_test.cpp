// What a program logs at debug level can be pasted into a shell: it runs the same call again.
#include "tests/runtime/api.hpp"
#include "tests/tools/qturn.hpp"

namespace api = quarterturn::api;
using namespace qturn_test;

namespace {

/// The words of a shell's line, of which some are in single quotes.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> out{""};
  bool quoted = false;
  for (const char c : line) {
    if (c == '\'')
      quoted = !quoted;
    else if (c == ' ' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

}  // namespace

TEST_CASE("the debug log's line of a call runs that call again") {
  const Home home;
  api::Options options;
  options.c.log_level = QTURN_LOG_DEBUG;
  const auto context = api::make_context(options);
  const auto plan = api::prepare(context, api::linear(24, 32, 64));
  const auto a = api::values(24 * 64, 7), b = api::values(32 * 64, 8);
  api::Run run(plan, 5, 32, a);
  run.args.b = api::f32(b);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
  std::string line;
  for (const auto& [level, text] : options.logged.lines)
    if (text.rfind("qturn bench ", 0) == 0) line = text;
  REQUIRE(!line.empty());

  auto words = words_of(line);
  words.erase(words.begin());
  for (const char* more : {"--rounds", "2", "--batch-ms", "1", "--threads", "2", "--json"})
    words.emplace_back(more);
  const auto outcome = home.run(words);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  REQUIRE(!outcome.lines().empty());
  CHECK(outcome.lines()[0].at("sizes") == "m=5 n=32 k=64");
  CHECK(outcome.lines()[0].at("us").get<double>() > 0);
}
