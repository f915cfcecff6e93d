// The portable kernels on other machines: 64-bit Arm by cross compiler and emulator, and this
// machine's plain instruction set.
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "tests/templates/command.hpp"

namespace {

command::Outcome build_and_run(const std::string& compiler, const std::string& runner) {
  const command::TemporaryFolder folder;
  const auto program = (folder / "portable").string();
  const std::string root = QTURN_SOURCE_DIR;
  std::string sources = root + "/tests/portable/portable_main.cpp";
  for (const auto* file : {"formats", "gemm", "noise", "quantize"})
    sources += " " + root + "/reference/" + file + ".cpp";
  auto built =
      command::run(compiler + " -std=c++20 -O2 -ffp-contract=off -fno-math-errno -static -I" +
                   root + " -I" + root + "/templates " + sources + " -o " + program);
  return built.status != 0 ? built : command::run(runner + " " + program);
}

}  // namespace

TEST_CASE("portable.kernels run on this machine without any instruction set extension") {
  const auto outcome = build_and_run(QTURN_CXX, "");
  CHECK_MESSAGE(outcome.status == 0, outcome.output);
}

TEST_CASE("portable.kernels run on 64-bit Arm under qemu-user") {
  for (const auto* program : {"aarch64-linux-gnu-g++", "qemu-aarch64"})
    if (!command::exists(program)) {
      std::printf(
          "SKIPPED: %s is not installed (apt-get install g++-aarch64-linux-gnu qemu-user)\n",
          program);
      return;
    }
  const auto outcome = build_and_run("aarch64-linux-gnu-g++", "qemu-aarch64");
  CHECK_MESSAGE(outcome.status == 0, outcome.output);
}
