// Every HIP family, compiled by clang for gfx950 without a GPU: the default and the variants that
// differ most from it. None may spill, and products must use the scaled matrix instructions.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <sstream>

#include "generator/hip/families.hpp"
#include "generator/probe.hpp"
#include "runtime/hip/clang.hpp"
#include "runtime/hip/code_object.hpp"
#include "tests/hip/problems.hpp"

using namespace quarterturn;
using namespace qturn_test;

namespace {

const Target kTarget = *parse_target("gfx950");

struct Job {
  std::string name, entry, text;
  std::vector<std::string> needs;  ///< instructions of the disassembly
};

std::string disassembly_of(const std::string& object) {
  const auto command = "llvm-objdump-22 -d --mcpu=gfx950 " + object + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  char buffer[65536];
  while (const auto got = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, got);
  return ::pclose(pipe) == 0 ? out : std::string();
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

// What is wrong with the code object that a compiler made of a job.
std::string complaint_about(const std::string& path, const Job& job) {
  const auto object = hip::read_code_object(read_file(path));
  if (!object.ok()) return object.status().message();
  if (object->target.rfind("amdgcn-amd-amdhsa--gfx950", 0) != 0)
    return "made for " + object->target;
  const auto* kernel = object->find(job.entry);
  if (!kernel) return "has no kernel " + job.entry;
  if (kernel->wave != 64) return "wavefronts are not of 64 lanes";
  // Scalar registers spill into lanes of vector registers, not to memory.
  if (kernel->scratch_bytes != 0 || kernel->vector_spills != 0)
    return std::to_string(kernel->scratch_bytes) + " bytes of scratch, " +
           std::to_string(kernel->vector_spills) + " registers spilled";
  if (job.needs.empty()) return {};
  const auto text = disassembly_of(path);
  if (text.empty()) return {};  // no disassembler
  for (const auto& word : job.needs)
    if (text.find(word) == std::string::npos) return "has no " + word;
  return {};
}

std::string complaint_about_clang(const hip::Clang& clang, const Job& job,
                                  const std::string& folder) {
  const auto log = clang.compile(job.text, kTarget, {"-Wall", "-Wextra"}, folder);
  if (!log.ok()) return log.status().message();
  if (!log->empty()) return *log;
  return complaint_about(folder + "/kernel.hsaco", job);
}

// The same by the hipRTC of a folder that scripts/hiprtc-prefix made, which QTURN_TEST_HIPRTC
// names.
std::string complaint_about_hiprtc(const std::string& prefix, const Job& job,
                                   const std::string& folder) {
  const auto object = folder + "/hiprtc.hsaco", log = folder + "/hiprtc.log";
  std::ofstream(folder + "/hiprtc.hip") << job.text;
  const auto command = prefix + "/run " + QTURN_HIPRTC_HELPER + " compile '' gfx950 " + folder +
                       "/hiprtc.hip " + object + " >" + log + " 2>&1";
  if (std::system(command.c_str()) != 0) return "hipRTC: " + read_file(log);
  const auto what = complaint_about(object, job);
  return what.empty() ? what : "hipRTC: " + what;
}

std::string complaint_about_compilers(const hip::Clang& clang, const Job& job,
                                      const std::string& folder) {
  std::filesystem::create_directory(folder);
  const auto what = complaint_about_clang(clang, job, folder);
  const char* prefix = std::getenv("QTURN_TEST_HIPRTC");
  if (!what.empty() || !prefix) return what;
  return complaint_about_hiprtc(prefix, job, folder);
}

void compile_jobs(const std::vector<Job>& jobs, std::size_t least) {
  const auto clang = hip::Clang::find("", Worker(), WorkerLimits());
  if (!clang.ok()) {
    std::cout << "SKIPPED: " << clang.status().message() << "\n";
    return;
  }
  char folder[] = "/tmp/qturn-hip-XXXXXX";
  REQUIRE(::mkdtemp(folder));
  const auto work = [&](std::size_t from) {
    std::vector<std::string> complaints;
    for (std::size_t i = from; i < jobs.size(); i += 2) {
      const auto what =
          complaint_about_compilers(*clang, jobs[i], std::string(folder) + "/" + std::to_string(i));
      if (!what.empty()) complaints.push_back(jobs[i].name + ": " + what);
    }
    return complaints;
  };
  auto other = std::async(std::launch::async, work, 1);
  for (const auto& complaint : work(0)) FAIL_CHECK(complaint);
  for (const auto& complaint : other.get()) FAIL_CHECK(complaint);
  CHECK(jobs.size() >= least);
  std::cout << jobs.size() << " kernels compiled"
            << (std::getenv("QTURN_TEST_HIPRTC") ? ", also by hipRTC\n" : "\n");
  std::filesystem::remove_all(folder);
}

class Jobs {
 public:
  void add(const Family& family, const Problem& p, const Variant& v,
           std::vector<std::string> needs = {}) {
    INFO(p.key());
    REQUIRE(family.refuses(p, kTarget) == "");
    REQUIRE(family.illegal(p, kTarget, v) == "");
    const auto source = family.emit(p, kTarget, v);
    CHECK(source.language == Language::hip);
    const auto flat = flatten(source);
    REQUIRE(flat.ok());
    all_.push_back({v.text() + " for " + p.key(), source.entry, *flat, std::move(needs)});
  }
  void add(std::string_view name, const Problem& p) {
    const Family* family = find_family(name);
    REQUIRE(family);
    add(*family, p, family->default_variant(p, kTarget));
  }
  void compile(std::size_t least) const { compile_jobs(all_, least); }

 private:
  std::vector<Job> all_;
};

const Extent kTokens{1, 8192}, kWidth = Extent::exactly(4096);

Problem quantize_of(DType type, std::int32_t g, ScaleRule rule, Rounding rounding, Copies copies) {
  return quantize_problem(kTokens, kWidth, type, g, rule, rounding, copies);
}

}  // namespace

TEST_CASE("the probe of stochastic rounding compiles to the instruction") {
  const auto probe = rounding_probe(kTarget);
  REQUIRE(probe.has_value());
  const auto flat = flatten(probe->source);
  REQUIRE_MESSAGE(flat.ok(), flat.status().message());
  compile_jobs({{probe->name, probe->source.entry, *flat, {probe->name}}}, 1);
}

TEST_CASE("hip quantisers compile without spills") {
  Jobs jobs;
  const auto add = [&](const Problem& p) { jobs.add("hip_quantize", p); };
  add(quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::rne, Copies::rows));
  add(quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::rows));
  add(quantize_of(DType::f32, 256, ScaleRule::quest, Rounding::sr16, Copies::rows));
  add(quantize_of(DType::f16, 128, ScaleRule::ts34, Rounding::rne, Copies::rows));
  add(quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::both));
  add(quantize_of(DType::bf16, 128, ScaleRule::search, Rounding::rne, Copies::columns));
  add(quantize_of(DType::f32, 256, ScaleRule::even, Rounding::sr16, Copies::both));
  auto tiles = quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::both);
  tiles.d_layout = Layout::aiter;
  add(tiles);
  auto weight = quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::rne, Copies::rows);
  weight.d_layout = Layout::aiter_16x16;
  add(weight);
  auto squares = quantize_of(DType::bf16, 0, ScaleRule::floor, Rounding::rne, Copies::both);
  squares.scale_block = ScaleBlock::b32x32;
  add(squares);
  auto normed = quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::rne, Copies::rows);
  normed.prologue = Prologue::rmsnorm;
  add(normed);
  auto gated = quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::rne, Copies::both);
  gated.prologue = Prologue::swiglu_split;
  add(gated);
  auto tokens = quantize_of(DType::bf16, 32, ScaleRule::rceil, Rounding::sr16, Copies::both);
  tokens.grouping = Grouping::k_grouped;
  tokens.groups = {1, 64};
  add(tokens);
  jobs.compile(13);
}

TEST_CASE("hip quantisers by gfx950's own rounding compile to it without spills") {
  Jobs jobs;
  const Family& family = *find_family("hip_quantize_cvt_scalef32");
  const auto add = [&](const Problem& p) {
    jobs.add(family, p, family.default_variant(p, kTarget), {"v_cvt_scalef32_sr_pk_fp4_f32"});
  };
  constexpr auto own = Rounding::sr_cvt_scalef32;
  add(quantize_of(DType::bf16, 32, ScaleRule::rceil, own, Copies::rows));
  add(quantize_of(DType::f32, 256, ScaleRule::ts34, own, Copies::both));
  add(quantize_of(DType::f16, 128, ScaleRule::quest, own, Copies::columns));
  auto tiles = quantize_of(DType::bf16, 32, ScaleRule::rceil, own, Copies::both);
  tiles.d_layout = Layout::aiter;
  add(tiles);
  auto squares = quantize_of(DType::bf16, 0, ScaleRule::floor, own, Copies::both);
  squares.scale_block = ScaleBlock::b32x32;
  add(squares);
  jobs.compile(5);
}

TEST_CASE("hip weight-only products and packs compile without spills") {
  Jobs jobs;
  const Family& family = hip::weight_only();
  const auto add = [&](const Problem& p,
                       std::initializer_list<std::pair<const std::string, int>> values) {
    auto v = family.default_variant(p, kTarget);
    for (const auto& [name, value] : values) v.values[name] = value;
    const std::string type(name_of(p.a_type));
    jobs.add(family, p, v,
             {"global_load_lds_dwordx4", "v_mfma_f32_16x16x32_" + type,
              "v_cvt_scalef32_pk_" + type + "_fp4"});
  };
  auto large = gemm_problem(kTokens, kWidth, kWidth, DType::bf16);
  large.a_type = DType::bf16;
  add(large, {});
  add(large, {{"tile_n", 256}, {"stages", 2}});
  auto few = gemm_problem({1, 16}, kWidth, kWidth, DType::f16);
  few.a_type = DType::f16;
  add(few, {});
  add(few, {{"tile_n", 256}, {"weights", 2}, {"stages", 4}});
  add(few, {{"splits", 4}});
  auto full = gemm_problem({0, 1 << 20}, {1, 1 << 20}, {0, 1 << 20}, DType::f32);
  full.a_type = DType::bf16;
  full.bias = Bias::per_column;
  full.accumulate = Accumulate::accumulate;
  full.scale_rule = ScaleRule::ts34;
  add(full, {});
  auto gated = large;
  gated.epilogue = Epilogue::swiglu_split;
  gated.pre_activation = PreActivation::kept;
  add(gated, {});
  Problem moved;
  moved.op = Op::pack;
  moved.m = kTokens;
  moved.k = kWidth;
  moved.a_type = moved.d_type = DType::mxfp4;
  moved.a_layout = Layout::plain;
  moved.d_layout = Layout::aiter_16x16;
  jobs.add("hip_pack", moved);
  jobs.compile(8);
}

TEST_CASE("hip simple kernels compile without spills") {
  Jobs jobs;
  Problem p;
  p.m = kTokens;
  p.k = kWidth;
  p.op = Op::dequantize;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_type = DType::bf16;
  jobs.add("hip_dequantize", p);
  p.op = Op::hadamard;
  p.a_type = DType::bf16;
  p.a_layout = Layout::chosen;
  p.rotation = 128;
  jobs.add("hip_hadamard", p);
  p.op = Op::column_sums;
  p.rotation = 0;
  p.d_type = DType::f32;
  jobs.add("hip_column_sums", p);
  jobs.compile(3);
}

TEST_CASE("hip products compile without spills, on the matrix cores") {
  Jobs jobs;
  const Family& family = hip::gemm_mfma_scale();
  const std::vector<std::string> needs = {"global_load_lds_dwordx4", "global_load_lds_dword ",
                                          "cbsz:4 blgp:4"};
  const auto add = [&](const Problem& p,
                       std::initializer_list<std::pair<const std::string, int>> values) {
    auto v = family.default_variant(p, kTarget);
    for (const auto& [name, value] : values) v.values[name] = value;
    auto all = needs;
    all.push_back(v.value("shape") == 16 ? "v_mfma_scale_f32_16x16x128_f8f6f4"
                                         : "v_mfma_scale_f32_32x32x64_f8f6f4");
    jobs.add(family, p, v, all);
  };
  const auto large = gemm_problem(kTokens, kWidth, kWidth, DType::bf16);
  add(large, {});
  add(large, {{"shape", 32}});
  add(large, {{"tile_m", 256}, {"tile_n", 256}, {"stages", 4}});
  add(large, {{"tile_m", 256}, {"tile_n", 256}, {"shape", 32}, {"stages", 2}});
  add(large, {{"tile_m", 64}, {"tile_n", 256}, {"raster", 1}});
  add(large, {{"scales", 1}});
  add(large, {{"tile_m", 256}, {"tile_n", 256}, {"shape", 32}, {"scales", 1}});
  add(large, {{"scales", 4}});
  add(large, {{"tile_m", 64}, {"shape", 32}, {"scales", 5}});
  auto full = gemm_problem({0, 1 << 20}, {1, 1 << 20}, {0, 1 << 20}, DType::f32);
  full.bias = Bias::per_column;
  full.accumulate = Accumulate::accumulate;
  full.rotation = 32;
  full.scale_rule = ScaleRule::ts34;
  add(full, {});
  add(full, {{"tile_m", 256}, {"tile_n", 256}, {"shape", 32}});
  add(gemm_problem({1, 16}, kWidth, kWidth, DType::f16), {});
  add(gemm_problem({1, 32}, kWidth, kWidth, DType::f16), {{"tile_n", 256}, {"shape", 32}});
  // Blocks that share a tile's K, of the most and of the fewest sums.
  auto shared = full;
  shared.m = shared.n = {1, 1024};
  add(shared, {{"tile_m", 256}, {"tile_n", 128}, {"shape", 32}, {"splits", 4}});
  shared.bias = Bias::none;
  shared.accumulate = Accumulate::overwrite;
  add(shared, {{"tile_m", 256}, {"tile_n", 256}, {"shape", 32}, {"splits", 4}});
  add(gemm_problem({1, 16}, kWidth, Extent::exactly(14336), DType::f16), {{"splits", 3}});
  auto gated = large;
  gated.epilogue = Epilogue::swiglu_split;
  gated.pre_activation = PreActivation::kept;
  gated.bias = Bias::per_column;
  add(gated, {});
  auto backward = large;
  backward.epilogue = Epilogue::dswiglu;
  backward.accumulate = Accumulate::accumulate;
  add(backward, {});
  auto gelu = large;
  gelu.epilogue = Epilogue::gelu;
  gelu.contract = Contract::fast;
  add(gelu, {});
  backward.accumulate = Accumulate::overwrite;
  add(backward, {{"tile_m", 256}, {"tile_n", 128}, {"shape", 32}});
  auto exact = gelu;
  exact.contract = Contract::exact;
  exact.pre_activation = PreActivation::kept;
  add(exact, {{"tile_m", 128}, {"tile_n", 256}});
  auto experts = large;
  experts.grouping = Grouping::m_contiguous;
  experts.groups = {1, 64};
  add(experts, {});
  // Results quantised where they are computed.
  auto quantised = large;
  quantised.op = Op::gemm_quantize;
  quantised.d_type = DType::mxfp4;
  quantised.d_layout = Layout::aiter;
  quantised.rotation = 32;
  quantised.signs = Signs::per_call;
  add(quantised, {});
  quantised.d_rounding = Rounding::sr16;
  quantised.rotation = 128;
  quantised.epilogue = Epilogue::dswiglu;
  quantised.accumulate = Accumulate::accumulate;
  add(quantised, {});
  quantised.d_layout = Layout::plain;
  quantised.rotation = 256;
  quantised.epilogue = Epilogue::none;
  quantised.scale_rule = ScaleRule::quest;
  quantised.biased = BiasedRounding::allowed;
  add(quantised, {{"tile_m", 128}, {"tile_n", 256}, {"shape", 32}});
  auto narrow = quantised;
  narrow.rotation = 32;
  narrow.epilogue = Epilogue::swiglu_split;
  narrow.accumulate = Accumulate::overwrite;
  narrow.pre_activation = PreActivation::kept;
  narrow.copies = Copies::both;
  add(narrow, {{"tile_m", 128}, {"tile_n", 256}});
  jobs.compile(23);
}

TEST_CASE("every hip family is compiled by one of these tests") {
  CHECK(hip::families().size() == 8);
}

TEST_CASE("hip plans solve products of quantised and of high-precision operands on gfx950 alone") {
  auto p = gemm_problem(kTokens, kWidth, kWidth, DType::bf16);
  CHECK(default_plan(p, kTarget).ok());
  p.op = Op::hadamard_gemm;
  p.a_type = p.b_type = DType::bf16;
  p.rotation = 32;
  const auto plan = default_plan(p, kTarget);
  REQUIRE(plan.ok());
  CHECK(plan->steps.size() == 3);
  CHECK(check_plan(p, kTarget, *plan).ok());
  std::size_t tiled = 0, shuffled = 0;
  for (const auto& other : plans(p, kTarget, 400)) {
    const auto status = check_plan(p, kTarget, other);
    CHECK_MESSAGE(status.ok(), other.text(), ": ", status.message());
    const auto quantize = step_problem(p, kTarget, other, StepKind::quantize_a);
    tiled += quantize.d_layout == Layout::aiter;
    CHECK(!other.find(StepKind::pack_b));
    shuffled +=
        step_problem(p, kTarget, other, StepKind::quantize_b).d_layout == Layout::aiter_16x16;
  }
  CHECK(tiled > 50);
  CHECK(shuffled > 50);
  auto given = gemm_problem(kTokens, kWidth, kWidth, DType::bf16);
  given.b_layout = Layout::aiter;
  for (const auto& other : plans(given, kTarget, 400))
    CHECK(check_plan(given, kTarget, other).ok());
  // A weight that is laid out already is read as it is.
  for (const auto type : {DType::mxfp4, DType::bf16}) {
    given.a_type = type;
    given.m = {1, 64};
    for (const Layout layout : {Layout::plain, Layout::aiter, Layout::aiter_16x16}) {
      given.b_layout = layout;
      const auto direct = default_plan(given, kTarget);
      REQUIRE(direct.ok());
      CHECK_MESSAGE(direct->steps.size() == 1, direct->text());
    }
  }
  given = gemm_problem(kTokens, kWidth, kWidth, DType::bf16);
  given.b_layout = Layout::e5m2;
  CHECK(default_plan(given, kTarget).status().code() == Code::not_supported);
  const auto older = default_plan(p, *parse_target("gfx942"));
  CHECK(older.status().code() == Code::not_supported);
  CHECK(older.status().message().find("QTURN_BACKEND=cpu") != std::string::npos);
}

TEST_CASE("what is no code object is refused, cut anywhere") {
  for (const std::string text : {"",
                                 "\x7f"
                                 "ELF",
                                 "not an ELF file at all, but longer than its header would be: "
                                 "................................................."})
    CHECK(hip::read_code_object(text).status().code() == Code::rejected);
}
