// StoredCode: compiled code of a back end's sources in the code store, found by source and
// compiler, or by the source alone on hosts that have no compiler.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cache/code_store.hpp"
#include "generator/source.hpp"
#include "runtime/backend.hpp"

namespace quarterturn {

/// Sources are named by the hexadecimal source_digest, compilers by their identity. Thread-safe.
class StoredCode {
 public:
  /// `extension`: of the code's files. Without a store nothing is found and nothing can be built.
  StoredCode(std::shared_ptr<CodeStore> store, std::string extension)
      : store_(std::move(store)), extension_(std::move(extension)) {}

  bool has_store() const { return store_ != nullptr; }

  std::optional<CodeEntry> find(const std::string& digest, const std::string& compiler) const;
  /// Made by whatever compiler made it last.
  std::optional<CodeEntry> find_any(const std::string& digest) const;

  /// `build` writes the code to the path that it is given, where several ask once for all of them.
  Result<CodeEntry> get_or_build(
      const std::string& digest, const std::string& compiler,
      const std::function<Result<CodeInfo>(const std::string& path)>& build);

  void remove(const std::string& digest, const std::string& compiler);

 private:
  CodeKey key(const std::string& digest, const std::string& compiler) const;
  void remember(const std::string& digest, const std::string& key_text, const std::string& target);

  std::shared_ptr<CodeStore> store_;
  std::string extension_;
};

Binary binary_of(CodeEntry entry);

/// What a file of compiled code holds.
Result<std::string> read_binary(const Binary& binary);
Status write_binary(const std::string& path, std::string_view code);

/// Writes `<folder>/<start of the digest>.<extension>`, for people who look for what was compiled;
/// no folder, nothing. What cannot be written is missing there, and nothing else.
void dump_text(const std::string& folder, const std::string& digest, std::string_view extension,
               std::string_view text);

}  // namespace quarterturn
