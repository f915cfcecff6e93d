#include "tuner/compile_slots.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "runtime/cpu/features.hpp"

namespace quarterturn {

std::size_t cores_within(std::int64_t detected, const std::string& slurm) {
  std::int64_t given = 0;
  const auto* const end = slurm.data() + slurm.size();
  const auto read = std::from_chars(slurm.data(), end, given);
  const bool is_number = read.ec == std::errc() && read.ptr == end && given > 0;
  return static_cast<std::size_t>(
      std::max<std::int64_t>(1, is_number ? std::min(detected, given) : detected));
}

std::size_t usable_cores() {
  const char* const slurm = std::getenv("SLURM_CPUS_PER_TASK");
  return cores_within(cpu::detect_cpu().cores, slurm ? slurm : "");
}

FileLock CompileSlots::take(const std::function<bool()>& give_up) const {
  using std::chrono::milliseconds;
  // Processes begin at different slots, so that they seldom meet.
  const auto first = static_cast<std::size_t>(getpid());
  while (!give_up()) {
    for (std::size_t i = 0; i < count_; ++i) {
      auto lock = FileLock::acquire(path_, (first + i) % count_, milliseconds(0));
      if (lock.ok()) return std::move(*lock);
      if (lock.status().code() != Code::busy) return {};
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  return {};
}

}  // namespace quarterturn
