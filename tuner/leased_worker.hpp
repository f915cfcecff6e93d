// LeasedWorker: works on a campaign lot by lot, as a shared store leases them. What it commits lies
// in a database on the node's own disk, as that of any worker; the store is given copies.
#pragma once

#include <vector>

#include "tuner/campaign_worker.hpp"
#include "tuner/store_link.hpp"

namespace quarterturn {

struct LeasedWork {
  /// As of a static shard. `shard` names the files that are left in the campaign's folder while the
  /// store is away.
  CampaignWork work;
  std::vector<std::size_t> shards;  ///< that are gone on with while the store is away; may be empty
  double lease_seconds = 120;
};

/// Until no lot is free and none may come free: waits one lease for what others hold. While the
/// store is away it goes on with its shards, copies to the campaign's folder, and waits for the
/// store for `patience` when it has nothing more to do. As with tune_shard, the heartbeat's state
/// says how it ended, and an error means that what is in `scratch` stays there.
Result<Heartbeat> tune_leased(Context& context, const LeasedWork& leased, StoreLink& link);

}  // namespace quarterturn
