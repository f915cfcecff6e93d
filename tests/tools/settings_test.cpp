// What settings do to a run: dumps, disabled families, logs of compilers that fail, no compiler,
// other rights than the user's, and many processes at once.
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <set>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

const std::vector<std::string> kCompile{"compile",   "--shape", "4x96x128",
                                        "--threads", "2",       "--json"};

bool said(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("QTURN_DUMP keeps each compiled source with its command and its log") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  home.set("QTURN_DUMP", (home / "dump/deep").string());
  const auto outcome = home.run({"compile", "--op", "quantize", "--shape", "16x64", "--json"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(home / "dump/deep")) {
    const auto name = entry.path().filename().string();
    const auto kind = name.substr(name.find('.'));
    found.insert(kind);
    const auto text = read_file(entry.path());
    if (kind == ".cpp") CHECK(text.find("qturn_kernel") != std::string::npos);
    if (kind == ".command") CHECK(text.find("-march=") != std::string::npos);
    if (kind == ".command") CHECK(text.find("native") == std::string::npos);
  }
  CHECK(found == std::set<std::string>{".command", ".cpp", ".log", ".source.cpp"});
  home.set("QTURN_DUMP", "/proc/cannot-be-made");
  CHECK(said(home.run({"explain", "--shape", "4x96x128"}), "QTURN_DUMP"));
}

TEST_CASE("QTURN_DISABLE takes families and back ends out, and names what it does not know") {
  Home home;
  home.set("QTURN_DISABLE", "cpu_gemm");
  const auto other = home.run({"explain", "--shape", "4x96x128", "--json"});
  REQUIRE(other.code == 0);
  CHECK(other.lines().at(0).at("plan").get<std::string>().find("cpu_gemm") == std::string::npos);
  home.set("QTURN_DISABLE", "cpu_gemm,cpu_hadamard_gemm");
  const auto none = home.run(kCompile);
  CHECK(none.code == 2);
  CHECK_MESSAGE(said(none, "QTURN_DISABLE"), none.err);
  home.set("QTURN_DISABLE", "cpu_gem");
  CHECK(said(home.run({"explain", "--shape", "4x96x128"}),
             "no family or back end is called 'cpu_gem'"));
  home.unset("QTURN_BACKEND");
  home.set("QTURN_DISABLE", "cpu:cuda:hip");
  const auto nothing = home.run({"explain", "--shape", "4x96x128"});
  CHECK(nothing.code == 3);
  CHECK_MESSAGE(said(nothing, "every back end is disabled"), nothing.err);
}

TEST_CASE("QTURN_LOG says more or less, and a value that it does not know changes nothing") {
  Home home;
  home.set("QTURN_LOG", "info");
  CHECK(said(home.run({"explain", "--shape", "4x96x128"}), "stored answers"));
  home.set("QTURN_LOG", "error");
  CHECK(home.run({"explain", "--shape", "4x96x128"}).err.empty());
  home.set("QTURN_LOG", "loud");
  const auto outcome = home.run({"explain", "--shape", "4x96x128"});
  CHECK(outcome.code == 0);
  CHECK(said(outcome, "one of error, warning, info, debug"));
}

TEST_CASE("a compiler that fails is quoted, and the prebuilt kernel serves") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  home.set("QTURN_CXX",
           script(home, "failing-cxx",
                  "[ -f kernel.cpp ] && [ \"$(wc -l < kernel.cpp)\" -gt 20 ] && "
                  "{ echo 'kernel.cpp:7: error: planted'; exit 1; }\nexec g++ \"$@\"\n"));
  const auto outcome = home.run(kCompile);
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.lines().at(0).at("kernel") == "prebuilt");
  CHECK_MESSAGE(said(outcome, "kernel.cpp:7: error: planted"), outcome.err);
  CHECK(said(outcome, "quarantine"));
}

TEST_CASE("without a compiler the prebuilt kernel serves, and doctor says why it is slow") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  const auto no_compiler = [&](const char* reason, const char* state, int code) {
    const auto served = home.run(kCompile);
    CHECK_MESSAGE(served.code == 0, served.err);
    CHECK(served.lines().at(0).at("kernel") == "prebuilt");
    CHECK_MESSAGE(said(served, reason), served.err);
    const auto explained = home.run({"explain", "--shape", "4x96x128", "--threads", "2", "--json"});
    CHECK(explained.lines().at(0).at("match") == "reference");
    const auto doctor = home.run({"doctor", "--json"});
    CHECK(doctor.code == code);
    for (const auto& line : doctor.lines())
      if (line.at("what") == "C++ compiler") {
        CHECK(line.at("state") == state);
        CHECK(line.at("found").get<std::string>().find("much slower") != std::string::npos);
      }
  };
  home.set("PATH", "/nowhere");
  no_compiler("no C++ compiler was found", "wrong", 1);
  home.unset("PATH");
  home.set("QTURN_NO_JIT", "1");
  no_compiler("QTURN_NO_JIT", "note", 0);
}

TEST_CASE("a program with other rights than its user's ignores the user's environment") {
  if (geteuid() != 0) {
    std::puts("SKIPPED: only root can make a program that has other rights than its user");
    return;
  }
  Home home;
  const auto program = (home / "qturn").string();
  std::filesystem::copy_file(QTURN_PROGRAM, program);
  home.become_nobody();
  REQUIRE(chown(program.c_str(), 0, 0) == 0);
  REQUIRE(chmod(program.c_str(), 04755) == 0);
  struct statvfs place {};
  if (statvfs(program.c_str(), &place) != 0 || (place.f_flag & ST_NOSUID) != 0) {
    std::puts("SKIPPED: the temporary folder is mounted nosuid");
    return;
  }
  // What a user might try: other compilers, by variable and by path.
  const auto trap = (home / "trap").string();
  script(home, "c++", "echo trapped > " + trap + "\nexec g++ \"$@\"\n");
  home.set("QTURN_CXX", (home / "c++").string());
  home.set("CXX", (home / "c++").string());
  home.set("PATH", (home / "").string());
  home.set("GCC_EXEC_PREFIX", (home / "").string());
  home.set("QTURN_LOG", "debug");
  const auto config = home.start({"config", "--json"}, program).finish(60);
  REQUIRE_MESSAGE(config.code == 0, config.err);
  for (const auto& line : config.lines()) {
    const auto origin = line.at("origin").get<std::string>();
    CHECK_MESSAGE(origin.find("environment") == std::string::npos, line.dump());
    CHECK(line.value("value", json()).dump().find(home / "") == std::string::npos);
  }
  const auto doctor = home.start({"doctor", "--db", (home / "a.db").string()}, program).finish(60);
  CHECK_MESSAGE(doctor.out.find("C++ compiler") != std::string::npos, doctor.err);
  CHECK(!std::filesystem::exists(trap));
}

TEST_CASE(
    "sixteen processes that open an empty folder at once share one compilation of each kernel") {
  Home home;
  home.set("QTURN_CODE_CACHE", (home / "cache/code").string());
  home.set("QTURN_DATABASE", (home / "cache/tuning.db").string());
  const auto log = (home / "compiled").string();
  home.set("QTURN_CXX",
           script(home, "counting-cxx",
                  "[ -f kernel.cpp ] && sha256sum < kernel.cpp >> " + log + "\nexec g++ \"$@\"\n"));
  std::vector<Running> all;
  for (int i = 0; i < 16; ++i) all.push_back(home.start(kCompile));
  for (auto& one : all) {
    const auto outcome = one.finish(120);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK_MESSAGE(outcome.err.find("memory") == std::string::npos, outcome.err);
    CHECK(outcome.lines().size() == 2);
  }
  const auto compiled = lines_of(log);
  CHECK(compiled.size() == 2);
  CHECK(std::set<std::string>(compiled.begin(), compiled.end()).size() == 2);
  CHECK(home.run({"db", "check"}).code == 0);
  CHECK(home.info("misses") == 1);
}
