// Rows: how records are written to and read from tables. Used by Database and by salvage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cache/records.hpp"
#include "cache/sqlite.hpp"
#include "generator/status.hpp"

namespace quarterturn::rows {

/// Each finds the row or makes it, and returns this file's id.
Result<std::int64_t> env_id(sqlite::Connection& connection, const Env& env);
Result<std::int64_t> problem_id(sqlite::Connection& connection, std::string_view key);
/// Also writes the plan's steps and variants; invalid_argument when the text does not parse.
Result<std::int64_t> plan_id(sqlite::Connection& connection, const std::string& text);

/// Why a record cannot be stored; ok when it can.
Status check(const Trial& trial);
Status check(const Winner& winner);

/// A trial whose UUID is there already is left as it is.
Status insert(sqlite::Connection& connection, const Trial& trial);
enum class Existing { replaced, kept };
Status insert(sqlite::Connection& connection, const Winner& winner, Existing existing);

/// FNV-1a over everything but `detail`: finds flipped bits, which SQLite itself does not.
std::int64_t checksum(const Trial& trial);

/// Names of the trial columns that QTURN_TRIAL_FIELDS lists, with `prefix` before each.
std::string trial_fields(std::string_view prefix);

using Envs = std::map<std::int64_t, std::shared_ptr<const Env>>;
Result<Envs> read_envs(sqlite::Connection& connection);
/// Columns from `column` on: id, target, class, driver, toolkit, compiler, library, product.
Env read_env(const sqlite::Query& query, int column);

/// Columns from `column` on: uuid, campaign, the fields, samples, detail, checksum. `sound` says
/// whether the checksum fits, once problem, plan and env are filled in.
Trial read_trial(const sqlite::Query& query, int column);
std::string trial_columns(std::string_view prefix);

/// This file's own UUID, the source of its miss counters; made when there is none (a snapshot that
/// was copied to become a local database has none, so that copies do not share one).
Result<Uuid> file_uuid(sqlite::Connection& connection);

std::int64_t nanoseconds_now();
/// A record's time, where 0 stands for now.
inline std::int64_t or_now(std::int64_t time) { return time != 0 ? time : nanoseconds_now(); }

/// "tombstone" filter for a trial `t` of an env `e`, below the schema `name`.
std::string live_trial(std::string_view name);

}  // namespace quarterturn::rows
