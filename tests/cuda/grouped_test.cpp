// Grouped kernels and plans (mixtures of experts) on a GPU against the scalar reference: ragged and
// empty groups, rows and tokens that nobody owns, rows that do not fit their window, sizes that
// change behind the host's back.
#include <doctest/doctest.h>

#include <set>

#include "generator/grouping.hpp"
#include "reference/grouped.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/product_check.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

using GroupSizes = std::vector<std::int32_t>;  // ends, or counts of masked groups

Device* device_or_skip() {
  std::string why;
  Device* device = Device::find(why);
  if (!device) std::cout << "SKIPPED: " << why << "\n";
  return device;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Like a tensor, with a stretch far below the rest of its row, and a NaN.
std::vector<float> random_values(std::int64_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(at(count));
  for (auto& value : x) value = normal(engine);
  if (x.size() > 9000) {
    for (std::size_t i = 5000; i < 5064; ++i) x[i] = std::ldexp(x[i], -40);
    x[7777] = std::numeric_limits<float>::quiet_NaN();
  }
  return x;
}

void spoil(std::vector<float>& x, std::int64_t from, std::int64_t end) {
  std::fill(x.begin() + from, x.begin() + end, std::numeric_limits<float>::quiet_NaN());
}

Quantized rows_of(const Quantized& q, std::int64_t first, std::int64_t count) {
  Quantized out;
  out.rows = count;
  out.k = q.k;
  out.codes.assign(q.codes.begin() + first * q.k / 2, q.codes.begin() + (first + count) * q.k / 2);
  out.scales.assign(q.scales.begin() + first * q.k / 32,
                    q.scales.begin() + (first + count) * q.k / 32);
  return out;
}

Quantized columns_of(const Quantized& q, std::int64_t first, std::int64_t count) {
  Quantized out;
  out.rows = q.rows;
  out.k = count;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const auto codes = q.codes.begin() + (row * q.k + first) / 2;
    const auto scales = q.scales.begin() + (row * q.k + first) / 32;
    out.codes.insert(out.codes.end(), codes, codes + count / 2);
    out.scales.insert(out.scales.end(), scales, scales + count / 32);
  }
  return out;
}

// Differences of a copy in device memory from `want`.
std::int64_t wrong_codes(const Quantized& want, Layout layout,
                         const std::vector<unsigned char>& data,
                         const std::vector<unsigned char>& scales) {
  if (layout == Layout::bf16) return wrong_bf16(want, data.data());
  std::int64_t wrong = 0;
  if (layout == Layout::plain) {
    for (std::size_t i = 0; i < want.codes.size(); ++i) wrong += data[i] != want.codes[i];
    for (std::size_t i = 0; i < want.scales.size(); ++i) wrong += scales[i] != want.scales[i];
    return wrong;
  }
  const auto rows = expand(want, layout);
  for (std::int64_t i = 0; i < want.rows; ++i) {
    wrong += scales[at(i)] != rows.reference[at(i)];
    const bool unfit = rows.reference[at(i)] == 255;
    const auto meant = unfit ? rows.pitch / 2 + rows.pitch / 32 : rows.pitch;
    for (std::int64_t j = 0; j < meant; ++j)
      wrong += data[at(i * rows.pitch + j)] != rows.data[at(i * rows.pitch + j)];
  }
  return wrong;
}

Problem quantize_problem(Grouping grouping, DType type, std::int32_t g, Copies copies,
                         Layout layout, Rounding rounding) {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 4096};
  p.k = Extent::exactly(grouping == Grouping::m_masked ? 480 + g % 256 / 2 : 328);
  if (g > 32) p.k = Extent::exactly(512);
  p.grouping = grouping;
  p.groups = {1, 16};
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.rotation = g;
  p.signs = g > 0 ? Signs::per_call : Signs::none;
  p.copies = copies;
  p.d_layout = layout;
  p.a_rounding = rounding;
  return p;
}

struct QuantizeCase {
  Problem problem;
  Variant variant;
};

qt_args quantize_args(const Problem& p, std::int64_t m, std::int64_t groups) {
  qt_args args{};
  args.m = m;
  args.k = p.k.lo;
  args.groups = groups;
  args.batch = p.grouping == Grouping::m_masked ? groups : 1;
  args.noise_seed = 0x1234567890abcdefull;
  args.sign_seed = 99;
  args.stream = 3;
  return args;
}

void check_masked_rows(Device& device, const QuantizeCase& c, std::int64_t m,
                       const GroupSizes& counts) {
  const auto& [p, v] = c;
  const auto k = p.k.lo, groups = static_cast<std::int64_t>(counts.size());
  auto x = random_values(groups * m * k, 4);
  for (std::int64_t g = 0; g < groups; ++g) spoil(x, (g * m + counts[at(g)]) * k, (g + 1) * m * k);
  const Memory in(device, stored(p.a_type, x)), sizes(device, counts);
  const auto bytes = operand_bytes(p.d_layout, m, k, padding_unit(p));
  Memory codes(device, groups * bytes.codes), scales(device, groups * bytes.scales);
  auto args = quantize_args(p, m, groups);
  args.group_sizes = sizes.data<int>();
  args.a = dense_matrix(m, k, in.data());
  args.d = packed_operand(p.d_layout, m, k, padding_unit(p), codes.data(), scales.data());
  device.run(cuda::quantize(), p, v, args);
  const auto data = codes.download(), all = scales.download();
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<float> own(x.begin() + g * m * k, x.begin() + (g + 1) * m * k);
    std::fill(own.begin() + counts[at(g)] * k, own.end(), 0.0f);
    auto spec = spec_of(p, p.a_rounding, args);
    spec.row0 = g * m;
    const auto want = reference::quantize(own.data(), m, k, k, spec);
    const std::vector<unsigned char> part(data.begin() + g * bytes.codes,
                                          data.begin() + (g + 1) * bytes.codes),
        own_scales(all.begin() + g * bytes.scales, all.begin() + (g + 1) * bytes.scales);
    INFO(p.key(), " ", v.text(), " m=", m, " group ", g);
    CHECK(wrong_codes(want, p.d_layout, part, own_scales) == 0);
  }
}

void check_token_columns(Device& device, const QuantizeCase& c, std::int64_t tokens,
                         const GroupSizes& ends) {
  const auto& [p, v] = c;
  const auto k = p.k.lo, groups = static_cast<std::int64_t>(ends.size());
  auto x = random_values(tokens * k, 5);
  // The copy along rows holds tokens that nobody owns; the other must not see them.
  for (std::int64_t i = ends.back() * k; i < tokens * k; i += 3) spoil(x, i, i + 1);
  const Memory in(device, stored(p.a_type, x)), sizes(device, ends);
  const bool both = p.copies == Copies::both;
  const auto row_bytes = operand_bytes(p.d_layout, both ? tokens : 0, k, padding_unit(p));
  const auto bytes = copy_bytes(p, p.d_layout, k, tokens, groups);
  Memory codes(device, bytes.codes), scales(device, bytes.scales),
      row_codes(device, row_bytes.codes), row_scales(device, row_bytes.scales);
  auto args = quantize_args(p, tokens, groups);
  args.group_sizes = sizes.data<int>();
  args.a = dense_matrix(tokens, k, in.data());
  args.d = args.d2 = packed_operand(p.d_layout, k, copy_length(p, tokens, groups), padding_unit(p),
                                    codes.data(), scales.data());
  if (both)
    args.d =
        packed_operand(p.d_layout, tokens, k, padding_unit(p), row_codes.data(), row_scales.data());
  device.run(cuda::quantize(), p, v, args);
  const auto spec = spec_of(p, p.a_rounding, args);
  INFO(p.key(), " ", v.text(), " tokens=", tokens);
  const auto want = reference::quantize_grouped(x.data(), tokens, k, k, ends, spec);
  CHECK(wrong_codes(want, p.d_layout, codes.download(), scales.download()) == 0);
  if (!both) return;
  const auto rows = reference::quantize(x.data(), tokens, k, k, spec);
  CHECK(wrong_codes(rows, p.d_layout, row_codes.download(), row_scales.download()) == 0);
}

}  // namespace

TEST_CASE("gpu.quantisers of groups give the reference's bits") {
  Device* device = device_or_skip();
  if (!device) return;
  constexpr auto masked = Grouping::m_masked, tokens = Grouping::k_grouped;
  constexpr auto bf16 = DType::bf16, f16 = DType::f16, f32 = DType::f32;
  constexpr auto rne = Rounding::rne, sr16 = Rounding::sr16;
  constexpr auto rows = Copies::rows, columns = Copies::columns, both = Copies::both;
  auto squares = quantize_problem(masked, bf16, 0, rows, Layout::plain, sr16);
  squares.scale_block = ScaleBlock::b32x32;
  const std::vector<Problem> problems = {
      quantize_problem(masked, bf16, 32, rows, Layout::plain, sr16),
      quantize_problem(masked, f32, 256, rows, Layout::plain, rne),
      quantize_problem(masked, bf16, 32, rows, Layout::e5m2, sr16),
      quantize_problem(masked, f16, 64, rows, Layout::int8_rows, sr16),
      quantize_problem(masked, bf16, 0, rows, Layout::bf16, rne),
      squares,
      quantize_problem(tokens, bf16, 32, columns, Layout::plain, sr16),
      quantize_problem(tokens, f32, 128, columns, Layout::plain, rne),
      quantize_problem(tokens, bf16, 256, columns, Layout::plain, sr16),
      quantize_problem(tokens, f16, 0, columns, Layout::bf16, rne),
      quantize_problem(tokens, bf16, 32, both, Layout::plain, sr16),
      quantize_problem(tokens, f32, 64, both, Layout::bf16, sr16),
      quantize_problem(tokens, bf16, 128, both, Layout::plain, sr16),
      quantize_problem(tokens, f32, 256, both, Layout::plain, sr16),
  };
  std::vector<QuantizeCase> cases;
  std::vector<std::pair<Source, std::string>> sources;
  std::size_t index = 0;
  for (const auto& p : problems) {
    if (is_left_out(*device, index++, 3)) continue;
    REQUIRE_MESSAGE(validate(p).ok(), validate(p).message());
    REQUIRE(cuda::quantize().refuses(p, device->target()) == "");
    const auto variants = cuda::quantize().variants(p, device->target());
    cases.push_back({p, variants[cases.size() % variants.size()]});
    sources.emplace_back(cuda::quantize().emit(p, device->target(), cases.back().variant), p.key());
  }
  compile_all(*device, sources);
  for (const auto& c : cases) {
    if (c.problem.grouping == masked) {
      check_masked_rows(*device, c, 70, {70, 0, 5, 69, 1});
      check_masked_rows(*device, c, 3, {0, 0});
      check_masked_rows(*device, c, 300, {299, 17});
    } else {
      check_token_columns(*device, c, 515, {0, 3, 260, 260, 500});
      if (!device->simulated())
        check_token_columns(*device, c, 1000, {0, 0, 128, 384, 640, 767, 768, 769});
      check_token_columns(*device, c, 96, {96});
      check_token_columns(*device, c, 300, {0, 0});
      check_token_columns(*device, c, 255, {127});
      check_token_columns(*device, c, 0, {0, 0, 0});
    }
  }
}

namespace {

// Experts of 416 features in, 200 out.
Problem experts(Grouping grouping, Contract contract, Spread spread) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.grouping = grouping;
  p.groups = {1, 16};
  p.n = Extent::exactly(200);
  p.a_type = p.b_type = DType::bf16;
  p.rotation = 32;
  p.signs = Signs::per_call;
  p.contract = contract;
  p.spread = spread;
  p.a_rounding = Rounding::sr16;
  if (grouping == Grouping::k_grouped) {
    p.role = Role::wgrad;
    p.m = Extent::exactly(416);
    p.k = {0, 2048};
    p.d_type = DType::f32;
    p.a_major = p.b_major = Major::rows;
    p.b_rounding = Rounding::sr16;
    p.accumulate = Accumulate::accumulate;
  } else {
    p.role = Role::fprop;
    p.m = {0, 2048};
    p.k = Extent::exactly(416);
    p.bias = Bias::per_column;
    p.d_type = grouping == Grouping::m_masked ? DType::f32 : DType::bf16;
    if (grouping == Grouping::m_masked) p.accumulate = Accumulate::accumulate;
  }
  return p;
}

struct Call {
  std::int64_t tokens;  // in each group, of masked ones
  GroupSizes sizes;
};

std::vector<Call> calls_of(Grouping grouping) {
  if (grouping == Grouping::m_masked)
    return {{150, {150, 0, 1, 149, 64}}, {7, {0, 0, 0}}, {300, {257}}, {1, {1, 0, 1, 1}}};
  return {{700, {0, 0, 130, 131, 131, 387, 600}},
          {37, {5, 5, 20, 37}},
          {300, {300}},
          {130, {0, 130, 130, 130}},
          {9, {0, 0, 0}},
          {16, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
          {1500, {1000, 1100, 1400}},
          {0, {0, 0}}};
}

// Everything a call holds.
struct Instance {
  Problem p;  // contract and spread do not matter
  Call call;
  std::int64_t groups, m, n, k;
  Entries entries;
  std::vector<float> a, b;  // as their types hold them
  std::vector<unsigned char> a_stored, b_stored, bias, old;

  Instance(const Problem& problem, const Call& given, std::uint32_t seed)
      : p(problem),
        call(given),
        groups(static_cast<std::int64_t>(given.sizes.size())),
        m(by_tokens() ? p.m.lo : given.tokens),
        n(p.n.lo),
        k(by_tokens() ? given.tokens : p.k.lo),
        entries(entries_of(p, 1, groups)),
        a(random_values(entries.a * m * k, seed)),
        b(random_values(entries.b * n * k, seed + 1)) {
    for (std::int64_t g = 0; p.grouping == Grouping::m_masked && g < groups; ++g)
      spoil(a, (g * m + given.sizes[at(g)]) * k, (g + 1) * m * k);
    if (p.grouping != Grouping::m_masked) {
      const auto owned = static_cast<std::int64_t>(given.sizes.back());
      spoil(a, owned * (by_tokens() ? m : k), static_cast<std::int64_t>(a.size()));
      if (by_tokens()) spoil(b, owned * n, static_cast<std::int64_t>(b.size()));
    }
    // Rows of both copies that do not fit their window.
    for (std::int64_t token = 160; by_tokens() && token < std::min<std::int64_t>(k, 224); ++token) {
      for (const std::int64_t row : {3, 200})
        a[at(token * m + row)] = std::ldexp(a[at(token * m + row)], -40);
      b[at(token * n + 5)] = std::ldexp(b[at(token * n + 5)], -40);
    }
    a_stored = stored(p.a_type, a);
    b_stored = stored(p.b_type, b);
    auto c = random_values(entries.d * m * n, seed + 2), one = random_values(groups * n, seed + 3);
    old = stored(p.d_type, c);
    bias = stored(p.d_type, one);
  }

  bool by_tokens() const { return p.grouping == Grouping::k_grouped; }

  // Rows of D of group g, and its operands, quantised.
  struct Part {
    std::int64_t first, rows;  // of all matrices of D behind each other
    Quantized a, b;
  };
  std::vector<Part> parts(const qt_args& args) const {
    auto a_spec = spec_of(p, p.a_rounding, args), b_spec = spec_of(p, p.b_rounding, args);
    b_spec.noise.operand = 1;
    std::vector<Part> out;
    if (by_tokens()) {
      const auto qa = reference::quantize_grouped(a.data(), k, m, m, call.sizes, a_spec);
      const auto qb = reference::quantize_grouped(b.data(), k, n, n, call.sizes, b_spec);
      for (const auto& tokens : reference::token_groups(call.sizes, p.rotation))
        out.push_back({static_cast<std::int64_t>(out.size()) * m, m,
                       columns_of(qa, tokens.start, tokens.padded),
                       columns_of(qb, tokens.start, tokens.padded)});
      return out;
    }
    const bool masked = p.grouping == Grouping::m_masked;
    const auto all = reference::quantize(a.data(), entries.a * m, k, k, a_spec);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t size = call.sizes[at(g)];
      const std::int64_t first = masked ? g * m : g == 0 ? 0 : call.sizes[at(g - 1)];
      const std::int64_t rows = masked ? size : size - first;
      out.push_back({first, rows, rows_of(all, first, rows),
                     reference::quantize(b.data() + g * n * k, n, k, k, b_spec)});
    }
    return out;
  }
};

qt_args noise_and_signs() {
  qt_args args{};
  args.noise_seed = 4711;
  args.sign_seed = 777;
  args.stream = 2;
  return args;
}

// `sizes`: device memory of at least 16 numbers, so that calls differ in its contents alone.
void check_call(Device& device, const Problem& p, const Executable& executable, const Instance& one,
                const std::vector<Instance::Part>& parts, const Memory& sizes) {
  INFO(p.key(), " ", executable.plan().text(), " tokens=", one.call.tokens,
       fmt::format(" sizes={}", fmt::join(one.call.sizes, ",")));
  const Memory a(device, one.a_stored), b(device, one.b_stored), bias(device, one.bias),
      workspace(device, executable.workspace_bytes());
  Memory d(device, one.old);
  if (!one.call.sizes.empty())
    device.copy_in(reinterpret_cast<cuda::CUdeviceptr>(sizes.data()), one.call.sizes.data(),
                   one.call.sizes.size() * sizeof(std::int32_t));
  auto args = noise_and_signs();
  args.m = one.m;
  args.n = one.n;
  args.k = one.k;
  args.batch = one.entries.d;
  args.groups = one.groups;
  args.group_sizes = sizes.data<int>();
  const bool by_tokens = one.by_tokens();
  args.a = by_tokens ? dense_matrix(one.k, one.m, a.data()) : dense_matrix(one.m, one.k, a.data());
  args.b = by_tokens ? dense_matrix(one.k, one.n, b.data()) : dense_matrix(one.n, one.k, b.data());
  args.c = args.d = dense_matrix(one.m, one.n, d.data());
  args.bias = bias.data();
  args.alpha = 1.25f;
  args.beta = 0.5f;
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  const auto ran = executable.run(args, device.stream());
  REQUIRE_MESSAGE(ran.ok(), ran.message());
  const auto result = d.download();

  const Variant& gemm = executable.plan().main_step().variant;
  const Family& family = *find_family(gemm.family);
  const auto size = bytes_of(p.d_type);
  const bool adds = p.accumulate == Accumulate::accumulate, biased = p.bias != Bias::none;
  std::vector<bool> owned(at(one.entries.d * one.m), false);
  std::int64_t group = 0;
  for (const auto& part : parts) {
    const auto slice = [&](const std::vector<unsigned char>& all, std::int64_t first,
                           std::int64_t rows) {
      return std::vector<unsigned char>(all.begin() + first * one.n * size,
                                        all.begin() + (first + rows) * one.n * size);
    };
    const auto c = slice(one.old, part.first, part.rows), own_bias = slice(one.bias, group, 1);
    const auto outcome = check_product(part.a, part.b, tensor_core_of(gemm),
                                       {part.rows, one.n, p.d_type, one.n, args.alpha, args.beta,
                                        adds ? &c : nullptr, biased ? &own_bias : nullptr},
                                       slice(result, part.first, part.rows),
                                       family.a_layout(p, gemm), family.b_layout(p, gemm), 6);
    INFO("group ", group, ": ", outcome.where);
    CHECK(outcome.worst <= 1.0);
    std::fill_n(owned.begin() + part.first, part.rows, true);
    ++group;
  }
  std::int64_t touched = 0;
  for (std::size_t row = 0; row < owned.size(); ++row)
    if (!owned[row])
      touched += std::memcmp(&result[row * at(one.n * size)], &one.old[row * at(one.n * size)],
                             at(one.n * size)) != 0;
  CHECK(touched == 0);
}

// One plan of every GEMM family, and other variants of some.
std::vector<std::pair<Problem, Plan>> grouped_plans(Device& device) {
  std::vector<std::pair<Problem, Plan>> out;
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked, Grouping::k_grouped})
    for (const auto& [contract, spread] :
         {std::pair{Contract::fast, Spread::any}, std::pair{Contract::exact, Spread::narrow}}) {
      const auto p = experts(grouping, contract, spread);
      REQUIRE_MESSAGE(validate(p).ok(), validate(p).message());
      std::set<std::string> tried;
      for (const auto& plan : plans(p, device.target(), 4000)) {
        const auto& family = plan.main_step().variant.family;
        // Exact families once.
        if (contract == Contract::exact && family != "cuda_gemm_int8") continue;
        if (!tried.insert(family).second) continue;
        out.emplace_back(p, plan);
        auto other = plan;
        for (auto& step : other.steps) {
          if (step.kind != StepKind::gemm || !step.variant.values.contains("cluster")) continue;
          step.variant.values["cluster"] = 2;
          step.variant.values["tile_n"] = family == "cuda_gemm_e5m2" ? 160 : 128;
          step.variant.values["stages"] = 4;
          step.variant.values["raster"] = 8;
          if (family == "cuda_gemm_int8")
            step.variant.values["tile_m"] = 256, step.variant.values["tile_n"] = 96;
        }
        const auto status = check_plan(p, device.target(), other);
        REQUIRE_MESSAGE(status.ok(), status.message());
        if (other != plan) out.emplace_back(p, other);
      }
    }
  return out;
}

}  // namespace

TEST_CASE("gpu.plans of groups equal the reference's products") {
  Device* device = device_or_skip();
  if (!device) return;
  DeviceBackend backend(*device);
  auto cases = grouped_plans(*device);
  // A plan of each grouping.
  std::size_t index = 0;
  if (device->simulated())
    std::erase_if(cases, [&](const auto&) { return is_left_out(*device, index++, 9); });
  std::vector<std::pair<Source, std::string>> sources;
  std::set<std::string> families;
  for (const auto& [p, plan] : cases) {
    families.insert(plan.main_step().variant.family);
    for (const auto& step : plan.steps)
      sources.emplace_back(find_family(step.variant.family)
                               ->emit(step_problem(p, device->target(), plan, step.kind),
                                      device->target(), step.variant),
                           plan.text());
  }
  CHECK(families.size() >= (device->target().arch == "sm_90a" && !device->simulated() ? 4u : 1u));
  compile_all(*device, sources);
  const Memory sizes(*device, std::vector<std::int32_t>(16));
  std::vector<std::shared_ptr<const Executable>> built;
  for (const auto& [p, plan] : cases) {
    const auto one = Executable::build(backend, p, plan);
    REQUIRE_MESSAGE(one.ok(), one.status().message());
    built.push_back(*one);
  }
  std::uint32_t seed = 1;
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked, Grouping::k_grouped})
    for (const auto& call : calls_of(grouping)) {
      if (device->simulated() && (call.tokens == 700 || call.tokens == 1500)) continue;
      const Instance one(experts(grouping, Contract::fast, Spread::any), call, seed += 5);
      const auto parts = one.parts(noise_and_signs());
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (cases[i].first.grouping == grouping)
          check_call(*device, cases[i].first, *built[i], one, parts, sizes);
    }
}

TEST_CASE("gpu.weight-only products of groups take activations as they are") {
  Device* device = device_or_skip();
  if (!device) return;
  constexpr std::int64_t tokens = 140, n = 200, k = 416, groups = 3;
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked}) {
    Problem p;
    p.op = Op::gemm;
    p.role = Role::fprop;
    p.m = {1, 512};
    p.n = Extent::exactly(n);
    p.k = Extent::exactly(k);
    p.grouping = grouping;
    p.groups = {1, 8};
    p.a_type = DType::bf16;
    p.b_type = DType::mxfp4;
    p.d_type = DType::f32;
    const bool masked = grouping == Grouping::m_masked;
    const GroupSizes sizes = masked ? GroupSizes{140, 0, 33} : GroupSizes{31, 31, 129};
    const auto entries = entries_of(p, 1, groups);
    auto x = random_values(entries.a * tokens * k, 1);
    const Memory a(*device, stored(DType::bf16, x)), size_memory(*device, sizes);
    std::vector<Quantized> weights;
    std::vector<std::uint8_t> codes, scales;
    for (std::uint32_t g = 0; g < groups; ++g) {
      weights.push_back(random_operand(n, k, Data::forward, 10 + g));
      codes.insert(codes.end(), weights[g].codes.begin(), weights[g].codes.end());
      scales.insert(scales.end(), weights[g].scales.begin(), weights[g].scales.end());
    }
    Memory b_codes(*device, codes), b_scales(*device, scales),
        d(*device, entries.d * tokens * n * 4);
    const auto& family = cuda::gemm_mma();
    REQUIRE(family.refuses(p, device->target()) == "");
    const auto v = family.default_variant(p, device->target());
    qt_args args{};
    args.m = tokens;
    args.n = n;
    args.k = k;
    args.batch = entries.d;
    args.groups = groups;
    args.group_sizes = size_memory.data<int>();
    args.a = dense_matrix(tokens, k, a.data());
    args.b = packed_operand(Layout::plain, n, k, 32, b_codes.data(), b_scales.data());
    args.d = dense_matrix(tokens, n, d.data());
    args.alpha = 1;
    device->run(family, p, v, args);
    const auto result = d.download();
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t first = masked ? g * tokens : g == 0 ? 0 : sizes[at(g - 1)];
      const std::int64_t rows = masked ? sizes[at(g)] : sizes[at(g)] - first;
      const DenseRows own{rows, k, {x.begin() + first * k, x.begin() + (first + rows) * k}};
      const std::vector<unsigned char> part(result.begin() + first * n * 4,
                                            result.begin() + (first + rows) * n * 4);
      const auto outcome = check_product(own, weights[at(g)], tensor_core_of(v),
                                         {rows, n, DType::f32, n, 1, 0, nullptr, nullptr}, part,
                                         Layout::plain, Layout::plain);
      INFO(name_of(grouping), " group ", g, ": ", outcome.where);
      CHECK(outcome.worst <= 1.0);
    }
  }
}
