// Operands and results of more than 2^31 elements: places that 32-bit arithmetic would get wrong.
#include <doctest/doctest.h>

#include "tests/cuda/device.hpp"
#include "tests/cuda/product_check.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

constexpr std::int64_t kTwo31 = std::int64_t(1) << 31;

Device* device_or_skip(std::int64_t gigabytes) {
  std::string why;
  Device* device = Device::find(why);
  cuda::CUdeviceptr probe = 0;
  if (device && device->api().cuMemAlloc(&probe, static_cast<std::size_t>(gigabytes) << 30) != 0) {
    why = fmt::format("needs {} GB of device memory", gigabytes);
    device = nullptr;
  }
  if (probe != 0) device->api().cuMemFree(probe);
  if (!device) std::cout << "SKIPPED: " << why << "\n";
  return device;
}

// X repeats this many random elements, so that any part of it is known.
constexpr std::int64_t kPeriod = (std::int64_t(1) << 24) + 3;

struct Repeated {
  std::vector<float> values;
  std::unique_ptr<Memory> memory;

  Repeated(Device& device, std::int64_t elements) : values(static_cast<std::size_t>(kPeriod)) {
    std::mt19937 random(5);
    for (auto& v : values)
      v = std::ldexp(static_cast<float>(random() % 511) - 255.0f, static_cast<int>(random() % 8));
    const auto bytes = stored(DType::bf16, values);
    memory = std::make_unique<Memory>(device, elements * 2);
    // The first period from the host, the others from there.
    for (std::int64_t at = 0; at < elements; at += kPeriod) {
      const auto count = static_cast<std::size_t>(std::min(kPeriod, elements - at) * 2);
      const auto to = reinterpret_cast<cuda::CUdeviceptr>(memory->data(at * 2));
      if (at == 0)
        device.copy_in(to, bytes.data(), count);
      else
        device.check(
            device.api().cuMemcpyDtoDAsync(to, reinterpret_cast<cuda::CUdeviceptr>(memory->data()),
                                           count, device.stream()),
            "copy");
    }
  }
  float at(std::int64_t i) const { return values[static_cast<std::size_t>(i % kPeriod)]; }
};

std::vector<unsigned char> part(Device& device, const Memory& memory, std::int64_t offset,
                                std::int64_t bytes) {
  std::vector<unsigned char> out(static_cast<std::size_t>(bytes));
  device.synchronize();
  device.check(
      device.api().cuMemcpyDtoH(
          out.data(), reinterpret_cast<cuda::CUdeviceptr>(memory.data(offset)), out.size()),
      "download");
  return out;
}

}  // namespace

TEST_CASE("gpu.big: operands of more than 2^31 elements are quantised like small ones") {
  Device* device = device_or_skip(16);
  if (!device) return;
  constexpr std::int64_t m = 262'145 + 128, k = 8224;
  static_assert(m * k > kTwo31);
  const Repeated x(*device, m * k);
  const std::int64_t m_padded = round_up(m, 32);
  Memory codes(*device, m * k / 2), scales(*device, m * k / 32), codes2(*device, k * m_padded / 2),
      scales2(*device, k * m_padded / 32);
  for (const auto copies : {Copies::rows, Copies::both}) {
    Problem p;
    p.op = Op::quantize;
    p.m = {0, 1 << 20};
    p.k = Extent::exactly(k);
    p.a_type = DType::bf16;
    p.d_type = DType::mxfp4;
    p.rotation = 32;
    p.a_rounding = Rounding::sr16;
    p.copies = copies;
    p.d_layout = Layout::plain;
    qt_args args{};
    args.m = m;
    args.k = k;
    args.batch = 1;
    args.a = {x.memory->data(), nullptr, k, 0, 0, 0};
    args.d = {codes.data(), scales.data(), k, k / 32, 0, 0};
    args.d2 = {codes2.data(), scales2.data(), m_padded, m_padded / 32, 0, 0};
    args.noise_seed = 99;
    device->run(cuda::quantize(), p, cuda::quantize().default_variant(p, device->target()), args);
    INFO(p.key());
    for (const std::int64_t row :
         {std::int64_t(0), kTwo31 / k - 1, kTwo31 / k, kTwo31 / k + 1, m - 1}) {
      std::vector<float> of_row(static_cast<std::size_t>(k));
      for (std::int64_t j = 0; j < k; ++j) of_row[static_cast<std::size_t>(j)] = x.at(row * k + j);
      auto spec = spec_of(p, p.a_rounding, args);
      spec.row0 = row;
      const auto want = reference::quantize(of_row.data(), 1, k, k, spec);
      INFO("row ", row);
      CHECK(part(*device, codes, row * k / 2, k / 2) == want.codes);
      CHECK(part(*device, scales, row * k / 32, k / 32) == want.scales);
    }
    if (copies == Copies::rows) continue;
    for (const std::int64_t column : {std::int64_t(0), kTwo31 / m_padded, k - 1}) {
      std::vector<float> of_column(static_cast<std::size_t>(m));
      for (std::int64_t i = 0; i < m; ++i)
        of_column[static_cast<std::size_t>(i)] = x.at(i * k + column);
      auto spec = spec_of(p, p.a_rounding, args);
      spec.row0 = column;
      const auto want = reference::quantize_columns(of_column.data(), m, 1, 1, spec);
      INFO("column ", column);
      CHECK(part(*device, codes2, column * m_padded / 2, m_padded / 2) == want.codes);
      CHECK(part(*device, scales2, column * m_padded / 32, m_padded / 32) == want.scales);
    }
  }
}

TEST_CASE("gpu.big: products of more than 2^31 elements are written where they belong") {
  Device* device = device_or_skip(8);
  if (!device) return;
  constexpr std::int64_t m = 65'541, n = 32'784, k = 64;
  static_assert(m * n > kTwo31);
  auto a = random_operand(m, k, Data::forward, 1);
  const auto b = random_operand(n, k, Data::forward, 2);
  const std::int64_t rows[] = {0, kTwo31 / n - 1, kTwo31 / n, kTwo31 / n + 1, m - 2, m - 1};
  // The last row but one does not fit a window: its stand-in writes beyond 2^31 as well.
  a.scales[static_cast<std::size_t>((m - 2) * 2)] = 90;
  a.scales[static_cast<std::size_t>((m - 2) * 2 + 1)] = 130;
  std::fill_n(a.codes.begin() + static_cast<std::ptrdiff_t>((m - 2) * k / 2), k / 2,
              std::uint8_t(0x35));
  Quantized few;
  few.k = k;
  for (const auto row : rows) {
    ++few.rows;
    few.codes.insert(few.codes.end(), a.codes.begin() + row * k / 2,
                     a.codes.begin() + (row + 1) * k / 2);
    few.scales.insert(few.scales.end(), a.scales.begin() + row * k / 32,
                      a.scales.begin() + (row + 1) * k / 32);
  }
  Memory d(*device, m * n * 2);
  for (const Family* family : {&cuda::gemm_mma(), &cuda::gemm_e5m2(), &cuda::gemm_int8()}) {
    Problem p;
    p.op = Op::gemm;
    p.role = Role::fprop;
    p.m = {0, 1 << 20};
    p.n = Extent::exactly(n);
    p.k = Extent::exactly(k);
    p.a_type = p.b_type = DType::mxfp4;
    p.d_type = DType::bf16;
    p.contract = family == &cuda::gemm_e5m2() ? Contract::fast : Contract::exact;
    p.spread = Spread::narrow;
    if (const auto reason = family->refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family->name() << " " << reason << "\n";
      continue;
    }
    const auto v = family->default_variant(p, device->target());
    const auto layout = family->a_layout(p, v);
    std::vector<std::unique_ptr<Memory>> kept;
    const auto place = [&](const Quantized& q) {
      const bool plain = layout == Layout::plain;
      const auto rows_of = plain ? ExpandedOperand{} : expand(q, layout);
      kept.push_back(std::make_unique<Memory>(*device, plain ? q.codes : rows_of.data));
      kept.push_back(std::make_unique<Memory>(*device, plain ? q.scales : rows_of.reference));
      return qt_tensor{kept[kept.size() - 2]->data(), kept.back()->data(), k, k / 32, 0, 0};
    };
    qt_args args{};
    args.m = m;
    args.n = n;
    args.k = k;
    args.batch = 1;
    args.a = place(a);
    args.b = place(b);
    args.d = {d.data(), nullptr, n, 0, 0, 0};
    args.alpha = 1;
    Memory workspace(*device, family->workspace_bytes(p, v, {m, n, k, 1}));
    args.workspace = workspace.data();
    d.poison();
    device->run(*family, p, v, args);
    if (const auto then = family->stand_in(p, v)) {
      p.a_layout = p.b_layout = layout;
      device->run(cuda::stand_in(), p, *then, args);
    }
    std::vector<unsigned char> got;
    for (const auto row : rows) {
      const auto one = part(*device, d, row * n * 2, n * 2);
      got.insert(got.end(), one.begin(), one.end());
    }
    const auto outcome =
        check_product(few, b, tensor_core_of(v), {few.rows, n, p.d_type, n, 1, 0, nullptr, nullptr},
                      got, layout, layout);
    INFO(v.text(), " ", outcome.where);
    CHECK(outcome.worst <= 1.0);
  }
}
