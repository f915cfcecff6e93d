// Operand sizes: what a caller allocates is what kernels address.
#include "generator/layout.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

TEST_CASE("layout.operand_bytes pads the contraction axis to the block and the rotation") {
  CHECK(operand_bytes(Layout::plain, 3, 33).codes == 3 * 64 / 2);
  CHECK(operand_bytes(Layout::plain, 3, 33).scales == 3 * 2);
  CHECK(operand_bytes(Layout::plain, 3, 33, 256).codes == 3 * 256 / 2);
  CHECK(operand_bytes(Layout::plain, 0, 64).codes == 0);
  CHECK(operand_bytes(Layout::plain, 5, 0).codes == 0);
}

TEST_CASE("layout.operand_bytes rounds rows up where a layout works in panels") {
  CHECK(operand_bytes(Layout::panel16, 17, 64).codes == 2 * 2 * 256);
  CHECK(operand_bytes(Layout::panel16, 17, 64).scales == 2 * 2 * 16);
  CHECK(operand_bytes(Layout::scales_128x4, 1, 32).scales == 128 * 4);
  CHECK(operand_bytes(Layout::scales_128x4, 129, 160).scales == 256 * 8);
}

TEST_CASE("layout.operand_bytes holds past 2^31 elements") {
  CHECK(operand_bytes(Layout::plain, 1 << 20, 1 << 14).codes == (std::int64_t{1} << 34) / 2);
}

TEST_CASE("layout.bf16 is two bytes an element, and has no scales") {
  CHECK(operand_bytes(Layout::bf16, 3, 33).codes == 3 * 64 * 2);
  CHECK(operand_bytes(Layout::bf16, 3, 33, 256).codes == 3 * 256 * 2);
  CHECK(operand_bytes(Layout::bf16, 3, 33).scales == 0);
  CHECK(bits_per_element(Layout::bf16) == 16);
  CHECK(packed_stride(Layout::bf16, 64) == 128);
}
