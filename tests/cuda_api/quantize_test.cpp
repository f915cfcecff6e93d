// Quantising on a GPU: what noise a captured call draws, and operands that are parts of others.
#include "tests/cuda_api/support.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_api;

namespace {

struct Copy {
  std::vector<std::uint8_t> codes, scales;
  bool operator==(const Copy& other) const {
    return codes == other.codes && scales == other.scales;
  }
};

// A call of a quantising plan on rows of `ld` elements, into scale rows of `scale_ld`.
struct Quantizing {
  const Plan& plan;
  Stream stream;
  Buffer codes, scales;
  qturn_args args;

  Quantizing(Gpu& gpu, const Plan& of, const void* x, int64_t m, int64_t k, int64_t ld = 0,
             int64_t scale_ld = 0)
      : plan(of),
        stream(gpu),
        codes(gpu, static_cast<std::size_t>(m * k / 2)),
        scales(gpu, static_cast<std::size_t>(m * std::max(k / 32, scale_ld))) {
    qturn_args_init(&args);
    args.m = m;
    args.a.type = QTURN_BF16;
    args.a.data = const_cast<void*>(x);
    args.a.ld = ld;
    REQUIRE(qturn_plan_operand(plan.get(), QTURN_OPERAND_D, &args.d) == QTURN_OK);
    args.d.data = codes.data();
    args.d.scales = scales.data();
    args.d.scale_ld = scale_ld;
    args.stream = stream.get();
  }
  void run() const {
    const auto status = qturn_run(plan.get(), &args);
    REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
  }
  Copy read() const {
    stream.wait();
    return {codes.read<std::uint8_t>(), scales.read<std::uint8_t>()};
  }
};

}  // namespace

TEST_CASE("cuda_api.a captured quantiser draws the noise that its words say at each replay") {
  QTURN_NEEDS_GPU(gpu);
  const auto& api = gpu.api();
  const Library library;
  constexpr int64_t m = 64, k = 256;
  const Bf16 x(m * k, 11);
  const Buffer memory(gpu, x.bits);
  const auto plan = library.prepare(quantizing(m, k, 32, QTURN_SR16));
  const auto by_value = [&](std::uint64_t seed, std::uint32_t stream) {
    Quantizing call(gpu, plan, memory.data(), m, k);
    call.args.noise_seed = seed;
    call.args.noise_stream = stream;
    call.run();
    return call.read();
  };
  Buffer seed(gpu, std::vector<std::uint64_t>{5}), step(gpu, std::vector<std::uint32_t>{0});
  Quantizing call(gpu, plan, memory.data(), m, k);
  call.args.noise_seed = 123;  // not drawn from: the word replaces it
  call.args.noise_stream = 40;
  call.args.noise_seed_at = static_cast<const std::uint64_t*>(seed.data());
  call.args.noise_stream_at = static_cast<const std::uint32_t*>(step.data());
  gpu.check(api.cuStreamBeginCapture(call.stream.get(), 0), "begin capture");
  const auto status = qturn_run(plan.get(), &call.args);
  cuda::CUgraph graph = nullptr;
  gpu.check(api.cuStreamEndCapture(call.stream.get(), &graph), "end capture");
  REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
  cuda::CUgraphExec exec = nullptr;
  gpu.check(api.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  const auto replay = [&](std::uint64_t new_seed, std::uint32_t new_step) {
    seed.write(std::vector<std::uint64_t>{new_seed});
    step.write(std::vector<std::uint32_t>{new_step});
    gpu.check(api.cuGraphLaunch(exec, call.stream.get()), "launch the graph");
    return call.read();
  };
  const auto first = replay(5, 0), second = replay(5, 1), third = replay(6, 0);
  CHECK(first == by_value(5, 40));
  CHECK(second == by_value(5, 41));
  CHECK(third == by_value(6, 40));
  CHECK(!(first == second));
  CHECK(!(first == third));
  CHECK(replay(5, 0) == first);  // and starts again from the same words
  api.cuGraphExecDestroy(exec);
  api.cuGraphDestroy(graph);
}

TEST_CASE("cuda_api.a slice of columns is quantised as if it stood alone") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t m = 33, k = 288, wide = 1001;  // rows begin at odd elements
  const Bf16 x(m * wide, 12);
  const Buffer memory(gpu, x.bits);
  const auto plan = library.prepare(quantizing(m, k, 32, QTURN_RNE));
  for (const int64_t from : {0, 1, 64, 701}) {
    std::vector<std::uint16_t> alone;
    for (int64_t row = 0; row < m; ++row)
      alone.insert(alone.end(), x.bits.begin() + row * wide + from,
                   x.bits.begin() + row * wide + from + k);
    const Buffer tight(gpu, alone);
    Quantizing slice(gpu, plan, static_cast<std::uint16_t*>(memory.data()) + from, m, k, wide);
    Quantizing whole(gpu, plan, tight.data(), m, k);
    slice.run();
    whole.run();
    CHECK_MESSAGE(slice.read() == whole.read(), "columns from " << from);
  }
}

TEST_CASE("cuda_api.scale rows may be padded") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t m = 2, k = 2304, pitch = 80;  // 72 scales a row
  const Bf16 x(m * k, 13);
  const Buffer memory(gpu, x.bits);
  const auto plan = library.prepare(quantizing(m, k, 32, QTURN_RNE));
  Quantizing padded(gpu, plan, memory.data(), m, k, 0, pitch);
  Quantizing tight(gpu, plan, memory.data(), m, k);
  padded.run();
  tight.run();
  const auto got = padded.read(), wanted = tight.read();
  CHECK(got.codes == wanted.codes);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t at = 0; at < pitch; ++at)
      CHECK(got.scales[static_cast<std::size_t>(row * pitch + at)] ==
            (at < k / 32 ? wanted.scales[static_cast<std::size_t>(row * (k / 32) + at)] : 0xff));
}

TEST_CASE("cuda_api.widths that are no multiple of 1024 give the same numbers a thousand times") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t m = 16, n = 128;
  for (const int64_t k : {1536, 1440}) {
    auto p = linear(m, n, k, QTURN_BF16, QTURN_F32);
    p.contract = QTURN_FAST;
    const auto plan = library.prepare(p);
    const Bf16 a(m * k, 14), b(n * k, 15);
    const Buffer a_memory(gpu, a.bits), b_memory(gpu, b.bits);
    const Stream stream(gpu);
    Call call(gpu, plan, m, n, QTURN_F32, a_memory.data(), b_memory.data(), stream.get());
    run(plan, call);
    stream.wait();
    const auto first = call.d.read<std::uint32_t>();
    CHECK(worst_error(expected_product(a.values, b.values, m, n, k), call.result(), k, QTURN_F32,
                      QTURN_FAST) <= 1);
    int different = 0;
    for (int i = 0; i < 1000; ++i) {
      run(plan, call);
      stream.wait();
      different += call.d.read<std::uint32_t>() != first;
    }
    CHECK(different == 0);
  }
}
