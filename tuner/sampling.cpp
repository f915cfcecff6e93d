#include "tuner/sampling.hpp"

#include <set>

#include "tuner/random.hpp"

namespace quarterturn {

std::vector<std::int64_t> sampled(std::int64_t size, std::size_t most, std::uint64_t seed) {
  std::set<std::int64_t> chosen;
  if (most >= static_cast<std::size_t>(size)) {
    for (std::int64_t i = 0; i < size; ++i) chosen.insert(i);
  } else {
    for (const std::int64_t i :
         {std::int64_t{0}, size - 1, std::int64_t{1}, size - 2, std::int64_t{15}, std::int64_t{16},
          size - 15, size - 16, size - 17, std::int64_t{31}, std::int64_t{32}, std::int64_t{127},
          std::int64_t{128}, std::int64_t{255}, std::int64_t{256}, size / 16 * 16, size / 2})
      if (i >= 0 && i < size && chosen.size() < most) chosen.insert(i);
    Random random(seed);
    while (chosen.size() < most)
      chosen.insert(static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(size))));
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace quarterturn
