// CampaignWorker: does one shard of a campaign. What it commits lies in a database on the node's
// own disk and is copied out to the campaign's folder now and then, and when somebody asks it to
// end.
#pragma once

#include <functional>
#include <string>

#include "runtime/context.hpp"
#include "tuner/campaign.hpp"
#include "tuner/campaign_folder.hpp"
#include "tuner/session.hpp"

namespace quarterturn {

struct CampaignWork {
  Campaign campaign;
  std::size_t shard = 0;
  CampaignFolder folder{""};
  std::string scratch;     ///< this shard's folder on the node's disk; its owner's alone
  double interval = 60;    ///< seconds between copies
  double patience = 600;   ///< seconds that full disks are waited for
  SessionOptions session;  ///< `interrupted` included
  std::function<void(const std::string&)> say;
};

/// Takes up what earlier workers of the shard copied out: trials, and winners. What cannot be read
/// is said and left where it is.
Status take_up(Context& context, const CampaignWork& work);

/// The second of two stages: unpacks the shard's code into the context's code store, so that only
/// these plans are tried. Without a pack every plan may be, and is compiled here.
Status unpack_code(Context& context, CampaignWork& work);

/// Tunes what has no answer yet, in a context whose database lies in `work.scratch`. The state of
/// the heartbeat returned says how it ended; it was written out with everything committed. An
/// error: what is in `scratch` could not be copied out, and stays there.
Result<Heartbeat> tune_shard(Context& context, const CampaignWork& work);

/// The first of two stages, in a context that compiles for the campaign's target and has a code
/// store of its own: compiles what each search of the shard may try, and packs it.
Result<Heartbeat> compile_shard(Context& context, const CampaignWork& work);

}  // namespace quarterturn
