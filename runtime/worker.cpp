#include "runtime/worker.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace quarterturn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostOutput = 256 * 1024;
constexpr int kReportDescriptor = 3;

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

// Both ends close on exec and lie above the descriptors that the child is given, even where the
// host has closed its standard streams.
bool make_pipe(Pipe& out) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const Descriptor low_read(ends[0]), low_write(ends[1]);
  out.read = Descriptor(fcntl(ends[0], F_DUPFD_CLOEXEC, 16));
  out.write = Descriptor(fcntl(ends[1], F_DUPFD_CLOEXEC, 16));
  return out.read.get() >= 0 && out.write.get() >= 0;
}

// The host's environment but for what would change what a compiler reads or preload code into it. A
// program that runs with other rights than its user's (setuid) passes on nothing of the user's.
std::vector<std::string> clean_environment() {
  if (getauxval(AT_SECURE) != 0) return {"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"};
  static constexpr std::string_view dropped[] = {
      "CPATH=", "C_INCLUDE_PATH=", "CPLUS_INCLUDE_PATH=", "LD_PRELOAD=", "LC_ALL=", "LANGUAGE="};
  std::vector<std::string> out;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    bool keep = true;
    for (const auto name : dropped) keep = keep && text.substr(0, name.size()) != name;
    if (keep) out.emplace_back(text);
  }
  out.emplace_back("LC_ALL=C");
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

constexpr const char* kShellScript =
    "cd \"$1\" || exit 1; ulimit -t \"$2\"; ulimit -v \"$3\"; shift 3; "
    "\"$@\" 3>&- </dev/null; echo \"shell $?\" >&3";

// What the child process executes: quarterturn-worker, or a shell that does the least of its work.
std::vector<std::string> full_command(const std::string& worker, const WorkerCommand& command) {
  const auto& limits = command.limits;
  std::vector<std::string> out;
  if (!worker.empty()) {
    out = {worker,
           "run",
           fmt::format("{}", limits.wall_seconds),
           fmt::format("{}", limits.cpu_seconds),
           fmt::format("{}", limits.memory_bytes),
           command.directory.empty() ? "." : command.directory};
  } else {
    out = {"/bin/sh",
           "-c",
           kShellScript,
           "sh",
           command.directory.empty() ? "." : command.directory,
           limits.cpu_seconds > 0 ? fmt::format("{}", limits.cpu_seconds) : "unlimited",
           limits.memory_bytes > 0 ? fmt::format("{}", limits.memory_bytes / 1024) : "unlimited"};
  }
  out.insert(out.end(), command.arguments.begin(), command.arguments.end());
  return out;
}

// Starts `arguments` with `input` as stdin, `output` as stdout and stderr, `report` as descriptor 3
// and nothing else open; signals at their defaults. Gives the process id, or minus errno.
pid_t spawn(std::vector<std::string> arguments, int input, int output, int report) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&actions) != 0) return -ENOMEM;
  if (posix_spawnattr_init(&attributes) != 0) {
    posix_spawn_file_actions_destroy(&actions);
    return -ENOMEM;
  }
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, output, 2);
  posix_spawn_file_actions_adddup2(&actions, report, kReportDescriptor);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(&actions, kReportDescriptor + 1);
#endif
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  auto environment = clean_environment();
  pid_t pid = -1;
  const int error = posix_spawn(&pid, arguments[0].c_str(), &actions, &attributes,
                                pointers(arguments).data(), pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -error;
}

// Appends what is there; false at the end of the stream.
bool drain(int fd, std::string& into, std::size_t most) {
  char buffer[4096];
  const auto got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (got == 0) return false;
  const auto room = most - std::min(most, into.size());
  into.append(buffer, std::min(room, static_cast<std::size_t>(got)));
  return true;
}

// Reads both streams until the report's ends. False: the deadline passed first.
bool collect(int output, int report, Clock::time_point deadline, std::string& text,
             std::string& verdict) {
  bool output_open = true, report_open = true;
  while (report_open) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted[2] = {{output_open ? output : -1, POLLIN, 0}, {report, POLLIN, 0}};
    if (poll(wanted, 2, static_cast<int>(std::min<long long>(left, 60000))) < 0 && errno != EINTR)
      return false;
    if (wanted[0].revents) output_open = drain(output, text, kMostOutput);
    if (wanted[1].revents) report_open = drain(report, verdict, 256);
  }
  // Whatever the program wrote before its end is in the pipe now; a stray grandchild is not
  // awaited.
  fcntl(output, F_SETFL, O_NONBLOCK);
  for (std::size_t before = text.size() + 1; output_open && text.size() != before;) {
    before = text.size();
    output_open = drain(output, text, kMostOutput);
  }
  return true;
}

// "exited 0", "signalled 11", "timed_out 0", "not_started 2", or the shell's "shell 139".
bool parse_verdict(std::string_view verdict, WorkerReport& report) {
  while (!verdict.empty() && verdict.back() == '\n') verdict.remove_suffix(1);
  const auto space = verdict.find(' ');
  if (space == std::string_view::npos) return false;
  const auto word = verdict.substr(0, space);
  const auto number = verdict.substr(space + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), report.code);
  if (error != std::errc()) return false;
  using End = WorkerReport::End;
  if (word == "exited") {
    report.end = End::exited;
  } else if (word == "signalled") {
    report.end = End::signalled;
  } else if (word == "timed_out") {
    report.end = End::timed_out;
  } else if (word == "not_started") {
    report.end = End::not_started;
  } else if (word == "shell") {
    report.end = report.code > 128                          ? End::signalled
                 : report.code == 126 || report.code == 127 ? End::not_started
                                                            : End::exited;
    if (report.end == End::signalled) report.code -= 128;
    if (report.end == End::not_started) report.code = report.code == 127 ? ENOENT : EACCES;
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string WorkerReport::ending(const WorkerLimits& limits) const {
  switch (end) {
    case End::exited:
      return fmt::format("exit status {}", code);
    case End::signalled:
      return fmt::format("killed by signal {} ({}); limits: {} s of CPU time, {} MiB of memory",
                         code, code == SIGXCPU ? "CPU time limit" : strsignal(code),
                         limits.cpu_seconds, limits.memory_bytes >> 20);
    case End::timed_out:
      return fmt::format("not finished after {} s, killed", limits.wall_seconds);
    case End::not_started:
      return fmt::format("cannot be started: {}", std::strerror(code));
  }
  return "?";
}

Code WorkerReport::failure() const {
  if (end == End::timed_out) return Code::compile_timeout;
  if (end == End::not_started) return Code::no_compiler;
  if (end == End::signalled && code == SIGTERM) return Code::interrupted;
  for (const auto* full : {"No space left on device", "Disk quota exceeded"})
    if (output.find(full) != std::string::npos) return Code::disk_full;
  return Code::compile_failed;
}

Worker::Worker(std::string path)
    : path_(path.empty() ? find_program("quarterturn-worker") : std::move(path)) {
  if (!path_.empty() && ::access(path_.c_str(), X_OK) != 0) path_.clear();
}

Result<WorkerReport> Worker::run(const WorkerCommand& command) const {
  if (command.arguments.empty()) return Status(Code::internal, "no program was given to a worker");
  Pipe life, output, report;
  if (!make_pipe(life) || !make_pipe(output) || !make_pipe(report))
    return Status(Code::io_error, fmt::format("no pipe for a worker: {}", std::strerror(errno)));
  const pid_t pid =
      spawn(full_command(path_, command), life.read.get(), output.write.get(), report.write.get());
  if (pid < 0)
    return Status(Code::no_compiler,
                  fmt::format("{} cannot be started: {}", path_.empty() ? "/bin/sh" : path_,
                              std::strerror(static_cast<int>(-pid))));
  life.read.reset();
  output.write.reset();
  report.write.reset();

  WorkerReport out;
  std::string verdict;
  // The worker keeps the time itself; the margin is for one that does not.
  const auto margin = std::chrono::seconds(path_.empty() ? 0 : 5);
  const bool ended =
      collect(output.read.get(), report.read.get(),
              Clock::now() + std::chrono::seconds(command.limits.wall_seconds) + margin, out.output,
              verdict);
  life.write.reset();
  if (!ended || path_.empty()) ::kill(-pid, SIGKILL);
  int status = 0;
  pid_t waited = 0;
  do {
    waited = waitpid(pid, &status, 0);
  } while (waited < 0 && errno == EINTR);
  if (!ended) {
    out.end = WorkerReport::End::timed_out;
  } else if (!parse_verdict(verdict, out)) {
    // The worker itself died; where the host reaps its children, how is not known.
    out.end = WorkerReport::End::signalled;
    out.code = waited == pid && WIFSIGNALED(status) ? WTERMSIG(status) : SIGKILL;
  }
  return out;
}

std::string find_program(const std::string& name) {
  namespace fs = std::filesystem;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_program), &info) == 0 || !info.dli_fname)
    return {};
  std::error_code error;
  const auto file = fs::canonical(info.dli_fname, error);
  if (error) return {};
  // <prefix>/lib[/<arch>]/libquarterturn.so, <prefix>/bin/<program>, and the build tree's folders.
  for (auto folder = file.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    for (const auto* place : {"libexec/quarterturn", "runtime", "tuner"}) {
      const auto candidate = folder / place / name;
      if (fs::is_regular_file(candidate, error)) return candidate.string();
    }
    if (fs::exists(folder / "CMakeCache.txt", error)) break;
  }
  return {};
}

}  // namespace quarterturn
