// Memory of a simulated device: each allocation ends at a page that nobody may touch.
#pragma once

#include <cstddef>
#include <string>

namespace quarterturn::simulated {

/// Memory filled with 0xff whose end, rounded up to 16 bytes, is the end of its last page; the
/// pages before and behind it fault. Addresses are multiples of 16. Null when there is none left.
void* allocate_guarded(std::size_t bytes);
/// What allocate_guarded gave; false for anything else. Later accesses fault.
bool free_guarded(void* memory);

/// Bytes from an address to the end of the allocation it lies in; 0 outside of all.
std::size_t bytes_behind(const void* address);

/// "40 bytes behind the 96 bytes at 0x7f..", or empty for an address that has nothing to do with an
/// allocation.
std::string describe_address(const void* address);

}  // namespace quarterturn::simulated
