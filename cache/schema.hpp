// Schema: the tables of a tuning database, how older files are brought up to them, and how a file
// is recognised as ours.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cache/sqlite.hpp"
#include "generator/status.hpp"

namespace quarterturn::schema {

inline constexpr std::uint32_t application_id = 0x5154524e;  // "QTRN"
/// What this library writes, and the oldest library that may read a file it writes.
inline constexpr std::int64_t version = 1;
inline constexpr std::int64_t min_reader = 1;

/// Brings a file from version - 1 to version.
struct Step {
  std::int64_t version;
  std::int64_t min_reader;  ///< after this step
  const char* statements;
};
std::span<const Step> steps();

/// What the first bytes of a file say, read without locks and without changing it.
enum class Identity { empty, ours, ours_damaged, foreign };
struct Header {
  Identity identity = Identity::empty;
  std::int64_t user_version = 0;  ///< of the file without its write-ahead log
};
/// Through SQLite's own file handle: closing another one on the same file would drop this process's
/// locks on it.
Result<Header> read_header(sqlite::Connection& connection);

/// Creates the schema, or carries an older one forward: one exclusive transaction that looks again,
/// so any number of processes may do it at once. An up-to-date file is only looked at.
Status migrate(sqlite::Connection& connection, std::span<const Step> steps);

/// Fails with newer_version unless a library of version `reader` may read this file.
Status check_readable(sqlite::Connection& connection, std::int64_t reader);

enum class Extras {
  refused,  ///< triggers, views, unknown tables and indexes: for files that others made
  allowed,  ///< somebody may have added an index to a database of his own; triggers never run
};
/// damaged when a table or index of ours is missing or has another shape.
Status check_objects(sqlite::Connection& connection, const std::string& name, Extras extras);

/// damaged when a table of ours is missing; cheaper than check_objects.
Status check_tables(sqlite::Connection& connection);

}  // namespace quarterturn::schema
