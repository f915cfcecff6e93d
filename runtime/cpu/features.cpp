#include "runtime/cpu/features.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "cache/env.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quarterturn::cpu {
namespace {

bool bit(std::uint32_t word, int index) { return (word >> index & 1u) != 0; }

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

std::int64_t leading_integer(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

#if defined(__x86_64__)

std::array<std::uint32_t, 4> cpuid(std::uint32_t leaf, std::uint32_t sub_leaf = 0) {
  std::array<std::uint32_t, 4> out{};
  __get_cpuid_count(leaf, sub_leaf, &out[0], &out[1], &out[2], &out[3]);
  return out;
}

X86Words read_words() {
  X86Words words;
  words.leaf1 = cpuid(1);
  words.leaf7 = cpuid(7);
  if (words.leaf7[0] >= 1) words.leaf7_1 = cpuid(7, 1);
  words.leaf80000001 = cpuid(0x80000001u);
  if (bit(words.leaf1[2], 27)) {
    std::uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.xcr0 = std::uint64_t{high} << 32 | low;
  }
  return words;
}

std::string read_silicon() {
  std::uint32_t words[4] = {};
  char vendor[13] = {};
  __get_cpuid(0, &words[0], &words[1], &words[2], &words[3]);
  std::memcpy(vendor, &words[1], 4);
  std::memcpy(vendor + 4, &words[3], 4);
  std::memcpy(vendor + 8, &words[2], 4);
  const std::string_view name = vendor;
  const auto version = cpuid(1)[0];
  std::uint32_t family = version >> 8 & 15u, model = version >> 4 & 15u;
  if (family == 6 || family == 15) model |= (version >> 16 & 15u) << 4;
  if (family == 15) family += version >> 20 & 255u;
  return fmt::format("{}-{}-{}-{}",
                     name == "GenuineIntel"   ? "intel"
                     : name == "AuthenticAMD" ? "amd"
                                              : "other",
                     family, model, version & 15u);
}

#endif

// The first value of `field` in /proc/cpuinfo, trimmed.
std::string cpuinfo_field(const std::string& text, std::string_view field) {
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.rfind(field, 0) != 0) continue;
    const auto from = line.find_first_not_of(" \t", colon + 1);
    return from == std::string::npos ? std::string{} : line.substr(from);
  }
  return {};
}

std::int64_t allowed_cpus() {
  // The kernel's mask may be wider than cpu_set_t on machines of over 1024 CPUs: grow until it
  // fits.
  for (int cpus = 1024; cpus <= 1 << 18; cpus *= 4) {
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long) + 1, 0);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) == 0) return std::max(1, CPU_COUNT_S(bytes, set));
  }
  return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

// The tightest quota of this process's cgroup and its parents, in cores; 0 = none.
std::int64_t quota_cores() {
  std::int64_t least = 0;
  const auto take = [&least](std::int64_t cores) {
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
  };
  std::stringstream lines(read_text("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("cpu") == std::string::npos) continue;
    for (;;) {
      const std::string at = group == "/" ? "" : group;
      if (unified) {
        take(cores_of_quota(read_text("/sys/fs/cgroup" + at + "/cpu.max")));
      } else {
        const std::string folder = "/sys/fs/cgroup/cpu" + at;
        const auto quota = leading_integer(read_text(folder + "/cpu.cfs_quota_us"));
        const auto period = leading_integer(read_text(folder + "/cpu.cfs_period_us"));
        if (quota > 0) take(cores_of_quota(fmt::format("{} {}", quota, period)));
      }
      if (at.empty()) break;
      group = group.substr(0, group.rfind('/'));
    }
  }
  return least;
}

}  // namespace

std::int64_t cores_of_quota(std::string_view cpu_max) {
  const auto space = cpu_max.find(' ');
  if (space == std::string_view::npos) return 0;
  const auto quota = leading_integer(cpu_max.substr(0, space));
  const auto period = leading_integer(cpu_max.substr(space + 1));
  if (quota <= 0 || period <= 0) return 0;
  // Rounded down: a worker beyond the quota gets the whole process throttled.
  return std::max<std::int64_t>(1, quota / period);
}

Target x86_target(const X86Words& w) {
  Target target{Vendor::cpu, "x86-64", {}, 0, 0};
  const bool ymm = (w.xcr0 & 0x6) == 0x6;
  const bool zmm = (w.xcr0 & 0xe6) == 0xe6;
  const auto c1 = w.leaf1[2], b7 = w.leaf7[1], c7 = w.leaf7[2];
  const bool v2 = bit(c1, 0) && bit(c1, 9) && bit(c1, 13) && bit(c1, 19) && bit(c1, 20) &&
                  bit(c1, 23);  // sse3, ssse3, cx16, sse4.1, sse4.2, popcnt
  const bool v3 = v2 && ymm && bit(c1, 12) && bit(c1, 22) && bit(c1, 28) && bit(c1, 29) &&
                  bit(b7, 3) && bit(b7, 5) && bit(b7, 8) &&
                  bit(w.leaf80000001[2], 5);  // fma, movbe, avx, f16c, bmi1, avx2, bmi2, lzcnt
  const bool v4 = v3 && zmm && bit(b7, 16) && bit(b7, 17) && bit(b7, 28) && bit(b7, 30) &&
                  bit(b7, 31);  // avx512 f, dq, cd, bw, vl
  if (v3) target.arch = "x86-64-v3";
  if (v4) target.arch = "x86-64-v4";
  if (v4 && bit(w.leaf7_1[0], 5)) target.features.emplace_back("avx512_bf16");
  if (v4 && bit(c7, 1)) target.features.emplace_back("avx512_vbmi");
  if (v4 && bit(c7, 11)) target.features.emplace_back("avx512_vnni");
  if (v3 && bit(w.leaf7_1[0], 4)) target.features.emplace_back("avx_vnni");
  std::sort(target.features.begin(), target.features.end());
  return target;
}

Target aarch64_target(std::uint64_t hwcap, std::uint64_t hwcap2) {
  constexpr std::uint64_t kDotProduct = 1ull << 20;  // HWCAP_ASIMDDP
  constexpr std::uint64_t kInt8Matrix = 1ull << 13;  // HWCAP2_I8MM
  Target target{Vendor::cpu, "aarch64", {}, 0, 0};
  if (hwcap & kDotProduct) target.features.emplace_back("dotprod");
  if (hwcap2 & kInt8Matrix) target.features.emplace_back("i8mm");
  return target;
}

Status check_runs_on(const Target& wanted, const Target& have) {
  const auto level = [](const std::string& arch) {
    return arch == "x86-64-v4" ? 4 : arch == "x86-64-v3" ? 3 : arch == "x86-64" ? 1 : 0;
  };
  const bool arch_runs = wanted.arch == have.arch ||
                         (level(wanted.arch) > 0 && level(wanted.arch) <= level(have.arch));
  std::string missing = arch_runs ? "" : wanted.arch;
  for (const auto& feature : wanted.features)
    if (!have.has(feature)) missing += (missing.empty() ? "" : ", ") + feature;
  if (missing.empty()) return {};
  return Status(Code::not_supported,
                fmt::format("code for {} cannot run on this CPU ({}): it lacks {}", wanted.key(),
                            have.key(), missing));
}

std::string Cpu::performance_class(std::int64_t threads) const {
  Silicon out;
  out.vendor = "cpu";
  out.model = silicon;
  out.units = threads;
  out.l2_bytes = l2_bytes;
  out.l3_bytes = l3_bytes;
  return out.text();
}

Cpu detect_cpu() {
  Cpu cpu;
  const std::string info = read_text("/proc/cpuinfo");
#if defined(__x86_64__)
  cpu.target = x86_target(read_words());
  cpu.name = cpuinfo_field(info, "model name");
  cpu.silicon = read_silicon();
#elif defined(__aarch64__)
  cpu.target = aarch64_target(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
  cpu.silicon = fmt::format("arm-{}-{}-{}", cpuinfo_field(info, "CPU implementer"),
                            cpuinfo_field(info, "CPU part"), cpuinfo_field(info, "CPU revision"));
  cpu.name = cpu.silicon;
#else
#error "Quarterturn's CPU back end knows x86-64 and aarch64"
#endif
  cpu.cores = allowed_cpus();
  if (const auto quota = quota_cores(); quota > 0) cpu.cores = std::min(cpu.cores, quota);
  cpu.l2_bytes = std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE));
  cpu.l3_bytes = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
  cpu.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return cpu;
}

}  // namespace quarterturn::cpu
