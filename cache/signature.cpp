#include "cache/signature.hpp"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "cache/filesystem.hpp"
#include "cache/trusted_file.hpp"

namespace quarterturn {
namespace {

constexpr std::string_view kHeader = "quarterturn ed25519 secret key\n";

template <std::size_t n>
std::string to_hex(const std::array<unsigned char, n>& bytes) {
  std::string out(2 * n + 1, '\0');
  sodium_bin2hex(out.data(), out.size(), bytes.data(), n);
  out.pop_back();
  return out;
}

template <std::size_t n>
std::optional<std::array<unsigned char, n>> from_hex(std::string_view text) {
  std::array<unsigned char, n> out{};
  std::size_t length = 0;
  if (text.size() != 2 * n ||
      sodium_hex2bin(out.data(), n, text.data(), text.size(), nullptr, &length, nullptr) != 0)
    return std::nullopt;
  return length == n ? std::optional(out) : std::nullopt;
}

Status not_a_key(const std::string& path, std::string_view why) {
  return Status(Code::not_ours,
                fmt::format("{} {}; `qturn db keygen` makes a signing key", path, why));
}

}  // namespace

std::string SigningKey::public_hex() const {
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> out{};
  crypto_sign_ed25519_sk_to_pk(out.data(), secret.data());
  return to_hex(out);
}

std::string SigningKey::sign(std::string_view message) const {
  std::array<unsigned char, crypto_sign_BYTES> out{};
  crypto_sign_detached(out.data(), nullptr, reinterpret_cast<const unsigned char*>(message.data()),
                       message.size(), secret.data());
  return to_hex(out);
}

Result<SigningKey> make_signing_key(const std::string& path) {
  if (sodium_init() < 0) return Status(Code::internal, "libsodium does not start");
  SigningKey key;
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> ignored{};
  crypto_sign_keypair(ignored.data(), key.secret.data());
  const auto status = create_durably(path, std::string(kHeader) + to_hex(key.secret) + "\n");
  if (!status.ok()) return status;
  return key;
}

Result<SigningKey> read_signing_key(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return system_status(errno, fmt::format("read {}", path));
  if ((info.st_mode & 077) != 0)
    return Status(Code::not_ours,
                  fmt::format("{} can be read by others (mode {:o}): run chmod 600 {}", path,
                              info.st_mode & 0777, path));
  const auto text = read_trusted(path);
  if (!text.ok()) return text.status();
  std::string_view rest = *text;
  if (!rest.starts_with(kHeader)) return not_a_key(path, "holds no signing key");
  rest.remove_prefix(kHeader.size());
  while (!rest.empty() && rest.back() == '\n') rest.remove_suffix(1);
  const auto secret = from_hex<64>(rest);
  if (!secret) return not_a_key(path, "holds a damaged signing key");
  return SigningKey{*secret};
}

bool is_signed_by(std::string_view public_hex, std::string_view message,
                  std::string_view signature_hex) {
  const auto key = from_hex<crypto_sign_PUBLICKEYBYTES>(public_hex);
  const auto signature = from_hex<crypto_sign_BYTES>(signature_hex);
  return key && signature &&
         crypto_sign_verify_detached(signature->data(),
                                     reinterpret_cast<const unsigned char*>(message.data()),
                                     message.size(), key->data()) == 0;
}

}  // namespace quarterturn
