// Products of Blackwell's families that quantise their D where they compute it, simulated: bit by
// bit the reference's codes and scales of the same product's binary32 D, whatever the schedule.
#include "tests/simulated/blackwell.hpp"
#include "tests/simulated/unquantized.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

using Values = std::initializer_list<std::pair<const std::string, std::int64_t>>;

struct Quantizing {
  std::int64_t m, n, k;
  Epilogue epilogue = Epilogue::none;
  std::int32_t rotation = 32;
  ScaleRule rule = ScaleRule::rceil;
  Rounding rounding = Rounding::rne;
  Layout layout = Layout::scales_128x4;
  std::int64_t batch = 1;
  Copies copies = Copies::rows;
};

Problem problem(const Quantizing& q) {
  Problem p;
  p.op = Op::gemm_quantize;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 512};
  p.n = Extent::exactly(q.n);
  p.k = {0, 131072};
  p.batch = Extent::exactly(q.batch);
  p.a_type = p.b_type = p.d_type = DType::mxfp4;
  p.d_layout = q.layout;
  p.copies = q.copies;
  p.rotation = q.rotation;
  p.signs = q.rotation > 32 ? Signs::per_call : q.rotation > 0 ? Signs::fixed : Signs::none;
  p.scale_rule = q.rule;
  p.d_rounding = q.rounding;
  p.biased = BiasedRounding::allowed;
  p.epilogue = q.epilogue;
  p.bias = Bias::per_column;
  p.accumulate = Accumulate::accumulate;
  if (is_gated(q.epilogue)) p.pre_activation = PreActivation::kept;
  return p;
}

// One call and the codes and scales that it must leave.
class Case {
 public:
  Case(Device& device, const Family& family, const Quantizing& q, Values values)
      : device_(device),
        family_(family),
        q_(q),
        problem_(problem(q)),
        variant_(with(family, problem_, device.target(), values)),
        columns_(output_columns(q.epilogue, q.n)),
        length_(round_up(columns_, padding_unit(problem_))),
        a_(device, q.m, q.k, q.batch, 1, 0),
        b_(device, q.n, q.k, q.batch, 101, 0),
        c_(device, cuda_test::values(DType::f32, q.batch * q.m * q.n, 201)),
        bias_(device, cuda_test::values(DType::f32, q.n, 202)),
        aux_(device, cuda_test::values(DType::f32, q.batch * q.m * 2 * q.n, 203)),
        z_(device, q.batch * q.m * q.n * 4),
        codes_(device, by_rows() ? q.batch * q.m * ld() / 2 : 0),
        scales_(device, by_rows() ? q.batch * scale_bytes() : 0),
        codes2_(device, by_columns() ? columns_ * turned_length() / 2 : 0),
        scales2_(device, by_columns() ? turned_scale_bytes() : 0),
        workspace_(device, family.workspace_bytes(problem_, variant_, {q.m, q.n, q.k, q.batch})) {
    REQUIRE(validate(problem_).message() == "");
    REQUIRE(family.refuses(problem_, device.target()) == "");
    REQUIRE(family.check(problem_, device.target(), variant_).message() == "");
    args_.m = q.m;
    args_.n = q.n;
    args_.k = q.k;
    args_.batch = q.batch;
    args_.groups = 1;
    args_.a = a_.tensor;
    args_.b = b_.tensor;
    args_.c = {c_.data(), nullptr, q.n, 0, q.m * q.n, 0};
    args_.aux = {aux_.data(),
                 nullptr,
                 aux_columns(q.epilogue, q.n),
                 0,
                 q.m * aux_columns(q.epilogue, q.n),
                 0};
    args_.z = {z_.data(), nullptr, q.n, 0, q.m * q.n, 0};
    args_.bias = bias_.data();
    args_.alpha = 0x1p-4f;
    args_.beta = 0.25f;
    args_.noise_seed = 0x1234567890abcdefull;
    args_.sign_seed = 77;
    for (std::uint32_t i = 0; i < 8; ++i) args_.sign_mask[i] = 0x9e3779b9u * (i + 1);
    args_.stream = 5;
    args_.operand = 2;
    args_.row0 = 32;
    args_.workspace = workspace_.data();
    args_.workspace_bytes = workspace_.bytes();
    expect();
  }

  // Bytes that are wrong, also between and behind rows.
  std::int64_t wrong() {
    codes_.poison();
    scales_.poison();
    z_.poison();
    codes2_.poison();
    scales2_.poison();
    args_.d = {codes_.data(), scales_.data(), ld(), scale_ld(), q_.m * ld(), scale_bytes()};
    args_.d2 = {codes2_.data(), scales2_.data(), turned_length(), turned_length() / 32, 0, 0};
    if (!by_rows()) args_.d = args_.d2;
    device_.run_as_scheduled(family_, problem_, variant_, args_);
    return differing(codes2_.download(), want_codes2_) +
           differing(scales2_.download(), want_scales2_) +
           differing(codes_.download(), want_codes_) + differing(scales_.download(), want_scales_) +
           (is_gated(q_.epilogue) ? differing(z_.download(), want_z_) : 0);
  }

 private:
  bool by_rows() const { return q_.copies != Copies::columns; }
  bool by_columns() const { return q_.copies != Copies::rows; }
  // Of the transposed copy, which only single matrices have here.
  std::int64_t turned_length() const { return round_up(q_.m, padding_unit(problem_)); }
  std::int64_t turned_scale_bytes() const {
    return operand_bytes(q_.layout, columns_, turned_length()).scales;
  }
  bool plain() const { return q_.layout == Layout::plain; }
  std::int64_t ld() const { return length_ + (plain() ? 64 : 0); }
  std::int64_t scale_ld() const { return length_ / 32 + 3; }
  std::int64_t scale_bytes() const {
    return plain() ? q_.m * scale_ld() : operand_bytes(q_.layout, q_.m, length_).scales;
  }
  static std::int64_t differing(const std::vector<unsigned char>& x,
                                const std::vector<unsigned char>& y) {
    REQUIRE(x.size() == y.size());
    std::int64_t count = 0;
    for (std::size_t i = 0; i < x.size(); ++i) count += x[i] != y[i];
    return count;
  }

  // D in binary32: z is exact, whatever the order of sums.
  std::vector<float> unquantised() {
    const auto c = c_.download<float>(), bias = bias_.download<float>(),
               aux = aux_.download<float>();
    const auto aux_width = aux_columns(q_.epilogue, q_.n);
    std::vector<float> out;
    for (std::int64_t row = 0; row < q_.batch * q_.m; ++row) {
      const auto entry = static_cast<std::size_t>(row / q_.m);
      std::vector<float> z;
      for (std::int64_t j = 0; j < q_.n; ++j) {
        const double sum = reference::gemm_at(a_.each[entry], b_.each[entry], row % q_.m, j).value,
                     exact = double(args_.alpha) * sum +
                             double(args_.beta) * c[static_cast<std::size_t>(row * q_.n + j)] +
                             bias[static_cast<std::size_t>(j)];
        z.push_back(static_cast<float>(exact));
        REQUIRE(double(z.back()) == exact);
      }
      if (is_gated(q_.epilogue))
        for (const float v : z) {
          want_z_.resize(want_z_.size() + 4);
          std::memcpy(&want_z_[want_z_.size() - 4], &v, 4);
        }
      const auto d = qturn_test::unquantized_row(q_.epilogue, z, aux.data() + row * aux_width);
      out.insert(out.end(), d.begin(), d.end());
    }
    return out;
  }

  void expect() {
    const auto d = unquantised();
    auto spec = spec_of(problem_, problem_.d_rounding, args_);
    spec.row0 = args_.row0;
    want_codes_.assign(static_cast<std::size_t>(codes_.bytes()), 0xff);
    if (by_columns()) {
      // Beside rows, row0 is where this call's lie along the transposed copy.
      auto turned = spec;
      if (by_rows()) turned.row0 = 0, turned.k0 = args_.row0, turned.k_global = q_.m;
      const auto want = reference::quantize_columns(d.data(), q_.m, columns_, columns_, turned);
      REQUIRE(want.k == turned_length());
      want_codes2_ = want.codes;
      want_scales2_ = plain() ? want.scales : tiles_128x4(want);
    }
    for (std::int64_t entry = 0; by_rows() && entry < q_.batch; ++entry) {
      const auto want =
          reference::quantize(d.data() + entry * q_.m * columns_, q_.m, columns_, columns_, spec);
      REQUIRE(want.k == length_);
      for (std::int64_t row = 0; row < q_.m; ++row)
        std::copy_n(want.codes.begin() + row * length_ / 2, length_ / 2,
                    want_codes_.begin() + (entry * q_.m + row) * ld() / 2);
      if (!plain()) {
        const auto tiles = tiles_128x4(want);
        want_scales_.insert(want_scales_.end(), tiles.begin(), tiles.end());
      }
      for (std::int64_t row = 0; row < q_.m && plain(); ++row) {
        const auto from = want.scales.begin() + row * length_ / 32;
        want_scales_.insert(want_scales_.end(), from, from + length_ / 32);
        want_scales_.insert(want_scales_.end(), 3, 0xff);
      }
    }
  }

  Device& device_;
  const Family& family_;
  Quantizing q_;
  Problem problem_;
  Variant variant_;
  std::int64_t columns_, length_;  // of D, and with its padding
  Operands a_, b_;
  Memory c_, bias_, aux_, z_, codes_, scales_, codes2_, scales2_, workspace_;
  qt_args args_{};
  std::vector<unsigned char> want_codes_, want_scales_, want_codes2_, want_scales2_, want_z_;
};

void check(Device& device, const Family& family, const Quantizing& q, Values values) {
  INFO(family.name(), " ", problem(q).key(), " m=", q.m, " k=", q.k);
  Case one(device, family, q, values);
  std::uint64_t seed = 1;
  for (const auto landing : kLandings) {
    INFO("seed ", seed, " landing ", static_cast<int>(landing));
    device.schedule(seed++, landing);
    CHECK(one.wrong() == 0);
  }
}

}  // namespace

TEST_CASE("blackwell.gemm_sm120 quantises what it computes") {
  Device& d = sm120();
  const auto& family = cuda::gemm_sm120();
  using enum Epilogue;
  using enum ScaleRule;
  check(d, family, {70, 200, 768, none, 128, rceil, Rounding::sr16, Layout::plain, 2},
        {{"tile_m", 64}, {"splits", 3}});
  check(d, family,
        {70, 200, 96, none, 32, rceil, Rounding::sr16, Layout::scales_128x4, 1, Copies::both},
        {{"tile_m", 64}, {"tile_n", 64}});
  check(d, family,
        {150, 192, 128, dswiglu, 64, rceil, Rounding::rne, Layout::plain, 1, Copies::columns},
        {{"tile_m", 128}, {"tile_n", 64}, {"warps", 4}});
  check(d, family, {70, 192, 192, swiglu_split, 64, quest, Rounding::sr8},
        {{"tile_m", 64}, {"tile_n", 128}});
  // In two passes.
  check(d, family, {150, 96, 96, dswiglu, 32, ceil, Rounding::sr16},
        {{"tile_m", 128}, {"tile_n", 128}, {"warps", 8}});
}

TEST_CASE("blackwell.gemm_sm100 quantises what it computes") {
  Device& d = sm100();
  const auto& family = cuda::gemm_sm100();
  using enum Epilogue;
  using enum ScaleRule;
  check(d, family, {140, 200, 1280, none, 128, rceil, Rounding::sr16, Layout::plain, 2},
        {{"tile_n", 128}, {"splits", 2}, {"stages", 2}});
  check(d, family, {129, 256, 192, swiglu_split, 64, quest, Rounding::sr8},
        {{"blocks", 2}, {"stages", 2}});
  check(d, family, {37, 96, 96, dswiglu, 32, ceil, Rounding::sr16}, {{"stages", 3}});
}
