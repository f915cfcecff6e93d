#include "runtime/stored_code.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "cache/filesystem.hpp"

namespace quarterturn {
namespace {

// Names the code of a source by whatever compiler made it last.
CodeKey pointer_key(const std::string& digest) {
  return {fmt::format("source={}\nany compiler", digest), "txt"};
}

}  // namespace

CodeKey StoredCode::key(const std::string& digest, const std::string& compiler) const {
  return {fmt::format("source={}\ncompiler={}", digest, compiler), extension_};
}

std::optional<CodeEntry> StoredCode::find(const std::string& digest,
                                          const std::string& compiler) const {
  return store_ ? store_->find(key(digest, compiler)) : std::nullopt;
}

std::optional<CodeEntry> StoredCode::find_any(const std::string& digest) const {
  if (!store_) return std::nullopt;
  if (const auto pointer = store_->find(pointer_key(digest)))
    if (const auto text = CodeStore::read_code(*pointer); text.ok())
      return store_->find({*text, extension_});
  return std::nullopt;
}

Result<CodeEntry> StoredCode::get_or_build(
    const std::string& digest, const std::string& compiler,
    const std::function<Result<CodeInfo>(const std::string& path)>& build) {
  const CodeKey wanted = key(digest, compiler);
  auto entry = store_->get_or_build(wanted, build);
  if (entry.ok() && entry->origin == CodeOrigin::built)
    remember(digest, wanted.text, entry->info.target);
  return entry;
}

void StoredCode::remove(const std::string& digest, const std::string& compiler) {
  store_->remove(key(digest, compiler));
}

void StoredCode::remember(const std::string& digest, const std::string& key_text,
                          const std::string& target) {
  const CodeKey pointer = pointer_key(digest);
  if (const auto old = store_->find(pointer)) {
    const auto text = CodeStore::read_code(*old);
    if (text.ok() && *text == key_text) return;
    store_->remove(pointer);
  }
  // Failing to write it costs hosts without a compiler this code, nothing else.
  (void)store_->get_or_build(pointer, [&](const std::string& path) -> Result<CodeInfo> {
    if (auto status = write_binary(path, key_text); !status.ok()) return status;
    CodeInfo info;
    info.target = target;
    return info;
  });
}

Binary binary_of(CodeEntry entry) {
  Binary out;
  out.path = std::move(entry.path);
  out.key = entry.key;
  out.log = std::move(entry.info.log);
  out.target = std::move(entry.info.target);
  out.compile_ms = entry.info.compile_ms;
  out.registers = entry.info.registers;
  out.spills = entry.info.spills;
  out.shared_bytes = entry.info.shared_bytes;
  out.cached = entry.origin != CodeOrigin::built;
  return out;
}

Result<std::string> read_binary(const Binary& binary) {
  auto code = read_whole_file(binary.path);
  if (code.ok() && code->empty())
    return Status(Code::io_error, fmt::format("{} is empty", binary.path));
  return code;
}

Status write_binary(const std::string& path, std::string_view code) {
  std::ofstream out(path, std::ios::binary);
  out.write(code.data(), static_cast<std::streamsize>(code.size()));
  out.close();
  return out ? Status() : Status(Code::io_error, fmt::format("cannot write {}", path));
}

void dump_text(const std::string& folder, const std::string& digest, std::string_view extension,
               std::string_view text) {
  if (folder.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  std::ofstream(fmt::format("{}/{}.{}", folder, digest.substr(0, 16), extension)) << text;
}

}  // namespace quarterturn
