// MXFP4 products on Blackwell's tensor cores, simulated: bit by bit the scalar reference's, on data
// whose binary32 sums are exact in any order, whatever the schedule.
#include <doctest/doctest.h>

#include "tests/cuda/gemm_calls.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

Device& device(int ordinal) {
  setenv("QTURN_TEST_SIMULATED_CUDA", QTURN_SIMULATED_CUDA, 1);
  std::string why;
  Device* found = Device::find(why, ordinal);
  if (!found) throw std::runtime_error(why);
  return *found;
}
Device& sm100() { return device(2); }
Device& sm120() { return device(3); }

// What is added and multiplied has few bits, near each other.
Quantized exact_operand(std::int64_t rows, std::int64_t k, std::uint32_t seed) {
  Quantized out = random_operand(rows, k, Data::forward, seed);
  std::mt19937 random(seed);
  for (auto& scale : out.scales) scale = static_cast<std::uint8_t>(126 + random() % 3);
  return out;
}

struct Shape {
  std::int64_t m, n, k;
  DType d_type = DType::bf16;
  Accumulate accumulate = Accumulate::overwrite;
  Bias bias = Bias::none;
  std::int64_t extra = 0;  // elements between rows of D
  std::int64_t batch = 1;
};

Problem problem(const Shape& s) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 8192};
  p.n = {1, 8192};
  p.k = {0, 16384};
  p.batch = Extent::exactly(s.batch);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = s.d_type;
  p.accumulate = s.accumulate;
  p.bias = s.bias;
  return p;
}

// Operands of all batch entries behind each other.
struct Operands {
  std::vector<Quantized> each;
  std::unique_ptr<Memory> codes, scales;
  qt_tensor tensor{};

  Operands(Device& device, std::int64_t rows, std::int64_t k, std::int64_t batch,
           std::uint32_t seed) {
    std::vector<std::uint8_t> all_codes, all_scales;
    for (std::int64_t i = 0; i < batch; ++i) {
      each.push_back(exact_operand(rows, k, seed + static_cast<std::uint32_t>(i)));
      const auto tiles = tiles_128x4(each.back());
      all_codes.insert(all_codes.end(), each.back().codes.begin(), each.back().codes.end());
      all_scales.insert(all_scales.end(), tiles.begin(), tiles.end());
    }
    codes = std::make_unique<Memory>(device, all_codes);
    scales = std::make_unique<Memory>(device, all_scales);
    const auto count = static_cast<std::int64_t>(all_scales.size()) / batch;
    tensor = {codes->data(), scales->data(), each[0].k, 0, rows * each[0].k, count};
  }
};

float value_of(std::mt19937& random) { return static_cast<float>(random() % 17) - 8; }

std::vector<unsigned char> values(DType type, std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> out(static_cast<std::size_t>(count * bytes_of(type)));
  for (std::int64_t i = 0; i < count; ++i)
    put_float(type, out.data() + i * bytes_of(type), value_of(random));
  return out;
}

// One product, and the bytes that it must leave: the same whatever the schedule.
class Case {
 public:
  Case(Device& device, const Family& family, const Variant& variant, const Shape& shape)
      : device_(device),
        family_(family),
        variant_(variant),
        shape_(shape),
        a_(device, shape.m, shape.k, shape.batch, 1),
        b_(device, shape.n, shape.k, shape.batch, 101),
        ld_(shape.n + shape.extra),
        old_(values(shape.d_type, shape.batch * shape.m * ld_, 201)),
        bias_(values(shape.d_type, shape.n, 202)) {
    want_ = old_;
    for (std::int64_t entry = 0; entry < shape.batch; ++entry) expect(entry);
  }

  // Bytes of D, with what lies between its rows, that are wrong.
  std::int64_t wrong() {
    const Problem p = problem(shape_);
    REQUIRE(family_.refuses(p, device_.target()) == "");
    REQUIRE(family_.illegal(p, device_.target(), variant_) == "");
    Memory out(device_, old_), bias(device_, bias_);
    qt_args args{};
    args.m = shape_.m;
    args.n = shape_.n;
    args.k = shape_.k;
    args.batch = shape_.batch;
    args.groups = 1;
    args.a = a_.tensor;
    args.b = b_.tensor;
    args.d = {out.data(), nullptr, ld_, 0, shape_.m * ld_, 0};
    args.c = args.d;
    args.alpha = kAlpha;
    args.beta = kBeta;
    args.bias = bias.data();
    device_.run(family_, p, variant_, args);
    const auto got = out.download();
    std::int64_t count = 0;
    for (std::size_t i = 0; i < want_.size(); ++i) count += got[i] != want_[i];
    return count;
  }

 private:
  static constexpr float kAlpha = 0.5f, kBeta = 2.0f;

  static std::vector<double> decoded(const Quantized& q) {
    std::vector<double> out;
    for (std::int64_t i = 0; i < q.rows; ++i)
      for (std::int64_t k = 0; k < q.k; ++k) out.push_back(q.value(i, k));
    return out;
  }
  void expect(std::int64_t entry) {
    const auto a = decoded(a_.each[static_cast<std::size_t>(entry)]),
               b = decoded(b_.each[static_cast<std::size_t>(entry)]);
    const auto size = bytes_of(shape_.d_type), k = round_up(shape_.k, 32);
    for (std::int64_t i = 0; i < shape_.m; ++i)
      for (std::int64_t j = 0; j < shape_.n; ++j) {
        const auto at = ((entry * shape_.m + i) * ld_ + j) * size;
        double x = 0;
        for (std::int64_t e = 0; e < k; ++e)
          x += a[static_cast<std::size_t>(i * k + e)] * b[static_cast<std::size_t>(j * k + e)];
        x *= kAlpha;
        if (shape_.accumulate == Accumulate::accumulate)
          x += kBeta * as_float(shape_.d_type, old_.data() + at);
        if (shape_.bias == Bias::per_column) x += as_float(shape_.d_type, bias_.data() + j * size);
        put_float(shape_.d_type, want_.data() + at, static_cast<float>(x));
      }
  }

  Device& device_;
  const Family& family_;
  Variant variant_;
  Shape shape_;
  Operands a_, b_;
  std::int64_t ld_;
  std::vector<unsigned char> old_, bias_, want_;
};

constexpr Landing kLandings[] = {Landing::late, Landing::eager, Landing::mixed};

void check(Device& d, const Family& family,
           std::initializer_list<std::pair<const std::string, std::int64_t>> values, const Shape& s,
           std::uint64_t seeds = 1) {
  Case one(d, family, with(family, problem(s), d.target(), values), s);
  for (const auto landing : kLandings)
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      INFO(family.name(), " m=", s.m, " n=", s.n, " k=", s.k, " seed ", seed, " landing ",
           static_cast<int>(landing));
      d.schedule(seed, landing);
      CHECK(one.wrong() == 0);
    }
}

constexpr auto kAdds = Accumulate::accumulate;
constexpr auto kBias = Bias::per_column;

}  // namespace

TEST_CASE("blackwell.gemm_sm120 is exact for awkward sizes under every schedule") {
  Device& d = sm120();
  const auto& family = cuda::gemm_sm120();
  check(d, family, {{"tile_m", 16}}, {1, 5, 32}, 3);
  check(d, family, {{"tile_m", 64}, {"tile_n", 64}}, {7, 130, 64, DType::f16, kAdds, kBias, 3}, 2);
  check(d, family, {{"tile_m", 32}, {"stages", 2}}, {129, 1, 96, DType::f32, kAdds}, 2);
  check(d, family, {}, {129, 264, 576, DType::bf16, kAdds, kBias}, 2);
  check(d, family, {{"warps", 8}, {"stages", 4}}, {70, 140, 1504, DType::f32, kAdds, kBias, 5}, 2);
  check(d, family, {{"tile_m", 64}, {"raster", 1}},
        {65, 200, 160, DType::bf16, kAdds, kBias, 0, 2});
  check(d, family, {{"tile_m", 16}}, {5, 96, 0, DType::bf16, kAdds});
}

TEST_CASE("blackwell.gemm_sm100 is exact for awkward sizes under every schedule") {
  Device& d = sm100();
  const auto& family = cuda::gemm_sm100();
  check(d, family, {{"tile_n", 64}}, {1, 5, 32}, 3);
  check(d, family, {{"tile_n", 64}, {"sums", 1}}, {7, 130, 64, DType::f16, kAdds, kBias, 3}, 2);
  check(d, family, {{"tile_n", 192}, {"stages", 2}}, {129, 200, 1376, DType::f32, kAdds}, 2);
  check(d, family, {}, {129, 264, 576, DType::bf16, kAdds, kBias}, 2);
  check(d, family, {{"tile_n", 256}, {"sums", 1}, {"stages", 3}},
        {140, 260, 640, DType::bf16, kAdds, kBias, 5});
  check(d, family, {{"tile_n", 64}}, {65, 72, 160, DType::bf16, kAdds, kBias, 0, 2});
  check(d, family, {{"tile_n", 64}}, {5, 96, 0, DType::bf16, kAdds});
}

TEST_CASE("blackwell.gemm_sm100 by pairs of blocks is exact under every schedule") {
  Device& d = sm100();
  const auto& family = cuda::gemm_sm100();
  check(d, family, {{"blocks", 2}, {"tile_n", 64}}, {1, 5, 32}, 3);
  check(d, family, {{"blocks", 2}, {"tile_n", 64}}, {300, 136, 1376, DType::f16, kAdds, kBias, 3});
  check(d, family, {{"blocks", 2}, {"tile_n", 256}, {"sums", 1}, {"stages", 2}}, {200, 264, 576});
  check(d, family, {{"blocks", 2}, {"tile_n", 192}, {"stages", 3}}, {129, 200, 320, DType::f32});
}
