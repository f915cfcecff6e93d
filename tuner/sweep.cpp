#include "tuner/sweep.hpp"

#include <algorithm>
#include <numeric>

namespace quarterturn {
namespace {

Problem product(DType d_type) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.m = {1, 8192};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = d_type;
  p.rotation = 32;
  return p;
}

void append_products(std::vector<Problem>& out) {
  for (const auto type : {DType::bf16, DType::f16, DType::f32})
    for (const auto contract : {Contract::fast, Contract::exact}) {
      auto p = product(type);
      p.contract = contract;
      p.spread = contract == Contract::exact ? Spread::narrow : Spread::any;
      p.bias = type == DType::f32 ? Bias::none : Bias::per_column;
      if (type != DType::f16) p.accumulate = Accumulate::accumulate;
      out.push_back(p);
    }
  for (const std::int64_t tokens : {8, 64}) {
    auto p = product(DType::bf16);
    p.m = {1, tokens};
    out.push_back(p);
    p.a_type = DType::bf16;
    p.rotation = 0;
    out.push_back(p);
  }
  for (const auto epilogue :
       {Epilogue::gelu, Epilogue::gelu_tanh, Epilogue::swiglu_split, Epilogue::swiglu_interleaved,
        Epilogue::dgelu, Epilogue::dgelu_tanh, Epilogue::dswiglu, Epilogue::dswiglu_interleaved}) {
    auto p = product(DType::bf16);
    p.epilogue = epilogue;
    if (!is_derivative(epilogue)) p.pre_activation = PreActivation::kept;
    out.push_back(p);
  }
  for (const auto layout : {Layout::plain, Layout::scales_128x4, Layout::aiter})
    for (const auto epilogue : {Epilogue::none, Epilogue::swiglu_split, Epilogue::dswiglu}) {
      auto p = product(DType::mxfp4);
      p.op = Op::gemm_quantize;
      p.d_layout = layout;
      p.epilogue = epilogue;
      p.signs = Signs::per_call;
      if (epilogue != Epilogue::none) p.d_rounding = Rounding::sr16;
      out.push_back(p);
    }
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked, Grouping::k_grouped}) {
    auto p = product(DType::bf16);
    p.grouping = grouping;
    p.groups = {1, 64};
    if (grouping == Grouping::k_grouped) std::swap(p.m, p.k);
    out.push_back(p);
  }
}

void append_quantisers(std::vector<Problem>& out) {
  for (const auto layout : {Layout::plain, Layout::scales_128x4, Layout::aiter, Layout::e5m2,
                            Layout::int8_rows, Layout::bf16, Layout::int8_blocks})
    for (const auto copies : {Copies::rows, Copies::columns, Copies::both})
      for (const auto rounding :
           {Rounding::rne, Rounding::sr16, Rounding::sr_cvt_rs, Rounding::sr_cvt_scalef32}) {
        Problem p;
        p.op = Op::quantize;
        p.m = {1, 8192};
        p.k = Extent::exactly(4096);
        p.a_type = rounding == Rounding::rne ? DType::f32 : DType::bf16;
        p.d_type = DType::mxfp4;
        p.rotation = copies == Copies::columns ? 128 : 32;
        p.signs = Signs::per_call;
        p.copies = copies;
        p.a_rounding = rounding;
        p.d_layout = layout;
        out.push_back(p);
      }
}

void append_simple(std::vector<Problem>& out) {
  Problem p;
  p.m = {1, 8192};
  p.k = Extent::exactly(4096);
  for (const auto layout : {Layout::scales_128x4, Layout::e5m2, Layout::int8_rows, Layout::permuted,
                            Layout::bf16, Layout::panel16, Layout::aiter, Layout::aiter_16x16}) {
    p.op = Op::pack;
    p.a_type = p.d_type = DType::mxfp4;
    p.a_layout = Layout::plain;
    p.d_layout = layout;
    out.push_back(p);
  }
  p.op = Op::dequantize;
  p.d_type = DType::bf16;
  p.d_layout = Layout::plain;
  out.push_back(p);
  p.a_type = DType::bf16;
  p.a_layout = Layout::chosen;
  p.op = Op::hadamard;
  p.rotation = 256;
  out.push_back(p);
  p.op = Op::column_sums;
  p.d_type = DType::f32;
  p.rotation = 0;
  out.push_back(p);
}

// Numbers that visit 0, 1, ..., count - 1 once each, far from each other in a row.
std::size_t far_apart(std::size_t turn, std::size_t count) {
  auto step = std::max<std::size_t>(1, count * 618 / 1000);
  while (std::gcd(step, count) != 1) ++step;
  return turn * step % count;
}

// A family's variants on all problems it solves: the defaults first.
std::vector<SweepRow> rows_of(const Family& family, const std::vector<Problem>& problems,
                              const Target& target, std::size_t most) {
  std::vector<std::pair<const Problem*, std::vector<Variant>>> spaces;
  for (const auto& problem : problems)
    if (family.refuses(problem, target).empty() && refuse_rounding(family, problem).empty())
      if (auto all = family.variants(problem, target); !all.empty())
        spaces.emplace_back(&problem, std::move(all));
  std::vector<SweepRow> out;
  for (std::size_t turn = 0;; ++turn) {
    const auto before = out.size();
    for (const auto& [problem, all] : spaces) {
      if (out.size() == most) return out;
      if (turn < all.size())
        out.push_back({&family, *problem, all[far_apart(turn, all.size())], {}, {}});
    }
    if (out.size() == before) return out;
  }
}

}  // namespace

std::vector<Problem> covering_problems() {
  std::vector<Problem> out;
  append_products(out);
  append_quantisers(out);
  append_simple(out);
  std::erase_if(out, [](const Problem& p) { return !validate(p).ok(); });
  return out;
}

std::vector<SweepRow> sample_variants(const std::vector<Problem>& problems, const Target& target,
                                      std::size_t count) {
  std::vector<std::vector<SweepRow>> all;
  for (const Family* family : families())
    if (family->vendor() == target.vendor) all.push_back(rows_of(*family, problems, target, count));
  std::vector<SweepRow> out;
  for (std::size_t turn = 0; turn < count; ++turn)
    for (auto& rows : all)
      if (turn < rows.size() && out.size() < count) out.push_back(std::move(rows[turn]));
  return out;
}

void compile_sweep(Backend& backend, std::vector<SweepRow>& rows,
                   const std::function<void(const SweepRow&)>& done) {
  const Target& target = backend.device().target;
  for (auto& row : rows) {
    auto binary = backend.compile(row.family->emit(row.problem, target, row.variant));
    row.status = binary.status();
    if (binary.ok()) row.binary = std::move(*binary);
    done(row);
  }
}

}  // namespace quarterturn
