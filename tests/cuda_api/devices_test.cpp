// One process and two GPUs: each context of the library works on its own device, whichever is
// current.
#include <thread>

#include "tests/cuda_api/support.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_api;

namespace {

constexpr int64_t kM = 96, kN = 128, kK = 256;

// The device's primary context, retained.
struct Primary {
  const cuda::DriverApi& api;
  cuda::CUdevice device = 0;
  CUcontext context = nullptr;

  Primary(Gpu& gpu, int ordinal) : api(gpu.api()) {
    gpu.check(api.cuDeviceGet(&device, ordinal), "device");
    gpu.check(api.cuDevicePrimaryCtxRetain(&context, device), "retain");
  }
};

struct Current {
  const cuda::DriverApi& api;
  Current(Gpu& gpu, const Primary& primary) : api(gpu.api()) {
    gpu.check(api.cuCtxPushCurrent(primary.context), "push");
  }
  ~Current() {
    CUcontext popped = nullptr;
    api.cuCtxPopCurrent(&popped);
  }
};

int devices(const Gpu& gpu) {
  using Count = cuda::CUresult (*)(int*);
  const auto count = reinterpret_cast<Count>(gpu.api().library.symbol("cuDeviceGetCount"));
  int out = 0;
  return count && count(&out) == 0 ? out : 0;
}

}  // namespace

TEST_CASE("cuda_api.two GPUs give one answer, also captured while the other one is current") {
  QTURN_NEEDS_GPU(gpu);
  if (devices(gpu) < 2) {
    MESSAGE("SKIPPED: one GPU here, this needs two");
    return;
  }
  const auto& api = gpu.api();
  const Bf16 a(kM * kK, 21), b(kN * kK, 22);
  std::vector<std::vector<float>> results;
  std::vector<std::unique_ptr<Library>> libraries;
  std::vector<Plan> plans;
  auto p = linear(kM, kN, kK, QTURN_BF16, QTURN_F32);
  p.contract = QTURN_FAST;
  for (const int ordinal : {0, 1}) {
    libraries.push_back(std::make_unique<Library>(ordinal));
    plans.push_back(libraries.back()->prepare(p));  // device 0 is current for both
  }
  for (const int ordinal : {0, 1}) {
    const Plan& plan = plans[static_cast<std::size_t>(ordinal)];
    const Primary primary(gpu, ordinal);
    const Current current(gpu, primary);
    const Buffer a_memory(gpu, a.bits), b_memory(gpu, b.bits);
    const Stream stream(gpu);
    Call call(gpu, plan, kM, kN, QTURN_F32, a_memory.data(), b_memory.data(), stream.get());
    run(plan, call);
    stream.wait();
    results.push_back(call.result());

    // Captured with device 0 current, the stream being of `ordinal`.
    gpu.check(api.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(call.d.data()), 0xff,
                                  call.d.bytes(), stream.get()),
              "poison");
    cuda::CUgraph graph = nullptr;
    {
      const Primary first(gpu, 0);
      const Current other(gpu, first);
      gpu.check(api.cuStreamBeginCapture(stream.get(), 0), "begin capture");
      const auto status = qturn_run(plan.get(), &call.args);
      gpu.check(api.cuStreamEndCapture(stream.get(), &graph), "end capture");
      REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
    }
    cuda::CUgraphExec exec = nullptr;
    gpu.check(api.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    gpu.check(api.cuGraphLaunch(exec, stream.get()), "launch the graph");
    stream.wait();
    CHECK(call.result() == results.back());
    api.cuGraphExecDestroy(exec);
    api.cuGraphDestroy(graph);
  }
  CHECK(results[0] == results[1]);
  CHECK(worst_error(expected_product(a.values, b.values, kM, kN, kK), results[0], kK, QTURN_F32,
                    QTURN_FAST) <= 1);
}

TEST_CASE("cuda_api.threads of two GPUs work side by side") {
  QTURN_NEEDS_GPU(gpu);
  if (devices(gpu) < 2) {
    MESSAGE("SKIPPED: one GPU here, this needs two");
    return;
  }
  const Bf16 a(kM * kK, 23), b(kN * kK, 24);
  const auto p = linear(kM, kN, kK, QTURN_BF16, QTURN_F32);
  std::vector<std::vector<float>> results(4);
  std::vector<std::unique_ptr<Library>> libraries;
  for (const int ordinal : {0, 1}) libraries.push_back(std::make_unique<Library>(ordinal));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Primary primary(gpu, t % 2);
      const Current current(gpu, primary);
      const auto plan = libraries[static_cast<std::size_t>(t % 2)]->prepare(p);
      const Buffer a_memory(gpu, a.bits), b_memory(gpu, b.bits);
      const Stream stream(gpu);
      Call call(gpu, plan, kM, kN, QTURN_F32, a_memory.data(), b_memory.data(), stream.get());
      for (int i = 0; i < 50; ++i) run(plan, call);
      stream.wait();
      results[static_cast<std::size_t>(t)] = call.result();
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == results[0]);
}
