#include "cache/postgresql.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "cache/libpq.hpp"
#include "generator/digest.hpp"

namespace quarterturn::pg {
namespace {

constexpr const char* kConnectSeconds = "10";

void ignore_notice(void*, const char*) {}

// What the URL itself says, without variables and files.
struct UrlFacts {
  std::string password;
  bool has_timeout = false, has_service = false;
};

Result<UrlFacts> facts_of(const Libpq& api, const std::string& url) {
  if (!is_url(url))
    return Status(
        Code::invalid_argument,
        "a shared store is given as postgresql://[user@]host[:port]/database[?option=...]");
  char* error = nullptr;
  PQconninfoOption* const options = api.PQconninfoParse(url.c_str(), &error);
  // libpq's message may quote a piece of the password.
  if (error) api.PQfreemem(error);
  if (!options)
    return Status(Code::invalid_argument,
                  "libpq cannot read the URL of the shared store: "
                  "postgresql://[user@]host[:port]/database[?option=...]; special characters are "
                  "written as %25 and the like");
  UrlFacts out;
  for (const auto* option = options; option->keyword; ++option) {
    if (!option->val) continue;
    const std::string_view name = option->keyword;
    if (name == "password") out.password = option->val;
    out.has_timeout = out.has_timeout || name == "connect_timeout";
    out.has_service = out.has_service || name == "service";
  }
  api.PQconninfoFree(options);
  return out;
}

Code code_of(std::string_view state) {
  if (state.starts_with("08") || state.starts_with("57P") || state == "53300")
    return Code::io_error;
  if (state == "42501" || state == "25006") return Code::read_only;
  if (state == "53100") return Code::disk_full;
  if (state == "40001" || state == "40P01" || state == "55P03" || state == "57014")
    return Code::busy;
  return Code::internal;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (auto& c : text)
    if (c == '\n') c = ' ';
  return text;
}

}  // namespace

bool is_url(std::string_view text) {
  return text.starts_with("postgresql://") || text.starts_with("postgres://");
}

Result<bool> holds_password(const std::string& url) {
  const auto api = libpq();
  if (!api.ok()) return api.status();
  const auto facts = facts_of(**api, url);
  if (!facts.ok()) return facts.status();
  return !facts->password.empty();
}

// ---- rows ----

void Rows::Clear::operator()(PGresult* result) const { api->PQclear(result); }
int Rows::count() const { return api_->PQntuples(result_.get()); }
bool Rows::is_null(int row, int column) const {
  return api_->PQgetisnull(result_.get(), row, column) != 0;
}
std::string_view Rows::text(int row, int column) const {
  return {api_->PQgetvalue(result_.get(), row, column),
          static_cast<std::size_t>(api_->PQgetlength(result_.get(), row, column))};
}
std::int64_t Rows::integer(int row, int column) const {
  const auto value = text(row, column);
  std::int64_t out = 0;
  std::from_chars(value.data(), value.data() + value.size(), out);
  return out;
}
double Rows::real(int row, int column) const {
  const auto value = text(row, column);
  double out = 0;
  std::from_chars(value.data(), value.data() + value.size(), out);
  return out;
}
std::string Rows::bytes(int row, int column) const {
  const auto value = text(row, column);
  const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; };
  std::string out;
  if (!value.starts_with("\\x")) return out;
  out.reserve(value.size() / 2);
  for (std::size_t i = 2; i + 1 < value.size(); i += 2)
    out += static_cast<char>(digit(value[i]) << 4 | digit(value[i + 1]));
  return out;
}
std::int64_t Rows::changed() const { return std::atoll(api_->PQcmdTuples(result_.get())); }

// ---- connection ----

Result<Connection> Connection::open(const std::string& url, std::chrono::seconds silence) {
  const auto api = libpq();
  if (!api.ok()) return api.status();
  const auto facts = facts_of(**api, url);
  if (!facts.ok()) return facts.status();
  Connection out;
  out.api_ = *api;
  out.silence_ = silence;
  out.password_ = facts->password;
  const bool sets_timeout = !facts->has_timeout && !facts->has_service &&
                            !std::getenv("PGCONNECT_TIMEOUT") && !std::getenv("PGSERVICE");
  // The URL comes last: what it says has precedence.
  std::vector<const char*> names{"fallback_application_name"}, values{"qturn"};
  if (sets_timeout) names.push_back("connect_timeout"), values.push_back(kConnectSeconds);
  names.push_back("dbname"), values.push_back(url.c_str());
  names.push_back(nullptr), values.push_back(nullptr);
  out.handle_ = (*api)->PQconnectdbParams(names.data(), values.data(), 1);
  if (!out.handle_) return Status(Code::out_of_memory, "libpq has no memory for a connection");
  const auto part = [&](char* (*what)(const PGconn*)) {
    const char* const text = what(out.handle_);
    return std::string(text ? text : "");
  };
  out.name_ = fmt::format("postgresql://{}@{}:{}/{}", part((*api)->PQuser), part((*api)->PQhost),
                          part((*api)->PQport), part((*api)->PQdb));
  if ((*api)->PQstatus(out.handle_) != kConnectionOk) return out.lost("cannot be reached");
  (*api)->PQsetNoticeProcessor(out.handle_, ignore_notice, nullptr);
  (*api)->PQsetnonblocking(out.handle_, 1);
  // Nothing of ours is looked up in schemas where others may create things.
  if (auto status = out.run("SET search_path = pg_catalog; SET client_encoding = 'UTF8'; "
                            "SET standard_conforming_strings = on; SET bytea_output = 'hex'; "
                            "SET extra_float_digits = 1");
      !status.ok())
    return status;
  return out;
}

Connection::Connection(Connection&& other) noexcept { *this = std::move(other); }
Connection& Connection::operator=(Connection&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(handle_, other.handle_);
  std::swap(silence_, other.silence_);
  std::swap(name_, other.name_);
  std::swap(password_, other.password_);
  return *this;
}

void Connection::close() {
  if (handle_) api_->PQfinish(handle_);
  handle_ = nullptr;
}

std::string Connection::parameter(const char* name) const {
  const char* const value = handle_ ? api_->PQparameterStatus(handle_, name) : nullptr;
  return value ? value : "";
}

std::string Connection::scrubbed(std::string text) const {
  text = trimmed(std::move(text));
  // A short one would be found in ordinary words, and libpq's messages quote none.
  if (password_.size() < 4) return text;
  for (auto at = text.find(password_); at != std::string::npos; at = text.find(password_, at + 3))
    text.replace(at, password_.size(), "***");
  return text;
}

Status Connection::lost(std::string_view why) {
  const std::string reason = handle_ ? scrubbed(api_->PQerrorMessage(handle_)) : "";
  close();
  return {Code::io_error, fmt::format("{} {}{}{}", name_, why, reason.empty() ? "" : ": ", reason)};
}

Status Connection::wait(short events) {
  pollfd file{api_->PQsocket(handle_), events, 0};
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(silence_).count();
  for (;;) {
    const int got = poll(&file, 1, static_cast<int>(milliseconds));
    if (got > 0) return {};
    if (got == 0) return lost(fmt::format("said nothing for {} s", silence_.count()));
    if (errno != EINTR) return lost("cannot be waited for");
  }
}

Status Connection::send(const std::string& statement, std::span<const std::string> values) {
  if (!handle_) return {Code::io_error, fmt::format("the connection to {} is closed", name_)};
  std::vector<const char*> pointers;
  for (const auto& value : values) pointers.push_back(value.c_str());
  const int sent =
      api_->PQsendQueryParams(handle_, statement.c_str(), static_cast<int>(pointers.size()),
                              nullptr, pointers.data(), nullptr, nullptr, 0);
  if (sent != 1) return lost("went away");
  return {};
}

// Until a result can be had without waiting.
Status Connection::ready() {
  for (;;) {
    const int unsent = api_->PQflush(handle_);
    if (unsent < 0) return lost("went away");
    if (unsent == 0 && api_->PQisBusy(handle_) == 0) return {};
    if (auto status = wait(unsent > 0 ? POLLIN | POLLOUT : POLLIN); !status.ok()) return status;
    if (api_->PQconsumeInput(handle_) != 1) return lost("went away");
  }
}

Status Connection::status_of(const PGresult* result) {
  const int status = api_->PQresultStatus(result);
  if (status == kCommandOk || status == kTuplesOk || status == kSingleTuple) return {};
  const auto field = [&](int which) {
    const char* const text = api_->PQresultErrorField(result, which);
    return std::string(text ? text : "");
  };
  const auto state = field(kSqlState);
  if (state.empty() || api_->PQstatus(handle_) != kConnectionOk) return lost("went away");
  return {code_of(state),
          fmt::format("{}: {} (SQLSTATE {})", name_, scrubbed(field(kMessagePrimary)), state)};
}

Result<Rows> Connection::execute(const std::string& statement,
                                 std::span<const std::string> values) {
  Status status = send(statement, values);
  std::vector<Rows> all;
  while (status.ok()) {
    status = ready();
    if (!status.ok()) return status;
    PGresult* const result = api_->PQgetResult(handle_);
    if (!result) break;
    all.emplace_back(api_, result);
    if (const Status one = status_of(result); !one.ok()) {
      if (!handle_) return one;
      // What follows an error is read off, so that the connection can go on.
      for (;;) {
        if (auto rest = ready(); !rest.ok()) return one;
        PGresult* const more = api_->PQgetResult(handle_);
        if (!more) return one;
        api_->PQclear(more);
      }
    }
  }
  if (!status.ok()) return status;
  if (all.empty()) return Status(Code::internal, fmt::format("{} answered nothing", name_));
  return std::move(all.back());
}

Status Connection::run(const std::string& statements) {
  if (!handle_) return {Code::io_error, fmt::format("the connection to {} is closed", name_)};
  if (api_->PQsendQuery(handle_, statements.c_str()) != 1) return lost("went away");
  Status first;
  for (;;) {
    if (auto status = ready(); !status.ok()) return status;
    PGresult* const result = api_->PQgetResult(handle_);
    if (!result) return first;
    const Rows rows(api_, result);
    if (const Status one = status_of(result); first.ok()) first = one;
    if (!handle_) return first;
  }
}

Status Connection::each(const std::string& statement, std::span<const std::string> values,
                        const std::function<Status(const Rows&)>& row) {
  Status status = send(statement, values);
  if (!status.ok()) return status;
  api_->PQsetSingleRowMode(handle_);
  for (;;) {
    if (status = ready(); !status.ok()) return status;
    PGresult* const result = api_->PQgetResult(handle_);
    if (!result) return {};
    const Rows rows(api_, result);
    status = status_of(result);
    if (status.ok() && rows.count() > 0) status = row(rows);
    if (status.ok()) continue;
    close();
    return status;
  }
}

// ---- values ----

std::string bytes_text(const void* data, std::size_t size) {
  static constexpr char digits[] = "0123456789abcdef";
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::string out = "\\x";
  out.reserve(2 * size + 2);
  for (std::size_t i = 0; i < size; ++i) {
    out += digits[bytes[i] >> 4];
    out += digits[bytes[i] & 15];
  }
  return out;
}

void Array::add(std::string_view text) {
  separate();
  text_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') text_ += '\\';
    text_ += c;
  }
  text_ += '"';
}
void Array::add(std::int64_t value) {
  separate();
  fmt::format_to(std::back_inserter(text_), "{}", value);
}
void Array::add(double value) {
  separate();
  fmt::format_to(std::back_inserter(text_), "{}", value);
}
void Array::add_bytes(const void* data, std::size_t size) { add(bytes_text(data, size)); }

namespace {

// The length of a well-formed sequence at the beginning (RFC 3629), else 0.
std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto first = at(0);
  if (first == 0) return 0;
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xc2   ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  const auto second = at(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second > 0x9f, beyond = first == 0xf4 && second > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string as_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto length = utf8_length(text);
    out += length > 0 ? text.substr(0, length) : "?";
    text.remove_prefix(length > 0 ? length : 1);
  }
  return out;
}

// ---- transaction ----

Transaction::Transaction(Connection& connection, Kind kind) : connection_(connection) {
  status_ =
      connection_.run(kind == Kind::write ? "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
                                          : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
  open_ = status_.ok();
}
Transaction::~Transaction() {
  if (open_ && connection_.is_open()) (void)connection_.run("ROLLBACK");
}
Status Transaction::commit() {
  open_ = false;
  return connection_.run("COMMIT");
}

}  // namespace quarterturn::pg
