// Between the C interface's plain structs and our types: every number is checked on the way in.
#pragma once

#include <cstring>

#include <fmt/format.h>

#include "generator/problem.hpp"
#include "generator/status.hpp"
#include "runtime/include/quarterturn/qturn.h"

namespace quarterturn {

/// `invalid_argument` names the member, what was given and what is allowed. Sizes are bounded so
/// that no byte count overflows.
Result<Problem> problem_of(const qturn_problem& given);

/// The way back.
qturn_problem c_problem_of(const Problem& problem);

/// not_supported: what a newer caller's struct has more than ours is not all zero.
inline Status check_unknown(const void* given, const char* name, std::size_t known,
                            std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t i = known; i < size; ++i)
    if (bytes[i] != 0)
      return Status(
          Code::not_supported,
          fmt::format("{} uses members that this version of the library ({}.{}.{}) does "
                      "not know; use the header that came with it",
                      name, QTURN_VERSION_MAJOR, QTURN_VERSION_MINOR, QTURN_VERSION_PATCH));
  return {};
}
inline constexpr std::size_t kMostStruct = 4096;  // of any version: what a wrong size makes us read

/// Copies what the caller's version of a struct has over our defaults in `out`. `given` may be
/// shorter than ours (an older header); a longer one is taken when all that it has more is zero.
template <class Struct>
Status read_struct(const Struct* given, const char* name, std::size_t least, Struct& out) {
  if (!given) return Status(Code::invalid_argument, fmt::format("{} is NULL", name));
  const std::size_t size = given->struct_size;
  if (size < least || size > kMostStruct)
    return Status(Code::invalid_argument,
                  fmt::format("{}->struct_size = {}: set it by the matching qturn_*_init function",
                              name, size));
  if (auto s = check_unknown(given, name, sizeof(Struct), size); !s.ok()) return s;
  std::memcpy(&out, given, size < sizeof(Struct) ? size : sizeof(Struct));
  out.struct_size = sizeof(Struct);
  return {};
}

}  // namespace quarterturn
