#include "cache/code_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <set>

#include "cache/code_file.hpp"
#include "cache/file_lock.hpp"
#include "cache/filesystem.hpp"
#include "cache/trusted_file.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

constexpr std::time_t leftover_age = 24 * 3600;  // a builder's folder this old has no builder
constexpr std::time_t touch_interval = 600;      // how exact "last used" is, to spare the disk

bool is_storage_trouble(Code code) {
  return code == Code::disk_full || code == Code::read_only || code == Code::io_error;
}

bool is_full(const std::string& folder) {
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) return false;
  constexpr std::uint64_t least = 256 * 1024;
  return info.f_bavail * info.f_frsize < least || (info.f_files != 0 && info.f_favail == 0);
}

void remove_all(const std::string& path) {
  std::error_code ignored;  // a leftover is swept later
  fs::remove_all(path, ignored);
}

}  // namespace

Digest CodeKey::digest() const { return sha256(text); }

struct CodeStore::State {
  CodeStoreOptions options;
  std::string folder;
  enum class Writable { yes, no } writable = Writable::yes;

  std::mutex mutex;  // guards what follows
  std::string private_folder;
  pid_t private_owner = 0;
  std::vector<std::string> notes;
  std::set<std::string> said;
  std::int64_t published_bytes = 0, published = 0;  // since the last collect

  ~State() {
    if (!private_folder.empty() && private_owner == getpid()) remove_all(private_folder);
  }

  void note(const std::string& subject, std::string message) {
    const std::lock_guard lock(mutex);
    if (said.insert(subject).second) notes.push_back(std::move(message));
  }

  Status open_folder();
  Result<std::string> spare_folder(const Status& why);
  std::string entry_path(const std::string& root, const CodeKey& key) const;
  std::optional<CodeEntry> find_in(const std::string& root, const CodeKey& key, StoreUse use);
  Result<CodeEntry> build_in(const std::string& root, const CodeKey& key, const CodeBuilder& build);
  std::optional<CodeEntry> find(const CodeKey& key);
  void account(std::int64_t bytes, CodeStore& store);
};

Status CodeStore::State::open_folder() {
  Status status = options.use == StoreUse::frozen ? Status() : make_folder(folder);
  if (!status.ok()) return status;
  if (char* real = realpath(folder.c_str(), nullptr); real != nullptr) {
    folder = real;
    std::free(real);
  }
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0)
    return system_status(errno, fmt::format("examine {}", folder));
  status = check_trusted(info, folder);
  if (!status.ok()) return status;
  if (options.use == StoreUse::frozen) {
    writable = Writable::no;
    return {};
  }
  writable = access(folder.c_str(), W_OK) == 0 ? Writable::yes : Writable::no;
  if (writable == Writable::no) {
    const int error = errno;
    std::error_code ignored;
    if (fs::is_empty(folder, ignored))
      return system_status(error, fmt::format("write to {}", folder));
    note("read-only",
         fmt::format("the code store {} cannot be written; it is read, and new code is "
                     "kept until this process ends",
                     folder));
  }
  return {};
}

Result<std::string> CodeStore::State::spare_folder(const Status& why) {
  {
    const std::lock_guard lock(mutex);
    if (options.fallback == StoreFallback::none) return why;
    if (private_folder.empty() || private_owner != getpid()) {
      auto made = make_private_folder();
      if (!made.ok()) return made.status();
      private_folder = *made;
      private_owner = getpid();
    }
  }
  note("spare folder",
       fmt::format(
           "the code store {} cannot take new code ({}); it is kept in {} until this process "
           "ends. Set QTURN_CACHE_DIR to a folder on a writable local disk",
           folder, why.message(), private_folder));
  return private_folder;
}

std::string CodeStore::State::entry_path(const std::string& root, const CodeKey& key) const {
  const std::string name = hex(key.digest());
  return fmt::format("{}/{}/{}.{}", root, name.substr(0, 2), name, key.extension);
}

std::optional<CodeEntry> CodeStore::State::find_in(const std::string& root, const CodeKey& key,
                                                   StoreUse use) {
  const std::string path = entry_path(root, key);
  const auto bytes = read_trusted(path);
  if (!bytes.ok()) {
    if (bytes.status().code() != Code::miss)
      note(path, fmt::format("{}; the code is compiled again", bytes.status().message()));
    return std::nullopt;
  }
  auto entry = code_file::parse(*bytes, key);
  if (!entry) {
    note(path,
         fmt::format("{} is damaged (its SHA-256 does not fit); the code is compiled again", path));
    if (use == StoreUse::shared) unlink(path.c_str());
    return std::nullopt;
  }
  entry->path = path;
  if (use == StoreUse::frozen) return entry;
  struct stat info {};
  // The time of last use is the file's modification time: access times are often switched off.
  if (stat(path.c_str(), &info) == 0 &&
      std::abs(static_cast<double>(std::time(nullptr) - info.st_mtime)) > touch_interval)
    utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return entry;
}

std::optional<CodeEntry> CodeStore::State::find(const CodeKey& key) {
  auto entry = find_in(folder, key, options.use);
  for (const auto& other : options.more)
    if (!entry) entry = find_in(other, key, StoreUse::frozen);
  std::string spare;
  {
    const std::lock_guard lock(mutex);
    spare = private_owner == getpid() ? private_folder : std::string();
  }
  if (!entry && !spare.empty()) entry = find_in(spare, key, StoreUse::shared);
  return entry;
}

Result<CodeEntry> CodeStore::State::build_in(const std::string& root, const CodeKey& key,
                                             const CodeBuilder& build) {
  Status status = make_folder(root + "/tmp");
  if (!status.ok()) return status;
  const std::string scratch = fmt::format("{}/tmp/{}", root, unique_name());
  if (mkdir(scratch.c_str(), 0700) != 0)
    return system_status(errno, fmt::format("create {}", scratch));
  const auto publish = [&]() -> Result<CodeEntry> {
    const std::string output = fmt::format("{}/code.{}", scratch, key.extension);
    const auto info = build(output);
    if (!info.ok()) return info.status();
    const auto code = read_trusted(output);
    if (!code.ok() || code->empty())
      return Status(Code::compile_failed,
                    fmt::format("the compiler reported success and left no code in {}", output));
    const std::string rest = code_file::trailer(key, *info, *code);
    Status done = append_durably(output, rest);
    const std::string path = entry_path(root, key);
    if (done.ok()) done = make_folder(folder_of(path));
    if (done.ok() && rename(output.c_str(), path.c_str()) != 0)
      done = system_status(errno, fmt::format("rename {} to {}", output, path));
    if (!done.ok()) return done;
    // Not read back: it is known, and a network file system may not show it yet.
    CodeEntry entry;
    entry.key = key.digest();
    entry.content = sha256(*code);
    entry.path = path;
    entry.code_bytes = static_cast<std::int64_t>(code->size());
    entry.info = *info;
    entry.origin = CodeOrigin::built;
    return entry;
  };
  auto result = publish();
  remove_all(scratch);
  return result;
}

CodeStore::CodeStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
CodeStore::CodeStore(CodeStore&&) noexcept = default;
CodeStore& CodeStore::operator=(CodeStore&&) noexcept = default;
CodeStore::~CodeStore() = default;

Result<CodeStore> CodeStore::open(const std::string& folder, const CodeStoreOptions& options) {
  if (folder.find("://") != std::string::npos)
    return Status(Code::invalid_argument,
                  fmt::format("\"{}\" is a URL; the code store is a folder", folder));
  auto state = std::make_unique<State>();
  state->options = options;
  state->folder = folder;
  Status status =
      folder.empty() ? Status(Code::io_error, "no folder was given") : state->open_folder();
  if (!status.ok()) {
    const auto spare = state->spare_folder(status);
    if (!spare.ok()) return spare.status();
    state->folder = *spare;
  }
  return CodeStore(std::move(state));
}

Result<CodeEntry> CodeStore::get_or_build(const CodeKey& key, const CodeBuilder& build) {
  State& s = *state_;
  const bool plain = std::all_of(key.extension.begin(), key.extension.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
  if (key.text.empty() || key.extension.empty() || !plain)
    return Status(Code::invalid_argument,
                  fmt::format("a code key needs a text and an extension of lower-case letters and "
                              "digits; the extension is \"{}\"",
                              key.extension));
  if (auto entry = s.find(key)) return *std::move(entry);

  Status trouble(Code::read_only, "its file system is read-only");
  if (s.writable == State::Writable::yes) {
    const Digest digest = key.digest();
    std::uint64_t byte = 0;
    for (int i = 0; i < 8; ++i) byte = byte << 8 | digest[i];
    std::optional<CodeEntry> appeared;
    // Whatever keeps the lock from being had, the answer is to build without it: publishing is
    // atomic, so the worst is work done twice.
    const auto lock = FileLock::acquire(s.folder + "/lock", byte, s.options.lock_wait);
    if (!lock.ok() && lock.status().code() == Code::busy)
      s.note("lock", fmt::format("{}; the code is compiled here as well", lock.status().message()));
    appeared = s.find_in(s.folder, key, s.options.use);
    if (appeared) {
      appeared->origin = CodeOrigin::waited;
      return *std::move(appeared);
    }
    auto built = s.build_in(s.folder, key, build);
    if (built.ok()) {
      s.account(built->code_bytes, *this);
      return built;
    }
    trouble = built.status();
    // A compiler that ran out of disk only says that it failed.
    if (!is_storage_trouble(trouble.code()) && !is_full(s.folder)) return trouble;
    if (collect(); !is_full(s.folder) && trouble.code() != Code::read_only) {
      built = s.build_in(s.folder, key, build);
      if (built.ok() || !is_storage_trouble(built.status().code())) return built;
    }
  }
  const auto spare = s.spare_folder(trouble);
  if (!spare.ok()) return spare.status();
  return s.build_in(*spare, key, build);
}

std::optional<CodeEntry> CodeStore::find(const CodeKey& key) { return state_->find(key); }

void CodeStore::remove(const CodeKey& key) {
  State& s = *state_;
  if (s.options.use == StoreUse::frozen) return;
  unlink(s.entry_path(s.folder, key).c_str());
  const std::lock_guard lock(s.mutex);
  if (!s.private_folder.empty()) unlink(s.entry_path(s.private_folder, key).c_str());
}

Result<std::string> CodeStore::read_code(const CodeEntry& entry) {
  auto bytes = read_trusted(entry.path);
  if (!bytes.ok()) return bytes.status();
  const auto size = static_cast<std::size_t>(entry.code_bytes);
  if (bytes->size() < size || sha256(std::string_view(*bytes).substr(0, size)) != entry.content)
    return Status(Code::damaged, fmt::format("{} has changed since it was found", entry.path));
  bytes->resize(size);
  return bytes;
}

const std::string& CodeStore::folder() const { return state_->folder; }

std::vector<std::string> CodeStore::take_notes() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->notes, {});
}

// Reading the whole folder for each new entry would cost more than it saves: it is done for the
// first one of a process, and when a 64th of the quota has been written since.
void CodeStore::State::account(std::int64_t bytes, CodeStore& store) {
  bool due = false;
  {
    const std::lock_guard lock(mutex);
    due = published == 0;
    ++published;
    published_bytes += bytes;
    due = due || published_bytes > options.quota_bytes / 64 ||
          published > std::max<std::int64_t>(options.quota_entries / 64, 1);
    if (due) {
      published_bytes = 0;
      published = 1;
    }
  }
  if (due) store.collect();
}

namespace {

struct Found {
  std::string path;
  std::int64_t bytes = 0;
  std::time_t used = 0;
};

/// Entries of a store, leaving out what is not named like one.
std::vector<Found> entries_of(const std::string& folder) {
  std::vector<Found> out;
  std::error_code error;
  for (fs::directory_iterator outer(folder, error), end; !error && outer != end;
       outer.increment(error)) {
    if (outer->path().filename().string().size() != 2) continue;
    std::error_code inner_error;
    for (fs::directory_iterator inner(outer->path(), inner_error); !inner_error && inner != end;
         inner.increment(inner_error)) {
      struct stat info {};
      if (inner->path().stem().string().size() != 64) continue;
      if (lstat(inner->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      out.push_back({inner->path().string(), info.st_blocks * 512, info.st_mtime});
    }
  }
  return out;
}

}  // namespace

CodeStore::Usage CodeStore::usage() {
  Usage usage;
  for (const auto& entry : entries_of(state_->folder)) {
    ++usage.entries;
    usage.bytes += entry.bytes;
  }
  return usage;
}

CodeStore::Usage CodeStore::collect(Collect how) {
  State& s = *state_;
  if (s.options.use == StoreUse::frozen) return usage();
  const std::time_t now = std::time(nullptr);
  auto entries = entries_of(s.folder);
  Usage usage;
  for (auto& entry : entries) {
    ++usage.entries;
    usage.bytes += entry.bytes;
    // From a clock that was ahead: it counts as used now, and ages from here on.
    if (entry.used > now) {
      if (how == Collect::done)
        utimensat(AT_FDCWD, entry.path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
      entry.used = now;
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Found& a, const Found& b) { return a.used < b.used; });
  for (const auto& entry : entries) {
    if (usage.bytes <= s.options.quota_bytes && usage.entries <= s.options.quota_entries) break;
    if (now - entry.used < s.options.in_use.count()) break;
    // A process that has it loaded keeps its own reference; others build it again.
    if (how == Collect::done && unlink(entry.path.c_str()) != 0 && errno != ENOENT) continue;
    --usage.entries;
    usage.bytes -= entry.bytes;
  }
  if (how == Collect::tried) return usage;
  std::error_code error;
  for (fs::directory_iterator left(s.folder + "/tmp", error), end; !error && left != end;
       left.increment(error)) {
    struct stat info {};
    if (lstat(left->path().c_str(), &info) == 0 && now - info.st_mtime > leftover_age)
      remove_all(left->path().string());
  }
  return usage;
}

}  // namespace quarterturn
