// Outbox: brings out what a worker of a campaign has, from a thread of its own: now and then, when
// it is asked to end, and at the end.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tuner/campaign_worker.hpp"

namespace quarterturn {

/// Where it goes. Called by one thread at a time.
struct OutboxRoutes {
  /// Everything that was committed, where something is new.
  std::function<Status()> copy;
  /// What the worker says of itself; null: as a file in the campaign's folder.
  std::function<Status(const Heartbeat&)> tell = nullptr;
  /// What an operator should know although all goes well; null: nothing.
  std::function<std::string()> remark = nullptr;
  double heartbeat_seconds = 15;  ///< between heartbeats, at most
};

/// A copy that fails is said once and tried again.
class Outbox {
 public:
  Outbox(const CampaignWork& work, Heartbeat heartbeat, OutboxRoutes routes);
  ~Outbox() { stop(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void change(const std::function<void(Heartbeat&)>& what);
  Heartbeat heartbeat() const;
  /// Copies now.
  Status push() { return send(true); }
  /// The last copy and heartbeat, waited for as long as the worker may.
  Status finish();

 private:
  bool interrupted() const { return work_.session.interrupted(); }
  void stop();
  void serve();
  Status send(bool copies);
  void note(const Status& status);

  const CampaignWork& work_;
  OutboxRoutes routes_;
  std::mutex sending_;  // guards said_
  std::string said_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  Heartbeat heartbeat_;
  bool ending_ = false;
  std::thread thread_;
};

/// What a worker says before it has done anything.
Heartbeat first_heartbeat(Context& context, const CampaignWork& work, const char* stage);
Status write_heartbeat(const CampaignWork& work, const Heartbeat& heartbeat);

/// The database as a snapshot in the campaign's folder, written first where there is a file system
/// that SQLite is sure of.
class DatabaseCopy {
 public:
  DatabaseCopy(Database& database, const std::string& scratch, std::string to)
      : database_(database), from_(scratch + "/copied-out.db"), to_(std::move(to)) {}

  Status operator()();

 private:
  Database& database_;
  std::string from_, to_;
  std::optional<Digest> copied_;
};

/// Whether a disk or file system may be at fault, which may pass.
bool is_full(Code code);
/// Until it is over, or `stop`.
void wait_a_while(double seconds, const std::function<bool()>& stop);
inline constexpr double kRetrySeconds = 10;

}  // namespace quarterturn
