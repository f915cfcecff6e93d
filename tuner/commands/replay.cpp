// qturn replay: runs search strategies on recorded spaces, and records spaces from a database.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "generator/digest.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/neighbours.hpp"
#include "tuner/replay.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

constexpr const char* kReplayFooter = R"(Examples:
  qturn tune --shape 1..16x512x512 --exhaustive --db all.db
  qturn replay --db all.db --record recordings
  qturn replay recordings/*.gz --strategy learned,predicted,random --seeds 20

Needs no device. A recording holds every trial of a space; a strategy is given what it asks for, and
nothing else. Regret: how much slower its best plan is than the best recorded one. Share: of all
distinct kernels, those it had compiled. Model rank: Spearman's correlation of the times that the
families' models predict, by which the default is chosen where nothing was measured, with those measured.)";

struct ReplayOptions {
  std::vector<std::string> files;
  std::string strategies = "learned,predicted,random";
  std::size_t candidates = 0, seeds = 10, batch = 8, patience = SearchSettings{}.patience;
  std::size_t least = 100;
  std::string folder;
  bool neighbours = false;
};

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find(',', at), text.size());
    if (end > at) out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::string file_name(const RecordedSpace& recording) {
  std::string out = short_name(recording.problem) + "_" + recording.target.arch;
  for (char& c : out)
    if (c == ' ' || c == '.' || c == '/') c = '_';
  return out + "_" + hex(sha256(recording.problem.key())).substr(0, 8) + ".json.gz";
}

// One file for each problem with enough trials, named by what it is.
int record_all(const GlobalOptions& global, const ReplayOptions& options) {
  auto database = Database::open(global.database, {.access = Access::read_only});
  if (!database.ok()) return fail(database.status());
  const auto measured = database->measured();
  if (!measured.ok()) return fail(measured.status());
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  Table table({"problem", "target", "plans", "file"});
  for (const auto& one : *measured) {
    const auto problem = parse_problem(one.problem);
    const auto target = parse_target(one.target);
    if (!problem.ok() || !target.ok()) continue;  // of a newer version
    const auto recording = record(*database, *problem, *target, one.performance_class);
    if (!recording.ok()) return fail(recording.status());
    if (recording->entries.size() < options.least) continue;
    const auto path = (std::filesystem::path(options.folder) / file_name(*recording)).string();
    if (auto status = write_recording(*recording, path); !status.ok()) return fail(status);
    table.add(
        {short_name(*problem), one.target, fmt::format("{}", recording->entries.size()), path});
  }
  table.print(global.json);
  return kExitOk;
}

struct Summary {
  std::vector<double> regrets, shares;
  double tried = 0, seconds = 0;
};

int replay_all(const GlobalOptions& global, const ReplayOptions& options) {
  std::vector<RecordedSpace> recordings;
  for (const auto& file : options.files) {
    auto recording = read_recording(file);
    if (!recording.ok()) return fail(recording.status());
    recordings.push_back(std::move(*recording));
  }
  Table table({"recording", "plans", "kernels", "strategy", "tried", "share", "compile_s",
               "regret_median", "regret_worst", "model_rank"});
  for (const auto& recording : recordings)
    for (const auto& name : words_of(options.strategies)) {
      Space space = space_of(recording);
      for (const auto& other : recordings)
        if (options.neighbours && &other != &recording &&
            std::isfinite(distance(other.problem, recording.problem)))
          space.neighbours.push_back(neighbour_from(other));
      Summary sum;
      ReplayResult last;
      for (std::size_t seed = 1; seed <= options.seeds; ++seed) {
        SearchSettings settings{options.candidates, options.patience, seed};
        if (settings.most == 0) settings.most = standard_budget(space);
        const auto strategy = strategy_by_name(name, space, settings);
        if (!strategy)
          return fail(Status(Code::unknown_name,
                             fmt::format("no strategy is called '{}': learned, predicted, random "
                                         "and exhaustive are",
                                         name)));
        last = replay(recording, *strategy, options.batch);
        sum.regrets.push_back(last.regret);
        sum.shares.push_back(last.compiled_share());
        sum.tried += static_cast<double>(last.tried);
        sum.seconds += last.compile_seconds;
      }
      const double runs = static_cast<double>(options.seeds);
      table.add(
          {recording.name(), fmt::format("{}", last.plans), fmt::format("{}", last.kernels), name,
           fmt::format("{:.0f}", sum.tried / runs), fmt::format("{:.3f}", median(sum.shares)),
           fmt::format("{:.1f}", sum.seconds / runs), fmt::format("{:.4f}", median(sum.regrets)),
           fmt::format("{:.4f}", *std::max_element(sum.regrets.begin(), sum.regrets.end())),
           fmt::format("{:.2f}", model_rank_correlation(recording))});
    }
  table.print(global.json);
  return kExitOk;
}

int run(const GlobalOptions& global, const ReplayOptions& options) {
  if (!options.folder.empty()) return record_all(global, options);
  if (options.files.empty())
    return fail(Status(Code::invalid_argument,
                       "give recordings to replay, or --record FOLDER with --db to make some"));
  return replay_all(global, options);
}

}  // namespace

std::function<int()> register_replay(CLI::App& app) {
  auto* command =
      app.add_subcommand("replay", "Run search strategies on recorded trials, without a device");
  command->footer(kReplayFooter);
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<ReplayOptions>();
  add_database(*command, *global);
  add_json(*command, *global);
  command->add_option("files", options->files, "Recordings")->check(CLI::ExistingFile);
  command->add_option("--strategy", options->strategies, "learned, predicted, random, exhaustive")
      ->capture_default_str();
  command->add_option("--candidates", options->candidates,
                      "Plans that are tried at most (default: a tenth of the kernels)");
  command->add_option("--patience", options->patience, "Plans in a row without a gain of 1 %")
      ->capture_default_str();
  command->add_option("--seeds", options->seeds, "Runs of each strategy")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{10000}));
  command->add_option("--batch", options->batch, "Plans in work at once")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1000}));
  command->add_flag("--neighbours", options->neighbours,
                    "Let each learn from the other files' problems");
  command->add_option("--record", options->folder,
                      "Write a recording of each problem in the database to this folder");
  command->add_option("--least", options->least, "Plans that a recording has at least")
      ->capture_default_str();
  return [=] { return run(*global, *options); };
}

}  // namespace quarterturn
