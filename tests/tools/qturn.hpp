// Runs the built qturn in a home of its own: arguments in, exit code, stdout and stderr out.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace qturn_test {

using nlohmann::json;

/// What a run left; lines of stdout as JSON where they are.
struct Outcome {
  int code = -1;   ///< exit code, or -1
  int signal = 0;  ///< that ended it, or 0
  double seconds = 0;
  std::string out, err;

  std::vector<json> lines() const {
    std::vector<json> all;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) {
      auto parsed = json::parse(line, nullptr, false);
      REQUIRE_MESSAGE(parsed.is_object(), "not a JSON object: " << line);
      all.push_back(std::move(parsed));
    }
    return all;
  }
  bool says(const std::string& text) const { return (out + err).find(text) != std::string::npos; }
};

class Running {
 public:
  Running(pid_t pid, int out, int err) : pid_(pid), out_(out), err_(err) {}
  void send(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }

  /// Reads until both ends close, or until `enough` is satisfied by what came so far.
  template <class Enough>
  bool read_until(double seconds, const Enough& enough) {
    const auto begun = std::chrono::steady_clock::now();
    while (!enough(outcome_)) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun;
      if (passed.count() > seconds || (out_ < 0 && err_ < 0)) return enough(outcome_);
      pollfd both[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
      if (poll(both, 2, 100) <= 0) continue;
      if (both[0].revents) take(out_, outcome_.out);
      if (both[1].revents) take(err_, outcome_.err);
    }
    return true;
  }

  Outcome finish(double seconds) {
    const auto begun = std::chrono::steady_clock::now();
    if (!read_until(seconds, [](const Outcome&) { return false; }) && (out_ >= 0 || err_ >= 0)) {
      kill(pid_, SIGKILL);
      FAIL_CHECK("qturn did not end within " << seconds << " s; so far: " << outcome_.err);
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    for (const int fd : {out_, err_})
      if (fd >= 0) close(fd);
    outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    outcome_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return outcome_;
  }

 private:
  static void take(int& fd, std::string& to) {
    char bytes[4096];
    const auto n = read(fd, bytes, sizeof bytes);
    if (n > 0) {
      to.append(bytes, static_cast<std::size_t>(n));
    } else {
      close(fd);
      fd = -1;
    }
  }

  pid_t pid_;
  int out_, err_;
  Outcome outcome_;
};

/// A folder that is HOME and holds database and cache; compiled code is shared by all tests and
/// kept in the build folder.
class Home {
 public:
  Home() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qturn-tools-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    variables_ = {
        {"HOME", pattern}, {"QTURN_CODE_CACHE", QTURN_CODE_FOLDER}, {"QTURN_BACKEND", "cpu"}};
  }
  ~Home() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  void unset(const std::string& name) { variables_.erase(name); }

  /// From now on stderr is a terminal of this many columns.
  void use_terminal(unsigned short columns) { columns_ = columns; }

  /// From now on programs run as somebody whom permissions stop; all that is here becomes his.
  void become_nobody() {
    if (geteuid() != 0) return;
    user_ = 65534;
    REQUIRE(chown(path_.c_str(), user_, user_) == 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      REQUIRE(lchown(entry.path().c_str(), user_, user_) == 0);
  }

  Running start(const std::vector<std::string>& arguments,
                const std::string& program = QTURN_PROGRAM) const {
    int out[2], err[2];
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    if (columns_ > 0)
      open_terminal(err);
    else
      REQUIRE(pipe2(err, O_CLOEXEC) == 0);
    std::vector<std::string> environment;
    if (variables_.count("PATH") == 0)
      environment.push_back("PATH=" + std::string(std::getenv("PATH")));
    for (const auto& [name, value] : variables_) environment.push_back(name + "=" + value);
    std::vector<char*> argv{const_cast<char*>(program.c_str())}, envp;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    for (const auto& variable : environment) envp.push_back(const_cast<char*>(variable.c_str()));
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      if (user_ != 0 && (setgid(user_) != 0 || setuid(user_) != 0)) _exit(126);
      // A test that runs in a script's background ignores SIGINT, and what it begins would, too.
      for (const int each : {SIGINT, SIGHUP, SIGPIPE}) signal(each, SIG_DFL);
      dup2(open("/dev/null", O_RDONLY), 0);
      dup2(out[1], 1);
      dup2(err[1], 2);
      execve(program.c_str(), argv.data(), envp.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    return Running(pid, out[0], err[0]);
  }

  Outcome run(const std::vector<std::string>& arguments, double seconds = 240) const {
    return start(arguments).finish(seconds);
  }

  /// A number that `qturn db info --json` states.
  std::int64_t info(const std::string& what) const {
    const auto outcome = run({"db", "info", "--json"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    for (const auto& line : outcome.lines()) {
      if (line.contains(what)) return line.at(what).get<std::int64_t>();
      if (line.value("what", "") == what) return line.at("value").get<std::int64_t>();
    }
    FAIL("db info does not state " << what << ": " << outcome.out);
    return 0;
  }

  std::string database() const { return (path_ / ".cache/quarterturn/tuning.db").string(); }

 private:
  void open_terminal(int ends[2]) const {
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(ends[0] >= 0);
    REQUIRE(grantpt(ends[0]) == 0);
    REQUIRE(unlockpt(ends[0]) == 0);
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(ends[1] >= 0);
    winsize size{};
    size.ws_col = columns_;
    size.ws_row = 24;
    REQUIRE(ioctl(ends[1], TIOCSWINSZ, &size) == 0);
  }

  std::filesystem::path path_;
  unsigned short columns_ = 0;
  uid_t user_ = 0;  ///< 0: as this test
  std::map<std::string, std::string> variables_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// An executable script in `home`.
inline std::string script(const Home& home, const std::string& name, const std::string& text) {
  const auto path = (home / name).string();
  std::ofstream(path) << "#!/bin/sh\n" << text;
  std::filesystem::permissions(path, std::filesystem::perms(0755));
  return path;
}

inline std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> out;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) out.push_back(line);
  return out;
}

/// The first column of a query over a database that nobody writes.
inline std::vector<std::string> rows(const std::string& database, const std::string& query) {
  std::vector<std::string> out;
  sqlite3* handle = nullptr;
  REQUIRE(sqlite3_open_v2(database.c_str(), &handle, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK);
  sqlite3_busy_timeout(handle, 10000);
  sqlite3_stmt* statement = nullptr;
  REQUIRE(sqlite3_prepare_v2(handle, query.c_str(), -1, &statement, nullptr) == SQLITE_OK);
  while (sqlite3_step(statement) == SQLITE_ROW) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    out.emplace_back(text ? text : "");
  }
  sqlite3_finalize(statement);
  sqlite3_close(handle);
  return out;
}

/// A small problem whose kernels compile quickly, tuned with few candidates.
inline std::vector<std::string> small_tune(const std::vector<std::string>& more = {},
                                           const std::string& candidates = "3") {
  std::vector<std::string> out{"tune",     "--shape",   "4x96x128", "--candidates",
                               candidates, "--threads", "2",        "--json"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace qturn_test
