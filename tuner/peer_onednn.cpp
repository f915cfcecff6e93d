#include "tuner/peer_onednn.hpp"

#include <fmt/format.h>

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>
#endif

#include "runtime/vendor_library.hpp"

namespace quarterturn {

#if defined(DNNL_VERSION_MAJOR) && DNNL_VERSION_MAJOR == 2

namespace {

// The functions we call, under their own names, bound by dlsym.
#define QTURN_DNNL_ENTRIES(X)           \
  X(dnnl_version)                       \
  X(dnnl_engine_create)                 \
  X(dnnl_stream_create)                 \
  X(dnnl_stream_wait)                   \
  X(dnnl_memory_desc_init_by_tag)       \
  X(dnnl_memory_desc_get_size)          \
  X(dnnl_memory_create)                 \
  X(dnnl_matmul_desc_init)              \
  X(dnnl_primitive_desc_create)         \
  X(dnnl_primitive_desc_query_md)       \
  X(dnnl_primitive_create)              \
  X(dnnl_primitive_execute)             \
  X(dnnl_reorder_primitive_desc_create) \
  X(dnnl_memory_destroy)                \
  X(dnnl_primitive_destroy)             \
  X(dnnl_primitive_desc_destroy) X(dnnl_stream_destroy) X(dnnl_engine_destroy)

struct Api {
#define X(name) decltype(&::name) name = nullptr;
  QTURN_DNNL_ENTRIES(X)
#undef X

  static Result<Api> load() {
    auto library = VendorLibrary::open({}, {fmt::format("libdnnl.so.{}", DNNL_VERSION_MAJOR)}, {});
    if (!library.ok()) return library.status();
    Api api;
    bool bound = true;
#define X(name) \
  bound = (api.name = reinterpret_cast<decltype(&::name)>(library->symbol(#name))) && bound;
    QTURN_DNNL_ENTRIES(X)
#undef X
    if (!bound || api.dnnl_version()->major != DNNL_VERSION_MAJOR)
      return Status(Code::no_driver,
                    fmt::format("{} is not oneDNN {}", library->path(), DNNL_VERSION_MAJOR));
    return api;
  }
};

class Matmul final : public OneDnnMatmul {
 public:
  explicit Matmul(const Api& api) : api_(api) {}
  ~Matmul() override {
    for (auto* memory : {a_, b_, d_})
      if (memory) api_.dnnl_memory_destroy(memory);
    if (primitive_) api_.dnnl_primitive_destroy(primitive_);
    if (description_) api_.dnnl_primitive_desc_destroy(description_);
    if (stream_) api_.dnnl_stream_destroy(stream_);
    if (engine_) api_.dnnl_engine_destroy(engine_);
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  Status prepare(std::int64_t m, std::int64_t n, std::int64_t k) {
    dnnl_memory_desc_t a{}, b{}, d{};
    const dnnl_dims_t a_dims = {m, k}, b_dims = {k, n}, d_dims = {m, n};
    dnnl_matmul_desc_t operation{};
    const bool ok =
        api_.dnnl_engine_create(&engine_, dnnl_cpu, 0) == dnnl_success &&
        api_.dnnl_stream_create(&stream_, engine_, dnnl_stream_default_flags) == dnnl_success &&
        api_.dnnl_memory_desc_init_by_tag(&a, 2, a_dims, dnnl_bf16, dnnl_ab) == dnnl_success &&
        api_.dnnl_memory_desc_init_by_tag(&b, 2, b_dims, dnnl_bf16, dnnl_format_tag_any) ==
            dnnl_success &&
        api_.dnnl_memory_desc_init_by_tag(&d, 2, d_dims, dnnl_f32, dnnl_ab) == dnnl_success &&
        api_.dnnl_matmul_desc_init(&operation, &a, &b, nullptr, &d) == dnnl_success &&
        api_.dnnl_primitive_desc_create(&description_, &operation, nullptr, engine_, nullptr) ==
            dnnl_success &&
        api_.dnnl_primitive_create(&primitive_, description_) == dnnl_success;
    if (!ok)
      return Status(Code::not_supported, "oneDNN has no bf16 matrix product for this shape here");
    const dnnl_memory_desc_t& b_preferred =
        *api_.dnnl_primitive_desc_query_md(description_, dnnl_query_weights_md, 0);
    // Values do not matter to its time, but subnormals might: 0x3f81 is 1.0078125.
    fill(a_data_, api_.dnnl_memory_desc_get_size(&a));
    fill(b_data_, api_.dnnl_memory_desc_get_size(&b_preferred));
    fill(d_data_, api_.dnnl_memory_desc_get_size(&d));
    if (api_.dnnl_memory_create(&a_, &a, engine_, a_data_.data()) != dnnl_success ||
        api_.dnnl_memory_create(&b_, &b_preferred, engine_, b_data_.data()) != dnnl_success ||
        api_.dnnl_memory_create(&d_, &d, engine_, d_data_.data()) != dnnl_success)
      return Status(Code::out_of_memory, "oneDNN could not describe its operands");
    return {};
  }

  Status run() override {
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, d_}};
    if (api_.dnnl_primitive_execute(primitive_, stream_, 3, arguments) != dnnl_success ||
        api_.dnnl_stream_wait(stream_) != dnnl_success)
      return Status(Code::launch_failed, "oneDNN failed to run");
    return {};
  }

 private:
  static void fill(std::vector<std::uint16_t>& data, std::size_t bytes) {
    data.assign((bytes + 1) / 2, 0x3f81);
  }

  Api api_;
  dnnl_engine_t engine_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  dnnl_primitive_desc_t description_ = nullptr;
  dnnl_primitive_t primitive_ = nullptr;
  dnnl_memory_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  std::vector<std::uint16_t> a_data_, b_data_, d_data_;
};

}  // namespace

Result<std::unique_ptr<OneDnnMatmul>> OneDnnMatmul::create(std::int64_t m, std::int64_t n,
                                                           std::int64_t k) {
  static const Result<Api> api = Api::load();
  if (!api.ok()) return api.status();
  auto out = std::make_unique<Matmul>(*api);
  if (auto status = out->prepare(m, n, k); !status.ok()) return status;
  return std::unique_ptr<OneDnnMatmul>(std::move(out));
}

#else

Result<std::unique_ptr<OneDnnMatmul>> OneDnnMatmul::create(std::int64_t, std::int64_t,
                                                           std::int64_t) {
  return Status(Code::no_driver,
                "this program was built without oneDNN 2's header (Debian: libdnnl-dev)");
}

#endif

}  // namespace quarterturn
