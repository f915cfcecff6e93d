#include "tuner/commands/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace quarterturn {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLineSeconds = 15;
constexpr std::size_t kBar = 16;

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 80;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto total = static_cast<long>(std::lround(std::max(0.0, seconds)));
  if (total >= 3600)
    return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string progress_line(const Progress& p, std::size_t width) {
  std::string out = fmt::format("{}/{} {}: {}", p.problem, p.problems, p.name, phase_name(p.phase));
  // Before the details: narrow terminals cut the end off.
  out += fmt::format(", {}", clock_text(p.elapsed));
  if (p.remaining > 0) out += fmt::format(", about {} left", clock_text(p.remaining));
  if (p.tried > 0) out += fmt::format(", {} tried", p.tried);
  if (p.best > 1.001) out += fmt::format(", best {:.2f}x the default", p.best);
  if (p.failed > 0)
    out += fmt::format(", {} failed{}", p.failed,
                       p.failures.empty() ? "" : fmt::format(" ({})", p.failures));
  if (out.size() > width) out = out.substr(0, width > 3 ? width - 3 : 0) + "...";
  return out;
}

ProgressDisplay::ProgressDisplay() : terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressDisplay::show(const Progress& progress) {
  const double now = SteadyClock().now();
  const bool decided = progress.phase == Progress::Phase::decided;
  if (now < shown_ + (terminal_ ? kRedrawSeconds : kLineSeconds) || (decided && !terminal_)) return;
  shown_ = now;
  if (!terminal_) {
    std::fprintf(stderr, "qturn: %s\n", progress_line(progress, 200).c_str());
    return;
  }
  const auto filled = kBar * (progress.problem - 1) / std::max<std::size_t>(1, progress.problems);
  const auto width = terminal_width() - 1;
  const auto line =
      fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(kBar - filled, '.'),
                  progress_line(progress, width > kBar + 3 ? width - kBar - 3 : 0));
  std::fprintf(stderr, "\r%-*s", static_cast<int>(drawn_), line.c_str());
  std::fflush(stderr);
  drawn_ = line.size();
}

void ProgressDisplay::clear() {
  if (drawn_ == 0) return;
  std::fprintf(stderr, "\r%-*s\r", static_cast<int>(drawn_), "");
  std::fflush(stderr);
  drawn_ = 0;
}

void ProgressDisplay::say(const std::string& line) {
  clear();
  std::fprintf(stderr, "qturn: %s\n", line.c_str());
}

}  // namespace quarterturn
