// House rules that a reader would otherwise have to check by eye.
#include <doctest/doctest.h>

#include <string>

#include "tests/tree/source_files.hpp"

using quarterturn::tree::source_files;

TEST_CASE("kernel text is ASCII: some assemblers refuse anything else") {
  for (const auto& file : source_files({"templates", "generator"}))
    for (std::size_t i = 0; i < file.lines.size(); ++i)
      for (const char c : file.lines[i])
        if (static_cast<unsigned char>(c) > 126 ||
            (static_cast<unsigned char>(c) < 32 && c != '\t'))
          FAIL_CHECK(file.path << ":" << i + 1 << " holds byte "
                               << static_cast<int>(static_cast<unsigned char>(c)));
}

TEST_CASE("every file opens with a sentence on why it exists") {
  for (const auto& file :
       source_files({"templates", "reference", "generator", "cache", "runtime", "tuner"})) {
    // A .cpp beside a header of the same name shares the header's sentence.
    const auto dot = file.path.rfind('.');
    const bool has_header = file.path.substr(dot) == ".cpp" &&
                            std::filesystem::exists(std::filesystem::path(QTURN_SOURCE_DIR) /
                                                    (file.path.substr(0, dot) + ".hpp"));
    if (has_header || file.lines.empty()) continue;
    const auto& first = file.lines.front();
    CHECK_MESSAGE((first.rfind("//", 0) == 0 || first.rfind("/*", 0) == 0),
                  file.path << " opens with: " << first);
  }
}

TEST_CASE("the library never writes to the standard streams") {
  for (const auto& file : source_files({"generator", "cache", "runtime"})) {
    if (file.path.ends_with("_main.cpp")) continue;  // programs of their own
    for (const auto& line : file.lines)
      for (const auto* word : {"std::cout", "std::cerr", " printf(", "fmt::print(", "std::printf("})
        CHECK_MESSAGE(line.find(word) == std::string::npos, file.path << ": " << line);
  }
}

TEST_CASE("which devices are visible is the driver's business: no code reads those variables") {
  // They hold ordinals, UUIDs, prefixes of UUIDs, MIG names and words that stand for nothing.
  for (const auto& file : source_files({"generator", "cache", "runtime", "tuner", "python"}))
    for (const auto& line : file.lines)
      if (line.find("getenv(") != std::string::npos || line.find("environ") != std::string::npos)
        for (const auto* word : {"VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"})
          CHECK_MESSAGE(line.find(word) == std::string::npos, file.path << ": " << line);
}
