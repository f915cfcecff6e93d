// What qturn_run costs on the host over the bare cuLaunchKernelEx calls that it makes:
// `overhead_cuda` prints microseconds a call, least and median over bursts that leave the device's
// queue short.
#include <fmt/format.h>
#include <quarterturn/qturn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <vector>

#include "runtime/cuda/driver_api.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda;

namespace {

[[noreturn]] void stop(const std::string& why) {
  std::printf("%s\n", why.c_str());
  std::exit(1);
}
void must(qturn_status status) {
  if (status != QTURN_OK) stop(qturn_last_error());
}

DriverApi* api = nullptr;
decltype(DriverApi::cuLaunchKernelEx) launch_kernel = nullptr;
void check(CUresult error, const char* what) {
  if (const auto status = api->check(error, what); !status.ok()) stop(status.message());
}

/// One launch as the library asked for it, with all that its pointers lead to.
struct Recorded {
  CUlaunchConfig config;
  std::vector<CUlaunchAttribute> attributes;
  CUkernel kernel;
  std::list<std::vector<unsigned char>> values;
  std::vector<void*> parameters;
};
std::list<Recorded> recorded;

CUresult record(const CUlaunchConfig* config, CUkernel kernel, void** parameters, void** extra) {
  using ParameterInfo = CUresult (*)(CUkernel, std::size_t, std::size_t*, std::size_t*);
  static const auto info =
      reinterpret_cast<ParameterInfo>(api->library.symbol("cuKernelGetParamInfo"));
  if (!info) stop("this driver does not tell a kernel's parameters (CUDA 12.4 does)");
  Recorded& now = recorded.emplace_back();
  now.config = *config;
  now.attributes.assign(config->attributes, config->attributes + config->attribute_count);
  now.config.attributes = now.attributes.data();
  now.kernel = kernel;
  std::size_t offset = 0, bytes = 0;
  for (std::size_t i = 0; info(kernel, i, &offset, &bytes) == kSuccess; ++i) {
    const auto* from = static_cast<const unsigned char*>(parameters[i]);
    auto& value = now.values.emplace_back(bytes + 64);  // tensor maps lie at multiples of 64
    void* at = value.data();
    std::size_t room = value.size();
    std::memcpy(std::align(64, bytes, at, room), from, bytes);
    now.parameters.push_back(at);
  }
  return launch_kernel(config, kernel, parameters, extra);
}

struct Times {
  double least = 0, median = 0;
};

// Microseconds of one call of each, in bursts by turns, so that drift falls on all alike. A burst
// is short enough for the device's queue to take it whole.
std::vector<Times> time(CUstream stream, const std::vector<std::function<void(int)>>& all) {
  constexpr int kCount = 24, kRounds = 201;
  std::vector<std::vector<double>> seen(all.size());
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& work = all[(i + static_cast<std::size_t>(round)) % all.size()];
      check(api->cuStreamSynchronize(stream), "wait");
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < kCount; ++call) work(call);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      seen[(i + static_cast<std::size_t>(round)) % all.size()].push_back(took.count() / kCount);
    }
  std::vector<Times> out;
  for (auto& one : seen) {
    std::sort(one.begin(), one.end());
    out.push_back({one.front(), one[one.size() / 2]});
  }
  return out;
}

void* allocate(std::int64_t bytes) {
  CUdeviceptr memory = 0;
  check(api->cuMemAlloc(&memory, static_cast<std::size_t>(bytes)), "allocate");
  check(api->cuMemsetD8Async(memory, 0, static_cast<std::size_t>(bytes), nullptr), "clear");
  return reinterpret_cast<void*>(memory);
}

void measure(qturn_context* context, const char* name, const qturn_problem& problem,
             CUstream stream) {
  qturn_plan* plan = nullptr;
  must(qturn_prepare(context, &problem, &plan));
  const auto m = problem.m.hi, n = problem.n.hi, k = problem.k.hi;
  std::size_t workspace = 0;
  must(qturn_plan_workspace(plan, &workspace));
  qturn_args args[2];
  void* const scratch = allocate(static_cast<std::int64_t>(workspace) + 256);
  void* const b = allocate(n * k * 2);
  qturn_weight* weight = nullptr;
  if (problem.b_type == QTURN_MXFP4) {
    qturn_operand source;
    qturn_operand_init(&source);
    source.type = QTURN_BF16;
    source.data = b;
    must(qturn_weight_create(plan, &source, nullptr, 0, stream, &weight));
  }
  for (auto& one : args) {
    qturn_args_init(&one);
    one.m = m;
    one.a.type = QTURN_BF16;
    one.a.data = allocate(m * k * 2);
    one.b.type = QTURN_BF16;
    one.b.data = weight ? nullptr : b;
    one.weight = weight;
    one.d.type = QTURN_BF16;
    one.d.data = allocate(m * n * 2);
    one.workspace = scratch;
    one.workspace_bytes = workspace;
    one.stream = stream;
    must(qturn_run(plan, &one));
  }
  recorded.clear();
  api->cuLaunchKernelEx = record;
  must(qturn_run(plan, &args[0]));
  api->cuLaunchKernelEx = launch_kernel;

  const auto times = time(
      stream, {[](int) {
                 for (auto& one : recorded)
                   check(launch_kernel(&one.config, one.kernel, one.parameters.data(), nullptr),
                         "launch");
               },
               [&](int) { must(qturn_run(plan, &args[0])); },
               [&](int i) { must(qturn_run(plan, &args[i % 2])); }});
  const auto &bare = times[0], &same = times[1], &fresh = times[2];
  std::printf(
      "%-38s %zu launches  bare %.3f (%.3f)  run %.3f (%.3f)  new pointers %.3f (%.3f)  run - bare "
      "%+.3f (%+.3f)  new pointers - bare %+.3f (%+.3f)\n",
      name, recorded.size(), bare.least, bare.median, same.least, same.median, fresh.least,
      fresh.median, same.least - bare.least, same.median - bare.median, fresh.least - bare.least,
      fresh.median - bare.median);
  check(api->cuStreamSynchronize(stream), "wait");
  if (weight) qturn_weight_destroy(weight);
  qturn_plan_destroy(plan);
}

}  // namespace

int main() {
  const auto found = driver_api();
  if (!found.ok()) stop(found.status().message());
  // The library's own entry points: the object is not const, only our view of it.
  api = const_cast<DriverApi*>(*found);
  launch_kernel = api->cuLaunchKernelEx;
  CUdevice device = 0;
  CUcontext primary = nullptr;
  CUstream stream = nullptr;
  check(api->cuDeviceGet(&device, 0), "device");
  check(api->cuDevicePrimaryCtxRetain(&primary, device), "context");
  check(api->cuCtxPushCurrent(primary), "context");
  check(api->cuStreamCreate(&stream, 1), "stream");
  qturn_context_options options;
  qturn_context_options_init(&options);
  options.backend = QTURN_BACKEND_CUDA;
  qturn_context* context = nullptr;
  must(qturn_context_create(&options, &context));

  qturn_problem p;
  qturn_problem_init(&p);
  p.op = QTURN_OP_HADAMARD_GEMM;
  p.role = QTURN_FPROP;
  p.m = {16, 16};
  p.n = {256, 256};
  p.k = {256, 256};
  p.a_type = p.b_type = p.d_type = QTURN_BF16;
  p.rotation = 32;
  std::printf("microseconds of the host a call: least (median)\n");
  const auto asking = time(stream, {[](int) {
                                      CUdevice of = -1;
                                      api->cuCtxGetDevice(&of);
                                    },
                                    [](int) {
                                      CUcontext current = nullptr;
                                      api->cuCtxGetCurrent(&current);
                                    }});
  std::printf("of it cuCtxGetDevice %.3f, cuCtxGetCurrent %.3f\n", asking[0].median,
              asking[1].median);
  measure(context, "hadamard_gemm exact", p, stream);
  p.contract = QTURN_FAST;
  measure(context, "hadamard_gemm fast", p, stream);
  p.b_type = QTURN_MXFP4;
  measure(context, "hadamard_gemm fast, weight", p, stream);
  p.spread = QTURN_SPREAD_NARROW;
  p.m = {128, 128};
  measure(context, "hadamard_gemm narrow, weight, m=128", p, stream);
  // Operands beyond a tile: products with tensor maps, and their exact stand-ins.
  p.m = {1024, 1024};
  p.n = p.k = {1024, 1024};
  measure(context, "hadamard_gemm narrow, weight, m=1024", p, stream);
  p.spread = QTURN_SPREAD_ANY;
  p.b_type = QTURN_BF16;
  measure(context, "hadamard_gemm fast, m=1024", p, stream);
  qturn_context_destroy(context);
  return 0;
}
