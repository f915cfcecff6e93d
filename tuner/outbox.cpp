#include "tuner/outbox.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>

#include "runtime/context.hpp"

namespace quarterturn {
namespace {

using std::chrono::duration;

constexpr double kLookSeconds = 0.1;
// Slurm gives two minutes between the signal that `qturn cluster submit` asks for and the end.
constexpr double kPatienceAtEnd = 60;

std::int64_t wall_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "";
}

std::string slurm_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string job_name() {
  const auto array = slurm_variable("SLURM_ARRAY_JOB_ID");
  if (!array.empty()) return fmt::format("{}_{}", array, slurm_variable("SLURM_ARRAY_TASK_ID"));
  return slurm_variable("SLURM_JOB_ID");
}

}  // namespace

Outbox::Outbox(const CampaignWork& work, Heartbeat heartbeat, OutboxRoutes routes)
    : work_(work), routes_(std::move(routes)), heartbeat_(std::move(heartbeat)) {
  thread_ = std::thread([this] { serve(); });
}

void Outbox::change(const std::function<void(Heartbeat&)>& what) {
  const std::lock_guard lock(mutex_);
  what(heartbeat_);
}

Heartbeat Outbox::heartbeat() const {
  const std::lock_guard lock(mutex_);
  return heartbeat_;
}

Status Outbox::finish() {
  stop();
  const SteadyClock clock;
  const double begun = clock.now();
  for (;;) {
    const Status status = send(true);
    const double patience =
        interrupted() ? std::min(kPatienceAtEnd, work_.patience) : work_.patience;
    if (status.ok() || clock.now() - begun >= patience) return status;
    std::this_thread::sleep_for(duration<double>(std::min(1.0, patience)));
  }
}

void Outbox::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Outbox::serve() {
  const SteadyClock clock;
  double next_copy = clock.now() + work_.interval, next_heartbeat = 0;
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    wake_.wait_for(lock, duration<double>(kLookSeconds));
    const bool now_told = interrupted();
    const double now = clock.now();
    const bool copies = now >= next_copy || (now_told && !told);
    told = now_told;
    if (!copies && now < next_heartbeat) continue;
    lock.unlock();
    const Status status = send(copies);
    lock.lock();
    const double done = clock.now();
    if (copies)
      next_copy = done + (status.ok() ? work_.interval : std::min(kRetrySeconds, work_.interval));
    next_heartbeat = done + std::min(routes_.heartbeat_seconds, work_.interval);
  }
}

Status Outbox::send(bool copies) {
  const std::lock_guard sending(sending_);
  Status status = copies ? routes_.copy() : Status();
  if (copies) note(status);
  Heartbeat heartbeat;
  {
    const std::lock_guard lock(mutex_);
    heartbeat_.written = wall_nanoseconds();
    heartbeat = heartbeat_;
  }
  const Status written = routes_.tell ? routes_.tell(heartbeat) : write_heartbeat(work_, heartbeat);
  return status.ok() && copies ? written : status;
}

void Outbox::note(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    heartbeat_.trouble = status.ok() && routes_.remark ? routes_.remark() : status.message();
  }
  const bool again = status.message() == said_;
  if (!again && work_.say)
    work_.say(status.ok() ? "results are copied out again"
                          : fmt::format("results stay in {} and are copied out later: {}",
                                        work_.scratch, status.message()));
  said_ = status.message();
}

Heartbeat first_heartbeat(Context& context, const CampaignWork& work, const char* stage) {
  Heartbeat out;
  out.shard = work.shard;
  out.campaign = work.campaign.id();
  out.stage = stage;
  out.host = host_name();
  out.job = job_name();
  out.device = context.backend().device().name;
  out.performance_class = context.env().performance_class;
  out.interval = work.interval;
  out.problems = work.campaign.items_of(work.shard).size();
  return out;
}

Status write_heartbeat(const CampaignWork& work, const Heartbeat& heartbeat) {
  return replace_durably(work.folder.heartbeat(heartbeat.shard, heartbeat.worker),
                         heartbeat.text());
}

Status DatabaseCopy::operator()() {
  const auto hash = database_.content_hash();
  if (!hash.ok()) return hash.status();
  if (copied_ == *hash) return {};
  Status status = database_.export_snapshot(from_).status();
  if (status.ok())
    status = copy_durably(from_, to_);
  else
    status = database_.export_snapshot(to_).status();  // the node's disk is full
  unlink(from_.c_str());
  if (status.ok()) copied_ = *hash;
  return status;
}

bool is_full(Code code) {
  return code == Code::disk_full || code == Code::read_only || code == Code::io_error;
}

void wait_a_while(double seconds, const std::function<bool()>& stop) {
  const SteadyClock clock;
  for (const double begun = clock.now(); clock.now() - begun < seconds && !stop();)
    std::this_thread::sleep_for(duration<double>(std::min(kLookSeconds, seconds)));
}

}  // namespace quarterturn
