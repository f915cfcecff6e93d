#include "runtime/hip/compiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "generator/digest.hpp"
#include "runtime/cpu/host_compiler.hpp"

namespace quarterturn::hip {
namespace {

// The helper lies beside quarterturn-worker.
std::string helper_beside(const std::string& worker) {
  const auto slash = worker.rfind('/');
  if (slash == std::string::npos) return {};
  const std::string path = worker.substr(0, slash + 1) + "quarterturn-hiprtc";
  return access(path.c_str(), X_OK) == 0 ? path : std::string{};
}

Status failure_of(const WorkerReport& report, const WorkerLimits& limits, std::string_view arch) {
  return Status(report.failure(), fmt::format("hipRTC for {}: {}\n{}", arch, report.ending(limits),
                                              report.output.substr(0, 2000)));
}

// The rest of the line that starts with `word` and a space.
std::string line_of(const std::string& text, const std::string& word) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(word + " ", 0) == 0) return line.substr(word.size() + 1);
  return {};
}

}  // namespace

Result<Compiler> Compiler::find(const CompilerChoice& choice, std::string_view arch, Worker worker,
                                WorkerLimits limits) {
  Compiler out(std::move(worker), limits);
  Status no_hiprtc(Code::no_compiler, "hipRTC was not asked for");
  if (choice.clang.empty() || !choice.hiprtc.empty()) {
    no_hiprtc = out.find_hiprtc(choice.hiprtc, arch);
    if (no_hiprtc.ok()) return out;
    if (!choice.hiprtc.empty()) return no_hiprtc;
  }
  auto clang = Clang::find(choice.clang, out.worker_, limits);
  if (!clang.ok())
    return Status(Code::no_compiler,
                  fmt::format("{}\n{}", clang.status().message(), no_hiprtc.message()));
  out.identity_ = clang->identity();
  out.clang_.emplace(std::move(*clang));
  return out;
}

Status Compiler::find_hiprtc(const std::string& override_path, std::string_view arch) {
  helper_.clear();
  const auto helper = helper_beside(worker_.path());
  if (helper.empty())
    return Status(Code::no_compiler,
                  "hipRTC is not used without its helper program, quarterturn-hiprtc, beside "
                  "quarterturn-worker");
  WorkerCommand ask{{helper, "facts"}, {}, limits_};
  if (!override_path.empty()) ask.arguments.push_back(override_path);
  auto report = worker_.run(ask);
  if (!report.ok()) return report.status();
  if (!report->succeeded())
    return Status(Code::no_compiler, fmt::format("{}\nInstall ROCm's hipRTC, or name libhiprtc in "
                                                 "QTURN_HIPRTC",
                                                 cpu::beginning_of(report->output, 6)));
  const auto& facts = report->output;
  const bool can_say = facts.find("\narch ") != std::string::npos;
  if (can_say && (facts + "\n").find(fmt::format("\narch {}\n", arch)) == std::string::npos)
    return Status(Code::no_compiler,
                  fmt::format("hipRTC {} ({}) does not know {}: install a newer ROCm",
                              line_of(facts, "version"), line_of(facts, "library"), arch));
  hiprtc_ = line_of(facts, "library");
  const auto comgr = line_of(facts, "comgr");
  const auto content =
      cpu::content_id(hiprtc_) + " " + (comgr.empty() ? comgr : cpu::content_id(comgr));
  identity_ =
      fmt::format("hiprtc {} {}", line_of(facts, "version"), hex(sha256(content)).substr(0, 16));
  helper_ = helper;
  return {};
}

Result<std::string> Compiler::by_hiprtc(std::string_view text, const Target& target,
                                        const std::vector<std::string>& flags,
                                        const std::string& directory) const {
  const std::string source = directory + "/source.hip";
  std::ofstream out(source, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) return Status(Code::io_error, fmt::format("cannot write {}", source));
  WorkerCommand command{
      {helper_, "compile", hiprtc_, target.arch, source, directory + "/kernel.hsaco"},
      directory,
      limits_};
  command.arguments.insert(command.arguments.end(), flags.begin(), flags.end());
  auto report = worker_.run(command);
  if (!report.ok()) return report.status();
  if (!report->succeeded()) return failure_of(*report, limits_, target.arch);
  return std::move(report->output);
}

Result<Compiled> Compiler::compile(std::string_view text, std::string_view entry,
                                   const Target& target, const std::vector<std::string>& flags,
                                   const std::string& directory) const {
  auto log = clang_ ? clang_->compile(text, target, flags, directory)
                    : by_hiprtc(text, target, flags, directory);
  if (!log.ok()) return log.status();
  std::ifstream in(directory + "/kernel.hsaco", std::ios::binary);
  std::ostringstream code;
  code << in.rdbuf();
  Compiled out{std::move(code).str(), std::move(*log), {}};
  const auto object = read_code_object(out.code);
  if (!object.ok())
    return Status(Code::compile_failed,
                  fmt::format("{} gave something else: {}", identity_, object.status().message()));
  const KernelNote* note = object->find(entry);
  if (!note)
    return Status(Code::compile_failed,
                  fmt::format("the code object of {} has no kernel '{}'", identity_, entry));
  out.note = *note;
  return out;
}

}  // namespace quarterturn::hip
