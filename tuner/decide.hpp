// Decide: which plan is the answer. The default is, unless another is surely faster; ties are
// broken by a fixed rule, so that two machines of one kind agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quarterturn {

/// A finalist with samples that were taken after it became one.
struct Contender {
  std::string plan;  ///< Plan::text()
  std::vector<double> log_speedups;
  std::int64_t spills = 0, registers = 0, shared_bytes = 0;
};

struct DecisionSettings {
  double zone = 0.01;        ///< relative gains below this are no reason to leave the default
  double error = 1e-3;       ///< probability that a plan which gains nothing is chosen, at most
  double confidence = 0.95;  ///< of the reported interval
};

struct Decision {
  std::optional<std::size_t>
      winner;  ///< index of the contender; nothing: the default is the answer
  double speedup = 1, low = 1, high = 1;  ///< of the winner, or of the best contender when none won
  double noise = 0;   ///< relative difference that the control showed against itself
  double regret = 0;  ///< what another member of the tie set may gain over the winner at most
  std::vector<std::size_t> ties;  ///< contenders that cannot be told from the best, it included
  bool settled = true;            ///< false: more samples might turn the default into a winner
  std::string reason;             ///< one phrase for people
};

/// `self`: the control's log speed-ups against itself, from the same rounds.
Decision decide(const std::vector<Contender>& contenders, const std::vector<double>& self,
                const DecisionSettings& settings);

}  // namespace quarterturn
