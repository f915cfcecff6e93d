// Speeds of the CUDA families and of cuBLASLt, in one process and in turn: `speed_cuda [quantize]
// [gemm] [packed] [plans] [bf16] [epilogue] [grouped]`. Sustained figures: the second half of a run
// of at least 0.3 s.
#include <iostream>
#include <set>
#include <string>

#include "tests/cuda/speed/speed.hpp"

using namespace quarterturn::cuda_test;

int main(int count, char** words) {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return 0;
  }
  const std::set<std::string> asked(words + 1, words + count);
  const auto wants = [&](const char* what) { return asked.empty() || asked.count(what) > 0; };
  try {
    Meter meter(*device);
    const auto pattern = gaussian_bf16();
    std::cout << device->name() << ", " << device->units() << " SMs\n";
    if (wants("quantize")) quantize_speeds(*device, meter, pattern);
    if (wants("gemm")) gemm_speeds(*device, meter, pattern);
    if (wants("packed")) packed_speeds(*device, meter, pattern);
    if (wants("bf16")) bf16_speeds(*device, meter, pattern);
    if (wants("plans")) plan_speeds(*device, meter, pattern);
    if (wants("epilogue")) epilogue_speeds(*device, meter, pattern);
    if (wants("grouped")) grouped_speeds(*device, meter, pattern);
  } catch (const std::exception& error) {
    std::cout << "failed: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
