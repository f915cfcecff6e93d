// Emitted CPU source: a comment that names it, the constants that the problem and the variant fix,
// and one call into the kernel text. Shared by the families of this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/family.hpp"

namespace quarterturn::cpu {

/// Instruction sets as values of the axis `isa`.
enum class Isa : std::int64_t { portable = 0, avx2 = 256, avx512 = 512 };

/// What a kernel for `target` may use, best first: avx512 needs VNNI, avx2 comes with x86-64-v3.
std::vector<std::int64_t> isas(const Target& target);

/// "qt::cpu::Avx512", and the text that defines it.
std::string_view isa_type(Isa isa);
std::string_view isa_text(Isa isa);

/// A size to predict costs for: a static one, or the geometric mean of a range.
double typical(const Extent& extent);

/// Gathers the lines of `struct Config` and prints the source around them.
class KernelText {
 public:
  void alias(std::string_view name, std::string_view type, std::string_view comment);
  void constant(std::string_view type, std::string_view name, std::string_view value,
                std::string_view comment);
  void integer(std::string_view name, std::int64_t value, std::string_view comment);
  void flag(std::string_view name, bool value, std::string_view comment);
  /// Dimensions, padding, D's type and what is added: the constants of every product.
  void product(const Problem& problem);
  /// How rows or tokens are grouped.
  void grouping(const Problem& problem);
  void descale(std::string_view value, std::string_view comment);
  /// A static dimension, or 0 with a remark for one given at run time.
  void dimension(std::string_view name, const Extent& extent);

  /// `function` is the kernel, "qt::cpu::gemm"; `texts` are included in this order.
  Source source(const Problem& problem, const Target& target, const Variant& variant,
                const std::vector<std::string>& texts, std::string_view function) const;

 private:
  struct Line {
    std::string code, comment;
  };
  std::vector<Line> lines_;
};

/// "qt::cpu::DType::bf16"
std::string dtype_text(DType type);

/// A layout that the caller fixed must be the one that a family reads; empty when it is.
std::string refuse_layout(std::string_view field, Layout given, Layout wanted);

/// What no product of this folder does: sums of gradients, D in another layout; and operands in
/// other layouts than A in `a` and B in panel16.
std::string refuse_product(const Problem& problem, Layout a);

}  // namespace quarterturn::cpu
