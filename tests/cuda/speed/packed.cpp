// Few tokens by packed weights, all counted.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {

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

}  // namespace quarterturn::cuda_test
