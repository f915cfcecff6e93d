// tests/CASES.md names tests that exist.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/tree/source_files.hpp"

TEST_CASE("each test that the table of cases names exists") {
  // Long names may be broken over lines and concatenated: white space between quotes is taken out.
  std::string all;
  for (const auto& file : quarterturn::tree::source_files({"tests"}))
    for (const auto& line : file.lines) {
      const auto begin = line.find_first_not_of(' ');
      if (begin != std::string::npos) all += line.substr(begin);
    }
  std::ifstream in(std::filesystem::path(QTURN_SOURCE_DIR) / "tests/CASES.md");
  std::set<std::string> names;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| ", 0) != 0) continue;
    for (auto at = line.find('`'); at != std::string::npos;) {
      const auto end = line.find('`', at + 1);
      REQUIRE_MESSAGE(end != std::string::npos, line);
      names.insert(line.substr(at + 1, end - at - 1));
      at = line.find('`', end + 1);
    }
  }
  CHECK(names.size() > 60);
  for (const auto& name : names)
    CHECK_MESSAGE(all.find("TEST_CASE(\"" + name + "\")") != std::string::npos, name);
}
