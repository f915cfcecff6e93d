// Data, problems and weights that sections share.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {

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

const std::vector<Shape> kShapes = {{8192, 4096, 4096}, {8192, 14336, 4096}, {8192, 4096, 14336},
                                    {8192, 8192, 8192}, {8192, 28672, 8192}, {16384, 16384, 16384}};

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

}  // namespace quarterturn::cuda_test
