#include "tuner/commands/doctor_cluster.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <filesystem>

#include "cache/filesystem.hpp"
#include "cache/publication.hpp"
#include "runtime/cpu/features.hpp"
#include "runtime/cpu/host_compiler.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/hip/backend.hpp"
#include "runtime/open_backend.hpp"
#include "runtime/version.hpp"
#include "tuner/compile_slots.hpp"
#include "tuner/node_facts.hpp"

namespace quarterturn {
namespace {

struct ClusterOptions {
  bool gather = false;
  std::string node, shared;
  std::vector<std::string> compared;
};

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, HOST_NAME_MAX) != 0 || *name == 0) return "localhost";
  return name;
}

/// Prints one node's facts as they are found.
class Facts {
 public:
  explicit Facts(std::string node) : node_(std::move(node)) {}
  void add(const std::string& fact, const std::string& value) {
    text_ += line_of({node_, fact, value});
  }
  /// At once: lines of many nodes may go to one pipe.
  void print() const { std::fwrite(text_.data(), 1, text_.size(), stdout); }

 private:
  std::string node_, text_;
};

// By what a file is dated that is written there now: this machine's time minus that one's, seconds.
Result<double> clock_against(const std::string& folder) {
  const auto path = fmt::format("{}/.{}.clock", folder, unique_name());
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return system_status(errno, fmt::format("create {}", path));
  const double before = now();
  struct stat info {};
  const bool dated = write(file, "x", 1) == 1 && fsync(file) == 0 && fstat(file, &info) == 0;
  const int error = errno;
  const double after = now();
  close(file);
  unlink(path.c_str());
  if (!dated) return system_status(error, fmt::format("write {}", path));
  const double there =
      static_cast<double>(info.st_mtim.tv_sec) + 1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
  return 0.5 * (before + after) - there;
}

void add_place(Facts& facts, const std::string& name, const std::string& path) {
  const auto filesystem = filesystem_of(path);
  facts.add(name + " filesystem",
            fmt::format("{} {}", filesystem.kind == FilesystemKind::network ? "network" : "local",
                        filesystem.name));
  std::string existing = path;
  struct statvfs room {};
  while (statvfs(existing.c_str(), &room) != 0) {
    const auto above = folder_of(existing);
    if (above == existing) return;
    existing = above;
  }
  facts.add(name + " free", fmt::format("{}", static_cast<std::uint64_t>(room.f_bavail) *
                                                  static_cast<std::uint64_t>(room.f_frsize)));
}

void add_places(Facts& facts, const Settings& settings, const std::string& shared) {
  if (!shared.empty()) {
    add_place(facts, "shared", shared);
    const auto clock = clock_against(shared);
    facts.add("clock", clock.ok() ? fmt::format("{:.6f}", *clock) : clock.status().message());
  }
  std::error_code ignored;
  const auto scratch = std::filesystem::temp_directory_path(ignored);
  add_place(facts, "scratch", scratch.empty() ? "/tmp" : scratch.string());
  const auto locations = settings.locations();
  if (!locations.ok()) {
    facts.add("database filesystem", locations.status().message());
    return;
  }
  if (!locations->database.empty()) add_place(facts, "database", locations->database);
  if (locations->code_cache.empty()) return;
  add_place(facts, "code", locations->code_cache);
  if (!std::filesystem::exists(locations->code_cache, ignored)) return;
  CodeStoreOptions options;
  options.use = StoreUse::frozen;
  options.fallback = StoreFallback::none;
  if (auto store = CodeStore::open(locations->code_cache, options); store.ok())
    facts.add("code kernels", fmt::format("{}", store->usage().entries));
}

void add_snapshots(Facts& facts, const Settings& settings) {
  for (const auto& path : settings.list(Setting::snapshots)) {
    auto snapshot = open_current(path, settings.list(Setting::snapshot_keys));
    std::string value = snapshot.status().message();
    if (snapshot.ok()) {
      const auto winners = snapshot->database.content_hash(Content::winners);
      value = winners.ok()
                  ? fmt::format("generation {}, winners {}", snapshot->number, hex(*winners))
                  : winners.status().message();
    }
    facts.add("snapshot " + path, value);
  }
}

void add_settings(Facts& facts, const Settings& settings) {
  constexpr Setting alike[] = {Setting::backend, Setting::on_miss,   Setting::no_jit,
                               Setting::disable, Setting::snapshots, Setting::snapshot_keys,
                               Setting::bundle,  Setting::lock,      Setting::data_profile};
  for (const auto& spec : setting_specs())
    for (const Setting one : alike)
      if (spec.id == one) facts.add("setting " + std::string(spec.name), settings.text(one));
}

void add_device(Facts& facts, const std::string& name, const DeviceInfo& device) {
  facts.add("device " + name,
            fmt::format("{} ({})", device.target.key(), device.performance_class));
}

void add_devices(Facts& facts, const Settings& settings) {
  const auto machine = cpu::detect_cpu();
  facts.add("cores", fmt::format("{}", usable_cores()));
  facts.add("device cpu",
            fmt::format("{} ({})", machine.target.key(), machine.performance_class(machine.cores)));
  const auto nvidia = cuda::device_count();
  for (std::int32_t i = 0; nvidia.ok() && i < *nvidia; ++i) {
    cuda::BackendOptions options;
    options.ordinal = i;
    const auto backend = cuda::open_backend(nullptr, options);
    if (!backend.ok()) {
      facts.add(fmt::format("device cuda:{}", i), backend.status().message());
      continue;
    }
    add_device(facts, fmt::format("cuda:{}", i), (*backend)->device());
    if (i == 0) facts.add("driver nvidia", (*backend)->device().driver);
  }
  const auto amd = hip::device_count(settings.text(Setting::hip_runtime));
  for (std::int32_t i = 0; amd.ok() && i < *amd; ++i) {
    hip::BackendOptions options;
    options.ordinal = i;
    options.runtime = settings.text(Setting::hip_runtime);
    options.jit = hip::Jit::off;
    const auto backend = hip::open_backend(nullptr, options);
    if (!backend.ok()) {
      facts.add(fmt::format("device hip:{}", i), backend.status().message());
      continue;
    }
    add_device(facts, fmt::format("hip:{}", i), (*backend)->device());
    if (i == 0) facts.add("driver amd", (*backend)->device().driver);
  }
}

void add_compilers(Facts& facts, const Settings& settings) {
  const auto worker = Worker(settings.text(Setting::worker));
  const auto host =
      cpu::HostCompiler::find(settings.text(Setting::cxx), worker, compile_limits(settings));
  facts.add("compiler c++", host.ok() ? host->identity() : "");
  if (const auto nvrtc = cuda::nvrtc_identity(); nvrtc.ok())
    facts.add("compiler nvrtc", fmt::format("{}.{}", nvrtc->major, nvrtc->minor));
}

int gather(const GlobalOptions& global, const ClusterOptions& options) {
  std::error_code ignored;
  if (!options.shared.empty() && !std::filesystem::is_directory(options.shared, ignored))
    return fail(Status(
        Code::invalid_argument,
        fmt::format("--shared {}: there is no such folder on {}", options.shared, host_name())));
  auto sources = sources_of(global);
  if (!sources.ok()) return fail(sources.status());
  const auto settings = Settings::load(*sources);
  Facts facts(options.node.empty() ? host_name() : options.node);
  facts.add("library", std::string(kVersion));
  add_settings(facts, settings);
  add_snapshots(facts, settings);
  add_devices(facts, settings);
  add_compilers(facts, settings);
  add_places(facts, settings, options.shared);
  facts.print();
  return kExitOk;
}

int compare(const GlobalOptions& global, const std::vector<std::string>& files) {
  NodeFacts nodes;
  for (const auto& path : files) {
    const auto text =
        path == "-" ? read_to_end(STDIN_FILENO, "standard input") : read_whole_file(path);
    if (!text.ok()) return fail(text.status());
    if (auto status = add_facts(*text, path, nodes); !status.ok()) return fail(status);
  }
  if (nodes.empty())
    return fail(Status(Code::invalid_argument,
                       "no node said anything: `qturn doctor --cluster` prints what is compared"));
  Table table({"what", "state", "nodes", "found", "remedy"});
  std::size_t wrong = 0, noted = 0;
  for (const auto& finding : compare_nodes(nodes)) {
    table.add({finding.fact, std::string(state_name(finding.state)), finding.nodes, finding.found,
               finding.remedy});
    wrong += finding.state == Finding::State::wrong;
    noted += finding.state == Finding::State::note;
  }
  table.print(global.json);
  std::fprintf(stderr, "qturn: %zu nodes: %zu things are wrong, %zu could be better\n",
               nodes.size(), wrong, noted);
  return wrong > 0 ? kExitFailed : kExitOk;
}

}  // namespace

std::function<std::optional<int>(const GlobalOptions&)> register_cluster(CLI::App& doctor) {
  auto options = std::make_shared<ClusterOptions>();
  auto* cluster =
      doctor.add_flag("--cluster", options->gather, "Print what this node is, for --compare");
  doctor
      .add_option("--shared", options->shared,
                  "A folder that all nodes see: clocks are compared with its file server's")
      ->needs(cluster);
  doctor.add_option("--node", options->node, "This node's name (default: the host's)")
      ->needs(cluster);
  doctor.add_option("--compare", options->compared,
                    "Files of such lines, - for standard input: say where nodes differ");
  return [options](const GlobalOptions& global) -> std::optional<int> {
    if (!options->compared.empty()) return compare(global, options->compared);
    if (options->gather) return gather(global, *options);
    return std::nullopt;
  };
}

}  // namespace quarterturn
