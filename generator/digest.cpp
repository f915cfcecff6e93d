#include "generator/digest.hpp"

#include <sodium.h>

namespace quarterturn {

Digest sha256(std::string_view bytes) {
  Digest out;
  crypto_hash_sha256(out.data(), reinterpret_cast<const unsigned char*>(bytes.data()),
                     bytes.size());
  return out;
}

std::string hex(const Digest& digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : digest) {
    out += digits[byte >> 4];
    out += digits[byte & 15];
  }
  return out;
}

}  // namespace quarterturn
