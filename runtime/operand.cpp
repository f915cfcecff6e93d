#include "runtime/operand.hpp"

namespace quarterturn {

std::int64_t bytes_per_scale(Layout layout) { return layout == Layout::int8_blocks ? 8 : 1; }

qt_tensor packed_operand(Layout layout, std::int64_t rows, std::int64_t k, std::int64_t padding,
                         void* codes, void* scales) {
  const std::int64_t padded = round_up(k, padding);
  const OperandBytes bytes = operand_bytes(layout, rows, k, padding);
  qt_tensor out{};
  out.data = codes;
  out.scales = scales;
  out.ld = padded;
  out.scale_ld = padded / 32;
  out.batch_stride = bytes.codes * 8 / bits_per_element(layout);
  out.scale_batch_stride = bytes.scales / bytes_per_scale(layout);
  return out;
}

qt_tensor dense_matrix(std::int64_t rows, std::int64_t columns, void* data) {
  qt_tensor out{};
  out.data = data;
  out.ld = columns;
  out.batch_stride = rows * columns;
  return out;
}

}  // namespace quarterturn
