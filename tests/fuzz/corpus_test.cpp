// What fuzzing started from and found, again: each stored input, and each cut short.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/targets.hpp"

namespace {

using Function = void (*)(const std::uint8_t*, std::size_t);

void run(const char* name, Function function) {
  std::size_t inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(QTURN_CORPUS) / name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    INFO(entry.path().string());
    function(data, bytes.size());
    function(data, bytes.size() / 2);
    ++inputs;
  }
  CHECK(inputs >= 2);
}

}  // namespace

TEST_CASE("fuzz.database reader takes its corpus") { run("database", quarterturn::fuzz::database); }
TEST_CASE("fuzz.JSON importer takes its corpus") { run("json", quarterturn::fuzz::json); }
TEST_CASE("fuzz.configuration reader takes its corpus") {
  run("config", quarterturn::fuzz::config);
}
