// cuda_gemm_packed, ..._int8 and ..._bf16: few tokens against packed weights on Hopper
// (templates/cuda/gemm_packed.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/families.hpp"
#include "generator/cuda/packed.hpp"

namespace quarterturn::cuda {
namespace {

// Constants of gemm_packed.h.
constexpr std::int64_t kGroups = 4;  // warp groups that multiply
constexpr std::uint32_t kThreads = 640;
constexpr std::int64_t kMostBlocks = 148;    // no Hopper chip has more SMs
constexpr std::int64_t kMostReordered = 64;  // tokens by chunks, of what 64 threads hold

class GemmPacked final : public Family {
 public:
  explicit GemmPacked(Layout a_layout) : layout_(a_layout) {}

  std::string_view name() const override {
    return is_int8()   ? "cuda_gemm_packed_int8"
           : is_bf16() ? "cuda_gemm_packed_bf16"
                       : "cuda_gemm_packed";
  }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (auto reason = refuse_packed(p, t, layout_); !reason.empty()) return reason;
    return p.m.hi > 256 ? "is for up to 256 tokens: m" : "";
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> tokens = {64, 32}, stripes = {4, 2}, rounds = {2, 1},
                              stages = {3, 4, 5, 6, 8};
    if (p.m.hi <= 16) {
      tokens = {p.m.hi <= 8 ? 8 : 16};
      stripes = {1, 2};
      if (p.n.hi > p.k.hi) stripes = {2, 1};
      rounds = {1, 2};
      stages = {6, 8, 5, 4, 3};
    } else if (p.m.hi <= 32) {
      tokens = {32};
      stripes = {2, 4, 1};
    }
    if (is_bf16()) {
      // A's elements take twice the room and are reordered: more weights should share them.
      stripes = {4, 2};
      if (p.m.hi <= 8) stripes = {2, 4, 1};
      rounds = {1, 2};
      stages = {6, 8, 5, 4, 3};
    }
    return {
        {"tokens", tokens, ParameterStage::compile, "of a tile"},
        {"stripes", stripes, ParameterStage::compile, "of 64 weights of a tile"},
        {"rounds", rounds, ParameterStage::compile, "chunks of K that a warp group takes a stage"},
        {"stages", stages, ParameterStage::compile, "in flight"},
        {"promote",
         layout_ != Layout::e5m2 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{4, 2},
         ParameterStage::compile, "times 128 of K that the tensor core sums; 0 all of it"}};
  }

  std::string illegal(const Problem&, const Target& t, const Variant& v) const override {
    if (is_bf16() && chunks(v) * v.value("tokens") > kMostReordered)
      return fmt::format("reordering {} chunks of {} tokens needs more registers than there are",
                         chunks(v), v.value("tokens"));
    if (const auto bytes = shared_bytes(v); bytes > t.shared_bytes)
      return fmt::format("its stages need {} bytes of shared memory, a block has {}", bytes,
                         t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const std::string entry = fmt::format("quarterturn_gemm_packed_{}_{}_{}_{}x{}",
                                          element_name(layout_), name_of(p.role), name_of(p.d_type),
                                          v.value("tokens"), v.value("stripes") * kStripe);
    ConfigText text;
    describe_packed(text, p, layout_);
    text.integer("tokens", v.value("tokens"), "of a tile");
    const auto counted = [&](std::string_view name, std::int64_t value, std::string_view comment) {
      text.constant("unsigned", name, fmt::format("{}", value), comment);
    };
    counted("stripes", v.value("stripes"), "of 64 weights of a tile");
    counted("chunks", chunks(v), "of 128 of K of a stage");
    counted("stages", v.value("stages"), "in flight");
    counted("promote", v.value("promote"), "times 128 of K that the tensor core sums");
    EntryShape shape{entry, static_cast<int>(kThreads), 1, {}, EntryShape::Waits::within};
    if (!is_bf16()) shape.maps.emplace_back("a_map");
    return text.source(p, t, v, "cuda/gemm_packed.h", "gemm_packed_sm90", shape);
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t units) const override {
    Launch out;
    const auto k = round_up(std::max<std::int64_t>(args.k, 1), padding_unit(p));
    const auto tiles = ceil_div(ceil_div(args.n, kStripe), v.value("stripes")) *
                       ceil_div(args.m, v.value("tokens"));
    // Every block gets a part of the work: waiting for one without any would not end.
    const auto work = tiles * ceil_div(ceil_div(k, kChunk), chunks(v));
    out.grid = {static_cast<std::uint32_t>(std::min({units, work, kMostBlocks})), 1, 1};
    out.block = {kThreads, 1, 1};
    out.shared_bytes = shared_bytes(v);
    out.start = Launch::Start::early;
    if (is_bf16()) return out;  // its kernel reorders A on the way
    out.map_count = 1;
    out.maps[0] = a_map_of(p, layout_, args, v.value("tokens"));
    return out;
  }

  Layout a_layout(const Problem& p, const Variant&) const override {
    return takes_given(p) ? Layout::plain : layout_;
  }
  Layout b_layout(const Problem&, const Variant&) const override { return Layout::permuted; }

  // Two tiles' sums and a flag a block.
  std::int64_t workspace_bytes(const Problem&, const Variant& v, const Sizes&) const override {
    return kMostBlocks * (2 * v.value("stripes") * kStripe * v.value("tokens") * 4 + 8);
  }

  // As cuda_gemm_e5m2 between promotions; then blocks, one a unit of K at most, add their sums, and
  // so do the parts of K inside them.
  double relative_error(const Problem& p, const Variant& v, std::int64_t k) const override {
    if (is_int8()) return Family::relative_error(p, v, k);  // what does not fit
    const auto units = static_cast<double>(2 * ceil_div(k, chunks(v) * kChunk) + 4);
    if (is_bf16()) return gemm_mma().relative_error(p, {}, k) + units * 0x1p-24;
    const auto steps = 4.0 * static_cast<double>(v.value("promote"));
    return (33 * steps + 1) * 0x1p-13 +
           static_cast<double>(ceil_div(k, v.value("promote") * kChunk) +
                               2 * ceil_div(k, chunks(v) * kChunk) + 4) *
               0x1p-24 +
           6 * 0x1p-24;
  }

  // Time to read the weights, in cuda_gemm_e5m2's units: one is 12.3 ps of an H200.
  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    const double bytes = static_cast<double>(round_up(p.n.hi, v.value("stripes") * kStripe)) *
                         static_cast<double>(p.k.hi) * 0.53125;
    const auto tiles = ceil_div(std::max<std::int64_t>(p.m.hi, 1), v.value("tokens"));
    double factor = 1.0 + 0.002 * static_cast<double>(v.value("tokens"));
    if (is_int8()) factor *= 1.17;  // decoding costs more
    // As measured before activations were loaded a stage ahead.
    if (is_bf16()) factor = 1.3 + 0.037 * static_cast<double>(v.value("tokens"));
    for (const auto& axis : parameters(p, t))
      if (v.value(axis.name) != axis.values.front()) factor += 0.02;
    // As measured for few tokens, which wait for their weights; more of them also need the units.
    const auto blocks = tiles * ceil_div(p.n.hi, v.value("stripes") * kStripe);
    const double chip = static_cast<double>(units > 0 ? units : 132);
    if (p.m.hi > 64) factor *= std::max(1.0, chip / static_cast<double>(blocks));
    return (bytes * static_cast<double>(tiles) * factor / 3.6e12 + 3e-6) / 12.3e-12;
  }

 private:
  bool is_int8() const { return layout_ == Layout::int8_rows; }
  bool is_bf16() const { return layout_ == Layout::bf16; }
  static std::int64_t chunks(const Variant& v) {
    return v.value("rounds") * kGroups / v.value("stripes");
  }
  // Shared of gemm_packed.h.
  std::int64_t shared_bytes(const Variant& v) const {
    const auto tokens = v.value("tokens"), stripes = v.value("stripes");
    const auto elements = is_bf16() ? 2 * tokens : tokens;  // bytes of each of K
    const auto stage = round_up(chunks(v) * (elements * kChunk + stripes * kChunkBytes), 1024);
    return v.value("stages") * (stage + 16) +
           (kGroups / stripes - 1) * stripes * kStripe * tokens * 4;
  }

  Layout layout_;
};

}  // namespace

const Family& gemm_packed() {
  static const GemmPacked family(Layout::e5m2);
  return family;
}
const Family& gemm_packed_int8() {
  static const GemmPacked family(Layout::int8_rows);
  return family;
}

const Family& gemm_packed_bf16() {
  static const GemmPacked family(Layout::bf16);
  return family;
}

}  // namespace quarterturn::cuda
