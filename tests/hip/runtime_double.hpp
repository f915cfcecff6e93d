// What a test may ask of the libamdhip64 double (runtime_double.cpp), by dlsym in the same file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "templates/args.h"

namespace qturn_test {

struct RecordedLaunch {
  std::string entry;
  std::uint32_t grid[3], block[3], shared_bytes;
  void* stream;
  qt_args args;
  int device;
};

/// Everything the double counts; `qturn_double()` returns it.
struct HipDouble {
  std::vector<RecordedLaunch> launches;
  int devices = 2;
  std::string arch = "gfx950:sramecc+:xnack-";
  int live_modules = 0, live_allocations = 0, live_streams = 0, live_graphs = 0, live_events = 0;
  int captures_of_null_stream = 0;  ///< what hipStreamIsCapturing says of it
  int set_devices = 0;              ///< calls of hipSetDevice
  int fail_next_launch = 0;         ///< an error that the next launch gives
};

}  // namespace qturn_test

extern "C" qturn_test::HipDouble* qturn_double();
