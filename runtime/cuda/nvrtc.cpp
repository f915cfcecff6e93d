#include "runtime/cuda/nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>

#include "generator/digest.hpp"
#include "runtime/vendor_library.hpp"

namespace quarterturn::cuda {
namespace {

using nvrtcProgram = struct _nvrtcProgram*;
using nvrtcResult = int;

// The program name that compilers see: fixed, because NVRTC puts it into symbols of internal
// functions.
constexpr const char* kProgramName = "quarterturn.cu";

constexpr nvrtcResult kBuiltinOperationFailed = 7;  // NVRTC_ERROR_BUILTIN_OPERATION_FAILURE

struct NvrtcApi {
  nvrtcResult (*nvrtcVersion)(int*, int*) = nullptr;
  nvrtcResult (*nvrtcGetNumSupportedArchs)(int*) = nullptr;
  nvrtcResult (*nvrtcGetSupportedArchs)(int*) = nullptr;
  nvrtcResult (*nvrtcCreateProgram)(nvrtcProgram*, const char*, const char*, int,
                                    const char* const*, const char* const*) = nullptr;
  nvrtcResult (*nvrtcCompileProgram)(nvrtcProgram, int, const char* const*) = nullptr;
  nvrtcResult (*nvrtcDestroyProgram)(nvrtcProgram*) = nullptr;
  nvrtcResult (*nvrtcGetCUBINSize)(nvrtcProgram, std::size_t*) = nullptr;
  nvrtcResult (*nvrtcGetCUBIN)(nvrtcProgram, char*) = nullptr;
  nvrtcResult (*nvrtcGetPTXSize)(nvrtcProgram, std::size_t*) = nullptr;
  nvrtcResult (*nvrtcGetPTX)(nvrtcProgram, char*) = nullptr;
  nvrtcResult (*nvrtcGetProgramLogSize)(nvrtcProgram, std::size_t*) = nullptr;
  nvrtcResult (*nvrtcGetProgramLog)(nvrtcProgram, char*) = nullptr;
  const char* (*nvrtcGetErrorString)(nvrtcResult) = nullptr;
  VendorLibrary library;
  NvrtcIdentity identity;
};

template <class F>
bool bind(const VendorLibrary& library, const char* name, F& function) {
  function = reinterpret_cast<F>(library.symbol(name));
  return function != nullptr;
}

// Two builds differ nearly everywhere, so 16 KiB of each MiB of a hundred tell them apart.
std::string file_hash(const std::string& path) {
  constexpr std::size_t kStep = 1 << 20, kPart = 16 << 10;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::size_t>(std::max<std::streamoff>(0, in.tellg()));
  std::string bytes = fmt::format("{}\n", size), part(kPart, 0);
  for (std::size_t at = 0; at < size; at += kStep) {
    in.seekg(static_cast<std::streamoff>(at));
    in.read(part.data(), static_cast<std::streamsize>(std::min(kPart, size - at)));
    bytes.append(part, 0, static_cast<std::size_t>(in.gcount()));
  }
  return hex(sha256(bytes)).substr(0, 16);
}

std::vector<std::string> toolkit_folders() {
  std::vector<std::string> out;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* root = secure_getenv(variable); root && *root)
      out.push_back(fmt::format("{}/lib64", root));
  for (const char* root :
       {"/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12", "/opt/cuda"})
    out.push_back(fmt::format("{}/lib64", root));
  return out;
}

std::string builtins_name(const NvrtcIdentity& identity) {
  return fmt::format("libnvrtc-builtins.so.{}.{}", identity.major, identity.minor);
}

// NVRTC opens its built-ins by name alone when it first compiles. Where the loader would not find
// them, the copy that belongs to this NVRTC lies beside it.
void open_builtins(const NvrtcIdentity& identity) {
  std::error_code error;
  const std::filesystem::path given(identity.path);
  const auto real = std::filesystem::canonical(given, error);
  std::vector<std::string> folders = {given.parent_path().string()};
  if (!error) folders.push_back(real.parent_path().string());
  // Stays open, as NVRTC itself does. A failure is told by the compile that needs it.
  (void)VendorLibrary::open({}, {builtins_name(identity)}, folders);
}

Result<NvrtcApi*> load(int driver_major, const std::string& override_path) {
  std::vector<std::string> sonames;
  for (const int major : {13, 12})
    if (driver_major == 0 || major <= driver_major)
      sonames.push_back(fmt::format("libnvrtc.so.{}", major));
  if (sonames.empty())
    return Status(
        Code::no_compiler,
        fmt::format("the driver supports CUDA {} only; NVRTC 12 needs a driver for CUDA 12",
                    driver_major));
  auto library = VendorLibrary::open(override_path, sonames, toolkit_folders());
  if (!library.ok())
    return Status(
        Code::no_compiler,
        fmt::format("no NVRTC, NVIDIA's run-time compiler: {}\nInstall the CUDA toolkit's NVRTC "
                    "(package cuda-nvrtc, or the Python package nvidia-cuda-nvrtc), or name the "
                    "file in QTURN_NVRTC",
                    library.status().message()));
  auto* api = new NvrtcApi;  // lives as long as the process, like the library
  api->library = std::move(*library);
  const auto& lib = api->library;
  const bool bound = bind(lib, "nvrtcVersion", api->nvrtcVersion) &&
                     bind(lib, "nvrtcGetNumSupportedArchs", api->nvrtcGetNumSupportedArchs) &&
                     bind(lib, "nvrtcGetSupportedArchs", api->nvrtcGetSupportedArchs) &&
                     bind(lib, "nvrtcCreateProgram", api->nvrtcCreateProgram) &&
                     bind(lib, "nvrtcCompileProgram", api->nvrtcCompileProgram) &&
                     bind(lib, "nvrtcDestroyProgram", api->nvrtcDestroyProgram) &&
                     bind(lib, "nvrtcGetCUBINSize", api->nvrtcGetCUBINSize) &&
                     bind(lib, "nvrtcGetCUBIN", api->nvrtcGetCUBIN) &&
                     bind(lib, "nvrtcGetPTXSize", api->nvrtcGetPTXSize) &&
                     bind(lib, "nvrtcGetPTX", api->nvrtcGetPTX) &&
                     bind(lib, "nvrtcGetProgramLogSize", api->nvrtcGetProgramLogSize) &&
                     bind(lib, "nvrtcGetProgramLog", api->nvrtcGetProgramLog) &&
                     bind(lib, "nvrtcGetErrorString", api->nvrtcGetErrorString);
  if (!bound)
    return Status(Code::no_compiler, fmt::format("{} is not NVRTC 12 or newer", lib.path()));
  auto& identity = api->identity;
  identity.path = lib.path();
  api->nvrtcVersion(&identity.major, &identity.minor);
  open_builtins(identity);
  return api;
}

Result<NvrtcApi*> nvrtc(int driver_major = 0, const std::string& override_path = {}) {
  static std::mutex mutex;
  static std::optional<Result<NvrtcApi*>> answer;
  const std::lock_guard lock(mutex);
  if (!answer) answer = load(driver_major, override_path);
  return *answer;
}

std::string first_errors(const std::string& log) {
  std::istringstream in(log);
  std::string out, line;
  for (int shown = 0; shown < 8 && std::getline(in, line);)
    if (line.find("error") != std::string::npos || line.find("fatal") != std::string::npos) {
      out += "\n  " + line;
      ++shown;
    }
  return out.empty() ? "\n  " + log.substr(0, 800) : out;
}

// What to ask NVRTC for, and what it then gives.
struct Wanted {
  std::string arch;
  enum class Form { cubin, ptx } form = Form::cubin;
};

// A chip that is newer than this NVRTC gets PTX of the newest architecture that NVRTC knows, which
// the driver finishes. Features that only one chip (a) or family (f) has are never dropped.
Result<Wanted> wanted_for(const NvrtcApi& api, std::string_view arch) {
  int capability = 0;
  const auto digits = arch.substr(std::min<std::size_t>(arch.size(), 3));
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), capability);
  int count = 0;
  std::vector<int> known;
  if (api.nvrtcGetNumSupportedArchs(&count) == 0 && count > 0) {
    known.resize(static_cast<std::size_t>(count));
    api.nvrtcGetSupportedArchs(known.data());
  }
  const int newest = known.empty() ? 0 : *std::max_element(known.begin(), known.end());
  if (error != std::errc() || newest == 0 || capability <= newest)
    return Wanted{std::string(arch), Wanted::Form::cubin};
  if (end == digits.data() + digits.size())
    return Wanted{fmt::format("compute_{}", newest), Wanted::Form::ptx};
  return Status(Code::compile_failed,
                fmt::format("NVRTC {}.{} knows architectures up to sm_{}, not {}: install a newer "
                            "CUDA toolkit's NVRTC, or name one in QTURN_NVRTC",
                            api.identity.major, api.identity.minor, newest, arch));
}

// The number that stands before `what` in `log` ("8 bytes spill stores" -> 8), the largest of all.
std::int64_t number_before(const std::string& log, std::string_view what) {
  std::int64_t most = 0;
  for (auto at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) {
    auto begin = at;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(log[begin - 1]))) --begin;
    if (begin < at)
      most =
          std::max(most, static_cast<std::int64_t>(std::strtoll(log.c_str() + begin, nullptr, 10)));
  }
  return most;
}

}  // namespace

std::string NvrtcIdentity::text() const {
  return fmt::format("nvrtc {}.{} {}", major, minor, content_hash);
}

Status nvrtc_open(int driver_major, const std::string& override_path) {
  return nvrtc(driver_major, override_path).status();
}

Result<NvrtcIdentity> nvrtc_identity(int driver_major, const std::string& override_path) {
  auto api = nvrtc(driver_major, override_path);
  if (!api.ok()) return api.status();
  static const std::string hash = file_hash((*api)->identity.path);
  NvrtcIdentity out = (*api)->identity;
  out.content_hash = hash;
  return out;
}

Result<std::vector<int>> nvrtc_architectures() {
  auto api = nvrtc();
  if (!api.ok()) return api.status();
  int count = 0;
  (*api)->nvrtcGetNumSupportedArchs(&count);
  std::vector<int> out(static_cast<std::size_t>(count));
  (*api)->nvrtcGetSupportedArchs(out.data());
  return out;
}

Result<Cubin> nvrtc_compile(std::string_view text, std::string_view arch,
                            const std::vector<std::string>& flags) {
  auto found = nvrtc();
  if (!found.ok()) return found.status();
  const NvrtcApi& api = **found;
  const auto wanted = wanted_for(api, arch);
  if (!wanted.ok()) return wanted.status();
  const bool ptx = wanted->form == Wanted::Form::ptx;
  std::vector<std::string> options = {fmt::format("--gpu-architecture={}", wanted->arch),
                                      "--std=c++17",
                                      "--fmad=false",
                                      "--ftz=false",
                                      "--prec-div=true",
                                      "--prec-sqrt=true",
                                      "--device-as-default-execution-space",
                                      "--disable-warnings"};
  if (!ptx) options.emplace_back("--ptxas-options=-v");
  // ptxas warnings still reach the log; the C++ front end's do not concern the user.
  options.insert(options.end(), flags.begin(), flags.end());
  std::vector<const char*> pointers;
  for (const auto& option : options) pointers.push_back(option.c_str());
  const std::string source(text);
  nvrtcProgram program = nullptr;
  if (const auto error =
          api.nvrtcCreateProgram(&program, source.c_str(), kProgramName, 0, nullptr, nullptr);
      error != 0)
    return Status(Code::compile_failed,
                  fmt::format("nvrtcCreateProgram: {}", api.nvrtcGetErrorString(error)));
  const auto error =
      api.nvrtcCompileProgram(program, static_cast<int>(pointers.size()), pointers.data());
  Cubin cubin;
  std::size_t size = 0;
  if (api.nvrtcGetProgramLogSize(program, &size) == 0 && size > 1) {
    cubin.log.resize(size);
    api.nvrtcGetProgramLog(program, cubin.log.data());
    cubin.log.resize(size - 1);
  }
  Status status;
  if (error == kBuiltinOperationFailed) {
    status = Status(Code::no_compiler,
                    fmt::format("NVRTC cannot open {0}, which belongs to {1}: put it beside that "
                                "file, or install NVRTC {2}.{3} again",
                                builtins_name(api.identity), api.identity.path, api.identity.major,
                                api.identity.minor));
  } else if (error != 0) {
    status = Status(Code::compile_failed,
                    fmt::format("NVRTC for {}: {}{}", arch, api.nvrtcGetErrorString(error),
                                first_errors(cubin.log)));
  } else if (ptx) {
    api.nvrtcGetPTXSize(program, &size);
    cubin.code.resize(size);
    api.nvrtcGetPTX(program, cubin.code.data());
  } else if (api.nvrtcGetCUBINSize(program, &size) != 0 || size == 0) {
    status = Status(
        Code::compile_failed,
        fmt::format("NVRTC gave no cubin for '{}'; name a real architecture (sm_90a)", arch));
  } else {
    cubin.code.resize(size);
    api.nvrtcGetCUBIN(program, cubin.code.data());
    parse_ptxas_log(cubin);
  }
  api.nvrtcDestroyProgram(&program);
  if (!status.ok()) return status;
  return cubin;
}

void parse_ptxas_log(Cubin& cubin) {
  cubin.registers = 0;
  if (const auto at = cubin.log.rfind("Used "); at != std::string::npos)
    cubin.registers = std::strtoll(cubin.log.c_str() + at + 5, nullptr, 10);
  cubin.spill_bytes = number_before(cubin.log, " bytes spill stores") +
                      number_before(cubin.log, " bytes spill loads");
  cubin.shared_bytes = number_before(cubin.log, " bytes smem");
  cubin.serialised_wgmma =
      cubin.log.find("C7510") != std::string::npos ||
      cubin.log.find("C7514") != std::string::npos ||
      cubin.log.find("wgmma.mma_async instructions are serialized") != std::string::npos;
}

}  // namespace quarterturn::cuda
