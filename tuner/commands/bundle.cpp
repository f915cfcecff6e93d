// qturn bundle: answers and compiled code for a model in one folder, and what such a folder lacks.
#include <fmt/format.h>

#include <optional>

#include "cache/publication.hpp"
#include "tuner/bundle_maker.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"

namespace quarterturn {
namespace {

constexpr const char* kBundleFooter = R"(Examples:
  qturn bundle --model Qwen3-8B --tokens 1,1..512 --targets sm_90a,x86-64-v4 -o qwen.bundle
  qturn bundle check qwen.bundle --model Qwen3-8B --tokens 1,1..512
  QTURN_BUNDLE=$PWD/qwen.bundle QTURN_NO_JIT=1 python serve.py

No device is needed: winners come from the databases given (--db and QTURN_SNAPSHOTS), what they do
not know gets the analytic default, and the code is compiled here. A CPU architecture without
features also stands for every set of its features that the databases know. With QTURN_NO_JIT=1 a
program that opens a bundle starts no compiler, writes nothing and compiles nothing.

Exit codes: 0 all is there; 1 something is lacking; 2, 3 as everywhere; 130 interrupted.)";

struct BundleOptions {
  std::string folder, targets, key;
};

std::vector<std::string> names_in(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= text.size();) {
    auto end = text.find(',', at);
    // Features of a target follow its colon, up to the next architecture.
    const auto colon = text.find(':', at);
    if (colon != std::string::npos && colon < end) {
      while (end != std::string::npos) {
        const auto next = text.substr(end + 1, 3);
        if (next == "sm_" || next == "x86" || next == "aar" || next == "gfx") break;
        end = text.find(',', end + 1);
      }
    }
    if (end == std::string::npos) end = text.size();
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

Result<Answers> answers_of(const Settings& settings) {
  const auto locations = settings.locations();
  if (!locations.ok()) return locations.status();
  Answers out;
  DatabaseOptions options;
  options.access = Access::read_only;
  options.fallback = Fallback::memory;
  auto local = Database::open(locations->database, options);
  if (!local.ok()) return local.status();
  if (auto status = out.add(*local); !status.ok()) return status;
  for (const auto& path : settings.list(Setting::snapshots)) {
    auto snapshot = open_published(path, settings.list(Setting::snapshot_keys));
    if (!snapshot.ok()) return snapshot.status();
    if (auto status = out.add(*snapshot); !status.ok()) return status;
  }
  return out;
}

int print(const std::vector<BundleRow>& rows, const GlobalOptions& global) {
  Table table({"problem", "target", "class", "match", "state", "plan", "reason"});
  std::size_t lacking = 0;
  for (const auto& row : rows) {
    lacking += !row.status.ok();
    table.add({short_name(row.problem), row.target, row.performance_class, row.match,
               row.status.ok() ? "ready" : "lacking", row.plan, row.status.message()});
  }
  table.print(global.json);
  std::fprintf(stderr, "qturn: %zu of %zu plans are ready\n", rows.size() - lacking, rows.size());
  return lacking == 0 ? kExitOk : kExitFailed;
}

int make(const WorkOptions& work, const GlobalOptions& global, const BundleOptions& options) {
  auto workload = workload_of(work);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  auto sources = sources_of(global);
  if (!sources.ok()) return fail(sources.status());
  const auto settings = Settings::load(*sources);
  const auto answers = answers_of(settings);
  if (!answers.ok()) return fail(answers.status());
  std::optional<SigningKey> key;
  if (!options.key.empty()) {
    auto read = read_signing_key(options.key);
    if (!read.ok()) return fail(read.status());
    key = *read;
  }
  watch_interrupts();
  BundleRequest request;
  request.folder = options.folder;
  request.targets = names_in(options.targets);
  request.items = workload->items;
  request.key = key ? &*key : nullptr;
  request.interrupted = is_interrupted;
  const auto rows = make_bundle(*answers, settings, request);
  if (!rows.ok()) return fail(rows.status());
  return print(*rows, global);
}

int check(const WorkOptions& work, const GlobalOptions& global, const std::string& folder) {
  auto workload = workload_of(work);
  if (!workload.ok()) return fail(workload.status());
  report_refusals(*workload);
  auto sources = sources_of(global);
  if (!sources.ok()) return fail(sources.status());
  const auto settings = Settings::load(*sources);
  const auto bundle = read_bundle(folder, settings.list(Setting::snapshot_keys));
  if (!bundle.ok()) return fail(bundle.status());
  const auto rows = check_bundle(*bundle, settings, workload->items);
  if (!rows.ok()) return fail(rows.status());
  return print(*rows, global);
}

}  // namespace

std::function<int()> register_bundle(CLI::App& app) {
  auto* command = app.add_subcommand(
      "bundle", "Make a folder that programs start from without compiler, database or writing");
  command->footer(kBundleFooter);
  command->require_subcommand(0, 1);
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<BundleOptions>();
  auto* checked = command->add_subcommand("check", "Say what a bundle lacks for a model");
  for (auto* sub : {command, checked}) {
    add_work(*sub, *work);
    add_json(*sub, *global);
  }
  add_database(*command, *global);
  command->add_option("-o,--output", options->folder, "The folder; it must not exist yet");
  command->add_option("--targets", options->targets,
                      "What it is for: sm_90a,x86-64-v4,x86-64-v3:..., as `qturn devices` lists");
  command->add_option("--key", options->key, "Sign it with this secret key (qturn db keygen)");
  checked->add_option("FOLDER", options->folder, "The bundle")->required();
  return [=] {
    if (checked->parsed()) return check(*work, *global, options->folder);
    if (options->folder.empty() || options->targets.empty())
      return fail(Status(Code::invalid_argument, "say where and for what: -o DIR --targets NAMES"));
    return make(*work, *global, *options);
  };
}

}  // namespace quarterturn
