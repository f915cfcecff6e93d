// quarterturn-worker: runs one program with time and memory limits and reports on descriptor 3 how
// it ended. A process of its own, so that limits, signals and crashes never touch the host's.
//
//   quarterturn-worker run WALL_SECONDS CPU_SECONDS MEMORY_BYTES DIRECTORY PROGRAM [ARGUMENT...]
//
// Standard input is the host's life line: when it closes, the program is killed.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

constexpr int kReport = 3;

void report(const char* word, int code) {
  char line[64];
  const int length = std::snprintf(line, sizeof line, "%s %d\n", word, code);
  if (write(kReport, line, static_cast<size_t>(length)) != length) std::_Exit(1);
}

// Descriptors that the host did not mark close-on-exec must not reach the program.
void close_from(int first) {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, static_cast<unsigned>(first), ~0u, 0u) == 0) return;
#endif
  if (DIR* folder = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(folder)) {
      const int fd = std::atoi(entry->d_name);
      if (fd >= first && fd != dirfd(folder)) close(fd);
    }
    closedir(folder);
  }
}

void set_limit(decltype(RLIMIT_CPU) which, long long value) {
  if (value <= 0) return;
  rlimit limit{};
  getrlimit(which, &limit);
  const auto wanted = static_cast<rlim_t>(value);
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < wanted) return;
  limit.rlim_cur = limit.rlim_max = wanted;
  setrlimit(which, &limit);
}

[[noreturn]] void become_program(long long cpu_seconds, long long memory_bytes,
                                 const char* directory, char** program, int failure_pipe) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, 0);
  if (chdir(directory) == 0) {
    close(kReport);
    set_limit(RLIMIT_CPU, cpu_seconds);
    set_limit(RLIMIT_AS, memory_bytes);
    set_limit(RLIMIT_CORE, 1);  // 1 and not 0: it also keeps a core handler from being started
    execvp(program[0], program);
  }
  const int error = errno;
  if (write(failure_pipe, &error, sizeof error) < 0) std::_Exit(126);
  std::_Exit(127);
}

long long now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

enum class Ended { by_itself, by_clock, by_host };

Ended await_end(int child_signal, long long deadline_ms) {
  for (;;) {
    const long long left = deadline_ms - now_ms();
    if (left <= 0) return Ended::by_clock;
    pollfd wanted[2] = {{child_signal, POLLIN, 0}, {0, POLLIN, 0}};
    const int ready = poll(wanted, 2, left > 60000 ? 60000 : static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return Ended::by_host;
    if (ready > 0 && (wanted[0].revents & POLLIN)) return Ended::by_itself;
    if (ready > 0 && wanted[1].revents) {
      char byte = 0;
      if (read(0, &byte, 1) <= 0) return Ended::by_host;
    }
  }
}

int run_program(char** arguments) {
  const long long wall = std::atoll(arguments[0]), cpu = std::atoll(arguments[1]),
                  memory = std::atoll(arguments[2]);
  sigset_t child_set;
  sigemptyset(&child_set);
  sigaddset(&child_set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_set, nullptr);
  signal(SIGCHLD, SIG_DFL);  // an ignored SIGCHLD is inherited and would eat the exit status
  const int child_signal = signalfd(-1, &child_set, SFD_CLOEXEC);
  int failure[2];
  if (child_signal < 0 || pipe2(failure, O_CLOEXEC) != 0) return 1;

  const pid_t pid = fork();
  if (pid < 0) {
    report("not_started", errno);
    return 1;
  }
  if (pid == 0) become_program(cpu, memory, arguments[3], arguments + 4, failure[1]);
  setpgid(pid, pid);  // by both sides: whichever comes first
  close(failure[1]);

  const Ended ended = await_end(child_signal, now_ms() + wall * 1000);
  // Also after an ordinary end: a compiler driver's children must not outlive it.
  kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  int error = 0;
  if (read(failure[0], &error, sizeof error) == sizeof error)
    report("not_started", error);
  else if (ended == Ended::by_clock)
    report("timed_out", 0);
  else if (WIFSIGNALED(status))
    report("signalled", WTERMSIG(status));
  else
    report("exited", WEXITSTATUS(status));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  close_from(kReport + 1);
  if (argc >= 7 && std::strcmp(argv[1], "run") == 0) return run_program(argv + 2);
  std::fprintf(stderr,
               "quarterturn-worker is started by the Quarterturn library to run compilers within "
               "limits; it is not a command for people\n");
  return 2;
}
