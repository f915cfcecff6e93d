// Strategies on recorded spaces: what they miss, and what they compile for it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tuner/replay.hpp"
#include "tuner/statistics.hpp"

using namespace quarterturn;

namespace {

constexpr std::size_t kSeeds = 15, kBatch = 8;
constexpr std::size_t kMostBytes = 1 << 20;

std::vector<std::string> files() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(QTURN_RECORDINGS))
    if (entry.path().extension() == ".gz") out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

RecordedSpace read(const std::string& file) {
  auto space = read_recording(file);
  REQUIRE_MESSAGE(space.ok(), space.status().message());
  return std::move(*space);
}

// One of the CPU's spaces was recorded in few rounds on cores that others used as well: equal plans
// differ by a tenth there, so that its best one is a matter of luck. It shows what can be learned
// through noise.
bool is_quiet(const std::string& file) {
  return file.find("fprop_1__16x512x512_x86-64-v4") == std::string::npos;
}

std::size_t kernels_of(const RecordedSpace& recorded) {
  const auto all = exhaustive(space_of(recorded));
  return replay(recorded, *all, 64).kernels;
}

// Results of one strategy by seed, with a tenth of the kernels as its budget; the first plan needs
// several of them.
std::vector<ReplayResult> results(const RecordedSpace& recorded, std::string_view strategy) {
  std::vector<ReplayResult> out;
  const Space space = space_of(recorded);
  const std::size_t tenth = kernels_of(recorded) / 10;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SearchSettings settings;
    settings.most = std::max<std::size_t>(10, tenth - std::min<std::size_t>(tenth, 4));
    settings.seed = seed;
    const auto one = strategy_by_name(strategy, space, settings);
    REQUIRE(one);
    out.push_back(replay(recorded, *one, kBatch));
  }
  return out;
}

std::vector<double> regrets(const std::vector<ReplayResult>& all) {
  std::vector<double> out;
  for (const auto& one : all) out.push_back(one.regret);
  return out;
}

}  // namespace

TEST_CASE("recordings are small and whole") {
  REQUIRE(!files().empty());
  for (const auto& file : files()) {
    CHECK(std::filesystem::file_size(file) < kMostBytes);
    const auto recorded = read(file);
    CHECK_MESSAGE(recorded.entries.size() >= 150, file);
    // The default is among them, as what all others are compared with.
    CHECK(std::any_of(recorded.entries.begin(), recorded.entries.end(), [](const auto& entry) {
      return entry.outcome.status == TrialStatus::ok && entry.outcome.log_speedup == 0;
    }));
  }
}

TEST_CASE("learning: regret of 2 % in the median and 5 % at worst for a tenth of the compiles") {
  std::size_t judged = 0;
  for (const auto& file : files()) {
    const auto recorded = read(file);
    if (!is_quiet(file)) continue;
    ++judged;
    const auto all = results(recorded, "learned");
    const auto lost = regrets(all);
    CAPTURE(file);
    CHECK(median(lost) <= 0.02);
    CHECK(*std::max_element(lost.begin(), lost.end()) <= 0.05);
    // Where a recording ended early, the first plan of each family has a large part of its kernels.
    if (kernels_of(recorded) >= 300)
      for (const auto& one : all) CHECK(one.compiled_share() <= 0.1);
  }
  CHECK(judged >= 4);
}

TEST_CASE("learning beats chance, also through noise") {
  double learned = 0, random = 0;
  for (const auto& file : files()) {
    const auto recorded = read(file);
    const double with = median(regrets(results(recorded, "learned"))),
                 without = median(regrets(results(recorded, "random")));
    CAPTURE(file);
    // Nothing can be halved where most plans are as good as the best one within what is allowed.
    if (is_quiet(file)) CHECK(with < (without > 0.02 ? 0.5 * without : without));
    learned += with;
    random += without;
  }
  CHECK(learned < random);
}

TEST_CASE("the families' models order plans as devices do, more or less") {
  for (const auto& file : files()) {
    const auto recorded = read(file);
    if (!is_quiet(file)) continue;
    CAPTURE(file);
    CHECK(model_rank_correlation(recorded) > 0.6);
  }
}

TEST_CASE("an exhaustive replay misses nothing and compiles everything") {
  const auto recorded = read(files().front());
  const auto all = exhaustive(space_of(recorded));
  const auto result = replay(recorded, *all, 64);
  CHECK(result.tried == recorded.entries.size());
  CHECK(result.compiled == result.kernels);
  CHECK(result.regret == 0);
}

TEST_CASE("the same seed gives the same replay, another one may differ") {
  const auto recorded = read(files().front());
  const auto first = results(recorded, "learned"), again = results(recorded, "learned");
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].regret == again[i].regret);
    CHECK(first[i].compiled == again[i].compiled);
    CHECK(first[i].compile_seconds == again[i].compile_seconds);
  }
}

TEST_CASE("a recording survives being written and read") {
  const auto recorded = read(files().front());
  const auto path = std::filesystem::temp_directory_path() /
                    ("qturn-recording-" + std::to_string(getpid()) + ".json.gz");
  REQUIRE(write_recording(recorded, path.string()).ok());
  const auto again = read(path.string());
  REQUIRE(again.entries.size() == recorded.entries.size());
  CHECK(again.problem == recorded.problem);
  CHECK(again.target == recorded.target);
  CHECK(again.units == recorded.units);
  for (std::size_t i = 0; i < again.entries.size(); ++i) {
    CHECK(again.entries[i].outcome.plan == recorded.entries[i].outcome.plan);
    CHECK(again.entries[i].outcome.log_speedup == recorded.entries[i].outcome.log_speedup);
    CHECK(again.entries[i].cost.main == recorded.entries[i].cost.main);
  }
  // Cut off in the middle.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  CHECK(!read_recording(path.string()).ok());
  std::filesystem::remove(path);
}
