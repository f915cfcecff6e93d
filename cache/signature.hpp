// Signature: Ed25519 keys and signatures (RFC 8032, by libsodium) of published snapshots.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "generator/status.hpp"

namespace quarterturn {

/// The secret half; its public half is what readers are configured with.
struct SigningKey {
  std::array<unsigned char, 64> secret{};

  /// 64 hex digits.
  std::string public_hex() const;
  /// 128 hex digits over `message`.
  std::string sign(std::string_view message) const;
};

/// Makes a key and writes it to a fresh file of mode 0600; an existing file is never overwritten.
Result<SigningKey> make_signing_key(const std::string& path);

/// Reads such a file; refused when anybody but its owner can read or write it.
Result<SigningKey> read_signing_key(const std::string& path);

/// False also for malformed keys and signatures.
bool is_signed_by(std::string_view public_hex, std::string_view message,
                  std::string_view signature_hex);

}  // namespace quarterturn
