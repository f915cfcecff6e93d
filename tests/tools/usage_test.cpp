// Command lines as people mistype them: the right exit code, and a message that says what to do.
#include <doctest/doctest.h>

#include <set>
#include <sstream>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

struct Wrong {
  std::vector<std::string> arguments;
  int code;
  std::vector<std::string> says;
};

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += word + " ";
  return out;
}

void check_all(const Home& home, const std::vector<Wrong>& all) {
  for (const auto& wrong : all) {
    const auto outcome = home.run(wrong.arguments);
    CHECK_MESSAGE(outcome.code == wrong.code,
                  joined(wrong.arguments) << "gave " << outcome.code << ": " << outcome.err);
    CHECK_MESSAGE(outcome.out.empty(), joined(wrong.arguments) << "printed " << outcome.out);
    for (const auto& text : wrong.says)
      CHECK_MESSAGE(outcome.err.find(text) != std::string::npos, joined(wrong.arguments)
                                                                     << "said " << outcome.err);
  }
}

/// What the program's help lists below `command`, and below that, each with its words joined.
void add_subcommands(const Home& home, const std::vector<std::string>& command,
                     std::set<std::string>& out) {
  auto words = command;
  words.push_back("--help");
  const auto help = home.run(words);
  CHECK_MESSAGE(help.code == 0, joined(words));
  std::istringstream lines(help.out);
  std::string line;
  while (std::getline(lines, line) && line != "Subcommands:") {
  }
  while (std::getline(lines, line) && line.starts_with("  ")) {
    if (line[2] == ' ') continue;  // a description's second line
    words.back() = line.substr(2, line.find(' ', 2) - 2);
    const auto name = joined(words);
    out.insert(name.substr(0, name.size() - 1));
    add_subcommands(home, words, out);
  }
}

std::set<std::string> pages() {
  std::set<std::string> out;
  std::istringstream names(QTURN_PAGES);
  for (std::string name; std::getline(names, name, ',');) out.insert(name);
  return out;
}

}  // namespace

TEST_CASE("every command and subcommand has help and a manual page") {
  std::set<std::string> commands;
  add_subcommands(Home(), {}, commands);
  CHECK(commands.size() > 30);
  CHECK(commands == pages());
}

TEST_CASE("help gives examples and exit codes") {
  const Home home;
  const auto all = home.run({"--help"});
  CHECK(all.code == 0);
  CHECK(all.says("Exit codes"));
  for (const auto* command : {"tune", "check"}) {
    CHECK(home.run({command, "--help"}).says("Examples:"));
    CHECK(home.run({command, "--help"}).says("Exit codes:"));
  }
  CHECK(home.run({"--version"}).says("qturn "));
  CHECK(home.run({}).code == 2);
  CHECK(home.run({"tuna"}).code == 2);
}

TEST_CASE("wrong shapes, sizes and names are refused before anything is done") {
  const Home home;
  check_all(
      home,
      {
          {{"tune"}, 2, {"--model", "--shape"}},
          {{"tune", "--model", "Llama-3.1-8B", "--shape", "1x32x32"}, 2, {"--shape"}},
          {{"tune", "--model", "llama-3.1-9b"},
           2,
           {"no model is called 'llama-3.1-9b'", "did you mean Llama-3.1-8B", "gpt-oss-20b"}},
          {{"tune", "--shape", "banana"}, 2, {"shape 'banana'", "MxNxK"}},
          {{"tune", "--shape", "1x64"}, 2, {"has 2 sizes"}},
          {{"tune", "--shape", "1x0x64"}, 2, {"'0'"}},
          {{"tune", "--shape", "1x-8x64"}, 2, {"'-8'"}},
          {{"tune", "--shape", "1x64x48"}, 2, {"48 is not a multiple of 32"}},
          {{"tune", "--shape", "1x64x96", "--rotation", "64"}, 2, {"96 is not a multiple of 64"}},
          {{"tune", "--shape", "1x64x64", "--rotation", "48"},
           2,
           {"rotation = 48", "16, 32, 64, 128 or 256"}},
          {{"tune", "--shape", "1x64x64", "--signs", "random"}, 2, {"signs", "random", "per_call"}},
          {{"tune", "--shape", "1x64x64", "--scale-rule", "max"}, 2, {"scale-rule", "rceil"}},
          {{"tune", "--shape", "1x64x64", "--rounding", "up"}, 2, {"rounding", "sr16"}},
          {{"tune", "--shape", "1x64x64", "--scale-rule", "floor", "--rounding", "sr16"},
           2,
           {"biased"}},
          {{"tune", "--model", "Qwen3-8B", "--tokens", "1,x"}, 2, {"token count 'x'", "1,16,512"}},
          {{"tune", "--model", "Qwen3-8B", "--tokens", "16..1"}, 2, {"16..1"}},
          {{"tune", "--model", "Qwen3-8B", "--roles", "forward"}, 2, {"role 'forward'", "fprop"}},
          {{"tune", "--model", "Qwen3-8B", "--tp", "0"}, 2, {"tp"}},
          {{"tune", "--shape", "1x64x64", "--time-limit", "-5"}, 2, {"time-limit"}},
          {{"tune", "--shape", "1x64x64", "--candidates", "0"}, 2, {"candidates"}},
          {{"tune", "--shape", "1x64x64", "--device", "tpu"}, 2, {"tpu"}},
          {{"check", "--shape", "1x64x48"}, 2, {"48 is not a multiple of 32"}},
      });
  CHECK(!std::filesystem::exists(home / ".cache/quarterturn/tuning.db-journal"));
}

TEST_CASE("config files: missing, a folder, not JSON, incomplete, unknown kind") {
  const Home home;
  const auto path = (home / "config.json").string();
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  check_all(home, {{{"shapes", "--model", path}, 3, {"cannot read", path}}});
  write("{\"model_type\": ");
  check_all(home, {{{"shapes", "--model", path}, 2, {path, "not JSON"}}});
  write(R"({"model_type": "llama", "num_attention_heads": 32})");
  check_all(home, {{{"shapes", "--model", path}, 2, {path, "'hidden_size' is missing"}}});
  write(R"({"model_type": "mamba", "hidden_size": 64})");
  check_all(home, {{{"shapes", "--model", path}, 2, {"mamba", "--shape"}}});
  write(
      R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 1000})");
  const auto good = home.run({"shapes", "--model", path, "--json"});
  CHECK(good.code == 0);
  CHECK(good.lines().size() >= 4);
}

TEST_CASE("shapes: one JSON object a line, and layers that do not fit are named") {
  const Home home;
  const auto all = home.run({"shapes", "--model", "Llama-3.1-8B", "--tokens", "1,2..512", "--roles",
                             "fprop,dgrad,wgrad", "--json"});
  REQUIRE(all.code == 0);
  const auto lines = all.lines();
  CHECK(lines.size() == 4 * 2 * 3);
  bool found = false;
  for (const auto& line : lines)
    found = found || (line.at("role") == "wgrad" && line.at("k") == "2..512" &&
                      line.at("layers") == "down" && line.at("m") == 4096 && line.at("n") == 14336);
  CHECK(found);
  const auto refused = home.run({"shapes", "--model", "gpt-oss-20b", "--tp", "4", "--json"});
  CHECK(refused.err.find("expert_down") != std::string::npos);
  CHECK(refused.err.find("720") != std::string::npos);
  for (const auto& line : refused.lines()) CHECK(line.at("layers") != "expert_down");
}

TEST_CASE("with --json every command prints one object a line and nothing else on stdout") {
  const Home home;
  const auto path = (home / "snapshot.db").string();
  const std::vector<std::string> shape{"--shape", "4x96x128", "--threads", "2"};
  std::vector<std::vector<std::string>> commands{
      {"devices"}, {"config"}, {"doctor"}, {"shapes", "--shape", "4x96x128"}};
  for (const char* name : {"explain", "compile", "check"}) {
    commands.push_back({name});
    commands.back().insert(commands.back().end(), shape.begin(), shape.end());
  }
  commands.push_back({"tune", "--shape", "4x96x128", "--dry-run"});
  commands.push_back({"bench", "--shape", "4x96x128", "--rounds", "1", "--batch-ms", "1"});
  commands.push_back({"db", "info"});
  commands.push_back({"db", "export", path});
  commands.push_back({"db", "merge", path});
  for (auto& command : commands) {
    command.emplace_back("--json");
    const auto outcome = home.run(command);
    CHECK_MESSAGE(outcome.code == 0, joined(command) << "gave " << outcome.code << outcome.err);
    CHECK_MESSAGE(!outcome.lines().empty(), joined(command));
  }
  // For people the same things are tables.
  CHECK(home.run({"devices"}).out.rfind("device ", 0) == 0);
  CHECK(home.run({"explain", "--shape", "4x96x128"}).out.rfind("problem ", 0) == 0);
}

TEST_CASE("a problem without rows succeeds and does nothing") {
  const Home home;
  const auto tuned = home.run({"tune", "--shape", "0x96x128", "--json"});
  CHECK_MESSAGE(tuned.code == 0, tuned.err);
  CHECK(tuned.lines().at(0).at("answer") == "default");
  CHECK(tuned.lines().at(0).at("tried") == 0);
  const auto checked = home.run({"check", "--shape", "0x96x128", "--json"});
  CHECK_MESSAGE(checked.code == 0, checked.err);
  CHECK(home.info("trials") == 0);
}

TEST_CASE("sources are printed, and what cannot be printed is refused") {
  const Home home;
  const auto source = home.run({"emit", "--shape", "4x96x128", "--target", "x86-64-v3"});
  CHECK(source.code == 0);
  CHECK(source.says("struct Config"));
  CHECK(source.says("#include \"cpu/gemm.h\""));
  const auto flat = home.run({"emit", "--shape", "4x96x128", "--target", "x86-64-v3", "--flat"});
  CHECK(!flat.says("#include \"cpu/gemm.h\""));
  check_all(home, {{{"emit", "--shape", "4x96x128", "--target", "pdp11"}, 2, {"pdp11", "sm_NN"}},
                   {{"emit", "--shape", "4x96x128", "--plan", "nonsense"}, 2, {"nonsense"}},
                   {{"tune", "--problem", "nonsense"}, 2, {"nonsense"}},
                   {{"check", "--problem", "nonsense"}, 2, {"nonsense"}},
                   {{"db", "check", "--db", "/nowhere/tuning.db"}, 3, {"/nowhere/tuning.db"}},
                   {{"db", "info", "--db", "/nowhere/tuning.db"}, 3, {"/nowhere/tuning.db"}},
                   {{"db", "merge"}, 2, {"FROM"}},
                   {{"db"}, 2, {}}});
}
