// Content: rows copied between files and hashed, by what they say and never by their local ids.
#pragma once

#include "cache/database.hpp"
#include "cache/sqlite.hpp"
#include "generator/digest.hpp"

namespace quarterturn {

/// SHA-256 over sorted canonical rows of the main schema.
Result<Digest> hash_content(sqlite::Connection& connection, Content content);

/// Stores both hashes in the file and returns the one of all content.
Result<Digest> store_hashes(sqlite::Connection& connection);
/// Compares with the stored hash; ok when none is stored.
Status check_stored_hash(sqlite::Connection& connection, Content content);

/// Attaches a private copy of `from` to `into` as the schema "source".
Status attach_copy(sqlite::Connection& into, sqlite::Connection& from);
Status detach_copy(sqlite::Connection& into);

enum class Notes { kept, left_out };
/// Whether what simulated devices left goes along.
enum class SimulatedRows { kept, left_out };

/// Adds the immutable rows of "source" to the main schema: a union. Inside a transaction.
Status add_source(sqlite::Connection& connection, TrialRows trials, MissRows misses, Notes notes,
                  SimulatedRows simulated);
/// The winners as well, for a copy.
Status add_source_winners(sqlite::Connection& connection);

}  // namespace quarterturn
