// Settings: everything that can be set from outside, in one table, each value with where it came
// from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/locations.hpp"

namespace quarterturn {

enum class Setting {
  backend,
  device,
  threads,
  target,
  on_miss,
  no_jit,
  disable,
  cache_dir,
  database,
  code_cache,
  snapshots,
  snapshot_keys,
  bundle,
  pins,
  data_profile,
  lock,
  cxx,
  worker,
  unproven,
  prover,
  proof_seconds,
  compile_seconds,
  compile_memory_mib,
  cuda_driver,
  nvrtc,
  hip_runtime,
  hiprtc,
  hip_clang,
  simulators,
  log,
  dump,
};
constexpr std::size_t kSettings = static_cast<std::size_t>(Setting::dump) + 1;

enum class SettingKind { text, count, choice, list };

struct SettingSpec {
  Setting id;
  std::string_view name;      ///< in configuration files
  std::string_view variable;  ///< in the environment
  std::string_view standard;  ///< what holds when nobody says anything
  SettingKind kind;
  std::string_view allowed;  ///< of a choice: "a|b|c"; of a count: "lo..hi"
  std::string_view meaning;
};

/// The whole table, in the order in which `qturn config` prints it.
std::span<const SettingSpec, kSettings> setting_specs();

/// From the weakest to the strongest.
enum class SettingOrigin { standard, site_file, user_file, environment, option };
std::string_view setting_origin_name(SettingOrigin origin);

struct SettingValue {
  std::string text;  ///< a list's parts are joined by ':'
  SettingOrigin origin = SettingOrigin::standard;
  std::string place;  ///< the file, or the variable's name
};

/// Where values may come from; injected, so that tests touch no real files or variables.
struct SettingSources {
  Surroundings surroundings = Surroundings::of_process();
  std::string site_file = "/etc/quarterturn/config.json";
  std::map<Setting, std::string> options;  ///< what the caller of the library gave
};

/// Immutable once loaded.
class Settings {
 public:
  /// Never fails: a malformed value or file is described in problems(), and the next weaker source
  /// holds. A user file that others may write is not read.
  static Settings load(const SettingSources& sources);

  const SettingValue& of(Setting setting) const {
    return values_[static_cast<std::size_t>(setting)];
  }
  const std::string& text(Setting setting) const { return of(setting).text; }
  std::int64_t count(Setting setting) const;
  std::vector<std::string> list(Setting setting) const;
  bool lists(Setting setting, std::string_view word) const;

  /// Messages for the user: what was given, what is allowed, what holds instead.
  const std::vector<std::string>& problems() const { return problems_; }

  /// The database and code folder that these settings lead to.
  Result<Locations> locations() const;

 private:
  void take(const SettingSpec& spec, SettingOrigin origin, const std::string& place,
            const std::string& text);
  void read_file(const std::string& path, SettingOrigin origin);

  std::array<SettingValue, kSettings> values_;
  std::vector<std::string> problems_;
  Surroundings surroundings_;
};

}  // namespace quarterturn
