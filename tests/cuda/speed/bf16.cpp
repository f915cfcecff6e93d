// Products on the bf16 tensor cores, beside cuBLAS.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {

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

}  // namespace quarterturn::cuda_test
