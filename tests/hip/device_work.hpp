// What stands behind the libamdhip64 double: nothing (work_recorded.cpp), or the simulated machine
// (work_simulated.cpp).
#pragma once

#include <string>

#include "tests/hip/runtime_double.hpp"

namespace qturn_test::work {

/// What the device says of itself. A simulated one is no MI355X, so that what is timed on it is
/// never taken for one's.
struct Model {
  const char* name;
  int units;
  std::size_t memory_bytes;
};
Model model();

/// 0xff in every byte; null when there is none left.
void* allocate(std::size_t bytes);
void release(void* memory);

/// Null where the image is no code; entries are found by their names.
void* load(const void* image);
void unload(void* code);
/// Null where the code has none of that name.
void* entry(void* code, const char* name);

/// Runs it to its end; false with the reason in failure().
bool run(void* entry, const RecordedLaunch& launch);
const std::string& failure();

}  // namespace qturn_test::work
