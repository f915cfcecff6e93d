#include "tuner/fleet.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "tuner/fleet_lines.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::json;
using fleet_lines::json_of;
using fleet_lines::tuned_of;
using fleet_lines::write_all;

constexpr double kEndSeconds = 60;  // for a process to end by itself
constexpr int kMostAttempts = 2;    // processes that a problem may take with it
constexpr int kRestarts = 2;
constexpr std::size_t kMostTogether = 8;  // problems a request

std::string ending_of(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  return fmt::format("ended with code {}", WEXITSTATUS(status));
}

// A peer that is gone is told by write's result.
struct IgnorePipes {
  struct sigaction before {};
  IgnorePipes() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before);
  }
  ~IgnorePipes() { sigaction(SIGPIPE, &before, nullptr); }
};

}  // namespace

struct Fleet::Child {
  FleetDevice device;
  pid_t pid = -1;
  int to = -1, out = -1, err = -1;
  std::string out_buffer, err_buffer;
  std::optional<FleetKind> kind;
  std::optional<std::vector<Item>> missed;  ///< what its kind is to tune
  double started = 0;
  bool ended = false;  ///< for its silence
  Group* group = nullptr;
  std::deque<std::size_t> assigned;  ///< not answered yet
  std::string doing;
  int restarts = 0;
  bool busy = false;
  Json estimates;

  bool alive() const { return pid > 0; }
};

struct Fleet::Group {
  FleetKind kind;
  std::vector<Item> items;
  std::deque<std::size_t> waiting;
  std::vector<int> attempts;
  std::vector<std::optional<Tuned>> results;
  bool settled = false;  ///< token ranges of one weight were brought together, or that was begun

  bool complete() const {
    return std::all_of(results.begin(), results.end(), [](const auto& r) { return r.has_value(); });
  }
};

Fleet::Fleet(FleetOptions options) : options_(std::move(options)) {
  for (const auto& device : options_.devices) {
    children_.push_back(std::make_unique<Child>());
    children_.back()->device = device;
  }
}

Fleet::~Fleet() {
  const IgnorePipes ignore;
  ending_ = true;
  for (auto& child : children_) {
    if (child->to >= 0) close(child->to);
    child->to = -1;
  }
  const auto alive = [](const auto& child) { return child->alive(); };
  // Those that do nothing end at once.
  for (const double deadline = clock_.now() + kEndSeconds;
       std::any_of(children_.begin(), children_.end(), alive) && clock_.now() < deadline;)
    poll_children(20);
  for (auto& child : children_) {
    if (!child->alive()) continue;
    kill(child->pid, SIGKILL);
    lost(*child);
  }
}

void Fleet::start(Child& child) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) != 0) return;
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return;
  std::vector<char*> arguments;
  for (auto& word : child.device.command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Nobody would take its answers: it ends with this process, keeping what is stored.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  for (const int fd : {in[0], out[1], err[1]}) close(fd);
  child.pid = pid;
  child.to = in[1];
  child.out = out[0];
  child.err = err[0];
  child.out_buffer.clear();
  child.kind.reset();
  child.started = clock_.now();
  child.ended = false;
  child.busy = false;
}

bool Fleet::send(Child& child, const Json& line) {
  return child.to >= 0 &&
         write_all(child.to, line.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n");
}

double Fleet::time_left() const {
  return std::max(1e-3, options_.time_limit - (clock_.now() - begun_));
}

// Starts every process, and waits for what they are; false when none is left.
bool Fleet::greet() {
  begun_ = clock_.now();
  for (auto& child : children_) start(*child);
  const auto waits = [](const auto& child) { return child->alive() && !child->kind; };
  while (std::any_of(children_.begin(), children_.end(), waits) &&
         !(options_.interrupted && options_.interrupted())) {
    poll_children(100);
    end_silent();
  }
  return std::any_of(children_.begin(), children_.end(),
                     [](const auto& child) { return child->alive() && child->kind; });
}

// A process that hangs before it says what it is would be waited for without end.
void Fleet::end_silent() {
  for (auto& child : children_) {
    if (!child->alive() || child->kind || child->ended ||
        clock_.now() < child->started + options_.greeting_limit)
      continue;
    options_.say(child->device.name,
                 fmt::format("does not answer for {} s; it is ended", options_.greeting_limit));
    child->ended = true;
    child->restarts = kRestarts;
    kill(child->pid, SIGKILL);
  }
}

const std::vector<Item>& Fleet::items_of(const Child& child, const std::vector<Item>& items) const {
  return child.missed ? *child.missed : items;
}

// The next problems of its kind: many while there are many, as each request starts a session.
void Fleet::assign(Child& child, Group& group) {
  std::size_t devices = 0;
  for (const auto& other : children_) devices += other->alive() && other->group == &group;
  const std::size_t share =
      std::clamp<std::size_t>(group.waiting.size() / (2 * devices), 1, kMostTogether);
  Json request{{"run", Json::array()}};
  const auto left = static_cast<double>(group.waiting.size());
  while (!group.waiting.empty() && request["run"].size() < share) {
    const auto index = group.waiting.front();
    group.waiting.pop_front();
    child.assigned.push_back(index);
    request["run"].push_back(json_of(group.items[index]));
  }
  if (options_.time_limit > 0)
    request["time_limit"] = std::min(
        time_left(), time_left() * static_cast<double>(request["run"].size() * devices) / left);
  child.busy = true;
  // A process that is gone shows by the end of what it says.
  (void)send(child, request);
}

// Ranges of tokens of one weight were tuned by several processes: one of them brings them together,
// as a session of one device does at its end.
void Fleet::settle(Group& group) {
  if (group.settled || !group.complete() || group.results.size() < 2) return;
  Child* asked = nullptr;
  for (auto& child : children_) {
    if (!child->alive() || child->group != &group) continue;
    if (child->busy) return;
    asked = child.get();
  }
  group.settled = true;
  if (!asked) return;
  Json request{{"settle", json_of(group.items)}};
  if (options_.time_limit > 0) request["time_limit"] = time_left();
  asked->busy = true;
  (void)send(*asked, request);
}

void Fleet::take(Child& child, const Json& line) {
  if (line.contains("device")) {
    child.kind = FleetKind{line["device"].at("target").get<std::string>(),
                           line["device"].at("class").get<std::string>()};
    if (line.contains("missed")) {
      auto missed = fleet_lines::items_of(line["missed"]);
      if (missed.ok()) child.missed = std::move(*missed);
    }
  } else if (line.contains("progress") && child.group && changed_) {
    const Json& from = line["progress"];
    Progress progress;
    progress.phase = static_cast<Progress::Phase>(
        std::clamp(from.at("phase").get<int>(), 0, static_cast<int>(Progress::Phase::decided)));
    progress.name = from.at("name").get<std::string>();
    progress.tried = from.at("tried").get<std::int64_t>();
    progress.failed = from.at("failed").get<std::int64_t>();
    progress.best = from.at("best").get<double>();
    child.doing = progress.name;
    progress.problems = child.group->items.size();
    for (const auto& result : child.group->results) progress.problem += result.has_value();
    progress.problem = std::min(progress.problem + 1, progress.problems);
    progress.elapsed = clock_.now() - begun_;
    if (progress.problem > 1)
      progress.remaining = progress.elapsed *
                           static_cast<double>(progress.problems - progress.problem + 1) /
                           static_cast<double>(progress.problem - 1);
    if (options_.time_limit > 0) progress.remaining = std::min(progress.remaining, time_left());
    changed_(child.device.name, progress);
  } else if (line.contains("tuned") && child.group && !child.assigned.empty()) {
    // In the order in which they were given.
    const auto index = child.assigned.front();
    child.assigned.pop_front();
    auto& result = child.group->results[index];
    result = tuned_of(child.group->items[index], line["tuned"]);
    if (done_) done_(child.device.name, *result);
  } else if (line.contains("settled") && child.group) {
    const Json& rows = line["settled"];
    for (std::size_t i = 0; i < rows.size() && i < child.group->results.size(); ++i) {
      auto& result = child.group->results[i];
      const Tuned now = tuned_of(child.group->items[i], rows[i]);
      if (!result || !now.status.ok() || now.plan == result->plan) continue;
      result->plan = now.plan;
      result->speedup = now.speedup;
      result->low = now.low;
      result->high = now.high;
      result->median_seconds = now.median_seconds;
      result->reason = now.reason;
    }
  } else if (line.contains("done")) {
    // What it left out, for an interruption or for what every further problem would meet.
    child.busy = false;
    child.doing.clear();
    if (child.group)
      while (!child.assigned.empty()) {
        const auto index = child.assigned.back();
        child.assigned.pop_back();
        if (++child.group->attempts[index] < kMostAttempts) child.group->waiting.push_front(index);
      }
  } else if (line.contains("estimates")) {
    child.estimates = line["estimates"];
    child.busy = false;
  }
}

void Fleet::lost(Child& child) {
  int status = 0;
  waitpid(child.pid, &status, 0);
  child.pid = -1;
  // Its last words; what it started may hold the other end open.
  if (child.err >= 0) fcntl(child.err, F_SETFL, O_NONBLOCK);
  while (child.err >= 0) read_from(child, child.err, child.err_buffer, false);
  for (int* fd : {&child.to, &child.out}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  if (ending_ || (options_.interrupted && options_.interrupted())) return;
  std::string text = "its process " + ending_of(status);
  if (!child.doing.empty()) text += fmt::format(" during {}", child.doing);
  if (child.group) {
    text += fmt::format("; what was stored is kept, {} problems are tried again",
                        child.assigned.size());
    // The one that it had begun counts against that problem.
    if (!child.assigned.empty()) ++child.group->attempts[child.assigned.front()];
    while (!child.assigned.empty()) {
      const auto index = child.assigned.back();
      child.assigned.pop_back();
      if (child.group->attempts[index] < kMostAttempts) {
        child.group->waiting.push_front(index);
        continue;
      }
      Tuned failed;
      failed.item = child.group->items[index];
      failed.status = Status(Code::internal,
                             fmt::format("{} processes ended while they tuned it", kMostAttempts));
      failed.reason = failed.status.message();
      child.group->results[index] = failed;
      if (done_) done_(child.device.name, failed);
    }
  }
  options_.say(child.device.name, text);
  if (child.group && child.restarts++ < kRestarts) start(child);
}

void Fleet::read_from(Child& child, int& fd, std::string& buffer, bool is_output) {
  char bytes[16384];
  const auto n = ::read(fd, bytes, sizeof bytes);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0) {
    close(fd);
    fd = -1;
    return;
  }
  buffer.append(bytes, static_cast<std::size_t>(n));
  for (std::size_t end = buffer.find('\n'); end != std::string::npos; end = buffer.find('\n')) {
    const std::string line = buffer.substr(0, end);
    buffer.erase(0, end + 1);
    if (!is_output) {
      options_.say(child.device.name, line);
      continue;
    }
    const auto json = Json::parse(line, nullptr, false);
    if (json.is_object()) {
      try {
        take(child, json);
        continue;
      } catch (const Json::exception&) {
        // Said below.
      }
    }
    options_.say(child.device.name, "says what cannot be read: " + line.substr(0, 200));
  }
}

void Fleet::poll_children(int milliseconds) {
  std::vector<pollfd> all;
  std::vector<Child*> whose;
  for (auto& child : children_)
    for (const int fd : {child->out, child->err})
      if (fd >= 0) {
        all.push_back({fd, POLLIN, 0});
        whose.push_back(child.get());
      }
  if (poll(all.data(), all.size(), milliseconds) > 0)
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].revents == 0) continue;
      Child& child = *whose[i];
      if (all[i].fd == child.err)
        read_from(child, child.err, child.err_buffer, false);
      else if (all[i].fd == child.out)
        read_from(child, child.out, child.out_buffer, true);
    }
  // Its grandchildren may hold stderr open.
  for (auto& child : children_)
    if (child->alive() && child->out < 0) lost(*child);
}

std::vector<Tuned> Fleet::run(
    const std::vector<Item>& items,
    const std::function<void(const std::string& device, const Progress&)>& changed,
    const std::function<void(const std::string& device, const Tuned&)>& done) {
  const IgnorePipes ignore;
  changed_ = changed;
  done_ = done;
  std::vector<Tuned> out;
  if (!greet()) return out;
  // A kind that no device has shown yet gets its own round of all problems.
  const auto join = [&](Child& child) {
    if (child.group || !child.kind) return;
    for (auto& group : groups_)
      if (group->kind == *child.kind) child.group = group.get();
    if (child.group) return;
    groups_.push_back(std::make_unique<Group>());
    child.group = groups_.back().get();
    child.group->kind = *child.kind;
    child.group->items = items_of(child, items);
    const auto size = child.group->items.size();
    child.group->attempts.resize(size);
    child.group->results.resize(size);
    for (std::size_t i = 0; i < size; ++i) child.group->waiting.push_back(i);
  };
  bool told = false;
  for (;;) {
    const bool stopping = options_.interrupted && options_.interrupted();
    for (auto& child : children_) {
      if (!child->alive()) continue;
      join(*child);
      if (stopping && !told) kill(child->pid, SIGTERM);
      if (!child->busy && !stopping && child->kind && child->group &&
          !child->group->waiting.empty())
        assign(*child, *child->group);
    }
    told = told || stopping;
    if (!stopping)
      for (auto& group : groups_) settle(*group);
    const bool working = std::any_of(children_.begin(), children_.end(), [](const auto& child) {
      return child->alive() && (child->busy || !child->kind);
    });
    if (!working) break;
    poll_children(100);
    end_silent();
  }
  for (auto& group : groups_) {
    for (std::size_t i = 0; i < group->results.size(); ++i) {
      if (group->results[i]) {
        out.push_back(std::move(*group->results[i]));
      } else if (!told) {
        Tuned failed;
        failed.item = group->items[i];
        failed.status = Status(Code::no_device, "no device of its kind is left");
        failed.reason = failed.status.message();
        out.push_back(std::move(failed));
      }
    }
  }
  return out;
}

Result<std::vector<Fleet::KindEstimate>> Fleet::estimate(const std::vector<Item>& items) {
  const IgnorePipes ignore;
  if (!greet()) return Status(Code::no_device, "no device can be used");
  std::map<FleetKind, std::pair<std::size_t, Child*>> kinds;
  for (auto& child : children_)
    if (child->alive() && child->kind) {
      auto& [count, asked] = kinds[*child->kind];
      ++count;
      asked = asked ? asked : child.get();
    }
  for (auto& [kind, entry] : kinds) {
    Child& asked = *entry.second;
    asked.busy = send(asked, {{"estimate", json_of(items_of(asked, items))}});
  }
  const auto busy = [](const auto& child) { return child->alive() && child->busy; };
  while (std::any_of(children_.begin(), children_.end(), busy) &&
         !(options_.interrupted && options_.interrupted()))
    poll_children(100);
  std::vector<KindEstimate> out;
  for (const auto& [kind, entry] : kinds) {
    const auto& [count, asked] = entry;
    const auto& wanted = items_of(*asked, items);
    if (!asked->estimates.is_array() || asked->estimates.size() != wanted.size())
      return Status(Code::internal, fmt::format("{} gave no estimate", asked->device.name));
    KindEstimate one{kind, count, {}};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Json& from = asked->estimates[i];
      one.problems.push_back({wanted[i], from.at("decided").get<bool>(),
                              from.at("space").get<std::size_t>(),
                              from.at("candidates").get<std::size_t>(),
                              from.at("seconds").get<double>(), from.at("bytes").get<double>()});
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace quarterturn
