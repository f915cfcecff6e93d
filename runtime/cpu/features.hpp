// What this CPU can do and how much of it the process may use: the CPU back end's Target and
// performance class.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "generator/target.hpp"

namespace quarterturn::cpu {

/// The raw answers of cpuid and xgetbv that decide a Target, so that tests can describe any
/// machine.
struct X86Words {
  std::array<std::uint32_t, 4> leaf1{};    ///< eax, ebx, ecx, edx
  std::array<std::uint32_t, 4> leaf7{};    ///< sub-leaf 0
  std::array<std::uint32_t, 4> leaf7_1{};  ///< sub-leaf 1
  std::array<std::uint32_t, 4> leaf80000001{};
  std::uint64_t xcr0 = 0;  ///< register state that the operating system saves; 0 without OSXSAVE
};

/// The highest level of x86-64 whose instructions and register state are all there, with the
/// features beyond it that kernels use.
Target x86_target(const X86Words& words);

/// From AT_HWCAP and AT_HWCAP2 of the auxiliary vector.
Target aarch64_target(std::uint64_t hwcap, std::uint64_t hwcap2);

/// Whether code for `wanted` runs on a machine that is `have`; else names what is missing.
Status check_runs_on(const Target& wanted, const Target& have);

struct Cpu {
  Target target;
  std::string name;           ///< the maker's words, for people only
  std::string silicon;        ///< "intel-6-143-8", "arm-0x41-0xd40-1": never the brand string
  std::int64_t cores = 1;     ///< this process may use: affinity, then the cgroup's quota
  std::int64_t l2_bytes = 0;  ///< of one core; 0 when the system does not say
  std::int64_t l3_bytes = 0;
  std::int64_t memory_bytes = 0;

  /// "cpu model=intel-6-143-8 units=2 l2=2097152 l3=33554432", for a number of workers.
  std::string performance_class(std::int64_t threads) const;
};

/// Reads the machine this process runs on. Files that cannot be read leave their defaults.
Cpu detect_cpu();

/// Cores that a cgroup's "cpu.max" text ("150000 100000", "max 100000") allows; 0 = no limit.
std::int64_t cores_of_quota(std::string_view cpu_max);

}  // namespace quarterturn::cpu
