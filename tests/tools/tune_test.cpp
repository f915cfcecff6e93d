// qturn tune, end to end on this machine's CPU: answers, caching, interruption, limits, planted
// faults.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

// A compiler that edits sources first.
std::string compiler_with(const Home& home, const std::string& edit) {
  return script(home, "planting-cxx",
                "[ -f kernel.cpp ] && sed -i '" + edit + "' kernel.cpp\nexec g++ \"$@\"\n");
}

}  // namespace

TEST_CASE("tune finds an answer, stores it, and does nothing the second time") {
  const Home home;
  const auto first = home.run(small_tune());
  REQUIRE_MESSAGE(first.code == 0, first.err);
  const auto lines = first.lines();
  REQUIRE(lines.size() == 1);
  const auto& answer = lines[0];
  CHECK((answer.at("answer") == "tuned" || answer.at("answer") == "default"));
  CHECK(answer.at("tried").get<int>() >= 2);
  CHECK(answer.at("us").get<double>() > 0);
  CHECK(answer.at("speedup").get<double>() >= 1);
  CHECK(!answer.at("plan").get<std::string>().empty());
  const auto trials = home.info("trials");
  CHECK(trials >= 4);
  CHECK(home.info("winners") == 1);

  const auto second = home.run(small_tune());
  REQUIRE(second.code == 0);
  CHECK(second.lines().at(0).at("answer") == "cached");
  CHECK(second.lines().at(0).at("plan") == answer.at("plan"));
  CHECK(second.lines().at(0).at("tried") == 0);
  CHECK(second.lines().at(0).at("compiled") == 0);
  CHECK(second.err.find("0 plans tried (0 failed), 0 kernels compiled") != std::string::npos);
  CHECK(home.info("trials") == trials);

  // What was stored is what is served, exactly.
  const auto explained = home.run({"explain", "--shape", "4x96x128", "--threads", "2", "--json"});
  CHECK_MESSAGE(explained.says("exact"), explained.out);

  const auto checked = home.run({"check", "--threads", "2", "--json"});
  CHECK_MESSAGE(checked.code == 0, checked.err);
  REQUIRE(checked.lines().size() == 1);
  CHECK(checked.lines()[0].at("state") == "right");
  CHECK(checked.lines()[0].at("outputs").get<int>() > 300);
}

TEST_CASE("dry run tries and stores nothing") {
  const Home home;
  const auto outcome = home.run(small_tune({"--dry-run"}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const auto line = outcome.lines().at(0);
  CHECK(line.at("decided") == "no");
  CHECK(line.at("space").get<int>() > 3);
  CHECK(line.at("candidates") == 3);
  CHECK(outcome.err.find("nothing was tried") != std::string::npos);
  CHECK(home.info("trials") == 0);
}

TEST_CASE("an interrupted run keeps what it did, and the next one goes on") {
  const Home home;
  std::vector<std::string> arguments{"tune", "--shape",   "4x96x128", "--candidates",
                                     "40",   "--threads", "2",        "--json"};
  auto running = home.start(arguments);
  // As soon as something durable is there.
  const bool begun = running.read_until(200, [&](const Outcome&) {
    return std::filesystem::exists(home.database()) && home.info("trials") >= 3;
  });
  REQUIRE(begun);
  running.send(SIGINT);
  const auto outcome = running.finish(60);
  CHECK(outcome.code == 130);
  CHECK(outcome.err.find("everything so far is kept") != std::string::npos);
  const auto kept = home.info("trials");
  CHECK(kept >= 3);
  CHECK(home.info("winners") == 0);
  CHECK(home.run({"db", "check"}).code == 0);

  const auto next = home.run(small_tune());
  CHECK_MESSAGE(next.code == 0, next.err);
  CHECK(home.info("trials") > kept);
  CHECK(home.info("winners") == 1);
}

TEST_CASE("kill -9 loses nothing that was stored, and no kernel is compiled twice") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  const auto log = (home / "compiled").string();
  home.set("QTURN_CXX",
           script(home, "counting-cxx",
                  "[ -f kernel.cpp ] && sha256sum < kernel.cpp >> " + log + "\nexec g++ \"$@\"\n"));
  auto running = home.start(small_tune({}, "40"));
  REQUIRE(running.read_until(200, [&](const Outcome&) {
    return std::filesystem::exists(home.database()) && home.info("trials") >= 2;
  }));
  running.send(SIGKILL);
  CHECK(running.finish(30).signal == SIGKILL);
  const auto kept = home.info("trials");
  CHECK(kept >= 2);
  CHECK(home.run({"db", "check"}).code == 0);

  const auto before = lines_of(log);
  const auto next = home.run(small_tune());
  CHECK_MESSAGE(next.code == 0, next.err);
  CHECK(home.info("winners") == 1);
  CHECK(home.info("trials") > kept);
  // But for the one or two that were being compiled when the process died.
  std::map<std::string, int> times;
  for (const auto& kernel : lines_of(log)) ++times[kernel];
  const auto twice =
      std::count_if(times.begin(), times.end(), [](const auto& entry) { return entry.second > 1; });
  CHECK(twice <= 2);
  CHECK(before.size() > static_cast<std::size_t>(twice));
}

TEST_CASE("a time limit that runs out leaves the default as the answer, and the next run goes on") {
  const Home home;
  std::vector<std::string> arguments{"tune",      "--model", "Qwen2.5-0.5B", "--tokens",     "1",
                                     "--threads", "2",       "--json",       "--candidates", "2"};
  auto limited = arguments;
  limited.insert(limited.end(), {"--time-limit", "0.001"});
  const auto outcome = home.run(limited);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const auto lines = outcome.lines();
  REQUIRE(lines.size() == 4);
  int unfinished = 0;
  for (const auto& line : lines) {
    unfinished += line.at("answer") == "unfinished";
    CHECK(!line.at("plan").get<std::string>().empty());
  }
  CHECK(unfinished >= 3);
  CHECK(home.info("winners") >= 3);
  // An unfinished answer is not taken for a finished one.
  const auto dry = home.run({"tune", "--model", "Qwen2.5-0.5B", "--tokens", "1", "--threads", "2",
                             "--json", "--dry-run"});
  for (const auto& line : dry.lines()) CHECK(line.at("decided") == "no");
}

TEST_CASE(
    "candidates that do not compile, crash or compute wrongly are quarantined, and a right one "
    "wins") {
  Home home;
  const std::vector<std::string> shape{"--shape", "4x288x64", "--threads", "2", "--json"};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), shape.begin(), shape.end());
    return home.run(arguments);
  };
  // Faults are planted in what differs from the default plan, which stays as it is.
  const auto standard = run({"explain"}).lines().at(0).at("plan").get<std::string>();
  const auto parameter = [&](const std::string& name) {
    const auto at = standard.find(name + "=", standard.find("gemm="));
    REQUIRE_MESSAGE(at != std::string::npos, standard);
    return standard.substr(at + name.size() + 1,
                           standard.find_first_of(",}", at) - at - name.size() - 1);
  };
  const auto prefetch = parameter("prefetch");
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  home.set(
      "QTURN_CXX",
      compiler_with(home,
                    "s|^  qt::cpu::gemm(Config{}, args, part);|  static_assert(Config::tile_m == " +
                        parameter("tile_m") + " or Config::tile_n != " + parameter("tile_n") +
                        ", \"planted\"); if (Config::prefetch < " + prefetch +
                        ") __builtin_trap(); qt::cpu::gemm(Config{}, args, part); if "
                        "(Config::prefetch > " +
                        prefetch +
                        ") { if (part == 0) static_cast<unsigned char*>(args->d.data)[1] ^= 16; "
                        "}|"));
  const auto outcome = run({"tune", "--candidates", "8"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const auto line = outcome.lines().at(0);
  CHECK(line.at("failed").get<int>() >= 3);
  const auto held = rows(home.database(), "SELECT detail FROM quarantine");
  // Which of the three kinds of faults a search meets goes by its timings; each is held as what it
  // is.
  REQUIRE(!held.empty());
  for (const auto& detail : held) {
    bool known = false;
    for (const char* kind : {"planted", "crashed: signal", "the reference gives"})
      known = known || detail.find(kind) != std::string::npos;
    CHECK_MESSAGE(known, detail);
  }
  CHECK(static_cast<std::int64_t>(held.size()) == home.info("quarantined"));
  // Whatever was held to be faster, it is one of those that are right.
  const auto plan = line.at("plan").get<std::string>();
  if (plan.find("cpu_gemm/") != std::string::npos)
    CHECK_MESSAGE(plan.find("prefetch=" + prefetch) != std::string::npos, plan);
  CHECK(run({"check"}).code == 0);
}

TEST_CASE("a stored answer that turns out wrong is taken back") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  REQUIRE(home.run(small_tune({}, "1")).code == 0);
  CHECK(home.info("winners") == 1);
  // The same plan by a compiler that breaks it.
  home.set("QTURN_CODE_CACHE", (home / "other-code").string());
  home.set("QTURN_CXX",
           compiler_with(home,
                         "s|^extern \"C\"|static int broken; extern \"C\"|;"
                         "s|(Config{}, args, part);|(Config{}, args, part); if (part == 0 \\&\\& "
                         "args->n > 0) static_cast<unsigned char*>(args->d.data)[1] ^= 16;|"));
  const auto outcome = home.run({"check", "--shape", "4x96x128", "--threads", "2", "--json"});
  CHECK(outcome.code == 1);
  CHECK(outcome.lines().at(0).at("state") == "wrong");
  CHECK(outcome.lines().at(0).at("reason").get<std::string>().find("reference") !=
        std::string::npos);
  CHECK(home.info("winners") == 0);
  CHECK(home.info("quarantined") == 1);
}

TEST_CASE("without a compiler tune says so and stores nothing") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  home.set("QTURN_CXX", "/nowhere/g++");
  const auto outcome = home.run(small_tune());
  CHECK(outcome.code == 3);
  CHECK_MESSAGE(outcome.says("/nowhere/g++"), outcome.err);
  CHECK(home.info("winners") == 0);
}

TEST_CASE("on a terminal a bar shows what goes on and how long it will take") {
  Home home;
  home.use_terminal(90);
  const auto outcome = home.run(small_tune({}, "8"));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.lines().size() == 1);
  CHECK_MESSAGE(outcome.err.find("\r[....") != std::string::npos, outcome.err);
  CHECK_MESSAGE(outcome.err.find(" left") != std::string::npos, outcome.err);
  std::istringstream drawn(outcome.err);
  for (std::string line; std::getline(drawn, line, '\r');)
    if (line.rfind("[", 0) == 0) CHECK(line.size() < 90);
}

TEST_CASE("two tuners of one problem: the second waits and finds the answer") {
  const Home home;
  auto one = home.start(small_tune()), two = home.start(small_tune());
  const auto first = one.finish(200), second = two.finish(200);
  REQUIRE_MESSAGE(first.code == 0, first.err);
  REQUIRE_MESSAGE(second.code == 0, second.err);
  const bool first_tuned = first.lines().at(0).at("answer") != "cached";
  const bool second_tuned = second.lines().at(0).at("answer") != "cached";
  CHECK(first_tuned != second_tuned);
  CHECK(first.lines().at(0).at("plan") == second.lines().at(0).at("plan"));
  CHECK(home.info("winners") == 1);
}

TEST_CASE("what was tried is recorded, and strategies are replayed on it without a device") {
  const Home home;
  REQUIRE(home.run(small_tune({"--exhaustive", "--problem-time-limit", "20"})).code == 0);
  const auto folder = (home / "recorded").string();
  const auto made =
      home.run({"replay", "--db", home.database(), "--record", folder, "--least", "2", "--json"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  REQUIRE(made.lines().size() == 1);
  const auto file = made.lines()[0].at("file").get<std::string>();
  const auto replayed =
      home.run({"replay", file, "--strategy", "exhaustive,random", "--seeds", "2", "--json"});
  REQUIRE_MESSAGE(replayed.code == 0, replayed.err);
  REQUIRE(replayed.lines().size() == 2);
  CHECK(replayed.lines()[0].at("share") == 1);
  CHECK(replayed.lines()[0].at("regret_worst") == 0);
  CHECK(home.run({"replay", file, "--strategy", "guesswork"}).code == 2);
  CHECK(home.run({"replay"}).code == 2);
}

TEST_CASE("tune without the program of trials says so, and holds nothing against a plan") {
  const Home home;
  std::filesystem::copy_file(QTURN_PROGRAM, home / "qturn");
  const auto outcome =
      home.start({"tune", "--device", "cpu", "--shape", "32x64x64"}, (home / "qturn").string())
          .finish(60);
  CHECK(outcome.code != 0);
  CHECK_MESSAGE(outcome.says("quarterturn-trial"), outcome.err);
  CHECK(home.info("trials") == 0);
}
