// Neighbours: problems like the one at hand that were tuned before, here or on another device of
// the target. Their trials are examples for a search, their winners its first candidates.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "cache/database.hpp"
#include "tuner/search.hpp"

namespace quarterturn {

/// How far two problems lie apart, in doublings of their dimensions; infinity where they are not
/// of one kind (op, role, types, contract, ...), so that one's plans say nothing of the other's.
double distance(const Problem& a, const Problem& b);

/// The nearest `most` problems with timed trials among the target's latest, nearest first. The
/// problem itself counts where it was timed elsewhere or under another compiler.
std::vector<Neighbour> neighbours_of(Database& database, const Problem& problem,
                                     const Target& target, const Env& here, std::size_t most);

/// The fastest plan of each, and the second fastest of the nearest; legal or not.
std::vector<Plan> seeds_of(const std::vector<Neighbour>& neighbours);

}  // namespace quarterturn
