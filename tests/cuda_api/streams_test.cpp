// What a run promises about streams, graphs, contexts, threads and memory.
#include <atomic>
#include <thread>

#include "tests/cuda_api/support.hpp"
#include "tests/runtime/interposed.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_api;

namespace {

constexpr int64_t kM = 128, kN = 256, kK = 512;

// Plans by tensor-core families with tensor maps, and by the portable one.
qturn_problem fast() {
  auto p = linear(kM, kN, kK, QTURN_BF16, QTURN_BF16);
  p.contract = QTURN_FAST;
  return p;
}
qturn_problem exact() { return linear(kM, kN, kK, QTURN_BF16, QTURN_BF16); }

struct Inputs {
  Bf16 a, b;
  Buffer a_memory, b_memory;
  Inputs(Gpu& gpu, unsigned seed)
      : a(kM * kK, seed), b(kN * kK, seed + 100), a_memory(gpu, a.bits), b_memory(gpu, b.bits) {}
  Call call(Gpu& gpu, const Plan& plan, CUstream stream) const {
    return Call(gpu, plan, kM, kN, QTURN_BF16, a_memory.data(), b_memory.data(), stream);
  }
};

std::vector<float> once(Gpu& gpu, const Plan& plan, const Inputs& inputs) {
  const Stream stream(gpu);
  const Call call = inputs.call(gpu, plan, stream.get());
  run(plan, call);
  stream.wait();
  return call.result();
}

}  // namespace

TEST_CASE("cuda_api.run works inside graph capture, and the graph reads what is there later") {
  QTURN_NEEDS_GPU(gpu);
  const auto& api = gpu.api();
  const Library library;
  for (const auto& problem : {exact(), fast()}) {
    const auto plan = library.prepare(problem);
    Inputs inputs(gpu, 1);
    const Inputs later(gpu, 2);
    for (const int mode : {0, 1, 2}) {  // global, this thread's, relaxed
      const Stream stream(gpu);
      const Call call = inputs.call(gpu, plan, stream.get());
      gpu.check(api.cuStreamBeginCapture(stream.get(), mode), "begin capture");
      qturn_status status = QTURN_OK;
      for (int i = 0; i < 3 && status == QTURN_OK; ++i) status = qturn_run(plan.get(), &call.args);
      cuda::CUgraph graph = nullptr;
      gpu.check(api.cuStreamEndCapture(stream.get(), &graph), "end capture");
      REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
      cuda::CUgraphExec exec = nullptr;
      gpu.check(api.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
      for (const Inputs* content : {static_cast<const Inputs*>(&inputs), &later}) {
        inputs.a_memory.write(content->a.bits);
        inputs.b_memory.write(content->b.bits);
        gpu.check(api.cuGraphLaunch(exec, stream.get()), "launch the graph");
        stream.wait();
        CHECK(call.result() == once(gpu, plan, *content));
        inputs.a_memory.write(inputs.a.bits);
        inputs.b_memory.write(inputs.b.bits);
      }
      api.cuGraphExecDestroy(exec);
      api.cuGraphDestroy(graph);
    }
  }
}

TEST_CASE("cuda_api.a captured run follows what is no kernel, and work of another stream") {
  QTURN_NEEDS_GPU(gpu);
  const auto& api = gpu.api();
  const auto wait = reinterpret_cast<cuda::CUresult (*)(CUstream, cuda::CUevent, unsigned)>(
      api.library.symbol("cuStreamWaitEvent"));
  const Library library;
  for (const auto& problem : {exact(), fast()}) {
    const auto plan = library.prepare(problem);
    const Inputs inputs(gpu, 5);
    const auto expected = once(gpu, plan, inputs);
    const Buffer a(gpu, std::vector<std::uint16_t>(kM * kK));
    const Stream stream(gpu), other(gpu);
    Call call = inputs.call(gpu, plan, stream.get());
    call.args.a.data = a.data();
    cuda::CUevent fork = nullptr, join = nullptr;
    gpu.check(api.cuEventCreate(&fork, 2), "event");
    gpu.check(api.cuEventCreate(&join, 2), "event");
    const auto device = [](const void* at) { return reinterpret_cast<cuda::CUdeviceptr>(at); };
    const std::size_t bytes = std::size_t(kM) * kK * 2;
    gpu.check(api.cuStreamBeginCapture(stream.get(), 0), "begin capture");
    gpu.check(api.cuEventRecord(fork, stream.get()), "fork");
    gpu.check(wait(other.get(), fork, 0), "fork");
    gpu.check(
        api.cuMemcpyDtoDAsync(device(a.data()), device(inputs.a_memory.data()), bytes, other.get()),
        "copy");
    gpu.check(api.cuEventRecord(join, other.get()), "join");
    gpu.check(wait(stream.get(), join, 0), "join");
    const auto first = qturn_run(plan.get(), &call.args);
    gpu.check(api.cuMemcpyDtoDAsync(device(a.data()), device(inputs.a_memory.data()), bytes,
                                    stream.get()),
              "copy");
    const auto second = qturn_run(plan.get(), &call.args);
    gpu.check(api.cuMemsetD8Async(device(a.data()), 0, bytes, stream.get()), "clear");
    cuda::CUgraph graph = nullptr;
    gpu.check(api.cuStreamEndCapture(stream.get(), &graph), "end capture");
    REQUIRE_MESSAGE((first == QTURN_OK && second == QTURN_OK), qturn_last_error());
    cuda::CUgraphExec exec = nullptr;
    gpu.check(api.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    for (int i = 0; i < 20; ++i) {
      gpu.check(api.cuGraphLaunch(exec, stream.get()), "launch the graph");
      stream.wait();
      CHECK(call.result() == expected);
    }
    api.cuGraphExecDestroy(exec);
    api.cuGraphDestroy(graph);
    api.cuEventDestroy(fork);
    api.cuEventDestroy(join);
  }
}

TEST_CASE("cuda_api.prepare during capture is refused or harmless, never breaks the capture") {
  QTURN_NEEDS_GPU(gpu);
  const auto& api = gpu.api();
  const Library library;
  const auto plan = library.prepare(fast());
  const Inputs inputs(gpu, 3);
  int64_t fresh = 544;  // each a problem that is not prepared yet
  for (const auto kind : {Stream::Kind::blocking, Stream::Kind::free})
    for (const int mode : {0, 1, 2}) {
      const Stream stream(gpu, kind);
      const Call call = inputs.call(gpu, plan, stream.get());
      gpu.check(api.cuStreamBeginCapture(stream.get(), mode), "begin capture");
      auto other = fast();
      other.k = {fresh, fresh};
      fresh += 32;
      qturn_plan* out = nullptr;
      const auto prepared = qturn_prepare(library.context.get(), &other, &out);
      const std::string message = qturn_last_error();
      const auto ran = qturn_run(plan.get(), &call.args);
      cuda::CUgraph graph = nullptr;
      const auto ended = api.cuStreamEndCapture(stream.get(), &graph);
      if (kind == Stream::Kind::blocking) {
        CHECK(prepared == QTURN_CAPTURING);
        CHECK(message.find("captured") != std::string::npos);
      } else {
        CHECK_MESSAGE((prepared == QTURN_OK || prepared == QTURN_CAPTURING), message);
      }
      if (out) qturn_plan_destroy(out);
      CHECK(ran == QTURN_OK);
      REQUIRE_MESSAGE(ended == 0, api.describe(ended));
      api.cuGraphDestroy(graph);
      // Afterwards it is prepared as if nothing had happened.
      library.prepare(other);
    }
}

TEST_CASE("cuda_api.two streams run one plan side by side") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  for (const auto& problem : {exact(), fast()}) {
    const auto plan = library.prepare(problem);
    const Inputs one(gpu, 4), two(gpu, 5);
    const auto first = once(gpu, plan, one), second = once(gpu, plan, two);
    const Stream s1(gpu), s2(gpu);
    const Call c1 = one.call(gpu, plan, s1.get()), c2 = two.call(gpu, plan, s2.get());
    for (int i = 0; i < 50; ++i) {
      run(plan, c1);
      run(plan, c2);
    }
    s1.wait();
    s2.wait();
    CHECK(c1.result() == first);
    CHECK(c2.result() == second);
    CHECK(first != second);
  }
}

TEST_CASE("cuda_api.a plan serves the device's primary context and one that the caller made") {
  QTURN_NEEDS_GPU(gpu);
  const auto& api = gpu.api();
  using Create = cuda::CUresult (*)(CUcontext*, unsigned, cuda::CUdevice);
  const auto create = reinterpret_cast<Create>(api.library.symbol("cuCtxCreate_v2"));
  const auto destroy =
      reinterpret_cast<cuda::CUresult (*)(CUcontext)>(api.library.symbol("cuCtxDestroy_v2"));
  REQUIRE(bool(create));
  REQUIRE(bool(destroy));
  const Library library;
  const auto plan = library.prepare(fast());
  const auto expected = once(gpu, plan, Inputs(gpu, 6));
  CUcontext own = nullptr;
  gpu.check(create(&own, 0, gpu.device()), "cuCtxCreate");  // and makes it current
  {
    const Inputs inputs(gpu, 6);
    CHECK(once(gpu, plan, inputs) == expected);
    // Prepared while that context is current, and run from both.
    const auto here = library.prepare(exact());
    const auto result = once(gpu, here, inputs);
    CUcontext popped = nullptr;
    gpu.check(api.cuCtxPopCurrent(&popped), "pop");
    CHECK(popped == own);
    CHECK(once(gpu, here, Inputs(gpu, 6)) == result);
    gpu.check(api.cuCtxPushCurrent(own), "push");
  }
  CUcontext popped = nullptr;
  gpu.check(api.cuCtxPopCurrent(&popped), "pop");
  gpu.check(destroy(own), "cuCtxDestroy");
  CHECK(once(gpu, plan, Inputs(gpu, 6)) == expected);
}

TEST_CASE("cuda_api.many threads share a plan, with and without a current context") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  const auto plan = library.prepare(fast());
  const Inputs inputs(gpu, 7);
  const auto expected = once(gpu, plan, inputs);
  constexpr int kThreads = 6, kRuns = 40;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Call>> calls;
  for (int t = 0; t < kThreads; ++t) {
    streams.push_back(std::make_unique<Stream>(gpu));
    calls.push_back(std::make_unique<Call>(gpu, plan, kM, kN, QTURN_BF16, inputs.a_memory.data(),
                                           inputs.b_memory.data(), streams.back()->get()));
  }
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      if (t % 2) gpu.api().cuCtxPushCurrent(gpu.primary());
      for (int i = 0; i < kRuns; ++i)
        failed += qturn_run(plan.get(), &calls[static_cast<std::size_t>(t)]->args) != QTURN_OK;
      CUcontext current = nullptr;
      gpu.api().cuCtxGetCurrent(&current);
      failed += current != (t % 2 ? gpu.primary() : nullptr);  // left as it was
    });
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  for (int t = 0; t < kThreads; ++t) {
    streams[static_cast<std::size_t>(t)]->wait();
    CHECK(calls[static_cast<std::size_t>(t)]->result() == expected);
  }
}

TEST_CASE("cuda_api.run takes no memory and opens no file") {
  QTURN_NEEDS_GPU(gpu);
  if (!test::can_count()) {
    MESSAGE("SKIPPED: the sanitizer owns malloc");
    return;
  }
  const auto memory = reinterpret_cast<cuda::CUresult (*)(std::size_t*, std::size_t*)>(
      gpu.api().library.symbol("cuMemGetInfo_v2"));
  REQUIRE(bool(memory));
  const Library library;
  for (const auto& problem : {exact(), fast()}) {
    const auto plan = library.prepare(problem);
    const Inputs inputs(gpu, 8), others(gpu, 9);
    const Stream stream(gpu);
    Call call = inputs.call(gpu, plan, stream.get());
    for (int i = 0; i < 4; ++i) run(plan, call);
    stream.wait();
    std::size_t before = 0, after = 0, all = 0;
    gpu.check(memory(&before, &all), "cuMemGetInfo");
    qturn_status status = QTURN_OK;
    const auto counted = test::least_of([&] {
      for (int i = 0; i < 100 && status == QTURN_OK; ++i) {
        // New pointers mean new tensor maps.
        call.args.a.data = i % 2 ? inputs.a_memory.data() : others.a_memory.data();
        status = qturn_run(plan.get(), &call.args);
      }
    });
    stream.wait();
    gpu.check(memory(&after, &all), "cuMemGetInfo");
    CHECK(status == QTURN_OK);
    CHECK(counted.allocations == 0);
    CHECK(counted.opened_files == 0);
    CHECK(before == after);
  }
}
