// Every CUDA family, compiled by NVRTC without a GPU: the default and the variants that differ most
// from it, for the architectures they are legal on; none may spill or have its products serialised.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "compile_jobs.hpp"

using namespace quarterturn;

namespace {

Problem stand_in_problem(Layout layout, DType d_type) {
  auto p = gemm_problem(Contract::fast, Spread::narrow, d_type, Extent::exactly(4096));
  p.a_layout = p.b_layout = layout;
  p.accumulate = Accumulate::accumulate;
  p.bias = Bias::per_column;
  return p;
}

Problem one_operand(Op op, DType a_type, DType d_type, Layout a_layout, Layout d_layout) {
  Problem p;
  p.op = op;
  p.m = {1, 8192};
  p.k = Extent::exactly(4096);
  p.a_type = a_type;
  p.d_type = d_type;
  p.a_layout = a_layout;
  p.d_layout = d_layout;
  p.rotation = 256;
  return p;
}

Problem quantize_problem(DType type, std::int32_t g, ScaleRule rule, Rounding rounding,
                         Copies copies, Layout layout) {
  Problem p;
  p.op = Op::quantize;
  p.m = {1, 8192};
  p.k = Extent::exactly(4096);
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.rotation = g;
  p.signs = g > 0 ? Signs::per_call : Signs::none;
  p.scale_rule = rule;
  p.a_rounding = rounding;
  p.biased = BiasedRounding::allowed;
  p.copies = copies;
  p.d_layout = layout;
  return p;
}

Problem packed_problem(std::int64_t tokens, DType d_type, Contract contract = Contract::fast) {
  auto p = gemm_problem(contract, contract == Contract::fast ? Spread::any : Spread::narrow, d_type,
                        Extent::exactly(8192));
  p.m = {1, tokens};
  p.bias = Bias::per_column;
  return p;
}

Problem weight_only_problem(std::int64_t tokens, DType d_type) {
  auto p = packed_problem(tokens, d_type);
  p.contract = Contract::exact;
  p.spread = Spread::any;
  p.a_type = DType::bf16;
  p.rotation = 0;
  p.accumulate = Accumulate::accumulate;
  return p;
}

Problem squares_problem(DType type, Rounding rounding) {
  auto p = quantize_problem(type, 0, ScaleRule::rceil, rounding, Copies::both, Layout::plain);
  p.scale_block = ScaleBlock::b32x32;
  return p;
}

Problem prologue_problem(Prologue prologue, DType type, Copies copies, Layout layout) {
  auto p = quantize_problem(type, 32, ScaleRule::rceil, Rounding::sr16, copies, layout);
  p.prologue = prologue;
  return p;
}

std::vector<Problem> problems() {
  auto full = gemm_problem(Contract::fast, Spread::any, DType::bf16, Extent::exactly(4096));
  full.bias = Bias::per_column;
  full.accumulate = Accumulate::accumulate;
  auto weight_only = gemm_problem(Contract::exact, Spread::any, DType::bf16, Extent::exactly(4096));
  weight_only.a_type = DType::bf16;
  auto odd_rows = quantize_problem(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::rows,
                                   Layout::plain);
  odd_rows.k = Extent::exactly(14336);
  return {
      gemm_problem(Contract::fast, Spread::any, DType::bf16, Extent::exactly(4096)),
      gemm_problem(Contract::exact, Spread::narrow, DType::bf16, Extent::exactly(4096)),
      gemm_problem(Contract::exact, Spread::any, DType::f32, {0, 1 << 20}),
      full,
      weight_only,
      quantize_problem(DType::bf16, 32, ScaleRule::rceil, Rounding::rne, Copies::rows,
                       Layout::plain),
      quantize_problem(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::both,
                       Layout::plain),
      quantize_problem(DType::f32, 256, ScaleRule::rceil, Rounding::sr16, Copies::both,
                       Layout::scales_128x4),
      quantize_problem(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::rows,
                       Layout::e5m2),
      quantize_problem(DType::f16, 128, ScaleRule::ceil, Rounding::rne, Copies::rows,
                       Layout::int8_rows),
      quantize_problem(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::rows,
                       Layout::bf16),
      quantize_problem(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::columns,
                       Layout::bf16),
      quantize_problem(DType::f32, 64, ScaleRule::rceil, Rounding::sr16, Copies::both,
                       Layout::bf16),
      quantize_problem(DType::bf16, 256, ScaleRule::ceil, Rounding::rne, Copies::both,
                       Layout::bf16),
      odd_rows,
      prologue_problem(Prologue::rmsnorm, DType::bf16, Copies::rows, Layout::plain),
      prologue_problem(Prologue::rmsnorm, DType::f16, Copies::rows, Layout::int8_rows),
      prologue_problem(Prologue::rmsnorm, DType::f32, Copies::rows, Layout::bf16),
      prologue_problem(Prologue::swiglu_split, DType::bf16, Copies::rows, Layout::e5m2),
      prologue_problem(Prologue::swiglu_split, DType::f32, Copies::both, Layout::plain),
      prologue_problem(Prologue::swiglu_interleaved, DType::f16, Copies::rows, Layout::plain),
      prologue_problem(Prologue::swiglu_interleaved, DType::bf16, Copies::both, Layout::bf16),
      prologue_problem(Prologue::swiglu_interleaved, DType::bf16, Copies::columns, Layout::plain),
      squares_problem(DType::bf16, Rounding::sr16),
      squares_problem(DType::f32, Rounding::half_away),
      packed_problem(8, DType::bf16),
      packed_problem(16, DType::f16),
      packed_problem(64, DType::bf16),
      packed_problem(16, DType::bf16, Contract::exact),
      weight_only_problem(8, DType::bf16),
      weight_only_problem(64, DType::f32),
      weight_only_problem(8192, DType::bf16),
      packed_problem(64, DType::f32, Contract::exact),
      stand_in_problem(Layout::e5m2, DType::f32),
      stand_in_problem(Layout::int8_rows, DType::bf16),
      one_operand(Op::pack, DType::mxfp4, DType::mxfp4, Layout::plain, Layout::e5m2),
      one_operand(Op::pack, DType::mxfp4, DType::mxfp4, Layout::plain, Layout::int8_rows),
      one_operand(Op::pack, DType::mxfp4, DType::mxfp4, Layout::plain, Layout::permuted),
      one_operand(Op::pack, DType::mxfp4, DType::mxfp4, Layout::plain, Layout::bf16),
      one_operand(Op::dequantize, DType::mxfp4, DType::f16, Layout::plain, Layout::plain),
      one_operand(Op::hadamard, DType::bf16, DType::bf16, Layout::chosen, Layout::plain),
      one_operand(Op::column_sums, DType::bf16, DType::f32, Layout::chosen, Layout::plain),
      one_operand(Op::column_sums, DType::f32, DType::f32, Layout::chosen, Layout::plain),
  };
}

// The kernel texts that a flattened source is made of.
std::set<std::string> texts_of(const std::string& flat) {
  std::set<std::string> out;
  std::istringstream lines(flat);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("// ---- ", 0) == 0) out.insert(line);
  return out;
}

// `explored`: problems of each family that are compiled in all corners; the others by default.
// Architectures share texts: the second one gets each text, by the first problem that needs it.
void compile_all_of(std::initializer_list<const Family*> families, std::size_t least,
                    int explored = 1000) {
  if (no_compiler()) return;
  std::vector<Job> jobs;
  for (const auto* arch : {"sm_90a", "sm_80"}) {
    const auto target = *parse_target(arch);
    std::map<const Family*, int> taken;
    std::set<std::pair<const Family*, std::string>> seen;
    for (const auto& p : problems())
      for (const Family* family : families) {
        if (!family->refuses(p, target).empty()) continue;
        const bool first = (family->name() == "cuda_gemm_mma") == (std::string(arch) == "sm_80");
        if (!first) {
          auto job = job_of(*family, p, target, corners(*family, p, target).at(0), arch);
          bool is_new = false;
          for (const auto& text : texts_of(job.text))
            is_new = seen.emplace(family, text).second || is_new;
          if (is_new) jobs.push_back(std::move(job));
          continue;
        }
        const bool all = ++taken[family] <= explored;
        for (const auto& v : corners(*family, p, target)) {
          jobs.push_back(job_of(*family, p, target, v, arch));
          if (!all) break;
        }
      }
  }
  compile_jobs(jobs, least);
}

}  // namespace

TEST_CASE("cuda quantisers compile without spills") {
  compile_all_of({&cuda::quantize(), &cuda::pack(), &cuda::dequantize(), &cuda::hadamard(),
                  &cuda::column_sums()},
                 20);
}
TEST_CASE("cuda quantisers of every scale rule compile by default without spills") {
  if (no_compiler()) return;
  const auto target = *parse_target("sm_90a");
  std::vector<Job> jobs;
  const auto add = [&](ScaleRule rule, std::int32_t g, DType type, Copies copies) {
    const auto& family = cuda::quantize();
    const auto p = quantize_problem(type, g, rule, Rounding::rne, copies, Layout::plain);
    REQUIRE(family.refuses(p, target).empty());
    jobs.push_back(job_of(family, p, target, family.default_variant(p, target), target.arch));
  };
  for (const auto rule : {ScaleRule::floor, ScaleRule::even, ScaleRule::ts34, ScaleRule::quest,
                          ScaleRule::quest_qutlass, ScaleRule::search}) {
    add(rule, 0, DType::bf16, Copies::rows);
    add(rule, 32, DType::f32, Copies::rows);
    add(rule, 256, DType::f32, Copies::rows);
    add(rule, 32, DType::bf16, Copies::both);
  }
  add(ScaleRule::search, 128, DType::f32, Copies::columns);
  add(ScaleRule::search, 0, DType::bf16, Copies::both);
  add(ScaleRule::ts34, 0, DType::bf16, Copies::both);
  compile_jobs(jobs, 27);
}
TEST_CASE("cuda products compile without spills and overlap") {
  compile_all_of(
      {&cuda::gemm_e5m2(), &cuda::gemm_int8(), &cuda::gemm_bf16(), &cuda::gemm_packed(),
       &cuda::gemm_packed_int8(), &cuda::gemm_packed_tiles(), &cuda::gemm_packed_tiles_int8()},
      20, 1);
}
TEST_CASE("cuda bf16 products that quantise their results compile without spills") {
  if (no_compiler()) return;
  const auto target = *parse_target("sm_90a");
  std::vector<Job> jobs;
  auto p = gemm_problem(Contract::exact, Spread::any, DType::mxfp4, Extent::exactly(4096));
  p.op = Op::gemm_quantize;
  p.signs = Signs::per_call;
  const auto add = [&](std::initializer_list<std::pair<const std::string, int>> values) {
    auto v = cuda::gemm_bf16().variants(p, target).front();
    for (const auto& [name, value] : values) v.values[name] = value;
    INFO(v.text(), " ", p.key());
    REQUIRE(cuda::gemm_bf16().check(p, target, v).message() == "");
    jobs.push_back(job_of(cuda::gemm_bf16(), p, target, v, target.arch));
  };
  p.d_rounding = Rounding::sr16;
  p.bias = Bias::per_column;
  p.accumulate = Accumulate::accumulate;
  add({});
  p.accumulate = Accumulate::overwrite;
  p.rotation = 64;
  p.epilogue = Epilogue::dswiglu;
  add({});
  p.rotation = 32;
  p.epilogue = Epilogue::swiglu_split;
  p.pre_activation = PreActivation::kept;
  add({});
  p.pre_activation = PreActivation::dropped;
  p.epilogue = Epilogue::none;
  p.scale_rule = ScaleRule::search;
  p.biased = BiasedRounding::allowed;
  add({{"tile_m", 128}, {"tile_n", 256}, {"stages", 3}});
  compile_jobs(jobs, 4);
}
// What a binary32 result with C and bias takes most registers for: the first variant of each
// family, and the one that its model puts first.
TEST_CASE("cuda products compile by default without spills, whatever they add") {
  if (no_compiler()) return;
  const auto target = *parse_target("sm_90a");
  std::vector<Job> jobs;
  std::set<std::string> seen;
  const auto add = [&](const Family& family, const Problem& p) {
    INFO(family.name(), " ", p.key());
    REQUIRE(family.refuses(p, target) == "");
    const auto all = family.variants(p, target);
    REQUIRE(!all.empty());
    const auto cheaper = [&](const Variant& x, const Variant& y) {
      return family.predicted_cost(p, target, x, 0) < family.predicted_cost(p, target, y, 0);
    };
    for (const auto* v : {&all.front(), &*std::min_element(all.begin(), all.end(), cheaper)})
      if (seen.insert(v->text() + std::string(name_of(p.d_type)) + p.key()).second)
        jobs.push_back(job_of(family, p, target, *v, target.arch));
  };
  auto wgrad = gemm_problem(Contract::fast, Spread::narrow, DType::f32, Extent::exactly(4096));
  wgrad.role = Role::wgrad;
  wgrad.accumulate = Accumulate::accumulate;
  for (const Family* family :
       {&cuda::gemm_e5m2(), &cuda::gemm_int8(), &cuda::gemm_bf16(), &cuda::gemm_packed_tiles(),
        &cuda::gemm_packed_tiles_int8(), &cuda::gemm_packed_tiles_bf16()})
    add(*family, wgrad);
  wgrad.bias = Bias::per_column;
  add(cuda::gemm_bf16(), wgrad);
  wgrad.m = {1, 64};
  for (const Family* family :
       {&cuda::gemm_packed(), &cuda::gemm_packed_int8(), &cuda::gemm_packed_bf16()})
    add(*family, wgrad);
  wgrad.m = {1, 32};
  add(cuda::gemm_packed_bf16(), wgrad);
  add(cuda::gemm_packed_bf16(), weight_only_problem(64, DType::bf16));
  add(cuda::gemm_packed_bf16(), weight_only_problem(8, DType::f32));
  add(cuda::gemm_packed_tiles_bf16(), weight_only_problem(8192, DType::bf16));
  // Small weights' gradients, whose tiles' K several blocks share.
  auto few = wgrad;
  few.m = few.n = Extent::exactly(512);
  few.k = Extent::exactly(32768);
  for (const Family* family : {&cuda::gemm_e5m2(), &cuda::gemm_int8(), &cuda::gemm_bf16()})
    add(*family, few);
  compile_jobs(jobs, 16);
}
TEST_CASE("portable cuda products compile without spills") {
  compile_all_of({&cuda::gemm_mma(), &cuda::stand_in()}, 10, 2);
}
TEST_CASE("cuda epilogues compile without spills") {
  if (no_compiler()) return;
  const auto sm90 = *parse_target("sm_90a"), sm80 = *parse_target("sm_80");
  std::vector<Job> jobs;
  const auto add = [&](const Family& family, const Problem& p, const Target& t, Variant v) {
    INFO(p.key());
    REQUIRE(family.refuses(p, t).empty());
    REQUIRE(family.illegal(p, t, v).empty());
    jobs.push_back(job_of(family, p, t, v, t.arch));
  };
  // Every epilogue in a product of each kind, half of them in a second form.
  for (const DType type : {DType::bf16, DType::f32}) {
    std::size_t turn = 0;
    for (const auto& p : epilogue_problems(Contract::exact, Spread::narrow, type)) {
      if (type == DType::f32 && turn++ % 2 == 0) continue;
      const auto& family = cuda::gemm_int8();
      auto v = family.default_variant(p, sm90);
      if (type == DType::bf16) v.values["cluster"] = 2;
      if (type == DType::f32) v.values["tile_m"] = 256, v.values["tile_n"] = 128;
      add(family, p, sm90, v);
    }
  }
  std::size_t turn = 0;
  for (const auto& p : epilogue_problems(Contract::fast, Spread::any, DType::bf16)) {
    const auto& family = cuda::gemm_e5m2();
    auto v = family.default_variant(p, sm90);
    add(family, p, sm90, v);
    if (turn++ % 2 == 0) continue;
    v.values["tile_n"] = 256;
    v.values["pieces"] = 2;
    v.values["promote"] = 2;
    add(family, p, sm90, v);
  }
  for (const auto& p : epilogue_problems(Contract::exact, Spread::any, DType::bf16)) {
    if (!is_light(p.epilogue))
      add(cuda::gemm_mma(), p, sm80, cuda::gemm_mma().default_variant(p, sm80));
    if (turn++ % 2 == 0) continue;
    add(cuda::gemm_bf16(), p, sm90, cuda::gemm_bf16().default_variant(p, sm90));
    auto unfit = p;
    unfit.a_layout = unfit.b_layout = Layout::e5m2;
    add(cuda::stand_in(), unfit, sm90, cuda::stand_in().default_variant(unfit, sm90));
  }
  compile_jobs(jobs, 36);
}
TEST_CASE("cuda kernels of groups compile without spills") {
  if (no_compiler()) return;
  const auto sm90 = *parse_target("sm_90a"), sm80 = *parse_target("sm_80");
  std::vector<Job> jobs;
  const auto add = [&](const Family& family, const Problem& p, const Target& t,
                       std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
    INFO(p.key());
    REQUIRE(family.refuses(p, t) == "");
    auto v = family.default_variant(p, t);
    for (const auto& [name, value] : values) v.values[name] = value;
    REQUIRE(family.illegal(p, t, v) == "");
    jobs.push_back(job_of(family, p, t, v, t.arch));
  };
  const auto grouped = [](Problem p, Grouping grouping) {
    p.grouping = grouping;
    p.groups = {1, 64};
    if (multiplies(p.op)) p.accumulate = Accumulate::accumulate;
    if (multiplies(p.op) && grouping != Grouping::k_grouped) p.bias = Bias::per_column;
    return p;
  };
  const auto gemm = [&](Grouping grouping, Contract contract, Spread spread, DType type) {
    auto p = grouped(gemm_problem(contract, spread, type, Extent::exactly(4096)), grouping);
    if (grouping == Grouping::k_grouped) std::swap(p.m, p.k);
    return p;
  };
  const auto fast = gemm(Grouping::m_contiguous, Contract::fast, Spread::any, DType::bf16);
  add(cuda::gemm_e5m2(), fast, sm90, {});
  const auto wgrad = gemm(Grouping::k_grouped, Contract::fast, Spread::any, DType::f32);
  add(cuda::gemm_e5m2(), wgrad, sm90, {{"tile_n", 160}, {"stages", 5}, {"cluster", 2}});
  const auto masked = gemm(Grouping::m_masked, Contract::exact, Spread::narrow, DType::bf16);
  add(cuda::gemm_int8(), masked, sm90, {{"tile_m", 256}, {"tile_n", 128}});
  const auto exact = gemm(Grouping::m_contiguous, Contract::exact, Spread::any, DType::f32);
  add(cuda::gemm_bf16(), exact, sm90, {});
  add(cuda::gemm_mma(), exact, sm80, {});
  auto unfit = wgrad;
  unfit.a_layout = unfit.b_layout = Layout::e5m2;
  add(cuda::stand_in(), unfit, sm90, {});
  unfit = masked;
  unfit.a_layout = unfit.b_layout = Layout::int8_rows;
  add(cuda::stand_in(), unfit, sm90, {});
  const auto quantize = [&](std::int32_t g, Grouping grouping, Copies copies, Layout layout) {
    return grouped(
        quantize_problem(DType::bf16, g, ScaleRule::rceil, Rounding::sr16, copies, layout),
        grouping);
  };
  add(cuda::quantize(), quantize(32, Grouping::m_masked, Copies::rows, Layout::e5m2), sm90, {});
  auto odd = quantize(32, Grouping::m_masked, Copies::rows, Layout::plain);
  odd.k = Extent::exactly(14336);
  add(cuda::quantize(), odd, sm90, {});
  add(cuda::quantize(), quantize(32, Grouping::k_grouped, Copies::both, Layout::plain), sm90, {});
  add(cuda::quantize(), quantize(256, Grouping::k_grouped, Copies::both, Layout::plain), sm90, {});
  auto pack =
      grouped(one_operand(Op::pack, DType::mxfp4, DType::mxfp4, Layout::plain, Layout::e5m2),
              Grouping::k_grouped);
  pack.m = Extent::exactly(4096);
  pack.k = {0, 8192};
  add(cuda::pack(), pack, sm90, {});
  compile_jobs(jobs, 12);
}
TEST_CASE("every cuda family is compiled by one of these tests") {
  CHECK(cuda::families().size() == 19);
}
