// The CUDA back end where there is no GPU: it compiles, and says why nothing runs.
#include "runtime/cuda/backend.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "generator/cuda/families.hpp"
#include "generator/family.hpp"
#include "runtime/cuda/driver_api.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;

namespace {

Problem rotating() {
  Problem p;
  p.op = Op::hadamard;
  p.m = {0, 64};
  p.k = Extent::exactly(64);
  p.a_type = p.d_type = DType::bf16;
  p.rotation = 32;
  return p;
}

Source source_for(const Target& target) {
  const Family& family = cuda::hadamard();
  return family.emit(rotating(), target, family.default_variant(rotating(), target));
}

std::string flat(const Source& source) {
  auto text = flatten(source);
  REQUIRE_MESSAGE(text.ok(), text.status().message());
  return std::move(*text);
}

std::unique_ptr<Backend> open(const test::TemporaryFolder& folder, const std::string& target) {
  auto store = CodeStore::open(folder.file("code"));
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  cuda::BackendOptions options;
  options.target = target;
  auto backend = cuda::open_backend(std::make_shared<CodeStore>(std::move(*store)), options);
  REQUIRE_MESSAGE(backend.ok(), backend.status().message());
  return std::move(*backend);
}

bool has_nvrtc() {
  const auto identity = cuda::nvrtc_identity();
  if (!identity.ok()) MESSAGE("SKIPPED: " << identity.status().message());
  return identity.ok();
}

}  // namespace

TEST_CASE("cuda_backend.compiles for a named target without a device, once for many threads") {
  if (!has_nvrtc()) return;
  const test::TemporaryFolder folder;
  for (const auto* arch : {"sm_80", "sm_90a"}) {
    const auto backend = open(folder, arch);
    CHECK(backend->device().target.arch == arch);
    CHECK(backend->device().compiler.find("nvrtc") != std::string::npos);
    const auto source = source_for(backend->device().target);
    std::vector<Result<Binary>> found(3, Status(Code::internal, "not compiled"));
    std::vector<std::thread> threads;
    for (auto& one : found) threads.emplace_back([&] { one = backend->compile(source); });
    for (auto& thread : threads) thread.join();
    int built = 0;
    for (const auto& one : found) {
      REQUIRE_MESSAGE(one.ok(), one.status().message());
      built += !one->cached;
      CHECK(one->registers > 0);
      CHECK(one->spills == 0);
      std::ifstream in(one->path, std::ios::binary);
      char magic[4] = {};
      in.read(magic, 4);
      CHECK(std::string(magic, 4) ==
            "\x7f"
            "ELF");
    }
    CHECK(built == 1);
  }
}

TEST_CASE("cuda_backend.a source that does not compile is told with the compiler's words") {
  if (!has_nvrtc()) return;
  const test::TemporaryFolder folder;
  const auto backend = open(folder, "sm_90a");
  auto source = source_for(backend->device().target);
  source.text += "\nvoid f() { no_such_name(); }\n";
  const auto binary = backend->compile(source);
  CHECK(binary.status().code() == Code::compile_failed);
  CHECK(binary.status().message().find("no_such_name") != std::string::npos);
}

TEST_CASE("cuda_backend.a chip newer than NVRTC gets PTX, unless it asks for features of its own") {
  if (!has_nvrtc()) return;
  const auto target = parse_target("sm_999");
  REQUIRE(target.ok());
  const auto text = flat(source_for(*target));
  const auto ptx = cuda::nvrtc_compile(text, "sm_999", {});
  REQUIRE_MESSAGE(ptx.ok(), ptx.status().message());
  CHECK(ptx->code.find(".target sm_1") != std::string::npos);
  CHECK(ptx->code.back() == 0);
  const auto refused = cuda::nvrtc_compile(text, "sm_999a", {});
  CHECK(refused.status().code() == Code::compile_failed);
  CHECK(refused.status().message().find("knows architectures up to sm_") != std::string::npos);
  CHECK(refused.status().message().find("QTURN_NVRTC") != std::string::npos);
}

// A copy of NVRTC in a folder of its own, with or without its built-ins, used by its helper program
// under a loader that has no list of installed libraries.
TEST_CASE("cuda_backend.NVRTC's built-ins are found beside it, or their absence is told by name") {
  if (!has_nvrtc()) return;
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  const auto identity = cuda::nvrtc_identity();
  const fs::path library = fs::canonical(identity->path);
  const auto name = fmt::format("libnvrtc-builtins.so.{}.{}", identity->major, identity->minor);
  const auto beside = library.parent_path() / name;
  REQUIRE_MESSAGE(fs::exists(beside), beside.string());
  const auto copy = folder.file("libnvrtc.so.x");
  fs::copy_file(library, copy);
  std::ofstream(folder.file("kernel.cu")) << flat(source_for(*parse_target("sm_90a")));
  const auto compile = [&] {
    const auto command = fmt::format(
        "/lib64/ld-linux-x86-64.so.2 --inhibit-cache '{}' '{}' sm_90a '{}' '{}' 2>&1",
        QTURN_NVRTC_HELPER, copy, folder.file("kernel.cu"), folder.file("kernel.cubin"));
    std::string said;
    FILE* out = popen(command.c_str(), "r");
    REQUIRE(out);
    char part[512];
    while (fgets(part, sizeof part, out)) said += part;
    return std::pair(pclose(out) == 0, said);
  };
  const auto [without, message] = compile();
  CHECK(!without);
  CHECK_MESSAGE(message.find(name) != std::string::npos, message);
  CHECK(message.find(copy) != std::string::npos);
  fs::create_symlink(beside, folder.file(name));
  const auto [with, log] = compile();
  CHECK_MESSAGE(with, log);
}

TEST_CASE("cuda_backend.without a driver everything but compiling says that there is none") {
  if (cuda::driver_api().ok()) {
    MESSAGE("SKIPPED: there is a driver here");
    return;
  }
  const test::TemporaryFolder folder;
  const auto backend = open(folder, "sm_90a");
  char byte = 0;
  CHECK(backend->allocate(1).status().code() == Code::no_driver);
  CHECK(backend->upload(&byte, &byte, 1).code() == Code::no_driver);
  CHECK(backend->download(&byte, &byte, 1).code() == Code::no_driver);
  CHECK(backend->fill(&byte, 0, 1).code() == Code::no_driver);
  CHECK(backend->copy(&byte, &byte, 1).code() == Code::no_driver);
  CHECK(backend->synchronize().code() == Code::no_driver);
  CHECK(backend->load({}, {}).status().code() == Code::no_driver);
  CHECK(cuda::open_backend(nullptr, {}).status().code() == Code::no_driver);
  cuda::BackendOptions options;
  options.target = "x86-64-v4";
  CHECK(cuda::open_backend(nullptr, options).status().code() == Code::invalid_argument);
}

TEST_CASE("cuda_backend.ptxas figures and warnings are read out of its log") {
  cuda::Cubin cubin;
  cubin.log =
      "ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
      "ptxas info    : Function properties for f\n"
      "    0 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]\n";
  cuda::parse_ptxas_log(cubin);
  CHECK(cubin.registers == 168);
  CHECK(cubin.spill_bytes == 64);
  CHECK(cubin.shared_bytes == 1024);
  CHECK(!cubin.serialised_wgmma);
  cubin.log +=
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources\n";
  cuda::parse_ptxas_log(cubin);
  CHECK(cubin.serialised_wgmma);
}
