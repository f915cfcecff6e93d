#include "tuner/trial_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace quarterturn {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kPollMs = 50;

}  // namespace

std::string find_trial_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const auto folder = self.parent_path();
  for (const auto* place : {"quarterturn-trial", "../libexec/quarterturn/quarterturn-trial",
                            "../tuner/quarterturn-trial", "../../tuner/quarterturn-trial"}) {
    const auto path = folder / place;
    if (access(path.c_str(), X_OK) == 0) return path.lexically_normal().string();
  }
  return {};
}

TrialProcess::TrialProcess(Problem problem, TrialProcessOptions options)
    : problem_(std::move(problem)),
      options_(std::move(options)),
      sizes_(representative_sizes(problem_).size()) {
  if (options_.program.empty()) options_.program = find_trial_program();
}

TrialProcess::~TrialProcess() { stop(); }

void TrialProcess::change(Problem problem) {
  problem_ = std::move(problem);
  plans_.clear();
  losses_.clear();
  ready_.clear();
  sizes_ = representative_sizes(problem_).size();
  rotation_.clear();
  disproved_.clear();
  data_seconds_ = data_taken_ = 0;
  if (pid_ > 0) pose_problem();
}

double TrialProcess::take_data_seconds() {
  const double out = data_seconds_ - data_taken_;
  data_taken_ = data_seconds_;
  return out;
}

// Where the program has left already, the request that follows finds out and says how.
void TrialProcess::pose_problem() {
  (void)write_line(
      json{{"problem", problem_.key()}, {"settings", options_.settings}, {"data", options_.data}}
          .dump(-1, ' ', true, json::error_handler_t::replace));
}

std::size_t TrialProcess::add(const Plan& plan) {
  plans_.push_back(plan.text());
  losses_.push_back(Loss::none);
  ready_.push_back(false);
  return plans_.size() - 1;
}

void TrialProcess::stop() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  to_ = from_ = -1;
  if (pid_ > 0) {
    // Its own group: a candidate may have made children.
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  buffer_.clear();
  ready_.assign(ready_.size(), false);
}

Status TrialProcess::start() {
  if (pid_ > 0) return {};
  if (options_.program.empty())
    return Status(
        Code::io_error,
        "the program quarterturn-trial, in which candidates are tried, is not beside this one; "
        "the installation is incomplete");
  int requests[2], answers[2];
  if (pipe2(requests, O_CLOEXEC) != 0)
    return Status(Code::io_error, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  if (pipe2(answers, O_CLOEXEC) != 0) {
    const int error = errno;
    close(requests[0]);
    close(requests[1]);
    return Status(Code::io_error, fmt::format("cannot make a pipe: {}", std::strerror(error)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, requests[0], 0);
  posix_spawn_file_actions_adddup2(&actions, answers[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, standard;
  sigemptyset(&none);
  sigemptyset(&standard);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) sigaddset(&standard, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &standard);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  char* const arguments[] = {options_.program.data(), nullptr};
  const int error =
      posix_spawn(&pid_, options_.program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(requests[0]);
  close(answers[1]);
  to_ = requests[1];
  from_ = answers[0];
  if (error != 0) {
    pid_ = -1;
    stop();
    return Status(Code::io_error,
                  fmt::format("cannot start {}: {}", options_.program, std::strerror(error)));
  }
  pose_problem();
  return {};
}

Status TrialProcess::write_line(const std::string& line) {
  // The other side may be dead already: its end of the pipe must not raise SIGPIPE here.
  sigset_t pipe_signal, before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const std::string text = line + "\n";
  std::size_t done = 0;
  bool failed = false;
  while (done < text.size() && !failed) {
    const auto n = write(to_, text.data() + done, text.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else
      failed = errno != EINTR;
  }
  if (failed) {
    const timespec now{};
    sigtimedwait(&pipe_signal, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed ? Status(Code::io_error, "the trial process does not take requests") : Status();
}

Status TrialProcess::lost(std::size_t candidate, Loss how, milliseconds limit) {
  losses_[candidate] = how;
  if (how == Loss::hung) {
    stop();
    return Status(Code::launch_failed,
                  fmt::format("hung: no answer within {} s", limit.count() / 1000));
  }
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  if (ended == pid_) pid_ = -1;
  stop();
  // A batch system ends whole jobs by it, children first or last: no candidate's doing.
  if (ended > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) {
    losses_[candidate] = Loss::none;
    return Status(Code::interrupted, "the trial process was asked to end (SIGTERM)");
  }
  if (ended > 0 && WIFSIGNALED(status))
    return Status(Code::launch_failed, fmt::format("crashed: signal {} ({})", WTERMSIG(status),
                                                   strsignal(WTERMSIG(status))));
  return Status(Code::launch_failed, fmt::format("crashed: the trial process left with status {}",
                                                 ended > 0 ? WEXITSTATUS(status) : -1));
}

Result<json> TrialProcess::request(const json& what, std::size_t candidate, milliseconds limit) {
  losses_[candidate] = Loss::none;
  if (auto status = start(); !status.ok()) return status;
  const auto deadline = steady_clock::now() + limit;
  if (!write_line(what.dump(-1, ' ', true, json::error_handler_t::replace)).ok())
    return lost(candidate, Loss::crashed, limit);
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      const auto line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      auto answer = json::parse(line, nullptr, false);
      if (!answer.is_object()) return lost(candidate, Loss::hung, limit);
      if (answer.value("lost", false)) {
        losses_[candidate] = Loss::crashed;
        stop();
        return Status(Code::launch_failed,
                      "crashed on the device: " + answer.value("message", std::string()));
      }
      // A process that started anew counts from zero.
      const double data = answer.value("data", data_seconds_);
      if (data < data_seconds_) data_taken_ = 0;
      data_seconds_ = data;
      return answer;
    }
    if (options_.interrupted && options_.interrupted()) {
      stop();
      return Status(Code::interrupted, "interrupted");
    }
    if (steady_clock::now() >= deadline) return lost(candidate, Loss::hung, limit);
    pollfd wanted{from_, POLLIN, 0};
    if (poll(&wanted, 1, kPollMs) <= 0) continue;
    char bytes[4096];
    const auto n = read(from_, bytes, sizeof bytes);
    if (n > 0)
      buffer_.append(bytes, static_cast<std::size_t>(n));
    else if (n == 0 || errno != EINTR)
      return lost(candidate, Loss::crashed, limit);
  }
}

namespace {

Status status_of(const json& answer) {
  const auto code = static_cast<Code>(answer.value("code", 900));
  return code == Code::ok ? Status() : Status(code, answer.value("message", "no reason was given"));
}

}  // namespace

Verdict TrialProcess::admit(std::size_t candidate, Depth depth) {
  Verdict out;
  const auto answer =
      request({{"do", "admit"}, {"plan", plans_[candidate]}, {"whole", depth == Depth::whole}},
              candidate, options_.admission_limit);
  if (!answer.ok()) {
    out.status = answer.status();
    return out;
  }
  out.status = status_of(*answer);
  out.certificate.max_error = answer->value("max_error", 0.0);
  out.certificate.outputs = answer->value("outputs", std::int64_t{0});
  out.certificate.all_outputs = answer->value("all_outputs", std::int64_t{0});
  out.certificate.code_rows = answer->value("code_rows", std::int64_t{0});
  out.certificate.bias_z = answer->value("bias_z", 0.0);
  out.certificate.repeatable = answer->value("repeatable", std::int64_t{-1});
  out.certificate.whole = answer->value("whole", true);
  disproved_ = answer->value("disproved", std::string());
  return out;
}

Status TrialProcess::ready(std::size_t candidate) {
  if (pid_ > 0 && ready_[candidate]) return {};
  const auto answer =
      request({{"do", "ready"}, {"plan", plans_[candidate]}}, candidate, options_.run_limit);
  if (!answer.ok()) return answer.status();
  if (auto status = status_of(*answer); !status.ok()) return status;
  rotation_ = answer->value("rotation", std::string());
  ready_[candidate] = true;
  return {};
}

Result<double> TrialProcess::worst(std::size_t candidate) {
  const auto answer =
      request({{"do", "worst"}, {"plan", plans_[candidate]}}, candidate, options_.run_limit);
  if (!answer.ok()) return answer.status();
  if (auto status = status_of(*answer); !status.ok()) return status;
  return answer->value("seconds", 0.0);
}

Result<double> TrialProcess::run(std::size_t candidate, std::size_t size, std::int64_t repeats) {
  const auto answer =
      request({{"do", "run"}, {"plan", plans_[candidate]}, {"size", size}, {"repeats", repeats}},
              candidate, options_.run_limit);
  if (!answer.ok()) return answer.status();
  if (auto status = status_of(*answer); !status.ok()) return status;
  return answer->value("seconds", 0.0);
}

}  // namespace quarterturn
