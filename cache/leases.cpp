#include "cache/leases.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace quarterturn::leases {
namespace {

constexpr std::size_t kLotBatch = 5000;

std::string number(std::int64_t value) { return std::to_string(value); }

// Its rows are few at any time: what is leased, and what is open comes first in its index.
std::string take_statement(Resume resume) {
  const auto first = [](const char* where, const char* order) {
    return fmt::format(
        "(SELECT lot FROM quarterturn.lease WHERE campaign = $1 AND {} ORDER BY {} "
        "LIMIT 1 FOR UPDATE SKIP LOCKED)",
        where, order);
  };
  const auto own = first("state = 1 AND owner = $2::uuid AND attempts < $4::bigint", "lot");
  const auto expired = first("state = 1 AND until < now() AND attempts < $4::bigint", "until");
  const auto open = first("state = 0", "lot");
  return fmt::format(
      "UPDATE quarterturn.lease SET state = 1, owner = $2::uuid, "
      "until = now() + $3::double precision * interval '1 second', attempts = attempts + 1 "
      "WHERE campaign = $1 AND lot = coalesce({}{}, {}) RETURNING lot, attempts",
      resume == Resume::yes ? own + ", " : "", expired, open);
}

}  // namespace

Status register_lots(pg::Connection& connection, const std::string& campaign,
                     const std::string& target, const std::vector<std::vector<std::string>>& lots) {
  const auto known = [&]() -> Result<bool> {
    const auto rows =
        connection.execute("SELECT lots FROM quarterturn.campaign WHERE id = $1", {campaign});
    if (!rows.ok()) return rows.status();
    if (rows->count() == 0) return false;
    if (rows->integer(0, 0) == static_cast<std::int64_t>(lots.size())) return true;
    return Status(Code::damaged,
                  fmt::format("{} knows the campaign {} with {} lots, and it has {}",
                              connection.name(), campaign, rows->integer(0, 0), lots.size()));
  };
  auto there = known();
  if (!there.ok()) return there.status();
  if (*there) return {};
  pg::Transaction transaction(connection, pg::Transaction::Kind::write);
  if (!transaction.status().ok()) return transaction.status();
  // Who comes second waits here until the first is done.
  const auto first = connection.execute(
      "INSERT INTO quarterturn.campaign(id, target, lots) VALUES($1, $2, $3) "
      "ON CONFLICT (id) DO NOTHING",
      {campaign, target, number(static_cast<std::int64_t>(lots.size()))});
  if (!first.ok()) return first.status();
  if (first->changed() == 0) {
    if (auto status = transaction.commit(); !status.ok()) return status;
    there = known();
    return there.ok() ? Status() : there.status();
  }
  for (std::size_t at = 0; at < lots.size(); at += kLotBatch) {
    pg::Array numbers, problems;
    for (std::size_t i = at; i < std::min(lots.size(), at + kLotBatch); ++i) {
      numbers.add(static_cast<std::int64_t>(i));
      // An array of arrays must be even: each lot is the text of one.
      pg::Array keys;
      for (const auto& key : lots[i]) keys.add(key);
      problems.add(keys.text());
    }
    const auto rows = connection.execute(
        "INSERT INTO quarterturn.lease(campaign, lot, problems) "
        "SELECT $1, lot, problems::text[] FROM unnest($2::bigint[], $3::text[]) "
        "AS u(lot, problems) ORDER BY lot",
        {campaign, numbers.text(), problems.text()});
    if (!rows.ok()) return rows.status();
  }
  return transaction.commit();
}

Result<std::optional<Lease>> take(pg::Connection& connection, const Holder& holder, double seconds,
                                  Resume resume) {
  static const std::string fresh = take_statement(Resume::no), again = take_statement(Resume::yes);
  const auto rows = connection.execute(
      resume == Resume::yes ? again : fresh,
      {holder.campaign, text(holder.worker), fmt::format("{}", seconds), number(kMostAttempts)});
  if (!rows.ok()) return rows.status();
  if (rows->count() == 0) return std::optional<Lease>();
  return std::optional<Lease>({static_cast<std::size_t>(rows->integer(0, 0)), rows->integer(0, 1)});
}

Status renew(pg::Connection& connection, const Holder& holder, double seconds,
             const std::string& heartbeat, std::int64_t trials) {
  auto rows = connection.execute(
      "UPDATE quarterturn.lease SET until = now() + $3::double precision * interval '1 second' "
      "WHERE campaign = $1 AND state = 1 AND owner = $2::uuid",
      {holder.campaign, text(holder.worker), fmt::format("{}", seconds)});
  if (!rows.ok()) return rows.status();
  rows = connection.execute(
      "INSERT INTO quarterturn.worker AS w(campaign, worker, heartbeat, trials, seen) "
      "VALUES($1, $2::uuid, $3, $4, now()) ON CONFLICT (campaign, worker) DO UPDATE SET "
      "heartbeat = excluded.heartbeat, trials = w.trials + excluded.trials, seen = excluded.seen",
      {holder.campaign, text(holder.worker), pg::as_utf8(heartbeat), number(trials)});
  return rows.ok() ? Status() : rows.status();
}

Status finish(pg::Connection& connection, const Holder& holder, std::size_t lot, LotState state) {
  const bool done = state == LotState::done;
  const auto rows = connection.execute(
      fmt::format("UPDATE quarterturn.lease SET state = $4::bigint, until = NULL "
                  "WHERE campaign = $1 AND lot = $3::bigint AND {}",
                  done ? "state <> 2 AND $2::uuid IS NOT NULL" : "state = 1 AND owner = $2::uuid"),
      {holder.campaign, text(holder.worker), number(static_cast<std::int64_t>(lot)),
       number(static_cast<std::int64_t>(state))});
  return rows.ok() ? Status() : rows.status();
}

Status release(pg::Connection& connection, const Holder& holder) {
  const auto rows = connection.execute(
      "UPDATE quarterturn.lease SET state = 0, owner = NULL, until = NULL, "
      "attempts = attempts - 1 WHERE campaign = $1 AND state = 1 AND owner = $2::uuid",
      {holder.campaign, text(holder.worker)});
  return rows.ok() ? Status() : rows.status();
}

Result<std::int64_t> retry(pg::Connection& connection, const std::string& campaign) {
  const auto rows = connection.execute(
      "UPDATE quarterturn.lease SET state = 0, owner = NULL, until = NULL, attempts = 0 "
      "WHERE campaign = $1 AND (state = 3 OR "
      "(state = 1 AND until < now() AND attempts >= $2::bigint))",
      {campaign, number(kMostAttempts)});
  if (!rows.ok()) return rows.status();
  return rows->changed();
}

Result<bool> may_come_free(pg::Connection& connection, const std::string& campaign) {
  const auto rows = connection.execute(
      "SELECT EXISTS(SELECT 1 FROM quarterturn.lease WHERE campaign = $1 AND state = 1 AND "
      "attempts < $2::bigint)",
      {campaign, number(kMostAttempts)});
  if (!rows.ok()) return rows.status();
  return rows->text(0, 0) == "t";
}

Result<CampaignView> view(pg::Connection& connection, const std::string& campaign) {
  CampaignView out;
  const pg::Transaction transaction(connection, pg::Transaction::Kind::snapshot);
  if (!transaction.status().ok()) return transaction.status();
  const auto known =
      connection.execute("SELECT 1 FROM quarterturn.campaign WHERE id = $1", {campaign});
  if (!known.ok()) return known.status();
  out.known = known->count() > 0;
  const auto lots = connection.execute(
      "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), "
      "count(*) FILTER (WHERE state = 1 AND until < now()), "
      "count(*) FILTER (WHERE state = 1 AND until < now() AND attempts >= $2::bigint), "
      "count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state = 3) "
      "FROM quarterturn.lease WHERE campaign = $1",
      {campaign, number(kMostAttempts)});
  if (!lots.ok()) return lots.status();
  int column = 0;
  for (std::int64_t* count : {&out.lots.open, &out.lots.leased, &out.lots.expired,
                              &out.lots.given_up, &out.lots.done, &out.lots.failed})
    *count = lots->integer(0, column++);
  const auto workers = connection.execute(
      "SELECT heartbeat, trials, extract(epoch FROM now() - seen)::double precision, "
      "extract(epoch FROM seen)::double precision FROM quarterturn.worker "
      "WHERE campaign = $1 ORDER BY seen, worker",
      {campaign});
  if (!workers.ok()) return workers.status();
  for (int i = 0; i < workers->count(); ++i)
    out.workers.push_back({std::string(workers->text(i, 0)), workers->integer(i, 1),
                           workers->real(i, 2), workers->real(i, 3)});
  return out;
}

}  // namespace quarterturn::leases
