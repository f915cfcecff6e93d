// Quantisers beside a copy of the same bytes.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {

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

}  // namespace quarterturn::cuda_test
