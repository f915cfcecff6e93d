// Locations: where the tuning database and compiled code live, and which setting decided it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "generator/status.hpp"

namespace quarterturn {

/// What the process's surroundings say; injected, so that tests need not change the real ones.
struct Surroundings {
  std::function<std::optional<std::string>(const std::string&)> variable;
  std::function<std::optional<std::string>()> account_home;  ///< the user database's home folder

  /// The real ones. Variables read as unset in a setuid or setgid program.
  static Surroundings of_process();
};

enum class LocationOrigin {
  option,     ///< given by the caller
  cache_dir,  ///< QTURN_CACHE_DIR
  xdg,        ///< XDG_CACHE_HOME/quarterturn
  home,       ///< HOME/.cache/quarterturn
  account,    ///< the account's home folder, HOME being unset
  nowhere,    ///< in memory only
};
std::string_view location_origin_name(LocationOrigin origin);

struct LocationOptions {
  std::string database;    ///< path of the file; empty: not given
  std::string code_cache;  ///< folder; empty: beside the database
};

struct Locations {
  std::string database;    ///< empty: in memory
  std::string code_cache;  ///< empty: a private temporary folder
  LocationOrigin database_origin = LocationOrigin::nowhere;
  LocationOrigin code_origin = LocationOrigin::nowhere;
  std::string note;  ///< to be said once; empty when all is ordinary
};

/// Fails with invalid_argument for a URL ("s3://...") and for a QTURN_CACHE_DIR that is relative:
/// code must never come from a folder that depends on where a process was started.
Result<Locations> locate(const LocationOptions& options, const Surroundings& surroundings);

}  // namespace quarterturn
