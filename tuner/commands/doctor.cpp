// qturn doctor: what this machine has and lacks, and how to mend what is wrong.
#include <fmt/format.h>

#include <filesystem>

#include "generator/hip/families.hpp"
#include "runtime/cpu/features.hpp"
#include "runtime/cpu/host_compiler.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/hip/backend.hpp"
#include "runtime/open_backend.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/doctor_cluster.hpp"
#include "tuner/commands/proofs.hpp"

namespace quarterturn {
namespace {

constexpr const char* kDoctorFooter = R"(Examples:
  qturn doctor
  srun --ntasks-per-node=1 qturn doctor --cluster --shared /shared/scratch > nodes.jsonl
  qturn doctor --compare nodes.jsonl
  for n in n1 n2; do ssh $n qturn doctor --cluster; done | qturn doctor --compare -

--cluster prints what this node is, one JSON object a line: versions, drivers, compilers, devices,
settings, snapshots, file systems and the room on them. --shared names a folder that all nodes see: its
file server's time is what clocks are compared with. --compare reads the lines of all nodes, from any
launcher, and says what differs and what to do.

Exit codes: 0 nothing is wrong; 1 something is; 2 the command line or a file does not make sense.)";

// "ok", "note" (works, could be better) or "wrong" (something does not work).
class Report {
 public:
  void ok(const std::string& what, const std::string& found) { table_.add({what, "ok", found}); }
  void note(const std::string& what, const std::string& found) {
    table_.add({what, "note", found});
  }
  void wrong(const std::string& what, const std::string& found) {
    table_.add({what, "wrong", found});
    sound_ = false;
  }
  int finish(bool json) const {
    table_.print(json);
    return sound_ ? kExitOk : kExitFailed;
  }

 private:
  Table table_{{"what", "state", "found"}};
  bool sound_ = true;
};

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

void examine_cpu(Report& report) {
  const auto machine = cpu::detect_cpu();
  const auto found =
      fmt::format("{} ({}, {} workers)", machine.target.key(), machine.name, machine.cores);
  if (machine.target.arch == "x86-64" || (machine.target.arch == "x86-64-v2"))
    report.note("instruction set",
                found + ": portable kernels only; AVX2 or AVX-512 VNNI would be many times faster");
  else
    report.ok("instruction set", found);
}

void examine_compiler(Report& report, const Settings& settings) {
  const auto worker = Worker(settings.text(Setting::worker));
  if (worker.path().empty())
    report.note("worker program",
                "quarterturn-worker is not installed beside the library: /bin/sh sets compilers' "
                "limits instead");
  else
    report.ok("worker program", worker.path());
  const std::string slow = "without it the prebuilt portable kernels serve, which are much slower";
  auto compiler =
      cpu::HostCompiler::find(settings.text(Setting::cxx), worker, compile_limits(settings));
  if (!compiler.ok()) {
    report.wrong("C++ compiler", one_line(compiler.status().message()) + "; " + slow +
                                     ". Install g++, or name one in QTURN_CXX");
    return;
  }
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("qturn-doctor-{}", text(random_uuid()));
  std::error_code ignored;
  std::filesystem::create_directory(folder, ignored);
  const auto status = compiler->check(cpu::detect_cpu().target, folder.string());
  std::filesystem::remove_all(folder, ignored);
  if (status.ok() && settings.text(Setting::no_jit) == "1")
    report.note("C++ compiler", compiler->identity() +
                                    ", but compiling is switched off (QTURN_NO_JIT = 1): what is "
                                    "not stored is served by prebuilt portable kernels, which are "
                                    "much slower");
  else if (status.ok())
    report.ok("C++ compiler", compiler->identity());
  else
    report.wrong("C++ compiler", one_line(status.message()) + "; " + slow);
}

void examine_files(Report& report, const Settings& settings) {
  for (const auto& problem : settings.problems()) report.wrong("settings", problem);
  auto locations = settings.locations();
  if (!locations.ok()) return report.wrong("cache folder", locations.status().message());
  if (!locations->note.empty()) report.note("cache folder", locations->note);
  auto database = Database::open(locations->database);
  if (!database.ok()) return report.wrong("tuning database", one_line(database.status().message()));
  for (const auto& note : database->take_notes()) report.note("tuning database", note);
  const auto info = database->info();
  if (info.ok())
    report.ok("tuning database", fmt::format("{}: {} problems decided, {} trials",
                                             info->path.empty() ? "in memory" : info->path,
                                             info->winners, info->trials));
  if (const auto held = quarantine_note(*database)) report.note("quarantine", *held);
  auto store = CodeStore::open(locations->code_cache);
  if (!store.ok()) return report.wrong("code cache", one_line(store.status().message()));
  for (const auto& note : store->take_notes()) report.note("code cache", note);
  const auto usage = store->usage();
  report.ok("code cache", fmt::format("{}: {} kernels, {} KiB", store->folder(), usage.entries,
                                      usage.bytes / 1024));
}

void examine_nvidia(Report& report, const Settings& settings) {
  const auto devices = cuda::device_count(settings.text(Setting::cuda_driver));
  if (devices.ok())
    report.ok("NVIDIA driver", fmt::format("{} device(s)", *devices));
  else
    report.note("NVIDIA driver", one_line(devices.status().message()));
  const auto nvrtc = cuda::nvrtc_identity();
  if (nvrtc.ok())
    report.ok("NVRTC", fmt::format("{}.{} at {}", nvrtc->major, nvrtc->minor, nvrtc->path));
  else
    report.note("NVRTC", one_line(nvrtc.status().message()));
}

void examine_amd(Report& report, const Settings& settings) {
  const auto devices = hip::device_count(settings.text(Setting::hip_runtime));
  if (devices.ok()) {
    report.ok("HIP runtime", fmt::format("{} device(s)", *devices));
    const auto arch = hip::device_arch(0, settings.text(Setting::hip_runtime));
    const auto target = arch.ok() ? parse_target(*arch) : Result<Target>(arch.status());
    if (const auto unfit = target.ok() ? hip::refuse_target(*target) : std::string();
        !unfit.empty())
      report.note("AMD GPU", unfit);
  } else
    report.note("HIP runtime", one_line(devices.status().message()));
  const auto compiler = hip::Compiler::find(
      {settings.text(Setting::hiprtc), settings.text(Setting::hip_clang)}, "gfx950",
      Worker(settings.text(Setting::worker)), compile_limits(settings));
  if (compiler.ok())
    report.ok("compiler for gfx950", compiler->identity());
  else
    report.note("compiler for gfx950", one_line(compiler.status().message()));
}

}  // namespace

std::function<int()> register_doctor(CLI::App& app) {
  auto* command =
      app.add_subcommand("doctor", "Say what this machine has and lacks, and how to mend it");
  auto global = std::make_shared<GlobalOptions>();
  add_database(*command, *global);
  add_json(*command, *global);
  command->footer(kDoctorFooter);
  const auto cluster = register_cluster(*command);
  return [global, cluster] {
    if (const auto code = cluster(*global)) return *code;
    auto sources = sources_of(*global);
    if (!sources.ok()) return fail(sources.status());
    const auto settings = Settings::load(*sources);
    Report report;
    examine_cpu(report);
    examine_compiler(report, settings);
    examine_files(report, settings);
    examine_nvidia(report, settings);
    examine_amd(report, settings);
    return report.finish(global->json);
  };
}

}  // namespace quarterturn
