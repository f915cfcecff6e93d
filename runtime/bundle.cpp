#include "runtime/bundle.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cache/signature.hpp"
#include "cache/trusted_file.hpp"
#include "generator/digest.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kFormat = 1;

std::string text_of(const Json& from, const char* member) {
  const auto found = from.find(member);
  return found != from.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Stays inside the folder.
bool is_plain_path(const std::string& path) {
  return !path.empty() && path.front() != '/' && path.find("..") == std::string::npos;
}

}  // namespace

const BundleTarget* Bundle::find(std::string_view target) const {
  const auto found = std::find_if(targets.begin(), targets.end(),
                                  [&](const auto& one) { return one.target == target; });
  return found == targets.end() ? nullptr : &*found;
}

std::string Bundle::message() const {
  std::string out = fmt::format("quarterturn bundle {}\n{}\n", kFormat, library);
  for (const auto& [target, compiler] : targets)
    out += fmt::format("target {}\n{}\n", target, compiler);
  for (const auto& [path, hash] : files) out += fmt::format("file {} {}\n", hash, path);
  return out;
}

std::string Bundle::text() const {
  Json json{{"quarterturn_bundle", kFormat}, {"library", library}};
  json["targets"] = Json::array();
  for (const auto& [target, compiler] : targets)
    json["targets"].push_back({{"target", target}, {"compiler", compiler}});
  json["files"] = Json::object();
  for (const auto& [path, hash] : files) json["files"][path] = hash;
  if (!key.empty()) json["key"] = key;
  if (!signature.empty()) json["signature"] = signature;
  return json.dump(1) + "\n";
}

Result<Bundle> parse_bundle(std::string_view text, const std::string& name) {
  const auto damaged = [&name](const char* what) {
    return Status(Code::damaged, fmt::format("{} is no bundle's manifest: {}", name, what));
  };
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return damaged("it is not a JSON object");
  const auto format = json.find("quarterturn_bundle");
  if (format == json.end() || !format->is_number_integer())
    return damaged("it has no member quarterturn_bundle");
  if (format->get<std::int64_t>() != kFormat)
    return Status(Code::newer_version, fmt::format("{} is of format {}; this version reads {}",
                                                   name, format->get<std::int64_t>(), kFormat));
  Bundle out;
  out.library = text_of(json, "library");
  const auto targets = json.find("targets"), files = json.find("files");
  if (targets == json.end() || !targets->is_array() || files == json.end() || !files->is_object())
    return damaged("it lacks targets or files");
  for (const auto& row : *targets) {
    if (!row.is_object() || text_of(row, "target").empty()) return damaged("a target has no name");
    out.targets.push_back({text_of(row, "target"), text_of(row, "compiler")});
  }
  for (const auto& [path, hash] : files->items()) {
    if (!is_plain_path(path) || !hash.is_string()) return damaged("a file outside its folder");
    out.files[path] = hash.get<std::string>();
  }
  out.key = text_of(json, "key");
  out.signature = text_of(json, "signature");
  return out;
}

Result<Bundle> read_bundle(const std::string& folder, const std::vector<std::string>& keys) {
  const std::string path = fmt::format("{}/{}", folder, Bundle::kManifest);
  const auto text = read_trusted(path);
  if (text.status().code() == Code::miss)
    return Status(Code::io_error,
                  fmt::format("{} is no bundle: it has no {}. `qturn bundle` makes one", folder,
                              Bundle::kManifest));
  if (!text.ok()) return text.status();
  auto out = parse_bundle(*text, path);
  if (!out.ok()) return out;
  out->folder = folder;
  for (const auto& part : {folder, out->code_path()}) {
    struct stat info {};
    if (stat(part.c_str(), &info) != 0)
      return Status(Code::io_error, fmt::format("{} cannot be examined", part));
    if (auto status = check_trusted(info, part); !status.ok()) return status;
  }
  if (keys.empty()) return out;
  const bool is_allowed = std::find(keys.begin(), keys.end(), out->key) != keys.end() &&
                          is_signed_by(out->key, out->message(), out->signature);
  if (!is_allowed)
    return Status(
        Code::not_ours,
        fmt::format("the bundle {} is not signed by a key of QTURN_SNAPSHOT_KEYS", folder));
  for (const auto& [name, hash] : out->files) {
    const auto content = read_trusted(folder + "/" + name);
    if (!content.ok() || hex(sha256(*content)) != hash)
      return Status(Code::damaged,
                    fmt::format("{}/{} is not the file that was signed", folder, name));
  }
  return out;
}

}  // namespace quarterturn
