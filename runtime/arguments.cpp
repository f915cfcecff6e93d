#include "runtime/arguments.hpp"

#include <fmt/format.h>

#include <cstring>

#include "generator/grouping.hpp"
#include "runtime/operand.hpp"
#include "runtime/slots.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kMostStride = std::int64_t{1} << 40;
constexpr std::uintptr_t kTightAlignment = 64;  // of layouts other than plain

Status invalid(std::string message) { return Status(Code::invalid_argument, std::move(message)); }

Status take_size(const char* name, const Extent& range, std::int64_t given, std::int64_t& out) {
  out = given == 0 && range.is_static() ? range.lo : given;
  if (range.contains(out)) return {};
  if (out < 0) return invalid(fmt::format("{} = {}: sizes are not negative", name, given));
  return Status(Code::out_of_range, fmt::format("{} = {}: the plan was prepared for {} to {}", name,
                                                given, range.lo, range.hi));
}

// The memory that a tensor reads or writes.
struct Span {
  const char* name = nullptr;
  const char* begin = nullptr;
  const char* end = nullptr;

  bool overlaps(const Span& other) const {
    return begin && other.begin && begin < other.end && other.begin < end;
  }
};

Span span_of(const char* name, const void* data, std::int64_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  return bytes > 0 ? Span{name, begin, begin + bytes} : Span{};
}

Status check_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (!pointer) return invalid(fmt::format("{} is NULL", name));
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0)
    return Status(Code::misaligned,
                  fmt::format("{} = {} is not a multiple of {} bytes", name, pointer, alignment));
  return {};
}

Status check_stride(Which which, const char* member, std::int64_t given, std::int64_t least,
                    const char* what) {
  if (given >= least && given <= kMostStride) return {};
  return invalid(fmt::format("{}.{} = {}: at least {} ({}) is needed; 0 means tightly packed",
                             slot_name(which), member, given, least, what));
}

// Names such as "a.data" without building strings on the way of success.
struct SlotNames {
  const char* data;
  const char* scales;
};
SlotNames names_of(Which which) {
  switch (which) {
    case Which::a:
      return {"a.data", "a.scales"};
    case Which::b:
      return {"b.data", "b.scales"};
    case Which::d:
      return {"d.data", "d.scales"};
    case Which::d2:
      return {"d2.data", "d2.scales"};
    case Which::z:
      return {"z.data", "z.scales"};
  }
  return {"?", "?"};
}

struct Bound {
  qt_tensor tensor{};
  Span data, scales;
};

Status bind_dense(const qturn_operand& given, const Slot& slot, Which which, std::int64_t batch,
                  Bound& out) {
  const auto element = bytes_of(slot.type);
  out.tensor = dense_matrix(slot.rows, slot.columns, given.data);
  if (given.ld != 0) {
    if (auto s = check_stride(which, "ld", given.ld, slot.columns, "a row of the stored matrix");
        !s.ok())
      return s;
    out.tensor.ld = given.ld;
  }
  const std::int64_t entry = slot.rows > 0 ? (slot.rows - 1) * out.tensor.ld + slot.columns : 0;
  out.tensor.batch_stride =
      given.batch_stride != 0 ? given.batch_stride : slot.rows * out.tensor.ld;
  if (batch > 1 && given.batch_stride != 0)
    if (auto s = check_stride(which, "batch_stride", given.batch_stride, entry, "one batch entry");
        !s.ok())
      return s;
  const auto bytes = ((batch - 1) * out.tensor.batch_stride + entry) * element;
  if (entry > 0)
    if (auto s =
            check_pointer(names_of(which).data, given.data, static_cast<std::uintptr_t>(element));
        !s.ok())
      return s;
  out.data = span_of(names_of(which).data, given.data, entry > 0 ? bytes : 0);
  return {};
}

Status bind_packed(const qturn_operand& given, const Slot& slot, Which which, std::int64_t batch,
                   Bound& out) {
  const bool plain = slot.layout == Layout::plain;
  out.tensor =
      packed_operand(slot.layout, slot.rows, slot.columns, slot.padding, given.data, given.scales);
  auto& t = out.tensor;
  auto bytes = slot.bytes();
  if (slot.references > 1) t.scale_batch_stride = slot.rows;
  if (given.ld != 0 && given.ld != t.ld) {
    if (!plain)
      return invalid(fmt::format("{}.ld = {}: layout {} is always tightly packed; leave it 0",
                                 slot_name(which), given.ld, name_of(slot.layout)));
    if (auto s = check_stride(which, "ld", given.ld, t.ld, "a row with its padding"); !s.ok())
      return s;
    if (given.ld % 2 != 0)
      return invalid(fmt::format("{}.ld = {}: two codes share a byte, so it must be even",
                                 slot_name(which), given.ld));
    t.ld = given.ld;
    bytes.codes = slot.rows > 0 ? ((slot.rows - 1) * t.ld + slot.padded()) / 2 : 0;
    t.batch_stride = slot.rows * t.ld;
  }
  if (given.scale_ld != 0 && given.scale_ld != t.scale_ld) {
    if (!plain)
      return invalid(fmt::format("{}.scale_ld = {}: layout {} is always tightly packed; leave it 0",
                                 slot_name(which), given.scale_ld, name_of(slot.layout)));
    if (auto s = check_stride(which, "scale_ld", given.scale_ld, t.scale_ld, "a row's scales");
        !s.ok())
      return s;
    t.scale_ld = given.scale_ld;
    bytes.scales = slot.rows > 0 ? (slot.rows - 1) * t.scale_ld + slot.padded() / 32 : 0;
    t.scale_batch_stride = slot.rows * t.scale_ld;
  }
  if (batch > 1 && given.batch_stride != 0) {
    if (auto s = check_stride(which, "batch_stride", given.batch_stride, t.batch_stride,
                              "one batch entry");
        !s.ok())
      return s;
    const auto bits = given.batch_stride * bits_per_element(slot.layout);
    if (given.batch_stride != t.batch_stride && bits % (plain ? 8 : 128) != 0)
      return invalid(fmt::format("{}.batch_stride = {}: {}", slot_name(which), given.batch_stride,
                                 plain
                                     ? "two codes share a byte, so it must be even"
                                     : "entries of this layout lie a multiple of 16 bytes apart"));
    bytes.codes += (batch - 1) * bits / 8;
    t.batch_stride = given.batch_stride;
  } else {
    bytes.codes *= batch;
  }
  if (batch > 1 && given.scale_batch_stride != 0) {
    if (auto s = check_stride(which, "scale_batch_stride", given.scale_batch_stride,
                              t.scale_batch_stride, "one batch entry");
        !s.ok())
      return s;
    bytes.scales += (batch - 1) * given.scale_batch_stride * bytes_per_scale(slot.layout);
    t.scale_batch_stride = given.scale_batch_stride;
  } else {
    bytes.scales *= batch;
  }
  if (bytes.codes == 0) return {};
  const auto alignment = plain ? 1 : kTightAlignment;
  if (auto s = check_pointer(names_of(which).data, given.data, alignment); !s.ok()) return s;
  if (bytes.scales > 0)
    if (auto s = check_pointer(names_of(which).scales, given.scales, alignment); !s.ok()) return s;
  out.data = span_of(names_of(which).data, given.data, bytes.codes);
  out.scales = span_of(names_of(which).scales, given.scales, bytes.scales);
  return {};
}

Status bind_operand(const PreparedPlan& plan, const qturn_operand& given, Which which,
                    const Sizes& sizes, Bound& out) {
  const Problem& p = plan.problem();
  const Slot slot = slot_of(p, plan.a_layout(), plan.b_layout(), which, sizes);
  if (slot.type == DType::none) return {};
  if (auto s = check_meaning(given, p, slot, which); !s.ok()) return s;
  const auto matrices = matrices_of(p, which, sizes);
  return slot.type == DType::mxfp4 ? bind_packed(given, slot, which, matrices, out)
                                   : bind_dense(given, slot, which, matrices, out);
}

// Both operands of a product must have been flipped by the same signs; ops of one operand have
// theirs.
Status take_signs(const Problem& p, const qturn_operand& a, const qturn_operand& b, qt_args& out) {
  if (p.signs == Signs::none) return {};
  const bool both = multiplies(p.op);
  if (p.signs == Signs::per_call) {
    if (both && a.sign_seed != b.sign_seed)
      return Status(
          Code::wrong_operand,
          fmt::format("a's sign seed is {}, b's is {}: both operands of a product must be "
                      "flipped by the same signs; quantise one of them again",
                      a.sign_seed, b.sign_seed));
    out.sign_seed = a.sign_seed;
    return {};
  }
  for (int i = 0; i < 8; ++i) {
    // Of a short rotation only the first bits mean anything.
    const int bits = p.rotation - 32 * i;
    const std::uint32_t used = bits >= 32 ? ~0u : bits > 0 ? (1u << bits) - 1u : 0u;
    if (both && ((a.sign_mask[i] ^ b.sign_mask[i]) & used) != 0)
      return Status(Code::wrong_operand,
                    fmt::format("a's sign mask has {:#010x} in word {}, b's has {:#010x}: both "
                                "operands of a product must be flipped by the same signs",
                                a.sign_mask[i], i, b.sign_mask[i]));
    out.sign_mask[i] = a.sign_mask[i];
  }
  return {};
}

// A dense matrix that is given by its pointer and the distance of its rows.
Status take_matrix(const char* name, const char* ld_name, const void* data, std::int64_t ld,
                   std::int64_t rows, std::int64_t columns, std::int64_t batch, DType type,
                   qt_tensor& out, Span& span) {
  const auto element = bytes_of(type);
  if (auto status = check_pointer(name, data, static_cast<std::uintptr_t>(element)); !status.ok())
    return status;
  const auto pitch = ld != 0 ? ld : columns;
  if (pitch < columns || pitch > kMostStride)
    return invalid(fmt::format("{} = {}: at least {} (a row) is needed; 0 means tightly packed",
                               ld_name, ld, columns));
  out = dense_matrix(rows, columns, const_cast<void*>(data));
  out.ld = pitch;
  out.batch_stride = rows * pitch;
  span = span_of(name, data,
                 ((batch - 1) * out.batch_stride + (rows - 1) * pitch + columns) * element);
  return {};
}

// C may be D itself: every element is read before it is written, by the thread that writes it.
bool is_in_place(const Problem& p, const qturn_args& given) {
  return given.c == given.d.data && side_type(p) == p.d_type && output_columns(p.epilogue, 2) == 2;
}

Status take_c(const Problem& p, const qturn_args& given, const Sizes& s, const Bound& d,
              Span& c_span, qt_args& out) {
  if (p.accumulate == Accumulate::overwrite || given.beta == 0.0f) return {};
  if (auto status = take_matrix("c", "ldc", given.c, given.ldc, s.m, s.n,
                                matrices_of(p, Which::d, s), side_type(p), out.c, c_span);
      !status.ok())
    return status;
  if (!is_in_place(p, given)) return {};
  if (out.c.ld != d.tensor.ld)
    return invalid(fmt::format("c is d itself, but ldc = {} and d.ld = {}", out.c.ld, d.tensor.ld));
  out.c.batch_stride = d.tensor.batch_stride;
  c_span = {};
  return {};
}

Status take_epilogue(const Problem& p, const qturn_args& given, const Sizes& s, const Bound& d,
                     Span& c_span, Span& bias_span, Span& aux_span, qt_args& out) {
  out.alpha = given.alpha;
  out.beta = given.beta;
  const auto element = bytes_of(side_type(p));
  if (is_gated(p.epilogue) && s.n % 2 != 0)
    return invalid(fmt::format("n = {}: gates and values are pairs, so n is even", s.n));
  if (p.accumulate == Accumulate::overwrite && given.beta != 0.0f)
    return invalid(
        fmt::format("beta = {}: the problem overwrites d; prepare it with accumulate = "
                    "QTURN_ACCUMULATE to add beta * C",
                    given.beta));
  if (auto status = take_c(p, given, s, d, c_span, out); !status.ok()) return status;
  if (is_derivative(p.epilogue)) {
    if (auto status =
            take_matrix("aux", "ldaux", given.aux, given.ldaux, s.m, aux_columns(p.epilogue, s.n),
                        matrices_of(p, Which::d, s), side_type(p), out.aux, aux_span);
        !status.ok())
      return status;
  } else if (given.aux) {
    return invalid("aux is given, but the problem's epilogue is no derivative");
  }
  if (p.bias == Bias::per_column) {
    if (auto status = check_pointer("bias", given.bias, static_cast<std::uintptr_t>(element));
        !status.ok())
      return status;
    out.bias = given.bias;
    bias_span = span_of("bias", given.bias, s.groups * s.n * element);
  } else if (given.bias) {
    return invalid(
        "bias is given, but the problem has none; prepare it with bias = "
        "QTURN_BIAS_PER_COLUMN");
  }
  return {};
}

Status take_groups(const Problem& p, const qturn_args& given, Sizes& s, Span& span, qt_args& out) {
  const auto groups = given.groups == 0 ? p.groups.lo : given.groups;
  if (auto status = take_size("groups", p.groups, groups, s.groups); !status.ok()) return status;
  const bool masked = p.grouping == Grouping::m_masked;
  const bool by_ends = p.grouping != Grouping::none && !masked;
  if (given.group_ends && !by_ends)
    return invalid(fmt::format("group_ends are given, but the problem's grouping is {}{}",
                               name_of(p.grouping), masked ? ": give group_counts" : ""));
  if (given.group_counts && !masked)
    return invalid(fmt::format("group_counts are given, but the problem's grouping is {}{}",
                               name_of(p.grouping), by_ends ? ": give group_ends" : ""));
  out.groups = s.groups;
  if (p.grouping == Grouping::none) return {};
  const char* name = masked ? "group_counts" : "group_ends";
  out.group_sizes = masked ? given.group_counts : given.group_ends;
  if (auto status = check_pointer(name, out.group_sizes, alignof(std::int32_t)); !status.ok())
    return status;
  span = span_of(name, out.group_sizes, s.groups * std::int64_t{sizeof(std::int32_t)});
  if (s.m > INT32_MAX || s.k > INT32_MAX)
    return invalid(
        fmt::format("m = {}, k = {}: grouped calls hold at most {} rows or tokens, as "
                    "group sizes are int32",
                    s.m, s.k, INT32_MAX));
  return {};
}

Status take_norm(const Problem& p, const qturn_args& given, const Sizes& s, Span& span,
                 qt_args& out) {
  if (p.prologue != Prologue::rmsnorm) {
    if (!given.norm_weight) return {};
    return invalid("norm_weight is given, but the problem's prologue is not rmsnorm");
  }
  const auto element = bytes_of(p.a_type);
  if (auto status =
          check_pointer("norm_weight", given.norm_weight, static_cast<std::uintptr_t>(element));
      !status.ok())
    return status;
  if (!(given.epsilon >= 0.0f))
    return invalid(fmt::format("epsilon = {}: it is not negative", given.epsilon));
  out.norm_weight = given.norm_weight;
  out.epsilon = given.epsilon;
  span = span_of("norm_weight", given.norm_weight, s.k * element);
  return {};
}

/// The caller's noise: words of the call itself, and words that kernels read when they run.
Status take_noise(const qturn_args& given, Span& seed, Span& stream, qt_args& out) {
  if (given.noise_operand > 2)
    return invalid(
        fmt::format("noise_operand = {}: 0 (as A), 1 (as B) or 2 (as a product's result)",
                    given.noise_operand));
  if (given.noise_seed_at)
    if (auto status = check_pointer("noise_seed_at", given.noise_seed_at, 8); !status.ok())
      return status;
  if (given.noise_stream_at)
    if (auto status = check_pointer("noise_stream_at", given.noise_stream_at, 4); !status.ok())
      return status;
  out.noise_seed = given.noise_seed;
  out.stream = given.noise_stream;
  out.operand = given.noise_operand;
  static_assert(sizeof(unsigned long long) == sizeof *given.noise_seed_at);
  out.noise_seed_at = reinterpret_cast<const unsigned long long*>(given.noise_seed_at);
  out.noise_stream_at = given.noise_stream_at;
  seed = span_of("noise_seed_at", given.noise_seed_at, given.noise_seed_at ? 8 : 0);
  stream = span_of("noise_stream_at", given.noise_stream_at, given.noise_stream_at ? 4 : 0);
  return {};
}

Status take_bias_gradient(const Problem& p, const qturn_args& given, const Sizes& s, Span& span,
                          qt_args& out) {
  if (p.bias_gradient == BiasGradient::none) {
    if (!given.bias_gradient) return {};
    return invalid(
        "bias_gradient is given, but the problem has none; prepare it with bias_gradient = "
        "QTURN_BIAS_GRADIENT_F32");
  }
  if (auto status = check_pointer("bias_gradient", given.bias_gradient, alignof(float));
      !status.ok())
    return status;
  out.bias_gradient = given.bias_gradient;
  const auto columns = multiplies(p.op) ? s.m : s.k;
  span = span_of("bias_gradient", given.bias_gradient,
                 s.batch * columns * static_cast<std::int64_t>(sizeof(float)));
  return {};
}

Status take_place(const Problem& p, const qturn_args& given, const Sizes& s, Call& out) {
  if (p.grouping == Grouping::k_grouped && (given.k0 != 0 || given.k_global != 0))
    return invalid(
        fmt::format("k0 = {}, k_global = {}: a k_grouped copy is never part of a longer "
                    "one; leave both 0",
                    given.k0, given.k_global));
  if (p.op == Op::gemm_quantize && is_stochastic(p.d_rounding) && given.row0_b != 0)
    return invalid(fmt::format(
        "row0_b = {}: a part of D's columns cannot draw the noise of the whole; give 0, "
        "or prepare with d_rounding = QTURN_RNE",
        given.row0_b));
  if (given.row0 < 0 || given.row0_b < 0 || given.k0 < 0 || given.k_global < 0)
    return invalid(fmt::format("row0 = {}, row0_b = {}, k0 = {}, k_global = {}: none is negative",
                               given.row0, given.row0_b, given.k0, given.k_global));
  // A lone copy of X^T is the operand meant: its K is X's rows.
  const bool transposed = p.op == Op::quantize && p.copies == Copies::columns;
  const auto k = transposed ? s.m : s.k;
  if (given.k_global != 0 && given.k0 > given.k_global - k)
    return invalid(fmt::format(
        "k_global = {} is less than k0 + {} = {}", given.k_global, transposed ? "m" : "k",
        static_cast<std::uint64_t>(given.k0) + static_cast<std::uint64_t>(k)));
  out.args.row0 = given.row0;
  out.args.k0 = given.k0;
  out.args.k_global = given.k_global;
  out.row0_b = given.row0_b;
  return {};
}

Status take_workspace(const PreparedPlan& plan, const qturn_args& given, Span& span, qt_args& out) {
  const auto needed = plan.workspace_bytes();
  if (needed == 0) return {};
  const auto whole = static_cast<std::size_t>(needed + kWorkspaceAlignment);
  if (given.workspace_bytes < whole)
    return Status(Code::workspace_too_small,
                  fmt::format("workspace_bytes = {}: this plan needs {} (qturn_plan_workspace)",
                              given.workspace_bytes, whole));
  if (!given.workspace) return invalid("workspace is NULL");
  const auto at = reinterpret_cast<std::uintptr_t>(given.workspace);
  const auto aligned = (at + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  out.workspace = static_cast<char*>(given.workspace) + (aligned - at);
  out.workspace_bytes = needed;
  span = span_of("workspace", given.workspace, static_cast<std::int64_t>(whole));
  return {};
}

Status refuse_overlap(const Span& written, const Span& other) {
  return invalid(
      fmt::format("{} and {} overlap: what a call writes shares memory with nothing but c",
                  written.name, other.name));
}

}  // namespace

Status bind(const PreparedPlan& plan, const qturn_args& given, const qturn_operand& b, Call& out) {
  const Problem& p = plan.problem();
  Sizes s;
  if (auto status = take_size("m", p.m, given.m, s.m); !status.ok()) return status;
  if (multiplies(p.op))
    if (auto status = take_size("n", p.n, given.n, s.n); !status.ok()) return status;
  if (auto status = take_size("k", p.k, given.k, s.k); !status.ok()) return status;
  const auto batch = given.batch == 0 ? p.batch.lo : given.batch;
  if (auto status = take_size("batch", p.batch, batch, s.batch); !status.ok()) return status;
  if (is_empty(p, s.m, s.n)) {
    out.work = Call::Work::none;
    return {};
  }

  Span groups;
  if (auto status = take_groups(p, given, s, groups, out.args); !status.ok()) return status;
  Bound bound_a, bound_b, bound_d, bound_d2, bound_z;
  if (auto status = bind_operand(plan, given.a, Which::a, s, bound_a); !status.ok()) return status;
  if (auto status = bind_operand(plan, b, Which::b, s, bound_b); !status.ok()) return status;
  if (auto status = bind_operand(plan, given.d, Which::d, s, bound_d); !status.ok()) return status;
  if (auto status = bind_operand(plan, given.d2, Which::d2, s, bound_d2); !status.ok())
    return status;
  if (auto status = bind_operand(plan, given.z, Which::z, s, bound_z); !status.ok()) return status;

  qt_args& args = out.args;
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = matrices_of(p, Which::d, s);
  args.a = bound_a.tensor;
  args.b = bound_b.tensor;
  args.d = bound_d.tensor;
  args.d2 = bound_d2.tensor;
  args.z = bound_z.tensor;
  if (auto status = take_signs(p, given.a, b, args); !status.ok()) return status;
  Span c, bias, aux, norm, seed, stream, sums_span, workspace;
  if (auto status = take_noise(given, seed, stream, args); !status.ok()) return status;
  if (auto status = take_epilogue(p, given, s, bound_d, c, bias, aux, args); !status.ok())
    return status;
  if (auto status = take_norm(p, given, s, norm, args); !status.ok()) return status;
  if (auto status = take_bias_gradient(p, given, s, sums_span, args); !status.ok()) return status;
  if (auto status = take_place(p, given, s, out); !status.ok()) return status;
  if (auto status = take_workspace(plan, given, workspace, args); !status.ok()) return status;

  const Span read[] = {
      bound_a.data, bound_a.scales, bound_b.data, bound_b.scales, c,      bias,
      aux,          norm,           groups,       seed,           stream, workspace};
  const Span written[] = {bound_d.data,    bound_d.scales, bound_d2.data,
                          bound_d2.scales, bound_z.data,   sums_span};
  for (std::size_t i = 0; i < std::size(written); ++i) {
    for (const Span& other : read)
      if (written[i].overlaps(other)) return refuse_overlap(written[i], other);
    for (std::size_t j = 0; j < i; ++j)
      if (written[i].overlaps(written[j])) return refuse_overlap(written[i], written[j]);
  }
  for (std::size_t i = 0; i + 1 < std::size(read); ++i)
    if (workspace.overlaps(read[i])) return refuse_overlap(workspace, read[i]);
  return {};
}

Status check_groups(const Problem& p, const qt_args& args) {
  if (p.grouping == Grouping::none) return {};
  const bool masked = p.grouping == Grouping::m_masked;
  const bool tokens = p.grouping == Grouping::k_grouped && p.op != Op::quantize;
  const std::int64_t most = tokens ? args.k : args.m;
  std::int64_t least = 0;
  for (std::int64_t g = 0; g < args.groups; ++g) {
    const std::int64_t value = args.group_sizes[g];
    if (value < least || value > most)
      return invalid(fmt::format("{}[{}] = {}: {} to {} is allowed here{}",
                                 masked ? "group_counts" : "group_ends", g, value, least, most,
                                 masked   ? " (m)"
                                 : tokens ? " (the end before, k)"
                                          : " (the end before, m)"));
    if (!masked) least = value;
  }
  return {};
}

bool LastCall::recall(const qturn_args& given, const qturn_operand& b, Call& out) const {
  if (taken_.test_and_set(std::memory_order_acquire)) return false;
  const bool same = known_ && std::memcmp(&given_, &given, sizeof given) == 0 &&
                    std::memcmp(&b_, &b, sizeof b) == 0;
  if (same) out = call_;
  taken_.clear(std::memory_order_release);
  return same;
}

void LastCall::keep(const qturn_args& given, const qturn_operand& b, const Call& call) const {
  if (taken_.test_and_set(std::memory_order_acquire)) return;
  std::memcpy(&given_, &given, sizeof given);
  std::memcpy(&b_, &b, sizeof b);
  call_ = call;
  known_ = true;
  taken_.clear(std::memory_order_release);
}

}  // namespace quarterturn
