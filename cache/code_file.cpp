#include "cache/code_file.hpp"

#include <nlohmann/json.hpp>

#include "generator/digest.hpp"

namespace quarterturn::code_file {
namespace {

constexpr std::string_view magic = "QTCODE01";
constexpr std::size_t footer_bytes = 8 + 32 + 8;

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

std::string trailer(const CodeKey& key, const CodeInfo& info, std::string_view code) {
  nlohmann::ordered_json json;
  json["key"] = key.text;
  json["content"] = hex(sha256(code));
  json["target"] = info.target;
  json["compiler"] = info.compiler;
  json["flags"] = info.flags;
  json["compile_ms"] = info.compile_ms;
  json["registers"] = info.registers;
  json["spills"] = info.spills;
  json["shared_bytes"] = info.shared_bytes;
  json["log"] = info.log;
  // A compiler's log may hold bytes that are no UTF-8; they are replaced, not refused.
  std::string out = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::uint64_t length = out.size();
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i));
  std::string all(code);
  all += out;
  out += view(sha256(all));
  out += magic;
  return out;
}

std::optional<CodeEntry> parse(std::string_view bytes, const CodeKey& key) {
  if (bytes.size() < footer_bytes || !bytes.ends_with(magic)) return std::nullopt;
  const auto stated = bytes.substr(bytes.size() - 40, 32);
  if (view(sha256(bytes.substr(0, bytes.size() - 40))) != stated) return std::nullopt;
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(bytes[bytes.size() - footer_bytes + i]);
  if (length > bytes.size() - footer_bytes) return std::nullopt;
  const auto code_bytes = bytes.size() - footer_bytes - length;
  const auto json = nlohmann::json::parse(bytes.substr(code_bytes, length), nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto word = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
  };
  // The file's name is only a hash: the key itself decides.
  if (word("key") != key.text) return std::nullopt;
  CodeEntry entry;
  entry.key = key.digest();
  entry.content = sha256(bytes.substr(0, code_bytes));
  if (word("content") != hex(entry.content)) return std::nullopt;
  entry.code_bytes = static_cast<std::int64_t>(code_bytes);
  entry.info = {word("target"),   word("compiler"),      word("flags"),
                word("log"),      number("compile_ms"),  number("registers"),
                number("spills"), number("shared_bytes")};
  return entry;
}

}  // namespace quarterturn::code_file
