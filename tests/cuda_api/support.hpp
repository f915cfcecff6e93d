// The C interface on a CUDA device as these tests use it: driver API alone, no CUDA runtime, so
// that what works here works under any framework.
#pragma once

#include <doctest/doctest.h>
#include <quarterturn/qturn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "runtime/cuda/driver_api.hpp"
#include "tests/runtime/temporary_folder.hpp"

namespace quarterturn::cuda_api {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUstream;

/// Device 0 with its primary context current on the thread that first asked.
class Gpu {
 public:
  static Gpu* find(std::string& why) {
    static std::string reason;
    static Gpu* const gpu = open(reason);
    why = reason;
    return gpu;
  }

  const cuda::DriverApi& api() const { return *api_; }
  cuda::CUdevice device() const { return device_; }
  CUcontext primary() const { return primary_; }
  void check(cuda::CUresult error, const char* what) const {
    const auto status = api_->check(error, what);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
  void make_current() const { check(api_->cuCtxPushCurrent(primary_), "make current"); }

 private:
  static Gpu* open(std::string& why) {
    auto api = cuda::driver_api();
    if (!api.ok()) return why = api.status().message(), nullptr;
    auto out = std::make_unique<Gpu>();
    out->api_ = *api;
    if ((*api)->cuDeviceGet(&out->device_, 0) != 0 ||
        (*api)->cuDevicePrimaryCtxRetain(&out->primary_, out->device_) != 0 ||
        (*api)->cuCtxPushCurrent(out->primary_) != 0)
      return why = "device 0 cannot be used", nullptr;
    return out.release();  // lives as long as the process
  }

  const cuda::DriverApi* api_ = nullptr;
  cuda::CUdevice device_ = 0;
  CUcontext primary_ = nullptr;
};

#define QTURN_NEEDS_GPU(gpu)             \
  std::string why;                       \
  Gpu* const found = Gpu::find(why);     \
  if (!found) {                          \
    MESSAGE("SKIPPED: no GPU: " << why); \
    return;                              \
  }                                      \
  Gpu& gpu = *found

class Stream {
 public:
  enum class Kind : unsigned { blocking = 0, free = 1 };
  explicit Stream(Gpu& gpu, Kind kind = Kind::free) : gpu_(gpu) {
    gpu.check(gpu.api().cuStreamCreate(&stream_, static_cast<unsigned>(kind)), "stream");
  }
  ~Stream() { gpu_.api().cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }
  void wait() const { gpu_.check(gpu_.api().cuStreamSynchronize(stream_), "wait"); }

 private:
  Gpu& gpu_;
  CUstream stream_ = nullptr;
};

/// Device memory of the context that is current when it is made; starts as 0xff.
class Buffer {
 public:
  Buffer(Gpu& gpu, std::size_t bytes) : gpu_(gpu), bytes_(bytes) {
    gpu.check(gpu.api().cuMemAlloc(&memory_, std::max<std::size_t>(bytes, 1)), "allocate");
    gpu.check(gpu.api().cuMemsetD8Async(memory_, 0xff, std::max<std::size_t>(bytes, 1), nullptr),
              "poison");
    gpu.check(gpu.api().cuStreamSynchronize(nullptr), "poison");
  }
  template <class T>
  Buffer(Gpu& gpu, const std::vector<T>& values) : Buffer(gpu, values.size() * sizeof(T)) {
    write(values);
  }
  ~Buffer() { gpu_.api().cuMemFree(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  void write(const std::vector<T>& values) {
    gpu_.check(gpu_.api().cuMemcpyHtoD(memory_, values.data(), bytes_), "upload");
    gpu_.check(gpu_.api().cuStreamSynchronize(nullptr), "upload");
  }
  template <class T>
  std::vector<T> read() const {
    std::vector<T> out(bytes_ / sizeof(T));
    gpu_.check(gpu_.api().cuMemcpyDtoH(out.data(), memory_, bytes_), "download");
    return out;
  }
  void* data() const { return reinterpret_cast<void*>(memory_); }
  std::size_t bytes() const { return bytes_; }

 private:
  Gpu& gpu_;
  std::size_t bytes_;
  CUdeviceptr memory_ = 0;
};

template <class T, void (*destroy)(T*)>
struct Destroy {
  void operator()(T* handle) const { destroy(handle); }
};
using Context = std::unique_ptr<qturn_context, Destroy<qturn_context, qturn_context_destroy>>;
using Plan = std::unique_ptr<qturn_plan, Destroy<qturn_plan, qturn_plan_destroy>>;
using Weight = std::unique_ptr<qturn_weight, Destroy<qturn_weight, qturn_weight_destroy>>;

/// Kernels are compiled once for all tests of a build tree, or for QTURN_TEST_CODE.
inline const std::string& shared_code() {
  static const std::string path = [] {
    const char* given = std::getenv("QTURN_TEST_CODE");
    return std::string(given ? given : QTURN_TEST_CODE);
  }();
  return path;
}

/// A CUDA context of the library over a database of its own.
struct Library {
  test::TemporaryFolder folder;
  std::string database = folder.file("tuning.db");
  std::string log;
  Context context;

  explicit Library(int ordinal = 0) {
    qturn_context_options options;
    qturn_context_options_init(&options);
    options.backend = QTURN_BACKEND_CUDA;
    options.device = ordinal;
    options.database = database.c_str();
    options.code_cache = shared_code().c_str();
    options.log = [](void* user, int32_t, const char* message) {
      *static_cast<std::string*>(user) += std::string(message) + "\n";
    };
    options.log_user = &log;
    qturn_context* out = nullptr;
    const auto status = qturn_context_create(&options, &out);
    REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
    context.reset(out);
  }

  Plan prepare(const qturn_problem& problem) const {
    qturn_plan* out = nullptr;
    const auto status = qturn_prepare(context.get(), &problem, &out);
    REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
    return Plan(out);
  }
};

/// Y [m, n] = X [m, k] W [n, k]^T, rotated by 32, m from 0 to m_hi.
inline qturn_problem linear(int64_t m_hi, int64_t n, int64_t k, int32_t b_type, int32_t d_type) {
  qturn_problem p;
  qturn_problem_init(&p);
  p.op = QTURN_OP_HADAMARD_GEMM;
  p.role = QTURN_FPROP;
  p.m = {0, m_hi};
  p.n = {n, n};
  p.k = {k, k};
  p.a_type = QTURN_BF16;
  p.b_type = b_type;
  p.d_type = d_type;
  p.rotation = 32;
  return p;
}

/// Codes and scales of X [m, k], m from 0 to m_hi, row by row in layout plain.
inline qturn_problem quantizing(int64_t m_hi, int64_t k, int32_t rotation, int32_t rounding) {
  qturn_problem p;
  qturn_problem_init(&p);
  p.op = QTURN_OP_QUANTIZE;
  p.m = {0, m_hi};
  p.k = {k, k};
  p.a_type = QTURN_BF16;
  p.d_type = QTURN_MXFP4;
  p.rotation = rotation;
  p.a_rounding = rounding;
  return p;
}

/// Values that bf16 holds, and their bits.
struct Bf16 {
  std::vector<float> values;
  std::vector<std::uint16_t> bits;
  Bf16(int64_t count, unsigned seed, float scale = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw;
    for (int64_t i = 0; i < count; ++i) {
      bits.push_back(reference::bf16_bits(draw(random) * scale));
      values.push_back(reference::bf16_value(bits.back()));
    }
  }
};

inline std::vector<float> floats(const std::vector<std::uint16_t>& bits) {
  std::vector<float> out;
  for (const auto b : bits) out.push_back(reference::bf16_value(b));
  return out;
}

/// The exact product of two operands as the oracle quantises them.
struct Expected {
  std::vector<double> value, magnitude;
};
/// Of the values themselves.
template <class A, class B>
Expected product_of(const A& a, const B& b, int64_t m, int64_t n, int64_t k) {
  Expected out;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t at = 0; at < k; ++at) {
        const double term = static_cast<double>(a[static_cast<std::size_t>(i * k + at)]) *
                            static_cast<double>(b[static_cast<std::size_t>(j * k + at)]);
        sum += term;
        magnitude += std::fabs(term);
      }
      out.value.push_back(sum);
      out.magnitude.push_back(magnitude);
    }
  return out;
}
inline Expected expected_product(const std::vector<float>& a, const std::vector<float>& b,
                                 int64_t m, int64_t n, int64_t k) {
  reference::QuantizeSpec spec;
  spec.rotation = 32;
  const auto qa = reference::quantize(a.data(), m, k, k, spec);
  spec.noise.operand = 1;
  const auto qb = reference::quantize(b.data(), n, k, k, spec);
  return product_of(reference::dequantize(qa), reference::dequantize(qb), m, n, qa.k);
}

/// The worst |got - value| in units of its bound: fp32-class sums (`fast`: and 2^-9 of sum |a b|),
/// and D's own rounding.
inline double worst_error(const Expected& expected, const std::vector<float>& got, int64_t k,
                          int32_t d_type, int32_t contract) {
  double worst = got.size() == expected.value.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double relative =
        (static_cast<double>(k) / 16 + 16) * 0x1p-23 + (contract == QTURN_FAST ? 0x1p-9 : 0.0);
    const double step = std::fabs(expected.value[i]) * (d_type == QTURN_BF16 ? 0x1p-8 : 0x1p-23);
    const double bound = relative * expected.magnitude[i] + step + 0x1p-126;
    const double error = std::fabs(got[i] - expected.value[i]) / bound;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

/// A call of `plan`: a result and workspace of its own on the device.
struct Call {
  Gpu& gpu;
  Buffer d, workspace;
  qturn_args args;

  Call(Gpu& device, const Plan& plan, int64_t m, int64_t n, int32_t d_type, const void* a,
       const void* b, CUstream stream)
      : gpu(device),
        d(device, static_cast<std::size_t>(m * n * (d_type == QTURN_F32 ? 4 : 2))),
        workspace(device, workspace_bytes(plan)) {
    qturn_args_init(&args);
    args.m = m;
    args.a.type = QTURN_BF16;
    args.a.data = const_cast<void*>(a);
    args.b.type = QTURN_BF16;
    args.b.data = const_cast<void*>(b);
    args.d.type = d_type;
    args.d.data = d.data();
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.bytes();
    args.stream = stream;
  }

  static std::size_t workspace_bytes(const Plan& plan) {
    std::size_t bytes = 0;
    REQUIRE(qturn_plan_workspace(plan.get(), &bytes) == QTURN_OK);
    return bytes;
  }

  std::vector<float> result() const {
    return args.d.type == QTURN_F32 ? d.read<float>() : floats(d.read<std::uint16_t>());
  }
};

inline void run(const Plan& plan, const Call& call) {
  const auto status = qturn_run(plan.get(), &call.args);
  REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
}

}  // namespace quarterturn::cuda_api
