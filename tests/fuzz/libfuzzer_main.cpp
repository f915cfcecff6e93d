// libFuzzer's entry: QTURN_FUZZ_TARGET names the function.
#include "tests/fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quarterturn::fuzz::QTURN_FUZZ_TARGET(data, size);
  return 0;
}
