// Kernel text of the source tree put together as the generator does, without needing the generator.
#pragma once

#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "command.hpp"

/// Puts each quoted include in the place of its line, once.
inline std::string flatten(const std::string& text, std::set<std::string>& seen) {
  const std::string prefix = "#include \"";
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(prefix, 0) != 0) {
      out += line + '\n';
      continue;
    }
    const auto path = line.substr(prefix.size(), line.rfind('"') - prefix.size());
    if (!seen.insert(path).second) continue;
    const std::filesystem::path folder =
        path == "digest.h" ? QTURN_TEMPLATES_TEST_DIR : QTURN_TEMPLATES_DIR;
    out += flatten(command::read_file(folder / path), seen);
  }
  return out;
}

inline std::string flatten(const std::string& text) {
  std::set<std::string> seen;
  return flatten(text, seen);
}
