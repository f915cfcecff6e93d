#include "tests/simulated/kernel_compiler.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace quarterturn::simulated {
namespace {

namespace fs = std::filesystem;

// Kernels' locals must not be shared between objects (-fno-gnu-unique); products stay unfused.
constexpr const char* kFlags =
    "-std=c++20 -O1 -fPIC -fvisibility=hidden -fno-gnu-unique -ffp-contract=off -w -Wno-psabi";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

// FNV-1a twice, from different starts: names files of a cache that nobody else writes.
std::string name_of_content(std::string_view bytes) {
  std::uint64_t a = 0xcbf29ce484222325u, b = 0x9e3779b97f4a7c15u;
  for (const char c : bytes) {
    a = (a ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    b = (b ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return fmt::format("{:016x}{:016x}", a, b);
}

// Everything that stands in front of kernel text.
const std::string& headers_digest() {
  static const std::string digest = [] {
    std::vector<fs::path> files;
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(QTURN_SIMULATED_TEMPLATES) / "simulated"))
      if (entry.is_regular_file()) files.push_back(entry.path());
    files.push_back(fs::path(QTURN_SIMULATED_TEMPLATES) / "mxfp4/platform.h");
    std::sort(files.begin(), files.end());
    std::string all = std::string(kFlags) + QTURN_SIMULATED_CXX;
    for (const auto& file : files) all += read_file(file);
    return name_of_content(all);
  }();
  return digest;
}

fs::path cache_folder() {
  const char* given = std::getenv("QTURN_SIMULATED_CACHE");
  fs::path folder = given && *given ? given : QTURN_SIMULATED_KERNELS;
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  return folder;
}

std::string entries_of(std::string_view text) {
  static const std::regex kernel(
      R"((?:__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?|QT_KERNEL\s*\([^()]*\)\s*))"
      R"(([A-Za-z_]\w*)\s*\()");
  std::string out, all(text);
  for (std::sregex_iterator at(all.begin(), all.end(), kernel), end; at != end; ++at)
    out += fmt::format("QT_SIMULATED_ENTRY({})\n", (*at)[1].str());
  return out;
}

std::string first_errors(const std::string& log) {
  std::istringstream in(log);
  std::string line, out;
  for (int shown = 0; shown < 8 && std::getline(in, line);)
    if (line.find("error") != std::string::npos) out += "\n  " + line, ++shown;
  return out.empty() ? "\n  " + log.substr(0, 1000) : out;
}

// For scripts/mutate: QTURN_SIMULATED_MUTANT names a file that says which occurrence of which text
// becomes which other (three parts, 0x1e between them). A file beside it tells that this happened.
std::string mutated(std::string_view text) {
  std::string out(text);
  const char* path = std::getenv("QTURN_SIMULATED_MUTANT");
  if (!path) return out;
  const std::string rule = read_file(path);
  const auto first = rule.find('\x1e'), second = rule.find('\x1e', first + 1);
  if (second == std::string::npos) return out;
  const auto old = rule.substr(first + 1, second - first - 1);
  auto at = std::string::npos;
  for (int left = std::atoi(rule.c_str()); left > 0; --left)
    if (at = out.find(old, at == std::string::npos ? 0 : at + 1); at == std::string::npos)
      return out;
  out.replace(at, old.size(), rule.substr(second + 1));
  std::ofstream(std::string(path) + ".seen") << "replaced\n";
  return out;
}

Status build(const fs::path& source, const fs::path& object, Dialect dialect,
             const std::vector<std::string>& flags) {
  const char* const name = dialect == Dialect::cuda ? "cuda" : "hip";
  const fs::path log = object.string() + ".log";
  const auto command =
      fmt::format("{} {} {} -shared -I{} -I{} -include simulated/{}.h '{}' -o '{}' >'{}' 2>&1",
                  QTURN_SIMULATED_CXX, kFlags, fmt::join(flags, " "), QTURN_SIMULATED_PCH,
                  QTURN_SIMULATED_TEMPLATES, name, source.string(), object.string(), log.string());
  const int ended = std::system(command.c_str());
  const std::string said = read_file(log);
  std::error_code ignored;
  fs::remove(log, ignored);
  if (ended == 0) return {};
  return Status(Code::compile_failed, fmt::format("{}{}", command, first_errors(said)));
}

}  // namespace

Result<std::string> compile_kernel(std::string_view text, Dialect dialect,
                                   const std::vector<std::string>& flags) {
  static std::atomic<int> number{0};
  const auto whole = fmt::format(
      "{}\nextern \"C\" __attribute__((visibility(\"default"
      "\"))) qt::simulated::Machine* qt_simulated_machine = nullptr;\n{}",
      mutated(text), entries_of(text));
  const auto key = name_of_content(fmt::format(
      "{}\n{}\n{}\n{}", headers_digest(), static_cast<int>(dialect), fmt::join(flags, " "), whole));
  const fs::path object = cache_folder() / (key + ".so");
  if (fs::exists(object)) return read_file(object);
  const auto own = fmt::format("{}.{}.{}", key, getpid(), number++);
  const fs::path source = cache_folder() / (own + ".cpp"), made = cache_folder() / (own + ".so");
  std::ofstream(source, std::ios::binary) << whole;
  const auto status = build(source, made, dialect, flags);
  std::error_code ignored;
  if (!status.ok()) return status;
  const auto bytes = read_file(made);
  fs::rename(source, cache_folder() / (key + ".cpp"), ignored);  // for who looks for a fault
  fs::rename(made, object, ignored);
  return bytes;
}

std::size_t object_size(const void* object) {
  Elf64_Ehdr header;
  std::memcpy(&header, object, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  return header.e_shoff + std::size_t(header.e_shnum) * header.e_shentsize;
}

void* load_object(const void* object, std::string& why) {
  const auto size = object_size(object);
  if (size == 0) return why = "no ELF object", nullptr;
  std::string path = (fs::temp_directory_path() / "qturn_simulated_XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) return why = "no temporary file", nullptr;
  const bool written = write(file, object, size) == static_cast<ssize_t>(size);
  close(file);
  void* handle = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!handle) why = written ? dlerror() : "cannot write " + path;
  unlink(path.c_str());
  return handle;
}

}  // namespace quarterturn::simulated
