// Bundle: a folder of answers and compiled code for stated targets, made beforehand (`qturn
// bundle`), so that a program starts without a compiler, a database of its own, or anything to
// write.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

struct BundleTarget {
  std::string target;    ///< Target::key
  std::string compiler;  ///< identity of what compiled its code

  bool operator==(const BundleTarget&) const = default;
};

/// What the manifest says; its file is kManifest in the folder.
struct Bundle {
  static constexpr std::string_view kManifest = "bundle.json";
  static constexpr std::string_view kDatabase = "tuning.db";
  static constexpr std::string_view kCode = "code";

  std::string folder;   ///< where it was read from; no part of the text
  std::string library;  ///< the version that made it
  std::vector<BundleTarget> targets;
  std::map<std::string, std::string> files;  ///< SHA-256 in hex, by path below the folder
  std::string key, signature;                ///< Ed25519, hex; empty: not signed

  /// What a signature covers: all but the signature.
  std::string message() const;
  std::string text() const;  ///< JSON

  std::string database_path() const { return folder + "/" + std::string(kDatabase); }
  std::string code_path() const { return folder + "/" + std::string(kCode); }
  const BundleTarget* find(std::string_view target) const;
};

/// Without keys, a folder that belongs to this user or root and that nobody else can write is
/// trusted. With keys (public, hex) the bundle must be signed by one of them, and every file must
/// be what was signed. damaged, not_ours, newer_version, io_error.
Result<Bundle> read_bundle(const std::string& folder, const std::vector<std::string>& keys);
Result<Bundle> parse_bundle(std::string_view text, const std::string& name);

}  // namespace quarterturn
