// One pass of a campaign's worker over some of its problems.
#pragma once

#include <vector>

#include "tuner/campaign_worker.hpp"

namespace quarterturn {

class Outbox;

/// Tunes what has no answer yet; the heartbeat of `outbox` learns of each problem. `begun`: of the
/// worker, by a SteadyClock.
std::vector<Tuned> pass(Context& context, const CampaignWork& work,
                        const std::vector<CampaignProblem>& problems, Outbox& outbox, double begun);

/// Where a session stopped for want of room: why, else ok.
Status trouble_of(const std::vector<Tuned>& results);

}  // namespace quarterturn
