#include "runtime/hip/hiprtc.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/vendor_library.hpp"

namespace quarterturn::hip {
namespace {

using hiprtcProgram = struct _hiprtcProgram*;

struct HiprtcApi {
  VendorLibrary library;
  int (*hiprtcVersion)(int*, int*) = nullptr;
  int (*hiprtcCreateProgram)(hiprtcProgram*, const char*, const char*, int, const char* const*,
                             const char* const*) = nullptr;
  int (*hiprtcCompileProgram)(hiprtcProgram, int, const char* const*) = nullptr;
  int (*hiprtcDestroyProgram)(hiprtcProgram*) = nullptr;
  int (*hiprtcGetProgramLogSize)(hiprtcProgram, std::size_t*) = nullptr;
  int (*hiprtcGetProgramLog)(hiprtcProgram, char*) = nullptr;
  int (*hiprtcGetCodeSize)(hiprtcProgram, std::size_t*) = nullptr;
  int (*hiprtcGetCode)(hiprtcProgram, char*) = nullptr;
  const char* (*hiprtcGetErrorString)(int) = nullptr;
};

template <class Function>
bool bind(const VendorLibrary& library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(library.symbol(name));
  return out != nullptr;
}

Result<HiprtcApi> load(const std::string& override_path) {
  const std::vector<std::string> folders = {"/opt/rocm/lib", "/opt/rocm/lib64"};
  auto library = VendorLibrary::open(override_path, {"libhiprtc.so.7", "libhiprtc.so.6"}, folders);
  if (!library.ok())
    return Status(Code::no_compiler, fmt::format("no hipRTC: {}", library.status().message()));
  HiprtcApi api;
  api.library = std::move(*library);
  const auto& lib = api.library;
  const bool bound = bind(lib, "hiprtcVersion", api.hiprtcVersion) &&
                     bind(lib, "hiprtcCreateProgram", api.hiprtcCreateProgram) &&
                     bind(lib, "hiprtcCompileProgram", api.hiprtcCompileProgram) &&
                     bind(lib, "hiprtcDestroyProgram", api.hiprtcDestroyProgram) &&
                     bind(lib, "hiprtcGetProgramLogSize", api.hiprtcGetProgramLogSize) &&
                     bind(lib, "hiprtcGetProgramLog", api.hiprtcGetProgramLog) &&
                     bind(lib, "hiprtcGetCodeSize", api.hiprtcGetCodeSize) &&
                     bind(lib, "hiprtcGetCode", api.hiprtcGetCode) &&
                     bind(lib, "hiprtcGetErrorString", api.hiprtcGetErrorString);
  if (!bound)
    return Status(Code::no_compiler, fmt::format("{} is not hipRTC 6 or newer", lib.path()));
  return api;
}

// "gfx950" of "amdgcn-amd-amdhsa--gfx950"; comgr lists what its LLVM knows, without a GPU.
void ask_comgr(HiprtcFacts& facts) {
  const auto slash = facts.library.rfind('/');
  std::vector<std::string> folders = {"/opt/rocm/lib", "/opt/rocm/lib64"};
  if (slash != std::string::npos) folders.insert(folders.begin(), facts.library.substr(0, slash));
  const auto comgr = VendorLibrary::open({}, {"libamd_comgr.so.3", "libamd_comgr.so.2"}, folders);
  if (!comgr.ok()) return;
  int (*get_count)(std::size_t*) = nullptr;
  int (*get_name)(std::size_t, const char**) = nullptr;
  if (!bind(*comgr, "amd_comgr_get_isa_count", get_count) ||
      !bind(*comgr, "amd_comgr_get_isa_name", get_name))
    return;
  facts.comgr = comgr->path();
  std::size_t count = 0;
  if (get_count(&count) != 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    if (get_name(i, &name) != 0 || !name) continue;
    const std::string_view text(name);
    facts.architectures.emplace_back(text.substr(text.rfind('-') + 1));
  }
}

std::string log_of(const HiprtcApi& api, hiprtcProgram program) {
  std::size_t size = 0;
  if (api.hiprtcGetProgramLogSize(program, &size) != 0 || size < 2) return {};
  std::string log(size, '\0');
  api.hiprtcGetProgramLog(program, log.data());
  log.resize(size - 1);
  return log;
}

}  // namespace

Result<HiprtcFacts> hiprtc_facts(const std::string& override_path) {
  auto api = load(override_path);
  if (!api.ok()) return api.status();
  HiprtcFacts out;
  out.library = api->library.path();
  api->hiprtcVersion(&out.major, &out.minor);
  ask_comgr(out);
  return out;
}

Result<HiprtcCode> hiprtc_compile(const std::string& override_path, std::string_view text,
                                  std::string_view arch, const std::vector<std::string>& flags) {
  auto found = load(override_path);
  if (!found.ok()) return found.status();
  const HiprtcApi& api = *found;
  HiprtcFacts facts;
  facts.library = api.library.path();
  ask_comgr(facts);
  const auto& known = facts.architectures;
  // An architecture that comgr does not know ends the process.
  if (!known.empty() && std::find(known.begin(), known.end(), arch) == known.end())
    return Status(Code::no_compiler,
                  fmt::format("{} knows no {}: install a newer ROCm", facts.comgr, arch));
  std::vector<std::string> options = {fmt::format("--offload-arch={}", arch), "-std=c++17", "-O3",
                                      "-ffp-contract=off", "-mcode-object-version=5"};
  options.insert(options.end(), flags.begin(), flags.end());
  std::vector<const char*> pointers;
  for (const auto& option : options) pointers.push_back(option.c_str());
  const std::string source(text);
  hiprtcProgram program = nullptr;
  if (const auto error =
          api.hiprtcCreateProgram(&program, source.c_str(), "quarterturn.hip", 0, nullptr, nullptr))
    return Status(Code::compile_failed,
                  fmt::format("hiprtcCreateProgram: {}", api.hiprtcGetErrorString(error)));
  const auto error =
      api.hiprtcCompileProgram(program, static_cast<int>(pointers.size()), pointers.data());
  HiprtcCode out;
  out.log = log_of(api, program);
  Status status;
  std::size_t size = 0;
  if (error != 0) {
    status = Status(Code::compile_failed, fmt::format("hipRTC for {}: {}\n{}", arch,
                                                      api.hiprtcGetErrorString(error), out.log));
  } else if (api.hiprtcGetCodeSize(program, &size) != 0 || size == 0) {
    status = Status(Code::compile_failed, "hipRTC gave no code");
  } else {
    out.code.resize(size);
    api.hiprtcGetCode(program, out.code.data());
  }
  api.hiprtcDestroyProgram(&program);
  if (!status.ok()) return status;
  return out;
}

}  // namespace quarterturn::hip
