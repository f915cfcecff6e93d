// How D is cut into parts that run in any order: kernels and the host that starts them both count
// by this. Include-free, so that the host can read it too.
#ifndef QT_CPU_GEMM_PARTS_H
#define QT_CPU_GEMM_PARTS_H

namespace qt {
namespace cpu {

/// Batch entries, in each of them blocks of rows, in each of those blocks of columns.
struct GemmParts {
  long long block_m, part_n, along_m, along_n;

  static constexpr GemmParts of(long long m, long long n, long long block_m, long long part_n) {
    return {block_m, part_n, (m + block_m - 1) / block_m, (n + part_n - 1) / part_n};
  }
  constexpr long long per_entry() const { return along_m * along_n; }
};

/// What part `part` computes: rows of one batch entry, and panels of 16 columns.
struct PartOfD {
  long long batch, row, rows, panel, panel_end;
};

constexpr PartOfD part_of_d(const GemmParts& parts, long long m, long long n, long long part) {
  const long long row = part / parts.along_n % parts.along_m * parts.block_m;
  const long long panel = part % parts.along_n * (parts.part_n / 16);
  const long long panels = (n + 15) / 16;
  return {part / parts.per_entry(), row, m - row < parts.block_m ? m - row : parts.block_m, panel,
          panel + parts.part_n / 16 < panels ? panel + parts.part_n / 16 : panels};
}

/// Room for the rows that a part quantises for itself.
struct QuantizedRows {
  long long code_bytes, scale_bytes;  // each a multiple of 64

  static constexpr QuantizedRows of(long long m, long long blocks, long long block_m) {
    const long long rows = m < block_m ? m : block_m;
    return {(rows * blocks * 32 + 63) / 64 * 64, (rows * blocks * 8 + 63) / 64 * 64};
  }
  constexpr long long bytes() const { return code_bytes + scale_bytes; }
};

}  // namespace cpu
}  // namespace qt

#endif
