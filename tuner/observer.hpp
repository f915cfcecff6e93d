// What disturbs timings on a Linux machine: stolen time, other processes, the clock's frequency.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/measure.hpp"

namespace quarterturn {

/// Jiffies of the processors that this process may use, from the text of /proc/stat.
struct CpuTimes {
  double busy = 0, stolen = 0, all = 0;
};
CpuTimes parse_cpu_times(std::string_view proc_stat, const std::vector<int>& cpus);

/// The largest "cpu MHz" of /proc/cpuinfo; 0 where it is not stated.
double parse_clock_mhz(std::string_view proc_cpuinfo);

/// Watches through /proc. Whatever cannot be read counts as undisturbed.
class LinuxObserver : public Observer {
 public:
  LinuxObserver();
  Conditions observe() override;

 private:
  std::vector<int> cpus_;
  CpuTimes before_;
  double own_before_ = 0, time_before_ = 0;
};

}  // namespace quarterturn
