// NVRTC, NVIDIA's run-time compiler, opened at run time: flattened text in, cubin and ptxas figures
// out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn::cuda {

struct Cubin {
  std::string code;               ///< a cubin, or PTX for a chip that is newer than NVRTC
  std::string log;                ///< what NVRTC and ptxas said
  std::int64_t registers = 0;     ///< of one thread
  std::int64_t spill_bytes = 0;   ///< stores and loads together
  std::int64_t shared_bytes = 0;  ///< static shared memory
  bool serialised_wgmma = false;  ///< ptxas put waits between wgmmas (warning C7510)
};

/// Which NVRTC this process would use.
struct NvrtcIdentity {
  std::string path;
  int major = 0, minor = 0;
  /// "nvrtc 13.0 <sha256 of the library, shortened>": two builds of one version differ.
  std::string text() const;
  std::string content_hash;
};

/// The newest NVRTC whose major version is not above `driver_major` (0: any), by option path,
/// mapped copy, loader, then the toolkit's usual folders. Cached for the process.
Result<NvrtcIdentity> nvrtc_identity(int driver_major = 0, const std::string& override_path = {});

/// The same without a look at the library's content, for programs that only compile.
Status nvrtc_open(int driver_major = 0, const std::string& override_path = {});

/// Architectures it compiles for, as numbers (90 for sm_90).
Result<std::vector<int>> nvrtc_architectures();

/// Compiles one translation unit for a real architecture ("sm_90a"). For one that is newer than
/// NVRTC and asks for no features of its own ("sm_130"), the code is PTX of the newest that NVRTC
/// knows, with its final 0. Thread-safe; the process's locale and signal state stay as they are. On
/// failure the status holds the log's first errors.
Result<Cubin> nvrtc_compile(std::string_view text, std::string_view arch,
                            const std::vector<std::string>& flags);

/// Reads "Used 168 registers, 8 bytes spill stores, ..." and known warnings out of a ptxas log.
void parse_ptxas_log(Cubin& cubin);

}  // namespace quarterturn::cuda
