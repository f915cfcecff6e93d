// SHA-256 for keys of code and for names that must not collide; a fast 64-bit hash for tables.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace quarterturn {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::string_view bytes);
std::string hex(const Digest& digest);

/// FNV-1a, for look-up tables and ordering; never for naming code.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t state = 0xcbf29ce484222325ull) {
  for (const char c : bytes) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return state;
}

}  // namespace quarterturn
