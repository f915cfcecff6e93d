// Launches on the simulated machine; code is shared objects of the hipRTC double below, with the
// note that a code object has. QTURN_SIMULATED_SEED and QTURN_SIMULATED_LANDING (late, eager,
// mixed) say how launches run.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "tests/hip/device_work.hpp"
#include "tests/simulated/device_memory.hpp"
#include "tests/simulated/kernel_compiler.hpp"
#include "tests/simulated/scheduler.hpp"

using namespace quarterturn;

namespace qturn_test::work {
namespace {

struct Kernel {
  std::string name;
  const simulated::Entry* entry;
  simulated::Machine** slot;
};
struct Code {
  void* handle;
  std::vector<std::unique_ptr<Kernel>> kernels;
};

std::string& said() {
  static std::string text = "no failure";
  return text;
}

simulated::Schedule schedule() {
  simulated::Schedule out;
  if (const char* seed = std::getenv("QTURN_SIMULATED_SEED"))
    out.seed = std::strtoull(seed, nullptr, 10);
  const char* landing = std::getenv("QTURN_SIMULATED_LANDING");
  const std::string word = landing ? landing : "late";
  out.landing = word == "eager"   ? simulated::Landing::eager
                : word == "mixed" ? simulated::Landing::mixed
                                  : simulated::Landing::late;
  return out;
}

}  // namespace

Model model() { return {"simulated gfx950", 4, std::size_t{1} << 30}; }

void* allocate(std::size_t bytes) { return simulated::allocate_guarded(bytes); }
void release(void* memory) {
  if (memory) simulated::free_guarded(memory);
}

void* load(const void* image) {
  void* handle = simulated::load_object(image, said());
  return handle ? new Code{handle, {}} : nullptr;
}
void unload(void* code) {
  dlclose(static_cast<Code*>(code)->handle);
  delete static_cast<Code*>(code);
}
void* entry(void* code, const char* name) {
  auto& all = *static_cast<Code*>(code);
  const auto* entry = static_cast<const simulated::Entry*>(
      dlsym(all.handle, (std::string(name) + "_simulated").c_str()));
  auto* slot = static_cast<simulated::Machine**>(dlsym(all.handle, "qt_simulated_machine"));
  if (!entry || !slot) return nullptr;
  all.kernels.push_back(std::make_unique<Kernel>(Kernel{name, entry, slot}));
  return all.kernels.back().get();
}

bool run(void* entry, const RecordedLaunch& launch) {
  const auto& kernel = *static_cast<const Kernel*>(entry);
  simulated::LaunchShape shape;
  shape.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  shape.block = {launch.block[0], launch.block[1], launch.block[2]};
  shape.shared_bytes = launch.shared_bytes;
  void* parameters[] = {const_cast<qt_args*>(&launch.args)};
  said() = simulated::run(shape, schedule(), *kernel.entry, parameters, kernel.slot,
                          simulated::describe_address);
  return said().empty();
}
const std::string& failure() { return said(); }

}  // namespace qturn_test::work

// ---- hipRTC

namespace {

struct Program {
  std::string text, code, log;
};

// The note of a code object with these kernels, as assembly: figures are made up.
std::string note_of(const std::string& text) {
  static const std::regex kernel(R"(QT_KERNEL\s*\([^()]*\)\s*([A-Za-z_]\w*)\s*\()");
  nlohmann::json map = {{"amdhsa.target", "amdgcn-amd-amdhsa--gfx950"},
                        {"amdhsa.kernels", nlohmann::json::array()}};
  for (std::sregex_iterator at(text.begin(), text.end(), kernel), end; at != end; ++at)
    map["amdhsa.kernels"].push_back(
        {{".name", (*at)[1].str()}, {".vgpr_count", 64}, {".wavefront_size", 64}});
  const auto bytes = nlohmann::json::to_msgpack(map);
  std::string out = "asm(\".pushsection .note.amdgpu,\\\"a\\\",@note\\n.balign 4\\n.long 7, " +
                    std::to_string(bytes.size()) +
                    ", 32\\n.asciz \\\"AMDGPU\\\"\\n.balign 4\\n.byte ";
  for (std::size_t i = 0; i < bytes.size(); ++i) out += (i ? ", " : "") + std::to_string(bytes[i]);
  return out + "\\n.balign 4\\n.popsection\\n\");\n";
}

}  // namespace

#define QT_EXPORT __attribute__((visibility("default")))

extern "C" {

/// That the device is simulated, and which (runtime/gpu_backend.hpp).
QT_EXPORT const char* qturn_simulated_devices() { return "gfx950"; }

QT_EXPORT int hiprtcVersion(int* major, int* minor) { return *major = 7, *minor = 1, 0; }
QT_EXPORT int hiprtcCreateProgram(Program** program, const char* text, const char*, int,
                                  const char* const*, const char* const*) {
  return *program = new Program{text, {}, {}}, 0;
}
QT_EXPORT int hiprtcCompileProgram(Program* program, int, const char* const*) {
  auto made = simulated::compile_kernel(program->text + "\n" + note_of(program->text),
                                        simulated::Dialect::hip);
  if (made.ok())
    program->code = std::move(*made);
  else
    program->log = made.status().message();
  return made.ok() ? 0 : 6;
}
QT_EXPORT int hiprtcDestroyProgram(Program** program) {
  delete *program;
  return *program = nullptr, 0;
}
QT_EXPORT int hiprtcGetProgramLogSize(Program* program, std::size_t* size) {
  return *size = program->log.size() + 1, 0;
}
QT_EXPORT int hiprtcGetProgramLog(Program* program, char* log) {
  return std::memcpy(log, program->log.c_str(), program->log.size() + 1), 0;
}
QT_EXPORT int hiprtcGetCodeSize(Program* program, std::size_t* size) {
  return *size = program->code.size(), 0;
}
QT_EXPORT int hiprtcGetCode(Program* program, char* code) {
  return std::memcpy(code, program->code.data(), program->code.size()), 0;
}
QT_EXPORT const char* hiprtcGetErrorString(int error) {
  return error == 0 ? "HIPRTC_SUCCESS" : "HIPRTC_ERROR_COMPILATION (simulated)";
}
}
