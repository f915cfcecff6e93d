// cpu_hadamard: the rotation alone. Its kernel text is templates/cpu/hadamard.h.
#include <fmt/format.h>

#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"
#include "generator/cpu/moving.hpp"

namespace quarterturn::cpu {
namespace {

class Hadamard final : public MovingFamily {
 public:
  std::string_view name() const override { return "cpu_hadamard"; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::hadamard) return "rotates: op = hadamard";
    if (bytes_of(p.a_type) == 0) return "reads bf16, f16 or f32";
    if (bytes_of(p.d_type) == 0) return "writes bf16, f16 or f32";
    if (p.rotation == 0) return "needs a rotation";
    if (p.copies != Copies::rows || p.a_major != Major::k)
      return "rotates along k: copies = rows, a_major = k";
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (!p.k.is_static() || p.k.lo % padding_unit(p) != 0)
      return fmt::format("needs a static k that is a multiple of {}", padding_unit(p));
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", lanes_type(isa), "blocks side by side in registers");
    text.dimension("m", p.m);
    text.dimension("k", p.k);
    text.constant("qt::cpu::DType", "a_type", dtype_text(p.a_type), "elements of X");
    text.constant("qt::cpu::DType", "d_type", dtype_text(p.d_type), "elements of D");
    text.integer("rotation", p.rotation, "elements of a segment");
    text.constant("qt::Signs", "signs", fmt::format("qt::Signs::{}", name_of(p.signs)),
                  "flipped before the rotation");
    text.integer("tile_m", v.value("tile_m"), "rows in a part");
    text.integer("tile_k", v.value("tile_k"), "columns in a part");
    return text.source(p, t, v, {"args.h", std::string(lanes_text(isa)), "cpu/hadamard.h"},
                       "qt::cpu::hadamard");
  }

 private:
  double bytes_an_element(const Problem& p) const override {
    return static_cast<double>(bytes_of(p.a_type) + bytes_of(p.d_type));
  }
};

}  // namespace

const Family& hadamard() {
  static const Hadamard family;
  return family;
}

}  // namespace quarterturn::cpu
