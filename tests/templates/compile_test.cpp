// The same text through every compiler that will read it: NVRTC for NVIDIA, clang for gfx950, and
// the host compilers, with nothing included from outside templates/.
#include <doctest/doctest.h>

#include <iostream>
#include <string>

#include "command.hpp"
#include "flatten.hpp"
#include "nvrtc.hpp"

namespace {

// A kernel that needs every rule, every rounding and a rotation.
std::string kernel(const std::string& qualifier, const std::string& index) {
  return flatten("#include \"digest.h\"\nusing namespace qt;\nextern \"C\" " + qualifier +
                 " void digest(u64* out) {\n"
                 "  const u32 c = " +
                 index +
                 ";\n"
                 "  out[c] = digest_mode<0>(c) + digest_mode<7>(c) + digest_mode<14>(c) +\n"
                 "           digest_mode<21>(c) + digest_mode<28>(c) + digest_mode<35>(c) +\n"
                 "           digest_mode<36>(c) + digest_mode<43>(c) +\n"
                 "           digest_rotation<64, Signs::per_call>(c);\n"
                 "  out[c] += f16_from_f32(f32_from_f16(u16(c))) + bf16_from_f32(c);\n"
                 "}\n");
}

// A kernel that includes the text and needs nothing of it, which must not draw warnings.
std::string idle_kernel(const std::string& qualifier) {
  return flatten("#include \"mxfp4/block.h\"\nextern \"C\" " + qualifier +
                 " void idle(int* out) { *out = 1; }\n");
}

// One thread quantises one segment of g elements.
std::string segment_kernel(int g, const std::string& rule) {
  const auto n = std::to_string(g < 32 ? 32 : g);
  return flatten(
      "#include \"mxfp4/block.h\"\nusing namespace qt;\n"
      "extern \"C\" __global__ void quantize(const float* in, u32* codes, u8* scales, u64 seed) {\n"
      "  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;\n"
      "  float x[" +
      n + "];\n  u8 bytes[" + n + " / 32];\n  u32 packed[" + n +
      " / 8];\n"
      "  for (int j = 0; j < " +
      n + "; ++j) x[j] = in[at * " + n +
      "u + j];\n"
      "  quantize_segment<" +
      std::to_string(g) + ", Signs::per_call, ScaleRule::" + rule +
      ", Rounding::sr16>(\n"
      "      x, sign_mask_from_seed(seed), Noise{seed, 1u, 2u}, at * " +
      n +
      "ull, bytes, packed);\n"
      "  for (int b = 0; b < " +
      n + " / 32; ++b) scales[at * (" + n +
      "u / 32u) + b] = bytes[b];\n"
      "  for (int w = 0; w < " +
      n + " / 8; ++w) codes[at * (" + n +
      "u / 8u) + w] = packed[w];\n"
      "}\n");
}

void check_is_elf(const std::string& binary) {
  CHECK(binary.size() > 1000);
  CHECK(binary.substr(0, 4) == "\177ELF");
}

void check_nvrtc(const std::string& arch) {
  static const nvrtc::Library library;
  if (!library) {
    std::cout << "SKIPPED: libnvrtc.so.13 or .12 is not installed\n";
    return;
  }
  const std::vector<std::string> options = {"--gpu-architecture=" + arch, "--std=c++17",
                                            "--fmad=false", "--ftz=false"};
  const auto idle = library.compile(idle_kernel("__global__"), options);
  CHECK(idle.status == 0);
  CHECK(idle.log == "");
  const auto compiled =
      library.compile(kernel("__global__", "blockIdx.x * blockDim.x + threadIdx.x"), options);
  INFO(compiled.log);
  REQUIRE(compiled.status == 0);
  CHECK(compiled.log == "");
  check_is_elf(compiled.cubin);
  CHECK(compiled.cubin.find("digest") != std::string::npos);
}

}  // namespace

TEST_CASE("compile.flattened text includes nothing") {
  const auto text = kernel("", "0");
  CHECK(text.find("#include") == std::string::npos);
  CHECK(text.find("e2m1_encode") != std::string::npos);
  CHECK(text.size() > 20000);
}

TEST_CASE("compile.nvrtc for sm_80") { check_nvrtc("sm_80"); }
TEST_CASE("compile.nvrtc for sm_90a") { check_nvrtc("sm_90a"); }
TEST_CASE("compile.nvrtc for sm_100a") { check_nvrtc("sm_100a"); }
TEST_CASE("compile.nvrtc for sm_120a") { check_nvrtc("sm_120a"); }

TEST_CASE("compile.nvrtc keeps a thread's segment in registers") {
  const nvrtc::Library library;
  if (!library) {
    std::cout << "SKIPPED: libnvrtc.so.13 or .12 is not installed\n";
    return;
  }
  for (const int g : {0, 16, 32, 64})
    for (const std::string rule : {"rceil", "quest", "search"}) {
      const auto compiled = library.compile(
          segment_kernel(g, rule), {"--gpu-architecture=sm_90a", "--std=c++17", "--fmad=false",
                                    "--ptxas-options=--warn-on-local-memory-usage"});
      INFO("g = ", g, " rule ", rule);
      CHECK(compiled.status == 0);
      CHECK(compiled.log == "");
    }
}

TEST_CASE("compile.clang for gfx950") {
  if (!command::exists("clang-22")) {
    std::cout << "SKIPPED: clang-22 is not installed\n";
    return;
  }
  const command::TemporaryFolder folder;
  const auto source = folder / "kernel.hip", object = folder / "kernel.o";
  std::ofstream(source) << kernel("__attribute__((global))",
                                  "__builtin_amdgcn_workgroup_id_x() * 64 + "
                                  "__builtin_amdgcn_workitem_id_x()");
  const auto compiled = command::run(
      "clang-22 -x hip --offload-arch=gfx950 --cuda-device-only --no-gpu-bundle-output -nogpulib "
      "-nogpuinc -O3 -std=c++17 -Wall -Wextra -c " +
      source.string() + " -o " + object.string());
  INFO(compiled.output);
  REQUIRE(compiled.status == 0);
  CHECK(compiled.output.empty());
  check_is_elf(command::read_file(object));
}

TEST_CASE("compile.host compilers, C++17 and C++20, without a warning") {
  const command::TemporaryFolder folder;
  const auto source = folder / "kernel.cpp", object = folder / "kernel.o";
  std::ofstream(source) << kernel("", "unsigned(out[0])");
  const auto idle = folder / "idle.cpp";
  std::ofstream(idle) << idle_kernel("");
  int tried = 0;
  for (const std::string compiler : {"g++", "clang++", "clang++-22"}) {
    if (!command::exists(compiler)) continue;
    for (const std::string standard : {"c++17", "c++20"}) {
      const auto compiled =
          command::run(compiler + " -std=" + standard +
                       " -ffp-contract=off -O1 -Wall -Wextra -Wshadow -Werror -c " +
                       source.string() + " -o " + object.string());
      INFO(compiler, " ", standard, ": ", compiled.output);
      CHECK(compiled.status == 0);
      ++tried;
    }
  }
  if (tried == 0) std::cout << "SKIPPED: neither g++ nor clang++ is installed\n";
}

TEST_CASE("compile.-ffast-math is refused") {
  if (!command::exists("g++")) {
    std::cout << "SKIPPED: g++ is not installed\n";
    return;
  }
  const command::TemporaryFolder folder;
  const auto source = folder / "kernel.cpp";
  std::ofstream(source) << kernel("", "0");
  const auto compiled = command::run("g++ -std=c++17 -ffast-math -fsyntax-only " + source.string());
  CHECK(compiled.status != 0);
  CHECK(compiled.output.find("without -ffast-math") != std::string::npos);
}
