// StoreSchema: the tables of a shared store, who may do what with them, how they are made and
// brought forward, and how a schema that is not what it should be is told.
#pragma once

#include <cstdint>
#include <string>

#include "cache/postgresql.hpp"
#include "generator/status.hpp"

namespace quarterturn::store_schema {

/// What this library writes, and the oldest library that may work with what it writes.
inline constexpr std::int64_t version = 1;
inline constexpr std::int64_t min_reader = 1;

/// Roles of the whole server, without login; sites grant them to their own. The reader sees
/// everything; the worker also adds rows, takes and renews leases; the admin owns the tables.
inline constexpr const char* reader_role = "quarterturn_reader";
inline constexpr const char* worker_role = "quarterturn_worker";
inline constexpr const char* admin_role = "quarterturn_admin";

struct Migration {
  std::int64_t from = 0;  ///< 0: there was nothing
  std::int64_t to = 0;
};

/// Makes roles and schema, or brings an older one forward: one transaction under a lock, so that
/// any number may do it at once. read_only: the caller may not; the message holds the statements
/// that somebody who may is to run first. newer_version, not_ours, damaged: left untouched.
Result<Migration> migrate(pg::Connection& connection);

/// The statements for somebody who may create roles and schemas, on behalf of `user`.
std::string preparation(const std::string& database, const std::string& user);

/// Before rows are read or written. miss: there is no store; newer_version; not_ours: the schema
/// belongs to somebody else; damaged: it holds triggers, rules, policies, or tables of another
/// shape. Nothing that others put there is called.
Status check(pg::Connection& connection);

}  // namespace quarterturn::store_schema
