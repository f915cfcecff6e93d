#include "generator/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace quarterturn {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Shared memory that one block may opt in to, by compute capability (CUDA programming guide, table
// of technical specifications).
std::int64_t nvidia_shared_bytes(int capability) {
  switch (capability) {
    case 80:
    case 87:
      return 163 * 1024;
    case 86:
    case 89:
    case 120:
    case 121:
      return 99 * 1024;
    default:
      return capability >= 90 ? 227 * 1024 : 48 * 1024;
  }
}

}  // namespace

bool Target::has(std::string_view feature) const {
  return std::binary_search(features.begin(), features.end(), feature);
}

std::string Target::key() const {
  return features.empty() ? arch : fmt::format("{}:{}", arch, fmt::join(features, ","));
}

Result<Target> parse_target(std::string_view key) {
  Target target;
  const auto colon = key.find(':');
  target.arch = std::string(key.substr(0, colon));
  if (colon != std::string_view::npos) {
    std::string_view rest = key.substr(colon + 1);
    while (!rest.empty()) {
      const auto comma = rest.find(',');
      if (const auto word = rest.substr(0, comma); !word.empty())
        target.features.emplace_back(word);
      rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    }
    std::sort(target.features.begin(), target.features.end());
    target.features.erase(std::unique(target.features.begin(), target.features.end()),
                          target.features.end());
  }
  if (starts_with(target.arch, "sm_")) {
    int capability = 0;
    for (std::size_t i = 3;
         i < target.arch.size() && std::isdigit(static_cast<unsigned char>(target.arch[i])); ++i)
      capability = capability * 10 + (target.arch[i] - '0');
    if (capability < 50 || capability > 999)
      return Status(
          Code::unknown_name,
          fmt::format("'{}' is not an NVIDIA target; write sm_80, sm_90a, sm_120f, ...", key));
    target.vendor = Vendor::nvidia;
    target.shared_bytes = nvidia_shared_bytes(capability);
    target.registers = 255;
  } else if (starts_with(target.arch, "gfx")) {
    target.vendor = Vendor::amd;
    target.shared_bytes = (starts_with(target.arch, "gfx950") ? 160 : 64) * 1024;
    target.registers = 512;
  } else if (starts_with(target.arch, "x86-64") || target.arch == "aarch64") {
    target.vendor = Vendor::cpu;
  } else {
    return Status(Code::unknown_name,
                  fmt::format("target '{}' is not known; use x86-64, x86-64-v3, x86-64-v4, "
                              "aarch64, sm_NN[a|f] or gfxNNN, "
                              "with features after ':'",
                              key));
  }
  return target;
}

}  // namespace quarterturn
