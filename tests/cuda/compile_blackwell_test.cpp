// Families of Blackwell's tensor cores, compiled by NVRTC without a GPU for chips and families of
// chips: no spills, and the instructions that they are for are in the code.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "compile_jobs.hpp"
#include "generator/grouping.hpp"
#include "generator/probe.hpp"

using namespace quarterturn;

namespace {

Problem product(DType d_type) {
  auto p = gemm_problem(Contract::exact, Spread::any, d_type, Extent::exactly(4096));
  p.bias = Bias::per_column;
  p.accumulate = Accumulate::accumulate;
  return p;
}

std::vector<Problem> grouped_products() {
  std::vector<Problem> out;
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked, Grouping::k_grouped}) {
    auto p = gemm_problem(Contract::exact, Spread::any, DType::bf16, Extent::exactly(4096));
    p.grouping = grouping;
    p.groups = {1, 64};
    if (grouping == Grouping::k_grouped) std::swap(p.m, p.k);
    out.push_back(p);
  }
  return out;
}

// Products that quantise their D: plainly, and the forms that take most registers.
std::vector<Problem> quantizing_products() {
  auto p = product(DType::mxfp4);
  p.op = Op::gemm_quantize;
  p.d_layout = Layout::scales_128x4;
  p.signs = Signs::per_call;
  p.d_rounding = Rounding::sr16;
  p.copies = Copies::both;
  std::vector<Problem> out{p};
  p.copies = Copies::rows;
  p.rotation = 128;
  p.epilogue = Epilogue::dswiglu;
  out.push_back(p);
  p.rotation = 64;
  p.epilogue = Epilogue::swiglu_interleaved;
  p.pre_activation = PreActivation::kept;
  p.d_layout = Layout::plain;
  out.push_back(p);
  p.epilogue = Epilogue::none;
  p.pre_activation = PreActivation::dropped;
  p.rotation = 256;
  p.scale_rule = ScaleRule::search;
  p.biased = BiasedRounding::allowed;
  out.push_back(p);
  return out;
}

std::vector<Job> jobs_of(const Family& family, std::initializer_list<const char*> targets) {
  std::vector<Job> jobs;
  const auto first = *parse_target(*targets.begin());
  for (const auto& v : corners(family, product(DType::bf16), first))
    jobs.push_back(job_of(family, product(DType::bf16), first, v, first.arch));
  auto problems = epilogue_problems(Contract::exact, Spread::any, DType::bf16);
  // The forms of each kind that take most registers.
  std::erase_if(problems, [](const Problem& p) { return is_light(p.epilogue); });
  for (const auto& p : grouped_products()) problems.push_back(p);
  for (const auto& p : quantizing_products())
    if (family.refuses(p, first).empty()) problems.push_back(p);
  problems.push_back(product(DType::f32));
  for (const auto& p : problems) {
    if (!family.refuses(p, first).empty()) continue;
    const auto variants = family.variants(p, first);
    REQUIRE(!variants.empty());
    jobs.push_back(job_of(family, p, first, variants.front(), first.arch));
  }
  // Blocks that share a tile's K.
  auto shared = product(DType::f32);
  shared.m = shared.n = {1, 512};
  shared.k = Extent::exactly(16384);
  auto v = family.default_variant(shared, first);
  v.values.at("splits") = 8;
  v.values["tile_n"] = 256;
  if (v.values.contains("warps")) v.values["warps"] = 8;
  if (v.values.contains("sums")) v.values["sums"] = 1, v.values["stages"] = 3;
  REQUIRE(family.check(shared, first, v).message() == "");
  jobs.push_back(job_of(family, shared, first, v, first.arch));
  for (const auto* name : targets) {
    const auto target = *parse_target(name);
    const auto p = product(DType::f16);
    jobs.push_back(job_of(family, p, target, family.default_variant(p, target), target.arch));
  }
  return jobs;
}

// What cuobjdump makes of a kernel; empty where there is no cuobjdump.
std::string disassembly(const Job& job) {
  const auto cubin = cuda::nvrtc_compile(job.text, job.arch, job.flags);
  REQUIRE(cubin.ok());
  const std::string path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") +
                           "/quarterturn_" + job.arch + ".cubin";
  std::ofstream(path, std::ios::binary) << cubin->code;
  const std::string command =
      "PATH=$PATH:/usr/local/cuda/bin cuobjdump -sass " + path + " 2>/dev/null";
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const auto n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    out.append(buffer.data(), n);
  pclose(pipe);
  std::remove(path.c_str());
  return out;
}

// The PTX between a kernel's text and its cubin, by NVRTC itself.
std::string ptx_of(const Job& job) {
  const auto identity = cuda::nvrtc_identity();
  REQUIRE(identity.ok());
  void* const library = dlopen(identity->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  const auto function = [&](const char* name) {
    void* const at = dlsym(library, name);
    REQUIRE(at);
    return at;
  };
  void* program = nullptr;
  REQUIRE(reinterpret_cast<int (*)(void**, const char*, const char*, int, const char* const*,
                                   const char* const*)>(function("nvrtcCreateProgram"))(
              &program, job.text.c_str(), "kernel.cu", 0, nullptr, nullptr) == 0);
  const std::string arch = "--gpu-architecture=compute_" + job.arch.substr(3);
  const char* options[] = {arch.c_str(), "--std=c++20"};
  CHECK(reinterpret_cast<int (*)(void*, int, const char* const*)>(function("nvrtcCompileProgram"))(
            program, 2, options) == 0);
  std::size_t size = 0;
  CHECK(reinterpret_cast<int (*)(void*, std::size_t*)>(function("nvrtcGetPTXSize"))(program,
                                                                                    &size) == 0);
  std::string out(size, '\0');
  CHECK(reinterpret_cast<int (*)(void*, char*)>(function("nvrtcGetPTX"))(program, out.data()) == 0);
  reinterpret_cast<int (*)(void**)>(function("nvrtcDestroyProgram"))(&program);
  dlclose(library);
  return out;
}

void check_instructions(const Family& family, const char* name,
                        std::initializer_list<const char*> instructions) {
  const auto target = *parse_target(name);
  const auto p = product(DType::bf16);
  const auto text =
      disassembly(job_of(family, p, target, family.default_variant(p, target), target.arch));
  if (text.empty()) {
    std::cout << "SKIPPED: cuobjdump is not installed\n";
    return;
  }
  for (const auto* instruction : instructions) {
    INFO(instruction);
    CHECK(text.find(instruction) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("mxf4 products of sm_120 compile without spills") {
  if (no_compiler()) return;
  compile_jobs(jobs_of(cuda::gemm_sm120(), {"sm_120f", "sm_120a", "sm_121a"}), 14);
}
TEST_CASE("quantisers by cvt.rs compile to it for the chips that have it, without spills") {
  if (no_compiler()) return;
  std::vector<Job> jobs;
  const Family& family = cuda::quantize_cvt_rs();
  for (const auto* name : {"sm_100a", "sm_103a"}) {
    const auto target = *parse_target(name);
    const auto add = [&](const Problem& p) {
      INFO(p.key());
      REQUIRE(family.refuses(p, target) == "");
      jobs.push_back(job_of(family, p, target, family.default_variant(p, target), name));
    };
    Problem p;
    p.op = Op::quantize;
    p.m = {1, 8192};
    p.k = Extent::exactly(4096);
    p.a_type = DType::bf16;
    p.d_type = DType::mxfp4;
    p.a_rounding = Rounding::sr_cvt_rs;
    p.rotation = 32;
    p.signs = Signs::per_call;
    for (const auto copies : {Copies::rows, Copies::columns, Copies::both}) {
      p.copies = copies;
      p.d_layout = copies == Copies::both ? Layout::plain : Layout::scales_128x4;
      add(p);
    }
    p.copies = Copies::rows;
    p.k = {1, 1 << 20};
    p.rotation = 256;
    p.scale_rule = ScaleRule::ts34;
    p.a_type = DType::f32;
    add(p);
    p.rotation = 0;
    p.signs = Signs::none;
    p.scale_rule = ScaleRule::rceil;
    p.scale_block = ScaleBlock::b32x32;
    p.copies = Copies::both;
    add(p);
  }
  compile_jobs(jobs, 10);
  // PTX names the instruction; what it becomes is the assembler's own affair.
  for (const auto& job : jobs) {
    INFO(job.name);
    CHECK(ptx_of(job).find("cvt.rs.satfinite.e2m1x4.f32") != std::string::npos);
  }
}
TEST_CASE("portable families compile for Blackwell without spills") {
  if (no_compiler()) return;
  std::vector<Job> jobs;
  for (const auto* name : {"sm_120f", "sm_100f"}) {
    const auto target = *parse_target(name);
    const auto add = [&](const Family& family, const Problem& p) {
      INFO(p.key());
      REQUIRE(family.refuses(p, target) == "");
      jobs.push_back(job_of(family, p, target, family.default_variant(p, target), name));
    };
    add(cuda::gemm_mma(), product(DType::bf16));
    for (const auto copies : {Copies::rows, Copies::columns, Copies::both}) {
      Problem p;
      p.op = Op::quantize;
      p.m = {1, 8192};
      p.k = Extent::exactly(4096);
      p.a_type = DType::bf16;
      p.d_type = DType::mxfp4;
      p.d_layout = Layout::scales_128x4;
      p.rotation = 32;
      p.signs = Signs::fixed;
      p.copies = copies;
      p.a_rounding = copies == Copies::rows ? Rounding::rne : Rounding::sr16;
      add(cuda::quantize(), p);
    }
    Problem pack;
    pack.op = Op::pack;
    pack.m = Extent::exactly(4096);
    pack.k = Extent::exactly(4096);
    pack.a_type = pack.d_type = DType::mxfp4;
    pack.a_layout = Layout::plain;
    pack.d_layout = Layout::scales_128x4;
    add(cuda::pack(), pack);
  }
  compile_jobs(jobs, 10);
}
TEST_CASE("mxf4 products of sm_100 compile without spills") {
  if (no_compiler()) return;
  compile_jobs(jobs_of(cuda::gemm_sm100(), {"sm_100f", "sm_100a", "sm_103a"}), 14);
}
TEST_CASE("the probe of stochastic rounding compiles where the instruction is") {
  if (no_compiler()) return;
  std::vector<Job> jobs;
  for (const auto* name : {"sm_100a", "sm_103a"}) {
    const auto probe = rounding_probe(*parse_target(name));
    REQUIRE(probe.has_value());
    const auto flat = flatten(probe->source);
    REQUIRE_MESSAGE(flat.ok(), flat.status().message());
    jobs.push_back({probe->name, name, *flat, probe->source.flags});
  }
  compile_jobs(jobs, 2);
  CHECK(!rounding_probe(*parse_target("sm_120f")).has_value());
}
TEST_CASE("mxf4 products of sm_100 use its tensor cores") {
  if (no_compiler()) return;
  check_instructions(cuda::gemm_sm100(), "sm_100f",
                     {"UTCOMMA", "UTCCP", "LDTM", "UTMALDG", "UTCBAR"});
}
TEST_CASE("mxf4 products of sm_120 use its tensor cores") {
  if (no_compiler()) return;
  check_instructions(cuda::gemm_sm120(), "sm_120f", {"OMMA.SF", "LDGSTS", "LDSM"});
}
