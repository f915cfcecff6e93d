// The tile of a product of quantised operands: how many sums stay in registers and where weights
// are decoded. The families cpu_gemm and cpu_hadamard_gemm share these axes, their rules and their
// cost.
#pragma once

#include "generator/cpu/kernel_text.hpp"

namespace quarterturn::cpu {

constexpr std::int64_t kPanel = 16;  ///< columns of a panel of weights
constexpr std::int64_t kBlock = 32;  ///< elements of K that share a scale

/// isa, tile_m, tile_n, decode, block_k, prefetch: what was fastest on Sapphire Rapids first.
std::vector<Parameter> tile_parameters(const Problem& problem, const Target& target);

/// `rows` without those that only repeat others for so small an M; `least` always stays.
std::vector<std::int64_t> rows_up_to_m(std::vector<std::int64_t> rows, const Problem& problem,
                                       std::int64_t least);

std::string illegal_tile(const Variant& variant);

/// The lines of Config for these axes; block_m and part_n too.
void add_tile(KernelText& text, const Variant& variant);

/// Cycles on one core, at the upper end of M.
double tile_cost(const Problem& problem, const Target& target, const Variant& variant);

/// A factor for parts that are too few for so many threads; 0 = as if there were eight.
double starved(const Problem& problem, const Variant& variant, std::int64_t threads);

/// The number of parts of a call.
std::int64_t gemm_parts(const Problem& problem, const Variant& variant, std::int64_t batch,
                        std::int64_t m, std::int64_t n);

}  // namespace quarterturn::cpu
