#include "runtime/lookup_table.hpp"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdlib>

namespace quarterturn {
namespace {

std::uint64_t mixed(const Extent& extent) {
  return static_cast<std::uint64_t>(extent.lo) * 0x9e3779b97f4a7c15ull ^
         static_cast<std::uint64_t>(extent.hi);
}
template <class T>
std::uint64_t mixed(T value) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
}

bool same_family(Problem a, const Problem& b) {
  tokens_of(a) = tokens_of(b);
  return a == b;
}

// How far two ranges lie apart, in factors of two between their nearer ends.
int distance(const Extent& a, const Extent& b) {
  const auto gap = a.lo > b.hi ? std::pair(a.lo, b.hi) : std::pair(b.lo, a.hi);
  if (gap.first <= gap.second) return 0;  // they overlap
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(gap.first))) -
         static_cast<int>(
             std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(gap.second, 0))));
}

// The order of answers for one question: smaller is better.
struct Rank {
  int not_pinned, match, fit, distance, layer, order;
  std::int64_t width, lo;

  auto operator<=>(const Rank&) const = default;
};

Rank rank_of(const Answer& answer, const Extent& asked) {
  const Extent& stored = tokens_of(answer.problem);
  const bool same = stored == asked;
  const bool contains = stored.lo <= asked.lo && asked.hi <= stored.hi;
  Match match = Match::borrowed;
  if (contains && answer.validity == Validity::valid) match = same ? Match::exact : Match::bucket;
  if (contains && answer.validity == Validity::stale) match = Match::stale;
  const int fit = same ? 0 : contains ? 1 : answer.validity == Validity::borrowed ? 3 : 2;
  return {answer.layer == Layer::pin && contains ? 0 : 1,
          static_cast<int>(match),
          fit,
          contains ? 0 : distance(stored, asked),
          static_cast<int>(answer.layer),
          answer.order,
          stored.hi - stored.lo,
          stored.lo};
}

}  // namespace

std::string_view match_name(Match match) {
  static constexpr std::string_view names[] = {"exact",    "bucket",    "stale",
                                               "borrowed", "heuristic", "reference"};
  return names[static_cast<std::size_t>(match)];
}

const Extent& tokens_of(const Problem& problem) {
  const bool product =
      problem.op == Op::gemm || problem.op == Op::hadamard_gemm || problem.op == Op::gemm_quantize;
  return product && problem.role == Role::wgrad ? problem.k : problem.m;
}
Extent& tokens_of(Problem& problem) {
  return const_cast<Extent&>(tokens_of(static_cast<const Problem&>(problem)));
}

// Independent products of each field with an odd constant of its own: no field waits for another.
std::uint64_t hash_of_family(Problem problem) {
  tokens_of(problem) = {};
  std::uint64_t sum = 0, constant = 0x9e3779b97f4a7c15ull;
#define X(type, name, value)             \
  sum += mixed(problem.name) * constant; \
  constant = constant * 0xd1342543de82ef95ull + 2;
  QTURN_PROBLEM_FIELDS(X)
#undef X
  sum ^= sum >> 32;
  sum *= 0xff51afd7ed558ccdull;
  return sum ^ sum >> 29;
}

LookupTable::LookupTable(std::vector<Answer> answers) : answers_(std::move(answers)) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
  for (std::uint32_t i = 0; i < answers_.size(); ++i)
    order.emplace_back(hash_of_family(answers_[i].problem), i);
  // By hash, then by family, so that equal hashes of different families do not mix; what is still
  // equal, by plan, so that the order in which layers list their rows decides nothing.
  std::stable_sort(order.begin(), order.end(), [this](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    Problem x = answers_[a.second].problem, y = answers_[b.second].problem;
    tokens_of(x) = tokens_of(y) = {};
    if (!(x == y)) return x.key() < y.key();
    return answers_[a.second].plan.text() < answers_[b.second].plan.text();
  });
  std::vector<Answer> sorted;
  sorted.reserve(answers_.size());
  for (const auto& [hash, index] : order) sorted.push_back(std::move(answers_[index]));
  answers_ = std::move(sorted);

  slots_.resize(std::bit_ceil(answers_.size() * 2 + 1));
  const auto mask = slots_.size() - 1;
  for (std::uint32_t i = 0; i < answers_.size();) {
    std::uint32_t end = i + 1;
    while (end < answers_.size() && same_family(answers_[i].problem, answers_[end].problem)) ++end;
    const auto hash = order[i].first;
    auto at = hash & mask;
    while (slots_[at].count != 0) at = (at + 1) & mask;
    slots_[at] = {hash, i, end - i};
    i = end;
  }
}

const LookupTable::Slot* LookupTable::slot_of(const Problem& problem) const {
  if (slots_.empty()) return nullptr;
  const auto mask = slots_.size() - 1;
  const auto hash = hash_of_family(problem);
  for (auto at = hash & mask; slots_[at].count != 0; at = (at + 1) & mask)
    if (slots_[at].hash == hash && same_family(answers_[slots_[at].first].problem, problem))
      return &slots_[at];
  return nullptr;
}

Found LookupTable::find(const Problem& problem) const {
  const Slot* slot = slot_of(problem);
  if (!slot) return {};
  const Extent& asked = tokens_of(problem);
  const Answer* best = &answers_[slot->first];
  Rank best_rank = rank_of(*best, asked);
  for (std::uint32_t i = 1; i < slot->count; ++i) {
    const Answer& next = answers_[slot->first + i];
    if (const Rank rank = rank_of(next, asked); rank < best_rank) {
      best = &next;
      best_rank = rank;
    }
  }
  return {best, static_cast<Match>(best_rank.match)};
}

std::vector<Found> LookupTable::candidates(const Problem& problem) const {
  const Slot* slot = slot_of(problem);
  if (!slot) return {};
  const Extent& asked = tokens_of(problem);
  std::vector<std::pair<Rank, const Answer*>> ranked;
  for (std::uint32_t i = 0; i < slot->count; ++i) {
    const Answer& answer = answers_[slot->first + i];
    ranked.emplace_back(rank_of(answer, asked), &answer);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Found> out;
  for (const auto& [rank, answer] : ranked) out.push_back({answer, static_cast<Match>(rank.match)});
  return out;
}

}  // namespace quarterturn
