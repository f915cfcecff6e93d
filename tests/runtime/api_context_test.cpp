// Contexts: layers, miss policies, machines without a compiler, files that are not ours.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/runtime/api.hpp"

using namespace quarterturn::api;
using quarterturn::test::TemporaryFolder;

namespace {

int32_t match_of(const Plan& plan) {
  int32_t match = -1;
  REQUIRE(qturn_plan_match(plan.get(), &match) == QTURN_OK);
  return match;
}

qturn_stats stats_of(const Context& context) {
  qturn_stats out{};
  out.struct_size = sizeof out;
  REQUIRE(qturn_get_stats(context.get(), &out) == QTURN_OK);
  return out;
}

std::vector<float> run(const Plan& plan) {
  const auto a = values(24 * 64, 7), b = values(32 * 64, 8);
  Run call(plan, 24, 32, a);
  call.args.b = f32(b);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &call.args) == QTURN_OK, qturn_last_error());
  return call.d;
}

std::string explain(const Context& context, const qturn_problem& problem) {
  std::size_t needed = 0;
  REQUIRE(qturn_explain(context.get(), &problem, nullptr, 0, &needed) == QTURN_OK);
  std::string text(needed, '?');
  REQUIRE(qturn_explain(context.get(), &problem, text.data(), text.size(), &needed) == QTURN_OK);
  CHECK(text.back() == '\0');
  text.pop_back();
  return text;
}

}  // namespace

TEST_CASE("context.nobody tuned it: the heuristic's plan serves") {
  const Options options;
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(24, 32, 64));
  CHECK(match_of(plan) == QTURN_MATCH_HEURISTIC);
  CHECK(stats_of(context).matched[QTURN_MATCH_HEURISTIC] == 1);
  // Prepared again, nothing is compiled or looked for.
  const auto before = stats_of(context);
  prepare(context, linear(24, 32, 64));
  CHECK(stats_of(context).compiles == before.compiles);
  CHECK(stats_of(context).code_hits == before.code_hits);
}

TEST_CASE("context.no compiler: stored code, then the prebuilt kernel, with one warning") {
  const auto expected = [] {
    const Options options;
    return run(prepare(make_context(options), linear(24, 32, 64)));
  }();
  const TemporaryFolder empty;
  const Variable path("PATH", empty.path());
  Options options;
  const auto context = make_context(options);
  const auto stored = prepare(context, linear(24, 32, 64));
  CHECK(match_of(stored) == QTURN_MATCH_HEURISTIC);
  CHECK(run(stored) == expected);
  options.logged.lines.clear();

  Options fresh;
  const auto code = fresh.folder.file("code");
  fresh.c.code_cache = code.c_str();
  const auto bare = make_context(fresh);
  const auto slow = prepare(bare, linear(24, 32, 64));
  CHECK(match_of(slow) == QTURN_MATCH_REFERENCE);
  CHECK(run(slow) == expected);
  prepare(bare, linear(24, 32, 96));
  CHECK(fresh.logged.count("prebuilt") == 1);
  CHECK(fresh.logged.count("no C++ compiler") == 1);
}

TEST_CASE("context.disabled families do not serve without a compiler either") {
  const TemporaryFolder empty;
  const Variable path("PATH", empty.path());
  const Variable disabled("QTURN_DISABLE", "cpu_gemm");
  Options options;
  const auto code = options.folder.file("code");
  options.c.code_cache = code.c_str();
  const auto context = make_context(options);
  qturn_plan* plan = nullptr;
  const auto wanted = linear(24, 32, 64);
  CHECK(qturn_prepare(context.get(), &wanted, &plan) == QTURN_NOT_SUPPORTED);
  CHECK(plan == nullptr);
}

TEST_CASE("context.jit off starts no compiler") {
  Options options;
  const TemporaryFolder folder;
  const auto trap = folder.script("c++", "touch " + folder.file("started") + "\nexit 1\n");
  const Variable cxx("QTURN_CXX", trap);
  options.c.jit = QTURN_JIT_OFF;
  const auto code = options.folder.file("code");
  options.c.code_cache = code.c_str();
  const auto context = make_context(options);
  CHECK(match_of(prepare(context, linear(24, 32, 64))) == QTURN_MATCH_REFERENCE);
  CHECK_FALSE(std::filesystem::exists(folder.file("started")));
}

TEST_CASE("context.a compiler that breaks puts plans in quarantine, and work goes on") {
  Options options;
  const TemporaryFolder folder;
  const Variable cxx("QTURN_CXX", folder.script("cc",
                                                "grep -qs qturn_kernel kernel.cpp && kill -ILL $$\n"
                                                "exec c++ \"$@\"\n"));
  const auto code = options.folder.file("code");
  options.c.code_cache = code.c_str();
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(24, 32, 64));
  CHECK(match_of(plan) == QTURN_MATCH_REFERENCE);
  const auto first = stats_of(context);
  CHECK(first.quarantined >= 1);
  CHECK(options.logged.count("quarantine") >= 1);
  // Nothing of it is tried a second time, by another context either.
  prepare(context, linear(24, 32, 64));
  CHECK(stats_of(context).quarantined == first.quarantined);
  const auto second = make_context(options);
  prepare(second, linear(24, 32, 64));
  CHECK(stats_of(second).quarantined == 0);
}

TEST_CASE("context.the miss policy error refuses what nobody tuned") {
  Options options;
  options.c.miss_policy = QTURN_MISS_ERROR;
  const auto context = make_context(options);
  qturn_plan* out = nullptr;
  const auto problem = linear(24, 32, 64);
  CHECK(qturn_prepare(context.get(), &problem, &out) == QTURN_MISS);
  CHECK(std::string(qturn_last_error()).find("qturn tune") != std::string::npos);
}

TEST_CASE("context.the miss policy background serves at once, and later plans are better") {
  Options options;
  options.c.miss_policy = QTURN_MISS_BACKGROUND;
  const auto code = options.folder.file("code");
  options.c.code_cache = code.c_str();
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(24, 32, 64));
  REQUIRE(match_of(plan) == QTURN_MATCH_REFERENCE);
  const auto first = run(plan);
  auto later = prepare(context, linear(24, 32, 64));
  for (int i = 0; i < 2400 && match_of(later) == QTURN_MATCH_REFERENCE; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    later = prepare(context, linear(24, 32, 64));
  }
  CHECK(match_of(later) == QTURN_MATCH_HEURISTIC);
  CHECK(run(later) == first);
  CHECK(match_of(plan) == QTURN_MATCH_REFERENCE);
  CHECK(run(plan) == first);
  // Code that is stored serves at once.
  const auto second = make_context(options);
  CHECK(match_of(prepare(second, linear(24, 32, 64))) == QTURN_MATCH_HEURISTIC);
}

TEST_CASE("context.a lock file that cannot be read stops the context") {
  Options options;
  const auto lock = options.folder.write("tuning.lock", "{\"quarterturn_lock\": 1}");
  options.c.lock = lock.c_str();
  qturn_context* out = nullptr;
  CHECK(qturn_context_create(&options.c, &out) == QTURN_DAMAGED);
  options.c.lock = "/nonexistent/tuning.lock";
  CHECK(qturn_context_create(&options.c, &out) == QTURN_IO_ERROR);
  CHECK(out == nullptr);
  CHECK(qturn_snapshot_hash(nullptr, nullptr) == QTURN_INVALID_ARGUMENT);
}

TEST_CASE("context.destroyed in the middle of a background compilation") {
  Options options;
  options.c.miss_policy = QTURN_MISS_BACKGROUND;
  const auto code = options.folder.file("code");
  options.c.code_cache = code.c_str();
  auto context = make_context(options);
  auto plan = prepare(context, linear(24, 32, 64));
  plan.reset();
  context.reset();
}

TEST_CASE("context.pins are served before anything else") {
  Options options;
  const auto first = make_context(options);
  const auto problem = linear(24, 32, 64);
  const auto text = explain(first, problem);
  const auto between = [&](const std::string& from, const std::string& to) {
    const auto at = text.find(from) + from.size();
    return text.substr(at, text.find(to, at) - at);
  };
  const auto key = between("\"problem\":\"", "\""), plan = between("\"plan\":\"", "\"");
  const Variable pins("QTURN_PINS", options.folder.write("pins", key + " -> " + plan + "\n"));
  const auto context = make_context(options);
  CHECK(match_of(prepare(context, problem)) == QTURN_MATCH_EXACT);
  auto part = problem;
  part.m = {3, 5};
  CHECK(match_of(prepare(context, part)) == QTURN_MATCH_BUCKET);
  part.m = {3, 5000};
  CHECK(match_of(prepare(context, part)) == QTURN_MATCH_BORROWED);
  CHECK(explain(context, problem).find("\"match\":\"exact\"") != std::string::npos);
}

TEST_CASE("context.a disabled family is not used") {
  Options options;
  const Variable disable("QTURN_DISABLE", "cpu_gemm,cpu_hadamard_gemm");
  const auto context = make_context(options);
  const auto problem = linear(24, 32, 64);
  CHECK(qturn_supports(context.get(), &problem) == QTURN_NOT_SUPPORTED);
  CHECK(std::string(qturn_last_error()).find("QTURN_DISABLE") != std::string::npos);
}

TEST_CASE("context.dumps what it compiles where it is asked to") {
  Options options;
  const auto code = options.folder.file("code");
  options.c.code_cache = code.c_str();
  const Variable dump("QTURN_DUMP", options.folder.file("dump"));
  const auto context = make_context(options);
  prepare(context, dequantizing());
  int sources = 0, commands = 0, logs = 0, flats = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options.folder.file("dump"))) {
    const auto name = entry.path().filename().string();
    const auto text = TemporaryFolder::read(entry.path());
    if (name.ends_with(".source.cpp"))
      sources += text.find("struct Config") != std::string::npos;
    else if (name.ends_with(".cpp"))
      flats += text.find("#include \"") == std::string::npos;
    else if (name.ends_with(".command"))
      commands += text.find("kernel.cpp") != std::string::npos;
    else
      logs += name.ends_with(".log");
  }
  CHECK(sources >= 1);
  CHECK(sources == flats);
  CHECK(sources == commands);
  CHECK(sources == logs);
}

TEST_CASE("context.a database that is not ours is refused and left alone") {
  Options options;
  options.folder.write("tuning.db", "this is somebody's diary, not a database\n");
  qturn_context* out = nullptr;
  CHECK(qturn_context_create(&options.c, &out) == QTURN_NOT_OURS);
  CHECK(TemporaryFolder::read(options.database) == "this is somebody's diary, not a database\n");
}

TEST_CASE("context.folders that nobody can write cost persistence, not work") {
  Options options;
  const char* nowhere = "/proc/quarterturn/tuning.db";
  options.c.database = nowhere;
  options.c.code_cache = "/proc/quarterturn/code";
  const auto context = make_context(options);
  const auto plan = prepare(context, dequantizing());
  CHECK(match_of(plan) == QTURN_MATCH_HEURISTIC);
  // Codes 1 and 2 are 0.5 and 1; byte 128 is a factor of 2.
  std::vector<unsigned char> codes(16 * 32, 0x21), scales(16 * 2, 128);
  std::vector<float> d(16 * 64);
  qturn_args args;
  qturn_args_init(&args);
  args.m = 16;
  REQUIRE(qturn_plan_operand(plan.get(), QTURN_OPERAND_A, &args.a) == QTURN_OK);
  args.a.data = codes.data();
  args.a.scales = scales.data();
  args.d = f32(d);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &args) == QTURN_OK, qturn_last_error());
  for (std::size_t i = 0; i < d.size(); ++i) CHECK(d[i] == (i % 2 ? 2.0f : 1.0f));
  CHECK(options.logged.count("/proc/quarterturn") >= 1);
}

TEST_CASE("context.a missing snapshot is said and left out") {
  Options options;
  const char* snapshots[] = {"/nonexistent/site.db"};
  options.c.snapshots = snapshots;
  options.c.snapshot_count = 1;
  const auto context = make_context(options);
  CHECK(options.logged.count("/nonexistent/site.db") == 1);
  run(prepare(context, linear(24, 32, 64)));
}

TEST_CASE("context.a host that ignores SIGCHLD") {
  struct sigaction ignore {
  }, before{}, after{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignore, &before);
  {
    Options options;
    const auto code = options.folder.file("code");
    options.c.code_cache = code.c_str();
    const auto context = make_context(options);
    CHECK(match_of(prepare(context, dequantizing())) == QTURN_MATCH_HEURISTIC);
    CHECK(stats_of(context).compiles >= 1);
  }
  sigaction(SIGCHLD, &before, &after);
  CHECK((after.sa_handler == SIG_IGN));
}

TEST_CASE("context.a malformed setting is said, and the default holds") {
  Options options;
  options.c.threads = 0;
  const Variable threads("QTURN_THREADS", "many");
  make_context(options);
  CHECK(options.logged.count("QTURN_THREADS") == 1);
}

TEST_CASE("context.explain fits what it is given and is always terminated") {
  const Options options;
  const auto context = make_context(options);
  const auto problem = linear(24, 32, 64);
  const auto whole = explain(context, problem);
  CHECK(whole.front() == '{');
  CHECK(whole.back() == '}');
  char small[8];
  std::size_t needed = 0;
  CHECK(qturn_explain(context.get(), &problem, small, sizeof small, &needed) == QTURN_OK);
  CHECK(needed == whole.size() + 1);
  CHECK(std::string(small) == whole.substr(0, 7));
}

TEST_CASE("context.names of statuses and versions") {
  CHECK(std::string(qturn_status_name(QTURN_WRONG_OPERAND)) == "wrong_operand");
  CHECK(std::string(qturn_status_name(QTURN_OK)) == "ok");
  CHECK(std::string(qturn_status_name(12345)) == "unknown");
  CHECK(std::string(qturn_version_string()) == "0.1.0");
  CHECK(qturn_version_number() ==
        QTURN_VERSION_MAJOR * 10000 + QTURN_VERSION_MINOR * 100 + QTURN_VERSION_PATCH);
}
