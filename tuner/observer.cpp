#include "tuner/observer.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace quarterturn {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

std::vector<int> allowed_cpus() {
  std::vector<int> out;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) out.push_back(i);
  return out;
}

double seconds_of(const rusage& usage) {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// CPU time of this process and of its children that still live: where candidates run.
double own_seconds() {
  rusage self{}, children{};
  getrusage(RUSAGE_SELF, &self);
  getrusage(RUSAGE_CHILDREN, &children);
  double out = seconds_of(self) + seconds_of(children);
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto task = "/proc/self/task/" + std::to_string(getpid()) + "/children";
  std::istringstream pids(read_file(task));
  for (std::string pid; pids >> pid;) {
    const auto stat = read_file("/proc/" + pid + "/stat");
    const auto name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream fields(stat.substr(name_end + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    out += (user + system) / ticks;
  }
  return out;
}

}  // namespace

CpuTimes parse_cpu_times(std::string_view proc_stat, const std::vector<int>& cpus) {
  CpuTimes out;
  std::istringstream lines{std::string(proc_stat)};
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("cpu", 0) != 0 || line.size() < 4 || line[3] == ' ') continue;
    std::istringstream words(line.substr(3));
    int cpu = -1;
    double value[8] = {};
    words >> cpu;
    for (double& v : value) words >> v;
    if (std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) continue;
    // user nice system idle iowait irq softirq steal
    out.busy += value[0] + value[1] + value[2] + value[5] + value[6];
    out.stolen += value[7];
    for (const double v : value) out.all += v;
  }
  return out;
}

double parse_clock_mhz(std::string_view proc_cpuinfo) {
  double most = 0;
  for (std::size_t at = proc_cpuinfo.find("cpu MHz"); at != std::string_view::npos;
       at = proc_cpuinfo.find("cpu MHz", at + 1)) {
    const auto colon = proc_cpuinfo.find(':', at);
    if (colon == std::string_view::npos) break;
    most = std::max(most,
                    std::strtod(std::string(proc_cpuinfo.substr(colon + 1, 24)).c_str(), nullptr));
  }
  return most;
}

LinuxObserver::LinuxObserver() : cpus_(allowed_cpus()) { LinuxObserver::observe(); }

Conditions LinuxObserver::observe() {
  Conditions out;
  const CpuTimes now = parse_cpu_times(read_file("/proc/stat"), cpus_);
  const double own = own_seconds(), time = SteadyClock().now();
  const double elapsed = time - time_before_, ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  // Jiffies are coarse: short looks say nothing.
  if (time_before_ > 0 && elapsed >= 0.05 && now.all > before_.all) {
    out.stolen = (now.stolen - before_.stolen) / (now.all - before_.all);
    out.others = std::max(0.0, ((now.busy - before_.busy) / ticks - (own - own_before_)) / elapsed);
  }
  if (time_before_ == 0 || elapsed >= 0.05) {
    before_ = now;
    own_before_ = own;
    time_before_ = time;
  }
  out.clock_mhz = parse_clock_mhz(read_file("/proc/cpuinfo"));
  return out;
}

}  // namespace quarterturn
