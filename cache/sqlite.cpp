#include "cache/sqlite.hpp"

#include <fmt/format.h>

#include <cerrno>

namespace quarterturn::sqlite {
namespace {

Code code_of(int code, int system_error) {
  switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
      return Code::ok;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      return Code::busy;
    case SQLITE_FULL:
      return Code::disk_full;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Code::damaged;
    case SQLITE_READONLY:
      return Code::read_only;
    case SQLITE_NOMEM:
      return Code::out_of_memory;
    case SQLITE_INTERRUPT:
      return Code::interrupted;
    case SQLITE_TOOBIG:
      return Code::invalid_argument;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      if (code == SQLITE_IOERR_CORRUPTFS) return Code::damaged;
      // SQLite extends its shared-memory file page by page; it fails so only when the disk is full.
      if (code == SQLITE_IOERR_SHMSIZE) return Code::disk_full;
      if (system_error == ENOSPC || system_error == EDQUOT) return Code::disk_full;
      if (system_error == EROFS || system_error == EACCES || system_error == EPERM)
        return Code::read_only;
      return Code::io_error;
    default:
      return Code::internal;
  }
}

}  // namespace

Status status_of(sqlite3* handle, int code, std::string_view doing) {
  const int system_error = handle != nullptr ? sqlite3_system_errno(handle) : 0;
  const Code ours = code_of(code, system_error);
  if (ours == Code::ok) return {};
  const char* detail = handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(code);
  // SQLite's own words for it are often "disk I/O error".
  const char* full = ours == Code::disk_full ? "the disk is full: " : "";
  return {ours, fmt::format("cannot {}: {}{} (SQLite {})", doing, full, detail, code)};
}

Connection& Connection::operator=(Connection&& other) noexcept {
  if (this == &other) return *this;
  close();
  handle_ = std::exchange(other.handle_, nullptr);
  wait_ = other.wait_;
  statements_ = std::move(other.statements_);
  other.statements_.clear();
  return *this;
}

Result<Connection> Connection::open(const std::string& name, int flags,
                                    std::chrono::milliseconds wait) {
  Connection connection;
  connection.wait_ = wait;
  // NOMUTEX: the Database that owns this connection serialises its use.
  const int code = sqlite3_open_v2(name.c_str(), &connection.handle_,
                                   flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  if (code != SQLITE_OK) {
    Status status = status_of(connection.handle_, code, fmt::format("open {}", name));
    return status;
  }
  sqlite3* handle = connection.handle_;
  sqlite3_busy_timeout(handle, static_cast<int>(wait.count()));
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DQS_DML, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DQS_DDL, 0, nullptr);
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, 64 << 20);
  sqlite3_limit(handle, SQLITE_LIMIT_TRIGGER_DEPTH, 1);
  // These two read no file, so they cannot wait.
  const Status status = connection.execute("PRAGMA cell_size_check=ON; PRAGMA mmap_size=0;");
  if (!status.ok()) return status;
  return connection;
}

void Connection::close() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  statements_.clear();
  if (handle_ != nullptr) sqlite3_close_v2(handle_);
  handle_ = nullptr;
}

void Connection::abandon() {
  statements_.clear();
  handle_ = nullptr;
}

Status Connection::execute(const std::string& statements) {
  const int code = sqlite3_exec(handle_, statements.c_str(), nullptr, nullptr, nullptr);
  return status_of(handle_, code, fmt::format("run \"{}\"", statements.substr(0, 80)));
}

Result<std::int64_t> Connection::integer(const std::string& statement) {
  Query query(*this, statement);
  if (query.next()) return query.integer(0);
  if (!query.status().ok()) return query.status();
  return std::int64_t{0};
}

Result<std::string> Connection::text(const std::string& statement) {
  Query query(*this, statement);
  if (query.next()) return query.text(0);
  if (!query.status().ok()) return query.status();
  return std::string{};
}

sqlite3_stmt* Connection::cached(const std::string& sql, Status& status) {
  const auto found = statements_.find(sql);
  if (found != statements_.end()) return found->second;
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(handle_, sql.c_str(), static_cast<int>(sql.size()) + 1,
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) {
    status = status_of(handle_, code, fmt::format("prepare \"{}\"", sql.substr(0, 80)));
    // Our statements fit our schema, so what does not compile meets a schema that is not ours.
    if (code == SQLITE_ERROR) status = Status(Code::damaged, status.message());
    return nullptr;
  }
  statements_.emplace(sql, statement);
  return statement;
}

Query::~Query() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

bool Query::next() {
  if (!status_.ok() || statement_ == nullptr) return false;
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) {
    const std::string sql = sqlite3_sql(statement_);
    status_ = status_of(connection_.handle_, code, fmt::format("run \"{}\"", sql.substr(0, 80)));
  }
  return false;
}

Status Query::run() {
  while (next()) {
  }
  return status_;
}

std::string_view Query::view(int column) const {
  const auto* data = sqlite3_column_text(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr) return {};
  return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)};
}

Bytes Query::bytes(int column) const {
  const auto* data = static_cast<const unsigned char*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return {data, static_cast<std::size_t>(size)};
}

void Query::check(int code) {
  if (code != SQLITE_OK && status_.ok())
    status_ = status_of(connection_.handle_, code, "bind a value");
}

void Query::bind(int index, std::string_view value) {
  if (statement_ == nullptr) return;
  const char* data = value.data() != nullptr ? value.data() : "";
  check(sqlite3_bind_text64(statement_, index, data, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

void Query::bind(int index, Bytes value) {
  if (statement_ == nullptr) return;
  if (value.empty())
    check(sqlite3_bind_zeroblob(statement_, index, 0));
  else
    check(sqlite3_bind_blob64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT));
}

void Query::bind(int index, double value) {
  if (statement_ != nullptr) check(sqlite3_bind_double(statement_, index, value));
}

void Query::bind_integer(int index, std::int64_t value) {
  if (statement_ != nullptr) check(sqlite3_bind_int64(statement_, index, value));
}

Transaction::Transaction(Connection& connection, Kind kind) : connection_(connection) {
  static constexpr const char* begin[] = {"BEGIN DEFERRED", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"};
  status_ = connection_.execute(begin[static_cast<int>(kind)]);
  open_ = status_.ok();
}

Transaction::~Transaction() {
  // A failed rollback leaves nothing behind either: SQLite has then rolled back by itself.
  if (open_) (void)connection_.execute("ROLLBACK");
}

Status Transaction::commit() {
  Status status = connection_.execute("COMMIT");
  if (status.ok()) open_ = false;
  return status;
}

}  // namespace quarterturn::sqlite
