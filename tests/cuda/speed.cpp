// Speeds of the CUDA families and of cuBLASLt, in one process and in turn: `speed_cuda [quantize]
// [gemm] [packed] [plans] [bf16] [epilogue]`. Sustained figures: the second half of a run of at
// least 0.3 s.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/device.hpp"
#include "tuner/nvml.hpp"
#include "tuner/peer_cublas.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

class Meter {
 public:
  explicit Meter(Device& device) : device_(device) {
    if (auto nvml = Nvml::open(0); nvml.ok()) nvml_ = std::move(*nvml);
    device.check(device.api().cuEventCreate(&start_, 0), "event");
    device.check(device.api().cuEventCreate(&stop_, 0), "event");
  }
  struct Reading {
    double burst = 0, sustained = 0;  // seconds a call
    unsigned clock = 0, watts = 0;
  };
  Reading read(const std::function<void(int)>& launch, double seconds) {
    Reading out;
    for (int i = 0; i < 2; ++i) launch(i);
    device_.synchronize();
    const double guess = time(launch, 4) / 4;
    out.burst = time(launch, std::max(4, static_cast<int>(0.03 / guess))) /
                std::max(4, static_cast<int>(0.03 / guess));
    const int half = std::max(4, static_cast<int>(seconds / 2 / guess));
    for (int i = 0; i < half; ++i) launch(i);
    device_.check(device_.api().cuEventRecord(start_, device_.stream()), "record");
    for (int i = 0; i < half; ++i) launch(i);
    device_.check(device_.api().cuEventRecord(stop_, device_.stream()), "record");
    device_.check(device_.api().cuEventSynchronize(start_), "wait");
    if (nvml_) {
      const auto state = nvml_->state();
      out.clock = static_cast<unsigned>(state.clock_mhz);
      out.watts = static_cast<unsigned>(state.watts);
    }
    device_.check(device_.api().cuEventSynchronize(stop_), "wait");
    float ms = 0;
    device_.check(device_.api().cuEventElapsedTime(&ms, start_, stop_), "time");
    out.sustained = double(ms) * 1e-3 / half;
    return out;
  }

 private:
  double time(const std::function<void(int)>& launch, int count) {
    device_.check(device_.api().cuEventRecord(start_, device_.stream()), "record");
    for (int i = 0; i < count; ++i) launch(i);
    device_.check(device_.api().cuEventRecord(stop_, device_.stream()), "record");
    device_.check(device_.api().cuEventSynchronize(stop_), "wait");
    float ms = 0;
    device_.check(device_.api().cuEventElapsedTime(&ms, start_, stop_), "time");
    return double(ms) * 1e-3;
  }
  Device& device_;
  std::unique_ptr<Nvml> nvml_;
  cuda::CUevent start_ = nullptr, stop_ = nullptr;
};

std::unique_ptr<CublasPeer> open_peer() {
  auto peer = CublasPeer::open();
  require(peer.status());
  return std::move(*peer);
}

// `bytes` of device memory that repeat 32 MB of `pattern`.
std::unique_ptr<Memory> repeated(Device& device, const std::vector<unsigned char>& pattern,
                                 std::int64_t bytes) {
  auto out = std::make_unique<Memory>(device, bytes);
  for (std::int64_t at = 0; at < bytes; at += static_cast<std::int64_t>(pattern.size()))
    device.copy_in(reinterpret_cast<cuda::CUdeviceptr>(out->data(at)), pattern.data(),
                   static_cast<std::size_t>(std::min<std::int64_t>(
                       bytes - at, static_cast<std::int64_t>(pattern.size()))));
  return out;
}

std::vector<unsigned char> gaussian_bf16() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> out(std::size_t(32) << 20);
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const auto h = reference::bf16_bits(normal(random));
    std::memcpy(&out[i], &h, 2);
  }
  return out;
}

// E4M3 of gaussian values, by way of the magnitudes below 448 in steps of three mantissa bits.
std::vector<unsigned char> gaussian_e4m3(const std::vector<unsigned char>& bf16) {
  std::vector<unsigned char> out(bf16.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t h;
    std::memcpy(&h, &bf16[2 * i], 2);
    const int exponent = (h >> 7 & 255) - 127 + 7;  // cut, not rounded: speed alone matters
    out[i] = static_cast<unsigned char>(exponent <= 0 ? 0 : h >> 8 & 128) |
             static_cast<unsigned char>(exponent <= 0 ? 0 : exponent << 3 | (h >> 4 & 7));
  }
  return out;
}

Problem quantize_problem(std::int64_t m, std::int64_t k, std::int32_t g, Signs signs,
                         Rounding rounding, Copies copies, Layout layout) {
  Problem p;
  p.op = Op::quantize;
  p.m = {0, m};
  p.k = Extent::exactly(k);
  p.a_type = DType::bf16;
  p.d_type = DType::mxfp4;
  p.rotation = g;
  p.signs = signs;
  p.a_rounding = rounding;
  p.copies = copies;
  p.d_layout = layout;
  return p;
}

void quantize_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  constexpr std::int64_t m = 16384, k = 8192;
  const auto x = repeated(device, pattern, m * k * 2);
  Memory codes(device, m * k), scales(device, m * k / 32), codes2(device, m * k / 2),
      scales2(device, m * k / 32);
  const auto copy = meter.read(
      [&](int) {
        device.check(
            device.api().cuMemcpyDtoDAsync(reinterpret_cast<cuda::CUdeviceptr>(codes.data()),
                                           reinterpret_cast<cuda::CUdeviceptr>(x->data()),
                                           static_cast<std::size_t>(m * k), device.stream()),
            "copy");
      },
      0.1);
  const double copy_rate = 2.0 * m * k / copy.sustained;
  std::cout << fmt::format("copy {:.0f} GB/s\nquantize {}x{} bf16: us, GB/s, % of copy\n",
                           copy_rate * 1e-9, m, k);
  struct Case {
    std::int32_t g;
    Signs signs;
    Rounding rounding;
    Copies copies;
    Layout layout;
    bool every;  // variant, or the default alone
  };
  constexpr auto rne = Rounding::rne, sr = Rounding::sr16;
  constexpr auto rows = Copies::rows, both = Copies::both, columns = Copies::columns;
  constexpr auto plain = Layout::plain, e5m2 = Layout::e5m2, int8 = Layout::int8_rows;
  std::vector<std::pair<Problem, Variant>> calls;
  std::vector<std::pair<Source, std::string>> sources;
  for (const Case& c :
       {Case{32, Signs::none, rne, rows, plain, true}, Case{32, Signs::none, sr, rows, plain, true},
        Case{32, Signs::per_call, rne, rows, plain, false},
        Case{0, Signs::none, rne, rows, plain, false},
        Case{128, Signs::none, rne, rows, plain, false},
        Case{256, Signs::none, sr, rows, plain, false},
        Case{32, Signs::none, rne, columns, plain, true},
        Case{32, Signs::none, sr, columns, plain, true},
        Case{32, Signs::none, rne, both, plain, true}, Case{32, Signs::none, sr, both, plain, true},
        Case{128, Signs::none, sr, both, plain, false},
        Case{32, Signs::none, rne, rows, e5m2, true}, Case{32, Signs::none, sr, rows, e5m2, true},
        Case{32, Signs::none, rne, rows, int8, true}}) {
    const auto p = quantize_problem(m, k, c.g, c.signs, c.rounding, c.copies, c.layout);
    for (const auto& v : cuda::quantize().variants(p, device.target())) {
      calls.emplace_back(p, v);
      sources.emplace_back(cuda::quantize().emit(p, device.target(), v), v.text());
      if (!c.every) break;
    }
  }
  compile_all(device, sources);
  for (const auto& [p, v] : calls) {
    const auto& kernel = device.kernel(cuda::quantize(), p, v);
    qt_args args{};
    args.m = m;
    args.k = k;
    args.batch = 1;
    args.a = {x->data(), nullptr, k, 0, 0, 0};
    args.d = p.copies == columns ? qt_tensor{codes.data(), scales.data(), m, m / 32, 0, 0}
                                 : qt_tensor{codes.data(), scales.data(), k, k / 32, 0, 0};
    args.d2 = {codes2.data(), scales2.data(), m, m / 32, 0, 0};
    args.noise_seed = 1;
    args.sign_seed = 2;
    const double out_bytes = p.d_layout == plain ? 0.53125 : 1.0;
    const double bytes = double(m) * k * (2 + out_bytes * (p.copies == both ? 2 : 1));
    const auto launch = cuda::quantize().launch(p, v, args, device.units());
    const auto t =
        meter.read([&](int) { require(kernel.launch(launch, args, device.stream())); }, 0.08);
    std::cout << fmt::format(
        "  {:<7} h{:<3} {:<8} {:<4} {:<9} t{} r{}: {:.1f} us {:.0f} GB/s {:.1f} %\n",
        name_of(p.copies), p.rotation, name_of(p.signs), name_of(p.a_rounding), name_of(p.d_layout),
        v.value("threads"), v.value("resident"), t.sustained * 1e6, bytes / t.sustained * 1e-9,
        100 * bytes / t.sustained / copy_rate);
  }
}

struct Shape {
  std::int64_t m, n, k;
};
const std::vector<Shape> kShapes = {{8192, 4096, 4096}, {8192, 14336, 4096}, {8192, 4096, 14336},
                                    {8192, 8192, 8192}, {8192, 28672, 8192}, {16384, 16384, 16384}};

struct Contestant {
  std::string name;
  const Family* family;
  std::vector<std::pair<const std::string, std::int64_t>> values;
};

Problem gemm_problem(const Shape& s, Layout layout) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.m = {0, s.m};
  p.n = Extent::exactly(s.n);
  p.k = Extent::exactly(s.k);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = DType::bf16;
  p.rotation = 32;
  p.contract = layout == Layout::e5m2 ? Contract::fast : Contract::exact;
  p.spread = Spread::narrow;
  return p;
}

// bf16 [n, k] to permuted weights.
void permute_weights(Device& device, const Memory& b16, std::int64_t n, std::int64_t k,
                     std::unique_ptr<Memory>& codes, std::unique_ptr<Memory>& scales) {
  Memory plain_codes(device, n * k / 2), plain_scales(device, n * k / 32);
  const auto bytes = operand_bytes(Layout::permuted, n, k);
  codes = std::make_unique<Memory>(device, bytes.codes);
  scales = std::make_unique<Memory>(device, bytes.scales);
  auto p = quantize_problem(n, k, 32, Signs::none, Rounding::rne, Copies::rows, Layout::plain);
  qt_args args{};
  args.m = n;
  args.k = k;
  args.batch = 1;
  args.a = {b16.data(), nullptr, k, 0, 0, 0};
  args.d = {plain_codes.data(), plain_scales.data(), k, k / 32, 0, 0};
  device.run(cuda::quantize(), p, cuda::quantize().default_variant(p, device.target()), args);
  p.op = Op::pack;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_layout = Layout::permuted;
  args.a = args.d;
  args.d = {codes->data(), scales->data(), 0, 0, 0, 0};
  device.run(cuda::pack(), p, cuda::pack().default_variant(p, device.target()), args);
  device.synchronize();
}

void gemm_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  constexpr int sets = 3;
  const auto peer = open_peer();
  std::cout << "cuBLASLt " << peer->version() << "\n";
  Memory one(device, std::vector<float>{1.0f});
  Memory peer_workspace(device, 64 << 20), workspace(device, 16 << 20);
  const auto e4m3 = gaussian_e4m3(pattern);
  const std::vector<Contestant> contestants = {
      {"e5m2 128x192 p4", &cuda::gemm_e5m2(), {{"tile_n", 192}, {"promote", 4}, {"pieces", 1}}},
      {"e5m2 128x256 pieces", &cuda::gemm_e5m2(), {{"tile_n", 256}, {"promote", 2}, {"pieces", 2}}},
      {"int8 128x256", &cuda::gemm_int8(), {}},
      {"packed B x e5m2 192", &cuda::gemm_packed_tiles(), {}},
      {"packed B x e5m2 192 p2", &cuda::gemm_packed_tiles(), {{"promote", 2}}},
      {"packed B x e5m2 160", &cuda::gemm_packed_tiles(), {{"tokens", 160}, {"stages", 6}}},
      {"packed B x int8 256", &cuda::gemm_packed_tiles_int8(), {}},
  };
  const auto variant_of = [&](const Contestant& c, const Problem& p) {
    auto v = c.family->default_variant(p, device.target());
    for (const auto& [name, value] : c.values) v.values[name] = value;
    return v;
  };
  std::vector<std::pair<Source, std::string>> sources;
  for (const Shape& s : kShapes)
    for (const auto& c : contestants) {
      const auto p =
          gemm_problem(s, c.family->name().ends_with("int8") ? Layout::int8_rows : Layout::e5m2);
      if (c.family->refuses(p, device.target()).empty())
        sources.emplace_back(c.family->emit(p, device.target(), variant_of(c, p)), c.name);
    }
  compile_all(device, sources);
  std::map<std::string, double> log_sum;
  int shapes = 0;
  for (const Shape& s : kShapes) {
    ++shapes;
    const double flops = 2.0 * double(s.m) * double(s.n) * double(s.k);
    std::cout << fmt::format("{}x{}x{}: TFLOP/s burst / sustained @MHz W\n", s.m, s.n, s.k);
    const auto print = [&](const std::string& name, const Meter::Reading& t) {
      std::cout << fmt::format("  {:<22} {:.0f} / {:.0f} @{} {}\n", name, flops / t.burst * 1e-12,
                               flops / t.sustained * 1e-12, t.clock, t.watts);
      log_sum[name] += std::log(flops / t.sustained * 1e-12);
    };
    Memory d(device, s.m * s.n * 2);
    {
      std::vector<std::unique_ptr<Memory>> a, b;
      for (int i = 0; i < sets; ++i) {
        a.push_back(repeated(device, e4m3, s.m * s.k));
        b.push_back(repeated(device, e4m3, s.n * s.k));
      }
      for (const auto sums : {CublasPeer::Sums::fast, CublasPeer::Sums::exact}) {
        const auto plan =
            peer->plan(CublasPeer::Input::e4m3, sums, s.m, s.n, s.k, one.data(), 64 << 20);
        if (!plan.ok()) continue;
        print(sums == CublasPeer::Sums::fast ? "cublas fp8 fast" : "cublas fp8",
              meter.read(
                  [&](int i) {
                    require(peer->run(*plan, a[static_cast<std::size_t>(i % sets)]->data(),
                                      b[static_cast<std::size_t>(i % sets)]->data(), d.data(),
                                      peer_workspace.data(), device.stream()));
                  },
                  0.3));
      }
    }
    const auto a16 = repeated(device, pattern, s.m * s.k * 2),
               b16 = repeated(device, pattern, s.n * s.k * 2);
    {
      const auto plan = peer->plan(CublasPeer::Input::bf16, CublasPeer::Sums::exact, s.m, s.n, s.k,
                                   one.data(), 64 << 20);
      if (plan.ok())
        print("cublas bf16", meter.read(
                                 [&](int) {
                                   require(peer->run(*plan, a16->data(), b16->data(), d.data(),
                                                     peer_workspace.data(), device.stream()));
                                 },
                                 0.3));
    }
    for (const auto layout : {Layout::e5m2, Layout::int8_rows}) {
      std::vector<std::unique_ptr<Memory>> a, b, a_scales, b_scales, weights, weight_scales;
      for (int i = 0; i < sets; ++i) {
        weights.push_back(nullptr);
        weight_scales.push_back(nullptr);
        permute_weights(device, *b16, s.n, s.k, weights.back(), weight_scales.back());
        a.push_back(std::make_unique<Memory>(device, s.m * s.k));
        b.push_back(std::make_unique<Memory>(device, s.n * s.k));
        a_scales.push_back(std::make_unique<Memory>(device, s.m));
        b_scales.push_back(std::make_unique<Memory>(device, s.n));
        for (const bool is_b : {false, true}) {
          const auto rows = is_b ? s.n : s.m;
          const auto p =
              quantize_problem(rows, s.k, 32, Signs::none, Rounding::rne, Copies::rows, layout);
          qt_args args{};
          args.m = rows;
          args.k = s.k;
          args.batch = 1;
          args.a = {(is_b ? b16 : a16)->data(), nullptr, s.k, 0, 0, 0};
          args.d = {(is_b ? b : a).back()->data(),
                    (is_b ? b_scales : a_scales).back()->data(),
                    s.k,
                    1,
                    0,
                    0};
          device.run(cuda::quantize(), p, cuda::quantize().default_variant(p, device.target()),
                     args);
        }
      }
      for (const auto& c : contestants) {
        const auto p = gemm_problem(s, layout);
        if (!c.family->refuses(p, device.target()).empty()) continue;
        const auto v = variant_of(c, p);
        if (c.family->a_layout(p, v) != layout) continue;
        if (const auto reason = c.family->illegal(p, device.target(), v); !reason.empty()) {
          std::cout << c.name << ": " << reason << "\n";
          continue;
        }
        const auto& kernel = device.kernel(*c.family, p, v);
        qt_args args{};
        args.m = s.m;
        args.n = s.n;
        args.k = s.k;
        args.batch = 1;
        args.alpha = 1;
        args.d = {d.data(), nullptr, s.n, 0, 0, 0};
        args.workspace = workspace.data();
        print(c.name, meter.read(
                          [&](int i) {
                            const auto set = static_cast<std::size_t>(i % sets);
                            args.a = {a[set]->data(), a_scales[set]->data(), s.k, 1, 0, 0};
                            args.b = {b[set]->data(), b_scales[set]->data(), s.k, 1, 0, 0};
                            if (c.family->b_layout(p, v) == Layout::permuted)
                              args.b = {
                                  weights[set]->data(), weight_scales[set]->data(), 0, 0, 0, 0};
                            require(kernel.launch(c.family->launch(p, v, args, device.units()),
                                                  args, device.stream()));
                          },
                          0.3));
      }
    }
  }
  const double base = log_sum["cublas fp8 fast"];
  std::cout << "geometric mean of sustained over cublas fp8 fast:\n";
  for (const auto& [name, sum] : log_sum)
    std::cout << fmt::format("  {:<22} {:.3f}\n", name, std::exp((sum - base) / shapes));
}

// Few tokens in bf16 against packed weights: quantising them and the product, from bf16 to bf16.
void packed_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  DeviceBackend backend(device);
  std::vector<std::tuple<Problem, Plan, Shape>> calls;
  std::vector<std::pair<Source, std::string>> sources;
  for (const auto& [n, k] : {std::pair{28672, 8192}, {8192, 28672}})
    for (const std::int64_t m : {1, 16, 64}) {
      Problem p;
      p.op = Op::hadamard_gemm;
      p.role = Role::fprop;
      p.m = {1, m};
      p.n = Extent::exactly(n);
      p.k = Extent::exactly(k);
      p.a_type = p.d_type = DType::bf16;
      p.b_type = DType::mxfp4;
      p.rotation = 32;
      p.contract = Contract::fast;
      p.spread = Spread::narrow;
      std::map<std::string, int> taken;
      for (const auto& plan : plans(p, device.target(), 400)) {
        const auto& family = plan.main_step().variant.family;
        if (!family.starts_with("cuda_gemm_packed") || family.find("tiles") != family.npos ||
            ++taken[family] > 4)
          continue;
        calls.emplace_back(p, plan, Shape{m, n, k});
        for (const auto& step : plan.steps)
          sources.emplace_back(find_family(step.variant.family)
                                   ->emit(step_problem(p, device.target(), plan, step.kind),
                                          device.target(), step.variant),
                               plan.text());
      }
    }
  compile_all(device, sources);
  constexpr int sets = 3;  // of weights: beyond twice the L2 cache
  std::cout << "bf16 tokens x packed weights, all counted: us, TB/s of packed bytes\n";
  std::vector<std::unique_ptr<Memory>> weights, scales;
  std::int64_t shape = 0;
  for (const auto& [p, plan, s] : calls) {
    if (shape != s.n) {
      weights.clear();
      scales.clear();
      const auto bytes = operand_bytes(Layout::permuted, s.n, s.k);
      for (int i = 0; i < sets; ++i) {
        weights.push_back(repeated(device, pattern, bytes.codes));
        scales.push_back(std::make_unique<Memory>(
            device, std::vector<unsigned char>(static_cast<std::size_t>(bytes.scales), 120)));
      }
      shape = s.n;
    }
    const auto built = Executable::build(backend, p, plan);
    require(built.status());
    const auto a = repeated(device, pattern, s.m * s.k * 2);
    Memory d(device, s.m * s.n * 2),
        workspace(device, (*built)->workspace_bytes() + (s.m * s.k + (64 << 20)));
    qt_args args{};
    args.m = s.m;
    args.n = s.n;
    args.k = s.k;
    args.batch = 1;
    args.a = {a->data(), nullptr, s.k, 0, 0, 0};
    args.d = {d.data(), nullptr, s.n, 0, 0, 0};
    args.alpha = 1;
    args.workspace = workspace.data();
    const auto t = meter.read(
        [&](int i) {
          const auto set = static_cast<std::size_t>(i % sets);
          args.b = {weights[set]->data(), scales[set]->data(), 0, 0, 0, 0};
          require((*built)->run(args, device.stream()));
        },
        0.06);
    // Its steps on their own, back to back.
    const Step& product = plan.main_step();
    const auto a_layout = find_family(product.variant.family)->a_layout(p, product.variant);
    std::string steps;
    for (const auto& step : plan.steps) {
      const auto part = step_problem(p, device.target(), plan, step.kind);
      const auto alone = Executable::build(backend, part, Plan{{{StepKind::whole, step.variant}}});
      if (!alone.ok()) continue;
      qt_args own = args;
      const bool quantises = step.kind == StepKind::quantize_a;
      const auto packed =
          packed_operand(a_layout, s.m, s.k, 32, workspace.data(), workspace.data(16 << 20));
      (quantises ? own.d : own.a) = packed;
      own.workspace = workspace.data(32 << 20);
      const auto spent = meter.read(
          [&](int i) {
            const auto set = static_cast<std::size_t>(i % sets);
            own.b = {weights[set]->data(), scales[set]->data(), 0, 0, 0, 0};
            if (quantises) own.n = 0;
            require((*alone)->run(own, device.stream()));
          },
          0.03);
      steps += fmt::format(" {} {:.1f}", step_name(step.kind), spent.sustained * 1e6);
    }
    const double bytes = double(s.n) * double(s.k) * 0.53125;
    std::cout << fmt::format("  {}x{}x{} {:.1f} us {:.2f} TB/s (alone, us:{})  {}\n", s.m, s.n, s.k,
                             t.sustained * 1e6, bytes / t.sustained * 1e-12, steps, plan.text());
  }
}

// Whole products from bf16: both operands rotated and rounded on the fly, beside cuBLAS's bf16.
void plan_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  const auto peer = open_peer();
  Memory one(device, std::vector<float>{1.0f}), peer_workspace(device, 64 << 20);
  DeviceBackend backend(device);
  struct Kind {
    Contract contract;
    Spread spread;
    Rounding rounding;
    Role role;
  };
  const std::vector<Kind> kinds = {{Contract::exact, Spread::narrow, Rounding::rne, Role::fprop},
                                   {Contract::fast, Spread::any, Rounding::sr16, Role::fprop},
                                   {Contract::fast, Spread::any, Rounding::sr16, Role::wgrad}};
  const auto problem_of = [](const Kind& kind, const Shape& s) {
    Problem p;
    p.op = Op::hadamard_gemm;
    p.role = kind.role;
    p.m = Extent::exactly(s.m);
    p.n = Extent::exactly(s.n);
    p.k = Extent::exactly(s.k);
    p.a_type = p.b_type = p.d_type = DType::bf16;
    if (kind.role == Role::wgrad) p.a_major = p.b_major = Major::rows, p.d_type = DType::f32;
    p.rotation = 32;
    p.contract = kind.contract;
    p.spread = kind.spread;
    p.a_rounding = p.b_rounding = kind.rounding;
    return p;
  };
  std::vector<std::pair<Source, std::string>> sources;
  for (const Shape& s : kShapes)
    for (const Kind& kind : kinds) {
      const auto p = problem_of(kind, s);
      const auto plan = default_plan(p, device.target());
      require(plan.status());
      if (&s == &kShapes[0]) std::cout << plan->text() << "\n";
      for (const auto& step : plan->steps)
        sources.emplace_back(find_family(step.variant.family)
                                 ->emit(step_problem(p, device.target(), *plan, step.kind),
                                        device.target(), step.variant),
                             plan->text());
    }
  compile_all(device, sources);
  std::map<std::string, double> log_sum;
  for (const Shape& s : kShapes) {
    const double flops = 2.0 * double(s.m) * double(s.n) * double(s.k);
    Memory d(device, s.m * s.n * 4);
    const auto a = repeated(device, pattern, s.m * s.k * 2),
               b = repeated(device, pattern, s.n * s.k * 2);
    std::cout << fmt::format("{}x{}x{} from bf16: TFLOP/s burst / sustained @MHz W\n", s.m, s.n,
                             s.k);
    double base = 0;
    const auto print = [&](const std::string& name, const Meter::Reading& t) {
      if (base == 0) base = t.sustained;
      std::cout << fmt::format("  {:<28} {:.0f} / {:.0f} @{} {}: {:.2f}\n", name,
                               flops / t.burst * 1e-12, flops / t.sustained * 1e-12, t.clock,
                               t.watts, base / t.sustained);
      log_sum[name] += std::log(base / t.sustained);
    };
    const auto bf16 = peer->plan(CublasPeer::Input::bf16, CublasPeer::Sums::exact, s.m, s.n, s.k,
                                 one.data(), 64 << 20);
    if (!bf16.ok()) continue;
    print("cublas bf16", meter.read(
                             [&](int) {
                               require(peer->run(*bf16, a->data(), b->data(), d.data(),
                                                 peer_workspace.data(), device.stream()));
                             },
                             0.2));
    for (const Kind& kind : kinds) {
      const auto p = problem_of(kind, s);
      const auto plan = default_plan(p, device.target());
      require(plan.status());
      const auto built = Executable::build(backend, p, *plan);
      require(built.status());
      Memory workspace(device, (*built)->workspace_bytes());
      qt_args args{};
      args.m = s.m;
      args.n = s.n;
      args.k = s.k;
      args.batch = 1;
      args.a = {a->data(), nullptr, p.a_major == Major::k ? s.k : s.m, 0, 0, 0};
      args.b = {b->data(), nullptr, p.b_major == Major::k ? s.k : s.n, 0, 0, 0};
      args.d = {d.data(), nullptr, s.n, 0, 0, 0};
      args.alpha = 1;
      args.workspace = workspace.data();
      print(fmt::format("{} {} {} {}", name_of(kind.role), name_of(kind.contract),
                        name_of(kind.spread), name_of(kind.rounding)),
            meter.read([&](int) { require((*built)->run(args, device.stream())); }, 0.2));
    }
  }
  std::cout << "geometric mean of sustained over cublas bf16:\n";
  for (const auto& [name, sum] : log_sum)
    std::cout << fmt::format("  {:<28} {:.3f}\n", name,
                             std::exp(sum / static_cast<double>(kShapes.size())));
}

// Products in bf16: of expanded operands, and of activations as they are with packed weights,
// beside cuBLAS's bf16 of the same sizes.
void bf16_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  const auto peer = open_peer();
  Memory one(device, std::vector<float>{1.0f}), peer_workspace(device, 64 << 20),
      workspace(device, 64 << 20);
  struct Entry {
    Shape shape;
    const Family* family;
    Problem problem;
    Variant variant;
  };
  std::vector<Entry> entries;
  std::vector<std::pair<Source, std::string>> sources;
  std::vector<Shape> shapes = {{8192, 4096, 4096}, {8192, 8192, 8192}};
  for (const std::int64_t m : {1, 8, 16, 32, 64})
    for (const auto& [n, k] : {std::pair{28672, 8192}, {8192, 28672}, {4096, 4096}})
      shapes.push_back({m, n, k});
  for (const Shape& s : shapes)
    for (const Family* family :
         {&cuda::gemm_bf16(), &cuda::gemm_packed_bf16(), &cuda::gemm_packed_tiles_bf16()}) {
      auto p = gemm_problem(s, Layout::bf16);
      p.m.lo = 1;
      if (family != &cuda::gemm_bf16()) p.a_type = DType::bf16, p.rotation = 0;
      if (!family->refuses(p, device.target()).empty()) continue;
      if (s.m < 256 && family != &cuda::gemm_packed_bf16()) continue;
      auto v = family->default_variant(p, device.target());
      // The default, and some other values of parameters.
      std::vector<Variant> all = {v};
      for (const auto& axis : family->parameters(p, device.target()))
        for (std::size_t i = 1; i < axis.values.size(); ++i) {
          if (s.m > 256 && axis.name != "raster") continue;
          auto other = v;
          other.values[axis.name] = axis.values[i];
          all.push_back(other);
        }
      for (const auto& variant : all) {
        if (!family->illegal(p, device.target(), variant).empty()) continue;
        entries.push_back({s, family, p, variant});
        sources.emplace_back(family->emit(p, device.target(), variant), variant.text());
      }
    }
  compile_all(device, sources);
  for (const Shape& s : shapes) {
    const double flops = 2.0 * double(s.m) * double(s.n) * double(s.k);
    const double packed_bytes = double(s.n) * double(s.k) * 0.53125;
    const double seconds = s.m > 256 ? 0.25 : 0.03;
    std::cout << fmt::format("{}x{}x{}: us, TFLOP/s, TB/s of packed weights @MHz W\n", s.m, s.n,
                             s.k);
    const auto print = [&](const std::string& name, const Meter::Reading& t) {
      std::cout << fmt::format("  {:.1f} us {:.0f} TF {:.2f} TB/s @{} {}  {}\n", t.sustained * 1e6,
                               flops / t.sustained * 1e-12, packed_bytes / t.sustained * 1e-12,
                               t.clock, t.watts, name);
    };
    const auto a16 = repeated(device, pattern, s.m * s.k * 2),
               b16 = repeated(device, pattern, s.n * s.k * 2);
    Memory d(device, s.m * s.n * 2), a(device, s.m * s.k * 2), b(device, s.n * s.k * 2);
    constexpr int sets = 3;  // of packed weights: beyond twice the L2 cache where that matters
    std::vector<std::unique_ptr<Memory>> weights(sets), scales(sets);
    for (int i = 0; i < sets; ++i)
      permute_weights(device, *b16, s.n, s.k, weights[static_cast<std::size_t>(i)],
                      scales[static_cast<std::size_t>(i)]);
    for (const bool is_b : {false, true}) {
      const auto rows = is_b ? s.n : s.m;
      const auto p =
          quantize_problem(rows, s.k, 32, Signs::none, Rounding::rne, Copies::rows, Layout::bf16);
      qt_args args{};
      args.m = rows;
      args.k = s.k;
      args.batch = 1;
      args.a = {(is_b ? b16 : a16)->data(), nullptr, s.k, 0, 0, 0};
      args.d = {(is_b ? b : a).data(), nullptr, s.k, 0, 0, 0};
      device.run(cuda::quantize(), p, cuda::quantize().default_variant(p, device.target()), args);
    }
    const auto plan = peer->plan(CublasPeer::Input::bf16, CublasPeer::Sums::exact, s.m, s.n, s.k,
                                 one.data(), 64 << 20);
    if (plan.ok())
      print("cublas bf16", meter.read(
                               [&](int) {
                                 require(peer->run(*plan, a16->data(), b16->data(), d.data(),
                                                   peer_workspace.data(), device.stream()));
                               },
                               seconds));
    for (const Entry& e : entries) {
      if (e.shape.m != s.m || e.shape.n != s.n || e.shape.k != s.k) continue;
      const auto& kernel = device.kernel(*e.family, e.problem, e.variant);
      qt_args args{};
      args.m = s.m;
      args.n = s.n;
      args.k = s.k;
      args.batch = 1;
      args.alpha = 1;
      args.d = {d.data(), nullptr, s.n, 0, 0, 0};
      args.workspace = workspace.data();
      const bool packed = e.problem.a_type == DType::bf16;
      args.a = {packed ? a16->data() : a.data(), nullptr, s.k, 0, 0, 0};
      args.b = {b.data(), nullptr, s.k, 0, 0, 0};
      auto launch = e.family->launch(e.problem, e.variant, args, device.units());
      launch.start = Launch::Start::in_order;
      print(e.variant.text(), meter.read(
                                  [&](int i) {
                                    const auto set = static_cast<std::size_t>(i % sets);
                                    if (packed)
                                      args.b = {
                                          weights[set]->data(), scales[set]->data(), 0, 0, 0, 0};
                                    require(kernel.launch(launch, args, device.stream()));
                                  },
                                  seconds));
    }
  }
}

// Where everything that a plan of an epilogue, a prologue or sums may touch lies.
struct Room {
  std::unique_ptr<Memory> a, b;
  Memory d, d_scales, d2, d2_scales, z, sums, weight;

  Room(Device& device, const std::vector<unsigned char>& pattern, std::int64_t a_elements,
       std::int64_t b_elements, std::int64_t d_elements, std::int64_t columns)
      : a(repeated(device, pattern, a_elements * 2)),
        b(repeated(device, pattern, std::max<std::int64_t>(b_elements, 16) * 2)),
        d(device, d_elements * 2),
        d_scales(device, d_elements / 16),
        d2(device, d_elements),
        d2_scales(device, d_elements / 16),
        z(device, d_elements * 2),
        sums(device, columns * 4),
        weight(device, columns * 2) {
    weight.upload(pattern.data());
  }
};

qt_args args_of(const Problem& p, const Room& room) {
  const auto columns = multiplies(p.op) ? output_columns(p.epilogue, p.n.hi) : p.k.hi;
  qt_args args{};
  args.m = p.m.hi;
  args.n = p.n.hi;
  args.k = p.k.hi;
  args.batch = args.groups = 1;
  args.a = {room.a->data(), nullptr, input_columns(p.prologue, p.k.hi), 0, 0, 0};
  args.b = {room.b->data(), nullptr, p.k.hi, 0, 0, 0};
  if (p.d_type == DType::mxfp4) {
    args.d = packed_operand(p.d_layout, p.m.hi, columns, 32, room.d.data(), room.d_scales.data());
    args.d2 =
        packed_operand(p.d_layout, columns, p.m.hi, 32, room.d2.data(), room.d2_scales.data());
  } else {
    args.d = {room.d.data(), nullptr, columns, 0, 0, 0};
  }
  args.z = {room.z.data(), nullptr, p.n.hi, 0, 0, 0};
  args.aux = {room.a->data(), nullptr, aux_columns(p.epilogue, p.n.hi), 0, 0, 0};
  args.norm_weight = room.weight.data();
  args.epsilon = 1e-5f;
  args.bias_gradient = room.sums.data<float>();
  args.alpha = 1;
  return args;
}

// A SwiGLU layer's forward and backward products with the activation in their epilogues and
// without; and what prologues and sums add to quantising.
void epilogue_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  DeviceBackend backend(device);
  constexpr std::int64_t tokens = 8192, wide = 28672, hidden = 4096;
  const Room room(device, pattern, tokens * wide, wide * hidden, tokens * wide, wide);
  const auto time = [&](const std::string& name, const Problem& p) {
    const auto plan = default_plan(p, device.target());
    require(plan.status());
    const auto built = Executable::build(backend, p, *plan);
    require(built.status());
    Memory workspace(device, (*built)->workspace_bytes());
    auto args = args_of(p, room);
    args.workspace = workspace.data();
    const auto reading =
        meter.read([&](int) { require((*built)->run(args, device.stream())); }, 0.3);
    std::cout << fmt::format("  {:<44} {:9.1f} us  {:9.1f} us sustained  {} MHz\n", name,
                             reading.burst * 1e6, reading.sustained * 1e6, reading.clock);
  };
  for (const bool narrow : {false, true}) {
    Problem p;
    p.op = Op::hadamard_gemm;
    p.role = Role::fprop;
    p.m = {1, tokens};
    p.n = Extent::exactly(wide);
    p.k = Extent::exactly(hidden);
    p.a_type = p.b_type = p.d_type = DType::bf16;
    p.rotation = 32;
    p.contract = Contract::fast;
    p.spread = narrow ? Spread::narrow : Spread::any;
    std::cout << fmt::format("hadamard_gemm {}x{}x{} bf16, spread {}\n", tokens, wide, hidden,
                             name_of(p.spread));
    time("no activation", p);
    for (const auto epilogue :
         {Epilogue::swiglu_split, Epilogue::swiglu_interleaved, Epilogue::gelu_tanh}) {
      p.epilogue = epilogue;
      time(std::string(name_of(epilogue)), p);
    }
    p.epilogue = Epilogue::swiglu_split;
    p.pre_activation = PreActivation::kept;
    time("swiglu_split, z kept", p);
    p.pre_activation = PreActivation::dropped;
    p.op = Op::gemm_quantize;
    p.d_type = DType::mxfp4;
    time("swiglu_split, quantised rows", p);
    p.copies = Copies::both;
    time("swiglu_split, quantised both", p);
    Problem back = p;
    back.op = Op::hadamard_gemm;
    back.copies = Copies::rows;
    back.d_type = DType::bf16;
    back.n = Extent::exactly(wide / 2);
    back.epilogue = Epilogue::none;
    time(fmt::format("{} columns, no activation", wide / 2), back);
    back.epilogue = Epilogue::dswiglu;
    time(fmt::format("{} columns, dswiglu", wide / 2), back);
  }
  for (const Layout layout : {Layout::plain, Layout::e5m2}) {
    Problem p;
    p.op = Op::quantize;
    p.role = Role::fprop;
    p.m = {1, tokens};
    p.k = Extent::exactly(hidden);
    p.a_type = DType::bf16;
    p.d_type = DType::mxfp4;
    p.d_layout = layout;
    p.rotation = 32;
    std::cout << fmt::format("quantize {}x{} bf16 to {}\n", tokens, hidden, name_of(layout));
    time("alone", p);
    p.prologue = Prologue::rmsnorm;
    time("behind rmsnorm", p);
    p.k = Extent::exactly(wide / 2);
    p.prologue = Prologue::none;
    time(fmt::format("{} columns", wide / 2), p);
    p.prologue = Prologue::swiglu_split;
    time(fmt::format("{} columns, swiglu_split", wide / 2), p);
    if (layout != Layout::plain) continue;
    p.copies = Copies::both;
    time(fmt::format("{} columns, swiglu_split, both", wide / 2), p);
    p.prologue = Prologue::none;
    time(fmt::format("{} columns, both", wide / 2), p);
    p.bias_gradient = BiasGradient::f32;
    time(fmt::format("{} columns, both, and sums", wide / 2), p);
  }
}

}  // namespace

int main(int count, char** words) {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return 0;
  }
  const std::set<std::string> asked(words + 1, words + count);
  const auto wants = [&](const char* what) { return asked.empty() || asked.count(what) > 0; };
  try {
    Meter meter(*device);
    const auto pattern = gaussian_bf16();
    std::cout << device->name() << ", " << device->units() << " SMs\n";
    if (wants("quantize")) quantize_speeds(*device, meter, pattern);
    if (wants("gemm")) gemm_speeds(*device, meter, pattern);
    if (wants("packed")) packed_speeds(*device, meter, pattern);
    if (wants("bf16")) bf16_speeds(*device, meter, pattern);
    if (wants("plans")) plan_speeds(*device, meter, pattern);
    if (wants("epilogue")) epilogue_speeds(*device, meter, pattern);
  } catch (const std::exception& error) {
    std::cout << "failed: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
