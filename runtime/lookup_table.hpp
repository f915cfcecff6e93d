// LookupTable: every stored answer of all database layers in one immutable table, asked in tens of
// nanoseconds.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/env.hpp"
#include "generator/problem.hpp"
#include "generator/variant.hpp"

namespace quarterturn {

/// How an answer fits what was asked, best first. The numbers are QTURN_MATCH_* of qturn.h.
enum class Match {
  exact,      ///< decided for this problem on this class of device
  bucket,     ///< decided for a range that contains this one
  stale,      ///< decided here under another driver, compiler or library version
  borrowed,   ///< decided on another class of device, or for a neighbouring range
  heuristic,  ///< nobody decided: the analytic default
  reference   ///< the prebuilt portable kernel
};
std::string_view match_name(Match match);

/// Where an answer was stored, strongest first.
enum class Layer { pin, database, snapshot };

/// A plan that many answers hold; read as the plan itself.
class SharedPlan {
 public:
  SharedPlan() : SharedPlan(Plan{}) {}
  SharedPlan(Plan plan) : plan_(std::make_shared<const Plan>(std::move(plan))) {}

  operator const Plan&() const { return *plan_; }
  const Plan* operator->() const { return plan_.get(); }
  std::string text() const { return plan_->text(); }

 private:
  std::shared_ptr<const Plan> plan_;
};

struct Answer {
  Problem problem;  ///< what it was decided for
  SharedPlan plan;
  Validity validity = Validity::valid;
  Layer layer = Layer::database;
  std::int32_t order = 0;  ///< among snapshots
  std::string place;       ///< "pins", "database", a snapshot's path: for explain
};

/// The run-time axis that answers differ by: k in the Wgrad of a product, else m.
Extent& tokens_of(Problem& problem);
const Extent& tokens_of(const Problem& problem);

/// All fields of a problem but its tokens, packed for comparing and hashing in few operations.
struct FamilyKey {
  static constexpr std::size_t kWords = 16;
  std::array<std::uint64_t, kWords> words{};

  explicit FamilyKey(const Problem& problem);
  FamilyKey() = default;
  bool operator==(const FamilyKey&) const = default;
  std::uint64_t hash() const;  ///< for tables only: it may change
};

struct Found {
  const Answer* answer = nullptr;
  Match match = Match::reference;
};

/// Open addressing over problems that differ only in their tokens; the answers of one such family
/// lie side by side. Immutable, so any number of threads may ask.
class LookupTable {
 public:
  LookupTable() = default;
  explicit LookupTable(std::vector<Answer> answers);
  LookupTable(const LookupTable&) = delete;  // what was found points into it
  LookupTable& operator=(const LookupTable&) = delete;

  /// The best answer; null when nothing is stored for this family of problems. No allocation.
  Found find(const Problem& problem) const;

  /// Whether an answer is stored for exactly this problem.
  bool holds(const Problem& problem) const;

  /// Every usable answer, best first: what to try when the best does not compile here.
  std::vector<Found> candidates(const Problem& problem) const;

  std::size_t size() const { return answers_.size(); }
  std::span<const Answer> answers() const { return answers_; }

 private:
  struct Family {
    FamilyKey key;
    std::uint32_t first = 0, count = 0;  ///< into answers_
  };
  /// What ranking reads of an answer, side by side with its neighbours'.
  struct Brief {
    Extent tokens;
    Validity validity;
    Layer layer;
    std::int32_t order;
  };
  struct Rank;
  static Rank rank_of(const Brief& answer, const Extent& asked);
  const Family* family_of(const Problem& problem) const;
  /// Where a key stands in slots_, or the free slot where it belongs.
  std::size_t slot_of(const FamilyKey& key) const;

  std::vector<Answer> answers_;
  std::vector<Brief> briefs_;  ///< of answers_, same order
  std::vector<Family> families_;
  /// Into families_, from 1 on, 0 = free; a power of two, at most half full.
  std::vector<std::uint32_t> slots_;
};

/// Problems stored in either table that the two answer by different plans.
std::size_t differing(const LookupTable& a, const LookupTable& b);

}  // namespace quarterturn
