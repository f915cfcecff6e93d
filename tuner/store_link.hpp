// StoreLink: a worker's connection to the shared store of its campaign. It is made when it is
// needed, may be lost at any time, and is made again; what was to be said meanwhile is said then.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/leases.hpp"
#include "cache/shared_store.hpp"
#include "tuner/campaign.hpp"

namespace quarterturn {

/// Threads: every member function may be called from any thread.
class StoreLink {
 public:
  struct Options {
    std::string url;
    const Campaign* campaign = nullptr;
    Uuid worker{};  ///< of the worker's own database
    double lease_seconds = 120;
    std::function<void(const std::string&)> say;
  };
  explicit StoreLink(Options options);

  /// The first connection: what is wrong for good (no libpq, no store, another schema, a URL that
  /// is none) is told here.
  Status begin();

  /// A lot to do; nothing: none is free now. An error: the store is away.
  Result<std::optional<leases::Lease>> take();
  Result<bool> may_come_free();
  /// Is told to the store with the next upload, behind the rows that it rests on.
  void finish(std::size_t lot, leases::LotState state);
  /// Gives back what is held; an error is nobody's concern, as leases expire.
  void release();
  Status renew(const std::string& heartbeat);
  /// Everything that the store has not, and then what was finished.
  Status upload(Database& database);
  /// What the store has of these problems.
  Status fetch(Database& database, const std::vector<std::string>& problems);
  Result<std::int64_t> retry();

  /// Whether the last call reached the store, and if not, why.
  bool is_away() const;
  std::string trouble() const;

 private:
  template <class Work>
  Status with_store(const Work& work);
  Status connect();

  const Options options_;
  const leases::Holder holder_;
  const std::vector<std::vector<std::string>> lots_;

  mutable std::mutex mutex_;  // guards what follows
  std::optional<SharedStore> store_;
  Status trouble_;
  double next_try_ = 0, pause_ = 0;  // by a SteadyClock
  UploadMark mark_;
  std::int64_t added_ = 0;  // trials, since the last renewal
  std::vector<std::pair<std::size_t, leases::LotState>> finished_;
  leases::Resume resume_ = leases::Resume::yes;
};

/// The keys of each lot's problems.
std::vector<std::vector<std::string>> lot_keys(const std::vector<CampaignLot>& lots);

}  // namespace quarterturn
