#include "runtime/cpu/features.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;
using namespace quarterturn::cpu;

namespace {

constexpr std::uint32_t bits(std::initializer_list<int> set) {
  std::uint32_t word = 0;
  for (const int index : set) word |= 1u << index;
  return word;
}

// A machine with everything: AVX-512 with VNNI, VBMI and bf16, and AVX-VNNI.
X86Words full_machine() {
  X86Words w;
  w.leaf1[2] = bits({0, 9, 12, 13, 19, 20, 22, 23, 27, 28, 29});
  w.leaf7[1] = bits({3, 5, 8, 16, 17, 28, 30, 31});
  w.leaf7[2] = bits({1, 11});
  w.leaf7_1[0] = bits({4, 5});
  w.leaf80000001[2] = bits({5});
  w.xcr0 = 0xe7;
  return w;
}

}  // namespace

TEST_CASE("x86_target.full") {
  CHECK(x86_target(full_machine()).key() ==
        "x86-64-v4:avx512_bf16,avx512_vbmi,avx512_vnni,avx_vnni");
  CHECK(x86_target(X86Words{}).key() == "x86-64");
}

TEST_CASE("x86_target.what the operating system does not save does not count") {
  auto w = full_machine();
  w.xcr0 = 0x7;  // no AVX-512 state: a hypervisor or an old kernel
  CHECK(x86_target(w).key() == "x86-64-v3:avx_vnni");
  w.xcr0 = 0x3;  // not even AVX state
  CHECK(x86_target(w).key() == "x86-64");
}

TEST_CASE("x86_target.each instruction of a level is needed") {
  for (const int index : {16, 17, 28, 30, 31}) {
    auto w = full_machine();
    w.leaf7[1] &= ~(1u << index);
    CHECK(x86_target(w).arch == "x86-64-v3");
  }
  for (const int index : {3, 5, 8}) {
    auto w = full_machine();
    w.leaf7[1] &= ~(1u << index);
    CHECK(x86_target(w).key() == "x86-64");
  }
  for (const int index : {0, 9, 12, 13, 19, 20, 22, 23, 28, 29}) {
    auto w = full_machine();
    w.leaf1[2] &= ~(1u << index);
    CHECK(x86_target(w).key() == "x86-64");
  }
  auto w = full_machine();
  w.leaf80000001[2] = 0;
  CHECK(x86_target(w).key() == "x86-64");
}

TEST_CASE("aarch64_target.features") {
  CHECK(aarch64_target(0, 0).key() == "aarch64");
  CHECK(aarch64_target(1ull << 20, 1ull << 13).key() == "aarch64:dotprod,i8mm");
}

TEST_CASE("check_runs_on.names what is missing") {
  const auto target = [](const char* key) { return *parse_target(key); };
  CHECK(check_runs_on(target("x86-64-v3"), target("x86-64-v4:avx512_vnni")).ok());
  CHECK(check_runs_on(target("x86-64"), target("x86-64")).ok());
  const auto old = check_runs_on(target("x86-64-v4:avx512_vnni"), target("x86-64-v3"));
  CHECK(old.code() == Code::not_supported);
  CHECK(old.message().find("x86-64-v4, avx512_vnni") != std::string::npos);
  CHECK_FALSE(check_runs_on(target("aarch64"), target("x86-64-v4")).ok());
}

TEST_CASE("cores_of_quota.rounds down, at least one, none without a limit") {
  CHECK(cores_of_quota("max 100000\n") == 0);
  CHECK(cores_of_quota("") == 0);
  CHECK(cores_of_quota("150000 100000\n") == 1);
  CHECK(cores_of_quota("400000 100000\n") == 4);
  CHECK(cores_of_quota("50000 100000\n") == 1);
  CHECK(cores_of_quota("rubbish here") == 0);
}

TEST_CASE("detect_cpu.this machine") {
  const auto cpu = detect_cpu();
  CHECK(cpu.cores >= 1);
  CHECK(cpu.memory_bytes > 0);
  CHECK(parse_target(cpu.target.key()).ok());
  CHECK(*parse_target(cpu.target.key()) == cpu.target);
  CHECK(cpu.target.key().find("native") == std::string::npos);
  CHECK(cpu.performance_class(2).find("units=2") != std::string::npos);
  MESSAGE(cpu.target.key() << " | " << cpu.performance_class(cpu.cores));
}
