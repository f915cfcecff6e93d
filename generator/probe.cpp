#include "generator/probe.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

namespace quarterturn {
namespace {

constexpr std::uint32_t kOld = 0xa5c35a3cu;  // what a pair's neighbours hold before

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// Where an element's result lies, lowest bit first. Those of cvt.rs: a, b, e, f.
std::uint32_t shift_of(const RoundingProbe& probe, std::uint32_t element) {
  return 4 * (probe.elements == 4 ? 3 - element : element);
}

void add_record(RoundingProbe& probe, float x, std::uint32_t bits, float scale) {
  const auto value = bits_of(x);
  if (probe.elements == 4)
    probe.inputs.insert(probe.inputs.end(), {value, value, value, value, bits});
  else
    probe.inputs.insert(probe.inputs.end(), {value, value, bits, bits_of(scale), kOld});
}

void add_records(RoundingProbe& probe) {
  for (std::uint32_t j = 1; j <= RoundingProbe::kFractions; ++j) {
    const float x = 1.5f - std::ldexp(1.0f, -static_cast<int>(j) - 1);
    add_record(probe, x, 0, 1);
    for (std::uint32_t bit = 0; bit < 32; ++bit) add_record(probe, x, 1u << bit, 1);
  }
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, 1e-40f, 0.2f, 0.25f, 0.5f, 0.7f, 1.2f, 1.75f, 2.5f, 3.9f, 4.5f, 5.9f,
                        6.0f, 6.9f, 8.0f, inf})
    for (const float value : {x, -x})
      for (const std::uint32_t bits : {0u, 0x55aa1234u, 0x80808080u, 0xffffffffu})
        add_record(probe, value, bits, 1);
  for (const std::uint32_t bits : {0u, 0xffffffffu})
    add_record(probe, std::numeric_limits<float>::quiet_NaN(), bits, 1);
  if (probe.elements == 4) return;
  // The scale's exponent alone should count.
  for (const float scale : {0.5f, 4.0f, 5.5f, 0x1p-126f, 0x1p127f})
    for (const std::uint32_t bits : {0u, 0xffffffffu}) add_record(probe, 1.2f * scale, bits, scale);
}

// struct Config, and an entry that calls the text's kernel.
Source source_of(const RoundingProbe& probe, const Target& target) {
  Source out;
  const bool amd = target.vendor == Vendor::amd;
  out.language = amd ? Language::hip : Language::cuda;
  out.entry = "quarterturn_probe_stochastic";
  const auto config =
      fmt::format("struct Config {{\n  static constexpr int threads = {};\n}};\n\n", probe.threads);
  out.text = amd ? fmt::format(
                       "#include \"hip/primitives.h\"\n#include \"hip/probe_stochastic.h\"\n\n{}"
                       "QT_KERNEL({}, 1) {}(const qt_args args) {{\n"
                       "  qt::hip::probe_stochastic(Config{{}}, args);\n}}\n",
                       config, probe.threads, out.entry)
                 : fmt::format(
                       "#include \"cuda/probe_stochastic.h\"\n\n{}"
                       "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
                       "{}(const __grid_constant__ qt_args args) {{\n"
                       "  qt::cuda::probe_stochastic(Config{{}}, args);\n}}\n",
                       config, probe.threads, out.entry);
  return out;
}

}  // namespace

std::uint32_t RoundingProbe::code(const std::vector<std::uint32_t>& results, std::uint32_t record,
                                  std::uint32_t element) const {
  return results[std::size_t{record} * result_words] >> shift_of(*this, element) & 15u;
}

std::optional<RoundingProbe> rounding_probe(const Target& target) {
  RoundingProbe out;
  if (target.arch == "sm_100a" || target.arch == "sm_103a") {
    out.name = "cvt.rs.satfinite.e2m1x4.f32";
    out.question =
        "which of the 32 random bits act on each of a, b, e, f, with what weight, and whether a "
        "constant is added";
    out.elements = 4;
    out.result_words = 1;
  } else if (target.arch == "gfx950") {
    out.name = "v_cvt_scalef32_sr_pk_fp4_f32";
    out.question =
        "whether the seed's bit 31 adds half a step, as AMD's reference has it, or a quarter, and "
        "whether other bytes of the destination stay";
    out.elements = 2;
    out.result_words = 4;
  } else {
    return std::nullopt;
  }
  out.source = source_of(out, target);
  add_records(out);
  return out;
}

std::vector<std::array<int, 33>> weights_of(const RoundingProbe& probe,
                                            const std::vector<std::uint32_t>& results) {
  constexpr std::uint32_t kUp = 3;  // the code of 1.5
  std::vector<std::array<int, 33>> out(probe.elements);
  for (std::uint32_t element = 0; element < probe.elements; ++element)
    for (std::uint32_t bit = 0; bit <= 32; ++bit)
      for (std::uint32_t j = RoundingProbe::kFractions; j >= 1; --j) {
        const std::uint32_t record = (j - 1) * 33 + (bit == 32 ? 0 : bit + 1);
        if (probe.code(results, record, element) == kUp) out[element][bit] = static_cast<int>(j);
      }
  return out;
}

}  // namespace quarterturn
