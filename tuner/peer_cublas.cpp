#include "tuner/peer_cublas.hpp"

#include <fmt/format.h>

#include <utility>

namespace quarterturn {
namespace {

// cublasLt.h and library_types.h.
constexpr int kF32 = 0, kBf16 = 14, kE4m3 = 28, kComputeF32 = 68;
constexpr int kTransposeA = 3, kScaleA = 17, kScaleB = 18, kFastAccumulation = 25;
constexpr int kMostWorkspace = 1;

struct HeuristicResult {
  std::array<std::uint64_t, 8> algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

Status failed(const char* what, int status) {
  return Status(Code::launch_failed, fmt::format("cuBLASLt: {}: status {}", what, status));
}

}  // namespace

struct CublasPeer::Api {
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  std::size_t (*version)() = nullptr;
  int (*operation_create)(void**, int, int) = nullptr;
  int (*operation_destroy)(void*) = nullptr;
  int (*operation_set)(void*, int, const void*, std::size_t) = nullptr;
  int (*layout_create)(void**, int, std::uint64_t, std::uint64_t, std::int64_t) = nullptr;
  int (*layout_destroy)(void*) = nullptr;
  int (*preference_create)(void**) = nullptr;
  int (*preference_destroy)(void*) = nullptr;
  int (*preference_set)(void*, int, const void*, std::size_t) = nullptr;
  int (*heuristic)(void*, void*, void*, void*, void*, void*, void*, int, HeuristicResult*,
                   int*) = nullptr;
  int (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                const void*, void*, void*, void*, const void*, void*, std::size_t, void*) = nullptr;

  bool bind(const VendorLibrary& library) {
    const auto find = [&library](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
      return function != nullptr;
    };
    return find("cublasLtCreate", create) && find("cublasLtDestroy", destroy) &&
           find("cublasLtGetVersion", version) &&
           find("cublasLtMatmulDescCreate", operation_create) &&
           find("cublasLtMatmulDescDestroy", operation_destroy) &&
           find("cublasLtMatmulDescSetAttribute", operation_set) &&
           find("cublasLtMatrixLayoutCreate", layout_create) &&
           find("cublasLtMatrixLayoutDestroy", layout_destroy) &&
           find("cublasLtMatmulPreferenceCreate", preference_create) &&
           find("cublasLtMatmulPreferenceDestroy", preference_destroy) &&
           find("cublasLtMatmulPreferenceSetAttribute", preference_set) &&
           find("cublasLtMatmulAlgoGetHeuristic", heuristic) && find("cublasLtMatmul", matmul);
  }
};

CublasPeer::CublasPeer(VendorLibrary library)
    : library_(std::move(library)), api_(std::make_unique<Api>()) {}

CublasPeer::~CublasPeer() {
  if (handle_) api_->destroy(handle_);
}

Result<std::unique_ptr<CublasPeer>> CublasPeer::open() {
  auto library = VendorLibrary::open({}, {"libcublasLt.so.13", "libcublasLt.so.12"},
                                     {"/usr/local/cuda/lib64", "/usr/local/cuda/lib"});
  if (!library.ok())
    return Status(Code::no_driver, fmt::format("no cuBLASLt: {}", library.status().message()));
  std::unique_ptr<CublasPeer> out(new CublasPeer(std::move(*library)));
  if (!out->api_->bind(out->library_))
    return Status(Code::no_driver,
                  fmt::format("{} is not cuBLASLt 12 or 13", out->library_.path()));
  if (const int status = out->api_->create(&out->handle_); status != 0) {
    out->handle_ = nullptr;
    return failed("create", status);
  }
  out->version_ = out->api_->version();
  return out;
}

CublasPeer::Plan::~Plan() {
  if (!peer_) return;
  for (void* layout : {a_, b_, d_})
    if (layout) peer_->api_->layout_destroy(layout);
  if (operation_) peer_->api_->operation_destroy(operation_);
}

CublasPeer::Plan& CublasPeer::Plan::operator=(Plan&& other) noexcept {
  std::swap(peer_, other.peer_);
  std::swap(operation_, other.operation_);
  std::swap(a_, other.a_);
  std::swap(b_, other.b_);
  std::swap(d_, other.d_);
  std::swap(algorithm_, other.algorithm_);
  std::swap(workspace_, other.workspace_);
  return *this;
}

Result<CublasPeer::Plan> CublasPeer::plan(Input input, Sums sums, std::int64_t m, std::int64_t n,
                                          std::int64_t k, const void* one,
                                          std::size_t workspace) const {
  Plan out;
  out.peer_ = this;
  int status = api_->operation_create(&out.operation_, kComputeF32, kF32);
  const auto set = [&](int attribute, const auto& value) {
    if (status == 0) status = api_->operation_set(out.operation_, attribute, &value, sizeof value);
  };
  set(kTransposeA, std::int32_t{1});
  if (input == Input::e4m3) {
    set(kFastAccumulation, static_cast<std::int8_t>(sums == Sums::fast));
    set(kScaleA, one);
    set(kScaleB, one);
  }
  if (status != 0) return failed("describe the product", status);
  // cuBLAS is column-major: D^T [n, m] = B A^T.
  const int type = input == Input::bf16 ? kBf16 : kE4m3;
  const auto layout = [&](void** to, int element, std::int64_t rows, std::int64_t columns) {
    if (status == 0)
      status = api_->layout_create(to, element, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows);
  };
  layout(&out.a_, type, k, n);
  layout(&out.b_, type, k, m);
  layout(&out.d_, kBf16, n, m);
  if (status != 0) return failed("describe the operands", status);
  void* preference = nullptr;
  status = api_->preference_create(&preference);
  if (status == 0)
    status = api_->preference_set(preference, kMostWorkspace, &workspace, sizeof workspace);
  HeuristicResult found{};
  int count = 0;
  if (status == 0)
    status = api_->heuristic(handle_, out.operation_, out.a_, out.b_, out.d_, out.d_, preference, 1,
                             &found, &count);
  if (preference) api_->preference_destroy(preference);
  if (status != 0) return failed("choose an algorithm", status);
  if (count == 0)
    return Status(Code::not_supported,
                  fmt::format("cuBLASLt has no algorithm for m={} n={} k={}", m, n, k));
  out.algorithm_ = found.algorithm;
  out.workspace_ = found.workspace;
  return out;
}

Status CublasPeer::run(const Plan& plan, const void* a, const void* b, void* d, void* workspace,
                       void* stream) const {
  const float alpha = 1, beta = 0;
  const int status =
      api_->matmul(handle_, plan.operation_, &alpha, b, plan.a_, a, plan.b_, &beta, d, plan.d_, d,
                   plan.d_, plan.algorithm_.data(), workspace, plan.workspace_, stream);
  return status == 0 ? Status() : failed("run", status);
}

}  // namespace quarterturn
