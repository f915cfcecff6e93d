// The project's own source files, for tests that read code as text.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace quarterturn::tree {

struct SourceFile {
  std::string path;  ///< below the source folder: "generator/problem.cpp"
  std::vector<std::string> lines;

  std::string folder() const { return path.substr(0, path.find('/')); }
};

inline std::vector<SourceFile> source_files(const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  std::vector<SourceFile> out;
  const fs::path root = QTURN_SOURCE_DIR;
  for (const auto& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".hpp" && extension != ".h" && extension != ".cuh")
        continue;
      SourceFile file{fs::relative(entry.path(), root).string(), {}};
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) file.lines.push_back(line);
      out.push_back(std::move(file));
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return out;
}

}  // namespace quarterturn::tree
