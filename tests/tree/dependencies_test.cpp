// The folders depend one way: tuner -> runtime -> {generator, cache}, cache -> generator ->
// templates.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "tests/tree/source_files.hpp"

namespace {

const std::map<std::string, std::set<std::string>> may_include = {
    {"templates", {}},
    {"reference", {}},
    {"generator", {"templates"}},
    {"cache", {"generator"}},
    {"runtime", {"generator", "cache", "templates"}},
    {"tuner", {"runtime", "generator", "cache", "templates", "reference"}},
};

// The folder an include names, or empty for system headers and for files beside the including one.
std::string included_folder(const std::string& line) {
  const std::string prefix = "#include \"";
  if (line.rfind(prefix, 0) != 0) return {};
  const auto path = line.substr(prefix.size(), line.find('"', prefix.size()) - prefix.size());
  const auto slash = path.find('/');
  const auto folder = slash == std::string::npos ? std::string{} : path.substr(0, slash);
  // Kernel texts name each other below templates/, as the generator flattens them.
  if (folder == "mxfp4" || folder == "cpu" || folder == "cuda" || folder == "hip")
    return "templates";
  return folder;
}

}  // namespace

TEST_CASE("folders include only what the design lets them") {
  std::size_t includes = 0;
  for (const auto& file : quarterturn::tree::source_files(
           {"templates", "reference", "generator", "cache", "runtime", "tuner"})) {
    const auto& allowed = may_include.at(file.folder());
    for (const auto& line : file.lines) {
      const auto folder = included_folder(line);
      if (may_include.count(folder) == 0 || folder == file.folder()) continue;
      ++includes;
      CHECK_MESSAGE(allowed.count(folder) == 1, file.path << " must not include " << line);
    }
  }
  CHECK(includes > 20);
}

TEST_CASE("kernel texts include nothing from outside, but intrinsics in the primitive layer") {
  for (const auto& file : quarterturn::tree::source_files({"templates"})) {
    if (file.path == "templates/embedded.hpp") continue;
    if (file.path.starts_with("templates/simulated/")) continue;  // host code, of tests alone
    const bool primitives = file.path.find("primitives") != std::string::npos;
    for (const auto& line : file.lines)
      if (line.rfind("#include <", 0) == 0)
        CHECK_MESSAGE((primitives && line == "#include <immintrin.h>"), file.path << ": " << line);
  }
}

TEST_CASE("kernel texts and what is shipped include no simulated primitives") {
  for (const auto& file : quarterturn::tree::source_files(
           {"templates", "reference", "generator", "cache", "runtime", "tuner"})) {
    if (file.path.starts_with("templates/simulated/")) continue;
    for (const auto& line : file.lines)
      if (line.starts_with("#include"))
        CHECK_MESSAGE(line.find("simulated/") == std::string::npos, file.path << ": " << line);
  }
}

TEST_CASE("raw instructions stay in the primitive layer") {
  for (const auto& file : quarterturn::tree::source_files({"templates"})) {
    if (file.path.find("primitives") != std::string::npos ||
        file.path.find("platform.h") != std::string::npos)
      continue;
    for (const auto& line : file.lines)
      for (const auto* word : {"asm(", "asm volatile", "_mm512_", "_mm256_", "_mm_",
                               "__builtin_ia32", "__builtin_amdgcn"})
        CHECK_MESSAGE(line.find(word) == std::string::npos, file.path << ": " << line);
  }
}
