// One process a device: problems are shared, lost processes cost what they had in flight, and
// compilers of all processes share the cores. The devices are shell scripts.
#include "tuner/fleet.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/runtime/temporary_folder.hpp"
#include "tuner/compile_slots.hpp"

using namespace quarterturn;
using test::TemporaryFolder;

namespace {

constexpr const char* kTuned =
    R"({"tuned":{"answer":1,"code":0,"message":"","plan":"p","speedup":1.5,"low":1.4,"high":1.6,)"
    R"("noise":0.01,"median":0.001,"tried":3,"failed":0,"compiled":2,"seconds":0.5,)"
    R"("first_failure":"","reason":"made up"}})";

// A device of a class that answers every problem at once; `first` runs when it is asked.
std::string device(const TemporaryFolder& folder, const std::string& name,
                   const std::string& performance_class, const std::string& first = "") {
  return folder.script(name,
                       "echo '{\"device\":{\"target\":\"t\",\"class\":\"" + performance_class +
                           "\"}}'\nwhile read -r line; do\n" + first +
                           "\ncase \"$line\" in *settle*) echo '{\"done\":true}'; continue;; esac\n"
                           "for each in $(printf %s \"$line\" | grep -o '\"problem\"'); do\necho " +
                           name + " >> " + folder.file("answered") + "\necho '" + kTuned +
                           "'\ndone\necho '{\"done\":true}'\ndone\n");
}

std::vector<Item> items(int count) {
  std::vector<Item> out;
  for (int i = 0; i < count; ++i) {
    Problem p;
    p.op = Op::gemm;
    p.m = {1, 16};
    p.n = Extent::exactly(64 * (i + 1));
    p.k = Extent::exactly(64);
    p.a_type = p.b_type = DType::mxfp4;
    p.d_type = DType::bf16;
    out.push_back({"made up", p, 1});
  }
  return out;
}

struct Run {
  std::vector<Tuned> results;
  std::vector<std::string> said;
  std::map<std::string, int> answered;

  int says(const std::string& part) const {
    int count = 0;
    for (const auto& line : said) count += line.find(part) != std::string::npos;
    return count;
  }
};

Run run(const TemporaryFolder& folder, const std::vector<std::string>& scripts, int count,
        double greeting_limit = 60) {
  Run out;
  FleetOptions options;
  options.greeting_limit = greeting_limit;
  for (const auto& script : scripts)
    options.devices.push_back({std::filesystem::path(script).filename().string(), {script}});
  options.say = [&](const std::string& name, const std::string& line) {
    out.said.push_back(name + ": " + line);
  };
  {
    Fleet fleet(options);
    out.results = fleet.run(items(count), {}, {});
  }
  std::ifstream file(folder.file("answered"));
  for (std::string name; file >> name;) ++out.answered[name];
  return out;
}

bool all_tuned(const std::vector<Tuned>& results) {
  for (const auto& tuned : results)
    if (tuned.answer != Tuned::Answer::tuned || tuned.plan != "p") return false;
  return true;
}

}  // namespace

TEST_CASE("fleet.devices of a kind share the problems, each kind answers all of them") {
  const TemporaryFolder folder;
  const auto out = run(folder,
                       {device(folder, "a0", "a", "sleep 0.05"),
                        device(folder, "a1", "a", "sleep 0.05"), device(folder, "b0", "b")},
                       12);
  REQUIRE(out.results.size() == 24);
  CHECK(all_tuned(out.results));
  auto answered = out.answered;
  CHECK(answered["a0"] + answered["a1"] == 12);
  CHECK(answered["a0"] > 0);
  CHECK(answered["a1"] > 0);
  CHECK(answered["b0"] == 12);
  CHECK(out.said.empty());
}

TEST_CASE("fleet.a process that is killed is reported, and its problems are tried again") {
  const TemporaryFolder folder;
  const auto mark = folder.file("killed");
  const auto out =
      run(folder,
          {device(folder, "a0", "a", "sleep 0.05"),
           device(folder, "a1", "a", "[ -e " + mark + " ] || { : > " + mark + "; kill -9 $$; }")},
          6);
  REQUIRE(out.results.size() == 6);
  CHECK(all_tuned(out.results));
  CHECK(out.says("a1: its process was ended by signal 9") == 1);
}

TEST_CASE("fleet.a problem that takes processes with it fails alone, and a device that is none") {
  const TemporaryFolder folder;
  const auto fatal = items(3)[1].problem.key();
  const auto die = "case \"$line\" in *'" + fatal + "'*) exit 3;; esac";
  const auto out =
      run(folder, {device(folder, "a0", "a", die), folder.script("none", "exit 4\n")}, 3);
  REQUIRE(out.results.size() == 3);
  CHECK(out.says("none: its process ended with code 4") == 1);
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK((out.results[i].answer == Tuned::Answer::failed) == (i == 1));
  }
  CHECK(out.results[1].status.message().find("2 processes ended") != std::string::npos);
  const TemporaryFolder other;
  CHECK(run(other, {other.script("none", "exit 4\n")}, 3).results.empty());
}

TEST_CASE("fleet.each kind of device tunes what was missed on it") {
  const TemporaryFolder folder;
  const auto missing = [&](const std::string& name, int first, int count) {
    std::string list;
    for (int i = first; i < first + count; ++i)
      list += (list.empty() ? "" : ",") +
              std::string(R"({"layers":"missed","calls":7,"problem":")") +
              items(i + 1)[static_cast<std::size_t>(i)].problem.key() + "\"}";
    const auto path = device(folder, name, name);
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    std::string script = text.str();
    const std::string end = "\"}}'\n";
    script.replace(script.find(end), end.size(), "\"},\"missed\":[" + list + "]}'\n");
    return folder.script(name, script);
  };
  auto out = run(folder, {missing("a", 0, 3), missing("b", 3, 1), missing("c", 0, 0)}, 0);
  REQUIRE(out.results.size() == 4);
  CHECK(all_tuned(out.results));
  CHECK(out.answered["a"] == 3);
  CHECK(out.answered["b"] == 1);
  CHECK(out.results[3].item.problem.key() == items(4)[3].problem.key());
  CHECK(out.results[3].item.calls == 7);
}

TEST_CASE("fleet.a process that never says what it is, is ended, at the start and later") {
  const TemporaryFolder folder;
  const auto mark = folder.file("begun");
  const auto text =
      "[ -e " + mark + " ] && exec sleep 100\n: > " + mark +
      "\necho '{\"device\":{\"target\":\"t\",\"class\":\"a\"}}'\nread -r line\nexit 3\n";
  const auto out = run(folder,
                       {folder.script("silent", "exec sleep 100\n"), folder.script("later", text),
                        device(folder, "a", "a", "sleep 0.05")},
                       4, 0.4);
  REQUIRE(out.results.size() == 4);
  CHECK(all_tuned(out.results));
  CHECK(out.says("silent: does not answer for 0.4 s; it is ended") == 1);
  CHECK(out.says("later: does not answer for 0.4 s; it is ended") == 1);
}

TEST_CASE("compile_slots.a slot is one compiler's, over all that share the file") {
  const TemporaryFolder folder;
  const CompileSlots one(folder.file("slots"), 2), other(folder.file("slots"), 2);
  const auto never = [] { return false; };
  int asked = 0;
  const auto twice = [&asked] { return ++asked > 2; };
  auto first = one.take(never), second = other.take(never);
  (void)other.take(twice);
  CHECK(asked == 3);
  first.release();
  asked = 0;
  (void)other.take(twice);
  CHECK(asked == 1);
}

TEST_CASE("compile_slots.cores are those of the process, and no more than Slurm gave") {
  CHECK(cores_within(64, "") == 64);
  CHECK(cores_within(64, "8") == 8);
  CHECK(cores_within(4, "8") == 4);
  CHECK(cores_within(4, "many") == 4);
  CHECK(cores_within(4, "-1") == 4);
  CHECK(cores_within(0, "") == 1);
}
