#include "runtime/gpu_backend.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "cache/env.hpp"

namespace quarterturn {

std::string_view GpuBackend::class_prefix(const VendorLibrary& library) {
  return library.symbol(kSimulatedDevices) ? kSimulatedClass : std::string_view();
}

Status GpuBackend::open() {
  const auto& wanted = description_.target;
  if (!wanted.empty()) {
    auto target = parse_target(wanted);
    if (!target.ok()) return target.status();
    if (target->vendor != description_.vendor)
      return Status(Code::invalid_argument,
                    fmt::format("'{}' is not {} target", wanted, description_.vendor_name));
    device_.target = std::move(*target);
  }
  unavailable_ = open_device();
  if (!unavailable_.ok() && wanted.empty()) return unavailable_;
  auto compiler =
      description_.may_compile
          ? find_compiler()
          : Status(Code::no_compiler, "compiling is switched off (QTURN_NO_JIT, or jit off)");
  no_compiler_ = compiler.ok() ? Status() : compiler.status();
  if (compiler.ok()) device_.compiler = std::move(*compiler);
  return {};
}

Result<Binary> GpuBackend::compile(const Source& source) {
  if (auto status = refuse_capture(); !status.ok()) return status;
  auto flat = flatten(source);
  if (!flat.ok()) return flat.status();
  auto named = source_digest(source, device_.target);
  if (!named.ok()) return named.status();
  const std::string digest = hex(*named);
  if (!no_compiler_.ok() || !code_.has_store()) {
    auto stored = code_.find_any(digest);
    if (stored) return admit(std::move(*stored));
    return no_compiler_.ok() ? Status(Code::no_compiler, "there is no store for compiled code")
                             : no_compiler_;
  }
  auto entry = code_.get_or_build(digest, device_.compiler, [&](const std::string& path) {
    return build(source, *flat, digest, path);
  });
  if (!entry.ok()) return entry.status();
  return admit(std::move(*entry));
}

bool GpuBackend::has_code(const Source& source) {
  const auto digest = source_digest(source, device_.target);
  if (!digest.ok()) return false;
  const auto found =
      no_compiler_.ok() ? code_.find(hex(*digest), device_.compiler) : code_.find_any(hex(*digest));
  return found.has_value();
}

Result<std::shared_ptr<const Kernel>> GpuBackend::load(const Binary& binary, const Source& source) {
  if (!unavailable_.ok()) return unavailable_;
  if (auto status = refuse_capture(); !status.ok()) return status;
  const auto code = read_binary(binary);
  if (!code.ok()) return code.status();
  return load_code(*code, source);
}

Result<CodeInfo> GpuBackend::build(const Source& source, const std::string& text,
                                   const std::string& digest, const std::string& path) const {
  const auto begin = std::chrono::steady_clock::now();
  const auto compiled =
      compile_text(source, text, std::filesystem::path(path).parent_path().string());
  const auto& folder = description_.dump;
  dump_text(folder, digest, "source." + description_.text_extension, source.text);
  dump_text(folder, digest, description_.text_extension, text);
  dump_text(folder, digest, "log", compiled.ok() ? compiled->log : compiled.status().message());
  if (!compiled.ok()) return compiled.status();
  if (auto status = write_binary(path, compiled->code); !status.ok()) return status;
  CodeInfo info;
  info.target = device_.target.key();
  info.compiler = device_.compiler;
  info.flags = fmt::format("{}", fmt::join(source.flags, " "));
  info.log = compiled->log;
  info.registers = compiled->registers;
  info.spills = compiled->spills;
  info.shared_bytes = compiled->shared_bytes;
  info.compile_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                        std::chrono::steady_clock::now() - begin)
                        .count();
  return info;
}

Result<Binary> GpuBackend::admit(CodeEntry entry) const {
  if (auto status = refuse_code(entry.info); !status.ok()) return status;
  return binary_of(std::move(entry));
}

}  // namespace quarterturn
