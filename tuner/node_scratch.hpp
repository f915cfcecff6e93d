// What a campaign's workers keep on the disk of a node, which nobody else reads:
//
//   <base>/shard-0003/tuning.db     what the worker of a shard has committed
//   <base>/worker-000/tuning.db     likewise, of one that a store leases its work
//   <base>/.../working.lock         held while a worker has the folder
//   <base>/code                     compiled code that they share
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cache/file_lock.hpp"
#include "tuner/campaign_folder.hpp"

namespace quarterturn {

/// The base on this node, made where it is missing: below `given`, else TMPDIR, else /tmp.
/// network_filesystem: SQLite could not be sure of it.
Result<std::string> node_scratch(const Campaign& campaign, const std::string& given);

std::string shard_scratch(const std::string& base, std::size_t shard);
/// Of the workers that have no shard.
std::string worker_scratch(const std::string& base, std::size_t number);

/// Makes a worker's folder and locks it (a file system without locks gives an empty one). busy:
/// another worker has had it for `wait`. Waits for who is bringing out what was left there, until
/// `give_up` returns true (interrupted).
Result<FileLock> lock_scratch(const std::string& scratch, std::chrono::milliseconds wait,
                              const std::function<bool()>& give_up = {});

/// Copies to the campaign's folder what workers that were killed left below `base`: databases in
/// folders that nobody works in, with rows that are not there yet. They stay where they are, since
/// the next worker here goes on in them. What cannot be copied is said; the first reason is
/// returned when everything else was tried.
Status bring_out_left(const Campaign& campaign, const CampaignFolder& folder,
                      const std::string& base, const std::function<void(const std::string&)>& say);

}  // namespace quarterturn
