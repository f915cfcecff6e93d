#include "tuner/store_link.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/measure.hpp"

namespace quarterturn {
namespace {

constexpr double kFirstPause = 0.5, kLongestPause = 30;

}  // namespace

std::vector<std::vector<std::string>> lot_keys(const std::vector<CampaignLot>& lots) {
  std::vector<std::vector<std::string>> out;
  for (const auto& lot : lots) {
    out.emplace_back();
    for (const auto& problem : lot.problems) out.back().push_back(problem.item.problem.key());
  }
  return out;
}

StoreLink::StoreLink(Options options)
    : options_(std::move(options)),
      holder_{options_.campaign->id(), options_.worker},
      lots_(lot_keys(options_.campaign->lots())) {}

Status StoreLink::connect() {
  auto store = SharedStore::open(options_.url);
  if (!store.ok()) return store.status();
  if (auto status = leases::register_lots(store->connection(), holder_.campaign,
                                          options_.campaign->target, lots_);
      !status.ok())
    return status;
  // A server that was set back to an earlier state is given everything again.
  if (mark_.trials > 0) {
    const auto known = store->holds(mark_.last);
    if (!known.ok()) return known.status();
    if (!*known) mark_ = {};
  }
  store_.emplace(std::move(*store));
  return {};
}

// Workers that lost one server come back one after the other: pauses grow, and differ.
template <class Work>
Status StoreLink::with_store(const Work& work) {
  const std::lock_guard lock(mutex_);
  const SteadyClock clock;
  if (!store_ && clock.now() < next_try_) return trouble_;
  Status status;
  if (!store_) status = connect();
  if (status.ok()) status = work(*store_);
  if (store_ && !store_->connection().is_open()) store_.reset();
  if (!store_) {
    const double most = std::min(kLongestPause, std::max(kFirstPause, options_.lease_seconds / 4));
    pause_ = pause_ == 0 ? kFirstPause : std::min(2 * pause_, most);
    next_try_ = clock.now() + pause_ * (0.75 + 0.5 * options_.worker[0] / 255.0);
  }
  if (options_.say && status.ok() != trouble_.ok())
    options_.say(status.ok() ? "the store is reached again"
                             : fmt::format("goes on without the store: {}", status.message()));
  trouble_ = status;
  if (status.ok()) pause_ = 0;
  return status;
}

Status StoreLink::begin() {
  const std::lock_guard lock(mutex_);
  const Status status = connect();
  if (status.ok() || status.code() != Code::io_error) return status;
  trouble_ = status;
  pause_ = kFirstPause;
  const SteadyClock clock;
  next_try_ = clock.now() + pause_;
  if (options_.say) options_.say(fmt::format("goes on without the store: {}", status.message()));
  return {};
}

Result<std::optional<leases::Lease>> StoreLink::take() {
  std::optional<leases::Lease> out;
  const Status status = with_store([&](SharedStore& store) {
    const auto taken = leases::take(store.connection(), holder_, options_.lease_seconds, resume_);
    if (!taken.ok()) return taken.status();
    // Of a lot that it held when it was killed there is one.
    resume_ = leases::Resume::no;
    out = *taken;
    return Status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<bool> StoreLink::may_come_free() {
  bool out = false;
  const Status status = with_store([&](SharedStore& store) {
    const auto may = leases::may_come_free(store.connection(), holder_.campaign);
    if (may.ok()) out = *may;
    return may.ok() ? Status() : may.status();
  });
  if (!status.ok()) return status;
  return out;
}

void StoreLink::finish(std::size_t lot, leases::LotState state) {
  const std::lock_guard lock(mutex_);
  finished_.emplace_back(lot, state);
}

void StoreLink::release() {
  (void)with_store(
      [&](SharedStore& store) { return leases::release(store.connection(), holder_); });
}

Status StoreLink::renew(const std::string& heartbeat) {
  return with_store([&](SharedStore& store) {
    const Status status =
        leases::renew(store.connection(), holder_, options_.lease_seconds, heartbeat, added_);
    if (status.ok()) added_ = 0;
    return status;
  });
}

Status StoreLink::upload(Database& database) {
  return with_store([&](SharedStore& store) {
    const auto report = store.upload(database, mark_, SharedStore::Tombstones::left_out);
    // What PostgreSQL cannot hold goes to the campaign's folder.
    const bool left_behind = report.status().code() == Code::not_supported;
    if (!report.ok() && !left_behind) return report.status();
    if (report.ok()) added_ += report->trials;
    while (!finished_.empty()) {
      const auto [lot, state] = finished_.front();
      const Status status = leases::finish(store.connection(), holder_, lot, state);
      if (!status.ok()) return status;
      finished_.erase(finished_.begin());
    }
    return report.ok() ? Status() : report.status();
  });
}

Status StoreLink::fetch(Database& database, const std::vector<std::string>& problems) {
  return with_store([&](SharedStore& store) {
    return store.download(database, {options_.campaign->target, problems}).status();
  });
}

Result<std::int64_t> StoreLink::retry() {
  std::int64_t out = 0;
  const Status status = with_store([&](SharedStore& store) {
    const auto opened = leases::retry(store.connection(), holder_.campaign);
    if (opened.ok()) out = *opened;
    return opened.ok() ? Status() : opened.status();
  });
  if (!status.ok()) return status;
  return out;
}

bool StoreLink::is_away() const {
  const std::lock_guard lock(mutex_);
  return !trouble_.ok();
}

std::string StoreLink::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_.message();
}

}  // namespace quarterturn
