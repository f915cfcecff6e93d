// `gemm_quantize` in one kernel: what of quantising D a kernel that multiplies can do besides
// (templates/cuda/quantized_rows.h). What it cannot do is left to a step behind the product.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "generator/family.hpp"

namespace quarterturn {

/// Whether a step of a plan quantises the D that it computes.
inline bool quantizes_result(const Problem& problem) { return problem.op == Op::gemm_quantize; }

/// Copies of D that a kernel can write: those of tiles whose rows are together in shared memory, or
/// rows alone.
enum class QuantizedCopies { rows, all };

/// Why no kernel that sees D tile by tile quantises it as `problem` asks, `layouts` and `copies`
/// being those that it can write; empty when it does.
std::string refuse_quantized_result(const Problem& problem, std::initializer_list<Layout> layouts,
                                    QuantizedCopies copies = QuantizedCopies::rows);

/// Why a tile of `tile_n` columns of z has no whole rotation segments of D; empty when it has.
std::string refuse_quantized_tile(const Problem& problem, std::int64_t tile_n);

/// Why `rows` neighbouring rows of D have no whole rotation segments of its columns, where a copy
/// of them is asked for; empty when they have.
std::string refuse_quantized_columns(const Problem& problem, std::int64_t rows);

/// Bytes of shared memory in which `rows` rows of a tile of `tile_n` columns of z wait, in binary32
/// and as D's columns.
std::int64_t quantized_rows_bytes(const Problem& problem, std::int64_t rows, std::int64_t tile_n);

/// Into how many passes, 1, 2 or 4 and at most `most`, a tile's rows are divided so that what waits
/// of each stays within 64 KiB, where that is possible.
std::int64_t quantized_passes(const Problem& problem, std::int64_t tile_m, std::int64_t tile_n,
                              std::int64_t most);

/// A cost model's value for a product that quantises its result, from that of the product alone: a
/// step of its own would read a binary32 copy of D that the product wrote. Both at 2 TB/s, assumed
/// and not measured; at most half of the product's cost. `cost_seconds`: of a cost of 1.
double quantized_cost(const Problem& problem, double cost, double cost_seconds);

}  // namespace quarterturn
