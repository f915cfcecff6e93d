// hip_quantize, hip_dequantize, hip_hadamard, hip_column_sums: the CUDA families' texts and
// parameters over AMD's primitives (templates/hip/primitives.h), where a warp is half a wavefront;
// and hip_quantize_cvt_scalef32, the quantisers by gfx950's own stochastic rounding
// (templates/hip/quantize_cvt_scalef32.h).
#include <fmt/format.h>

#include "generator/cuda/families.hpp"
#include "generator/hip/families.hpp"

namespace quarterturn::hip {
namespace {

// The device as the texts' own family is told of it.
Target as_read(Target target) {
  target.vendor = Vendor::nvidia;
  target.arch = "sm_80";
  return target;
}

bool is_tiled(Layout layout) { return layout == Layout::aiter || layout == Layout::aiter_16x16; }

// The problem likewise: they store scales and codes in their places without a word of the family.
Problem as_read(Problem p) {
  if (is_tiled(p.d_layout)) p.d_layout = Layout::plain;
  return p;
}

// Scales that need a block's largest magnitude and no more.
bool is_amax_rule(ScaleRule rule) {
  return rule != ScaleRule::quest && rule != ScaleRule::quest_qutlass && rule != ScaleRule::search;
}

class OnAmd final : public Family {
 public:
  OnAmd(std::string name, const Family& text, std::optional<Rounding> instruction = {})
      : name_(std::move(name)), text_(text), instruction_(instruction) {}

  std::string_view name() const override { return name_; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::amd; }
  Evidence evidence(const Target& target) const override {
    return instruction_ ? Evidence::documents : Family::evidence(target);
  }
  std::optional<Rounding> hardware_rounding() const override { return instruction_; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (auto reason = refuse_target(t); !reason.empty()) return reason;
    if (instruction_ && p.op == Op::quantize && p.a_rounding != *instruction_)
      return fmt::format("rounds by v_cvt_scalef32_sr_pk_fp4_f32: a_rounding = {}",
                         name_of(*instruction_));
    if (p.op == Op::quantize && p.d_layout != Layout::plain && !is_tiled(p.d_layout))
      return fmt::format("d_layout = {}: writes plain, aiter and aiter_16x16", name_of(p.d_layout));
    return text_.refuses(as_read(p), as_read(t));
  }
  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    auto out = text_.parameters(p, as_read(t));
    // A SIMD's waves share 512 registers: row-wise texts fit a quarter, with noise a third, the
    // others half, and errors of 32 values under three scales all.
    for (auto& axis : out)
      if (axis.name == "resident") {
        if (p.scale_rule == ScaleRule::search)
          axis.values = {1};
        else if (p.copies != Copies::rows || !is_amax_rule(p.scale_rule))
          axis.values = {2, 1};
        else if (p.a_rounding != Rounding::rne)
          axis.values = {3, 2};
      }
    return out;
  }
  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    return text_.illegal(p, as_read(t), v);
  }
  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    return text_.emit(p, t, v);
  }
  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t units) const override {
    return text_.launch(p, v, args, units);
  }
  Layout a_layout(const Problem& p, const Variant& v) const override {
    return text_.a_layout(p, v);
  }
  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    return text_.predicted_cost(p, t, v, units);
  }

 private:
  std::string name_;
  const Family& text_;
  std::optional<Rounding> instruction_;
};

}  // namespace

std::vector<const Family*> shared_families() {
  static const OnAmd quantize("hip_quantize", cuda::quantize());
  static const OnAmd by_instruction("hip_quantize_cvt_scalef32", cuda::quantize(),
                                    Rounding::sr_cvt_scalef32);
  static const OnAmd dequantize("hip_dequantize", cuda::dequantize());
  static const OnAmd hadamard("hip_hadamard", cuda::hadamard());
  static const OnAmd column_sums("hip_column_sums", cuda::column_sums());
  return {&quantize, &by_instruction, &dequantize, &hadamard, &column_sums};
}

}  // namespace quarterturn::hip
