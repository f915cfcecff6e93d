// The modes of quantising chosen by value: the choice vanishes where a Config states them as
// constants, and one compiled kernel serves them all where it does not.
#ifndef QT_CPU_MODES_H
#define QT_CPU_MODES_H

#include "mxfp4/block.h"

namespace qt {
namespace cpu {

/// The scale byte of a block of rotated values.
template <class Config>
QT_FN u32 block_byte(const Config& config, const float (&x)[32], u32 amax) {
  switch (config.scale_rule) {
    case ScaleRule::floor:
      return scale_byte<ScaleRule::floor>(x, amax);
    case ScaleRule::even:
      return scale_byte<ScaleRule::even>(x, amax);
    case ScaleRule::rceil:
      return scale_byte<ScaleRule::rceil>(x, amax);
    case ScaleRule::ceil:
      return scale_byte<ScaleRule::ceil>(x, amax);
    case ScaleRule::ts34:
      return scale_byte<ScaleRule::ts34>(x, amax);
    case ScaleRule::quest:
      return scale_byte<ScaleRule::quest>(x, amax);
    case ScaleRule::quest_qutlass:
      return scale_byte<ScaleRule::quest_qutlass>(x, amax);
    case ScaleRule::search:
      return scale_byte<ScaleRule::search>(x, amax);
  }
  return kScaleNaN;
}

/// Codes need no more of a scale rule than whether it is TS34.
template <ScaleRule rule, class Config>
QT_FN void encode_block_as(const Config& config, const float (&x)[32], u32 amax, u32 byte,
                           const Noise& noise, u64 position, u32 (&packed)[4]) {
  switch (config.rounding) {
    case Rounding::rne:
      return encode_block<rule, Rounding::rne>(x, amax, byte, noise, position, packed);
    case Rounding::sr16:
      return encode_block<rule, Rounding::sr16>(x, amax, byte, noise, position, packed);
    case Rounding::sr22:
      return encode_block<rule, Rounding::sr22>(x, amax, byte, noise, position, packed);
    case Rounding::sr8:
      return encode_block<rule, Rounding::sr8>(x, amax, byte, noise, position, packed);
    case Rounding::half_away:
      return encode_block<rule, Rounding::half_away>(x, amax, byte, noise, position, packed);
    case Rounding::half_to_zero:
      return encode_block<rule, Rounding::half_to_zero>(x, amax, byte, noise, position, packed);
    case Rounding::sr_cvt_rs:
    case Rounding::sr_cvt_scalef32:
      return;  // of GPUs alone
  }
}

/// The codes of a block under `byte`; see qt::encode_block.
template <class Config>
QT_FN void block_codes(const Config& config, const float (&x)[32], u32 amax, u32 byte,
                       const Noise& noise, u64 position, u32 (&packed)[4]) {
  if (config.scale_rule == ScaleRule::ts34)
    encode_block_as<ScaleRule::ts34>(config, x, amax, byte, noise, position, packed);
  else
    encode_block_as<ScaleRule::floor>(config, x, amax, byte, noise, position, packed);
}

/// The signs of this call; all zero, which flips nothing, where the mode has none.
template <class Config>
QT_FN SignMask sign_mask(const Config& config, const qt_args* args) {
  if (config.signs == Signs::per_call) return sign_mask_from_seed(args->sign_seed);
  SignMask mask = {};
  if (config.signs == Signs::fixed)
    for (int i = 0; i < 8; ++i) mask.word[i] = args->sign_mask[i];
  return mask;
}

/// Rotates segments of g elements, under the mode's signs.
template <int g, class Config, int n>
QT_FN void rotate_as(const Config& config, float (&x)[n], const SignMask& mask) {
  if (config.signs == Signs::none)
    rotate<g, Signs::none>(x, mask);
  else
    rotate<g, Signs::fixed>(x, mask);
}

}  // namespace cpu
}  // namespace qt

#endif
