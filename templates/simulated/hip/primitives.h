// Simulated bodies of the second part of hip/primitives.h, under the same guard: wavefronts of 64
// threads, copies straight into LDS, matrix cores.
#ifndef QT_HIP_PRIMITIVES_H
#define QT_HIP_PRIMITIVES_H

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "mxfp4/platform.h"
#include "simulated/cuda/primitives.h"
#include "simulated/machine.h"

#define QT_INLINE
#define QT_KERNEL(threads, waves) extern "C" void

namespace qt::hip {

namespace sim = qt::simulated;
using cuda::Words4;

// ---- the wavefront

QT_FN u32 wave_lane() { return sim::machine().current->index % 64u; }
QT_FN u32 wave_index() { return sim::machine().current->index / 64u; }

namespace simulated_wave {

/// Until all 64 threads of the wave are here: an instruction that they do together. Names of
/// barriers from 1024 on are ours.
QT_FN void meet() { sim::machine().barrier(1024u + wave_index(), 64u, false); }

/// What lanes bring to such an instruction, by wave.
template <class T>
struct Shared {
  std::map<u32, std::vector<T>> of_wave;
  std::vector<T>& mine() {
    auto& lanes = of_wave[wave_index()];
    lanes.resize(64);
    return lanes;
  }
};

}  // namespace simulated_wave

// ---- copies that go from global memory to LDS without a register, in order

namespace simulated_copies {

struct Copies {
  sim::Groups groups;
  u32 count = 0;
};

/// Where each copy of a wave goes: one place, whichever lane asks.
struct Places {
  std::map<u32, std::vector<u32>> of_wave;
};

QT_FN void start(u32 to, const u8* from, u32 bytes) {
  auto& copies = sim::state<Copies>(sim::Scope::thread);
  auto& places = sim::state<Places>(sim::Scope::block).of_wave[wave_index()];
  if (places.size() <= copies.count) places.push_back(to);
  if (places[copies.count] != to)
    sim::machine().fail("global_load_lds to %u, where other lanes of the wave say %u", to,
                        places[copies.count]);
  ++copies.count;
  sim::require_aligned(from, bytes, "global_load_lds");
  u8* const at = sim::shared(to + bytes * wave_lane(), bytes, bytes);
  copies.groups.add([at, from, bytes] { std::memcpy(at, from, bytes); });
  copies.groups.commit();
}

}  // namespace simulated_copies

QT_FN void copy_to_lds_16(u32 to, const u8* from) { simulated_copies::start(to, from, 16); }
QT_FN void copy_to_lds_4(u32 to, const u8* from) { simulated_copies::start(to, from, 4); }
template <int pending>
QT_FN void wait_copies() {
  sim::state<simulated_copies::Copies>(sim::Scope::thread).groups.wait(pending);
}
QT_FN void sync_lds() { cuda::sync_block(); }

// ---- matrix cores: a block's products are summed exactly, scaled, and added to the sums with one
// rounding for all of an instruction's K

namespace simulated_mfma {

struct Lane {
  float* d;
  const Words4 *a, *b;
  u32 a_scale, b_scale;
};

QT_FN void decode(const Words4& codes, float* out) {
  constexpr float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (u32 e = 0; e < 32; ++e) {
    const u32 code = codes.word[e / 8] >> (4 * (e % 8)) & 15u;
    out[e] = code & 8u ? -magnitudes[code & 7u] : magnitudes[code & 7u];
  }
}

QT_FN double scale_of(u32 byte) {
  return (byte & 255u) == 255u ? std::nan("") : std::ldexp(1.0, int(byte & 255u) - 127);
}

/// Lane l brings row l % size of both operands, block l / size of K.
template <u32 size, u32 sums>
void multiply(const std::vector<Lane>& lanes) {
  const auto row_of = [](u32 lane, u32 i) {
    return size == 16 ? 4 * (lane / 16) + i : 8 * (i / 4) + 4 * (lane / 32) + i % 4;
  };
  std::vector<double> total(size * size);
  for (u32 lane = 0; lane < 64; ++lane)
    for (u32 i = 0; i < sums; ++i)
      total[row_of(lane, i) * size + lane % size] = double(lanes[lane].d[i]);
  for (u32 block = 0; block < 64 / size; ++block) {
    std::vector<float> a(size * 32), b(size * 32);
    std::vector<double> products(size * size, 0.0);
    const Lane* const of_block = &lanes[block * size];
    for (u32 row = 0; row < size; ++row) {
      decode(*of_block[row].a, &a[row * 32]);
      decode(*of_block[row].b, &b[row * 32]);
    }
    sim::machine().multiply(products.data(), a.data(), b.data(), size, size, 32);
    for (u32 m = 0; m < size; ++m)
      for (u32 n = 0; n < size; ++n)
        total[m * size + n] +=
            products[m * size + n] * scale_of(of_block[m].a_scale) * scale_of(of_block[n].b_scale);
  }
  for (u32 lane = 0; lane < 64; ++lane)
    for (u32 i = 0; i < sums; ++i)
      lanes[lane].d[i] = float(total[row_of(lane, i) * size + lane % size]);
}

template <u32 size, u32 sums>
void together(float (&d)[sums], const Words4& a, u32 a_scale, const Words4& b, u32 b_scale) {
  auto& lanes = sim::state<simulated_wave::Shared<Lane>>(sim::Scope::block).mine();
  lanes[wave_lane()] = {d, &a, &b, a_scale, b_scale};
  simulated_wave::meet();
  if (wave_lane() == 0) multiply<size, sums>(lanes);
  simulated_wave::meet();
}

}  // namespace simulated_mfma

QT_FN void mfma_scale_16x16x128(float (&d)[4], const Words4& a, u32 a_scale, const Words4& b,
                                u32 b_scale) {
  simulated_mfma::together<16, 4>(d, a, a_scale, b, b_scale);
}
QT_FN void mfma_scale_32x32x64(float (&d)[16], const Words4& a, u32 a_scale, const Words4& b,
                               u32 b_scale) {
  simulated_mfma::together<32, 16>(d, a, a_scale, b, b_scale);
}

// ---- matrix cores: bf16 or f16, the products of all K summed exactly and added with one rounding

namespace simulated_mfma {

struct WideLane {
  float* d;
  float a[8], b[8];
};

inline void multiply_wide_lanes(const std::vector<WideLane>& lanes) {
  std::vector<float> a(16 * 32), b(16 * 32);
  std::vector<double> products(256, 0.0);
  for (u32 lane = 0; lane < 64; ++lane)
    for (u32 e = 0; e < 8; ++e) {
      a[lane % 16 * 32 + lane / 16 * 8 + e] = lanes[lane].a[e];
      b[lane % 16 * 32 + lane / 16 * 8 + e] = lanes[lane].b[e];
    }
  sim::machine().multiply(products.data(), a.data(), b.data(), 16, 16, 32);
  for (u32 lane = 0; lane < 64; ++lane)
    for (u32 i = 0; i < 4; ++i)
      lanes[lane].d[i] =
          float(double(lanes[lane].d[i]) + products[(4 * (lane / 16) + i) * 16 + lane % 16]);
}

template <class Value>
void wide_together(float (&d)[4], const Words4& a, const Words4& b, const Value& value) {
  auto& lanes = sim::state<simulated_wave::Shared<WideLane>>(sim::Scope::block).mine();
  WideLane& mine = lanes[wave_lane()];
  mine.d = d;
  for (u32 e = 0; e < 8; ++e) {
    mine.a[e] = value(u16(a.word[e / 2] >> (16 * (e % 2))));
    mine.b[e] = value(u16(b.word[e / 2] >> (16 * (e % 2))));
  }
  simulated_wave::meet();
  if (wave_lane() == 0) multiply_wide_lanes(lanes);
  simulated_wave::meet();
}

/// Two codes of a byte as two values of 16 bits.
template <class Pack>
u32 decode_pair(u32 codes, int byte, const Pack& pack) {
  constexpr float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const auto value = [&](u32 code) {
    return code & 8u ? -magnitudes[code & 7u] : magnitudes[code & 7u];
  };
  const u32 both = codes >> (8 * byte) & 255u;
  return pack(value(both & 15u), value(both >> 4));
}

}  // namespace simulated_mfma

QT_FN void mfma_bf16_16x16x32(float (&d)[4], const Words4& a, const Words4& b) {
  simulated_mfma::wide_together(d, a, b, [](u16 h) { return float_of(u32(h) << 16); });
}
QT_FN void mfma_f16_16x16x32(float (&d)[4], const Words4& a, const Words4& b) {
  simulated_mfma::wide_together(d, a, b, [](u16 h) { return cuda::f16_to_float(h); });
}
template <int byte>
QT_FN u32 fp4_pair_to_bf16(u32 codes) {
  return simulated_mfma::decode_pair(
      codes, byte, [](float low, float high) { return cuda::pack_bf16(low, high); });
}
template <int byte>
QT_FN u32 fp4_pair_to_f16(u32 codes) {
  return simulated_mfma::decode_pair(
      codes, byte, [](float low, float high) { return cuda::pack_f16(low, high); });
}

}  // namespace qt::hip

#endif
