// Products of operands that were quantised beforehand, beside cuBLASLt.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {
namespace {

struct Contestant {
  std::string name;
  const Family* family;
  std::vector<std::pair<const std::string, std::int64_t>> values;
};

}  // namespace

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

}  // namespace quarterturn::cuda_test
