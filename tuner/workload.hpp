// Workload: from a model, or shapes, to the Problems that its linear layers pose in each role.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/problem.hpp"
#include "tuner/models.hpp"

namespace quarterturn {

/// One linear layer Y[tokens, out] = X[tokens, in] W[out, in]^T, as one rank of a tensor-parallel
/// group holds it.
struct Linear {
  std::string name;  ///< "qkv", "o", "gate_up", "down", "expert_gate_up", ...
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::int64_t count = 1;  ///< how many of them the model has

  bool operator==(const Linear&) const = default;
};

/// Something asked for that cannot be: a layer, and why.
struct Refusal {
  std::string layer;
  std::string reason;
};

struct Layers {
  std::vector<Linear> linears;
  std::vector<Refusal> refused;
};

/// The layers of a model on one of `tp` ranks. Query, key and value are one product, as are gate
/// and up. Column parallel (output features split): qkv, gate_up; row parallel (input features
/// split): o, down. With fewer key-value heads than ranks each rank keeps one. Experts are whole
/// products of their own, one an expert, split like the MLP. Embedding, head, router and norms stay
/// in high precision: absent.
Layers linear_layers(const Model& model, std::int64_t tp);

/// What a Problem needs beside its sizes; the defaults are those of the library.
struct Recipe {
  Op op = Op::hadamard_gemm;
  std::vector<Role> roles{Role::fprop};
  std::vector<Extent> tokens;
  std::int32_t rotation = 32;
  Signs signs = Signs::none;
  ScaleRule scale_rule = ScaleRule::rceil;
  Rounding a_rounding = Rounding::rne;
  Rounding b_rounding = Rounding::rne;
  BiasedRounding biased = BiasedRounding::refused;
  DType in_type = DType::bf16;   ///< of high-precision operands
  DType out_type = DType::none;  ///< none: the input type; f32 for Wgrad
  Contract contract = Contract::exact;
  Spread spread = Spread::any;
  Reproducibility repro = Reproducibility::run_to_run;
  Accumulate accumulate = Accumulate::overwrite;
  Bias bias = Bias::none;
  /// Activations are of Fprop and their derivatives of Dgrad; the gradient of a bias is of Wgrad,
  /// and of `quantize`, as a prologue is.
  Epilogue epilogue = Epilogue::none;
  PreActivation pre_activation = PreActivation::dropped;
  BiasGradient bias_gradient = BiasGradient::none;
  Prologue prologue = Prologue::none;
  /// Experts whose rows Fprop and Dgrad multiply in one call, and how they lie; Wgrad divides its
  /// tokens.
  Grouping grouping = Grouping::none;
  std::int64_t groups = 1;
};

/// One Problem and who poses it.
struct Item {
  std::string layers;  ///< "qkv" or "qkv,o" when several layers pose the same problem
  Problem problem;
  std::int64_t calls = 1;  ///< of one pass through the model

  bool operator==(const Item&) const = default;
};

struct Workload {
  std::vector<Item> items;
  std::vector<Refusal> refused;
};

/// The problem of one linear layer in one role. Tokens are the run-time axis: m in Fprop and Dgrad,
/// k in Wgrad. Fprop multiplies by a prepared weight; Dgrad reads W, and Wgrad both operands, as
/// stored.
Problem linear_problem(const Linear& linear, Role role, const Extent& tokens, const Recipe& recipe);

/// Every layer in every role for every range of tokens; equal problems are listed once. What does
/// not validate is refused by layer, never dropped.
Workload make_workload(const Layers& layers, const Recipe& recipe);

/// "1,16,2..512": token counts and ranges, each a Problem of its own.
Result<std::vector<Extent>> parse_tokens(std::string_view text);

/// "MxNxK" (tokens x output features x input features, M may be a range "1..16") or, where the
/// recipe's op has one operand, "MxK". The name of the resulting layer is the shape.
struct Shape {
  Linear linear;
  Extent tokens;
};
Result<Shape> parse_shape(std::string_view text, Op op);

/// "fprop,dgrad"
Result<std::vector<Role>> parse_roles(std::string_view text);

/// A short name for tables: "fprop 1..16x4096x14336".
std::string short_name(const Problem& problem);

}  // namespace quarterturn
