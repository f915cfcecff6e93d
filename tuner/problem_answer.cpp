// ProblemTuner: how the answer is chosen among what was tried, and stored.
#include <fmt/format.h>

#include <algorithm>

#include "tuner/phase_timer.hpp"
#include "tuner/problem_tuner.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {

Status ProblemTuner::store_answer(const Decision& decision,
                                  const std::vector<std::size_t>& finalists, bool unfinished) {
  const std::size_t answer = decision.winner ? finalists[*decision.winner] : 0;
  const Candidate& one = candidates_[answer];
  Winner winner;
  winner.problem = recorder_.key();
  winner.plan = one.plan.text();
  winner.env = recorder_.env();
  winner.choice = decision.winner ? Choice::tuned : Choice::fallback;
  if (decision.winner) {
    winner.speedup = decision.speedup;
    winner.speedup_low = decision.low;
    winner.speedup_high = decision.high;
  }
  winner.noise = decision.noise;
  winner.regret = decision.regret;
  const auto& seconds = timer_->series(answer).seconds;
  if (!seconds.empty()) winner.median_ns = 1e9 * median(seconds.front());
  for (const std::size_t tie : decision.ties) {
    if (!winner.ties.empty()) winner.ties += '\n';
    winner.ties += candidates_[finalists[tie]].plan.text();
  }
  winner.certificate =
      one.certificate.text() +
      (one.worst_seconds > 0 ? fmt::format(" worst_ns={:.0f}", 1e9 * one.worst_seconds) : "") +
      (unfinished ? " search=unfinished" : " search=finished");
  winner.decided = recorder_.begin(one.plan, TrialKind::timing, TrialStatus::ok).started;
  const auto trials = context_.database().trials(recorder_.key(), winner.env->target,
                                                 winner.env->performance_class);
  if (trials.ok())
    winner.evidence = std::count_if(trials->begin(), trials->end(),
                                    [](const Trial& trial) { return is_evidence(trial.kind); });
  out_.plan = winner.plan;
  out_.median_seconds = 1e-9 * winner.median_ns;
  out_.speedup = winner.speedup;
  out_.low = winner.speedup_low;
  out_.high = winner.speedup_high;
  out_.noise = winner.noise;
  out_.reason = decision.reason;
  out_.answer = unfinished        ? Tuned::Answer::unfinished
                : decision.winner ? Tuned::Answer::tuned
                                  : Tuned::Answer::fallback;
  record_proof(one);
  return context_.database().set_winner(winner);
}

// An answer was admitted on this device: its families are proved on it.
void ProblemTuner::record_proof(const Candidate& one) {
  const bool open = std::any_of(one.plan.steps.begin(), one.plan.steps.end(), [&](const Step& s) {
    return context_.proofs().state_of(s.variant).state == ProofState::open;
  });
  if (!open) return;
  Trial trial = recorder_.begin(one.plan, TrialKind::admission, TrialStatus::ok);
  TrialRecorder::describe(trial, one.compiled, one.certificate);
  recorder_.add(trial);
}

// What is read whole for the first time and proves wrong leaves its place to the next.
Result<std::vector<std::size_t>> ProblemTuner::choose_finalists() {
  const auto stop = [this] {
    tick(Progress::Phase::confirming);
    return interrupted() || out_of_time(1);
  };
  std::vector<std::size_t> left;
  for (std::size_t i = 1; i < candidates_.size(); ++i)
    if (!timer_->series(i).log_speedups.empty()) left.push_back(i);
  for (;;) {
    Result<std::vector<std::size_t>> finalists = [&] {
      const PhaseTimer phase(out_.phases.timing, out_.phases.data, &process_);
      return halve(*timer_, left, options_.race, stop);
    }();
    if (!finalists.ok()) return finalists;
    const auto wrong = std::find_if_not(finalists->begin(), finalists->end(),
                                        [this](std::size_t i) { return admit_whole(i); });
    if (!process_.disproved().empty()) return Status(Code::rejected, process_.disproved());
    if (wrong == finalists->end()) return finalists;
    if (interrupted()) return Status(Code::interrupted, "interrupted");
    std::erase(left, *wrong);
  }
}

Decision ProblemTuner::judge(const std::vector<std::size_t>& finalists) const {
  std::vector<Contender> contenders;
  for (const std::size_t i : finalists)
    contenders.push_back({candidates_[i].plan.text(), timer_->series(i).log_speedups,
                          candidates_[i].compiled.spills, candidates_[i].compiled.registers,
                          candidates_[i].compiled.shared_bytes});
  return decide(contenders, timer_->self().log_speedups, options_.decision);
}

void ProblemTuner::time_worst_cases(const std::vector<std::size_t>& candidates) {
  const PhaseTimer phase(out_.phases.timing, out_.phases.data, &process_);
  for (const std::size_t i : candidates) {
    if (!candidates_[i].plan.find(StepKind::stand_in)) continue;
    // What cannot be had is left out: it decides nothing.
    if (const auto seconds = process_.worst(i); seconds.ok())
      candidates_[i].worst_seconds = *seconds;
  }
}

void ProblemTuner::record_final(const std::vector<std::size_t>& finalists,
                                const Decision& decision) {
  const auto add = [&](std::size_t i, TrialKind kind, const Series& series, std::string_view more) {
    if (series.log_speedups.empty()) return;
    Trial trial = recorder_.begin(candidates_[i].plan, kind, TrialStatus::ok);
    TrialRecorder::describe(trial, candidates_[i].compiled, candidates_[i].certificate);
    recorder_.fill_times(trial, series, *timer_, process_.rotation());
    trial.noise = decision.noise;
    trial.worst_ns = 1e9 * candidates_[i].worst_seconds;
    trial.extra += more;
    recorder_.add(trial);
  };
  add(0, TrialKind::control, timer_->self(), "");
  for (const std::size_t i : finalists)
    add(i, TrialKind::timing, timer_->series(i), " confirmed=1");
}

Status ProblemTuner::finish() {
  tick(Progress::Phase::confirming);
  auto finalists = choose_finalists();
  if (!finalists.ok()) return finalists.status();
  const auto stop = [this] {
    tick(Progress::Phase::confirming);
    return interrupted() || out_of_time(1);
  };
  {
    const PhaseTimer phase(out_.phases.timing, out_.phases.data, &process_);
    if (auto status = confirm(*timer_, *finalists, options_.race, stop,
                              [&] { return judge(*finalists).settled; });
        !status.ok())
      return status;
  }
  std::erase_if(*finalists, [this](std::size_t i) {
    const Status clock = timer_->check_clock_of(i);
    if (!clock.ok() && timer_->alive(i))
      give_up(candidates_[i].plan, TrialKind::timing, TrialStatus::noisy, clock,
              candidates_[i].compiled);
    return !clock.ok() || !timer_->alive(i);
  });
  if (interrupted()) return Status(Code::interrupted, "interrupted");
  const Decision decision = judge(*finalists);
  const auto kept = static_cast<std::int64_t>(timer_->self().log_speedups.size());
  const bool unfinished = out_of_time(1) && !decision.winner && kept < options_.race.final_rounds;
  if (!out_of_time(1)) {
    std::vector<std::size_t> answers{0};
    if (decision.winner) answers.push_back((*finalists)[*decision.winner]);
    time_worst_cases(answers);
  }
  record_final(*finalists, decision);
  if (auto status = store_answer(decision, *finalists, unfinished); !status.ok()) return status;
  return recorder_.storing();
}

}  // namespace quarterturn
