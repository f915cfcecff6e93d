#include "tuner/leased_worker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tuner/campaign_pass.hpp"
#include "tuner/outbox.hpp"

namespace quarterturn {
namespace {

using leases::LotState;

class LeasedWorker {
 public:
  LeasedWorker(Context& context, const LeasedWork& leased, StoreLink& link, Heartbeat heartbeat)
      : context_(context),
        leased_(leased),
        work_(leased.work),
        link_(link),
        lots_(leased.work.campaign.lots()),
        folder_copy_(context.database(), leased.work.scratch,
                     leased.work.folder.database(heartbeat.shard, heartbeat.worker)),
        begun_(clock_.now()),
        outbox_(leased.work, std::move(heartbeat),
                {.copy = [this] { return copy(); },
                 .tell = [this](const Heartbeat& h) { return tell(h); },
                 .remark = [this] { return link_.is_away() ? link_.trouble() : std::string(); },
                 .heartbeat_seconds = std::min(15.0, leased.lease_seconds / 4)}) {}

  Result<Heartbeat> run() {
    Status trouble;
    while (!interrupted() && trouble.ok()) {
      const auto next = next_lot();
      if (!next.ok()) trouble = next.status();
      if (!next.ok() || !next->has_value()) break;
      trouble = do_lot(**next);
    }
    outbox_.change([&](Heartbeat& h) {
      h.now.clear();
      h.seconds = clock_.now() - begun_;
      h.state = interrupted()              ? Heartbeat::State::interrupted
                : !trouble.ok()            ? Heartbeat::State::stopped
                : h.answered == h.problems ? Heartbeat::State::done
                                           : Heartbeat::State::incomplete;
    });
    if (!trouble.ok() && work_.say) work_.say(trouble.message());
    const Status status = outbox_.finish();
    link_.release();
    if (!status.ok()) return status;
    return outbox_.heartbeat();
  }

 private:
  bool interrupted() const { return work_.session.interrupted(); }

  // ---- where results go ----

  Status copy() {
    if (link_.upload(context_.database()).ok()) return {};
    return folder_copy_();
  }

  // Also to the folder once it has said something there, so that it does not fall silent.
  Status tell(const Heartbeat& heartbeat) {
    const Status status = link_.renew(heartbeat.text());
    if (status.ok() && !told_folder_) return {};
    told_folder_ = true;
    return write_heartbeat(work_, heartbeat);
  }

  // ---- what is next ----

  // Nothing: all is done, or others do it. An error: the store is away, and so is patience.
  Result<std::optional<std::size_t>> next_lot() {
    const double since = clock_.now();
    double away_since = 0;
    while (!interrupted()) {
      const auto taken = link_.take();
      if (taken.ok() && taken->has_value()) {
        if (const auto lot = (*taken)->lot; lot < lots_.size()) return take_up_lot(**taken);
        return Status(Code::damaged, "the store leases a lot that the campaign has not");
      }
      if (!taken.ok()) {
        if (const auto lot = lot_of_own_shards()) return lot;
        if (away_since == 0) away_since = clock_.now();
        if (clock_.now() - away_since >= work_.patience) return taken.status();
        rest(std::min(kRetrySeconds, 1.0));
        continue;
      }
      away_since = 0;
      const auto more = link_.may_come_free();
      if (more.ok() && !*more) break;
      // A dead worker's lease expires within this time; a living one's is renewed.
      if (clock_.now() - since > 1.25 * leased_.lease_seconds) break;
      rest(std::clamp(leased_.lease_seconds / 20, 0.1, 5.0));
    }
    return std::optional<std::size_t>();
  }

  void rest(double seconds) {
    wait_a_while(seconds, [this] { return interrupted(); });
  }

  std::optional<std::size_t> lot_of_own_shards() const {
    for (std::size_t lot = 0; lot < lots_.size(); ++lot)
      for (const auto shard : leased_.shards)
        if (lots_[lot].shard == shard && ended_.count(lot) == 0) return lot;
    return std::nullopt;
  }

  // Somebody began it before: the search goes on from what he left.
  Result<std::optional<std::size_t>> take_up_lot(const leases::Lease& lease) {
    if (lease.attempts <= 1) return std::optional(lease.lot);
    const auto keys = lot_keys({lots_[lease.lot]});
    Status status = link_.fetch(context_.database(), keys.front());
    if (status.ok()) status = context_.reload(Reload::replace).status();
    if (!status.ok() && work_.say)
      work_.say(fmt::format("begins a lot anew: {}", status.message()));
    return std::optional(lease.lot);
  }

  // ---- a lot ----

  // Not ok: this machine has no room, and patience is over.
  Status do_lot(std::size_t number) {
    const auto& lot = lots_[number];
    CampaignWork work = work_;
    work.shard = lot.shard;
    if (auto status = unpack_once(work); !status.ok()) return status;
    const Heartbeat before = outbox_.heartbeat();
    const bool again = ended_.count(number) > 0;
    if (!again) outbox_.change([&](Heartbeat& h) { h.problems += lot.problems.size(); });
    const auto count_from = again ? before.answered - answered_[number] : before.answered;
    Status trouble;
    for (const double since = clock_.now(); !interrupted();) {
      outbox_.change([&](Heartbeat& h) {
        h.answered = count_from;
        h.failures = before.failures;
      });
      trouble = trouble_of(pass(context_, work, lot.problems, outbox_, begun_));
      if (trouble.ok() || interrupted() || clock_.now() - since >= work_.patience) break;
      if (work_.say) work_.say(fmt::format("waits for room: {}", trouble.message()));
      outbox_.change([&](Heartbeat& h) { h.trouble = trouble.message(); });
      rest(std::min(kRetrySeconds, work_.patience));
    }
    answered_[number] = outbox_.heartbeat().answered - count_from;
    ended_.insert(number);
    const bool done = answered_[number] == lot.problems.size();
    if (!trouble.ok() || (interrupted() && !done)) return trouble;
    link_.finish(number, done ? LotState::done : LotState::failed);
    (void)outbox_.push();
    return {};
  }

  // Code of a first stage, one file a shard.
  Status unpack_once(CampaignWork& work) {
    const auto known = packed_.find(work.shard);
    if (known != packed_.end()) {
      work.session.plans = known->second;
      return {};
    }
    if (auto status = unpack_code(context_, work); !status.ok()) return status;
    packed_[work.shard] = work.session.plans;
    return {};
  }

  Context& context_;
  const LeasedWork& leased_;
  const CampaignWork& work_;
  StoreLink& link_;
  const std::vector<CampaignLot> lots_;
  DatabaseCopy folder_copy_;
  SteadyClock clock_;
  const double begun_;
  bool told_folder_ = false;
  std::set<std::size_t> ended_;
  std::map<std::size_t, std::size_t> answered_;
  std::map<std::size_t, std::function<std::vector<Plan>(const Problem&)>> packed_;
  Outbox outbox_;  // the last: its thread uses the others
};

}  // namespace

Result<Heartbeat> tune_leased(Context& context, const LeasedWork& leased, StoreLink& link) {
  const auto info = context.database().info();
  if (!info.ok()) return info.status();
  Heartbeat heartbeat = first_heartbeat(context, leased.work, "tune");
  heartbeat.worker = info->uuid.substr(0, 8);
  heartbeat.problems = 0;
  return LeasedWorker(context, leased, link, std::move(heartbeat)).run();
}

}  // namespace quarterturn
