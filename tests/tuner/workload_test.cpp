// From models and shapes to Problems: the sizes are checked against numbers worked out by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tuner/workload.hpp"

using namespace quarterturn;

namespace {

std::map<std::string, Linear> by_name(const Layers& layers) {
  std::map<std::string, Linear> out;
  for (const auto& linear : layers.linears) out[linear.name] = linear;
  return out;
}

Recipe recipe(std::vector<Role> roles, std::vector<Extent> tokens) {
  Recipe r;
  r.roles = std::move(roles);
  r.tokens = std::move(tokens);
  return r;
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("layers of Llama-3.1-8B") {
  auto layers = by_name(linear_layers(*find_model("Llama-3.1-8B"), 1));
  CHECK(layers.at("qkv") == Linear{"qkv", 6144, 4096, 32});
  CHECK(layers.at("o") == Linear{"o", 4096, 4096, 32});
  CHECK(layers.at("gate_up") == Linear{"gate_up", 28672, 4096, 32});
  CHECK(layers.at("down") == Linear{"down", 4096, 14336, 32});
  CHECK(layers.size() == 4);
}

TEST_CASE("tensor parallel ranks split columns and rows, and keep at least one key-value head") {
  auto layers = by_name(linear_layers(*find_model("Llama-3.1-8B"), 16));
  CHECK(layers.at("qkv") == Linear{"qkv", 128 * (2 + 2), 4096, 32});
  CHECK(layers.at("o") == Linear{"o", 4096, 256, 32});
  CHECK(layers.at("gate_up") == Linear{"gate_up", 1792, 4096, 32});
  CHECK(layers.at("down") == Linear{"down", 4096, 896, 32});
  const auto odd = linear_layers(*find_model("Llama-3.1-8B"), 3);
  CHECK(odd.linears.empty());
  REQUIRE(odd.refused.size() == 4);
  CHECK(says(odd.refused[2].reason, "intermediate size 14336 cannot be split over 3 ranks"));
}

TEST_CASE("experts are products of their own, counted") {
  auto layers = by_name(linear_layers(*find_model("gpt-oss-20b"), 1));
  CHECK(layers.at("expert_gate_up") == Linear{"expert_gate_up", 5760, 2880, 24 * 32});
  CHECK(layers.at("expert_down") == Linear{"expert_down", 2880, 2880, 24 * 32});
  CHECK(layers.count("gate_up") == 0);
}

TEST_CASE("each role has its axes, its majors and its run-time dimension") {
  const Linear down{"down", 4096, 14336, 32};
  const Extent tokens{1, 16};
  const auto r = recipe({}, {});
  const auto fprop = linear_problem(down, Role::fprop, tokens, r);
  CHECK(fprop.key() ==
        "op=hadamard_gemm role=fprop m=1..16 n=4096 k=14336 a_type=bf16 b_type=mxfp4 d_type=bf16 "
        "rotation=32");
  const auto dgrad = linear_problem(down, Role::dgrad, tokens, r);
  CHECK(dgrad.key() ==
        "op=hadamard_gemm role=dgrad m=1..16 n=14336 k=4096 a_type=bf16 b_type=bf16 d_type=bf16 "
        "b_major=rows rotation=32");
  const auto wgrad = linear_problem(down, Role::wgrad, tokens, r);
  CHECK(wgrad.key() ==
        "op=hadamard_gemm role=wgrad m=4096 n=14336 k=1..16 a_type=bf16 b_type=bf16 d_type=f32 "
        "a_major=rows b_major=rows rotation=32");
  for (const auto& p : {fprop, dgrad, wgrad}) {
    CHECK(validate(p).ok());
    CHECK(*parse_problem(p.key()) == p);
  }
}

TEST_CASE("every bundled model poses valid problems in every role") {
  for (const auto& model : bundled_models()) {
    const auto work = make_workload(
        linear_layers(model, 1),
        recipe({Role::fprop, Role::dgrad, Role::wgrad}, {{1, 1}, {2, 16}, {17, 512}}));
    CHECK_MESSAGE(work.refused.empty(), model.name);
    std::set<std::string> keys;
    for (const auto& item : work.items) {
      CHECK(validate(item.problem).ok());
      keys.insert(item.problem.key());
    }
    CHECK(keys.size() == work.items.size());
    CHECK(work.items.size() >= 24);
  }
}

TEST_CASE("equal problems are listed once, with all their layers") {
  const Layers layers{{{"a", 64, 128, 3}, {"b", 64, 128, 4}, {"c", 64, 64, 1}}, {}};
  const auto work = make_workload(layers, recipe({Role::fprop}, {{1, 1}}));
  REQUIRE(work.items.size() == 2);
  CHECK(work.items[0].layers == "a,b");
  CHECK(work.items[0].calls == 7);
}

TEST_CASE("a layer that does not fit the block or the rotation is refused by name, once") {
  // Four ranks leave 720 input features to each rank's half of the experts' down projection.
  auto r = recipe({Role::fprop, Role::dgrad}, {{1, 1}, {2, 16}});
  const auto work = make_workload(linear_layers(*find_model("gpt-oss-20b"), 4), r);
  REQUIRE(work.refused.size() == 1);
  CHECK(work.refused[0].layer == "expert_down fprop");
  CHECK(says(work.refused[0].reason, "720 is not a multiple of 32"));
  r.rotation = 128;
  const auto wide = make_workload(linear_layers(*find_model("gpt-oss-20b"), 1), r);
  std::set<std::string> names;
  for (const auto& refusal : wide.refused) names.insert(refusal.layer);
  CHECK(names.count("expert_gate_up fprop") == 1);
  CHECK(names.count("qkv fprop") == 1);
  CHECK(names.count("o fprop") == 0);
  CHECK(names.size() == wide.refused.size());
}

TEST_CASE("tokens are counts and ranges") {
  const auto tokens = parse_tokens("1, 16,512,2..512,16");
  REQUIRE(tokens.ok());
  CHECK(*tokens == std::vector<Extent>{{1, 1}, {16, 16}, {512, 512}, {2, 512}});
  for (const auto* bad :
       {"", "1,,2", "-1", "x", "1..", "..5", "5..1", "1.5", "99999999999999", "1 2"}) {
    const auto status = parse_tokens(bad).status();
    CHECK_MESSAGE(!status.ok(), bad);
    CHECK(says(status.message(), "for example"));
  }
}

TEST_CASE("shapes say what is wrong with them") {
  const auto shape = parse_shape("1..16x4096x14336", Op::hadamard_gemm);
  REQUIRE(shape.ok());
  CHECK(shape->tokens == Extent{1, 16});
  CHECK(shape->linear.out == 4096);
  CHECK(shape->linear.in == 14336);
  const auto quantize = parse_shape("512x4096", Op::quantize);
  REQUIRE(quantize.ok());
  CHECK(quantize->linear.in == 4096);
  for (const auto* bad : {"", "x", "1x2", "1x2x3x4", "axbxc", "1x0x32", "1x-4x32", "1x4x", "0x0x0",
                          "1 x 2", "9999999999x1x32"})
    CHECK_MESSAGE(!parse_shape(bad, Op::hadamard_gemm).ok(), bad);
  CHECK(parse_shape("0x64x64", Op::hadamard_gemm).ok());
  CHECK(
      says(parse_shape("64x64", Op::gemm).status().message(), "has 2 sizes: op gemm takes MxNxK"));
}

TEST_CASE("roles are parsed by name") {
  CHECK(*parse_roles("wgrad,fprop") == std::vector<Role>{Role::wgrad, Role::fprop});
  for (const auto* bad : {"", "none", "Fprop", "fprop,", "all"})
    CHECK_MESSAGE(!parse_roles(bad).ok(), bad);
}

TEST_CASE("one-operand ops have no role") {
  Recipe r = recipe({Role::fprop, Role::dgrad}, {{512, 512}});
  r.op = Op::quantize;
  const auto work = make_workload({{{"x", 0, 4096, 1}}, {}}, r);
  REQUIRE(work.items.size() == 1);
  CHECK(work.items[0].problem.key() ==
        "op=quantize m=512 k=4096 a_type=bf16 d_type=mxfp4 rotation=32");
}
