// What the cache's tests share: folders that vanish, made-up rows, children that report what
// failed.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sched.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cache/database.hpp"
#include "cache/sqlite.hpp"

namespace quarterturn::test {

/// A fresh folder, removed at the end. In memory where that can be: syncing to a busy disk would
/// take most of the tests' time. On disk for what must also hold there.
enum class Place { memory, disk };
struct Folder {
  std::string path;

  explicit Folder(Place place = Place::memory) {
    for (const char* base : {"/dev/shm", "/tmp"}) {
      if (place == Place::disk && base[1] == 'd') continue;
      path = std::string(base) + "/qturn-test-XXXXXX";
      if (mkdtemp(path.data()) != nullptr) return;
    }
    std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

inline std::shared_ptr<const Env> env(const std::string& performance_class = "cpu units=2",
                                      const std::string& compiler = "gcc-12") {
  Env out;
  out.target = "x86-64-v4:avx512_vnni";
  out.performance_class = performance_class;
  out.compiler = compiler;
  out.library = "0.1.0";
  return std::make_shared<const Env>(out);
}

inline std::string problem(int n = 4096) { return fmt::format("op=gemm m=1..16 n={} k=4096", n); }
inline std::string plan(int tile = 8) {
  return fmt::format("quantize_a=cpu_quantize/1{{}};gemm=cpu_gemm/3{{tile_m={}}}", tile);
}

inline Trial trial(int number = 0) {
  Trial out;
  out.problem = problem(4096 + 32 * (number % 7));
  out.plan = plan(number % 5 + 1);
  out.env = env();
  out.median_ns = 1000 + number;
  out.ratio = 1.25;
  out.started = 1'700'000'000'000'000'000 + number;
  out.sizes = "m=16";
  out.samples = {1.5, 2.5, static_cast<double>(number)};
  out.detail = fmt::format("trial {}", number);
  return out;
}

inline Winner winner(int number = 0) {
  Winner out;
  out.problem = problem(4096 + 32 * number);
  out.plan = plan(number % 5 + 1);
  out.env = env();
  out.speedup = 1.5;
  out.evidence = 3;
  out.decided = 17;
  return out;
}

/// Every live trial of the test's target.
inline std::vector<Trial> live_trials(Database& db) {
  auto found = db.recent_trials(env()->target, 1000000);
  if (!found.ok()) return {};
  return *std::move(found);
}

/// A random UUID made from a number, so that a test can tell rows apart.
inline Uuid uuid(int number) {
  Uuid out{};
  out[0] = 0xab;
  for (int i = 0; i < 4; ++i) out[15 - i] = static_cast<unsigned char>(number >> (8 * i));
  return out;
}

/// Runs statements on a file through plain SQLite, as another program would.
inline std::string raw(const std::string& path, const std::string& sql) {
  sqlite3* handle = nullptr;
  sqlite3_open(path.c_str(), &handle);
  sqlite3_busy_timeout(handle, 5000);
  std::string out;
  char* message = nullptr;
  sqlite3_exec(
      handle, sql.c_str(),
      [](void* to, int count, char** values, char**) {
        for (int i = 0; i < count; ++i)
          *static_cast<std::string*>(to) += values[i] != nullptr ? values[i] : "NULL";
        return 0;
      },
      &out, &message);
  if (message != nullptr) out = std::string("error: ") + message;
  sqlite3_free(message);
  sqlite3_close(handle);
  return out;
}

/// A forked child that runs `work` and says what went wrong: "" is success.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::fflush(nullptr);  // or the child would print it again
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      const std::string result = work();
      const auto ignored = write(ends[1], result.data(), result.size());
      (void)ignored;
      _exit(0);
    }
    close(ends[1]);
    pipe_ = ends[0];
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}
  Child(const Child&) = delete;
  ~Child() { (void)wait(); }

  pid_t pid() const { return pid_; }
  void kill_now() const { kill(pid_, SIGKILL); }

  std::string wait() {
    if (pid_ < 0) return {};
    std::string out;
    char buffer[4096];
    for (ssize_t got; (got = read(pipe_, buffer, sizeof buffer)) > 0;)
      out.append(buffer, static_cast<std::size_t>(got));
    close(pipe_);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) return fmt::format("exit status {}", WEXITSTATUS(status));
    return out;
  }

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

/// All children start their work at once.
inline std::vector<std::string> together(int count, const std::function<std::string(int)>& work) {
  int gate[2];
  if (pipe2(gate, O_CLOEXEC) != 0) std::abort();
  std::vector<Child> children;
  for (int i = 0; i < count; ++i)
    children.emplace_back([&, i] {
      close(gate[1]);
      char byte;
      const auto ignored = read(gate[0], &byte, 1);  // returns when the parent closes its end
      (void)ignored;
      return work(i);
    });
  close(gate[0]);
  close(gate[1]);
  std::vector<std::string> out;
  for (auto& child : children) out.push_back(child.wait());
  return out;
}

/// Runs `work` in a child that has a small file system of its own mounted on `at`, which nobody
/// else sees. "SKIPPED: ..." when mounting is not permitted.
inline std::string with_small_disk(const std::string& at, const std::string& size,
                                   const std::function<std::string()>& work) {
  return Child([&]() -> std::string {
           if (unshare(CLONE_NEWNS) != 0 ||
               mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
               mount("qturn-test", at.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0)
             return "SKIPPED: mounting a tmpfs is not permitted here";
           return work();
         })
      .wait();
}

inline bool remount(const std::string& at, unsigned long flags) {
  return mount("qturn-test", at.c_str(), "tmpfs", MS_REMOUNT | flags, nullptr) == 0;
}

/// True, having said so, when a child could not do its test.
inline bool skipped(const std::string& result) {
  if (!result.starts_with("SKIPPED: ")) return false;
  std::fputs((result + "\n").c_str(), stdout);
  return true;
}

}  // namespace quarterturn::test

/// Inside a child: leaves with the place and the reason.
#define CHILD_OK(expression)                             \
  if (const auto& status_ = (expression); !status_.ok()) \
  return fmt::format("{}:{}: {}", __FILE__, __LINE__, quarterturn::test::why(status_))
#define CHILD_CHECK(condition) \
  if (!(condition)) return fmt::format("{}:{}: {}", __FILE__, __LINE__, #condition)

namespace quarterturn::test {
inline std::string why(const Status& status) { return status.message(); }
template <class T>
std::string why(const Result<T>& result) {
  return result.status().message();
}
}  // namespace quarterturn::test
