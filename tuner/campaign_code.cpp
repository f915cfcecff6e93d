#include "tuner/campaign_code.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cache/filesystem.hpp"
#include "cache/trusted_file.hpp"
#include "tuner/campaign_folder.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlans = "plans.json";
constexpr std::size_t kBlock = 512;

// POSIX's ustar header; numbers are octal text.
struct Header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
  char magic[6], version[2], owner[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
static_assert(sizeof(Header) == kBlock, "a header of a tar archive is one block");

unsigned sum_of(Header header) {
  std::memset(header.checksum, ' ', sizeof header.checksum);
  unsigned sum = 0;
  unsigned char bytes[kBlock];
  std::memcpy(bytes, &header, kBlock);
  for (const auto byte : bytes) sum += byte;
  return sum;
}

template <std::size_t N>
void put(char (&field)[N], const std::string& text) {
  std::memcpy(field, text.data(), std::min(N, text.size()));
}

void append(std::string& archive, const std::string& name, std::string_view bytes) {
  Header header{};
  put(header.name, name);
  put(header.mode, "0000600");
  put(header.uid, "0000000");
  put(header.gid, "0000000");
  put(header.size, fmt::format("{:011o}", bytes.size()));
  put(header.mtime, "00000000000");
  header.type = '0';
  put(header.magic, "ustar");
  put(header.version, "00");
  put(header.checksum, fmt::format("{:06o}", sum_of(header)));
  header.checksum[7] = ' ';
  archive.append(reinterpret_cast<const char*>(&header), kBlock);
  archive.append(bytes);
  archive.append((kBlock - bytes.size() % kBlock) % kBlock, '\0');
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// "ab/ab12...cd.so", as CodeStore names its entries.
bool is_entry(std::string_view name) {
  constexpr std::size_t stem = 3 + 64;
  if (name.size() < stem + 2 || name.size() > stem + 9) return false;
  const auto digits = name.substr(3, 64), ending = name.substr(stem + 1);
  return name[2] == '/' && name[stem] == '.' && is_hex(digits) &&
         name.substr(0, 2) == digits.substr(0, 2) &&
         std::all_of(ending.begin(), ending.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

struct TarMember {
  std::string name;
  std::string_view bytes;
};

Result<std::vector<TarMember>> members_of(std::string_view archive, const std::string& file) {
  const Status damaged(Code::damaged,
                       fmt::format("{} holds other things than code; remove it", file));
  std::vector<TarMember> out;
  for (std::size_t at = 0; at + kBlock <= archive.size();) {
    Header header;
    std::memcpy(&header, archive.data() + at, kBlock);
    if (header.name[0] == 0) return out;  // the end, as tar marks it
    at += kBlock;
    unsigned sum = 0;
    std::size_t size = 0;
    const bool sound =
        std::from_chars(header.checksum, header.checksum + 6, sum, 8).ec == std::errc() &&
        sum == sum_of(header) && header.type == '0' &&
        std::from_chars(header.size, header.size + 11, size, 8).ec == std::errc() &&
        size <= archive.size() - at;
    if (!sound) return damaged;
    TarMember member{std::string(header.name, strnlen(header.name, sizeof header.name)),
                     archive.substr(at, size)};
    if (member.name != kPlans && !is_entry(member.name)) return damaged;
    out.push_back(std::move(member));
    at += (size + kBlock - 1) / kBlock * kBlock;
  }
  return damaged;
}

Result<PackedPlans> plans_of(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    return json.get<PackedPlans>();
  } catch (const nlohmann::json::exception& error) {
    return Status(Code::damaged, fmt::format("{}: {}", kPlans, error.what()));
  }
}

}  // namespace

Status pack(const std::string& store, const PackedPlans& plans, const std::string& file) {
  std::string archive;
  append(archive, kPlans, nlohmann::json(plans).dump(1));
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(store, error)) {
    auto name = fs::relative(entry.path(), store, error).string();
    if (is_entry(name)) names.push_back(std::move(name));
  }
  if (error) return system_status(error.value(), fmt::format("read {}", store));
  std::sort(names.begin(), names.end());
  for (const auto& name : names) {
    const auto bytes = read_trusted(store + "/" + name);
    if (!bytes.ok()) return bytes.status();
    append(archive, name, *bytes);
  }
  archive.append(2 * kBlock, '\0');
  return replace_durably(file, archive);
}

Result<PackedPlans> unpack(const std::string& file, const std::string& store) {
  const auto archive = read_trusted(file);
  if (!archive.ok()) return archive.status();
  const auto members = members_of(*archive, file);
  if (!members.ok()) return members.status();
  PackedPlans out;
  for (const auto& member : *members) {
    if (member.name == kPlans) {
      auto plans = plans_of(member.bytes);
      if (!plans.ok()) return plans.status();
      out = std::move(*plans);
      continue;
    }
    const std::string path = store + "/" + member.name;
    if (access(path.c_str(), F_OK) == 0) continue;
    Status status = make_folder(folder_of(path));
    if (status.ok()) status = replace_durably(path, member.bytes);
    if (!status.ok()) return status;
  }
  return out;
}

}  // namespace quarterturn
