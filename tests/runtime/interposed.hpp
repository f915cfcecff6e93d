// Counts what the whole process asks of the heap and the file system between two marks.
#pragma once

namespace quarterturn::test {

/// False where a sanitizer owns malloc: then nothing is counted.
bool can_count();

struct Counted {
  long allocations = 0, opened_files = 0;
};
/// Starts counting at zero, on all threads.
void begin_counting();
Counted end_counting();

}  // namespace quarterturn::test
