#include "cache/publication.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cache/file_lock.hpp"
#include "cache/filesystem.hpp"
#include "cache/rows.hpp"
#include "cache/trusted_file.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kManifest = "CURRENT";
constexpr std::uintmax_t kMostManifestBytes = 16 << 20;

std::string in(const std::string& folder, const std::string& name) { return folder + "/" + name; }

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
}

Status damaged(const std::string& folder, std::string_view why) {
  return Status(Code::damaged, fmt::format("{}: {}", in(folder, kManifest), why));
}

Json to_json(const Generation& g) {
  Json out = {{"number", g.number},
              {"file", g.file},
              {"content_sha256", g.content},
              {"winners_sha256", g.winners},
              {"published_ns", g.published}};
  if (!g.key.empty()) {
    out["ed25519_key"] = g.key;
    out["ed25519_signature"] = g.signature;
  }
  return out;
}

// A file that appears whole or not at all.
Status write_manifest(const std::string& folder, const Manifest& manifest) {
  Json json = {{"quarterturn_publication", 1}, {"current", manifest.current}};
  json["generations"] = Json::array();
  for (const auto& generation : manifest.generations)
    json["generations"].push_back(to_json(generation));
  const std::string temporary = in(folder, fmt::format(".{}.tmp", unique_name()));
  Status status = create_durably(temporary, json.dump(1) + "\n");
  if (status.ok() && chmod(temporary.c_str(), 0644) != 0)
    status = system_status(errno, fmt::format("set the mode of {}", temporary));
  if (status.ok() && rename(temporary.c_str(), in(folder, kManifest).c_str()) != 0)
    status = system_status(errno, fmt::format("rename {}", temporary));
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

// Publishers take turns; a file system without locks has to do without.
Result<FileLock> lock_folder(const std::string& folder) {
  auto lock = FileLock::acquire(in(folder, ".publishing"), 0, std::chrono::milliseconds(60'000));
  if (!lock.ok() && lock.status().code() == Code::not_supported) return FileLock();
  return lock;
}

Result<Manifest> manifest_or_fresh(const std::string& folder) {
  auto manifest = read_manifest(folder);
  if (!manifest.ok() && manifest.status().code() == Code::miss) return Manifest{};
  return manifest;
}

Status check_signature(const Generation& generation, Database& snapshot,
                       const std::vector<std::string>& allowed_keys, const std::string& place) {
  const auto refuse = [&](std::string_view why) {
    return Status(Code::not_ours,
                  fmt::format("{} {}; the keys that are allowed are set by snapshot_keys "
                              "(QTURN_SNAPSHOT_KEYS)",
                              place, why));
  };
  if (generation.key.empty()) return refuse("is not signed");
  if (std::find(allowed_keys.begin(), allowed_keys.end(), generation.key) == allowed_keys.end())
    return refuse("is signed by a key that is not allowed");
  if (!is_signed_by(generation.key, signed_message(generation), generation.signature))
    return refuse("has a signature that does not fit");
  const auto winners = snapshot.content_hash(Content::winners);
  if (!winners.ok()) return winners.status();
  if (hex(*winners) != generation.winners) return refuse("holds other winners than were signed");
  return {};
}

}  // namespace

const Generation* Manifest::find(std::int64_t number) const {
  for (const auto& generation : generations)
    if (generation.number == number) return &generation;
  return nullptr;
}

std::string signed_message(const Generation& generation) {
  return fmt::format("quarterturn snapshot 1\nnumber={}\ncontent={}\nwinners={}\n",
                     generation.number, generation.content, generation.winners);
}

Result<Manifest> read_manifest(const std::string& folder) {
  const std::string path = in(folder, kManifest);
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(path, missing);
  if (missing)
    return Status(Code::miss,
                  fmt::format("{} is no publication: it has no {} file", folder, kManifest));
  if (bytes > kMostManifestBytes) return damaged(folder, "is too long for a manifest");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto json = Json::parse(text, nullptr, false);
  try {
    if (json.is_discarded()) return damaged(folder, "is not JSON");
    const auto version = json.at("quarterturn_publication").get<std::int64_t>();
    if (version != 1)
      return Status(Code::newer_version,
                    fmt::format("{}: manifest version {}; this version reads 1", path, version));
    Manifest out;
    out.current = json.at("current").get<std::int64_t>();
    for (const auto& entry : json.at("generations")) {
      Generation g;
      g.number = entry.at("number").get<std::int64_t>();
      g.file = entry.at("file").get<std::string>();
      g.content = entry.at("content_sha256").get<std::string>();
      g.winners = entry.at("winners_sha256").get<std::string>();
      g.published = entry.at("published_ns").get<std::int64_t>();
      g.key = entry.value("ed25519_key", std::string());
      g.signature = entry.value("ed25519_signature", std::string());
      if (!is_plain_name(g.file)) return damaged(folder, "names a file outside its folder");
      out.generations.push_back(std::move(g));
    }
    if (!out.find(out.current)) return damaged(folder, "the current generation is not listed");
    return out;
  } catch (const Json::exception& error) {
    return damaged(folder, error.what());
  }
}

Result<Generation> publish(Database& database, const std::string& folder,
                           const SnapshotOptions& options, const SigningKey* key) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  if (!is_folder(folder))
    return Status(Code::io_error, fmt::format("{} is not a folder and cannot be made", folder));
  const auto lock = lock_folder(folder);
  if (!lock.ok()) return lock.status();
  auto manifest = manifest_or_fresh(folder);
  if (!manifest.ok()) return manifest.status();
  Generation now;
  for (const auto& generation : manifest->generations)
    now.number = std::max(now.number, generation.number);
  ++now.number;
  const std::string temporary = in(folder, fmt::format(".{}.tmp", unique_name()));
  const auto content = database.export_snapshot(temporary, options);
  if (!content.ok()) return content.status();
  const auto finish = [&]() -> Status {
    auto snapshot = Database::open_snapshot(temporary);
    if (!snapshot.ok()) return snapshot.status();
    const auto winners = snapshot->content_hash(Content::winners);
    if (!winners.ok()) return winners.status();
    now.content = hex(*content);
    now.winners = hex(*winners);
    now.file = fmt::format("g{:06}-{}.qturn", now.number, now.content.substr(0, 16));
    now.published = rows::nanoseconds_now();
    if (key) {
      now.key = key->public_hex();
      now.signature = key->sign(signed_message(now));
    }
    if (rename(temporary.c_str(), in(folder, now.file).c_str()) != 0)
      return system_status(errno, fmt::format("rename {} to {}", temporary, now.file));
    manifest->generations.push_back(now);
    manifest->current = now.number;
    return write_manifest(folder, *manifest);
  };
  if (auto status = finish(); !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return now;
}

Status make_current(const std::string& folder, std::int64_t number) {
  const auto lock = lock_folder(folder);
  if (!lock.ok()) return lock.status();
  auto manifest = read_manifest(folder);
  if (!manifest.ok()) return manifest.status();
  if (!manifest->find(number))
    return Status(
        Code::out_of_range,
        fmt::format("{} has no generation {}; `qturn db generations` lists them", folder, number));
  manifest->current = number;
  return write_manifest(folder, *manifest);
}

Result<Database> open_published(const std::string& path,
                                const std::vector<std::string>& allowed_keys) {
  if (!is_folder(path)) {
    if (allowed_keys.empty()) return Database::open_snapshot(path);
    return Status(Code::not_ours,
                  fmt::format("{} is a single file, which carries no signature; give the folder "
                              "that `qturn db publish` wrote",
                              path));
  }
  const auto manifest = read_manifest(path);
  if (!manifest.ok()) return manifest.status();
  const Generation& generation = *manifest->find(manifest->current);
  const std::string file = in(path, generation.file);
  auto snapshot = Database::open_snapshot(file);
  if (!snapshot.ok() || allowed_keys.empty()) return snapshot;
  if (auto status = check_signature(generation, *snapshot, allowed_keys, file); !status.ok())
    return status;
  return snapshot;
}

}  // namespace quarterturn
