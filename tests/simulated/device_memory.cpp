#include "tests/simulated/device_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

namespace quarterturn::simulated {
namespace {

constexpr std::size_t kPage = 4096, kGuard = 16 * kPage;

struct Allocation {
  char* mapped = nullptr;
  std::size_t mapped_bytes = 0, bytes = 0;
};

std::mutex mutex;
std::map<char*, Allocation>& allocations() {
  static std::map<char*, Allocation> all;
  return all;
}

}  // namespace

void* allocate_guarded(std::size_t bytes) {
  const std::size_t rounded = (bytes + 15) / 16 * 16;
  const std::size_t pages = (rounded + kPage - 1) / kPage * kPage;
  const std::size_t whole = pages + 2 * kGuard;
  void* mapped =
      mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const first = static_cast<char*>(mapped) + kGuard;
  if (pages > 0 && mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped, whole);
    return nullptr;
  }
  char* const memory = first + pages - rounded;
  std::memset(first, 0xff, pages);
  const std::lock_guard lock(mutex);
  allocations()[memory] = {static_cast<char*>(mapped), whole, bytes};
  return memory;
}

bool free_guarded(void* memory) {
  const std::lock_guard lock(mutex);
  const auto found = allocations().find(static_cast<char*>(memory));
  if (found == allocations().end()) return false;
  munmap(found->second.mapped, found->second.mapped_bytes);
  allocations().erase(found);
  return true;
}

std::size_t bytes_behind(const void* address) {
  const auto* at = static_cast<const char*>(address);
  const std::lock_guard lock(mutex);
  auto found = allocations().upper_bound(const_cast<char*>(at));
  if (found == allocations().begin()) return 0;
  --found;
  const auto offset = static_cast<std::size_t>(at - found->first);
  return offset < found->second.bytes ? found->second.bytes - offset : 0;
}

std::string describe_address(const void* address) {
  const auto* at = static_cast<const char*>(address);
  const std::lock_guard lock(mutex);
  for (const auto& [memory, one] : allocations()) {
    if (at < one.mapped || at >= one.mapped + one.mapped_bytes) continue;
    const auto offset = at - memory;
    if (offset < 0)
      return fmt::format("{} bytes before the {} bytes at {}", -offset, one.bytes,
                         static_cast<const void*>(memory));
    return fmt::format("byte {} of the {} bytes at {}", offset, one.bytes,
                       static_cast<const void*>(memory));
  }
  return {};
}

}  // namespace quarterturn::simulated
