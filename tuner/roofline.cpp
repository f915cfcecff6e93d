#include "tuner/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "generator/target.hpp"

namespace quarterturn {
namespace {

// Operations one unit does in one clock, two for a multiply-add. GPUs: dense tensor-core rates that
// the vendors publish, divided by units and boost clock. CPUs: two vector pipes of integer dot
// products, which is more than some models have.
struct Rate {
  const char* arch;
  const char* feature;  // that the target must have; empty: none
  double per_clock;
  const char* what;
};
constexpr Rate kRates[] = {
    {"sm_90a", "", 8192, "dense FP8 or INT8 tensor cores, 8192 operations a clock and SM"},
    {"sm_100a", "", 32768, "dense FP4 tensor cores, 32768 operations a clock and SM"},
    {"sm_100f", "", 32768, "dense FP4 tensor cores, 32768 operations a clock and SM"},
    {"sm_120a", "", 4096, "dense FP4 tensor cores, 4096 operations a clock and SM"},
    {"sm_120f", "", 4096, "dense FP4 tensor cores, 4096 operations a clock and SM"},
    {"gfx950", "", 16384, "dense FP4 matrix cores, 16384 operations a clock and CU"},
    {"x86-64-v4", "avx512_vnni", 256, "two 512-bit VNNI pipes, 256 operations a clock and core"},
    {"x86-64-v3", "avx_vnni", 128, "two 256-bit VNNI pipes, 128 operations a clock and core"},
};

double figure_after(const std::string& text, const std::string& name) {
  const auto at = text.find(" " + name);
  if (at == std::string::npos) return 0;
  double value = 0;
  std::from_chars(text.data() + at + 1 + name.size(), text.data() + text.size(), value);
  return value;
}

// Of whole devices, told apart by architecture and memory size.
struct BoardMemory {
  const char* arch;
  double from_gib, to_gib, bytes;
};
constexpr BoardMemory kMemories[] = {
    {"sm_90a", 130, 150, 4.8e12},                                 // H200
    {"sm_90a", 74, 82, 3.35e12},                                  // H100 SXM5
    {"sm_100a", 170, 196, 8.0e12},                                // B200
    {"sm_100f", 170, 196, 8.0e12}, {"gfx950", 280, 290, 8.0e12},  // MI355X
};

}  // namespace

double Roof::operations_at(double work, double traffic) const {
  if (operations <= 0) return 0;
  if (bytes <= 0 || traffic <= 0) return operations;
  return std::min(operations, bytes * work / traffic);
}

Roof roof_of(const Env& env, double clock_mhz) {
  Roof out;
  const auto target = parse_target(env.target);
  const double units = figure_after(env.performance_class, "units=");
  const double memory = figure_after(env.performance_class, "memory_gib=");
  const Rate* rate = nullptr;
  if (target.ok())
    for (const auto& one : kRates)
      if (target->arch == one.arch && (one.feature[0] == '\0' || target->has(one.feature)))
        rate = rate ? rate : &one;
  if (!rate) {
    out.assumption = "no peak is known for this architecture";
  } else if (units <= 0 || clock_mhz <= 0) {
    out.assumption =
        fmt::format("peak not known: {}", units <= 0 ? "the number of units was not recorded"
                                                     : "no trial recorded the clock");
  } else {
    out.operations = rate->per_clock * units * clock_mhz * 1e6;
    out.assumption = fmt::format(
        "{:.4g} T operations a second assumed: {:.0f} units at {:.0f} MHz "
        "(median seen while timing), {}",
        out.operations / 1e12, units, clock_mhz, rate->what);
  }
  if (target.ok())
    for (const auto& one : kMemories)
      if (target->arch == one.arch && memory >= one.from_gib && memory <= one.to_gib)
        out.bytes = one.bytes;
  out.assumption +=
      out.bytes > 0 ? fmt::format("; {:.3g} TB/s of memory assumed from its size", out.bytes / 1e12)
                    : "; memory bandwidth not known";
  return out;
}

}  // namespace quarterturn
