// hipRTC, AMD's run-time compiler, opened at run time: flattened text in, code object out. For the
// helper program alone: hipRTC ends the process on some inputs and is serialised by a lock.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn::hip {

/// What the helper says of the hipRTC that it would use.
struct HiprtcFacts {
  std::string library, comgr;  ///< paths; comgr's may be empty
  int major = 0, minor = 0;
  std::vector<std::string>
      architectures;  ///< of comgr: "gfx950", ...; empty: it could not be asked
};

/// Opens `override_path` alone where it is not empty, else libhiprtc.so.7, .6 and the runtime that
/// held it before; then comgr, which knows the architectures.
Result<HiprtcFacts> hiprtc_facts(const std::string& override_path);

struct HiprtcCode {
  std::string code, log;
};

/// Compiles for an architecture that comgr has named. On failure the status holds the log.
Result<HiprtcCode> hiprtc_compile(const std::string& override_path, std::string_view text,
                                  std::string_view arch, const std::vector<std::string>& flags);

}  // namespace quarterturn::hip
