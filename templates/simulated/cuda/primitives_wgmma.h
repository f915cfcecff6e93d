// Simulated bodies of cuda/primitives_wgmma.h. Each warp of a group does its 16 rows when it lands,
// reading both operands as they then are; sums are rounded once a step.
#ifndef QT_CUDA_PRIMITIVES_WGMMA_H
#define QT_CUDA_PRIMITIVES_WGMMA_H

#include "simulated/cuda/primitives_sm90.h"

namespace qt::cuda {

namespace simulated_products {

struct E5m2 {
  static constexpr u32 elements = 32;  ///< of 32 bytes
  static void decode(const u8* bytes, float* out) {
    static const auto values = [] {
      std::vector<float> all(256);
      for (u32 i = 0; i < 256; ++i) all[i] = sim::machine().half_to_float(u16(i << 8));
      return all;
    }();
    for (u32 i = 0; i < 32; ++i) out[i] = values[bytes[i]];
  }
};
struct S8 {
  static constexpr u32 elements = 32;
  static void decode(const u8* bytes, float* out) {
    for (u32 i = 0; i < 32; ++i) out[i] = float(static_cast<signed char>(bytes[i]));
  }
};
struct Bf16 {
  static constexpr u32 elements = 16;
  static void decode(const u8* bytes, float* out) {
    for (u32 i = 0; i < 16; ++i)
      out[i] = float_of(u32(bytes[2 * i]) << 16 | u32(bytes[2 * i + 1]) << 24);
  }
};

/// Rows of 32 bytes of K out of a tile that a descriptor names.
template <class Type>
void read_tile(u64 descriptor, u32 first, u32 rows, const sim::Block& block, float* out) {
  const u32 start = u32(descriptor & 0x3fffu) << 4, stride = u32(descriptor >> 32 & 0x3fffu) << 4;
  if (descriptor >> 62 != 1) sim::machine().fail("wgmma: a tile without the 128-byte swizzle");
  const auto& unfenced = simulated_shared::Unfenced::of_block();
  if (start % 1024 + 32 > 128) sim::machine().fail("wgmma: a tile at %u", start);
  for (u32 i = 0; i < rows; ++i) {
    const u32 row = first + i, at = start + row / 8 * stride + row % 8 * 128;
    u8 bytes[32];
    for (u32 piece = 0; piece < 32; piece += 16) {
      unfenced.require_fenced(sim::swizzled(at + piece, 128));
      std::memcpy(bytes + piece, sim::shared(sim::swizzled(at + piece, 128), 16, 16, &block), 16);
    }
    Type::decode(bytes, out + i * Type::elements);
  }
}

template <class Sum>
struct Lane {
  Sum* d;
  const Words4* a_words;  ///< null: A is a tile
  u64 a, b;
  u32 keep;
};

template <class Type, class Sum, u32 n>
struct Product {
  Sum* d[32];
  const Words4* a_words[32];
  u64 a, b;
  u32 keep, warp;
  const sim::Block* block;

  void operator()() const {
    constexpr u32 k = Type::elements;
    std::vector<float> left(16 * k), right(n * k);
    std::vector<double> sums(16 * n, 0.0);
    if (a_words[0]) {
      for (u32 row = 0; row < 16; ++row) {
        u32 words[8];  // 32 bytes of a row
        for (u32 w = 0; w < 8; ++w)
          words[w] = a_words[row % 8 * 4 + w % 4]->word[row / 8 + w / 4 * 2];
        u8 bytes[32];
        std::memcpy(bytes, words, 32);
        Type::decode(bytes, left.data() + row * k);
      }
    } else {
      read_tile<Type>(a, warp * 16, 16, *block, left.data());
    }
    read_tile<Type>(b, 0, n, *block, right.data());
    const auto each = [&](const auto& visit) {
      for (u32 lane = 0; lane < 32; ++lane)
        for (u32 i = 0; i < n / 2; ++i)
          visit(d[lane][i],
                sums[(lane / 4 + i % 4 / 2 * 8) * n + i / 4 * 8 + lane % 4 * 2 + i % 2]);
    };
    if (keep) each([](const Sum& mine, double& sum) { sum = double(mine); });
    sim::machine().multiply(sums.data(), left.data(), right.data(), 16, n, k);
    each([](Sum& mine, const double& sum) { mine = Sum(sum); });
  }
};

template <class Type, class Sum, int half_n>
QT_FN void issue(const char* name, Sum (&d)[half_n], const Words4* a_words, u64 a, u64 b,
                 u32 keep) {
  static_assert(half_n % 4 == 0 && half_n >= 4 && half_n <= 128, "n of wgmma is 8 to 256, by 8");
  Lane<Sum> mine = {d, a_words, a, b, keep};
  sim::collective(name, mine, [](Lane<Sum>* const* lanes) {
    const auto& machine = sim::machine();
    Product<Type, Sum, 2 * half_n> product = {};
    for (u32 i = 0; i < 32; ++i) {
      const auto& lane = *lanes[i];
      if (lane.a != lanes[0]->a || lane.b != lanes[0]->b || !lane.keep != !lanes[0]->keep)
        sim::machine().fail("wgmma: lanes give different operands");
      product.d[i] = lane.d;
      product.a_words[i] = lane.a_words;
    }
    product.a = lanes[0]->a;
    product.b = lanes[0]->b;
    product.keep = lanes[0]->keep;
    product.warp = machine.current->warp % 4;
    product.block = machine.current->block;
    if (!of_warp().fenced)
      sim::machine().fail("wgmma: no wgmma.fence since its registers could be touched");
    of_warp().groups.add(product);
  });
}

}  // namespace simulated_products

#define QT_SIMULATED_WGMMA(name, Type, Sum)                                             \
  template <int half_n>                                                                 \
  QT_FN void name(Sum(&d)[half_n], u64 a, u64 b, u32 keep) {                            \
    simulated_products::issue<simulated_products::Type>(#name, d, nullptr, a, b, keep); \
  }                                                                                     \
  template <int half_n>                                                                 \
  QT_FN void name(Sum(&d)[half_n], const Words4& a, u64 b, u32 keep) {                  \
    simulated_products::issue<simulated_products::Type>(#name ".a", d, &a, 0, b, keep); \
  }
QT_SIMULATED_WGMMA(wgmma_e5m2, E5m2, float)
QT_SIMULATED_WGMMA(wgmma_s8, S8, i32)
QT_SIMULATED_WGMMA(wgmma_bf16, Bf16, float)
#undef QT_SIMULATED_WGMMA

}  // namespace qt::cuda

#endif
