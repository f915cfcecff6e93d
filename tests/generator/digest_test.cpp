// The hashes that name code and order tables.
#include "generator/digest.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

TEST_CASE("digest.sha256 gives the published vectors of FIPS 180-4") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("digest.fnv1a gives the published 64-bit vectors") {
  CHECK(fnv1a("") == 0xcbf29ce484222325ull);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8cull);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8ull);
}
