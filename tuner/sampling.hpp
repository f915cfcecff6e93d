// Which rows and columns are looked at where not all can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quarterturn {

/// At most `most` indices below `size`, in order: both ends, the neighbourhood of multiples of 16
/// to 256, and random ones; all where there are no more.
std::vector<std::int64_t> sampled(std::int64_t size, std::size_t most, std::uint64_t seed);

}  // namespace quarterturn
