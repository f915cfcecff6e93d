// The simulated machine itself: small kernels that are right, and wrong in each way that it must
// notice, with the words it says.
#include <doctest/doctest.h>

#include "tests/cuda/device.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

Device& device() {
  setenv("QTURN_TEST_SIMULATED_CUDA", QTURN_SIMULATED_CUDA, 1);
  std::string why;
  Device* found = Device::find(why);
  if (!found) throw std::runtime_error(why);
  return *found;
}

// One translation unit for all: kernels that read and write words at args.a.data and args.d.data.
constexpr const char* kKernels = R"(
#include "cuda/primitives_wgmma.h"
#include "args.h"
using namespace qt;
using namespace qt::cuda;
QT_FN u32* out(const qt_args& args) { return static_cast<u32*>(args.d.data); }
QT_FN const u32* in(const qt_args& args) { return static_cast<const u32*>(args.a.data); }

// Each thread's word goes to its neighbour through shared memory.
template <bool synchronised>
QT_FN void neighbours(const qt_args& args) {
  const u32 t = thread_index(), at = shared_base() + 4u * t;
  store_shared_u32(at, in(args)[block_index() * 128u + t]);
  if (synchronised) sync_block();
  out(args)[block_index() * 128u + t] = load_shared_u32(shared_base() + 4u * ((t + 37u) % 128u));
}
extern "C" __global__ void right(const __grid_constant__ qt_args args) { neighbours<true>(args); }
extern "C" __global__ void no_barrier(const __grid_constant__ qt_args args) { neighbours<false>(args); }

template <int pending, bool waits>
QT_FN void through_copy(const qt_args& args) {
  const u32 t = thread_index(), at = shared_base() + 16u * t;
  copy_async_16(at, in(args) + 4u * t, 16u);
  copy_async_commit();
  if (waits) copy_async_wait<pending>();
  out(args)[t] = load_shared_u32(at);
}
extern "C" __global__ void copies(const __grid_constant__ qt_args args) { through_copy<0, true>(args); }
extern "C" __global__ void copies_lax(const __grid_constant__ qt_args args) { through_copy<1, true>(args); }
extern "C" __global__ void copies_unwaited(const __grid_constant__ qt_args args) { through_copy<0, false>(args); }

extern "C" __global__ void reuses_early(const __grid_constant__ qt_args args) {
  const u32 t = thread_index(), at = shared_base() + 16u * t;
  copy_async_16(at, in(args) + 4u * t, 16u);
  copy_async_commit();
  copy_async_wait<0>();
  // The next copy may land before the word is read.
  copy_async_16(at, in(args) + 4u * (127u - t), 16u);
  copy_async_commit();
  out(args)[t] = load_shared_u32(at);
  copy_async_wait<0>();
}

extern "C" __global__ void divergent(const __grid_constant__ qt_args args) {
  if (lane_index() < 7u) sync_warp();
  else out(args)[thread_index()] = shuffle_xor(1u, 1u);
}
extern "C" __global__ void leaves_early(const __grid_constant__ qt_args args) {
  if (lane_index() == 3u) return;
  sync_warp();
}
extern "C" __global__ void stuck(const __grid_constant__ qt_args args) {
  if (warp_index() == 2u) return;
  sync_block();
}
extern "C" __global__ void waits_for_ever(const __grid_constant__ qt_args args) {
  const u32 barrier = shared_base();
  if (thread_index() == 0) barrier_init(barrier, 2u);
  sync_block();
  if (thread_index() == 0) barrier_arrive(barrier);
  barrier_wait(barrier, 0u);
}
extern "C" __global__ void too_many(const __grid_constant__ qt_args args) {
  const u32 barrier = shared_base();
  if (thread_index() != 0) return;
  barrier_init(barrier, 1u);
  barrier_arrive_expect(barrier, 64u);
  barrier_arrive(barrier);
}
extern "C" __global__ void overwrites_barrier(const __grid_constant__ qt_args args) {
  const u32 barrier = shared_base();
  if (thread_index() == 0) barrier_init(barrier, 128u);
  sync_block();
  store_shared_u32(shared_base() + 4u, 5u);
  barrier_arrive(barrier);
}
extern "C" __global__ void outside(const __grid_constant__ qt_args args) { store_shared_u32(shared_base() + 4u * thread_index() + 2036u, 1u); }
extern "C" __global__ void askew(const __grid_constant__ qt_args args) { out(args)[thread_index()] = load_shared_2(shared_base() + 4u).word[0]; }
extern "C" __global__ void behind(const __grid_constant__ qt_args args) { out(args)[thread_index()] = in(args)[thread_index() + 1u]; }
extern "C" __global__ void poison(const __grid_constant__ qt_args args) { out(args)[thread_index()] = load_shared_u32(shared_base() + 4u * thread_index()); }

// Block 0 waits for what the last block writes, which comes only when others have ended.
template <bool resets>
QT_FN void wait_for_last(const qt_args& args) {
  u64* flag = static_cast<u64*>(args.workspace);
  if (thread_index() == 0 && block_index() + 1u == block_count()) release_flag(flag, 7u);
  if (thread_index() == 0 && block_index() == 0u) {
    while (acquire_flag(flag) != 7u) {
    }
    if (resets) release_flag(flag, 0u);
  }
  out(args)[block_index() * 128u + thread_index()] = block_index();
}
extern "C" __global__ void flags(const __grid_constant__ qt_args args) { wait_for_last<true>(args); }
extern "C" __global__ void flags_left(const __grid_constant__ qt_args args) {
  wait_for_last<false>(args);
}
)";

struct Result {
  std::string error;
  std::vector<std::uint32_t> words;
};

Result call(const char* name, std::uint64_t seed, Landing landing, std::uint32_t blocks = 1,
            std::uint32_t resident = 3) {
  Device& d = device();
  Source source;
  source.language = Language::cuda;
  source.entry = name;
  source.text = kKernels;
  auto flat = flatten(source);
  require(flat.status());
  static const auto cubin = cuda::nvrtc_compile(*flat, "sm_90a", {});
  require(cubin.status());
  auto kernel = cuda::LoadedKernel::load(d.api(), 0, cubin->code, source);
  require(kernel.status());
  std::vector<std::uint32_t> words(512);
  for (std::uint32_t i = 0; i < 512; ++i) words[i] = 1000 + i;
  words.resize(name == std::string("behind") ? 128 : 512);
  Memory in(d, words), out(d, 512 * 4), flag(d, std::vector<std::uint64_t>{0});
  qt_args args{};
  args.a.data = in.data();
  args.d.data = out.data();
  args.workspace = flag.data();
  Launch launch;
  launch.grid = {blocks, 1, 1};
  launch.block = {128, 1, 1};
  launch.shared_bytes = 2048;
  d.schedule(seed, landing, resident);
  const auto status =
      static_cast<const cuda::LoadedKernel&>(**kernel).launch(launch, args, d.stream());
  Result result;
  if (!status.ok()) result.error = status.message();
  result.words = out.download<std::uint32_t>();
  return result;
}

constexpr Landing kLandings[] = {Landing::late, Landing::eager, Landing::mixed};

bool says(const Result& result, const char* what) {
  return result.error.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("simulated.machine runs what is right under every schedule") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    for (const auto landing : kLandings) {
      const auto all = call("right", seed, landing, 4);
      CHECK(all.error == "");
      for (std::uint32_t i = 0; i < 512; ++i)
        REQUIRE(all.words[i] == 1000 + i / 128 * 128 + (i + 37) % 128);
      const auto copied = call("copies", seed, landing);
      CHECK(copied.error == "");
      for (std::uint32_t i = 0; i < 128; ++i) REQUIRE(copied.words[i] == 1000 + 4 * i);
      CHECK(call("flags", seed, landing, 3).error == "");
    }
}

TEST_CASE("simulated.machine shows what a missing barrier or wait does") {
  const auto differs = [](const char* name, Landing landing) {
    int wrong = 0;
    const auto want =
        call(std::string_view(name).starts_with("no") ? "right" : "copies", 1, landing);
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      wrong += call(name, seed, landing).words != want.words;
    return wrong;
  };
  for (const auto landing : kLandings) CHECK(differs("no_barrier", landing) == 3);
  CHECK(differs("copies_lax", Landing::late) == 3);
  CHECK(differs("copies_unwaited", Landing::late) == 3);
  CHECK(differs("copies_unwaited", Landing::eager) == 0);
  CHECK(differs("reuses_early", Landing::eager) == 3);
  CHECK(differs("reuses_early", Landing::late) == 0);
  for (const auto word : call("poison", 1, Landing::late).words) REQUIRE(word == 0xffffffffu);
}

TEST_CASE("simulated.machine ends what must not be with a message") {
  CHECK(says(call("divergent", 1, Landing::late), "divergent: this lane is at"));
  CHECK(says(call("leaves_early", 1, Landing::late), "bar.warp.sync"));
  const auto stuck = call("stuck", 1, Landing::late);
  CHECK(says(stuck, "deadlock"));
  CHECK(says(stuck, "warp 3: lanes at barrier 0: 0, 1, 2, 3, ..."));
  CHECK(says(call("waits_for_ever", 2, Landing::mixed), "at mbarrier 1024"));
  CHECK(says(call("too_many", 1, Landing::late), "more than 1 arrivals"));
  CHECK(says(call("overwrites_barrier", 1, Landing::late), "was overwritten"));
  CHECK(says(call("outside", 1, Landing::late), "the block has 2048 from 1024 on"));
  CHECK(says(call("askew", 1, Landing::late), "no multiple of 8"));
  CHECK(says(call("behind", 1, Landing::late), "memory fault"));
  CHECK(says(call("flags", 1, Landing::late, 3, 1), "ld.acquire of a flag"));
  CHECK(says(call("flags", 1, Landing::late, 3, 1), "deadlock"));
  CHECK(says(call("flags_left", 1, Landing::late, 3), "leaves 1 flags set"));
  // And the next launch is as good as before.
  CHECK(call("right", 4, Landing::late, 4).error == "");
}
