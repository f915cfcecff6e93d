// An entry of the code store as bytes: what is altered or cut short is no entry.
#include "cache/code_file.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

namespace {

const CodeKey key{"source=ab compiler=gcc-12", "so"};
const CodeInfo info{"x86-64", "gcc-12", "-O3", "warning: \xff odd byte", 120, 32, 8, 1024};
const std::string code(
    "\x7f"
    "ELF code\0bytes",
    15);

}  // namespace

TEST_CASE("code_file.parse gives back what was written") {
  const auto entry = code_file::parse(code + code_file::trailer(key, info, code), key);
  REQUIRE(entry.has_value());
  CHECK(entry->code_bytes == static_cast<std::int64_t>(code.size()));
  CHECK(entry->content == sha256(code));
  CHECK(entry->key == key.digest());
  CHECK(entry->info.compiler == "gcc-12");
  CHECK(entry->info.compile_ms == 120);
  CHECK(entry->info.spills == 8);
  CHECK(entry->info.log.starts_with("warning: "));
}

TEST_CASE("code_file.parse refuses every cut and every flipped bit") {
  const auto bytes = code + code_file::trailer(key, info, code);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK(!code_file::parse(bytes.substr(0, size), key).has_value());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    CHECK(!code_file::parse(flipped, key).has_value());
  }
  CHECK(!code_file::parse(bytes + "x", key).has_value());
  CHECK(!code_file::parse("x" + bytes, key).has_value());
}

TEST_CASE("code_file.parse refuses an entry of another key") {
  const auto bytes = code + code_file::trailer(key, info, code);
  CHECK(!code_file::parse(bytes, {"source=ab compiler=gcc-13", "so"}).has_value());
}
