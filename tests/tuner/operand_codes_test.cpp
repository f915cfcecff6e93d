// Rows of packed operands are found where their layout puts them.
#include "tuner/operand_codes.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

TEST_CASE("operand_codes.rows in tiles of 128 x 4 scales are compared byte by byte") {
  constexpr std::int64_t rows = 130, k = 160, blocks = k / 32;
  std::vector<unsigned char> codes(rows * k / 2, 0x21), scales(2 * 2 * 512, 0xff);
  const PackedView view = {Layout::scales_128x4, codes.data(), scales.data(), rows, k};
  REQUIRE(is_readable(view.layout));
  OracleRow expected;
  expected.codes.assign(k / 2, 0x21);
  expected.scales.assign(blocks, 120);
  CHECK(compare_row(view, 129, expected) != "");
  // Row 129 is row 1 of the second tile of rows: 16 bytes in; its fifth block is in the next tile.
  for (const int at : {1024 + 16, 1024 + 17, 1024 + 18, 1024 + 19, 1024 + 512 + 16})
    scales[static_cast<std::size_t>(at)] = 120;
  CHECK(compare_row(view, 129, expected) == "");
  scales[1024 + 512 + 16] = 121;
  CHECK(compare_row(view, 129, expected).find("block 4") != std::string::npos);
}
