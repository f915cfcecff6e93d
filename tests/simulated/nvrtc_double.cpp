// A double of libnvrtc: kernel text is compiled by the host compiler for the simulated machine, for
// whatever architecture is asked for. The "cubin" is a shared object.
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/simulated/kernel_compiler.hpp"

using namespace quarterturn;

namespace {

struct Program {
  std::string text, code, log;
};

constexpr int kOk = 0, kCompilation = 6;
constexpr int kArchitectures[] = {80, 90, 100, 120};

}  // namespace

#define QT_EXPORT __attribute__((visibility("default")))

extern "C" {

QT_EXPORT int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, kOk; }
QT_EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  return *count = static_cast<int>(std::size(kArchitectures)), kOk;
}
QT_EXPORT int nvrtcGetSupportedArchs(int* all) {
  return std::memcpy(all, kArchitectures, sizeof kArchitectures), kOk;
}
QT_EXPORT int nvrtcCreateProgram(Program** program, const char* text, const char*, int,
                                 const char* const*, const char* const*) {
  return *program = new Program{text, {}, {}}, kOk;
}
QT_EXPORT int nvrtcCompileProgram(Program* program, int, const char* const*) {
  auto made = simulated::compile_kernel(program->text, simulated::Dialect::cuda);
  if (!made.ok()) {
    program->log = made.status().message();
    return kCompilation;
  }
  program->code = std::move(*made);
  program->log = "simulated: Used 32 registers\n";
  return kOk;
}
QT_EXPORT int nvrtcDestroyProgram(Program** program) {
  delete *program;
  return *program = nullptr, kOk;
}
QT_EXPORT int nvrtcGetCUBINSize(Program* program, std::size_t* size) {
  return *size = program->code.size(), kOk;
}
QT_EXPORT int nvrtcGetCUBIN(Program* program, char* code) {
  return std::memcpy(code, program->code.data(), program->code.size()), kOk;
}
QT_EXPORT int nvrtcGetPTXSize(Program*, std::size_t* size) { return *size = 0, kOk; }
QT_EXPORT int nvrtcGetPTX(Program*, char*) { return kOk; }
QT_EXPORT int nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
  return *size = program->log.size() + 1, kOk;
}
QT_EXPORT int nvrtcGetProgramLog(Program* program, char* log) {
  return std::memcpy(log, program->log.c_str(), program->log.size() + 1), kOk;
}
QT_EXPORT const char* nvrtcGetErrorString(int error) {
  return error == kOk ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION (simulated)";
}

}  // extern "C"
