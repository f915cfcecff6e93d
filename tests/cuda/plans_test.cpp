// Whole plans on a GPU, through the runtime's Executable: every role of a linear layer, quantised
// on the fly, against the scalar reference's codes and their exact products.
#include <doctest/doctest.h>

#include <set>

#include "runtime/executable.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/product_check.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

// A linear layer: 320 features in, 448 out, some tokens.
Problem linear(Role role, Contract contract, Spread spread, DType d_type, std::int32_t g) {
  constexpr std::int64_t in = 512, out = 448;
  const Extent tokens{0, 1024};
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = role;
  p.rotation = g;
  p.signs = Signs::per_call;
  p.a_type = p.b_type = DType::bf16;
  p.d_type = d_type;
  p.contract = contract;
  p.spread = spread;
  if (role == Role::fprop) {
    p.m = tokens, p.n = Extent::exactly(out), p.k = Extent::exactly(in);
  } else if (role == Role::dgrad) {
    p.m = tokens, p.n = Extent::exactly(in), p.k = Extent::exactly(out);
    p.b_major = Major::rows;
    p.a_rounding = Rounding::sr16;
  } else {
    p.m = Extent::exactly(out), p.n = Extent::exactly(in), p.k = tokens;
    p.a_major = p.b_major = Major::rows;
    p.a_rounding = p.b_rounding = Rounding::sr16;
    p.accumulate = d_type == DType::f32 ? Accumulate::accumulate : Accumulate::overwrite;
  }
  return p;
}

// [rows, k], or its transpose where `major` says so: values, and what the kernel reads.
struct Source {
  std::vector<float> x;
  std::unique_ptr<Memory> memory;
  std::int64_t rows, k;
  Major major;

  Source(Device& device, DType type, std::int64_t rows_, std::int64_t k_, Major major_,
         std::uint32_t seed)
      : x(static_cast<std::size_t>(rows_ * k_)), rows(rows_), k(k_), major(major_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto& value : x) value = normal(random);
    // A token or feature far smaller than the rest of its row, another NaN.
    if (x.size() > 2000) {
      for (std::size_t i = 1000; i < 1064; ++i) x[i] = std::ldexp(x[i], -40);
      x[1999] = std::numeric_limits<float>::quiet_NaN();
    }
    memory = std::make_unique<Memory>(device, stored(type, x));
  }
  std::int64_t ld() const { return major == Major::k ? k : rows; }
  Quantized quantized(const reference::QuantizeSpec& spec) const {
    return major == Major::k ? reference::quantize(x.data(), rows, k, k, spec)
                             : reference::quantize_columns(x.data(), k, rows, rows, spec);
  }
};

void check_plan_on(Device& device, DeviceBackend& backend, const Problem& p, const Plan& plan,
                   const Sizes& s, std::uint32_t seed) {
  INFO(p.key(), " ", plan.text(), " m=", s.m, " n=", s.n, " k=", s.k);
  const auto built = Executable::build(backend, p, plan);
  REQUIRE_MESSAGE(built.ok(), built.status().message());
  const Source a(device, p.a_type, s.m, s.k, p.a_major, seed),
      b(device, p.b_type, s.n, s.k, p.b_major, seed + 1);
  const auto size = bytes_of(p.d_type);
  std::vector<float> before(static_cast<std::size_t>(s.m * s.n), 1.5f);
  const auto old = stored(p.d_type, before);
  Memory d(device, old), workspace(device, (*built)->workspace_bytes());
  qt_args args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = 1;
  args.a = {a.memory->data(), nullptr, a.ld(), 0, 0, 0};
  args.b = {b.memory->data(), nullptr, b.ld(), 0, 0, 0};
  args.d = {d.data(), nullptr, s.n, 0, 0, 0};
  args.c = args.d;
  args.alpha = 1.25f;
  args.beta = 1.0f;
  args.noise_seed = 12345 + seed;
  args.sign_seed = 777;
  args.stream = seed;
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  const auto ran = (*built)->run(args, device.stream());
  REQUIRE_MESSAGE(ran.ok(), ran.message());
  const auto result = d.download();
  if (s.m == 0) return;
  auto a_spec = spec_of(p, p.a_rounding, args), b_spec = spec_of(p, p.b_rounding, args);
  b_spec.noise.operand = 1;
  const bool adds = p.accumulate == Accumulate::accumulate;
  const Variant& gemm = plan.main_step().variant;
  auto alpha = args.alpha;
  if (p.scale_rule == ScaleRule::ts34) alpha *= 16.0f / 9.0f;
  const auto outcome = check_product(
      a.quantized(a_spec), b.quantized(b_spec), tensor_core_of(gemm),
      {s.m, s.n, p.d_type, s.n, alpha, args.beta, adds ? &old : nullptr, nullptr}, result,
      find_family(gemm.family)->a_layout(p, gemm), find_family(gemm.family)->b_layout(p, gemm));
  CHECK(size > 0);
  INFO(outcome.where);
  CHECK(outcome.worst <= 1.0);
}

}  // namespace

TEST_CASE("gpu.plans of every role equal the reference's products") {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return;
  }
  DeviceBackend backend(*device);
  std::uint32_t seed = 1;
  std::vector<std::tuple<Problem, Plan>> cases;
  std::size_t index = 0;
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad})
    for (const auto contract : {Contract::exact, Contract::fast})
      for (const auto spread : {Spread::any, Spread::narrow}) {
        if (is_left_out(*device, index++, 5)) continue;
        auto p = linear(role, contract, spread, role == Role::wgrad ? DType::f32 : DType::bf16,
                        role == Role::dgrad ? 64 : 32);
        if (role == Role::fprop && contract == Contract::fast) p.scale_rule = ScaleRule::ts34;
        const auto plan = default_plan(p, device->target());
        REQUIRE_MESSAGE(plan.ok(), plan.status().message());
        cases.emplace_back(p, *plan);
        // The portable one beside it, or those of Blackwell's tensor cores.
        std::set<std::string> others;
        for (const auto& other : plans(p, device->target(), 4000)) {
          const auto* family = find_family(other.main_step().variant.family);
          const bool portable = family->name() == "cuda_gemm_mma" && contract == Contract::exact &&
                                spread == Spread::any;
          const bool native =
              family->name() == "cuda_gemm_sm100" || family->name() == "cuda_gemm_sm120";
          if (!portable && !native) continue;
          if (others.emplace(family->name()).second) cases.emplace_back(p, other);
        }
      }
  std::vector<std::pair<quarterturn::Source, std::string>> sources;
  for (const auto& [p, plan] : cases)
    for (const auto& step : plan.steps)
      sources.emplace_back(find_family(step.variant.family)
                               ->emit(step_problem(p, device->target(), plan, step.kind),
                                      device->target(), step.variant),
                           plan.text());
  compile_all(*device, sources);
  for (const auto& [p, plan] : cases) {
    const auto n = p.n.lo;
    for (const std::int64_t tokens : {0, 1, 7, 129, 576, 1000}) {
      if (device->simulated() && tokens > 129) continue;
      check_plan_on(
          *device, backend, p, plan,
          p.role == Role::wgrad ? Sizes{p.m.lo, n, tokens, 1} : Sizes{tokens, n, p.k.lo, 1},
          seed += 2);
    }
  }
}

TEST_CASE("gpu.gemm of plain operands packs them first") {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return;
  }
  DeviceBackend backend(*device);
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.m = {1, 512};
  p.n = Extent::exactly(200);
  p.k = Extent::exactly(480);
  p.a_type = p.b_type = DType::mxfp4;
  p.a_layout = p.b_layout = Layout::plain;
  p.d_type = DType::f32;
  p.contract = Contract::fast;
  std::set<std::string> tried;
  for (const auto& plan : plans(p, device->target(), 4000)) {
    if (!tried.insert(plan.main_step().variant.family).second) continue;
    if (is_left_out(*device, tried.size(), 2)) continue;
    const auto built = Executable::build(backend, p, plan);
    INFO(plan.text());
    REQUIRE_MESSAGE(built.ok(), built.status().message());
    const auto a = random_operand(300, 480, Data::forward, 1),
               b = random_operand(200, 480, Data::wide, 2);
    Memory a_codes(*device, a.codes), a_scales(*device, a.scales), b_codes(*device, b.codes),
        b_scales(*device, b.scales), d(*device, 300 * 200 * 4),
        workspace(*device, (*built)->workspace_bytes());
    qt_args args{};
    args.m = 300;
    args.n = 200;
    args.k = 480;
    args.batch = 1;
    args.a = {a_codes.data(), a_scales.data(), 480, 15, 0, 0};
    args.b = {b_codes.data(), b_scales.data(), 480, 15, 0, 0};
    args.d = {d.data(), nullptr, 200, 0, 0, 0};
    args.alpha = 1;
    args.workspace = workspace.data();
    const auto ran = (*built)->run(args, device->stream());
    REQUIRE_MESSAGE(ran.ok(), ran.message());
    const auto outcome = check_product(
        a, b, tensor_core_of(plan.main_step().variant),
        {300, 200, DType::f32, 200, 1, 0, nullptr, nullptr}, d.download(),
        find_family(plan.main_step().variant.family)->a_layout(p, plan.main_step().variant),
        find_family(plan.main_step().variant.family)->b_layout(p, plan.main_step().variant));
    INFO(outcome.where);
    CHECK(outcome.worst <= 1.0);
  }
  if (device->target().arch == "sm_90a") CHECK(tried.size() >= 2);
}
