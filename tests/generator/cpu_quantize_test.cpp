// The families cpu_quantize, cpu_pack, cpu_dequantize and cpu_hadamard: what they refuse and why,
// their parts, their text.
#include <doctest/doctest.h>

#include <set>

#include "generator/cpu/families.hpp"
#include "tests/generator/golden.hpp"

using namespace quarterturn;

namespace {

Target v4() { return *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni"); }

Problem activations() {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::fprop;
  p.a_type = DType::bf16;
  p.d_type = DType::mxfp4;
  p.rotation = 32;
  p.m = {1, 8192};
  p.k = Extent::exactly(4096);
  return p;
}

Problem gradients() {
  Problem p = activations();
  p.role = Role::none;
  p.copies = Copies::both;
  p.rotation = 128;
  p.signs = Signs::per_call;
  p.a_rounding = Rounding::sr16;
  p.m = {0, 8192};
  return p;
}

Problem packing() {
  Problem p = activations();
  p.op = Op::pack;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_layout = Layout::panel16;
  return p;
}

Problem dequantizing() {
  Problem p = activations();
  p.op = Op::dequantize;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_type = DType::f32;
  return p;
}

Problem rotating() {
  Problem p = activations();
  p.op = Op::hadamard;
  p.d_type = DType::bf16;
  return p;
}

struct Member {
  const Family& family;
  Problem problem;
};

std::vector<Member> members() {
  return {{cpu::quantize(), activations()},
          {cpu::quantize(), gradients()},
          {cpu::pack(), packing()},
          {cpu::dequantize(), dequantizing()},
          {cpu::hadamard(), rotating()}};
}

template <class Change>
std::string refusal(const Family& family, Problem p, Change change) {
  change(p);
  return family.refuses(p, v4());
}

}  // namespace

TEST_CASE("cpu_quantize.refuses what it cannot compute, with the reason") {
  const auto& f = cpu::quantize();
  CHECK(refusal(f, activations(), [](Problem&) {}).empty());
  CHECK(refusal(f, activations(), [](Problem& p) { p.d_layout = Layout::int8_blocks; }).empty());
  CHECK(refusal(f, gradients(), [](Problem& p) { p.d_layout = Layout::panel16; }).empty());
  CHECK(refusal(f, activations(), [](Problem& p) { p.op = Op::gemm; }) ==
        "quantises: op = quantize");
  CHECK(refusal(f, activations(), [](Problem& p) { p.a_type = DType::mxfp4; }) ==
        "reads bf16, f16 or f32");
  CHECK(refusal(f, activations(), [](Problem& p) { p.d_layout = Layout::e5m2; }) ==
        "d_layout = e5m2: writes plain, int8_blocks or panel16");
  CHECK(refusal(f, activations(), [](Problem& p) { p.a_major = Major::rows; }) ==
        "reads X row-major: state copies = columns for X^T");
  CHECK(refusal(f, activations(), [](Problem& p) { p.grouping = Grouping::m_masked; }).empty());
  CHECK(f.refuses(activations(), *parse_target("sm_90a")) == "runs on CPUs");
}

TEST_CASE("cpu_pack, cpu_dequantize and cpu_hadamard.refuse what they cannot compute") {
  CHECK(refusal(cpu::pack(), packing(), [](Problem&) {}).empty());
  CHECK(refusal(cpu::pack(), packing(), [](Problem& p) { p.a_layout = Layout::int8_blocks; }) ==
        "a_layout = int8_blocks: reads plain or panel16");
  CHECK(refusal(cpu::pack(), packing(), [](Problem& p) { p.d_layout = Layout::aiter; }) ==
        "d_layout = aiter: writes plain, int8_blocks or panel16");
  CHECK(refusal(cpu::dequantize(), dequantizing(), [](Problem&) {}).empty());
  CHECK(refusal(cpu::dequantize(), dequantizing(), [](Problem& p) {
          p.a_layout = Layout::chosen;
        }) == "a_layout = chosen: reads plain or panel16");
  CHECK(refusal(cpu::hadamard(), rotating(), [](Problem&) {}).empty());
  CHECK(refusal(cpu::hadamard(), rotating(), [](Problem& p) { p.rotation = 0; }) ==
        "needs a rotation");
  CHECK(refusal(cpu::hadamard(), rotating(), [](Problem& p) {
          p.k = {0, 64};
        }) == "needs a static k that is a multiple of 32");
  CHECK(refusal(cpu::hadamard(), rotating(), [](Problem& p) { p.copies = Copies::columns; }) ==
        "rotates along k: copies = rows, a_major = k");
}

TEST_CASE("cpu_quantize and its kin.variants are legal, distinct, and print back") {
  for (const auto& [family, problem] : members())
    for (const char* target : {"x86-64-v4:avx512_vnni", "x86-64-v3", "x86-64", "aarch64"}) {
      const auto t = *parse_target(target);
      CHECK_MESSAGE(validate(problem).ok(), validate(problem).message());
      CHECK(find_family(family.name()) == &family);
      const auto all = family.variants(problem, t);
      REQUIRE(!all.empty());
      CHECK(all.front() == family.default_variant(problem, t));
      std::set<std::string> texts;
      for (const auto& variant : all) {
        CHECK(family.check(problem, t, variant).ok());
        CHECK(*parse_variant(variant.text()) == variant);
        CHECK(family.predicted_cost(problem, t, variant, 0) >=
              family.predicted_cost(problem, t, all.front(), 0));
        CHECK(flatten(family.emit(problem, t, variant)).ok());
        texts.insert(variant.text());
      }
      CHECK(texts.size() == all.size());
    }
}

TEST_CASE("cpu_quantize.parts cover batch, padding and panels") {
  const auto parts = [](Problem p, std::int64_t m, std::int64_t k, std::int64_t batch) {
    qt_args args{};
    args.m = m;
    args.k = k;
    args.batch = batch;
    const auto variant = cpu::quantize().default_variant(p, v4());
    return cpu::quantize().launch(p, variant, args, 2).parts;
  };
  CHECK(parts(activations(), 0, 4096, 1) == 0);
  CHECK(parts(activations(), 1, 4096, 1) == 1);
  CHECK(parts(activations(), 33, 14336, 3) == 3 * 2 * 4);
  CHECK(parts(gradients(), 0, 4096, 1) == 0);
  CHECK(parts(gradients(), 1, 4096, 1) == 2);
  CHECK(parts(gradients(), 257, 256, 1) == 2);
  // Tokens on k: padded, and nothing at all without them.
  Problem tokens = activations();
  tokens.role = Role::wgrad;
  tokens.k = {0, 8192};
  CHECK(parts(tokens, 64, 0, 1) == 0);
  CHECK(parts(tokens, 64, 4097, 1) == 2 * 2);
}

TEST_CASE("cpu_quantize.emits short source, dimensions and modes as constants") {
  const auto emitted = [](const Problem& p) {
    return cpu::quantize().emit(p, v4(), cpu::quantize().default_variant(p, v4())).text;
  };
  golden::check("cpu_quantize_rows.cpp", emitted(activations()));
  golden::check("cpu_quantize_both.cpp", emitted(gradients()));
}
