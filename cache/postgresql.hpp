// RAII around libpq: a connection to a PostgreSQL server, statements with bound values, arrays.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn::pg {

struct Libpq;
struct PGconn;
struct PGresult;

/// Whether the text is what `--store` takes: postgresql:// or postgres://.
bool is_url(std::string_view text);
/// Whether the URL holds a password, which then stands in command lines and scripts.
Result<bool> holds_password(const std::string& url);

/// Rows of one statement; valid after the connection is gone.
class Rows {
 public:
  Rows(const Libpq* api, PGresult* result) : result_(result, Clear{api}), api_(api) {}

  int count() const;
  bool is_null(int row, int column) const;
  std::string_view text(int row, int column) const;
  std::int64_t integer(int row, int column) const;
  double real(int row, int column) const;
  std::string bytes(int row, int column) const;  ///< of a bytea
  /// Rows that an INSERT, UPDATE or DELETE changed.
  std::int64_t changed() const;

 private:
  struct Clear {
    const Libpq* api;
    void operator()(PGresult* result) const;
  };
  std::unique_ptr<PGresult, Clear> result_;
  const Libpq* api_;
};

/// One connection. Not thread-safe; its owner locks.
///
/// Errors: io_error: the server is not reachable, went away, or said nothing for `silence`; the
/// connection is then closed for good. read_only: the role may not do this, or the server only
/// reads. disk_full: the server's. busy: what it collided with may be gone at the next try.
/// internal: anything else, with the server's message. No message holds the URL's password.
class Connection {
 public:
  /// `url` and the PG* variables are libpq's own, TLS, service and password files included. Where
  /// none of them says how long connecting may take, it is 10 seconds for each address.
  /// invalid_argument: no URL that libpq takes; no_driver: no libpq.
  static Result<Connection> open(const std::string& url,
                                 std::chrono::seconds silence = std::chrono::seconds(30));
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection() { close(); }

  /// One statement with its values, $1 and so on.
  Result<Rows> execute(const std::string& statement, std::span<const std::string> values = {});
  Result<Rows> execute(const std::string& statement, std::initializer_list<std::string> values) {
    return execute(statement, std::span(values.begin(), values.size()));
  }
  /// Statements without values, one after the other.
  Status run(const std::string& statements);
  /// Rows as they arrive, one at a time; a status that is not ok ends it, and the connection.
  Status each(const std::string& statement, std::span<const std::string> values,
              const std::function<Status(const Rows&)>& row);

  bool is_open() const { return handle_ != nullptr; }
  void close();
  /// "postgresql://user@host:5432/database", for people.
  const std::string& name() const { return name_; }
  /// What the server says of itself: "server_encoding", "is_superuser", ...
  std::string parameter(const char* name) const;

 private:
  Connection() = default;
  Status send(const std::string& statement, std::span<const std::string> values);
  Status wait(short events);
  Status ready();
  Status status_of(const PGresult* result);
  Status lost(std::string_view why);
  std::string scrubbed(std::string text) const;

  const Libpq* api_ = nullptr;
  PGconn* handle_ = nullptr;
  std::chrono::seconds silence_{30};
  std::string name_, password_;
};

/// The text of an array, as a statement's value.
class Array {
 public:
  void add(std::string_view text);
  void add(const std::string& text) { add(std::string_view(text)); }
  void add(const char* text) { add(std::string_view(text)); }
  void add(std::int64_t value);
  void add(double value);
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { add(static_cast<std::int64_t>(value)); }
  void add_bytes(const void* data, std::size_t size);
  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  void separate() { text_ += text_.empty() ? '{' : ','; }

  std::string text_;
};

/// A bytea as a statement's value.
std::string bytes_text(const void* data, std::size_t size);

bool is_utf8(std::string_view text);
/// With '?' for every byte that is no UTF-8, and for NUL.
std::string as_utf8(std::string_view text);

/// Rolls back unless committed; nothing is sent where the connection is lost.
class Transaction {
 public:
  enum class Kind { write, snapshot };  ///< snapshot: reads only, all of one moment
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

}  // namespace quarterturn::pg
