// Problems print, parse and compare by one list of fields, and say what is wrong with them.
#include "generator/problem.hpp"

#include <doctest/doctest.h>

#include <functional>

using namespace quarterturn;

namespace {

Problem fprop() {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::fprop;
  p.m = {1, 512};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(14336);
  p.a_type = DType::bf16;
  p.b_type = DType::mxfp4;
  p.d_type = DType::bf16;
  p.rotation = 32;
  return p;
}

Status with(const std::function<void(Problem&)>& change) {
  Problem p = fprop();
  change(p);
  return validate(p);
}

}  // namespace

TEST_CASE("problem.key is canonical and leaves defaults out") {
  CHECK(fprop().key() ==
        "op=hadamard_gemm role=fprop m=1..512 n=4096 k=14336 a_type=bf16 b_type=mxfp4 d_type=bf16 "
        "rotation=32");
  CHECK(Problem{}.key().empty());
}

TEST_CASE("problem.key round-trips with every field away from its default") {
  Problem p = fprop();
  p.batch = Extent::exactly(3);
  p.grouping = Grouping::k_grouped;
  p.groups = Extent::exactly(8);
  p.a_major = p.b_major = Major::rows;
  p.a_layout = Layout::plain;
  p.b_layout = Layout::panel16;
  p.d_layout = Layout::scales_128x4;
  p.copies = Copies::both;
  p.signs = Signs::per_call;
  p.scale_rule = ScaleRule::quest_qutlass;
  p.scale_block = ScaleBlock::b32x32;
  p.a_rounding = Rounding::sr16;
  p.b_rounding = Rounding::half_to_zero;
  p.biased = BiasedRounding::allowed;
  p.epilogue = Epilogue::swiglu_interleaved;
  p.c_type = DType::f16;
  p.d_rounding = Rounding::sr16;
  p.pre_activation = PreActivation::kept;
  p.bias_gradient = BiasGradient::f32;
  p.prologue = Prologue::rmsnorm;
  p.bias = Bias::per_column;
  p.accumulate = Accumulate::accumulate;
  p.contract = Contract::fast;
  p.spread = Spread::narrow;
  p.repro = Reproducibility::batch_invariant;
  const auto back = parse_problem(p.key());
  REQUIRE(back.ok());
  CHECK(*back == p);
  CHECK(back->key() == p.key());
}

TEST_CASE("problem.parse refuses what it does not know") {
  CHECK(parse_problem("op=gemm flavour=sweet").status().message().find("flavour") !=
        std::string::npos);
  CHECK(parse_problem("op=gemn").status().code() == Code::invalid_problem);
  CHECK(parse_problem("m=1..").status().code() == Code::invalid_problem);
  CHECK(parse_problem("m=12x").status().code() == Code::invalid_problem);
  CHECK(parse_problem("rotation=99999999999").status().code() == Code::invalid_problem);
  CHECK(parse_problem("gemm").status().code() == Code::invalid_problem);
}

TEST_CASE("problem.a reader of many keys reads each as if it were alone") {
  const auto base = fprop().key();
  auto other = fprop();
  other.n = Extent::exactly(64);
  auto turned = other;
  turned.role = Role::wgrad;
  turned.signs = Signs::fixed;
  const std::string keys[] = {base,
                              other.key(),
                              base + " m=9",
                              other.key() + " m=9",
                              base,
                              turned.key(),
                              "",
                              "op=gemn",
                              other.key(),
                              base.substr(0, base.rfind(' ')),
                              base + " signs=fixed",
                              "n=64 m=7 n=96",
                              "n=65 m=7 n=96",
                              "n=64  m=7",
                              other.key() + " flavour=sweet",
                              base};
  ProblemReader reader;
  for (const auto& key : keys) {
    CAPTURE(key);
    const auto wanted = parse_problem(key), got = reader.read(key);
    REQUIRE(wanted.ok() == got.ok());
    if (wanted.ok())
      CHECK(*got == *wanted);
    else
      CHECK(got.status().message() == wanted.status().message());
  }
}

TEST_CASE("problem.parse_enum covers every spelling once") {
  for (std::size_t i = 0; i < EnumNames<ScaleRule>::names.size(); ++i) {
    const auto rule = static_cast<ScaleRule>(i);
    CHECK(parse_enum<ScaleRule>(name_of(rule)) == rule);
  }
  CHECK_FALSE(parse_enum<Op>("").has_value());
  CHECK(allowed_names<Signs>() == "none, fixed, per_call");
}

TEST_CASE("validate accepts the ordinary and names what is wrong") {
  CHECK(validate(fprop()).ok());
  const auto message = [](const Status& s) { return s.message(); };
  CHECK(message(with([](Problem& p) {
          p.k = Extent::exactly(48);
        })).find("k = 48 is not a multiple of 32") == 0);
  CHECK(message(with([](Problem& p) {
          p.rotation = 64;
          p.k = Extent::exactly(96);
        })).find("multiple of 64") != std::string::npos);
  CHECK_FALSE(with([](Problem& p) { p.rotation = 48; }).ok());
  CHECK_FALSE(with([](Problem& p) { p.m = {-1, 5}; }).ok());
  CHECK_FALSE(with([](Problem& p) { p.m = {5, 1}; }).ok());
  CHECK_FALSE(with([](Problem& p) { p.n = Extent::exactly(0); }).ok());
  CHECK_FALSE(with([](Problem& p) { p.k = Extent::exactly(0); }).ok());
  CHECK_FALSE(with([](Problem& p) { p.a_type = DType::none; }).ok());
  CHECK_FALSE(with([](Problem& p) { p.d_type = DType::mxfp4; }).ok());
  CHECK(with([](Problem& p) { p.m = Extent::exactly(0); }).ok());
}

TEST_CASE("validate refuses biased stochastic rounding unless it is allowed") {
  const auto floor_sr = [](Problem& p) {
    p.scale_rule = ScaleRule::floor;
    p.a_rounding = Rounding::sr16;
  };
  CHECK(with(floor_sr).message().find("biased") != std::string::npos);
  CHECK(with([&](Problem& p) {
          floor_sr(p);
          p.biased = BiasedRounding::allowed;
        }).ok());
  for (const auto rule : {ScaleRule::rceil, ScaleRule::ceil, ScaleRule::ts34})
    CHECK(with([&](Problem& p) {
            p.scale_rule = rule;
            p.a_rounding = Rounding::sr16;
          }).ok());
}

TEST_CASE("validate ties signs to a rotation and 32x32 scales to none") {
  CHECK_FALSE(with([](Problem& p) {
                p.rotation = 0;
                p.signs = Signs::fixed;
              }).ok());
  CHECK_FALSE(with([](Problem& p) { p.scale_block = ScaleBlock::b32x32; }).ok());
  CHECK(with([](Problem& p) {
          p.rotation = 0;
          p.scale_block = ScaleBlock::b32x32;
        }).ok());
  CHECK_FALSE(with([](Problem& p) {
                p.rotation = 0;
                p.scale_block = ScaleBlock::b32x32;
                p.scale_rule = ScaleRule::search;
              }).ok());
}

TEST_CASE("validate says which rotations fit a width, or the width that would") {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.a_type = p.b_type = DType::bf16;
  p.d_type = DType::bf16;
  p.n = Extent::exactly(64);
  struct Width {
    std::int64_t k;
    int largest;  // rotation, in powers of two
    const char* said;
  };
  for (const auto& [k, largest, said] :
       {Width{13696, 128, "Rotations 0, 16, 32, 64, 128 fit it"}, Width{4864, 256, ""},
        Width{18176, 256, ""}, Width{2880, 64, "Rotations 0, 16, 32, 64 fit it"},
        Width{192, 64, "Rotations 0, 16, 32, 64 fit it"}, Width{33, 0, "Pad k to 64"},
        Width{16, 0, "Pad k to 32"}, Width{48, 0, "Pad k to 64"}})
    for (const std::int32_t rotation : {16, 32, 64, 128, 256}) {
      p.k = Extent::exactly(k);
      p.rotation = rotation;
      const auto status = validate(p);
      CHECK_MESSAGE(status.ok() == (rotation <= largest), k << " by " << rotation);
      if (!status.ok())
        CHECK_MESSAGE(status.message().find(said) != std::string::npos, status.message());
    }
}

TEST_CASE("tokens on the contraction axis need no multiple") {
  CHECK(with([](Problem& p) {
          p.role = Role::wgrad;
          p.m = Extent::exactly(4096);
          p.k = {0, 8191};
          p.b_type = DType::bf16;
        }).ok());
  Problem p = fprop();
  p.rotation = 16;
  CHECK(padding_unit(p) == 32);
  p.rotation = 256;
  CHECK(padding_unit(p) == 256);
}

TEST_CASE("problem.validate says what epilogues, prologues and sums go with") {
  const auto code = [](const std::function<void(Problem&)>& change) { return with(change).code(); };
  CHECK(with([](Problem& p) { p.epilogue = Epilogue::swiglu_split; }).ok());
  CHECK(code([](Problem& p) {
          p.epilogue = Epilogue::swiglu_split;
          p.n = Extent::exactly(4097);
        }) == Code::invalid_problem);
  CHECK(with([](Problem& p) {
          p.epilogue = Epilogue::gelu;
          p.pre_activation = PreActivation::kept;
        }).ok());
  CHECK(code([](Problem& p) {
          p.epilogue = Epilogue::dgelu;
          p.pre_activation = PreActivation::kept;
        }) == Code::invalid_problem);
  CHECK(code([](Problem& p) { p.prologue = Prologue::rmsnorm; }) == Code::invalid_problem);
  CHECK(code([](Problem& p) { p.bias_gradient = BiasGradient::f32; }) == Code::invalid_problem);
  CHECK(with([](Problem& p) {
          p.role = Role::wgrad;
          p.b_type = DType::bf16;
          p.a_major = p.b_major = Major::rows;
          p.bias_gradient = BiasGradient::f32;
        }).ok());
  CHECK(code([](Problem& p) { p.d_rounding = Rounding::sr16; }) == Code::invalid_problem);
  CHECK(with([](Problem& p) {
          p.op = Op::gemm_quantize;
          p.d_type = DType::mxfp4;
          p.d_rounding = Rounding::sr16;
        }).ok());
  // D's columns become the next product's features.
  CHECK(code([](Problem& p) {
          p.op = Op::gemm_quantize;
          p.d_type = DType::mxfp4;
          p.epilogue = Epilogue::swiglu_split;
          p.n = Extent::exactly(4128);
        }) == Code::invalid_problem);
  CHECK(output_columns(Epilogue::swiglu_split, 10) == 5);
  CHECK(output_columns(Epilogue::dswiglu_interleaved, 10) == 20);
  CHECK(aux_columns(Epilogue::gelu, 10) == 0);
  CHECK(aux_columns(Epilogue::dgelu, 10) == 10);
}
