#include "cache/records.hpp"

#include <fmt/format.h>
#include <sys/random.h>

namespace quarterturn {

// getrandom keeps no state in the process, so children of a fork never repeat their parent's UUIDs.
Uuid random_uuid() {
  Uuid uuid{};
  std::size_t have = 0;
  while (have < uuid.size()) {
    const ssize_t got = getrandom(uuid.data() + have, uuid.size() - have, 0);
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  uuid[6] = static_cast<unsigned char>((uuid[6] & 0x0f) | 0x40);  // version 4 of RFC 9562
  uuid[8] = static_cast<unsigned char>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

std::string text(const Uuid& uuid) {
  std::string out;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", uuid[i]);
  }
  return out;
}

Result<Uuid> parse_uuid(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  Uuid uuid{};
  std::size_t digits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (text[i] == '-') continue;
    } else if (const int value = digit(text[i]); value >= 0 && digits < 32) {
      uuid[digits / 2] = static_cast<unsigned char>(uuid[digits / 2] << 4 | value);
      ++digits;
      continue;
    }
    digits = 0;
    break;
  }
  if (digits != 32 || text.size() != 36)
    return Status(Code::invalid_argument,
                  fmt::format("\"{}\" is not a UUID: 8-4-4-4-12 hex digits are", text));
  return uuid;
}

std::string_view trial_kind_name(TrialKind kind) {
  static constexpr std::string_view names[] = {"timing", "admission", "recheck", "control"};
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(names) ? names[index] : "unknown";
}

std::string_view trial_status_name(TrialStatus status) {
  static constexpr std::string_view names[] = {
      "ok",   "compile_failed", "compile_timeout", "launch_failed", "crashed",
      "hung", "wrong",          "noisy",           "pruned",        "rejected"};
  const auto index = static_cast<std::size_t>(status);
  return index < std::size(names) ? names[index] : "unknown";
}

std::string_view quarantine_reason_name(QuarantineReason reason) {
  static constexpr std::string_view names[] = {
      "unknown", "compile_failed", "compile_timeout", "crashed", "hung", "wrong", "launch_failed"};
  const auto index = static_cast<std::size_t>(reason);
  return index < std::size(names) ? names[index] : "unknown";
}

}  // namespace quarterturn
