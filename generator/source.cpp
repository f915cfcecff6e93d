#include "generator/source.hpp"

#include <fmt/format.h>

#include <set>

#include "templates/embedded.hpp"

namespace quarterturn {
namespace {

const templates::Text* find_text(std::string_view path) {
  for (const auto& text : templates::all())
    if (text.path == path) return &text;
  return nullptr;
}

// The path inside `#include "path"`, or empty for any other line (system headers stay as they are).
std::string_view included_path(std::string_view line) {
  constexpr std::string_view prefix = "#include \"";
  if (line.substr(0, prefix.size()) != prefix) return {};
  line.remove_prefix(prefix.size());
  return line.substr(0, line.find('"'));
}

Status append_flat(std::string_view text, std::set<std::string>& seen, std::string& out) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    const auto path = included_path(line);
    if (path.empty()) {
      if (line != "#pragma once") (out += line) += '\n';
      continue;
    }
    if (!seen.insert(std::string(path)).second) continue;
    const auto* found = find_text(path);
    if (!found)
      return Status(Code::internal, fmt::format("no kernel text is embedded as '{}'", path));
    out += fmt::format("// ---- {}\n", path);
    if (auto status = append_flat(found->text, seen, out); !status.ok()) return status;
  }
  return {};
}

// What a compiler makes code of. Comments name the problem and its range: problems that need the
// same code share it.
std::string without_comments(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    bool quoted = false;
    for (std::size_t i = 0; i + 1 < line.size(); ++i) {
      if (line[i] == '\\' && quoted) {
        ++i;
      } else if (line[i] == '"') {
        quoted = !quoted;
      } else if (!quoted && line[i] == '/' && line[i + 1] == '/') {
        line = line.substr(0, i);
      }
    }
    while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
    if (!line.empty()) (out += line) += '\n';
  }
  return out;
}

}  // namespace

Result<std::string> flatten(const Source& source) {
  std::string out;
  std::set<std::string> seen;
  if (auto status = append_flat(source.text, seen, out); !status.ok()) return status;
  return out;
}

Result<Digest> source_digest(const Source& source, const Target& target) {
  auto flat = flatten(source);
  if (!flat.ok()) return flat.status();
  return sha256(fmt::format("{}\n{}\n{}\n{}\n{}", static_cast<int>(source.language), source.entry,
                            fmt::join(source.flags, " "), target.key(), without_comments(*flat)));
}

}  // namespace quarterturn
