// The families that move one operand, on a GPU: pack, dequantize, hadamard, bit for bit.
#include <doctest/doctest.h>

#include "tests/cuda/device.hpp"
#include "tests/cuda/oracle.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

Device* device_or_skip() {
  std::string why;
  Device* device = Device::find(why);
  if (!device) std::cout << "SKIPPED: " << why << "\n";
  return device;
}

Problem one_operand(Op op, Extent k) {
  Problem p;
  p.op = op;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 8192};
  p.k = k;
  p.a_type = p.d_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  return p;
}

qt_args sizes(std::int64_t m, std::int64_t k, std::int64_t batch) {
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = batch;
  return args;
}

}  // namespace

TEST_CASE("gpu.pack expands as the layout is defined") {
  Device* device = device_or_skip();
  if (!device) return;
  std::uint32_t seed = 1;
  std::size_t index = 0;
  for (const auto layout : {Layout::e5m2, Layout::int8_rows})
    for (const std::int32_t g : {32, 128}) {
      auto p = one_operand(Op::pack, {0, 16384});
      p.d_layout = layout;
      p.rotation = g;
      for (const auto& v : cuda::pack().variants(p, device->target())) {
        if (is_left_out(*device, index++, 5)) continue;
        for (const auto& [m, k] :
             {std::pair{1, 32}, {7, 96}, {33, 576}, {130, 1504}, {3, 8192}, {5, 0}, {0, 64}}) {
          const std::int64_t padded = round_up(k, g), pitch = round_up(padded, 128);
          // Two batch entries, rows apart, codes at an odd place.
          const std::int64_t ld = padded + 64, scale_ld = padded / 32 + 1;
          Quantized one[2];
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(2 * m * ld / 2 + 1), 0xff);
          std::vector<std::uint8_t> scales(static_cast<std::size_t>(2 * m * scale_ld), 0xff);
          for (std::int64_t batch = 0; batch < 2; ++batch) {
            auto& q = one[batch];
            q = random_operand(m, padded, seed % 3 == 0 ? Data::wide : Data::forward, seed);
            ++seed;
            if (m > 2 && k > 0) {
              q.scales[static_cast<std::size_t>(2 * padded / 32)] = 255;
              std::fill_n(q.codes.begin() + padded, 16, std::uint8_t(0));
            }
            for (std::int64_t i = 0; i < m; ++i) {
              std::copy_n(q.codes.begin() + i * padded / 2, padded / 2,
                          codes.begin() + 1 + (batch * m + i) * ld / 2);
              std::copy_n(q.scales.begin() + i * padded / 32, padded / 32,
                          scales.begin() + (batch * m + i) * scale_ld);
            }
          }
          Memory from(*device, codes), bytes(*device, scales);
          Memory to(*device, 2 * m * pitch), references(*device, 2 * m);
          auto args = sizes(m, k, 2);
          args.a = {from.data(1), bytes.data(), ld, scale_ld, m * ld, m * scale_ld};
          args.d = {to.data(), references.data(), pitch, 1, m * pitch, m};
          device->run(cuda::pack(), p, v, args);
          const auto data = to.download(), reference = references.download();
          std::int64_t wrong = 0;
          for (std::int64_t batch = 0; batch < 2; ++batch) {
            const auto want = expand(one[batch], layout);
            for (std::int64_t i = 0; i < m; ++i) {
              const auto row = static_cast<std::size_t>(batch * m + i);
              wrong += reference[row] != want.reference[static_cast<std::size_t>(i)];
              const auto meant = want.reference[static_cast<std::size_t>(i)] == 255
                                     ? pitch / 2 + pitch / 32
                                     : pitch;
              for (std::int64_t j = 0; j < std::min(meant, want.pitch); ++j)
                wrong +=
                    data[row * static_cast<std::size_t>(pitch) + static_cast<std::size_t>(j)] !=
                    want.data[static_cast<std::size_t>(i * want.pitch + j)];
            }
          }
          INFO(p.key(), " ", v.text(), " m=", m, " k=", k);
          CHECK(wrong == 0);
        }
      }
    }
}

TEST_CASE("gpu.pack decodes to bf16, an eighth of every value") {
  Device* device = device_or_skip();
  if (!device) return;
  std::uint32_t seed = 1;
  for (const std::int32_t g : {32, 128}) {
    auto p = one_operand(Op::pack, {0, 16384});
    p.d_layout = Layout::bf16;
    p.rotation = g;
    const auto v = cuda::pack().default_variant(p, device->target());
    for (const auto& [m, k] :
         {std::pair{1, 32}, {7, 96}, {300, 1504}, {3, 8192}, {5, 0}, {0, 64}}) {
      const std::int64_t padded = round_up(k, g), ld = padded + 64, scale_ld = padded / 32 + 1;
      // Two batch entries, rows apart, codes at an odd place; every scale byte somewhere.
      Quantized one[2];
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(2 * m * ld / 2 + 1), 0xff);
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(2 * m * scale_ld), 0xff);
      for (std::int64_t batch = 0; batch < 2; ++batch) {
        auto& q = one[batch];
        q = random_operand(m, padded, Data::forward, ++seed);
        for (std::size_t i = 0; i < q.scales.size(); ++i)
          q.scales[i] = static_cast<std::uint8_t>(i * 5 + seed);
        for (std::int64_t i = 0; i < m; ++i) {
          std::copy_n(q.codes.begin() + i * padded / 2, padded / 2,
                      codes.begin() + 1 + (batch * m + i) * ld / 2);
          std::copy_n(q.scales.begin() + i * padded / 32, padded / 32,
                      scales.begin() + (batch * m + i) * scale_ld);
        }
      }
      Memory from(*device, codes), bytes(*device, scales), to(*device, 2 * m * padded * 2);
      auto args = sizes(m, k, 2);
      args.a = {from.data(1), bytes.data(), ld, scale_ld, m * ld, m * scale_ld};
      args.d = {to.data(), nullptr, padded, 0, m * padded, 0};
      device->run(cuda::pack(), p, v, args);
      const auto data = to.download();
      INFO(p.key(), " m=", m, " k=", k);
      CHECK(wrong_bf16(one[0], data.data()) == 0);
      CHECK(wrong_bf16(one[1], data.data() + m * padded * 2) == 0);
    }
  }
}

TEST_CASE("gpu.pack permutes weights as the layout is defined") {
  Device* device = device_or_skip();
  if (!device) return;
  std::uint32_t seed = 1;
  for (const std::int32_t g : {32, 64}) {
    auto p = one_operand(Op::pack, {0, 16384});
    p.d_layout = Layout::permuted;
    p.rotation = g;
    const auto v = cuda::pack().default_variant(p, device->target());
    for (const auto& [m, k] : {std::pair{1, 32}, {64, 128}, {130, 1504}, {65, 2880}, {3, 8192}}) {
      const std::int64_t padded = round_up(k, g), ld = padded + 32, scale_ld = padded / 32 + 3;
      auto q = random_operand(m, padded, seed % 2 == 0 ? Data::wide : Data::forward, seed);
      ++seed;
      if (m > 2) q.scales[static_cast<std::size_t>(2 * padded / 32)] = 255;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(m * ld / 2), 0xff);
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(m * scale_ld), 0xff);
      for (std::int64_t i = 0; i < m; ++i) {
        std::copy_n(q.codes.begin() + i * padded / 2, padded / 2, codes.begin() + i * ld / 2);
        std::copy_n(q.scales.begin() + i * padded / 32, padded / 32, scales.begin() + i * scale_ld);
      }
      const auto want = permute(q);
      const auto sizes_of = operand_bytes(Layout::permuted, m, k, g);
      REQUIRE(sizes_of.codes == static_cast<std::int64_t>(want.codes.size()));
      REQUIRE(sizes_of.scales == static_cast<std::int64_t>(want.scales.size()));
      Memory from(*device, codes), bytes(*device, scales), to(*device, sizes_of.codes),
          to_scales(*device, sizes_of.scales);
      auto args = sizes(m, k, 1);
      args.a = {from.data(), bytes.data(), ld, scale_ld, 0, 0};
      args.d = {to.data(), to_scales.data(), 0, 0, 0, 0};
      device->run(cuda::pack(), p, v, args);
      INFO(p.key(), " m=", m, " k=", k);
      CHECK(to.download() == want.codes);
      CHECK(to_scales.download() == want.scales);
    }
  }
}

TEST_CASE("gpu.dequantize gives each code's value, rounded once") {
  Device* device = device_or_skip();
  if (!device) return;
  for (const auto type : {DType::f32, DType::bf16, DType::f16}) {
    auto p = one_operand(Op::dequantize, {0, 8192});
    p.d_type = type;
    const auto v = cuda::dequantize().default_variant(p, device->target());
    for (const auto& [m, k, extra] :
         {std::tuple{1, 32, 0}, {7, 90, 3}, {129, 576, 8}, {3, 8192, 0}}) {
      const std::int64_t padded = round_up(k, 32), ld = k + extra;
      Quantized q = random_operand(m, padded, Data::wide, static_cast<std::uint32_t>(k));
      // Every byte and every code somewhere.
      for (std::size_t i = 0; i < q.scales.size() && m > 100; ++i)
        q.scales[i] = static_cast<std::uint8_t>(i);
      Memory codes(*device, q.codes), scales(*device, q.scales),
          d(*device, m * ld * bytes_of(type));
      auto args = sizes(m, k, 1);
      args.a = {codes.data(), scales.data(), padded, padded / 32, 0, 0};
      args.d = {d.data(), nullptr, ld, 0, 0, 0};
      device->run(cuda::dequantize(), p, v, args);
      const auto out = d.download();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < ld; ++j) {
          const auto* at = &out[static_cast<std::size_t>((i * ld + j) * bytes_of(type))];
          if (j >= k) {
            for (std::int64_t e = 0; e < bytes_of(type); ++e) wrong += at[e] != 0xff;
            continue;
          }
          std::vector<float> want = {static_cast<float>(q.value(i, j))};
          stored(type, want);
          const float got = as_float(type, at);
          wrong += !(got == want[0] && std::signbit(got) == std::signbit(want[0])) &&
                   !(std::isnan(got) && std::isnan(want[0]));
        }
      INFO(name_of(type), " m=", m, " k=", k);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("gpu.hadamard rotates as the reference does") {
  Device* device = device_or_skip();
  if (!device) return;
  std::uint32_t seed = 1;
  for (const auto& [g, in, to] : {std::tuple{16, DType::bf16, DType::f32},
                                  {32, DType::f32, DType::bf16},
                                  {64, DType::f16, DType::f16},
                                  {128, DType::f32, DType::f32},
                                  {256, DType::bf16, DType::bf16}})
    for (const auto& [m, k] : {std::pair{1, 256}, {37, 768}, {130, 2560}}) {
      if (device->simulated() && k != 768) continue;  // a kernel for each
      auto p = one_operand(Op::hadamard, Extent::exactly(k));
      p.a_type = in;
      p.d_type = to;
      p.a_layout = Layout::chosen;
      p.rotation = g;
      p.signs = g == 32 ? Signs::none : g == 64 ? Signs::fixed : Signs::per_call;
      const auto v = cuda::hadamard().default_variant(p, device->target());
      std::mt19937 random(++seed);
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<std::size_t>(m * k));
      for (auto& value : x) value = normal(random);
      x[5] = std::numeric_limits<float>::infinity();
      const auto source = stored(in, x);
      Memory from(*device, source), d(*device, m * k * bytes_of(to));
      auto args = sizes(m, k, 1);
      args.a = {from.data(), nullptr, k, 0, 0, 0};
      args.d = {d.data(), nullptr, k, 0, 0, 0};
      args.sign_seed = seed;
      for (std::uint32_t i = 0; i < 8; ++i) args.sign_mask[i] = 0x9e3779b9u * (i + seed);
      device->run(cuda::hadamard(), p, v, args);
      const auto out = d.download();
      const auto spec = spec_of(p, Rounding::rne, args);
      for (std::int64_t i = 0; i < m; ++i)
        reference::rotate_row({x.data() + i * k, static_cast<std::size_t>(k)}, spec);
      stored(to, x);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float got = as_float(to, &out[i * static_cast<std::size_t>(bytes_of(to))]);
        wrong += got != x[i] && !(std::isnan(got) && std::isnan(x[i]));
      }
      INFO(p.key(), " m=", m, " k=", k);
      CHECK(wrong == 0);
    }
}
