// Log: what the library has to say, to the caller's function and to nowhere else.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

namespace quarterturn {

enum class LogLevel { error, warning, info, debug };

/// Immutable; the function may be called from any thread.
class Log {
 public:
  using Function = std::function<void(LogLevel, const char* message)>;

  Log() = default;
  Log(Function function, LogLevel most) : function_(std::move(function)), most_(most) {}

  bool wants(LogLevel level) const { return function_ && level <= most_; }

  template <class... Values>
  void operator()(LogLevel level, fmt::format_string<Values...> text, Values&&... values) const {
    if (wants(level)) function_(level, fmt::format(text, std::forward<Values>(values)...).c_str());
  }

 private:
  Function function_;
  LogLevel most_ = LogLevel::warning;
};

}  // namespace quarterturn
