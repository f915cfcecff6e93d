// qturn db: databases as text, compared, published, rolled back, signed and recovered.
#include <doctest/doctest.h>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

// A database of one answer, as `qturn db export` writes it; `plan` is served for the problem.
std::string database_text(const std::string& tile) {
  return R"({"quarterturn_database": 1,
"envs": [
 {"env":"ENV","target":"x86-64-v3","class":"cpu model=6-1-1 units=2","driver":"","toolkit":"","compiler":"gcc 12","library":"0.1.0","product":"test"}
],
"winners": [
 {"problem":"op=gemm m=1..16 n=4096 k=4096 a_type=mxfp4 b_type=mxfp4 d_type=bf16","env":"ENV","plan":"gemm=cpu_gemm/1{tile_m=)" +
         tile +
         R"(}","choice":"tuned","speedup":1.5,"speedup_low":1.4,"speedup_high":1.6,"median_ns":1000.0,"regret":0.0,"noise":0.01,"evidence":0,"ties":"","certificate":"","decided":5}
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
  run({"db", "rollback", db("site")});
  CHECK(run({"db", "diff", db("site"), "--db", db("a.db"), "--json"}).out.empty());
  const auto listed = run({"db", "generations", db("site"), "--json"}).out;
  CHECK(listed.find(public_key) != std::string::npos);
  run({"db", "rollback", db("site")}, 1);
  run({"db", "rollback", db("site"), "7"}, 1);
  run({"db", "generations", db("nowhere")}, 1);
  run({"db", "recover", db("a.db"), db("c.db")});
  CHECK(run({"db", "diff", db("c.db"), "--db", db("a.db"), "--json"}).out.empty());
  run({"db", "recover", db("a.db"), db("c.db")}, 2);
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
