#include "runtime/cuda/compiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace quarterturn::cuda {
namespace {

// The helper lies beside quarterturn-worker.
std::string helper_beside(const std::string& worker) {
  const auto slash = worker.rfind('/');
  if (slash == std::string::npos) return {};
  const std::string path = worker.substr(0, slash + 1) + "quarterturn-nvrtc";
  return access(path.c_str(), X_OK) == 0 ? path : std::string{};
}

Status write_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return out ? Status() : Status(Code::io_error, fmt::format("cannot write {}", path));
}

}  // namespace

Result<Compiler> Compiler::find(int driver_version, const std::string& override_path, Worker worker,
                                WorkerLimits limits) {
  auto identity = nvrtc_identity(driver_version / 1000, override_path);
  if (!identity.ok()) return identity.status();
  Compiler out(std::move(*identity), std::move(worker), limits);
  out.helper_ = helper_beside(out.worker_.path());
  return out;
}

Result<Cubin> Compiler::compile(std::string_view text, const Target& target,
                                const std::vector<std::string>& flags,
                                const std::string& directory) const {
  if (helper_.empty()) return nvrtc_compile(text, target.arch, flags);
  const std::string source = directory + "/source.cu", object = directory + "/kernel.cubin";
  if (auto status = write_file(source, text); !status.ok()) return status;
  WorkerCommand command{{helper_, identity_.path, target.arch, source, object}, directory, limits_};
  command.arguments.insert(command.arguments.end(), flags.begin(), flags.end());
  auto report = worker_.run(command);
  if (!report.ok()) return report.status();
  if (!report->succeeded())
    return Status(report->failure(),
                  fmt::format("NVRTC for {}: {}\n{}", target.arch, report->ending(limits_),
                              report->output.substr(0, 2000)));
  Cubin cubin;
  cubin.log = report->output;
  std::ifstream in(object, std::ios::binary);
  std::ostringstream code;
  code << in.rdbuf();
  cubin.code = std::move(code).str();
  if (!in || cubin.code.empty())
    return Status(Code::compile_failed, fmt::format("{} was not written", object));
  parse_ptxas_log(cubin);
  return cubin;
}

}  // namespace quarterturn::cuda
