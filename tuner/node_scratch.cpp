#include "tuner/node_scratch.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "cache/filesystem.hpp"
#include "cache/trusted_file.hpp"
#include "tuner/outbox.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

// The number that names a worker's copies; none: this is no worker's folder.
std::optional<std::size_t> number_of(const Campaign& campaign, const std::string& name) {
  const auto after = [&name](std::string_view start) -> std::optional<std::size_t> {
    const auto digits = name.substr(std::min(start.size(), name.size()));
    if (!name.starts_with(start) || digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != digits.npos)
      return std::nullopt;
    return std::stoul(digits);
  };
  if (const auto shard = after("shard-"); shard && *shard < campaign.shards) return shard;
  if (const auto worker = after("worker-")) return campaign.shards + *worker;
  return std::nullopt;
}

bool holds_the_same(Database& database, const std::string& copy) {
  auto there = Database::open_snapshot(copy, Verify::nothing);
  if (!there.ok()) return false;
  const auto mine = database.content_hash(), theirs = there->content_hash();
  return mine.ok() && theirs.ok() && *mine == *theirs;
}

// A full disk can still be read.
Result<Database> open_left(const std::string& path) {
  auto database = Database::open(path, {.fallback = Fallback::none});
  if (database.ok()) return database;
  return Database::open(path, {.access = Access::read_only, .fallback = Fallback::none});
}

// Bytes of working.lock: held by the worker, and by who copies what another one left.
constexpr std::uint64_t kWorking = 0, kCopying = 1;
constexpr std::chrono::milliseconds kNoWait{0}, kForCopies{600'000};

// A lock that this file system does not have hinders nobody.
Result<FileLock> lock_byte(const std::string& scratch, std::uint64_t byte,
                           std::chrono::milliseconds wait,
                           const std::function<bool()>& give_up = {}) {
  auto lock =
      FileLock::acquire(scratch + "/working.lock", byte, wait, LockKind::exclusive, give_up);
  return lock.status().code() == Code::not_supported ? FileLock() : std::move(lock);
}

// True where something was copied.
Result<bool> bring_out(const CampaignFolder& folder, const std::string& scratch,
                       std::size_t number) {
  const auto copying = lock_byte(scratch, kCopying, kNoWait);
  const auto idle =
      copying.ok() ? lock_byte(scratch, kWorking, kNoWait).status() : copying.status();
  if (idle.code() == Code::busy) return false;
  if (!idle.ok()) return idle;
  auto database = open_left(scratch + "/tuning.db");
  if (!database.ok()) return database.status();
  const auto info = database->info();
  if (!info.ok()) return info.status();
  const auto to = folder.database(number, info->uuid.substr(0, 8));
  if (holds_the_same(*database, to)) return false;
  if (auto status = DatabaseCopy(*database, scratch, to)(); !status.ok()) return status;
  return true;
}

}  // namespace

Result<std::string> node_scratch(const Campaign& campaign, const std::string& given) {
  const char* variable = std::getenv("TMPDIR");
  std::string above = !given.empty() ? given : variable ? variable : "";
  if (above.empty()) above = "/tmp";
  const auto filesystem = filesystem_of(above);
  if (filesystem.kind == FilesystemKind::network)
    return Status(Code::network_filesystem,
                  fmt::format("{} lies on a network file system ({}); give the node's own disk, or "
                              "memory: --scratch /dev/shm",
                              above, filesystem.name));
  const auto path = fmt::format("{}/quarterturn-{}-{}", above, geteuid(), campaign.id());
  if (auto status = make_folder(path); !status.ok()) return status;
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return system_status(errno, "examine " + path);
  if (auto status = check_trusted(info, path); !status.ok()) return status;
  return path;
}

std::string shard_scratch(const std::string& base, std::size_t shard) {
  return fmt::format("{}/shard-{:04}", base, shard);
}

std::string worker_scratch(const std::string& base, std::size_t number) {
  return fmt::format("{}/worker-{:03}", base, number);
}

Result<FileLock> lock_scratch(const std::string& scratch, std::chrono::milliseconds wait,
                              const std::function<bool()>& give_up) {
  if (auto status = make_folder(scratch); !status.ok()) return status;
  auto lock = lock_byte(scratch, kWorking, wait);
  if (!lock.ok()) return lock;
  const auto copied = lock_byte(scratch, kCopying, kForCopies, give_up);
  if (copied.status().code() == Code::interrupted)
    return Status(Code::interrupted,
                  fmt::format("asked to end while another process copied what was left in {}; "
                              "the same command goes on",
                              scratch));
  return copied.ok() ? std::move(lock) : copied.status();
}

Status bring_out_left(const Campaign& campaign, const CampaignFolder& folder,
                      const std::string& base, const std::function<void(const std::string&)>& say) {
  Status first;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base, error)) {
    const auto number = number_of(campaign, entry.path().filename());
    const auto scratch = entry.path().string();
    if (!number || !fs::exists(scratch + "/tuning.db", error)) continue;
    const auto copied = bring_out(folder, scratch, *number);
    if (copied.ok() && *copied) say(fmt::format("brought out what was left in {}", scratch));
    if (copied.ok()) continue;
    say(fmt::format("what was left in {} stays there: {}", scratch, copied.status().message()));
    if (first.ok()) first = copied.status();
  }
  return first;
}

}  // namespace quarterturn
