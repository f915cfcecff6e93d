// The HIP back end over a libamdhip64 that writes down what it is asked, and where there is none.
#include "runtime/hip/backend.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "generator/hip/families.hpp"
#include "runtime/open_backend.hpp"
#include "tests/hip/problems.hpp"
#include "tests/hip/runtime_double.hpp"
#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;
using namespace qturn_test;

namespace {

HipDouble& double_of_runtime() {
  static auto* get = reinterpret_cast<HipDouble* (*)()>(
      ::dlsym(::dlopen(QTURN_HIP_DOUBLE, RTLD_NOW), "qturn_double"));
  REQUIRE(bool(get));
  return *get();
}

std::shared_ptr<CodeStore> store_in(const test::TemporaryFolder& folder) {
  auto store = CodeStore::open(folder.file("code"));
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  return std::make_shared<CodeStore>(std::move(*store));
}

std::unique_ptr<Backend> open(std::shared_ptr<CodeStore> store, std::int32_t ordinal = 0,
                              hip::Jit jit = hip::Jit::on) {
  hip::BackendOptions options;
  options.runtime = QTURN_HIP_DOUBLE;
  options.ordinal = ordinal;
  options.jit = jit;
  auto backend = hip::open_backend(std::move(store), options);
  REQUIRE_MESSAGE(backend.ok(), backend.status().message());
  return std::move(*backend);
}

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
  const Family& family = *find_family("hip_hadamard");
  return family.emit(rotating(), target, family.default_variant(rotating(), target));
}

bool no_compiler() {
  const auto compiler = hip::Compiler::find({}, "gfx950", Worker(), WorkerLimits());
  if (!compiler.ok()) std::cout << "SKIPPED: " << compiler.status().message() << "\n";
  return !compiler.ok();
}

// What `work` returns in a process of its own: the runtime is opened once a process.
template <class Work>
int in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("hip_backend.a machine without ROCm, or without a GPU, is told what to do") {
  CHECK(in_child([] {
          const auto count = hip::device_count("/nowhere/libamdhip64.so");
          return count.status().code() == Code::no_driver &&
                         count.status().message().find("QTURN_HIP_RUNTIME") != std::string::npos
                     ? 7
                     : 0;
        }) == 7);
  CHECK(in_child([] {
          ::setenv("QTURN_DOUBLE_DEVICES", "0", 1);
          const auto count = hip::device_count(QTURN_HIP_DOUBLE);
          const auto& text = count.status().message();
          return count.status().code() == Code::no_device &&
                         text.find("hipErrorNoDevice") != std::string::npos &&
                         text.find("/dev/kfd") != std::string::npos
                     ? 7
                     : 0;
        }) == 7);
  // With a target it compiles all the same, and says why nothing runs.
  CHECK(in_child([] {
          SettingSources sources;
          sources.options[Setting::backend] = "hip";
          sources.options[Setting::target] = "gfx950";
          sources.options[Setting::hip_runtime] = "/nowhere/libamdhip64.so";
          const auto backend = open_backend(Settings::load(sources), nullptr);
          return backend.ok() && (*backend)->device().target.key() == "gfx950" &&
                         (*backend)->allocate(1).status().code() == Code::no_driver
                     ? 7
                     : 0;
        }) == 7);
}

TEST_CASE("hip_backend.a device is described by its silicon") {
  const auto backend = open(nullptr, 1);
  const auto& device = backend->device();
  CHECK(device.name == "AMD Instinct MI355X");
  CHECK(device.ordinal == 1);
  CHECK(device.target.key() == "gfx950");
  CHECK(device.target.shared_bytes == 160 * 1024);
  CHECK(device.units == 256);
  CHECK(device.performance_class == "amd model=gfx950 units=256 l2=4194304 memory_gib=288");
  CHECK(device.driver == "hip 7.1.25410");
  CHECK(hip::device_count(QTURN_HIP_DOUBLE).value() == 2);

  hip::BackendOptions options;
  options.runtime = QTURN_HIP_DOUBLE;
  options.ordinal = 2;
  const auto missing = hip::open_backend(nullptr, options);
  CHECK(missing.status().code() == Code::no_device);
  CHECK(missing.status().message().find("HIP_VISIBLE_DEVICES") != std::string::npos);
  options.target = "sm_90a";
  CHECK(hip::open_backend(nullptr, options).status().code() == Code::invalid_argument);
}

TEST_CASE("hip_backend.a GPU without MXFP4 matrix cores is not taken, or refuses with the remedy") {
  auto& runtime = double_of_runtime();
  runtime.arch = "gfx942:sramecc+:xnack-";
  SettingSources sources;
  sources.options[Setting::hip_runtime] = QTURN_HIP_DOUBLE;
  sources.options[Setting::disable] = "cuda";
  const auto fallen_back = open_backend(Settings::load(sources), nullptr);
  sources.options[Setting::disable] = "cuda:cpu";
  const auto none = open_backend(Settings::load(sources), nullptr);
  sources.options[Setting::disable] = "";
  sources.options[Setting::backend] = "hip";
  const auto asked_for = open_backend(Settings::load(sources), nullptr);
  runtime.arch = "gfx950:sramecc+:xnack-";
  REQUIRE_MESSAGE(fallen_back.ok(), fallen_back.status().message());
  CHECK((*fallen_back)->device().target.vendor == Vendor::cpu);
  CHECK(none.status().code() == Code::no_device);
  CHECK_MESSAGE(
      none.status().message().find("gfx942 has no MXFP4 matrix cores") != std::string::npos,
      none.status().message());
  REQUIRE_MESSAGE(asked_for.ok(), asked_for.status().message());
  CHECK((*asked_for)->device().target.arch == "gfx942");
  const auto plan = default_plan(rotating(), (*asked_for)->device().target);
  CHECK(plan.status().code() == Code::not_supported);
  const auto& text = plan.status().message();
  CHECK(text.find("QTURN_BACKEND=cpu") != std::string::npos);
  CHECK(text.find("QTURN_BACKEND=cpu") == text.rfind("QTURN_BACKEND=cpu"));  // said once
}

TEST_CASE("hip_backend.code is compiled once, loaded, launched on its device, and unloaded") {
  if (no_compiler()) return;
  auto& runtime = double_of_runtime();
  const test::TemporaryFolder folder;
  const auto store = store_in(folder);
  {
    const auto backend = open(store, 1);
    const auto source = source_for(backend->device().target);
    CHECK(!backend->has_code(source));
    const auto binary = backend->compile(source);
    REQUIRE_MESSAGE(binary.ok(), binary.status().message());
    CHECK(binary->registers > 0);
    CHECK(binary->spills == 0);
    CHECK(!binary->cached);
    CHECK(backend->compile(source)->cached);
    CHECK(backend->has_code(source));
    const auto kernel = backend->load(*binary, source);
    REQUIRE_MESSAGE(kernel.ok(), kernel.status().message());
    CHECK(runtime.live_modules == 1);

    const Family& family = *find_family("hip_hadamard");
    qt_args args{};
    args.m = 64;
    args.k = 64;
    args.batch = 1;
    const auto variant = family.default_variant(rotating(), backend->device().target);
    auto launch = family.launch(rotating(), variant, args, backend->device().units);
    int stream = 0;
    CHECK(backend->enter());
    CHECK(backend->launch(**kernel, launch, args, &stream).code() == Code::ok);
    runtime.fail_next_launch = 719;
    CHECK(backend->launch(**kernel, launch, args, nullptr).code() == Code::launch_failed);
    launch.grid[0] = 1u << 24;
    CHECK(backend->launch(**kernel, launch, args, nullptr).message().find("2^32") !=
          std::string::npos);
    launch.grid[0] = 0;
    CHECK(backend->launch(**kernel, launch, args, nullptr).ok());
    backend->leave();
    REQUIRE(runtime.launches.size() == 1);
    const auto& seen = runtime.launches[0];
    CHECK(seen.entry == source.entry);
    CHECK(seen.device == 1);
    CHECK(seen.stream == &stream);
    CHECK(seen.block[0] == 256);
    CHECK(seen.args.m == 64);
    CHECK(!open(nullptr, 0)->enter());  // the thread has its own device again

    Source other = source;
    other.entry = "no_such_entry";
    CHECK(backend->load(*binary, other).status().code() == Code::rejected);
    Binary damaged = *binary;
    damaged.path = folder.file("damaged");
    std::ofstream(damaged.path) << "no code object";
    CHECK(backend->load(damaged, source).status().code() == Code::rejected);
    runtime.captures_of_null_stream = 1;
    CHECK(backend->compile(source).status().code() == Code::capturing);
    CHECK(backend->load(*binary, source).status().code() == Code::capturing);
    runtime.captures_of_null_stream = 0;
  }
  CHECK(runtime.live_modules == 0);
  // A host without a compiler finds what another one made.
  const auto frozen = open(store, 0, hip::Jit::off);
  CHECK(frozen->compile(source_for(frozen->device().target)).ok());
  auto unknown = source_for(frozen->device().target);
  unknown.text += "// another\nint other;\n";
  CHECK(frozen->compile(unknown).status().code() == Code::no_compiler);
}

TEST_CASE("hip_backend.a kernel that cannot be compiled says so with the compiler's words") {
  if (no_compiler()) return;
  const test::TemporaryFolder folder;
  const auto backend = open(store_in(folder));
  auto source = source_for(backend->device().target);
  source.text += "this is no C++\n";
  const auto binary = backend->compile(source);
  CHECK(binary.status().code() == Code::compile_failed);
  CHECK(binary.status().message().find("error") != std::string::npos);
  hip::BackendOptions options;
  options.runtime = QTURN_HIP_DOUBLE;
  options.compiler.clang = "/nowhere/clang";
  const auto without = hip::open_backend(store_in(folder), options);
  REQUIRE(without.ok());
  const auto none = (*without)->compile(source).status();
  CHECK(none.code() == Code::no_compiler);
  CHECK(none.message().find("QTURN_HIP_CLANG") != std::string::npos);
}

TEST_CASE("hip_backend.memory, time and recorded calls") {
  auto& runtime = double_of_runtime();
  {
    const auto backend = open(nullptr);
    const auto memory = backend->allocate(64);
    REQUIRE(memory.ok());
    const std::string text = "sixteen bytes...";
    CHECK(backend->upload(*memory, text.data(), 16).ok());
    CHECK(backend->copy(static_cast<char*>(*memory) + 16, *memory, 16).ok());
    CHECK(backend->fill(*memory, 'x', 4).ok());
    std::string back(32, ' ');
    CHECK(backend->download(back.data(), *memory, 32).ok());
    CHECK(back == "xxxxeen bytes...sixteen bytes...");
    backend->release(*memory);
    const auto watch = backend->stopwatch();
    watch->start(nullptr);
    const double seconds = watch->stop(nullptr);
    CHECK(seconds >= 0);
    CHECK(seconds < 10);
    int calls = 0;
    const auto recording = backend->record([&](void* stream) {
      CHECK(stream != nullptr);
      ++calls;
      return Status();
    });
    REQUIRE(recording.ok());
    CHECK((*recording)->start(nullptr).ok());
    CHECK(calls == 1);
    const auto failed = backend->record([](void*) { return Status(Code::internal, "no"); });
    CHECK(failed.status().code() == Code::internal);
  }
  CHECK(runtime.live_allocations == 0);
  CHECK(runtime.live_streams == 0);
  CHECK(runtime.live_graphs == 0);
  CHECK(runtime.live_events == 0);
}
