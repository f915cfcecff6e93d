// Calls of the GEMM families as their tests make them: operands in device memory, problems, and
// data that leaves a window.
#pragma once

#include "tests/cuda/device.hpp"
#include "tests/cuda/product_check.hpp"

namespace quarterturn::cuda_test {

inline Device* device_or_skip() {
  std::string why;
  Device* device = Device::find(why);
  if (!device) std::cout << "SKIPPED: " << why << "\n";
  return device;
}

struct DeviceOperand {
  std::unique_ptr<Memory> data, scales;
  qt_tensor tensor;

  DeviceOperand(Device& device, const Quantized& q, Layout layout) {
    if (layout == Layout::plain) {
      // A view: 0xff between rows.
      const auto ld = q.k + 32, scale_ld = q.k / 32 + 3;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(q.rows * ld / 2), 0xff);
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(q.rows * scale_ld), 0xff);
      for (std::int64_t i = 0; i < q.rows; ++i) {
        std::copy_n(q.codes.begin() + i * q.k / 2, q.k / 2, codes.begin() + i * ld / 2);
        std::copy_n(q.scales.begin() + i * q.k / 32, q.k / 32, bytes.begin() + i * scale_ld);
      }
      data = std::make_unique<Memory>(device, codes);
      scales = std::make_unique<Memory>(device, bytes);
      tensor = {data->data(), scales->data(), ld, scale_ld, 0, 0};
    } else if (layout == Layout::permuted) {
      const auto weights = permute(q);
      data = std::make_unique<Memory>(device, weights.codes);
      scales = std::make_unique<Memory>(device, weights.scales);
      tensor = {data->data(), scales->data(), 0, 0, 0, 0};
    } else if (layout == Layout::scales_128x4) {
      data = std::make_unique<Memory>(device, q.codes);
      scales = std::make_unique<Memory>(device, tiles_128x4(q));
      tensor = {data->data(), scales->data(), q.k, 0, 0, 0};
    } else if (layout == Layout::bf16) {
      data = std::make_unique<Memory>(device, bf16_rows(q));
      tensor = {data->data(), nullptr, q.k, 0, 0, 0};
    } else {
      const auto rows = expand(q, layout);
      data = std::make_unique<Memory>(device, rows.data);
      scales = std::make_unique<Memory>(device, rows.reference);
      tensor = {data->data(), scales->data(), packed_stride(layout, q.k), 1, 0, 0};
    }
  }
};

inline void put_float(DType type, unsigned char* at, float x) {
  if (type == DType::f32) std::memcpy(at, &x, 4);
  const auto h = type == DType::bf16 ? reference::bf16_bits(x) : reference::f16_bits(x);
  if (type != DType::f32) std::memcpy(at, &h, 2);
}

/// Of products in bf16 with binary32 sums.
inline bool is_exact(const Family& family) {
  return family.name().ends_with("bf16") || family.name() == "cuda_gemm_mma";
}

struct Call {
  std::int64_t m, n, k;
  DType d_type = DType::bf16;
  Accumulate accumulate = Accumulate::overwrite;
  Bias bias = Bias::none;
  Data data = Data::forward;
  std::int64_t extra = 0;  // elements between rows of D beyond n
};

inline Problem problem_of(const Family& family, const Call& c) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 8192};
  p.n = {1, 8192};
  p.k = {0, 16384};
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = c.d_type;
  p.accumulate = c.accumulate;
  p.bias = c.bias;
  const bool int8 = family.name().ends_with("int8");
  p.contract = int8 || is_exact(family) ? Contract::exact : Contract::fast;
  p.spread = int8 ? Spread::narrow : Spread::any;
  return p;
}

/// The same rows, last first.
inline Quantized turned(const Quantized& q) {
  Quantized out = q;
  const auto turn = [&](const std::vector<std::uint8_t>& from, std::vector<std::uint8_t>& to) {
    const auto row = q.rows > 0 ? static_cast<std::int64_t>(from.size()) / q.rows : 0;
    for (std::int64_t i = 0; i < q.rows; ++i)
      std::copy_n(from.begin() + i * row, row, to.begin() + (q.rows - 1 - i) * row);
  };
  turn(q.codes, out.codes);
  turn(q.scales, out.scales);
  return out;
}

// Runs a variant, and its stand-in where it has one, as plans do. `results`: D after each run.
inline Outcome run(Device& device, const Family& family, const Problem& p, const Variant& v,
                   const Call& c, const Quantized& a, const Quantized& b, std::uint32_t seed,
                   std::int64_t most_rows = 24,
                   std::vector<std::vector<unsigned char>>* results = nullptr) {
  const auto a_layout = family.a_layout(p, v), b_layout = family.b_layout(p, v);
  // Where a case is run again in the same workspace, other values must come out.
  const Quantized a_turned = turned(a);
  const DeviceOperand a_device(device, a, a_layout), a_turned_device(device, a_turned, a_layout),
      b_device(device, b, b_layout);
  const auto size = bytes_of(c.d_type);
  const auto ld = c.n + c.extra;
  std::mt19937 random(seed + 2);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> old(static_cast<std::size_t>(c.m * ld * size), 0xff);
  std::vector<unsigned char> bias(static_cast<std::size_t>(c.n * size));
  const bool adds = c.accumulate == Accumulate::accumulate;
  for (std::int64_t i = 0; adds && i < c.m; ++i)
    for (std::int64_t j = 0; j < c.n; ++j)
      put_float(c.d_type, &old[static_cast<std::size_t>((i * ld + j) * size)], normal(random));
  for (std::int64_t j = 0; j < c.n; ++j)
    put_float(c.d_type, &bias[static_cast<std::size_t>(j * size)], normal(random));
  Memory d(device, old), bias_device(device, bias);
  // Left as it is, full of 0xff: kernels that need more than that prepare it themselves.
  Memory workspace(device, family.workspace_bytes(p, v, {c.m, c.n, c.k, 1}));

  qt_args args{};
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.batch = 1;
  args.a = a_device.tensor;
  args.b = b_device.tensor;
  args.d = {d.data(), nullptr, ld, 0, 0, 0};
  args.c = args.d;  // in place
  args.alpha = 0.75f;
  args.beta = 0.5f;
  args.bias = bias_device.data();
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  Outcome worst;
  bool again = false;
  for (const auto& schedule : device.schedules()) {
    device.schedule(schedule);
    d.poison();
    d.upload(old.data());
    device.run_as_scheduled(family, p, v, args);
    if (const auto then = family.stand_in(p, v)) {
      Problem given = p;
      given.a_layout = a_layout;
      given.b_layout = b_layout;
      device.run_as_scheduled(cuda::stand_in(), given, *then, args);
    }
    const auto result = d.download();
    if (results) results->push_back(result);
    auto outcome =
        check_product(again ? a_turned : a, b, tensor_core_of(v),
                      {c.m, c.n, c.d_type, ld, args.alpha, args.beta, adds ? &old : nullptr,
                       c.bias == Bias::per_column ? &bias : nullptr},
                      result, a_layout, b_layout, most_rows);
    if (!(outcome.worst < worst.worst)) worst = std::move(outcome);
    again = !again;
    args.a = again ? a_turned_device.tensor : a_device.tensor;
  }
  return worst;
}

inline Outcome run(Device& device, const Family& family, const Problem& p, const Variant& v,
                   const Call& c, std::uint32_t seed) {
  return run(device, family, p, v, c, random_operand(c.m, c.k, c.data, seed),
             random_operand(c.n, c.k, c.data, seed + 1), seed);
}

inline Variant with(const Family& family, const Problem& p, const Target& t,
                    std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  Variant v = family.default_variant(p, t);
  for (const auto& [name, value] : values) v.values[name] = value;
  return v;
}

// Scales from far above to far below: outside of every window.
inline void widen_row(Quantized& q, std::int64_t row) {
  const auto blocks = q.k / 32;
  for (std::int64_t block = 0; block < blocks; ++block) {
    q.scales[static_cast<std::size_t>(row * blocks + block)] =
        static_cast<std::uint8_t>(90 + 40 * block / std::max<std::int64_t>(1, blocks - 1));
    for (std::int64_t j = 0; j < 16; ++j)
      q.codes[static_cast<std::size_t>((row * blocks + block) * 16 + j)] =
          static_cast<std::uint8_t>(0x13 + 0x22 * ((row + j) % 5));
  }
}

}  // namespace quarterturn::cuda_test
