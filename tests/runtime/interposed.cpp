#include "tests/runtime/interposed.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define QTURN_COUNTS 0
#else
#define QTURN_COUNTS 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0}, opened_files{0};

[[maybe_unused]] void count(std::atomic<long>& what) {
  if (counting.load(std::memory_order_relaxed)) what.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if QTURN_COUNTS
// The program's own definitions come before the C library's, also for the shared libraries it
// loads.
extern "C" {

void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  count(allocations);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count_of, std::size_t bytes) {
  count(allocations);
  return __libc_calloc(count_of, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  count(allocations);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  count(allocations);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  count(allocations);
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : 12;
}

int open(const char* path, int flags, ...) {
  count(opened_files);
  va_list more;
  va_start(more, flags);
  const int mode = va_arg(more, int);
  va_end(more);
  static const auto real =
      reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
  return real(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  count(opened_files);
  va_list more;
  va_start(more, flags);
  const int mode = va_arg(more, int);
  va_end(more);
  static const auto real =
      reinterpret_cast<int (*)(int, const char*, int, ...)>(dlsym(RTLD_NEXT, "openat"));
  return real(folder, path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
  count(opened_files);
  static const auto real =
      reinterpret_cast<FILE* (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "fopen"));
  return real(path, mode);
}

}  // extern "C"
#endif

namespace quarterturn::test {

bool can_count() { return QTURN_COUNTS != 0; }

void begin_counting() {
  allocations = 0;
  opened_files = 0;
  counting = true;
}

Counted end_counting() {
  counting = false;
  return {allocations.load(), opened_files.load()};
}

Counted least_of(const std::function<void()>& work) {
  Counted least;
  for (int i = 0; i < 200; ++i) {
    begin_counting();
    work();
    const Counted now = end_counting();
    if (i == 0 || now.allocations + now.opened_files < least.allocations + least.opened_files)
      least = now;
    if (least.allocations + least.opened_files == 0) break;
    usleep(10000);
  }
  return least;
}

}  // namespace quarterturn::test
