#include "tuner/peer_cuda.hpp"

#include <algorithm>
#include <cmath>

#include "reference/formats.hpp"
#include "runtime/cuda/driver_api.hpp"
#include "tuner/inputs.hpp"
#include "tuner/memory.hpp"
#include "tuner/peer_cublas.hpp"
#include "tuner/trials.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kPattern = 32 << 20;  // bytes of random data that large operands repeat
constexpr std::int64_t kWorkspace = 64 << 20;

// Normal values in bf16: zeros would draw less power and run at higher clocks.
const std::vector<unsigned char>& normal_bf16() {
  static const auto pattern =
      Matrix(Profile::weight, 99, DType::bf16, kPattern / 2 / 4096, 4096).bytes(4096);
  return pattern;
}

// The same in FP8 E4M3, rounded to nearest by way of all its codes.
const std::vector<unsigned char>& normal_e4m3() {
  static const auto pattern = [] {
    std::vector<unsigned char> of_bf16(1 << 16);
    for (std::uint32_t bits = 0; bits < of_bf16.size(); ++bits) {
      const float x = 64 * reference::bf16_value(static_cast<std::uint16_t>(bits));
      const double size = std::min(448.0, std::isfinite(x) ? std::fabs(double{x}) : 448.0);
      const int exponent = size < 0x1p-6 ? -6 : std::ilogb(size);
      const auto steps = static_cast<int>(std::lrint(std::ldexp(size, 3 - exponent)));
      const int code = size < 0x1p-6 ? steps : (exponent + 7) * 8 + steps - 8;
      of_bf16[bits] = static_cast<unsigned char>((bits >> 15) << 7 | std::min(code, 0x7e));
    }
    const auto& from = normal_bf16();
    std::vector<unsigned char> out(from.size() / 2);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = of_bf16[from[2 * i] | static_cast<std::size_t>(from[2 * i + 1]) << 8];
    return out;
  }();
  return pattern;
}

Result<Memory> repeated(Backend& backend, const std::vector<unsigned char>& pattern,
                        std::int64_t bytes) {
  auto out = Memory::allocate(backend, bytes);
  if (!out.ok()) return out;
  auto* const at = static_cast<unsigned char*>(out->data());
  std::int64_t done = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(pattern.size()));
  if (auto status = backend.upload(at, pattern.data(), done); !status.ok()) return status;
  for (; done < bytes;) {
    const auto more = std::min(done, bytes - done);
    if (auto status = backend.copy(at + done, at, more); !status.ok()) return status;
    done += more;
  }
  return out;
}

// The device's primary context, current on this thread while the object lives.
class CurrentContext {
 public:
  static Result<std::shared_ptr<CurrentContext>> make(std::int32_t ordinal) {
    auto api = cuda::driver_api();
    if (!api.ok()) return api.status();
    std::shared_ptr<CurrentContext> out(new CurrentContext(**api));
    const auto& a = out->api_;
    cuda::CUcontext context = nullptr;
    if (auto status = a.check(a.cuDeviceGet(&out->device_, ordinal), "device"); !status.ok())
      return status;
    if (auto status =
            a.check(a.cuDevicePrimaryCtxRetain(&context, out->device_), "primary context");
        !status.ok())
      return status;
    out->retained_ = true;
    if (auto status = a.check(a.cuCtxPushCurrent(context), "current context"); !status.ok())
      return status;
    out->pushed_ = true;
    return out;
  }
  ~CurrentContext() {
    cuda::CUcontext ignored = nullptr;
    if (pushed_) api_.cuCtxPopCurrent(&ignored);
    if (retained_) api_.cuDevicePrimaryCtxRelease(device_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  const cuda::DriverApi& api() const { return api_; }

 private:
  explicit CurrentContext(const cuda::DriverApi& api) : api_(api) {}
  const cuda::DriverApi& api_;
  cuda::CUdevice device_ = 0;
  bool retained_ = false, pushed_ = false;
};

// Runs `one(i, stream)` with i walking round `copies` sets of buffers; short calls unrolled, as
// candidates are (trials.cpp).
template <class One>
std::function<Result<double>(std::int64_t)> timed(Backend& backend,
                                                  std::shared_ptr<Stopwatch> watch,
                                                  std::size_t copies, One one) {
  constexpr std::int64_t kUnrolled = 64;
  return
      [&backend, watch = std::move(watch), copies, one = std::move(one), next = std::size_t{0},
       recording = std::shared_ptr<Recording>()](std::int64_t repeats) mutable -> Result<double> {
        const auto some = [&](std::int64_t count, void* stream) {
          Status status;
          for (std::int64_t i = 0; i < count && status.ok(); ++i) {
            status = one(next, stream);
            next = next + 1 < copies ? next + 1 : 0;
          }
          return status;
        };
        const bool is_short = repeats >= kUnrolled;
        if (is_short && !recording) {
          auto made = backend.record([&](void* stream) { return some(kUnrolled, stream); });
          if (made.ok()) recording = std::move(*made);
        }
        const std::int64_t starts = ceil_div(repeats, kUnrolled);
        Status status;
        watch->start(nullptr);
        if (is_short && recording) {
          for (std::int64_t i = 0; i < starts && status.ok(); ++i)
            status = recording->start(nullptr);
        } else {
          status = some(repeats, nullptr);
        }
        const double seconds = watch->stop(nullptr);
        if (!status.ok()) return status;
        if (!is_short || !recording) return seconds;
        return seconds * static_cast<double>(repeats) / static_cast<double>(starts * kUnrolled);
      };
}

class Peers final : public CudaPeers {
 public:
  Peers(Backend& backend, std::shared_ptr<CurrentContext> context)
      : backend_(backend), context_(std::move(context)), watch_(backend.stopwatch()) {
    if (auto nvml = Nvml::open(backend.device().ordinal); nvml.ok()) nvml_ = std::move(*nvml);
  }

  std::vector<Peer> products(std::int64_t m, std::int64_t n, std::int64_t k,
                             std::vector<std::string>& notes) override {
    std::vector<Peer> out;
    if (!cublas_) {
      auto opened = CublasPeer::open();
      if (!opened.ok()) return notes.push_back(opened.status().message()), out;
      cublas_ = std::move(*opened);
    }
    const auto add = [&](const char* name, CublasPeer::Input input, CublasPeer::Sums sums) {
      auto peer = product(name, input, sums, m, n, k);
      if (peer.ok())
        out.push_back(std::move(*peer));
      else
        notes.push_back(std::string(name) + ": " + peer.status().message());
    };
    add("cublas_bf16", CublasPeer::Input::bf16, CublasPeer::Sums::exact);
    add("cublas_fp8_fast", CublasPeer::Input::e4m3, CublasPeer::Sums::fast);
    add("cublas_fp8", CublasPeer::Input::e4m3, CublasPeer::Sums::exact);
    return out;
  }

  Result<Peer> copy(std::int64_t bytes) override {
    const std::int64_t half = std::max<std::int64_t>(bytes / 2, 16);
    const auto copies = rotation_for(backend_.device(), bytes).copies;
    auto from = std::make_shared<std::vector<Memory>>(),
         to = std::make_shared<std::vector<Memory>>();
    for (std::size_t i = 0; i < copies; ++i) {
      auto source = repeated(backend_, normal_bf16(), half);
      if (!source.ok()) return source.status();
      auto target = Memory::allocate(backend_, half);
      if (!target.ok()) return target.status();
      from->push_back(std::move(*source));
      to->push_back(std::move(*target));
    }
    const auto context = context_;
    return Peer{
        "copy",
        timed(backend_, watch_, copies, [context, from, to, half](std::size_t i, void* stream) {
          const auto& api = context->api();
          return api.check(api.cuMemcpyDtoDAsync(
                               reinterpret_cast<cuda::CUdeviceptr>((*to)[i].data()),
                               reinterpret_cast<cuda::CUdeviceptr>((*from)[i].data()),
                               static_cast<std::size_t>(half), static_cast<cuda::CUstream>(stream)),
                           "copy");
        })};
  }

  GpuState state() const override { return nvml_ ? nvml_->state() : GpuState(); }

 private:
  struct Product {
    std::shared_ptr<CublasPeer> cublas;
    CublasPeer::Plan plan;
    std::vector<Memory> a, b, d;
    Memory workspace, one;
  };

  Result<Peer> product(const char* name, CublasPeer::Input input, CublasPeer::Sums sums,
                       std::int64_t m, std::int64_t n, std::int64_t k) {
    const bool is_fp8 = input == CublasPeer::Input::e4m3;
    const std::int64_t size = is_fp8 ? 1 : 2;
    const auto& pattern = is_fp8 ? normal_e4m3() : normal_bf16();
    auto p = std::make_shared<Product>();
    p->cublas = cublas_;
    const float one = 1;
    const auto* const bytes_of_one = reinterpret_cast<const unsigned char*>(&one);
    auto scale = Memory::of(backend_, {bytes_of_one, sizeof one});
    if (!scale.ok()) return scale.status();
    p->one = std::move(*scale);
    auto workspace = Memory::allocate(backend_, kWorkspace);
    if (!workspace.ok()) return workspace.status();
    p->workspace = std::move(*workspace);
    auto plan = cublas_->plan(input, sums, m, n, k, p->one.data(), kWorkspace);
    if (!plan.ok()) return plan.status();
    p->plan = std::move(*plan);
    const auto copies = rotation_for(backend_.device(), size * (m * k + n * k) + 2 * m * n).copies;
    for (std::size_t i = 0; i < copies; ++i) {
      auto a = repeated(backend_, pattern, size * m * k);
      if (!a.ok()) return a.status();
      auto b = repeated(backend_, pattern, size * n * k);
      if (!b.ok()) return b.status();
      auto d = Memory::allocate(backend_, 2 * m * n);
      if (!d.ok()) return d.status();
      p->a.push_back(std::move(*a));
      p->b.push_back(std::move(*b));
      p->d.push_back(std::move(*d));
    }
    return Peer{name, timed(backend_, watch_, copies, [p](std::size_t i, void* stream) {
                  return p->cublas->run(p->plan, p->a[i].data(), p->b[i].data(), p->d[i].data(),
                                        p->workspace.data(), stream);
                })};
  }

  Backend& backend_;
  std::shared_ptr<CurrentContext> context_;
  std::shared_ptr<Stopwatch> watch_;
  std::unique_ptr<Nvml> nvml_;
  std::shared_ptr<CublasPeer> cublas_;
};

}  // namespace

Result<std::unique_ptr<CudaPeers>> CudaPeers::open(Backend& backend) {
  auto context = CurrentContext::make(backend.device().ordinal);
  if (!context.ok()) return context.status();
  return std::unique_ptr<CudaPeers>(std::make_unique<Peers>(backend, std::move(*context)));
}

}  // namespace quarterturn
