// Leases: who of a campaign's workers does which lot of its problems, in a shared store. A lease
// ends by the server's clock, so that no worker's clock matters; whoever holds one renews it.
//
// Free functions over a connection to a store; errors are those of pg::Connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/postgresql.hpp"
#include "cache/records.hpp"

namespace quarterturn::leases {

/// Times that a lot is begun before nobody begins it again: what ended so many workers would end
/// the next.
inline constexpr std::int64_t kMostAttempts = 5;

/// Stored numbers.
enum class LotState : std::int64_t { open = 0, leased = 1, done = 2, failed = 3 };

struct Lease {
  std::size_t lot = 0;
  std::int64_t attempts = 1;  ///< this one included
};

/// Who asks: a campaign's id, and the UUID of the worker's own database.
struct Holder {
  std::string campaign;
  Uuid worker{};
};

/// Adds a campaign's lots, each a list of problem keys, unless they are there. Any number of
/// workers may do so at once. damaged: another number of lots is there under this name.
Status register_lots(pg::Connection& connection, const std::string& campaign,
                     const std::string& target, const std::vector<std::vector<std::string>>& lots);

/// Leases the first lot whose holder let its lease expire, else the first that nobody began; with
/// `resume`, before these a lot that this worker held when it was killed. Nothing: there is none.
enum class Resume { no, yes };
Result<std::optional<Lease>> take(pg::Connection& connection, const Holder& holder, double seconds,
                                  Resume resume);

/// Keeps a worker's leases from expiring; `heartbeat` is what it says of itself, `trials` how many
/// it has added since the last time.
Status renew(pg::Connection& connection, const Holder& holder, double seconds,
             const std::string& heartbeat, std::int64_t trials);

/// A lot that came to its end. Done is done, whoever did it and whoever holds the lease; a failed
/// one only ends this worker's own lease.
Status finish(pg::Connection& connection, const Holder& holder, std::size_t lot, LotState state);

/// Gives back what this worker holds, as if it had not begun.
Status release(pg::Connection& connection, const Holder& holder);

/// Opens failed lots, and those that were begun too often, again; returns how many.
Result<std::int64_t> retry(pg::Connection& connection, const std::string& campaign);

/// Whether a lot may still become free: held, and not begun too often.
Result<bool> may_come_free(pg::Connection& connection, const std::string& campaign);

struct LotCounts {
  std::int64_t open = 0, leased = 0, expired = 0, given_up = 0, done = 0, failed = 0;
};
struct SeenWorker {
  std::string heartbeat;
  std::int64_t trials = 0;
  double age = 0;   ///< seconds since it was heard of, by the server's clock
  double seen = 0;  ///< when that was: seconds since 1970
};
struct CampaignView {
  bool known = false;  ///< somebody registered it
  LotCounts lots;
  std::vector<SeenWorker> workers;
};
Result<CampaignView> view(pg::Connection& connection, const std::string& campaign);

}  // namespace quarterturn::leases
