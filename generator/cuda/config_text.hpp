// Emitted source of GPU kernels: what it solves, the constants that the problem and the variant
// fix, and one call into the kernel text. Shared by the families of this folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/family.hpp"

namespace quarterturn::cuda {

/// Activations of contract `fast` may use approximate instructions (cuda/activation_fast.h).
bool has_fast_activation(const Problem& p);

/// How many tensor maps a kernel takes behind its argument block, and the threads of its blocks.
struct EntryShape {
  std::string_view name;  ///< as a profiler shows it
  int threads = 0;
  int min_blocks = 1;  ///< blocks that must fit one SM or CU: bounds the registers
  std::vector<std::string_view> maps;
  /// `first`: the entry waits for the kernel before it in the stream, before anything else (sm_90
  /// and later). `within`: the kernel's text waits where it must.
  enum class Waits { first, within };
  Waits waits = Waits::first;
};

/// Gathers the lines of `struct Config` and prints the source around them.
class ConfigText {
 public:
  void constant(std::string_view type, std::string_view name, std::string_view value,
                std::string_view comment);
  void integer(std::string_view name, std::int64_t value, std::string_view comment);
  void flag(std::string_view name, bool value, std::string_view comment);
  /// What a product of operands quantised under the problem's scale rule is multiplied by.
  void descale(const Problem& problem);
  /// How rows or tokens are grouped.
  void grouping(const Problem& problem) {
    constant("qt::Grouping", "grouping", "qt::Grouping::" + std::string(name_of(problem.grouping)),
             "of rows or tokens by experts");
  }
  /// What a product's epilogue does: types, addends, activation.
  void epilogue(const Problem& problem);
  /// How a product's D is quantised where it is computed.
  void quantized_result(const Problem& problem);
  /// A static dimension, or 0 with a remark for one given at run time.
  void dimension(std::string_view name, const Extent& extent);

  /// `function` is the kernel in namespace qt::cuda (or qt::hip, by its text's folder), `text` the
  /// embedded path that defines it. For an AMD target the language is HIP.
  Source source(const Problem& problem, const Target& target, const Variant& variant,
                std::string_view text, std::string_view function, const EntryShape& entry) const;

 private:
  struct Line {
    std::string code, comment;
  };
  std::vector<Line> lines_;
};

/// "a_layout = plain: reads e5m2 (pack it first)", or empty.
std::string refuse_layout(std::string_view field, Layout given, Layout wanted);

}  // namespace quarterturn::cuda
