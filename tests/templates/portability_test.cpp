// One text, the same bits: digests of every mode from other instruction sets and optimisation
// levels, compared with those of this program's own build.
#include <doctest/doctest.h>

#include <cstdio>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include "command.hpp"
#include "digest.h"

namespace {

constexpr qt::u32 kCases = 512;

std::string own_digests(qt::u32 cases) {
  std::string out;
  for (int mode = 0; mode < qt::kDigestModes; ++mode) {
    qt::u64 sum = 0;
    for (qt::u32 c = 0; c < cases; ++c) sum += qt::digest_case(mode, c);
    char line[64];
    std::snprintf(line, sizeof line, "%d %016llx\n", mode, sum);
    out += line;
  }
  return out;
}

// Builds digest_main.cpp with the compiler and its flags; gives what it prints when run by
// `runner`.
command::Outcome digests_of(const std::string& compiler, const std::string& runner) {
  const command::TemporaryFolder folder;
  const auto program = (folder / "digest").string();
  const auto built = command::run(compiler +
                                  " -std=c++17 -ffp-contract=off -I" QTURN_TEMPLATES_DIR
                                  " -I" QTURN_TEMPLATES_TEST_DIR " " QTURN_TEMPLATES_TEST_DIR
                                  "/digest_main.cpp -o " +
                                  program);
  if (built.status != 0) return built;
  return command::run(runner + " " + program + " " + std::to_string(kCases));
}

void check_same(const std::string& compiler, const std::string& runner = "") {
  static const std::string own = own_digests(kCases);
  const auto other = digests_of(compiler, runner);
  INFO(compiler);
  REQUIRE(other.status == 0);
  CHECK(other.output == own);
}

bool has_x86_64_v3() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool has_x86_64_v4() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace

TEST_CASE("portability.digests see every case and every mode") {
  std::set<std::string> distinct;
  std::istringstream lines(own_digests(kCases));
  for (std::string mode, digest; lines >> mode >> digest;) distinct.insert(digest);
  // g = 0 has no signs to apply; of TS34's ties only 0.75 occurs, which rne and half_away both take
  // up.
  CHECK(int(distinct.size()) == qt::kDigestModes - 3);
  for (int mode = 0; mode < qt::kDigestModes; ++mode)
    for (qt::u32 c = 0; c < 8; ++c) CHECK(qt::digest_case(mode, c) != qt::digest_case(mode, c + 8));
  CHECK(own_digests(8) != own_digests(9));
}

TEST_CASE("portability.x86-64 unoptimised") {
  if (!command::exists("g++")) {
    std::cout << "SKIPPED: g++ is not installed\n";
    return;
  }
  check_same("g++ -O0");
}

TEST_CASE("portability.x86-64-v3 vectorised by g++") {
  if (!command::exists("g++") || !has_x86_64_v3()) {
    std::cout << "SKIPPED: needs g++ and a processor with AVX2 and FMA\n";
    return;
  }
  check_same("g++ -O2 -ftree-vectorize -march=x86-64-v3");
}

TEST_CASE("portability.x86-64-v4 vectorised by clang") {
  if (!command::exists("clang++-22") || !has_x86_64_v4()) {
    std::cout << "SKIPPED: needs clang++-22 and a processor with AVX-512\n";
    return;
  }
  check_same("clang++-22 -O2 -march=x86-64-v4");
}

TEST_CASE("portability.aarch64 under qemu") {
  if (!command::exists("aarch64-linux-gnu-g++") || !command::exists("qemu-aarch64")) {
    std::cout << "SKIPPED: needs aarch64-linux-gnu-g++ and qemu-aarch64\n";
    return;
  }
  check_same("aarch64-linux-gnu-g++ -O2 -static", "qemu-aarch64");
}
