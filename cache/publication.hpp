// Publication: a folder of immutable snapshots, and a manifest (CURRENT) that says which one
// readers take. Works on any file system: files appear by rename and are never changed afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/database.hpp"
#include "cache/signature.hpp"
#include "generator/digest.hpp"

namespace quarterturn {

/// One published snapshot.
struct Generation {
  std::int64_t number = 0;
  std::string file;            ///< name inside the folder
  std::string content;         ///< SHA-256 of all content, hex
  std::string winners;         ///< SHA-256 of what dispatch depends on, hex: what ranks compare
  std::int64_t published = 0;  ///< nanoseconds since 1970
  std::string key, signature;  ///< Ed25519, hex; empty: not signed
};

struct Manifest {
  std::int64_t current = 0;    ///< a generation's number
  std::int64_t sequence = 0;   ///< grows with every choice of what is current
  std::string key, signature;  ///< of that choice: Ed25519, hex; empty: not signed
  std::vector<Generation> generations;

  const Generation* find(std::int64_t number) const;
};

/// What a generation's signature covers.
std::string signed_message(const Generation& generation);
/// What the signature of a choice covers: which generation is current, and the how-manieth choice
/// that is. So nobody without a key can put an older one back where the newer was seen.
std::string signed_choice(const Manifest& manifest);

/// miss: the folder has no manifest. damaged: it cannot be understood.
Result<Manifest> read_manifest(const std::string& folder);

/// Adds the database's content as the next generation and makes it current; older ones stay for
/// jobs that use them. Publishers wait for each other where the file system has locks.
Result<Generation> publish(Database& database, const std::string& folder,
                           const SnapshotOptions& options = {}, const SigningKey* key = nullptr);

/// Makes an older (or again the newest) generation current. out_of_range: there is no such one.
/// invalid_argument: it is signed and `key` is null, so that readers who check would refuse it.
Status make_current(const std::string& folder, std::int64_t number,
                    const SigningKey* key = nullptr);

struct Published {
  Database database;
  std::int64_t number = 0;    ///< the generation's; 0: a single file
  std::int64_t sequence = 0;  ///< of the choice; 0: a single file
};

/// Opens what `path` names: a snapshot's file, or a publication's current generation. With
/// `allowed_keys` (public, hex), only a generation that one of them signed and chose, whose winners
/// are those that were signed, and whose choice is no older than `least_sequence`; else any.
Result<Published> open_current(const std::string& path,
                               const std::vector<std::string>& allowed_keys,
                               std::int64_t least_sequence = 0);
Result<Database> open_published(const std::string& path,
                                const std::vector<std::string>& allowed_keys = {});

}  // namespace quarterturn
