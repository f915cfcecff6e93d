#include "tuner/campaign_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cache/filesystem.hpp"

namespace quarterturn {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::uintmax_t kMostHeartbeatBytes = 4 << 20;

constexpr std::string_view state_names[] = {"running", "done", "incomplete", "interrupted",
                                            "stopped"};

// Of an open file that is given up when it goes out of scope.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0)
      : file_(open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() {
    if (file_ >= 0) ::close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }
  bool ok() const { return file_ >= 0; }
  /// A network file system says here that its disk is full.
  int close() { return ::close(std::exchange(file_, -1)); }

 private:
  int file_;
};

bool write_all(int file, const char* bytes, std::size_t size) {
  while (size > 0) {
    const auto n = ::write(file, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

// `fill` writes the content; false: errno says why not.
template <class Fill>
Status replace_with(const std::string& path, const Fill& fill) {
  const std::string temporary = fmt::format("{}/.{}.tmp", folder_of(path), unique_name());
  const auto doing = fmt::format("write {}", path);
  Status status;
  {
    File file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file.ok()) return system_status(errno, doing);
    if (!fill(file.get()) || fsync(file.get()) != 0 || file.close() != 0)
      status = system_status(errno, doing);
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = system_status(errno, doing);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  const File folder(folder_of(path), O_RDONLY | O_DIRECTORY);
  // Some network file systems have no sync of folders.
  if (folder.ok() && fsync(folder.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    return system_status(errno, fmt::format("sync {}", folder_of(path)));
  return {};
}

std::string name_of(std::size_t shard, const std::string& worker) {
  return fmt::format("shard-{:04}-{}", shard, worker);
}

double seconds_of(const timespec& t) {
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// What time a folder's file system gives to what is written now; nothing: it cannot be written.
std::optional<double> time_in(const std::string& folder) {
  const std::string probe = fmt::format("{}/.{}.tmp", folder, unique_name());
  struct stat info {};
  bool known = false;
  {
    const File file(probe, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file.ok()) return std::nullopt;
    known =
        write_all(file.get(), "t", 1) && fsync(file.get()) == 0 && fstat(file.get(), &info) == 0;
  }
  unlink(probe.c_str());
  if (!known) return std::nullopt;
  return seconds_of(info.st_mtim);
}

}  // namespace

std::string_view state_name(Heartbeat::State state) {
  return state_names[static_cast<std::size_t>(state)];
}

std::string Heartbeat::text() const {
  OrderedJson rows = OrderedJson::array();
  for (const auto& failure : failures)
    rows.push_back({{"problem", failure.problem}, {"reason", failure.reason}});
  const OrderedJson json = {{"quarterturn_heartbeat", 1},
                            {"campaign", campaign},
                            {"shard", shard},
                            {"worker", worker},
                            {"stage", stage},
                            {"state", state_name(state)},
                            {"host", host},
                            {"device", device},
                            {"class", performance_class},
                            {"job", job},
                            {"problems", problems},
                            {"answered", answered},
                            {"tried", tried},
                            {"failed", failed},
                            {"compiled", compiled},
                            {"seconds", seconds},
                            {"estimated_seconds", estimated_seconds},
                            {"interval", interval},
                            {"now", now},
                            {"trouble", trouble},
                            {"written_ns", written},
                            {"failures", rows}};
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Heartbeat> parse_heartbeat(std::string_view text) {
  const auto json = OrderedJson::parse(text, nullptr, false);
  Heartbeat out;
  try {
    if (!json.is_object() || json.at("quarterturn_heartbeat").get<int>() != 1)
      return Status(Code::damaged, "this is no heartbeat that this version knows");
    json.at("campaign").get_to(out.campaign);
    json.at("shard").get_to(out.shard);
    json.at("worker").get_to(out.worker);
    json.at("stage").get_to(out.stage);
    const auto state = json.at("state").get<std::string>();
    const auto* const found = std::find(std::begin(state_names), std::end(state_names), state);
    if (found == std::end(state_names))
      return Status(Code::damaged, fmt::format("the state '{}' is not known", state));
    out.state = static_cast<Heartbeat::State>(found - std::begin(state_names));
    json.at("host").get_to(out.host);
    json.at("device").get_to(out.device);
    json.at("class").get_to(out.performance_class);
    json.at("job").get_to(out.job);
    json.at("problems").get_to(out.problems);
    json.at("answered").get_to(out.answered);
    json.at("tried").get_to(out.tried);
    json.at("failed").get_to(out.failed);
    json.at("compiled").get_to(out.compiled);
    json.at("seconds").get_to(out.seconds);
    json.at("estimated_seconds").get_to(out.estimated_seconds);
    json.at("interval").get_to(out.interval);
    json.at("now").get_to(out.now);
    json.at("trouble").get_to(out.trouble);
    json.at("written_ns").get_to(out.written);
    for (const auto& row : json.at("failures"))
      out.failures.push_back(
          {row.at("problem").get<std::string>(), row.at("reason").get<std::string>()});
  } catch (const OrderedJson::exception& error) {
    return Status(Code::damaged, error.what());
  }
  return out;
}

Status CampaignFolder::make() const {
  std::error_code error;
  fs::create_directories(path_, error);
  if (fs::is_directory(path_)) return {};
  return system_status(error.value(), fmt::format("create the folder {}", path_));
}

std::string CampaignFolder::database(std::size_t shard, const std::string& worker) const {
  return fmt::format("{}/{}.db", path_, name_of(shard, worker));
}

std::string CampaignFolder::heartbeat(std::size_t shard, const std::string& worker) const {
  return fmt::format("{}/{}.json", path_, name_of(shard, worker));
}

std::string CampaignFolder::code(std::size_t shard) const {
  return fmt::format("{}/shard-{:04}.code.tar", path_, shard);
}

Result<std::vector<CampaignFolder::Copy>> CampaignFolder::files(std::string_view ending) const {
  std::vector<Copy> out;
  std::error_code error;
  fs::directory_iterator at(path_, error);
  if (error == std::errc::no_such_file_or_directory) return out;
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const auto name = at->path().filename().string();
    // shard-0003-1f2e3d4c.db
    if (!name.starts_with("shard-") || !name.ends_with(ending)) continue;
    const auto dash = name.find('-', 6);
    if (dash == std::string::npos) continue;
    Copy copy;
    const auto read = std::from_chars(name.data() + 6, name.data() + dash, copy.shard);
    if (read.ec != std::errc() || read.ptr != name.data() + dash) continue;
    copy.worker = name.substr(dash + 1, name.size() - ending.size() - dash - 1);
    copy.path = at->path().string();
    out.push_back(std::move(copy));
  }
  if (error) return system_status(error.value(), fmt::format("read the folder {}", path_));
  std::sort(out.begin(), out.end(), [](const Copy& a, const Copy& b) { return a.path < b.path; });
  return out;
}

Result<std::vector<CampaignFolder::Copy>> CampaignFolder::databases() const { return files(".db"); }

Result<std::vector<CampaignFolder::Copy>> CampaignFolder::databases(std::size_t shard) const {
  auto all = databases();
  if (all.ok()) std::erase_if(*all, [&](const Copy& copy) { return copy.shard != shard; });
  return all;
}

Result<std::vector<SeenHeartbeat>> CampaignFolder::heartbeats() const {
  const auto found = files(".json");
  if (!found.ok()) return found.status();
  std::vector<SeenHeartbeat> out;
  if (found->empty()) return out;
  timespec here{};
  clock_gettime(CLOCK_REALTIME, &here);
  const double now = time_in(path_).value_or(seconds_of(here));
  for (const auto& file : *found) {
    struct stat info {};
    if (stat(file.path.c_str(), &info) != 0 ||
        static_cast<std::uintmax_t>(info.st_size) > kMostHeartbeatBytes)
      continue;
    const auto text = read_whole_file(file.path);
    if (!text.ok()) continue;
    auto heartbeat = parse_heartbeat(*text);
    if (!heartbeat.ok()) continue;
    const double written = seconds_of(info.st_mtim);
    out.push_back({std::move(*heartbeat), std::max(0.0, now - written), 0});
    out.back().skew = 1e-9 * static_cast<double>(out.back().heartbeat.written) - written;
  }
  return out;
}

Status replace_durably(const std::string& path, std::string_view bytes) {
  return replace_with(path, [&](int file) { return write_all(file, bytes.data(), bytes.size()); });
}

Status copy_durably(const std::string& from, const std::string& to) {
  const File source(from, O_RDONLY);
  if (!source.ok()) return system_status(errno, fmt::format("read {}", from));
  bool unread = false;
  Status status = replace_with(to, [&](int file) {
    std::vector<char> bytes(1 << 20);
    for (;;) {
      const auto n = ::read(source.get(), bytes.data(), bytes.size());
      if (n == 0) return true;
      if (n < 0 && errno == EINTR) continue;
      unread = n < 0;
      if (unread || !write_all(file, bytes.data(), static_cast<std::size_t>(n))) return false;
    }
  });
  return unread ? Status(Code::io_error, fmt::format("{} cannot be read", from)) : status;
}

Result<MergeReport> adopt(Database& into, const std::string& from) {
  auto theirs = Database::open_snapshot(from);
  if (!theirs.ok()) return theirs.status();
  auto report = into.merge(from);
  if (!report.ok()) return report;
  const auto targets = theirs->targets();
  if (!targets.ok()) return targets.status();
  for (const auto& target : *targets) {
    const auto winners = theirs->winners(target);
    if (!winners.ok()) return winners.status();
    if (auto status = adopt_winners(into, *winners); !status.ok()) return status;
  }
  return report;
}

}  // namespace quarterturn
