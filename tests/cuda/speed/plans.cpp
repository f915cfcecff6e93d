// Whole products from bf16, beside cuBLAS.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {

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

}  // namespace quarterturn::cuda_test
