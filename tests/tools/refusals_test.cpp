// What a command meets and never aborts on: folders instead of files, full disks, names that are
// no text, counts without sense; and signals that whoever began it has it ignore.
#include <doctest/doctest.h>

#include <thread>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

/// `command` of a shell, in which "$0" is qturn.
Running start_in_shell(const Home& home, const std::string& command) {
  return home.start({"-c", command, QTURN_PROGRAM}, "/bin/sh");
}

/// One of the signal masks that the kernel shows of a process: SigIgn, SigCgt.
std::uint64_t signals_of(pid_t pid, const std::string& mask) {
  for (const auto& line : lines_of("/proc/" + std::to_string(pid) + "/status"))
    if (line.starts_with(mask + ":")) return std::stoull(line.substr(mask.size() + 1), nullptr, 16);
  return 0;
}

bool holds(std::uint64_t mask, int signal) { return (mask >> (signal - 1) & 1) != 0; }

// Until it has become qturn, it has the handlers of this test.
bool watches_sigterm(pid_t pid) {
  for (int i = 0; i < 3000; ++i) {
    const auto status = lines_of("/proc/" + std::to_string(pid) + "/status");
    const bool is_qturn = !status.empty() && status[0] == "Name:\tqturn";
    if (is_qturn && holds(signals_of(pid, "SigCgt"), SIGTERM)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("a folder, or a file that cannot be read, in place of a file is one line and exit 3") {
  Home home;
  const auto folder = (home / "folder").string();
  std::filesystem::create_directory(folder);
  const std::string unreadable = "/proc/self/mem";
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"cluster", "status", folder},
           {"cluster", "status", unreadable},
           {"doctor", "--compare", folder},
           {"doctor", "--compare", unreadable},
           {"lock", "check", folder},
           {"lock", "check", unreadable},
           {"db", "import", unreadable, "--db", (home / "a.db").string()}}) {
    const auto outcome = home.run(command);
    CHECK_MESSAGE(outcome.code == 3, command[1] << ": " << outcome.err);
    CHECK_MESSAGE(outcome.says(command[2]), outcome.err);
  }
  const auto piped = start_in_shell(home, "\"$0\" doctor --compare - < " + folder).finish(60);
  CHECK_MESSAGE(piped.code == 3, piped.err);
  CHECK(piped.says("standard input"));
  const auto site = home / "site";
  std::filesystem::create_directory(site);
  std::filesystem::create_symlink(unreadable, site / "CURRENT");
  CHECK(home.run({"db", "generations", site.string()}).code == 3);
  home.set("QTURN_LOCK", folder);
  const auto held = home.run({"explain", "--shape", "4x96x128"});
  CHECK_MESSAGE(held.code == 3, held.err);
  CHECK(held.says(folder));
}

TEST_CASE("what does not reach standard output is said, but for a reader who has seen enough") {
  const Home home;
  const auto full = start_in_shell(home, "\"$0\" config > /dev/full").finish(60);
  CHECK(full.code == 3);
  CHECK_MESSAGE(full.err.find("No space left") != std::string::npos, full.err);
  // As a parent that ignores SIGPIPE begins it; the reader is gone before anything is written.
  const auto go = (home / "go").string(), code = (home / "code").string();
  const auto closed =
      start_in_shell(home, "trap '' PIPE; (while [ ! -e " + go +
                               " ]; do sleep 0.01; done; \"$0\" config; echo $? > " + code +
                               ") | (exec 0<&-; touch " + go + ")")
          .finish(60);
  CHECK_MESSAGE(closed.err.empty(), closed.err);
  CHECK(read_file(code) == "0\n");
}

TEST_CASE("a path that is no UTF-8 text is refused before anything is tried") {
  Home home;
  home.unset("QTURN_CODE_CACHE");
  home.set("QTURN_CACHE_DIR", (home / "c\xff").string());
  const auto outcome = home.run(small_tune());
  CHECK_MESSAGE(outcome.code == 2, outcome.err);
  CHECK_MESSAGE(outcome.says("is not UTF-8 text"), outcome.err);
}

TEST_CASE("counts below zero, without bound, and NaN are refused") {
  const Home home;
  const auto campaign = (home / "c").string(), db = (home / "a.db").string();
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"cluster", "work", campaign, "--cores", "-1"},
           {"cluster", "work", campaign, "--cores", "99999999"},
           {"cluster", "work", campaign, "--interval", "nan"},
           {"cluster", "submit", campaign, "--cores", "0"},
           {"cluster", "submit", campaign, "--restarts", "-1"},
           {"cluster", "submit", campaign, "--at-once", "-1"},
           {"cluster", "submit", campaign, "--cpu-cores", "-1"},
           {"db", "prune", "--db", db, "--most-bytes", "-1"},
           {"db", "prune", "--db", db, "--code-bytes", "-1K"},
           {"db", "prune", "--db", db, "--most-bytes", "9000000T"},
           {"db", "prune", "--db", db, "--older-than", "nan"},
           {"db", "prune", "--db", db, "--older-than", "1e9"},
           {"tune", "--shape", "4x96x128", "--time-limit", "nan"}}) {
    const auto outcome = home.run(command);
    CHECK_MESSAGE(outcome.code == 2, command[1] << " " << command.back() << ": " << outcome.err);
    CHECK_MESSAGE(outcome.says(command[command.size() - 2]), outcome.err);
  }
}

TEST_CASE("signals that nohup or a script has it ignore stay ignored") {
  const Home home;
  auto running = start_in_shell(
      home, "trap '' HUP INT; exec \"$0\" tune --shape 4x96x128 --candidates 40 --threads 2");
  REQUIRE(watches_sigterm(running.pid()));
  const auto ignored = signals_of(running.pid(), "SigIgn");
  CHECK(holds(ignored, SIGHUP));
  CHECK(holds(ignored, SIGINT));
  running.send(SIGTERM);
  CHECK(running.finish(60).code == 130);
}

TEST_CASE("a worker that waits for who copies out of its folder hears SIGTERM") {
  const Home home;
  const auto campaign = (home / "c").string(), scratch = (home / "scratch").string();
  const auto planned =
      home.run({"cluster", "plan", "--op", "quantize", "--shape", "4x64", "--shards", "1",
                "--cores", "2", "--candidates", "3", "--threads", "2", "-o", campaign});
  REQUIRE_MESSAGE(planned.code == 0, planned.err);
  const std::string mark = "campaign ";
  const auto at = planned.err.find(mark) + mark.size();
  const auto id = planned.err.substr(at, planned.err.find(' ', at) - at);
  const auto base = scratch + "/quarterturn-" + std::to_string(geteuid()) + "-" + id;
  std::filesystem::create_directories(base + "/shard-0000");
  std::filesystem::permissions(base, std::filesystem::perms(0700));
  const int lock =
      open((base + "/shard-0000/working.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct flock copying {};
  copying.l_type = F_WRLCK;
  copying.l_whence = SEEK_SET;
  copying.l_start = 1;
  copying.l_len = 1;
  REQUIRE(fcntl(lock, F_OFD_SETLK, &copying) == 0);
  auto running = home.start({"cluster", "work", campaign, "--shard", "0", "--scratch", scratch,
                             "--threads", "2", "--cores", "2"});
  REQUIRE(watches_sigterm(running.pid()));
  running.send(SIGTERM);
  const auto outcome = running.finish(60);
  CHECK_MESSAGE(outcome.code == 130, outcome.err);
  CHECK_MESSAGE(outcome.says("copied what was left"), outcome.err);
  close(lock);
}
