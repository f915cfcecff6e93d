// Runs the blocks of a launch on fibers, one host thread for all: which warp is next is chosen by a
// seed, and a warp that was chosen runs as far as it can before another one starts.
#pragma once

#include <cstdint>
#include <string>

#include "templates/simulated/machine.h"

namespace quarterturn::simulated {

using qt::simulated::Byte;
using qt::simulated::Entry;
using qt::simulated::Index3;
using qt::simulated::Landing;
using qt::simulated::Machine;

/// What is launched.
struct LaunchShape {
  Index3 grid = {1, 1, 1}, block = {1, 1, 1}, cluster = {1, 1, 1};
  std::uint32_t shared_bytes = 0;
  std::uint32_t warp_size = 32;
};

/// How it is run: the same schedule gives the same run.
struct Schedule {
  std::uint64_t seed = 1;
  Landing landing = Landing::late;
  /// Blocks that run side by side, as on so many multiprocessors; whole clusters, one at least.
  std::uint32_t resident_blocks = 3;
};

/// Says what a memory fault at an address is ("the page behind 96 bytes at 0x..."), or is empty.
using DescribeAddress = std::string (*)(const void* address);

/// Runs `entry` with `parameters` on every thread of every block. `slot` is the kernel's own
/// qt_simulated_machine. Empty when all ended well, else what went wrong and where: a message of a
/// primitive, a divergent collective, a deadlock with what everybody waits for, a memory fault.
/// One launch at a time in a process; callable from any thread.
std::string run(const LaunchShape& shape, const Schedule& schedule, const Entry& entry,
                void* const* parameters, Machine** slot, DescribeAddress describe = nullptr);

}  // namespace quarterturn::simulated
