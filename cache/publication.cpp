#include "cache/publication.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cache/file_lock.hpp"
#include "cache/filesystem.hpp"
#include "cache/rows.hpp"
#include "cache/trusted_file.hpp"

namespace quarterturn {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kManifest = "CURRENT";
constexpr std::uintmax_t kMostManifestBytes = 16 << 20;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 62;

std::string in(const std::string& folder, const std::string& name) { return folder + "/" + name; }

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() < 256 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c > ' ' && c < 127 && c != '/'; });
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Others would be rounded or wrapped on their way into an integer, or overflow when one is added.
std::int64_t whole(const OrderedJson& object, const char* name) {
  const auto& value = object.at(name);
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostNumber))
    throw std::out_of_range(fmt::format("{} is no whole number from 0 to {}", name, kMostNumber));
  return value.get<std::int64_t>();
}

// Opening a pipe would wait for its writer, and a link may lead anywhere.
Status check_ordinary(const std::string& path, const struct stat& info) {
  if (S_ISREG(info.st_mode)) return {};
  return Status(Code::not_ours, fmt::format("{} is no ordinary file", path));
}

Status damaged(const std::string& folder, std::string_view why) {
  return Status(Code::damaged, fmt::format("{}: {}", in(folder, kManifest), why));
}

OrderedJson to_json(const Generation& g) {
  OrderedJson out = {{"number", g.number},
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
  OrderedJson json = {{"quarterturn_publication", 1},
                      {"current", manifest.current},
                      {"sequence", manifest.sequence}};
  if (!manifest.key.empty()) {
    json["ed25519_key"] = manifest.key;
    json["ed25519_signature"] = manifest.signature;
  }
  json["generations"] = OrderedJson::array();
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

Status refused(const std::string& place, std::string_view why) {
  return Status(Code::not_ours, fmt::format("{} {}; the keys that are allowed are set by "
                                            "snapshot_keys (QTURN_SNAPSHOT_KEYS)",
                                            place, why));
}

Status check_signature(const std::string& key, const std::string& message,
                       const std::string& signature, const std::vector<std::string>& allowed_keys,
                       const std::string& place) {
  if (key.empty()) return refused(place, "is not signed");
  if (std::find(allowed_keys.begin(), allowed_keys.end(), key) == allowed_keys.end())
    return refused(place, "is signed by a key that is not allowed");
  if (!is_signed_by(key, message, signature))
    return refused(place, "has a signature that does not fit");
  return {};
}

// Before the file is opened: nothing is read that nobody vouches for.
Status check_manifest(const std::string& folder, const Manifest& manifest,
                      const Generation& generation, const std::vector<std::string>& allowed_keys,
                      std::int64_t least_sequence) {
  if (auto status =
          check_signature(generation.key, signed_message(generation), generation.signature,
                          allowed_keys, in(folder, generation.file));
      !status.ok())
    return status;
  const auto place =
      fmt::format("{}: the choice of generation {}", in(folder, kManifest), manifest.current);
  if (auto status = check_signature(manifest.key, signed_choice(manifest), manifest.signature,
                                    allowed_keys, place);
      !status.ok())
    return status;
  if (manifest.sequence < least_sequence)
    return Status(
        Code::not_ours,
        fmt::format("{} is number {}, and number {} was read before: an older manifest was "
                    "put back. Return to a generation by `qturn db rollback --key`",
                    place, manifest.sequence, least_sequence));
  return {};
}

// The next choice of what is current.
void choose(Manifest& manifest, std::int64_t number, const SigningKey* key) {
  manifest.current = number;
  ++manifest.sequence;
  manifest.key = key ? key->public_hex() : std::string();
  manifest.signature = key ? key->sign(signed_choice(manifest)) : std::string();
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

std::string signed_choice(const Manifest& manifest) {
  const Generation* current = manifest.find(manifest.current);
  return fmt::format("quarterturn choice 1\nsequence={}\nnumber={}\ncontent={}\nwinners={}\n",
                     manifest.sequence, manifest.current, current ? current->content : "",
                     current ? current->winners : "");
}

Result<Manifest> read_manifest(const std::string& folder) {
  const std::string path = in(folder, kManifest);
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(path, missing);
  if (missing)
    return Status(Code::miss,
                  fmt::format("{} is no publication: it has no {} file", folder, kManifest));
  if (bytes > kMostManifestBytes) return damaged(folder, "is too long for a manifest");
  const auto text = read_whole_file(path);
  if (!text.ok()) return text.status();
  const auto json = OrderedJson::parse(*text, nullptr, false);
  try {
    if (json.is_discarded()) return damaged(folder, "is not JSON");
    const auto version = whole(json, "quarterturn_publication");
    if (version != 1)
      return Status(Code::newer_version,
                    fmt::format("{}: manifest version {}; this version reads 1", path, version));
    Manifest out;
    out.current = whole(json, "current");
    out.sequence = whole(json, "sequence");
    out.key = json.value("ed25519_key", std::string());
    out.signature = json.value("ed25519_signature", std::string());
    for (const auto& entry : json.at("generations")) {
      Generation g;
      g.number = whole(entry, "number");
      g.file = entry.at("file").get<std::string>();
      g.content = entry.at("content_sha256").get<std::string>();
      g.winners = entry.at("winners_sha256").get<std::string>();
      g.published = whole(entry, "published_ns");
      g.key = entry.value("ed25519_key", std::string());
      g.signature = entry.value("ed25519_signature", std::string());
      if (!is_plain_name(g.file)) return damaged(folder, "names a file outside its folder");
      if (!is_sha256(g.content) || !is_sha256(g.winners))
        return damaged(folder, "a hash is not 64 hexadecimal digits");
      if (!out.generations.empty() && g.number <= out.generations.back().number)
        return damaged(folder, "generations are not in order");
      out.generations.push_back(std::move(g));
    }
    if (!out.find(out.current)) return damaged(folder, "the current generation is not listed");
    return out;
  } catch (const std::exception& error) {
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
    choose(*manifest, now.number, key);
    return write_manifest(folder, *manifest);
  };
  if (auto status = finish(); !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return now;
}

Status make_current(const std::string& folder, std::int64_t number, const SigningKey* key) {
  const auto lock = lock_folder(folder);
  if (!lock.ok()) return lock.status();
  auto manifest = read_manifest(folder);
  if (!manifest.ok()) return manifest.status();
  const Generation* wanted = manifest->find(number);
  if (!wanted)
    return Status(
        Code::out_of_range,
        fmt::format("{} has no generation {}; `qturn db generations` lists them", folder, number));
  if (!wanted->key.empty() && !key)
    return Status(
        Code::invalid_argument,
        fmt::format("generation {} of {} is signed, and readers who check signatures want "
                    "the return to it signed, too: give the key (--key FILE)",
                    number, folder));
  choose(*manifest, number, key);
  return write_manifest(folder, *manifest);
}

Result<Published> open_current(const std::string& path,
                               const std::vector<std::string>& allowed_keys,
                               std::int64_t least_sequence) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return system_status(errno, fmt::format("open {}", path));
  if (!S_ISDIR(info.st_mode)) {
    if (!allowed_keys.empty())
      return Status(Code::not_ours,
                    fmt::format("{} is a single file, which carries no signature; give the folder "
                                "that `qturn db publish` wrote",
                                path));
    if (auto status = check_ordinary(path, info); !status.ok()) return status;
    auto snapshot = Database::open_snapshot(path);
    if (!snapshot.ok()) return snapshot.status();
    return Published{std::move(*snapshot), 0, 0};
  }
  const auto manifest = read_manifest(path);
  if (!manifest.ok()) return manifest.status();
  const Generation& generation = *manifest->find(manifest->current);
  if (!allowed_keys.empty())
    if (auto status = check_manifest(path, *manifest, generation, allowed_keys, least_sequence);
        !status.ok())
      return status;
  const std::string file = in(path, generation.file);
  if (lstat(file.c_str(), &info) != 0) return system_status(errno, fmt::format("open {}", file));
  if (auto status = check_ordinary(file, info); !status.ok()) return status;
  auto snapshot = Database::open_snapshot(file);
  if (!snapshot.ok()) return snapshot.status();
  if (!allowed_keys.empty()) {
    const auto winners = snapshot->content_hash(Content::winners);
    if (!winners.ok()) return winners.status();
    if (hex(*winners) != generation.winners)
      return refused(file, "holds other winners than were signed");
  }
  return Published{std::move(*snapshot), generation.number, manifest->sequence};
}

Result<Database> open_published(const std::string& path,
                                const std::vector<std::string>& allowed_keys) {
  auto opened = open_current(path, allowed_keys);
  if (!opened.ok()) return opened.status();
  return std::move(opened->database);
}

}  // namespace quarterturn
