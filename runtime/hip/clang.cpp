#include "runtime/hip/clang.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "generator/digest.hpp"
#include "runtime/cpu/host_compiler.hpp"

namespace quarterturn::hip {
namespace {

// Not the user's where the program has other rights than the user (setuid).
std::string search_path() {
  const char* path = ::secure_getenv("PATH");
  return path ? path : "/usr/local/bin:/usr/bin:/bin";
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

Result<Clang> Clang::find(const std::string& wanted, const Worker& worker, WorkerLimits limits) {
  std::vector<std::string> candidates = {wanted};
  if (wanted.empty()) candidates = {"/opt/rocm/llvm/bin/clang", "clang-22", "clang-23", "clang"};
  std::string tried;
  for (const auto& candidate : candidates) {
    const auto file = cpu::find_in_path(candidate, search_path());
    Status status(Code::no_compiler, "not found");
    if (!file.empty()) {
      Clang clang(file, worker, limits);
      status = clang.identify();
      if (status.ok()) return clang;
    }
    tried += fmt::format("\n  {}: {}", candidate, status.message());
  }
  return Status(Code::no_compiler,
                fmt::format("no clang that compiles for gfx950 was found; install ROCm, or clang "
                            "and lld 22 (Debian: apt-get install clang-22 lld-22), or name one in "
                            "QTURN_HIP_CLANG. Tried:{}",
                            tried));
}

Status Clang::identify() {
  WorkerCommand ask;
  ask.arguments = {"/bin/sh", "-c",
                   "\"$1\" --version && echo @ && \"$1\" -print-prog-name=ld.lld && echo @ && "
                   "\"$1\" --target=amdgcn-amd-amdhsa --print-supported-cpus",
                   "sh", command_};
  ask.limits = limits_;
  ask.limits.wall_seconds = std::min<std::int64_t>(limits_.wall_seconds, 20);
  auto answer = worker_.run(ask);
  if (!answer.ok()) return answer.status();
  const std::string& text = answer->output;
  const auto first = text.find("@\n");
  const auto second = first == std::string::npos ? first : text.find("@\n", first + 2);
  if (!answer->succeeded() || second == std::string::npos)
    return Status(Code::no_compiler,
                  fmt::format("does not say what it is: {}\n{}", answer->ending(ask.limits),
                              cpu::beginning_of(text, 3)));
  if (text.find("gfx950", second) == std::string::npos)
    return Status(Code::no_compiler, "does not know gfx950");
  const auto linker =
      cpu::find_in_path(first_line(std::string_view(text).substr(first + 2)), search_path());
  if (linker.empty()) return Status(Code::no_compiler, "has no ld.lld beside it");
  const auto binaries = cpu::content_id(command_) + " " + cpu::content_id(linker);
  identity_ = fmt::format("{} {}", first_line(text), hex(sha256(binaries)).substr(0, 16));
  return {};
}

std::vector<std::string> Clang::flags_for(const Target& target) {
  return {"-x",
          "hip",
          "--offload-arch=" + target.arch,
          "--cuda-device-only",
          "--no-gpu-bundle-output",
          "-nogpulib",
          "-nogpuinc",
          "-mcode-object-version=5",
          "-std=c++17",
          "-O3",
          "-ffp-contract=off"};
}

Result<std::string> Clang::compile(std::string_view text, const Target& target,
                                   const std::vector<std::string>& extra_flags,
                                   const std::string& directory) const {
  const auto source = directory + "/source.hip";
  std::ofstream out(source, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return Status(Code::io_error, fmt::format("cannot write {}", source));
  WorkerCommand command;
  command.arguments = {command_};
  for (auto& flag : flags_for(target)) command.arguments.push_back(std::move(flag));
  command.arguments.insert(command.arguments.end(), extra_flags.begin(), extra_flags.end());
  for (const auto* word : {"-o", "kernel.hsaco", "source.hip"})
    command.arguments.emplace_back(word);
  command.directory = directory;
  command.limits = limits_;
  auto report = worker_.run(command);
  if (!report.ok()) return report.status();
  if (report->succeeded()) return std::move(report->output);
  return Status(report->failure(),
                fmt::format("{} for {}: {}\n{}", command_, target.arch, report->ending(limits_),
                            cpu::beginning_of(report->output, 20)));
}

}  // namespace quarterturn::hip
