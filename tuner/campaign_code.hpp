// CampaignCode: compiled code of one shard as one file, a tar archive, from the nodes that compile
// to those that have a device: few files on the shared file system, and one that is read in one go.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

/// By the problem's key: the plans whose code is there, the default first.
using PackedPlans = std::map<std::string, std::vector<std::string>>;

/// Every entry of the code store in `store`, and `plans` as plans.json, into `file`, which appears
/// as a whole.
Status pack(const std::string& store, const PackedPlans& plans, const std::string& file);

/// Adds the entries to the code store in `store`; each is checked against its SHA-256 when it is
/// used. miss: there is no such file. not_ours: somebody else may write it. damaged: it holds
/// anything but entries of a code store.
Result<PackedPlans> unpack(const std::string& file, const std::string& store);

}  // namespace quarterturn
