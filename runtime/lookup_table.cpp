#include "runtime/lookup_table.hpp"

#include <algorithm>
#include <bit>
#include <compare>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace quarterturn {
namespace {

// Appends small values to words, eight bits each, and wide ones to words of their own.
struct Packer {
  std::array<std::uint64_t, FamilyKey::kWords>& words;
  std::size_t wide = 0;                        // from the front
  std::size_t narrow = FamilyKey::kWords - 1;  // from the back
  int shift = 0;

  void put(const Extent& extent) {
    words[wide++] = static_cast<std::uint64_t>(extent.lo);
    words[wide++] = static_cast<std::uint64_t>(extent.hi);
  }
  void put_bits(std::uint64_t value, int bits) {
    if (shift + bits > 64) {
      --narrow;
      shift = 0;
    }
    words[narrow] |= value << shift;
    shift += bits;
  }
  void put(std::int32_t rotation) { put_bits(static_cast<std::uint32_t>(rotation), 32); }
  template <class E>
  requires std::is_enum_v<E>
  void put(E value) { put_bits(static_cast<std::uint8_t>(value), 8); }
};

// How far two ranges lie apart: the ratio of their nearer ends, in 1/1024; 0 where they overlap.
std::int64_t distance(const Extent& a, const Extent& b) {
  const auto [far, near] = a.lo > b.hi ? std::pair(a.lo, b.hi) : std::pair(b.lo, a.hi);
  if (far <= near) return 0;
  return (far * 1024) / std::max<std::int64_t>(near, 1) - 1023;
}

}  // namespace

// The order of answers for one question: smaller is better.
struct LookupTable::Rank {
  int not_pinned, match, fit;
  std::int64_t distance;
  int layer, order;
  std::int64_t width, lo;

  // NOLINTNEXTLINE(modernize-use-nullptr): taken for a null pointer inside <compare>
  auto operator<=>(const Rank&) const = default;
};

LookupTable::Rank LookupTable::rank_of(const Brief& answer, const Extent& asked) {
  const Extent& stored = answer.tokens;
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

FamilyKey::FamilyKey(const Problem& problem) {
  Packer pack{words};
  const Extent none;
  const bool by_k = &tokens_of(problem) == &problem.k;
  const Extent& m = by_k ? problem.m : none;
  const Extent& k = by_k ? none : problem.k;
  pack.put(m);
  pack.put(k);
  pack.put(problem.n);
  pack.put(problem.batch);
  pack.put(problem.groups);
  const auto put_rest = [&pack](const auto& value) {
    if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, Extent>) pack.put(value);
  };
#define X(type, name, value) put_rest(problem.name);
  QTURN_PROBLEM_FIELDS(X)
#undef X
}

// Independent products of each word with an odd constant of its own: none waits for another.
std::uint64_t FamilyKey::hash() const {
  std::uint64_t sum = 0, constant = 0x9e3779b97f4a7c15ull;
  for (const auto word : words) {
    sum += (word ^ word >> 29) * constant;
    constant = constant * 0xd1342543de82ef95ull + 2;
  }
  sum ^= sum >> 32;
  sum *= 0xff51afd7ed558ccdull;
  return sum ^ sum >> 29;
}

// Orders answers of one family by all that ranking looks at, and what is equal there by plan. Texts
// of plans are made only where they decide.
static void put_in_order(const std::vector<Answer>& answers, std::span<std::uint32_t> order) {
  const auto rank = [&](std::uint32_t i) {
    const Answer& a = answers[i];
    const Extent& tokens = tokens_of(a.problem);
    return std::tuple(tokens.lo, tokens.hi, a.validity, a.layer, a.order);
  };
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return rank(a) < rank(b); });
  for (auto from = order.begin(); from != order.end();) {
    const auto to =
        std::find_if(from, order.end(), [&](std::uint32_t i) { return rank(i) != rank(*from); });
    if (to - from > 1)
      std::sort(from, to, [&](std::uint32_t a, std::uint32_t b) {
        return answers[a].plan.text() < answers[b].plan.text();
      });
    from = to;
  }
}

std::size_t LookupTable::slot_of(const FamilyKey& key) const {
  const auto mask = slots_.size() - 1;
  auto at = key.hash() & mask;
  while (slots_[at] != 0 && !(families_[slots_[at] - 1].key == key)) at = (at + 1) & mask;
  return at;
}

LookupTable::LookupTable(std::vector<Answer> answers) {
  const auto size = answers.size();
  slots_.resize(std::bit_ceil(size * 2 + 1));
  // Counted first: how many answers each family has.
  std::vector<std::uint32_t> family_at(size);
  for (std::size_t i = 0; i < size; ++i) {
    const FamilyKey key(answers[i].problem);
    auto& slot = slots_[slot_of(key)];
    if (slot == 0) {
      families_.push_back({key, 0, 0});
      slot = static_cast<std::uint32_t>(families_.size());
    }
    family_at[i] = slot - 1;
    ++families_[slot - 1].count;
  }
  std::uint32_t next = 0;
  for (auto& family : families_) family.first = std::exchange(next, next + family.count);
  // Then families side by side, each in an order of its own, so that the order in which layers list
  // their rows decides nothing.
  std::vector<std::uint32_t> order(size), filled(families_.size());
  for (std::uint32_t i = 0; i < size; ++i) {
    const auto at = family_at[i];
    order[families_[at].first + filled[at]++] = i;
  }
  for (const auto& family : families_)
    if (family.count > 1)
      put_in_order(answers, std::span(order).subspan(family.first, family.count));
  answers_.reserve(size);
  briefs_.reserve(size);
  for (const auto index : order) {
    Answer& answer = answers[index];
    briefs_.push_back({tokens_of(answer.problem), answer.validity, answer.layer, answer.order});
    answers_.push_back(std::move(answer));
  }
}

const LookupTable::Family* LookupTable::family_of(const Problem& problem) const {
  if (slots_.empty()) return nullptr;
  const auto found = slots_[slot_of(FamilyKey(problem))];
  return found == 0 ? nullptr : &families_[found - 1];
}

Found LookupTable::find(const Problem& problem) const {
  const Family* family = family_of(problem);
  if (!family) return {};
  const Extent& asked = tokens_of(problem);
  std::uint32_t best = family->first;
  Rank best_rank = rank_of(briefs_[best], asked);
  for (std::uint32_t i = family->first + 1; i < family->first + family->count; ++i)
    if (const Rank rank = rank_of(briefs_[i], asked); rank < best_rank) {
      best = i;
      best_rank = rank;
    }
  return {&answers_[best], static_cast<Match>(best_rank.match)};
}

bool LookupTable::holds(const Problem& problem) const {
  const Family* family = family_of(problem);
  if (!family) return false;
  const auto brief = std::span(briefs_).subspan(family->first, family->count);
  return std::any_of(brief.begin(), brief.end(),
                     [&](const Brief& one) { return one.tokens == tokens_of(problem); });
}

std::size_t differing(const LookupTable& a, const LookupTable& b) {
  std::size_t count = 0;
  const auto compare = [&](const LookupTable& one, const LookupTable& other, bool all) {
    const Problem* last = nullptr;  // answers to one problem lie side by side
    for (const auto& answer : one.answers()) {
      if (last && *last == answer.problem) continue;
      last = &answer.problem;
      const auto here = one.find(*last).answer, there = other.find(*last).answer;
      if (all || !other.holds(*last))
        count += !there || !(static_cast<const Plan&>(here->plan) == there->plan);
    }
  };
  compare(a, b, true);
  compare(b, a, false);
  return count;
}

std::vector<Found> LookupTable::candidates(const Problem& problem) const {
  const Family* family = family_of(problem);
  if (!family) return {};
  const Extent& asked = tokens_of(problem);
  std::vector<std::pair<Rank, const Answer*>> ranked;
  for (std::uint32_t i = 0; i < family->count; ++i) {
    const auto at = family->first + i;
    ranked.emplace_back(rank_of(briefs_[at], asked), &answers_[at]);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Found> out;
  out.reserve(ranked.size());
  for (const auto& [rank, answer] : ranked) out.push_back({answer, static_cast<Match>(rank.match)});
  return out;
}

}  // namespace quarterturn
