// cuBLASLt as a peer to measure against, opened at run time: D[m, n] = A[m, k] B[n, k]^T in bf16 or
// FP8 E4M3, bf16 out. Constants are those of cublasLt.h.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace quarterturn::cuda_test {

class CublasPeer {
 public:
  enum class Input { bf16, e4m3 };
  enum class Sums { exact, fast };

  CublasPeer() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if ((library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    ok_ = library_ && call<int(void**)>("cublasLtCreate")(&handle_) == 0;
  }
  CublasPeer(const CublasPeer&) = delete;
  CublasPeer& operator=(const CublasPeer&) = delete;
  explicit operator bool() const { return ok_; }
  /// 130100 for 13.1.0.
  std::size_t version() { return ok_ ? call<std::size_t()>("cublasLtGetVersion")() : 0; }

  struct Plan {
    void *operation = nullptr, *a = nullptr, *b = nullptr, *d = nullptr;
    std::uint64_t algorithm[8] = {};
    std::size_t workspace = 0;
    bool ok = false;
  };

  /// `one` is a float of 1 on the device: the scale of FP8 operands.
  Plan plan(Input input, Sums sums, std::int64_t m, std::int64_t n, std::int64_t k, void* one,
            std::size_t workspace) {
    constexpr int f32 = 0, bf16 = 14, e4m3 = 28, compute_f32 = 68;
    constexpr int desc_transa = 3, desc_a_scale = 17, desc_b_scale = 18, desc_fast = 25;
    constexpr int preference_workspace = 1;
    const int type = input == Input::bf16 ? bf16 : e4m3;
    Plan p;
    call<int(void**, int, int)>("cublasLtMatmulDescCreate")(&p.operation, compute_f32, f32);
    const auto set =
        call<int(void*, int, const void*, std::size_t)>("cublasLtMatmulDescSetAttribute");
    const std::int32_t transposed = 1;
    set(p.operation, desc_transa, &transposed, sizeof transposed);
    if (input == Input::e4m3) {
      const std::int8_t fast = sums == Sums::fast;
      set(p.operation, desc_fast, &fast, sizeof fast);
      set(p.operation, desc_a_scale, &one, sizeof one);
      set(p.operation, desc_b_scale, &one, sizeof one);
    }
    // cuBLAS is column-major: D^T [n, m] = B A^T.
    const auto layout = call<int(void**, int, std::uint64_t, std::uint64_t, std::int64_t)>(
        "cublasLtMatrixLayoutCreate");
    const auto u = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
    layout(&p.a, type, u(k), u(n), k);
    layout(&p.b, type, u(k), u(m), k);
    layout(&p.d, bf16, u(n), u(m), n);
    void* preference = nullptr;
    call<int(void**)>("cublasLtMatmulPreferenceCreate")(&preference);
    call<int(void*, int, const void*, std::size_t)>("cublasLtMatmulPreferenceSetAttribute")(
        preference, preference_workspace, &workspace, sizeof workspace);
    struct {
      std::uint64_t algorithm[8];
      std::size_t workspace;
      int state;
      float waves;
      int reserved[4];
    } found{};
    int count = 0;
    const int status = call<int(void*, void*, void*, void*, void*, void*, void*, int, void*, int*)>(
        "cublasLtMatmulAlgoGetHeuristic")(handle_, p.operation, p.a, p.b, p.d, p.d, preference, 1,
                                          &found, &count);
    p.ok = status == 0 && count > 0;
    for (int i = 0; i < 8; ++i) p.algorithm[i] = found.algorithm[i];
    p.workspace = found.workspace;
    return p;
  }

  int run(const Plan& p, const void* a, const void* b, void* d, void* workspace, void* stream) {
    const float alpha = 1, beta = 0;
    return call<int(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                    const void*, void*, void*, void*, const void*, void*, std::size_t, void*)>(
        "cublasLtMatmul")(handle_, p.operation, &alpha, b, p.a, a, p.b, &beta, d, p.d, d, p.d,
                          p.algorithm, workspace, p.workspace, stream);
  }

 private:
  template <class Signature>
  Signature* call(const char* name) {
    return reinterpret_cast<Signature*>(dlsym(library_, name));
  }
  void* library_ = nullptr;
  void* handle_ = nullptr;
  bool ok_ = false;
};

}  // namespace quarterturn::cuda_test
