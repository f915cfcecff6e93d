// Activations and derivatives in the epilogues of GPU products, sums of columns, and quantising
// behind a prologue, against the scalar reference.
#include "reference/epilogue.hpp"

#include <doctest/doctest.h>

#include <span>

#include "reference/column_sums.hpp"
#include "reference/prologue.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/product_check.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

Device* device_or_skip() {
  std::string why;
  Device* device = Device::find(why);
  if (!device) std::cout << "SKIPPED: " << why << "\n";
  return device;
}

float rounded(DType type, float x) {
  if (type == DType::bf16) return reference::bf16_value(reference::bf16_bits(x));
  if (type == DType::f16) return reference::f16_value(reference::f16_bits(x));
  return x;
}

// A matrix with `extra` elements between rows, on the device and as values.
struct Dense {
  DType type;
  std::int64_t rows, columns, ld;
  std::vector<float> values;
  std::unique_ptr<Memory> memory;

  Dense(Device& device, DType t, std::int64_t r, std::int64_t c, std::int64_t extra)
      : type(t), rows(r), columns(c), ld(c + extra) {
    memory = std::make_unique<Memory>(device, rows * ld * bytes_of(type));
  }
  void fill(float scale, std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> all(static_cast<std::size_t>(rows * ld));
    for (auto& x : all) x = rounded(type, normal(random));
    auto bytes = stored(type, all);
    memory->upload(bytes.data());
    values = std::move(all);
  }
  float at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * ld + c)];
  }
  qt_tensor tensor() const { return {memory->data(), nullptr, ld, 0, 0, 0}; }
};

double half_step(DType type, double value) {
  if (type == DType::bf16) return std::max(std::fabs(value) * 0x1p-8, 0x1p-133);
  if (type == DType::f16) return std::max(std::fabs(value) * 0x1p-11, 0x1p-24);
  return std::max(std::fabs(value) * 0x1p-24, 0x1p-149);
}

struct Mode {
  Epilogue epilogue;
  DType d_type, c_type;
  bool bias, accumulate, keeps_z;
};

struct Shape {
  std::int64_t m, n, k, extra;
  int spoiled;  // of 8 rows, those given a block scale that windows do not hold
};

bool is_int8(const Family& family) { return family.name().ends_with("int8"); }

Problem problem_of(const Family& family, const Mode& mode) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;
  p.m = {0, 8192};
  p.n = {2, 8192};
  p.k = {0, 16384};
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = mode.d_type;
  p.c_type = mode.c_type;
  p.epilogue = mode.epilogue;
  p.bias = mode.bias ? Bias::per_column : Bias::none;
  p.accumulate = mode.accumulate ? Accumulate::accumulate : Accumulate::overwrite;
  p.pre_activation = mode.keeps_z ? PreActivation::kept : PreActivation::dropped;
  const bool fast = family.name().ends_with("e5m2");
  p.contract = fast ? Contract::fast : Contract::exact;
  p.spread = is_int8(family) ? Spread::narrow : Spread::any;
  return p;
}

Quantized operand(std::int64_t rows, std::int64_t k, int spoiled, std::uint32_t seed) {
  auto q = random_operand(rows, k, Data::forward, seed);
  for (std::int64_t r = 0; r < rows && q.k > 0; ++r)
    if (spoiled > 0 && static_cast<int>((r * 5 + seed) % 8) < spoiled)
      q.scales[static_cast<std::size_t>(r * (q.k / 32))] = 90;  // 30 binades down
  return q;
}

struct DeviceOperand {
  std::unique_ptr<Memory> data, scales;
  qt_tensor tensor{};
  DeviceOperand(Device& device, const Quantized& q, Layout layout) {
    if (layout == Layout::bf16) {
      data = std::make_unique<Memory>(device, bf16_rows(q));
      tensor = {data->data(), nullptr, q.k, 0, 0, 0};
    } else if (layout == Layout::plain) {
      data = std::make_unique<Memory>(device, q.codes);
      scales = std::make_unique<Memory>(device, q.scales);
      tensor = {data->data(), scales->data(), q.k, q.k / 32, 0, 0};
    } else {
      const auto rows = expand(q, layout);
      data = std::make_unique<Memory>(device, rows.data);
      scales = std::make_unique<Memory>(device, rows.reference);
      tensor = {data->data(), scales->data(), packed_stride(layout, q.k), 1, 0, 0};
    }
  }
};

// One call, checked element by element; how many elements are wrong.
std::int64_t run(Device& device, const Family& family, const Mode& mode, const Variant& v,
                 const Shape& s, std::uint32_t seed) {
  const Problem p = problem_of(family, mode);
  const auto layout = family.a_layout(p, v);
  const auto qa = operand(s.m, s.k, s.spoiled, seed), qb = operand(s.n, s.k, s.spoiled, seed + 1);
  const DeviceOperand a(device, qa, layout), b(device, qb, layout);
  const DType side = side_type(p);
  std::mt19937 random(seed);
  Dense c(device, side, s.m, s.n, s.extra), z(device, side, s.m, s.n, s.extra),
      bias(device, side, 1, s.n, 0),
      aux(device, side, s.m, std::max<std::int64_t>(1, aux_columns(p.epilogue, s.n)), s.extra),
      d(device, p.d_type, s.m, output_columns(p.epilogue, s.n), s.extra);
  c.fill(1.0f, random);
  aux.fill(3.0f, random);
  bias.fill(1.0f, random);
  qt_args args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = args.groups = 1;
  args.a = a.tensor;
  args.b = b.tensor;
  args.c = c.tensor();
  args.aux = aux.tensor();
  args.z = z.tensor();
  args.d = d.tensor();
  args.bias = bias.memory->data();
  args.alpha = 0.25f;
  args.beta = mode.accumulate ? -0.5f : 0.0f;
  device.run(family, p, v, args);
  if (const auto then = family.stand_in(p, v)) {
    Problem given = p;
    given.a_layout = given.b_layout = layout;
    device.run(cuda::stand_in(), given, *then, args);
  }
  const auto got = d.memory->download();
  const auto kept = z.memory->download();

  const auto a_reference = references_of(qa, layout, layout),
             b_reference = references_of(qb, layout, layout);
  std::vector<RowValues> columns;
  for (std::int64_t j = 0; j < s.n; ++j) columns.emplace_back(qb, j);
  const auto form = static_cast<reference::Epilogue>(p.epilogue);
  std::int64_t wrong = 0;
  const auto complain = [&](const char* what, std::int64_t r, std::int64_t i, double now,
                            double wanted, double most) {
    if (wrong++ < 3)
      std::cout << fmt::format("{} {} {}x{}x{}: {}[{}, {}] = {}, wanted {} +- {}\n", v.text(),
                               p.key(), s.m, s.n, s.k, what, r, i, now, wanted, most);
  };
  for (std::int64_t r = 0; r < s.m; r += std::max<std::int64_t>(1, s.m / 40)) {
    const RowValues row(qa, r);
    std::vector<reference::Product> products;
    std::vector<double> lost;
    for (std::int64_t j = 0; j < s.n; ++j) {
      const bool unfit = !a_reference.empty() && (a_reference[static_cast<std::size_t>(r)] == 255 ||
                                                  b_reference[static_cast<std::size_t>(j)] == 255);
      const auto exact = exact_product(row, columns[static_cast<std::size_t>(j)],
                                       unfit ? exact_core() : tensor_core_of(v));
      const double more = double(args.beta) * c.at(r, j) * mode.accumulate +
                          (mode.bias ? double(bias.at(0, j)) : 0.0);
      const double magnitude = args.alpha * exact.magnitude + std::fabs(args.beta * c.at(r, j)) +
                               std::fabs(bias.at(0, j));
      products.push_back(
          {args.alpha * exact.value + more, args.alpha * exact.lost + 6 * 0x1p-24 * magnitude});
      if (!mode.keeps_z) continue;
      const double now = as_float(side, kept.data() + (r * z.ld + j) * bytes_of(side));
      const double most = products.back().magnitude + half_step(side, products.back().value);
      if (!(std::fabs(now - products.back().value) <= most))
        complain("z", r, j, now, products.back().value, most);
    }
    const auto aux_row = [&](std::int64_t i) { return double(aux.at(r, i)); };
    for (std::int64_t i = 0; i < d.columns; ++i) {
      const auto from = reference::sources_of(form, i, s.n);
      // Magnitudes here are bounds already.
      const auto& first = products[static_cast<std::size_t>(from.first)];
      const auto second =
          from.second < 0 ? reference::Product{} : products[static_cast<std::size_t>(from.second)];
      const auto wanted = reference::activate(
          form, i, s.n, first, second, 1.0, aux_row,
          p.contract == Contract::fast ? reference::Means::approximate : reference::Means::exact);
      const double now = as_float(p.d_type, got.data() + (r * d.ld + i) * bytes_of(p.d_type));
      const double most = wanted.error + half_step(p.d_type, wanted.value);
      if (!(std::fabs(now - wanted.value) <= most)) complain("D", r, i, now, wanted.value, most);
    }
    const auto size = bytes_of(p.d_type);
    for (auto at = (r * d.ld + d.columns) * size; at < (r + 1) * d.ld * size; ++at)
      if (got[static_cast<std::size_t>(at)] != 0xff) ++wrong;
  }
  return wrong;
}

constexpr Epilogue kAll[] = {
    Epilogue::gelu,  Epilogue::gelu_tanh,  Epilogue::swiglu_split, Epilogue::swiglu_interleaved,
    Epilogue::dgelu, Epilogue::dgelu_tanh, Epilogue::dswiglu,      Epilogue::dswiglu_interleaved};

constexpr Shape kShapes[] = {{1, 2, 32, 0, 0},       {129, 258, 96, 3, 0}, {300, 1000, 576, 0, 2},
                             {257, 520, 1504, 1, 1}, {77, 384, 0, 0, 0},   {640, 1408, 288, 8, 0}};

constexpr Shape kSmallShapes[] = {
    {1, 2, 32, 0, 0}, {129, 258, 96, 3, 0}, {70, 136, 288, 1, 1}, {77, 130, 0, 0, 0}};

void check_family(const Family& family) {
  Device* device = device_or_skip();
  if (!device) return;
  struct Case {
    Mode mode;
    Variant variant;
    Shape shape;
  };
  std::vector<Case> cases;
  std::vector<std::pair<Source, std::string>> sources;
  int turn = 0;
  for (const Epilogue epilogue : kAll)
    for (const DType type : {DType::bf16, DType::f32}) {
      ++turn;
      // What follows the products is one text for all three that wgmma computes.
      const std::size_t every = family.name() == "cuda_gemm_e5m2" ? 4 : 9;
      if (is_left_out(*device, static_cast<std::size_t>(turn - 1), every)) continue;
      Mode mode{epilogue,
                type,
                type == DType::f32 && turn % 3 == 0 ? DType::f16 : DType::none,
                turn % 2 == 0,
                turn % 4 < 2,
                !is_derivative(epilogue)};
      const Problem p = problem_of(family, mode);
      if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
        std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
        return;
      }
      auto v = family.default_variant(p, device->target());
      if (family.name() == "cuda_gemm_mma") {
        if (type == DType::f32) v.values["tile_m"] = 16;
      } else if (type == DType::f32) {
        v.values["cluster"] = 2;
        v.values["tile_n"] = 160;
      } else if (turn % 4 == 1) {
        v.values["tile_n"] = 96;
      }
      if (!family.illegal(p, device->target(), v).empty()) v.values["tile_n"] = 128;
      REQUIRE(family.illegal(p, device->target(), v).empty());
      sources.emplace_back(family.emit(p, device->target(), v), v.text());
      for (const Shape& s : device->simulated() ? std::span<const Shape>(kSmallShapes) : kShapes)
        cases.push_back({mode, v, s});
      if (const auto then = family.stand_in(p, v)) {
        Problem given = p;
        given.a_layout = given.b_layout = family.a_layout(p, v);
        sources.emplace_back(cuda::stand_in().emit(given, device->target(), *then), "stand-in");
      }
    }
  compile_all(*device, sources);
  std::uint32_t seed = 1;
  for (const auto& c : cases)
    CHECK(run(*device, family, c.mode, c.variant, c.shape, seed += 10) == 0);
  std::cout << family.name() << ": " << cases.size() << " epilogue cases\n";
}

}  // namespace

TEST_CASE("cuda_epilogue.int8 products") { check_family(cuda::gemm_int8()); }
TEST_CASE("cuda_epilogue.e5m2 products") { check_family(cuda::gemm_e5m2()); }
TEST_CASE("cuda_epilogue.bf16 products") { check_family(cuda::gemm_bf16()); }
TEST_CASE("cuda_epilogue.mma products") { check_family(cuda::gemm_mma()); }

TEST_CASE("cuda_epilogue.sums of columns have the reference's bits") {
  Device* device = device_or_skip();
  if (!device) return;
  std::mt19937 random(5);
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const auto& [m, k, extra] : {std::tuple<int, int, int>{0, 5, 0},
                                      {1, 1, 1},
                                      {63, 33, 0},
                                      {1000, 257, 3},
                                      {4099, 96, 0}}) {
      Dense x(*device, type, m, k, extra);
      x.fill(2.0f, random);
      Problem p;
      p.op = Op::column_sums;
      p.m = {0, 8192};
      p.k = {1, 8192};
      p.a_type = type;
      p.d_type = DType::f32;
      Memory d(*device, k * 4);
      qt_args args{};
      args.m = m;
      args.k = k;
      args.batch = 1;
      args.a = x.tensor();
      args.d = {d.data(), nullptr, k, 0, 0, 0};
      device->run(cuda::column_sums(), p, cuda::column_sums().default_variant(p, device->target()),
                  args);
      const auto wanted = reference::column_sums(x.values.data(), m, k, x.ld);
      CHECK(d.download<float>() == wanted);
    }
}

namespace {

// Rows and columns of X behind a prologue, quantised on the device and by the reference.
std::int64_t wrong_codes(Device& device, const Problem& p, std::int64_t m, std::int64_t k,
                         std::int64_t extra, std::uint32_t seed) {
  std::mt19937 random(seed);
  Dense x(device, p.a_type, m, input_columns(p.prologue, k), extra),
      weight(device, p.a_type, 1, k, 0);
  x.fill(2.0f, random);
  weight.fill(1.0f, random);
  std::vector<float> y;
  for (std::int64_t r = 0; r < m; ++r) {
    const float* row = x.values.data() + r * x.ld;
    if (p.prologue == Prologue::rmsnorm) {
      const auto normed = reference::rmsnorm(row, weight.values.data(), k, 1e-5f);
      y.insert(y.end(), normed.begin(), normed.end());
    } else {
      const bool split = p.prologue == Prologue::swiglu_split;
      for (std::int64_t i = 0; i < k; ++i)
        y.push_back(reference::swiglu32(row[split ? i : 2 * i], row[split ? k + i : 2 * i + 1]));
    }
  }
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = 1;
  args.a = x.tensor();
  args.norm_weight = weight.memory->data();
  args.epsilon = 1e-5f;
  args.noise_seed = 77;
  args.stream = 3;
  args.sign_seed = 5;
  const auto copy = [&](bool columns) {
    auto spec = spec_of(p, p.a_rounding, args);
    spec.noise.transposed = columns ? 1 : 0;
    std::vector<float> values = y;
    if (columns)
      for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t i = 0; i < k; ++i)
          values[static_cast<std::size_t>(i * m + r)] = y[static_cast<std::size_t>(r * k + i)];
    return columns ? reference::quantize(values.data(), k, m, m, spec)
                   : reference::quantize(values.data(), m, k, k, spec);
  };
  struct Result {
    Quantized wanted;
    std::unique_ptr<Memory> codes, scales;
  };
  std::vector<Result> copies;
  for (const bool columns : {false, true}) {
    if (p.copies == (columns ? Copies::rows : Copies::columns)) continue;
    auto wanted = copy(columns);
    const auto bytes = operand_bytes(p.d_layout, wanted.rows, wanted.k, 32);
    auto codes = std::make_unique<Memory>(device, bytes.codes);
    auto scales = std::make_unique<Memory>(device, bytes.scales);
    const qt_tensor tensor{codes->data(), scales->data(), wanted.k, wanted.k / 32, 0, 0};
    (columns && p.copies == Copies::both ? args.d2 : args.d) = tensor;
    copies.push_back({std::move(wanted), std::move(codes), std::move(scales)});
  }
  device.run(cuda::quantize(), p, cuda::quantize().default_variant(p, device.target()), args);
  std::int64_t wrong = 0;
  for (const auto& [wanted, codes_memory, scales_memory] : copies) {
    const auto codes = codes_memory->download(), scales = scales_memory->download();
    if (p.d_layout == Layout::plain) {
      for (std::size_t i = 0; i < wanted.codes.size(); ++i) wrong += codes[i] != wanted.codes[i];
      for (std::size_t i = 0; i < wanted.scales.size(); ++i) wrong += scales[i] != wanted.scales[i];
    } else {
      const auto expanded = expand(wanted, p.d_layout);
      for (std::int64_t r = 0; r < wanted.rows; ++r) {
        const auto reference = expanded.reference[static_cast<std::size_t>(r)];
        wrong += scales[static_cast<std::size_t>(r)] != reference;
        for (std::int64_t i = 0; reference != 255 && i < expanded.pitch; ++i) {
          const auto at = static_cast<std::size_t>(r * expanded.pitch + i);
          wrong += codes[at] != expanded.data[at];
        }
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("cuda_epilogue.quantising behind a prologue gives the reference's codes") {
  Device* device = device_or_skip();
  if (!device) return;
  std::uint32_t seed = 1;
  int cases = 0;
  std::size_t index = 0;
  for (const Prologue prologue :
       {Prologue::rmsnorm, Prologue::swiglu_split, Prologue::swiglu_interleaved})
    for (const DType type : {DType::bf16, DType::f32})
      for (const Layout layout : {Layout::plain, Layout::e5m2, Layout::int8_rows})
        for (const Copies copies : {Copies::rows, Copies::columns, Copies::both}) {
          if (copies != Copies::rows && (layout != Layout::plain || prologue == Prologue::rmsnorm))
            continue;
          Problem p;
          p.op = Op::quantize;
          p.role = Role::wgrad;
          p.m = {0, 8192};
          p.k = {1, 8192};
          p.a_type = type;
          p.d_type = DType::mxfp4;
          p.d_layout = layout;
          p.copies = copies;
          p.prologue = prologue;
          p.rotation = 32;
          p.signs = Signs::per_call;
          p.a_rounding = type == DType::bf16 ? Rounding::sr16 : Rounding::rne;
          REQUIRE(cuda::quantize().refuses(p, device->target()).empty());
          if (is_left_out(*device, index++, 5)) continue;
          for (const auto& [m, k, extra] :
               {std::tuple<int, int, int>{1, 32, 0}, {67, 2080, 8}, {130, 4128, 1}, {257, 96, 0}}) {
            INFO(p.key() << " " << m << "x" << k);
            CHECK(wrong_codes(*device, p, m, k, extra, seed++) == 0);
            ++cases;
          }
        }
  std::cout << cases << " prologue cases\n";
}
