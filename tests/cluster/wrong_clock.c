// Preloaded into programs of one node: the wall clock is an hour ahead.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec* out) {
  const int code = (int)syscall(SYS_clock_gettime, id, out);
  if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) out->tv_sec += 3600;
  return code;
}
