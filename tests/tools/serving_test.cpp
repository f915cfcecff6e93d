// What programs asked for and how they are served: misses that are tuned later, lock files, answers
// that are rechecked, processes of several devices, bundles.
#include <doctest/doctest.h>

#include <iostream>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

TEST_CASE("what was missed is tuned later, most time first, and leaves the list") {
  const Home home;
  for (const char* shape : {"4x96x128", "4x32x64"})
    REQUIRE(home.run({"compile", "--shape", shape, "--threads", "2"}).code == 0);
  CHECK(home.info("misses") == 2);
  const std::vector<std::string> command{"tune", "--from-misses", "--threads", "2", "--candidates",
                                         "2",    "--json"};
  auto dry = command;
  dry.push_back("--dry-run");
  const auto planned = home.run(dry);
  REQUIRE_MESSAGE(planned.code == 0, planned.err);
  REQUIRE(planned.lines().size() == 2);
  CHECK(planned.lines()[0].at("problem").get<std::string>().find("96x128") != std::string::npos);
  CHECK(planned.lines()[0].at("layers") == "missed");
  // An answer for lack of time is none.
  auto short_of_time = command;
  short_of_time.insert(short_of_time.end(), {"--time-limit", "0.001"});
  REQUIRE(home.run(short_of_time).code == 0);
  CHECK(home.info("misses") == 2);
  const auto tuned = home.run(command);
  REQUIRE_MESSAGE(tuned.code == 0, tuned.err);
  CHECK(tuned.lines().size() == 2);
  CHECK(home.info("misses") == 0);
  const auto nothing = home.run(command);
  CHECK(nothing.code == 0);
  CHECK(nothing.err.find("nothing was missed") != std::string::npos);
  // One process a device: each kind has its own list.
  REQUIRE(home.run({"compile", "--shape", "4x64x32", "--threads", "2"}).code == 0);
  auto by_devices = command;
  by_devices.insert(by_devices.end(), {"--devices", "cpu"});
  const auto by_device = home.run(by_devices);
  REQUIRE_MESSAGE(by_device.code == 0, by_device.err);
  CHECK(by_device.lines().size() == 1);
  CHECK(home.info("misses") == 0);
  const auto none = home.run(by_devices);
  CHECK(none.code == 0);
  CHECK(none.err.find("nothing was missed") != std::string::npos);
}

TEST_CASE("a lock file holds a run to its plans, and the hash tells runs apart") {
  Home home;
  const std::vector<std::string> device{"--threads", "2", "--json"};
  const auto run = [&](std::vector<std::string> command) {
    command.insert(command.end(), device.begin(), device.end());
    return home.run(command);
  };
  const auto hash = [&] {
    const auto outcome = run({"config", "--snapshot-hash"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return outcome.lines().back().at("value").get<std::string>();
  };
  const auto before = hash();
  CHECK(before.size() == 64);
  const auto file = (home / "tuning.lock").string();
  const auto written = run({"lock", "write", "-o", file, "--shape", "4x96x128"});
  REQUIRE_MESSAGE(written.code == 0, written.err);
  CHECK(run({"lock", "write", "-o", file, "--stored"}).code == 1);
  CHECK(run({"lock", "check", file}).code == 0);
  const auto lacking = run({"lock", "check", file, "--shape", "4x32x64"});
  CHECK(lacking.code == 1);
  CHECK(lacking.lines().at(0).at("state") == "refused");
  home.set("QTURN_LOCK", file);
  CHECK(hash() != before);
  CHECK(run({"compile", "--shape", "4x96x128"}).code == 0);
  const auto refused = run({"compile", "--shape", "4x32x64"});
  CHECK(refused.code == 1);
  CHECK(refused.err.find("does not name it") != std::string::npos);
  home.set("QTURN_LOCK", (home / "missing.lock").string());
  CHECK(run({"compile", "--shape", "4x96x128"}).code == 3);
  // A new one follows the databases, not the old one.
  CHECK(run({"lock", "write", "-o", file, "--shape", "4x32x64"}).code == 0);
}

TEST_CASE("an answer that another compiler made stale is rechecked once, not tuned again") {
  Home home;
  REQUIRE(home.run(small_tune()).code == 0);
  const std::vector<std::string> device{"--threads", "2", "--json"};
  const auto run = [&](std::vector<std::string> command) {
    command.insert(command.end(), device.begin(), device.end());
    const auto outcome = home.run(command);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    return outcome;
  };
  CHECK(run({"recheck"}).lines().empty());
  home.set("QTURN_CXX", script(home, "newer-cxx", "exec g++ \"$@\"\n"));
  home.set("QTURN_CODE_CACHE", (home / "code").string());
  const std::vector<std::string> explain{"explain", "--shape", "4x96x128"};
  CHECK(run(explain).lines().at(0).at("match") == "stale");
  CHECK(run({"recheck", "--served"}).lines().empty());
  run({"compile", "--shape", "4x96x128"});
  CHECK(run({"recheck", "--served", "--dry-run"}).lines().at(0).at("answer") == "waiting");
  const auto trials = home.info("trials");
  const auto rechecked = run({"recheck"});
  REQUIRE(rechecked.lines().size() == 1);
  const auto row = rechecked.lines()[0];
  CHECK(row.at("calls") == 1);
  const auto answer = row.at("answer").get<std::string>();
  CHECK((answer == "kept" || answer == "queued" || answer == "default"));
  CHECK(home.info("trials") > trials);
  CHECK(run(explain).lines().at(0).at("match") == "exact");
  CHECK(run(explain).lines().at(0).at("plan") == row.at("plan"));
  CHECK(run({"recheck"}).lines().empty());
  CHECK(home.info("misses") == (answer == "kept" ? 0 : 1));
  // A decision from trials alone agrees with what it left.
  CHECK(home.run({"db", "decide", "--json"}).lines().at(0).at("problems") == 0);
}

TEST_CASE("explain says what is unproven of a target that is not here, and compile samples it") {
  Home home;
  home.set("QTURN_BACKEND", "cuda");
  home.set("QTURN_TARGET", "sm_120f");
  const auto explained = home.run({"explain", "--shape", "512x4096x4096", "--json"});
  if (explained.code == 3) {
    std::cout << "SKIPPED: " << explained.err;
    return;
  }
  REQUIRE_MESSAGE(explained.code == 0, explained.err);
  const auto answer = explained.lines().at(0);
  CHECK(answer.at("plan").get<std::string>().find("gemm=cuda_gemm_sm120") != std::string::npos);
  REQUIRE(answer.at("proof").size() == 2);  // quantiser and product
  for (const auto& row : answer.at("proof")) CHECK(row.at("state") == "unproven");
  const auto sampled = home.run({"compile", "--target", "sm_100f", "--sample", "2", "--json"});
  if (sampled.code == 3) {
    std::cout << "SKIPPED: " << sampled.err;
    return;
  }
  REQUIRE_MESSAGE(sampled.code == 0, sampled.err);
  REQUIRE(sampled.lines().size() == 2);
  for (const auto& row : sampled.lines()) {
    CHECK(row.at("target") == "sm_100f");
    CHECK(row.at("registers") > 0);
    CHECK(row.at("reason") == "");
  }
  CHECK(home.run({"compile", "--target", "sm_9", "--sample", "1"}).code == 2);
}

TEST_CASE("tune --devices: a process that is killed is reported, and everything is tuned") {
  const Home home;
  const std::vector<std::string> command{"tune",     "--devices", "cpu",     "--shape",
                                         "4x96x128", "--shape",   "4x32x64", "--candidates",
                                         "2",        "--threads", "2",       "--json"};
  auto dry = command;
  dry.push_back("--dry-run");
  const auto planned = home.run(dry);
  REQUIRE_MESSAGE(planned.code == 0, planned.err);
  CHECK(planned.lines().size() == 2);
  CHECK(planned.err.find(" hours, ") != std::string::npos);
  CHECK(home.info("trials") == 0);
  auto running = home.start(command);
  REQUIRE(running.read_until(200, [&](const Outcome&) {
    return std::filesystem::exists(home.database()) && home.info("trials") >= 1;
  }));
  const auto children = read_file("/proc/" + std::to_string(running.pid()) + "/task/" +
                                  std::to_string(running.pid()) + "/children");
  REQUIRE(std::stoi(children) > 1);
  kill(std::stoi(children), SIGKILL);
  const auto kept = home.info("trials");
  const auto outcome = running.finish(200);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  CHECK_MESSAGE(outcome.err.find("cpu: its process was ended by signal 9") != std::string::npos,
                outcome.err);
  const auto lines = outcome.lines();
  REQUIRE(lines.size() == 2);
  for (const auto& line : lines) CHECK(line.at("answer") != "failed");
  CHECK(home.info("winners") == 2);
  CHECK(home.info("trials") > kept);
  CHECK(home.run({"tune", "--devices", "cuda:0,gpu", "--shape", "4x96x128"}).code == 2);
}

TEST_CASE("a self-test holds a family against the reference and writes what it found") {
  const Home home;
  const auto file = (home / "selftest.json").string();
  const std::vector<std::string> command{
      "selftest", "--device", "cpu",      "--threads",       "2",
      "-o",       file,       "--family", "cpu_weight_only", "--json"};
  CHECK(home.run({"selftest", "--device", "cpu", "-o", file, "--family", "cpu_gem"}).code == 2);
  CHECK(!std::filesystem::exists(file));
  const auto tested = home.run(command);
  REQUIRE_MESSAGE(tested.code == 0, tested.err);
  const auto row = tested.lines().at(0);
  CHECK(row.at("family") == "cpu_weight_only");
  const auto report = json::parse(read_file(file));
  CHECK(report.at("complete") == true);
  CHECK(report.at("library").is_string());
  REQUIRE(report.at("results").size() == 2);
  for (const auto& one : report.at("results")) {
    CHECK(one.at("state") == "right");
    CHECK(one.at("evidence") == "hardware");
    CHECK(one.at("outputs") > 1000);
  }
  CHECK(row.at("right") == 2);
  // It names nobody, and is not written over.
  const auto text = read_file(file);
  for (const std::string& part : {home.path().string(), std::string("/tmp"), std::string("/home")})
    CHECK(text.find(part) == std::string::npos);
  CHECK(home.run(command).code == 2);
  CHECK(read_file(file) == text);
}

TEST_CASE("a bundle starts a program without compiler, database or anything to write") {
  Home home;
  REQUIRE(home.run(small_tune()).code == 0);
  const auto explained = home.run({"explain", "--shape", "4x96x128", "--threads", "2", "--json"});
  const auto target = explained.lines().at(0).at("target").get<std::string>();
  const auto key = home.run({"db", "keygen", (home / "key").string(), "--json"}).lines().at(0);
  const auto folder = (home / "a.bundle").string();
  const std::vector<std::string> make{"bundle",    "--shape", "4x96x128",
                                      "--targets", target,    "-o",
                                      folder,      "--key",   (home / "key").string(),
                                      "--json"};
  const auto made = home.run(make);
  REQUIRE_MESSAGE(made.code == 0, made.err);
  CHECK(made.says(target));
  CHECK(home.run(make).code == 2);
  const auto good = home.run({"bundle", "check", folder, "--shape", "4x96x128", "--json"});
  CHECK_MESSAGE(good.code == 0, good.err);
  const auto lacking = home.run({"bundle", "check", folder, "--shape", "4x32x64", "--json"});
  CHECK(lacking.code == 1);
  CHECK(lacking.lines().at(0).at("state") == "lacking");

  Home bare;
  bare.set("QTURN_BUNDLE", folder);
  bare.set("QTURN_NO_JIT", "1");
  bare.set("PATH", "/nonexistent");
  bare.unset("QTURN_CODE_CACHE");
  const auto listing = [&] {
    std::map<std::string, std::filesystem::file_time_type> out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      out[entry.path().string()] = entry.last_write_time();
    return out;
  };
  // So that a mark of use would show.
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(48);
  for (const auto& [path, time] : listing()) std::filesystem::last_write_time(path, long_ago);
  const auto before = listing();
  const auto served = bare.run({"compile", "--shape", "4x96x128", "--threads", "2", "--json"});
  REQUIRE_MESSAGE(served.code == 0, served.err);
  REQUIRE(!served.lines().empty());
  for (const auto& line : served.lines()) {
    CHECK(line.at("cached") == "yes");
    CHECK(line.at("file").get<std::string>().find(folder) == 0);
  }
  const auto how =
      bare.run({"explain", "--shape", "4x96x128", "--threads", "2", "--json"}).lines().at(0);
  CHECK(how.at("match") == "exact");
  CHECK(how.at("plan") == explained.lines()[0].at("plan"));
  CHECK(listing() == before);
  CHECK(std::filesystem::is_empty(bare.path()));

  // Keys are asked for where they are set.
  const std::vector<std::string> explain{"explain", "--shape", "4x96x128"};
  bare.set("QTURN_SNAPSHOT_KEYS", key.at("public_key").get<std::string>());
  CHECK(bare.run(explain).code == 0);
  bare.set("QTURN_SNAPSHOT_KEYS", std::string(64, 'a'));
  const auto refused = bare.run(explain);
  CHECK(refused.code == 3);
  CHECK(refused.err.find("not signed") != std::string::npos);
  bare.set("QTURN_SNAPSHOT_KEYS", key.at("public_key").get<std::string>());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".so") std::ofstream(entry.path(), std::ios::app) << "x";
  CHECK(bare.run(explain).code == 3);
  bare.set("QTURN_BUNDLE", "a.bundle");
  CHECK(bare.run(explain).err.find("it must begin with '/'") != std::string::npos);
}

TEST_CASE("a bundle for a GPU that is not here holds its code") {
  const Home home;
  const auto folder = (home / "gpu.bundle").string();
  const std::vector<std::string> work{"--op", "quantize", "--shape", "128x256"};
  std::vector<std::string> command{"bundle", "--targets", "sm_90a", "-o", folder, "--json"};
  command.insert(command.end(), work.begin(), work.end());
  const auto made = home.run(command);
  if (made.code == 3) {
    MESSAGE("NVRTC is not here: " << made.err);
    return;
  }
  REQUIRE_MESSAGE(made.code == 0, made.err);
  CHECK(made.lines().at(0).at("match") == "heuristic");
  std::vector<std::string> check{"bundle", "check", folder, "--json"};
  check.insert(check.end(), work.begin(), work.end());
  CHECK(home.run(check).code == 0);
  int cubins = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    cubins += entry.path().extension() == ".cubin";
  CHECK(cubins >= 1);
}
