// CodeStore: compiled code in files, found by the hash of what it was made from.
//
// An entry is one file, <folder>/<aa>/<sha256 of the key's text>.<extension>: the code, then a JSON
// text (key, target, compiler, flags, log, figures), then a footer with the SHA-256 of all before
// it. ELF files are loaded by their headers, so dlopen and the GPU loaders ignore what follows the
// code. An entry appears by one rename and is never changed in place, so what is mapped stays
// valid.
//
// However many processes ask for one key, one builds: byte-range locks of one lock file, which the
// kernel drops when their owner dies. A wait is bounded; after it the process builds for itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/digest.hpp"
#include "generator/status.hpp"

namespace quarterturn {

enum class StoreFallback {
  private_folder,  ///< a fresh folder of mode 0700 below TMPDIR, removed with the CodeStore
  none,
};

enum class StoreUse {
  shared,  ///< read and written by many
  frozen   ///< only read: nothing in the folder is created, touched or removed
};

struct CodeStoreOptions {
  std::int64_t quota_bytes = std::int64_t{2} << 30;
  std::int64_t quota_entries = 50000;
  std::chrono::milliseconds lock_wait{120000};  ///< for another process that builds the same key
  std::chrono::seconds in_use{3600};            ///< an entry used this recently is never evicted
  StoreFallback fallback = StoreFallback::private_folder;
  StoreUse use = StoreUse::shared;
  std::vector<std::string> more;  ///< frozen stores that are looked into after this one
};

/// What code is made from. Equal text, equal code: it names source, flags, target and compiler
/// (Source digest, compiler identity), never a path and never the word "native".
struct CodeKey {
  std::string text;
  std::string extension;  ///< "so", "cubin", "hsaco"
  Digest digest() const;
};

/// What the builder says of the code it made.
struct CodeInfo {
  std::string target, compiler, flags;
  std::string log;  ///< the compiler's output
  std::int64_t compile_ms = 0;
  std::int64_t registers = 0, spills = 0, shared_bytes = 0;
};

enum class CodeOrigin {
  found,   ///< in the store
  built,   ///< by this call, and published
  waited,  ///< another process built it while this one waited
};

struct CodeEntry {
  Digest key{};      ///< CodeKey::digest
  Digest content{};  ///< SHA-256 of the code alone
  std::string path;  ///< of the published file; its first code_bytes bytes are the code
  std::int64_t code_bytes = 0;
  CodeInfo info;
  CodeOrigin origin = CodeOrigin::found;
};

/// Writes the code to `output` (a new file in a folder of its own, where it may leave other files).
using CodeBuilder = std::function<Result<CodeInfo>(const std::string& output)>;

/// Thread-safe. May be used by many processes at once.
class CodeStore {
 public:
  /// Creates `folder` with mode 0700. Refused with not_ours: a folder that belongs to another user
  /// or that others may write; then, as when it cannot be written, the fallback applies. An
  /// existing folder on a read-only file system serves what it holds.
  static Result<CodeStore> open(const std::string& folder, const CodeStoreOptions& options = {});

  CodeStore(CodeStore&&) noexcept;
  CodeStore& operator=(CodeStore&&) noexcept;
  ~CodeStore();

  /// The stored code, checked against its SHA-256, or the result of `build`. A damaged entry is a
  /// miss and is replaced. When the store's disk is full, the fallback folder takes the result.
  Result<CodeEntry> get_or_build(const CodeKey& key, const CodeBuilder& build);
  /// Only looks: empty when there is no sound entry.
  std::optional<CodeEntry> find(const CodeKey& key);
  /// Drops an entry that was rejected at load, so that it is built again.
  void remove(const CodeKey& key);

  /// The code alone, checked again; for loaders that take memory.
  static Result<std::string> read_code(const CodeEntry& entry);

  const std::string& folder() const;
  /// What must be said once: damaged entries, another folder in use, full disk.
  std::vector<std::string> take_notes();

  struct Usage {
    std::int64_t entries = 0, bytes = 0;
  };
  Usage usage();
  /// Evicts least recently used entries down to the quota and removes leftovers of killed builders;
  /// gives what is left. tried: changes nothing, and gives what would be.
  enum class Collect { done, tried };
  Usage collect(Collect how = Collect::done);

 private:
  struct State;
  explicit CodeStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quarterturn
