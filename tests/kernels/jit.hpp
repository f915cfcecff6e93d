// Compiles emitted CPU sources with the host compiler and runs them, part by part.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "generator/digest.hpp"
#include "generator/family.hpp"
#include "tests/templates/command.hpp"

namespace quarterturn::jit {

/// The compiler's flags for a target, as the back end states them.
inline std::string flags_of(const Target& target) {
  static const std::map<std::string, std::string> of_feature = {
      {"avx512_vnni", "-mavx512vnni"},
      {"avx512_vbmi", "-mavx512vbmi"},
      {"avx512_bf16", "-mavx512bf16"},
      {"avx_vnni", "-mavxvnni"},
      {"amx_int8", "-mamx-int8 -mamx-tile"}};
  std::string out =
      "-std=c++17 -O3 -ffp-contract=off -fno-math-errno -fvisibility=hidden -shared -fPIC";
  if (target.arch != "aarch64") out += " -march=" + target.arch;
  for (const auto& feature : target.features) out += " " + of_feature.at(feature);
  return out;
}

/// Targets between those of targets(), for what depends on a single feature.
enum class Targets { main, all };

/// The CPU targets that this machine can run, most capable first.
inline std::vector<Target> targets(Targets which = Targets::main) {
  const bool all = which == Targets::all;
  std::vector<Target> out;
  const auto add = [&out](const std::string& key) { out.push_back(*parse_target(key)); };
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("f16c");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512cd");
  if (v4 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi"))
    add("x86-64-v4:avx512_vbmi,avx512_vnni");
  if (all && v4 && __builtin_cpu_supports("avx512vnni")) add("x86-64-v4:avx512_vnni");
  if (all && v3 && __builtin_cpu_supports("avxvnni")) add("x86-64-v3:avx_vnni");
  if (v3) add("x86-64-v3");
  add("x86-64");
#elif defined(__aarch64__)
  add("aarch64");
#endif
  return out;
}

/// The library made of a text, kept in the build folder under the hash of all that it depends on:
/// each test case is a process of its own, and many need the same kernels.
inline std::string compiled(const std::string& text, const std::string& flags) {
  const std::string name = hex(sha256(text + "\n" + flags + "\n" QTURN_CXX " " __VERSION__));
  std::filesystem::create_directories(QTURN_KERNELS_FOLDER);
  const std::string path = QTURN_KERNELS_FOLDER "/" + name + ".so";
  if (std::filesystem::exists(path)) return path;
  const std::string mine = path + "." + std::to_string(getpid());
  std::ofstream(mine + ".cpp") << text;
  const auto outcome = command::run(QTURN_CXX " " + flags + " " + mine + ".cpp -o " + mine);
  std::filesystem::remove(mine + ".cpp");
  REQUIRE_MESSAGE(outcome.status == 0, outcome.output);
  std::filesystem::rename(mine, path);
  return path;
}

class Kernel {
 public:
  Kernel(const Family& family, Problem problem, const Target& target, Variant variant)
      : family_(family), problem_(std::move(problem)), variant_(std::move(variant)) {
    const auto status = family.check(problem_, target, variant_);
    REQUIRE_MESSAGE(status.ok(), status.message());
    const Source source = family.emit(problem_, target, variant_);
    const auto text = flatten(source);
    REQUIRE_MESSAGE(text.ok(), text.status().message());
    const std::string output = compiled(*text, flags_of(target));
    library_ = dlopen(output.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library_ != nullptr, dlerror());
    entry_ = reinterpret_cast<Entry>(dlsym(library_, source.entry.c_str()));
    const bool found = entry_ != nullptr;
    REQUIRE_MESSAGE(found, source.entry);
  }
  ~Kernel() {
    if (library_) dlclose(library_);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// All parts, last first: their order must not matter.
  void run(const qt_args& args) const {
    const auto parts = family_.launch(problem_, variant_, args, 1).parts;
    for (auto part = parts; part-- > 0;) entry_(&args, part);
  }
  const Variant& variant() const { return variant_; }

 private:
  using Entry = void (*)(const qt_args*, long long);
  const Family& family_;
  Problem problem_;
  Variant variant_;
  void* library_ = nullptr;
  Entry entry_ = nullptr;
};

/// A kernel compiled at its first use and kept for the other cases of the program.
inline const Kernel& kernel(const Family& family, const Problem& problem, const Target& target,
                            const Variant& variant) {
  static std::map<std::string, std::unique_ptr<Kernel>> all;
  auto& slot = all[target.key() + " " + variant.text() + " " + problem.key()];
  if (!slot) slot = std::make_unique<Kernel>(family, problem, target, variant);
  return *slot;
}

}  // namespace quarterturn::jit
