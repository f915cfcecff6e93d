// RAII around the SQLite C API: a connection, a query with bound values, a transaction.
#pragma once

#include <sqlite3.h>

#include <array>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "generator/status.hpp"

namespace quarterturn::sqlite {

/// What a SQLite result code means for us; `doing` completes "cannot ...".
Status status_of(sqlite3* handle, int code, std::string_view doing);

using Bytes = std::span<const unsigned char>;

/// One connection, hardened against files that others wrote: no triggers, no views, no functions
/// named by a schema, no mapped memory, bounded row sizes. Not thread-safe; its owner locks.
class Connection {
 public:
  Connection() = default;
  ~Connection() { close(); }
  Connection(Connection&& other) noexcept { *this = std::move(other); }
  Connection& operator=(Connection&& other) noexcept;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// `flags`: SQLITE_OPEN_*. The busy timeout is set before anything that may wait.
  static Result<Connection> open(const std::string& name, int flags,
                                 std::chrono::milliseconds wait);

  explicit operator bool() const { return handle_ != nullptr; }
  sqlite3* handle() const { return handle_; }
  std::chrono::milliseconds wait() const { return wait_; }
  void close();
  /// Forgets the connection without closing it: in a forked child, closing would disturb the
  /// parent.
  void abandon();

  /// Runs statements that take no values and whose rows nobody wants.
  Status execute(const std::string& statements);
  /// The first column of the first row; empty text or 0 when there is no row.
  Result<std::int64_t> integer(const std::string& statement);
  Result<std::string> text(const std::string& statement);

  std::int64_t changes() const { return sqlite3_changes64(handle_); }

 private:
  friend class Query;
  sqlite3_stmt* cached(const std::string& sql, Status& status);

  sqlite3* handle_ = nullptr;
  std::chrono::milliseconds wait_{0};
  std::unordered_map<std::string, sqlite3_stmt*> statements_;
};

/// A prepared statement with its values bound; statements are kept by the connection and reused.
class Query {
 public:
  template <class... Values>
  Query(Connection& connection, const std::string& sql, const Values&... values)
      : connection_(connection), statement_(connection.cached(sql, status_)) {
    int index = 0;
    (bind(++index, values), ...);
  }
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  /// Steps to the next row; false at the end and on an error, which status() then holds.
  bool next();
  const Status& status() const { return status_; }
  /// Steps to the end.
  Status run();

  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double real(int column) const { return sqlite3_column_double(statement_, column); }
  std::string text(int column) const { return std::string(view(column)); }
  std::string_view view(int column) const;  ///< valid until the next step
  Bytes bytes(int column) const;
  int columns() const { return sqlite3_column_count(statement_); }
  int type(int column) const { return sqlite3_column_type(statement_, column); }

  void bind(int index, std::string_view value);
  void bind(int index, Bytes value);
  void bind(int index, double value);
  void bind(int index, const std::string& value) { bind(index, std::string_view(value)); }
  void bind(int index, const char* value) { bind(index, std::string_view(value)); }
  template <class T>
  requires(std::integral<T> || std::is_enum_v<T>) void bind(int index, T value) {
    bind_integer(index, static_cast<std::int64_t>(value));
  }
  template <std::size_t n>
  void bind(int index, const std::array<unsigned char, n>& value) {
    bind(index, Bytes(value));
  }

 private:
  void bind_integer(int index, std::int64_t value);
  void check(int code);

  Connection& connection_;
  Status status_;
  sqlite3_stmt* statement_;
};

/// Rolls back unless committed. Writers begin IMMEDIATE, so that a wait happens at the beginning
/// and never turns into a conflict in the middle.
class Transaction {
 public:
  enum class Kind { deferred, immediate, exclusive };
  Transaction(Connection& connection, Kind kind);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  const Status& status() const { return status_; }
  Status commit();

 private:
  Connection& connection_;
  Status status_;
  bool open_ = false;
};

}  // namespace quarterturn::sqlite
