// How a session's progress looks: a bar that redraws itself on a terminal, a line now and then
// elsewhere.
#pragma once

#include <string>

#include "tuner/session.hpp"

namespace quarterturn {

/// Writes to stderr.
class ProgressDisplay {
 public:
  ProgressDisplay();
  ~ProgressDisplay() { clear(); }

  void show(const Progress& progress);
  /// Takes the bar away, so that other text can be written.
  void clear();
  /// A line that stays.
  void say(const std::string& line);

 private:
  bool terminal_;
  std::size_t drawn_ = 0;
  double shown_ = -1e9;
};

/// "0:07", "12:30", "2:05:00"
std::string clock_text(double seconds);

/// One line about a progress, at most `width` characters.
std::string progress_line(const Progress& progress, std::size_t width);

}  // namespace quarterturn
