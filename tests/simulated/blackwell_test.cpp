// MXFP4 products on Blackwell's tensor cores, simulated: bit by bit the scalar reference's, on data
// whose binary32 sums are exact in any order, whatever the schedule.
#include "tests/simulated/blackwell.hpp"

#include "generator/grouping.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

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
  p.m = {0, 512};
  p.n = {1, 512};
  p.k = {0, 131072};
  p.batch = Extent::exactly(s.batch);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = s.d_type;
  p.accumulate = s.accumulate;
  p.bias = s.bias;
  return p;
}

// One product, and the bytes that it must leave: the same whatever the schedule.
class Case {
 public:
  Case(Device& device, const Family& family, const Variant& variant, const Shape& shape)
      : device_(device),
        family_(family),
        variant_(variant),
        shape_(shape),
        a_(device, shape.m, shape.k, shape.batch, 1, behind(family)),
        b_(device, shape.n, shape.k, shape.batch, 101, behind(family)),
        ld_(shape.n + shape.extra),
        old_(values(shape.d_type, shape.batch * shape.m * ld_, 201)),
        bias_(values(shape.d_type, shape.n, 202)),
        workspace_(device, family.workspace_bytes(problem(shape), variant,
                                                  {shape.m, shape.n, shape.k, shape.batch})) {
    want_ = old_;
    for (std::int64_t entry = 0; entry < shape.batch; ++entry) expect(entry);
  }

  // Bytes of D, with what lies between its rows, that are wrong.
  std::int64_t wrong() {
    const Problem p = problem(shape_);
    REQUIRE(family_.refuses(p, device_.target()) == "");
    REQUIRE(family_.check(p, device_.target(), variant_).message() == "");
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
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_.bytes();
    device_.run_as_scheduled(family_, p, variant_, args);
    const auto got = out.download();
    std::int64_t count = 0;
    for (std::size_t i = 0; i < want_.size(); ++i) count += got[i] != want_[i];
    return count;
  }

 private:
  static constexpr float kAlpha = 0.5f, kBeta = 2.0f;

  // Warps look away from scales behind a row's last block, which may be anything: NaN.
  static std::uint8_t behind(const Family& family) {
    return family.name() == "cuda_gemm_sm120" ? 255 : 0;
  }

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
  Memory workspace_;  // from run to run as it is
};

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

// What a quantiser or a packer wrote, scales behind rows' last blocks with it.
void check_tiles(const Quantized& want, const Memory& codes, const Memory& scales) {
  CHECK(codes.download() == want.codes);
  const auto tiles = tiles_128x4(want), got = scales.download();
  REQUIRE(got.size() == tiles.size());
  // Poison where tiles have more rows than the operand.
  CHECK(got == tiles);
}

void check_quantised(Device& d, std::int64_t m, std::int64_t k, std::int32_t rotation,
                     Copies copies, Rounding rounding) {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 4096};
  p.k = {0, 4096};
  p.a_type = DType::bf16;
  p.d_type = DType::mxfp4;
  p.d_layout = Layout::scales_128x4;
  p.rotation = rotation;
  p.copies = copies;
  p.a_rounding = rounding;
  std::vector<float> x(static_cast<std::size_t>(m * k));
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto& v : x) v = normal(random);
  const Memory in(d, stored(p.a_type, x));
  const auto unit = padding_unit(p);
  const auto rows = operand_bytes(p.d_layout, m, k, unit),
             columns = operand_bytes(p.d_layout, k, m, unit);
  Memory codes(d, rows.codes), scales(d, rows.scales), codes2(d, columns.codes),
      scales2(d, columns.scales);
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = args.groups = 1;
  args.noise_seed = 11;
  args.a = {in.data(), nullptr, k, 0, 0, 0};
  const qt_tensor by_rows = {codes.data(), scales.data(), 0, 0, 0, 0},
                  by_columns = {codes2.data(), scales2.data(), 0, 0, 0, 0};
  args.d = copies == Copies::columns ? by_columns : by_rows;
  args.d2 = by_columns;
  INFO(p.key(), " m=", m, " k=", k);
  d.run(cuda::quantize(), p, cuda::quantize().default_variant(p, d.target()), args);
  const auto spec = spec_of(p, p.a_rounding, args);
  if (copies != Copies::columns)
    check_tiles(reference::quantize(x.data(), m, k, k, spec), codes, scales);
  if (copies != Copies::rows)
    check_tiles(reference::quantize_columns(x.data(), m, k, k, spec), codes2, scales2);
}

// A product of groups: A and B of each, as kernels find them.
struct GroupedCase {
  Grouping grouping;
  std::int64_t m, n, k;  // tokens in k_grouped
  std::vector<std::int32_t> sizes;
};

struct GroupedParts {
  Problem p;
  std::vector<Quantized> a, b;                   // the matrices in memory
  std::vector<Quantized> left, right;            // of each product
  std::vector<std::int64_t> entry, first, rows;  // of D
};

// `part` amid NaN and sixes, from column `at` on of a longer operand.
void place(Quantized& whole, const Quantized& part, std::int64_t at) {
  for (std::int64_t i = 0; i < part.rows; ++i) {
    std::copy_n(part.codes.begin() + i * part.k / 2, part.k / 2,
                whole.codes.begin() + (i * whole.k + at) / 2);
    std::copy_n(part.scales.begin() + i * part.k / 32, part.k / 32,
                whole.scales.begin() + (i * whole.k + at) / 32);
  }
}
Quantized poisoned(std::int64_t rows, std::int64_t k) {
  Quantized out;
  out.rows = rows;
  out.k = k;
  out.codes.assign(static_cast<std::size_t>(rows * k / 2), 0x77);
  out.scales.assign(static_cast<std::size_t>(rows * k / 32), 255);
  return out;
}

GroupedParts parts_of(const GroupedCase& c) {
  GroupedParts out;
  out.p = problem({c.m, c.n, c.k});
  out.p.grouping = c.grouping;
  out.p.groups = {1, 16};
  const auto groups = static_cast<std::int64_t>(c.sizes.size());
  const auto length = copy_length(out.p, c.k, groups);
  const bool tokens = c.grouping == Grouping::k_grouped;
  if (tokens) out.a = {poisoned(c.m, length)}, out.b = {poisoned(c.n, length)};
  if (c.grouping == Grouping::m_contiguous) out.a = {exact_operand(c.m, c.k, 1)};
  std::int64_t before = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto size = c.sizes[static_cast<std::size_t>(g)];
    const auto seed = static_cast<std::uint32_t>(10 + g);
    if (tokens) {
      out.left.push_back(exact_operand(c.m, size - before, seed));
      out.right.push_back(exact_operand(c.n, size - before, seed + 50));
      // Its padding is zeros, up to a multiple of 128.
      for (auto* side : {&out.left, &out.right}) {
        Quantized whole = side->back();
        Quantized padded = poisoned(whole.rows, round_up(whole.k, 128));
        std::fill(padded.codes.begin(), padded.codes.end(), 0);
        std::fill(padded.scales.begin(), padded.scales.end(), 0);
        place(padded, whole, 0);
        place(side == &out.left ? out.a[0] : out.b[0], padded, (before / 128 + g) * 128);
      }
    } else {
      if (c.grouping == Grouping::m_masked) out.a.push_back(exact_operand(c.m, c.k, seed));
      out.b.push_back(exact_operand(c.n, c.k, seed + 50));
      out.left.push_back(out.a.back());
      out.right.push_back(out.b.back());
    }
    const bool contiguous = c.grouping == Grouping::m_contiguous;
    out.entry.push_back(contiguous ? 0 : g);
    out.first.push_back(contiguous ? before : 0);
    out.rows.push_back(tokens ? c.m : contiguous ? size - before : size);
    if (c.grouping != Grouping::m_masked) before = size;
  }
  return out;
}

void check_groups(Device& d, const Family& family, const GroupedCase& c,
                  std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  const GroupedParts parts = parts_of(c);
  REQUIRE(family.refuses(parts.p, d.target()) == "");
  const auto v = with(family, parts.p, d.target(), values);
  const Operands a(d, parts.a), b(d, parts.b);
  const auto groups = static_cast<std::int64_t>(c.sizes.size());
  const auto entries = c.grouping == Grouping::m_contiguous ? 1 : groups;
  std::vector<std::uint16_t> want(static_cast<std::size_t>(entries * c.m * c.n), 0xffff);
  for (std::size_t g = 0; g < parts.left.size(); ++g)
    for (std::int64_t i = 0; i < parts.rows[g]; ++i)
      for (std::int64_t j = 0; j < c.n; ++j) {
        double x = 0;
        for (std::int64_t k = 0; k < parts.left[g].k; ++k)
          x += parts.left[g].value(parts.first[g] + i, k) * parts.right[g].value(j, k);
        const auto row = parts.entry[g] * c.m + parts.first[g] + i;
        want[static_cast<std::size_t>(row * c.n + j)] =
            reference::bf16_bits(static_cast<float>(0.5 * x));
      }
  Memory out(d, entries * c.m * c.n * 2), sizes(d, c.sizes),
      workspace(d, family.workspace_bytes(parts.p, v, {c.m, c.n, c.k, 1, groups}));
  qt_args args{};
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.batch = entries;
  args.groups = groups;
  args.group_sizes = sizes.data<int>();
  args.a = a.tensor;
  args.b = b.tensor;
  args.d = {out.data(), nullptr, c.n, 0, c.m * c.n, 0};
  args.alpha = 0.5f;
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  for (const auto landing : kLandings) {
    INFO(v.text(), " ", name_of(c.grouping), " landing ", static_cast<int>(landing));
    d.schedule(5, landing);
    out.poison();
    d.run(family, parts.p, v, args);
    CHECK(out.download<std::uint16_t>() == want);
  }
}

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
  check(d, family, {{"tile_n", 64}, {"sums", 1}}, {129, 330, 64, DType::f16, kAdds, kBias, 3}, 2);
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

TEST_CASE("blackwell.products share out K among blocks under every schedule") {
  const auto& by_warps = cuda::gemm_sm120();
  check(sm120(), by_warps, {{"tile_m", 16}, {"splits", 2}}, {5, 130, 672, DType::bf16}, 2);
  // With fewer steps than parts, and none, too; entries of a batch, of one tile, side by side.
  const Shape tiles{70, 96, 1312, DType::f32, kAdds, kBias, 3, 2};
  Shape one = tiles;
  one.m = 60, one.n = 50;
  check(sm120(), by_warps, {{"tile_m", 64}, {"tile_n", 64}, {"splits", 3}}, tiles, 4);
  for (const std::int64_t k : {672, 160, 0}) {
    one.k = k;
    check(sm120(), by_warps, {{"tile_m", 64}, {"tile_n", 64}, {"splits", 3}}, one, 4);
  }
  const auto& by_tiles = cuda::gemm_sm100();
  for (const std::int64_t k : {1184, 288, 0})
    check(sm100(), by_tiles, {{"tile_n", 192}, {"sums", 1}, {"stages", 2}, {"splits", 3}},
          {129, 200, k, DType::f32, kAdds, kBias, 3, 2}, 2);
  check(sm100(), by_tiles, {{"blocks", 2}, {"tile_n", 64}, {"splits", 2}}, {200, 72, 1376}, 2);
}

TEST_CASE("blackwell.quantisers write tiles of scales, 0 behind a row's last block") {
  for (Device* d : {&sm120(), &sm100()}) {
    check_quantised(*d, 130, 96, 32, Copies::rows, Rounding::rne);
    check_quantised(*d, 45, 160, 32, Copies::columns, Rounding::sr16);
    check_quantised(*d, 200, 64, 32, Copies::both, Rounding::rne);
  }
}

TEST_CASE("blackwell.pack makes tiles of plain scales") {
  Device& d = sm120();
  Problem p;
  p.op = Op::pack;
  p.role = Role::wgrad;
  p.m = {0, 4096};
  p.k = {0, 4096};
  p.a_type = p.d_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_layout = Layout::scales_128x4;
  const auto q = exact_operand(131, 288, 3);
  const DeviceOperand from(d, q, Layout::plain);
  const auto bytes = operand_bytes(p.d_layout, q.rows, q.k);
  Memory codes(d, bytes.codes), scales(d, bytes.scales);
  qt_args args{};
  args.m = q.rows;
  args.k = q.k;
  args.batch = args.groups = 1;
  args.a = from.tensor;
  args.d = {codes.data(), scales.data(), 0, 0, 0, 0};
  d.run(cuda::pack(), p, cuda::pack().default_variant(p, d.target()), args);
  check_tiles(q, codes, scales);
}

TEST_CASE("blackwell.products of groups are exact under every schedule") {
  const auto& by_warps = cuda::gemm_sm120();
  check_groups(sm120(), by_warps, {Grouping::m_contiguous, 200, 40, 96, {0, 3, 140, 140, 180}},
               {{"tile_m", 64}, {"tile_n", 64}});
  check_groups(sm120(), by_warps, {Grouping::m_masked, 70, 40, 96, {70, 0, 5}},
               {{"tile_m", 64}, {"tile_n", 64}});
  check_groups(sm120(), by_warps, {Grouping::k_grouped, 40, 70, 500, {0, 3, 260, 261, 490}},
               {{"tile_m", 64}, {"tile_n", 64}});
  check_groups(sm120(), by_warps, {Grouping::m_contiguous, 200, 40, 480, {0, 3, 140, 140, 180}},
               {{"tile_m", 64}, {"tile_n", 64}, {"splits", 2}});
  const auto& by_tiles = cuda::gemm_sm100();
  check_groups(sm100(), by_tiles, {Grouping::k_grouped, 40, 70, 900, {0, 3, 460, 461, 890}},
               {{"tile_n", 64}, {"splits", 2}});
  check_groups(sm100(), by_tiles, {Grouping::m_masked, 130, 40, 96, {129, 0, 5}}, {{"tile_n", 64}});
  check_groups(sm100(), by_tiles, {Grouping::k_grouped, 40, 70, 500, {0, 3, 260, 261, 490}},
               {{"tile_n", 64}, {"blocks", 2}});
}
