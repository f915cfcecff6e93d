// Families that rewrite one operand block by block: what cpu_dequantize, cpu_hadamard and cpu_pack
// share.
#pragma once

#include "generator/cpu/lane_text.hpp"
#include "generator/family.hpp"
#include "generator/grouping.hpp"

namespace quarterturn::cpu {

class MovingFamily : public Family {
 public:
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::vector<Parameter> parameters(const Problem&, const Target& t) const override {
    return {
        {"isa", isas(t), ParameterStage::compile, "vector width: 512, 256 AVX2, 0 portable"},
        {"tile_m", {32, 128}, ParameterStage::compile, "rows in a part"},
        {"tile_k", {4096, 1024}, ParameterStage::compile, "columns in a part"},
    };
  }

  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.parts = args.batch * parts_of(p, v, args.m, args.k, args.groups).per_entry();
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t) const override {
    return moving_cost(parts_of(p, v, p.m.hi, p.k.hi, p.groups.hi), bytes_an_element(p),
                       static_cast<Isa>(v.value("isa")));
  }

 protected:
  /// Read and written.
  virtual double bytes_an_element(const Problem& problem) const = 0;

 private:
  static qt::cpu::QuantizeParts parts_of(const Problem& p, const Variant& v, std::int64_t m,
                                         std::int64_t k, std::int64_t groups) {
    return qt::cpu::QuantizeParts::of(m, copy_length(p, k, groups), unit_of(p), true, false,
                                      p.d_layout == Layout::panel16, v.value("tile_m"),
                                      v.value("tile_k"));
  }
};

}  // namespace quarterturn::cpu
