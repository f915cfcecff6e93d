// Status and Result: how functions inside Quarterturn say what went wrong, without exceptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace quarterturn {

/// Stable numbers: they are the C ABI's `qturn_status` (see qturn.h) and are never reused.
/// 1xx: the caller's argument; 2xx: the machine; 3xx: compilation; 4xx: files and databases.
enum class Code : std::int32_t {
  ok = 0,
  invalid_argument = 100,  ///< a value no call accepts (zero stride, negative size, null pointer)
  invalid_problem = 101,   ///< the problem contradicts itself (K not a multiple of 32, ...)
  not_supported = 102,     ///< meaningful, but no family computes it on this target
  out_of_range = 103,      ///< a run-time dimension outside the range that was prepared
  wrong_operand = 104,     ///< an operand of another layout, rotation, sign or scale rule
  workspace_too_small = 105,
  misaligned = 106,    ///< a pointer or stride below the documented alignment
  unknown_name = 107,  ///< model, family, parameter or device name that nobody knows
  no_device = 200,
  no_driver = 201,
  no_compiler = 202,
  out_of_memory = 203,
  busy = 204,         ///< a bounded wait for another process or thread ran out
  capturing = 205,    ///< a call that may load or compile, made during stream capture
  interrupted = 206,  ///< a signal or a time limit ended the work; what was done is kept
  launch_failed = 207,
  compile_failed = 300,
  compile_timeout = 301,
  rejected = 302,  ///< compiled, but spills, serialised or failed admission
  quarantined = 303,
  unproven = 304,       ///< nothing shows that its kernels compute rightly on such a device
  miss = 400,           ///< nothing stored for the key, and the miss policy is `error`
  not_ours = 401,       ///< a file that is not a Quarterturn file: left untouched
  newer_version = 402,  ///< written by a newer Quarterturn: left untouched
  damaged = 403,
  io_error = 404,
  read_only = 405,
  disk_full = 406,
  network_filesystem = 407,
  not_locked = 408,  ///< the lock file does not name the problem, or holds other code for it
  internal = 900,    ///< a fault of ours: please report it
};

/// The code's stable lower-case name, as printed and as `qturn_status_name` returns it.
std::string_view code_name(Code code);

/// A code and, unless ok, one message: what was given, what is allowed, what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

/// A value or the status that explains its absence.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Status(Code::internal, "a Result was built from an ok Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace quarterturn
