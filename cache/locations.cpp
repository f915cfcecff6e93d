#include "cache/locations.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "cache/filesystem.hpp"

namespace quarterturn {
namespace {

bool is_url(const std::string& path) { return path.find("://") != std::string::npos; }

Status check(const std::string& path, std::string_view setting) {
  if (!is_url(path)) return {};
  return {Code::invalid_argument,
          fmt::format("{} is \"{}\", a URL; give a folder on a local disk", setting, path)};
}

bool is_absolute(const std::optional<std::string>& path) { return path && path->starts_with('/'); }

}  // namespace

std::string_view location_origin_name(LocationOrigin origin) {
  static constexpr std::string_view names[] = {"option", "QTURN_CACHE_DIR", "XDG_CACHE_HOME",
                                               "HOME",   "account",         "nowhere"};
  const auto index = static_cast<std::size_t>(origin);
  return index < std::size(names) ? names[index] : "nowhere";
}

Surroundings Surroundings::of_process() {
  Surroundings out;
  out.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = secure_getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
  out.account_home = []() -> std::optional<std::string> {
    std::array<char, 4096> buffer{};
    passwd entry{};
    passwd* found = nullptr;
    if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
        found == nullptr || entry.pw_dir == nullptr)
      return std::nullopt;
    return entry.pw_dir;
  };
  return out;
}

Result<Locations> locate(const LocationOptions& options, const Surroundings& surroundings) {
  Locations out;
  std::string folder;
  LocationOrigin origin = LocationOrigin::nowhere;
  const auto decide = [&](const std::optional<std::string>& base, std::string_view below,
                          LocationOrigin from) {
    // Relative and empty values of XDG_CACHE_HOME and HOME count as unset, as their rules say.
    if (origin != LocationOrigin::nowhere || !is_absolute(base)) return;
    folder = *base + std::string(below);
    origin = from;
  };

  const auto cache_dir = surroundings.variable("QTURN_CACHE_DIR");
  if (cache_dir && !cache_dir->empty()) {
    Status status = check(*cache_dir, "QTURN_CACHE_DIR");
    if (!status.ok()) return status;
    if (!is_absolute(cache_dir))
      return Status(
          Code::invalid_argument,
          fmt::format("QTURN_CACHE_DIR is \"{}\"; it must be an absolute path, as code is "
                      "loaded from there",
                      *cache_dir));
    decide(cache_dir, "", LocationOrigin::cache_dir);
  }
  const auto xdg = surroundings.variable("XDG_CACHE_HOME");
  if (!xdg || !is_url(*xdg)) decide(xdg, "/quarterturn", LocationOrigin::xdg);
  decide(surroundings.variable("HOME"), "/.cache/quarterturn", LocationOrigin::home);
  if (origin == LocationOrigin::nowhere)
    decide(surroundings.account_home(), "/.cache/quarterturn", LocationOrigin::account);

  if (!folder.empty()) {
    out.database = folder + "/tuning.db";
    out.code_cache = folder + "/code";
    out.database_origin = out.code_origin = origin;
  }
  if (!options.database.empty()) {
    Status status = check(options.database, "the database option");
    if (!status.ok()) return status;
    out.database = options.database;
    out.code_cache = folder_of(options.database) + "/code";
    out.database_origin = out.code_origin = LocationOrigin::option;
  }
  if (!options.code_cache.empty()) {
    Status status = check(options.code_cache, "the code cache option");
    if (!status.ok()) return status;
    out.code_cache = options.code_cache;
    out.code_origin = LocationOrigin::option;
  }
  if (out.database.empty())
    out.note =
        "no folder for the tuning database is known (HOME is unset and the account has no home "
        "folder); results are kept in memory until this process ends. Set QTURN_CACHE_DIR to a "
        "folder on a writable local disk";
  return out;
}

}  // namespace quarterturn
