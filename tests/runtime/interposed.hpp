// Counts what the whole process asks of the heap and the file system between two marks.
#pragma once

#include <functional>

namespace quarterturn::test {

/// False where a sanitizer owns malloc: then nothing is counted.
bool can_count();

struct Counted {
  long allocations = 0, opened_files = 0;
};
/// Starts counting at zero, on all threads.
void begin_counting();
Counted end_counting();

/// The least that `work` was counted with in up to 200 tries, 10 ms apart, until nothing was: what
/// it takes itself shows each time, what the context's own thread writes down meanwhile does not.
Counted least_of(const std::function<void()>& work);

}  // namespace quarterturn::test
