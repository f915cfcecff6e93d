// Target: an architecture and its limits, as far as they decide what code is legal and correct.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

enum class Vendor { cpu, nvidia, amd };

/// What a binary is compiled for. Equal targets can exchange binaries; how fast they run is another
/// matter (unit counts and caches are the performance key, see cache/).
struct Target {
  Vendor vendor = Vendor::cpu;
  std::string arch;  ///< "x86-64-v4", "aarch64", "sm_90a", "gfx950"
  std::vector<std::string>
      features;                   ///< sorted, explicit: "avx512_vnni", "sramecc+"; never "native"
  std::int64_t shared_bytes = 0;  ///< shared memory or LDS one block may use; 0 on CPUs
  std::int64_t registers = 0;     ///< 32-bit registers of one thread at most; 0 on CPUs

  bool operator==(const Target&) const = default;
  bool has(std::string_view feature) const;

  /// "x86-64-v4:avx512_vnni,avx_vnni": arch and features, the hard key of stored code.
  std::string key() const;
};

/// Reads what Target::key printed ("sm_90a", "x86-64-v3", "aarch64", "gfx950", with features after
/// ':'), and fills the architecture's limits.
Result<Target> parse_target(std::string_view key);

}  // namespace quarterturn
