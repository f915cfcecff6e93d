#include "runtime/worker.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;
using test::TemporaryFolder;
using End = WorkerReport::End;

namespace {

// Every case runs with quarterturn-worker and with the shell that stands in for it.
struct Both {
  Worker program;
  Worker shell{"/nonexistent/quarterturn-worker"};
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A zombie that nobody reaps yet counts as gone.
bool is_gone(int pid) {
  const auto state = TemporaryFolder::read(fmt::format("/proc/{}/stat", pid));
  return state.empty() || state.find(") Z") != std::string::npos;
}

bool goes_away(int pid) {
  for (int i = 0; i < 200 && !is_gone(pid); ++i) usleep(10000);
  return is_gone(pid);
}

template <class Body>
void with_each(Body body) {
  const Both both;
  REQUIRE_MESSAGE(!both.program.path().empty(),
                  "quarterturn-worker must be found in the build tree");
  REQUIRE(both.shell.path().empty());
  SUBCASE("quarterturn-worker") { body(both.program); }
  SUBCASE("/bin/sh") { body(both.shell); }
}

}  // namespace

TEST_CASE("worker.reports exit status and output") {
  with_each([](const Worker& worker) {
    const auto report = worker.run({{"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, "", {}});
    REQUIRE(report.ok());
    CHECK(report->end == End::exited);
    CHECK(report->code == 3);
    CHECK(report->output == "out\nerr\n");
    CHECK_FALSE(report->succeeded());
    CHECK(worker.run({{"/bin/true"}, "", {}})->succeeded());
  });
}

TEST_CASE("worker.runs in the folder that is asked for, whatever its name") {
  with_each([](const Worker& worker) {
    const TemporaryFolder folder;
    const auto place = folder.file("Jos\xc3\xa9 and $(more)");
    std::filesystem::create_directory(place);
    const auto report = worker.run({{"/bin/sh", "-c", "echo here > mark"}, place, {}});
    CHECK(report->succeeded());
    CHECK(std::filesystem::exists(place + "/mark"));
  });
}

TEST_CASE("worker.a program that hangs is killed with its children") {
  with_each([](const Worker& worker) {
    const TemporaryFolder folder;
    const auto start = std::chrono::steady_clock::now();
    const auto report = worker.run(
        {{"/bin/sh", "-c", "(sleep 30 & echo $! > child); sleep 30"}, folder.path(), {1, 10, 0}});
    CHECK(report->end == End::timed_out);
    CHECK(seconds_since(start) < 8);
    CHECK(report->ending({1, 10, 0}).find("1 s") != std::string::npos);
    CHECK(goes_away(std::stoi(TemporaryFolder::read(folder.file("child")))));
  });
}

TEST_CASE("worker.the CPU time limit ends a loop") {
  with_each([](const Worker& worker) {
    const auto report = worker.run({{"/bin/sh", "-c", "while :; do :; done"}, "", {20, 1, 0}});
    CHECK(report->end == End::signalled);
    CHECK((report->code == SIGXCPU || report->code == SIGKILL));
  });
}

TEST_CASE("worker.the memory limit holds") {
  with_each([](const Worker& worker) {
    const TemporaryFolder folder;
    // A shell variable that doubles until memory runs out.
    const auto report =
        worker.run({{"/bin/sh", "-c", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"},
                    "",
                    {20, 20, std::int64_t{200} << 20}});
    REQUIRE(report.ok());
    CHECK(report->end != End::timed_out);
    CHECK_FALSE(report->succeeded());
  });
}

TEST_CASE("worker.a crash is reported by its signal") {
  with_each([](const Worker& worker) {
    const auto report = worker.run({{"/bin/sh", "-c", "kill -SEGV $$"}, "", {}});
    CHECK(report->end == End::signalled);
    CHECK(report->code == SIGSEGV);
  });
}

TEST_CASE("worker.a program that is not there") {
  with_each([](const Worker& worker) {
    const auto report = worker.run({{"/nonexistent/compiler"}, "", {}});
    REQUIRE(report.ok());
    CHECK(report->end == End::not_started);
    CHECK(report->ending({}).find("No such file") != std::string::npos);
  });
}

TEST_CASE("worker.floods of output are cut, not stored") {
  with_each([](const Worker& worker) {
    const auto report = worker.run({{"/bin/sh", "-c", "yes 0123456789 | head -c 3000000"}, "", {}});
    CHECK(report->succeeded());
    CHECK(report->output.size() == 256 * 1024);
  });
}

TEST_CASE("worker.no descriptor of the host reaches the program") {
  with_each([](const Worker& worker) {
    const TemporaryFolder folder;
    const int leaked = open(folder.write("secret", "x").c_str(), O_RDONLY);  // not close-on-exec
    const int high = fcntl(leaked, F_DUPFD, 200);
    const auto report = worker.run({{"/bin/ls", "/proc/self/fd"}, "", {}});
    close(leaked);
    close(high);
    // ls itself opens one: 0, 1, 2 and the folder.
    CHECK(report->output == "0\n1\n2\n3\n");
  });
}

TEST_CASE("worker.hosts that ignore or reap SIGCHLD, or block signals") {
  with_each([](const Worker& worker) {
    struct sigaction ignore {
    }, before{};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGCHLD, &ignore, &before);
    auto report = worker.run({{"/bin/sh", "-c", "exit 5"}, "", {}});
    CHECK(report->end == End::exited);
    CHECK(report->code == 5);
    struct sigaction now {};
    sigaction(SIGCHLD, nullptr, &now);
    CHECK((now.sa_handler == SIG_IGN));

    ignore.sa_handler = [](int) {
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
    };
    sigaction(SIGCHLD, &ignore, nullptr);
    report = worker.run({{"/bin/sh", "-c", "exit 6"}, "", {}});
    CHECK(report->code == 6);
    sigaction(SIGCHLD, &before, nullptr);

    sigset_t all, mask;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &mask);
    report = worker.run({{"/bin/sh", "-c", "kill -TERM $$; exit 0"}, "", {}});
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    CHECK(report->end == End::signalled);
    CHECK(report->code == SIGTERM);
  });
}

TEST_CASE("worker.a host that has closed its standard streams") {
  with_each([](const Worker& worker) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      const int answer = fcntl(ends[1], F_DUPFD, 100);
      for (int fd = 0; fd < 50; ++fd) close(fd);
      const auto report = worker.run({{"/bin/echo", "hello"}, "", {}});
      const char verdict = report.ok() && report->output == "hello\n" ? 'y' : 'n';
      _exit(write(answer, &verdict, 1) == 1 ? 0 : 1);
    }
    close(ends[1]);
    char verdict = 0;
    CHECK(read(ends[0], &verdict, 1) == 1);
    CHECK(verdict == 'y');
    close(ends[0]);
    waitpid(pid, nullptr, 0);
  });
}

TEST_CASE("worker.the program dies with its host") {
  const Worker worker;
  const TemporaryFolder folder;
  const pid_t pid = fork();
  if (pid == 0) {
    (void)worker.run(
        {{"/bin/sh", "-c", "echo $$ > child; exec sleep 30"}, folder.path(), {30, 30, 0}});
    _exit(0);
  }
  for (int i = 0; i < 200 && TemporaryFolder::read(folder.file("child")).empty(); ++i)
    usleep(10000);
  const int program = std::stoi(TemporaryFolder::read(folder.file("child")));
  CHECK(kill(program, 0) == 0);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  CHECK(goes_away(program));
}
