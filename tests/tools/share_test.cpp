// qturn db: databases as text, compared, published, rolled back, signed and recovered.
#include <doctest/doctest.h>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

// A database of one answer, as `qturn db export` writes it.
std::string database_text(const std::string& tile, const std::string& median_ns = "1000.0") {
  return R"({"quarterturn_database": 1,
"envs": [
 {"env":"ENV","target":"x86-64-v3","class":"cpu model=6-1-1 units=2","driver":"","toolkit":"","compiler":"gcc 12","library":"0.1.0","product":"test"}
],
"winners": [
 {"problem":"op=gemm m=1..16 n=4096 k=4096 a_type=mxfp4 b_type=mxfp4 d_type=bf16","env":"ENV","plan":"gemm=cpu_gemm/1{tile_m=)" +
         tile +
         R"(}","choice":"tuned","speedup":1.5,"speedup_low":1.4,"speedup_high":1.6,"median_ns":)" +
         median_ns +
         R"(,"regret":0.0,"noise":0.01,"evidence":0,"ties":"","certificate":"","decided":5}
]
}
)";
}

// The env's name is a hash of its fields: the refusal of a wrong one says the right one.
std::string with_env_name(const Home& home, std::string text) {
  const auto path = (home / "probe.json").string();
  std::ofstream(path) << text;
  const auto refused = home.run({"db", "import", path, "--db", (home / "probe.db").string()});
  CHECK(refused.code != 0);
  const std::string mark = "what it holds is '";
  const auto at = refused.err.find(mark);
  REQUIRE_MESSAGE(at != std::string::npos, refused.err);
  const auto name = refused.err.substr(at + mark.size(), 16);
  for (auto found = text.find("ENV"); found != std::string::npos; found = text.find("ENV"))
    text.replace(found, 3, name);
  return text;
}

}  // namespace

TEST_CASE("databases travel as text, are compared, published, rolled back and signed") {
  const Home home;
  const auto db = [&](const char* name) { return (home / name).string(); };
  const auto run = [&](std::vector<std::string> command, int code = 0) {
    const auto outcome = home.run(command);
    CHECK_MESSAGE(outcome.code == code, outcome.err);
    return outcome;
  };
  for (const auto& [name, tile] : {std::pair{"a", "4"}, {"b", "8"}}) {
    const auto text = with_env_name(home, database_text(tile));
    const auto path = db(name) + std::string(".json");
    std::ofstream(path) << text;
    run({"db", "import", path, "--db", db(name) + std::string(".db")});
    // Written back, it is the same text but for empty sections.
    const auto back = run({"db", "export", "-", "--db", db(name) + std::string(".db")}).out;
    CHECK(back.find(text.substr(text.find("\"winners\""), 200)) != std::string::npos);
    CHECK(back.find("\"trials\": []") != std::string::npos);
  }
  const auto differs = run({"db", "diff", db("b.db"), "--db", db("a.db"), "--json"});
  CHECK(differs.out.find("tile_m=4") != std::string::npos);
  CHECK(differs.out.find("tile_m=8") != std::string::npos);
  CHECK(differs.err.find("1 of 1 answers differ") != std::string::npos);
  CHECK(run({"db", "diff", db("a.db"), "--db", db("a.db"), "--json"}).out.empty());

  CHECK(run({"db", "decide", "--db", db("a.db"), "--json"}).lines().at(0).at("problems") == 0);
  CHECK(
      run({"db", "merge", db("b.db"), "--db", db("a.db"), "--json"}).lines().at(0).at("changed") ==
      0);

  const auto key = run({"db", "keygen", db("key"), "--json"}).out;
  const auto at = key.find("\"public_key\":\"");
  REQUIRE(at != std::string::npos);
  const auto public_key = key.substr(at + 14, 64);
  run({"db", "publish", db("site"), "--db", db("a.db"), "--key", db("key")});
  run({"db", "publish", db("site"), "--db", db("b.db")});
  CHECK(run({"db", "diff", db("site"), "--db", db("b.db"), "--json"}).out.empty());
  CHECK(run({"db", "rollback", db("site")}, 2).says("--key"));  // signed, and so is the way back
  run({"db", "rollback", db("site"), "--key", db("key")});
  CHECK(run({"db", "diff", db("site"), "--db", db("a.db"), "--json"}).out.empty());
  const auto listed = run({"db", "generations", db("site"), "--json"}).out;
  CHECK(listed.find(public_key) != std::string::npos);
  run({"db", "rollback", db("site"), "--key", db("key")}, 1);
  run({"db", "rollback", db("site"), "7", "--key", db("key")}, 1);
  run({"db", "generations", db("nowhere")}, 1);
  run({"db", "recover", db("a.db"), db("c.db")});
  CHECK(run({"db", "diff", db("c.db"), "--db", db("a.db"), "--json"}).out.empty());
  run({"db", "recover", db("a.db"), db("c.db")}, 2);
}

TEST_CASE("a snapshot never replaces a database, and is never changed by a look or a command") {
  const Home home;
  const auto path = [&](const char* name) { return (home / name).string(); };
  std::ofstream(path("a.json")) << with_env_name(home, database_text("4"));
  const auto made = home.run({"db", "import", path("a.json"), "--db", path("a.db")});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  CHECK(made.says("a fresh database"));
  REQUIRE(home.run({"db", "import", path("a.json"), "--db", path("b.db")}).code == 0);
  std::filesystem::create_symlink(path("a.db"), path("link.db"));
  const auto before = read_file(path("a.db")), other = read_file(path("b.db"));
  for (const char* to : {"a.db", "link.db", "b.db"}) {
    const auto refused = home.run({"db", "export", path(to), "--db", path("a.db")});
    CHECK_MESSAGE(refused.code == 2, refused.err);
    CHECK(refused.says(path(to)));
  }
  CHECK(read_file(path("a.db")) == before);
  CHECK(read_file(path("b.db")) == other);
  std::filesystem::copy_file(path("a.db"), path("a2.json"));
  CHECK(home.run({"db", "export", path("a2.json"), "--db", path("a2.json")}).code == 2);

  REQUIRE(home.run({"db", "export", path("s.db"), "--db", path("a.db")}).code == 0);
  REQUIRE(home.run({"db", "export", path("s.db"), "--db", path("a.db")}).code == 0);
  const auto snapshot = read_file(path("s.db"));
  const auto info = home.run({"db", "info", "--db", path("s.db"), "--json"});
  CHECK_MESSAGE(info.code == 0, info.err);
  CHECK(info.out.find("\"snapshot\"") != std::string::npos);
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"db", "prune", "--older-than", "1"}, {"db", "decide"}, {"db", "merge", path("b.db")}}) {
    auto whole = command;
    whole.insert(whole.end(), {"--db", path("s.db")});
    const auto refused = home.run(whole);
    CHECK_MESSAGE(refused.code == 3, refused.err);
    CHECK_MESSAGE(refused.says("is a snapshot"), refused.err);
  }
  CHECK(read_file(path("s.db")) == snapshot);
  CHECK(home.run({"db", "info", "--db", path("a.db")}).code == 0);
  CHECK(read_file(path("a.db")) == before);
}

TEST_CASE("a database's name that was typed wrongly makes no fresh one") {
  const Home home;
  const auto none = (home / "none.db").string();
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"db", "info"}, {"db", "decide"}, {"db", "prune", "--older-than", "1"}}) {
    auto whole = command;
    whole.insert(whole.end(), {"--db", none});
    const auto refused = home.run(whole);
    CHECK_MESSAGE(refused.code == 3, refused.err);
    CHECK(refused.says("there is no file " + none));
  }
  CHECK(!std::filesystem::exists(none));
}

TEST_CASE("db prune --dry-run says of compiled code what goes then") {
  Home home;
  const auto code = home / "code";
  home.set("QTURN_CODE_CACHE", code.string());
  REQUIRE(home.run({"compile", "--shape", "4x96x128", "--threads", "2"}).code == 0);
  std::size_t aged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(code))
    if (entry.is_regular_file() && entry.path().stem().string().size() == 64) {
      std::filesystem::last_write_time(
          entry, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
      ++aged;
    }
  REQUIRE(aged > 0);
  const std::vector<std::string> prune{"db", "prune", "--code-bytes", "1", "--json"};
  auto dry = prune;
  dry.emplace_back("--dry-run");
  const auto said = home.run(dry);
  REQUIRE_MESSAGE(said.code == 0, said.err);
  CHECK(said.lines().at(1).at("dropped") == aged);
  CHECK(home.run(dry).out == said.out);
  CHECK(home.run(prune).out == said.out);
}

TEST_CASE("db diff reads what another process has committed and not yet written back") {
  const Home home;
  const auto a = (home / "a.db").string(), b = (home / "b.db").string();
  const auto text = (home / "a.json").string();
  std::ofstream(text) << with_env_name(home, database_text("4"));
  REQUIRE(home.run({"db", "import", text, "--db", a}).code == 0);
  REQUIRE(home.run({"explain", "--shape", "4x96x128", "--db", b}).code == 0);
  // While somebody has the file open, who closes it leaves the log.
  sqlite3* handle = nullptr;
  REQUIRE(sqlite3_open_v2(b.c_str(), &handle, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK);
  REQUIRE(sqlite3_exec(handle, "SELECT count(*) FROM trial", nullptr, nullptr, nullptr) ==
          SQLITE_OK);
  REQUIRE(home.run({"db", "import", text, "--db", b}).code == 0);
  CHECK(std::filesystem::file_size(b + "-wal") > 0);
  const auto same = home.run({"db", "diff", b, "--db", a, "--json"});
  sqlite3_close(handle);
  CHECK_MESSAGE(same.code == 0, same.err);
  CHECK_MESSAGE(same.out.empty(), same.out);
  CHECK(same.says("0 of 1 answers differ"));
}

TEST_CASE("report writes one page that replaces the older one, and says what it cannot read") {
  const Home home;
  const auto db = (home / "a.db").string(), page = (home / "report.html").string();
  const auto text = (home / "a.json").string();
  std::ofstream(text) << with_env_name(home, database_text("4"));
  CHECK(home.run({"db", "import", text, "--db", db}).code == 0);
  std::ofstream(page) << "older";
  const auto before = read_file(db);
  const auto outcome = home.run({"report", "--db", db, "-o", page});
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.out.empty());
  CHECK(read_file(page).find("1.500 (1.400 to 1.600)") != std::string::npos);
  CHECK(read_file(db) == before);
  CHECK(home.run({"report", "--db", db, "-o", "-"}).out.starts_with("<!DOCTYPE html>"));
  CHECK(home.run({"report", "--db", (home / "none.db").string(), "-o", page}).code == 3);
  CHECK(home.run({"report", "--db", db, "-o", (home / "no/such/folder.html").string()}).code == 3);
  CHECK(home.run({"report", "--db", db, "-o", page, "--x", "gemm.tile_m"}).code == 2);
}

TEST_CASE(
    "db bisect finds the generation that changed a plan, and the one that is stored as slower") {
  const Home home;
  const auto site = (home / "site").string();
  const std::vector<std::pair<const char*, const char*>> answers{
      {"4", "1000.0"}, {"8", "900.0"}, {"8", "905.0"}, {"16", "1300.0"}};
  const std::string problem = "op=gemm m=1..16 n=4096 k=4096 a_type=mxfp4 b_type=mxfp4 d_type=bf16";
  int number = 0;
  for (const auto& [tile, median] : answers) {
    const auto name = (home / std::to_string(number++)).string();
    std::ofstream(name + ".json") << with_env_name(home, database_text(tile, median));
    REQUIRE(home.run({"db", "import", name + ".json", "--db", name}).code == 0);
    REQUIRE(home.run({"db", "publish", site, "--db", name}).code == 0);
  }
  const auto found = home.run({"db", "bisect", site, "--problem", problem, "--json"});
  REQUIRE_MESSAGE(found.code == 0, found.err);
  const auto lines = found.lines();
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].at("change") == "first");
  CHECK(lines[1].at("change") == "plan");
  CHECK(lines[2].at("change") == "");
  CHECK(lines[3].at("plan") == "gemm=cpu_gemm/1{tile_m=16}");
  CHECK(lines[4].at("plan_changed_since") == 4);
  CHECK(lines[4].at("slower_since") == 4);
  CHECK(lines[4].at("evidence") == "stored");
  CHECK(home.run({"db", "bisect", site, "--shape", "1x64x64"}).code == 2);
  CHECK(home.run({"db", "bisect", site, "--problem", problem, "--good", "1"}).code == 2);
  CHECK(home.run({"db", "bisect", (home / "none").string(), "--problem", problem}).code == 1);
  // The device at hand is of another class than these answers.
  const auto other = home.run({"db", "bisect", site, "--problem", problem, "--measure"});
  CHECK(other.code == 2);
  CHECK(other.says("there are some for"));
  CHECK(other.says("units=2"));
}

TEST_CASE("db bisect --measure times the plans of generations in turns") {
  const Home home;
  const auto site = (home / "site").string(), text = (home / "all.json").string();
  REQUIRE(home.run(small_tune()).code == 0);
  REQUIRE(home.run({"db", "publish", site}).code == 0);
  REQUIRE(home.run({"db", "export", text}).code == 0);
  // The next generation answers by another plan that was timed.
  auto json = nlohmann::ordered_json::parse(read_file(text));
  auto& winner = json.at("winners").at(0);
  std::string other;
  for (const auto& trial : json.at("trials"))
    if (trial.at("status") == "ok" && trial.at("plan") != winner.at("plan"))
      other = trial.at("plan").get<std::string>();
  REQUIRE_FALSE(other.empty());
  const auto key = winner.at("problem").get<std::string>();
  auto written = read_file(text);
  const auto at = written.find("\"winners\""), end = written.find("\"trials\"");
  auto section = written.substr(at, end - at);
  const auto plan = winner.at("plan").get<std::string>();
  section.replace(section.find(plan), plan.size(), other);
  written.replace(at, end - at, section);
  std::ofstream(text) << written;
  const auto next = (home / "next.db").string();
  REQUIRE(home.run({"db", "import", text, "--db", next, "--theirs"}).code == 0);
  REQUIRE(home.run({"db", "publish", site, "--db", next}).code == 0);

  const auto found = home.run({"db", "bisect", site, "--problem", key, "--measure", "--noise", "9",
                               "--threads", "2", "--json"});
  REQUIRE_MESSAGE(found.code == 0, found.err);
  const auto lines = found.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("plan") == plan);
  CHECK(lines[1].at("plan") == other);
  CHECK(lines[1].at("change") == "plan");
  CHECK(lines[1].at("low").get<double>() > 0);
  CHECK(lines[1].at("times_as_long").get<double>() >= lines[1].at("low").get<double>());
  CHECK(lines[1].at("times_as_long").get<double>() <= lines[1].at("high").get<double>());
  CHECK(lines[2].at("slower_since") == "never");  // ten times as slow would count
  CHECK(lines[2].at("evidence") == "measured");
}
