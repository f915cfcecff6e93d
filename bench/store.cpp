// What a shared store costs at the scale of a cluster: workers are threads with a connection each,
// and their devices are simulated (rows are made up). The server runs on this machine.
//   bench_store leases URL LOTS SECONDS CLIENTS...    closed loop: take a lot, finish it
//   bench_store paced  URL LOTS SECONDS CLIENTS EVERY leases at a given pace, with heartbeats
//   bench_store trials URL FROM TO PROBLEMS WRITERS BATCH
//   bench_store collect URL FOLDER                    everything in the store into one SQLite file
//   bench_store files   FOLDER SHARDS EACH PROBLEMS   the same without a store: copies, their merge
// The login must be a superuser's: figures of the server's processor time are read by its process.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "bench/made_up_rows.hpp"
#include "cache/leases.hpp"
#include "cache/shared_store.hpp"

using namespace quarterturn;
using namespace quarterturn::bench;

namespace {

[[noreturn]] void stop(const Status& status) {
  std::fprintf(stderr, "bench_store: %s\n", status.message().c_str());
  std::exit(1);
}
void must(const Status& status) {
  if (!status.ok()) stop(status);
}
template <class T>
T must(Result<T> result) {
  if (!result.ok()) stop(result.status());
  return std::move(*result);
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Processor seconds of a process, and of those of its children that ended.
double processor_seconds(const std::string& pid, int& parent) {
  std::ifstream in("/proc/" + pid + "/stat");
  std::string text;
  std::getline(in, text);
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string word;
  std::vector<long> numbers;
  rest >> word;  // state
  for (long value = 0; rest >> value;) numbers.push_back(value);
  if (numbers.size() < 14) return 0;
  parent = static_cast<int>(numbers[0]);
  return static_cast<double>(numbers[10] + numbers[11] + numbers[12] + numbers[13]) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

class Server {
 public:
  explicit Server(pg::Connection& connection) {
    const auto file = must(connection.execute("SELECT pg_read_file('postmaster.pid')"));
    pid_ = std::string(file.text(0, 0));
    pid_ = pid_.substr(0, pid_.find('\n'));
  }
  double seconds() const {
    int parent = 0;
    double out = processor_seconds(pid_, parent);
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const auto name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const double one = processor_seconds(name, parent);
      if (std::to_string(parent) == pid_) out += one;
    }
    return out;
  }

 private:
  std::string pid_;
};

// That programs could have, the server's shared memory not counted.
double free_mebibytes() {
  std::ifstream in("/proc/meminfo");
  std::string word;
  double kibibytes = 0;
  while (in >> word)
    if (word == "MemAvailable:") in >> kibibytes;
  return kibibytes / 1024;
}

double load() {
  double out = 0;
  return getloadavg(&out, 1) == 1 ? out : 0;
}

double quantile(std::vector<double>& all, double q) {
  if (all.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(all.size() - 1));
  std::nth_element(all.begin(), all.begin() + at, all.end());
  return all[static_cast<std::size_t>(at)];
}

Uuid worker(int i) {
  Uuid out{};
  out[0] = static_cast<unsigned char>(i);
  out[1] = static_cast<unsigned char>(i >> 8);
  out[15] = 1;
  return out;
}

std::string new_campaign(pg::Connection& connection, int lots) {
  const auto name = text(random_uuid()).substr(0, 8);
  std::vector<std::vector<std::string>> keys;
  for (int i = 0; i < lots; ++i) keys.push_back({problem(i)});
  const double begun = now();
  must(leases::register_lots(connection, name, env().target, keys));
  std::printf("registered %d lots in %.2f s\n", lots, now() - begun);
  return name;
}

struct Taken {
  std::mutex mutex;
  std::vector<double> seconds;
  std::vector<int> times;  // that a lot was leased
};

void sleep_until(double time) {
  std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, time - now())));
}

// One client for `duration`: leases lots, one every so many seconds (0: one after the other), and
// heartbeats each 15 s.
void client(pg::Connection connection, const leases::Holder& holder, double duration, double every,
            Taken& taken) {
  const double end = now() + duration;
  std::vector<double> seconds;
  std::vector<std::size_t> lots;
  double heartbeat = now() + 15.0 * holder.worker[0] / 255;
  double next = now() + every * holder.worker[0] / 255;
  const std::string said(600, 'h');  // as long as a heartbeat is
  while (now() < end) {
    if (now() >= heartbeat) {
      must(leases::renew(connection, holder, 120, said, 0));
      heartbeat += 15;
    }
    if (every > 0 && now() < next) {
      sleep_until(std::min({next, heartbeat, end}));
      continue;
    }
    next += every;
    const double begun = now();
    const auto lease = must(leases::take(connection, holder, 120, leases::Resume::no));
    if (!lease) break;
    must(leases::finish(connection, holder, lease->lot, leases::LotState::done));
    seconds.push_back(now() - begun);
    lots.push_back(lease->lot);
  }
  const std::lock_guard lock(taken.mutex);
  taken.seconds.insert(taken.seconds.end(), seconds.begin(), seconds.end());
  for (const auto lot : lots) ++taken.times.at(lot);
}

void time_leases(const std::string& url, int lots, double duration, int clients, double every) {
  auto store = must(SharedStore::open(url));
  const Server server(store.connection());
  const auto campaign = new_campaign(store.connection(), lots);
  Taken taken;
  taken.times.resize(static_cast<std::size_t>(lots));
  std::vector<pg::Connection> connections;
  const double connecting = now(), free_before = free_mebibytes();
  // What a server process does for the first time is dear: it is not what is asked here.
  for (int i = 0; i < clients; ++i) {
    connections.push_back(must(pg::Connection::open(url)));
    const leases::Holder nobody{"none", worker(i)};
    must(leases::take(connections.back(), nobody, 120, leases::Resume::no));
    must(leases::finish(connections.back(), nobody, 0, leases::LotState::done));
    must(leases::renew(connections.back(), nobody, 120, "", 0));
  }
  const double connected = now() - connecting;
  const double memory = (free_before - free_mebibytes()) / clients;
  const double busy = server.seconds(), begun = now();
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i)
    threads.emplace_back([&, i] {
      client(std::move(connections[static_cast<std::size_t>(i)]), {campaign, worker(i)}, duration,
             every, taken);
    });
  for (auto& thread : threads) thread.join();
  const double wall = now() - begun, used = server.seconds() - busy;
  const auto count = taken.seconds.size();
  std::printf(
      "%5d clients%s: %8.0f leases/s, p50 %8.2f ms, p99 %8.2f ms, server %.2f of %.2f "
      "processor s (%.3f ms a lease), %.1f ms and %.1f MiB to connect one, all distinct: %s, load "
      "%.1f\n",
      clients, every > 0 ? fmt::format(", each every {:.0f} s", every).c_str() : "",
      static_cast<double>(count) / wall, 1e3 * quantile(taken.seconds, 0.5),
      1e3 * quantile(taken.seconds, 0.99), used, wall,
      1e3 * used / static_cast<double>(std::max<std::size_t>(1, count)), 1e3 * connected / clients,
      memory, *std::max_element(taken.times.begin(), taken.times.end()) <= 1 ? "yes" : "NO",
      load());
  std::fflush(stdout);
}

// A part of the trials of one writer at a time is in its SQLite database; only bringing them to the
// store is timed.
void time_trials(const std::string& url, int from, int to, int problems, int writers, int batch) {
  auto store = must(SharedStore::open(url));
  const Server server(store.connection());
  const auto where = std::make_shared<const Env>(env());
  std::mutex mutex;
  std::vector<double> latencies;
  double sending = 0;
  std::atomic<int> at = from;
  const double busy = server.seconds(), begun = now();
  std::vector<std::thread> threads;
  for (int i = 0; i < writers; ++i)
    threads.emplace_back([&] {
      auto mine = must(SharedStore::open(url));
      std::vector<double> seconds;
      for (int first; (first = at.fetch_add(batch)) < to;) {
        auto local = must(Database::open(""));
        must(local.add_trials(trials(first, std::min(to, first + batch), problems, where)));
        UploadMark mark;
        const double before = now();
        const auto report = must(mine.upload(local, mark, SharedStore::Tombstones::left_out));
        seconds.push_back(now() - before);
        if (report.known > 0)
          std::fprintf(stderr, "%lld were known\n", static_cast<long long>(report.known));
      }
      const std::lock_guard lock(mutex);
      for (const double s : seconds) sending += s;
      latencies.insert(latencies.end(), seconds.begin(), seconds.end());
    });
  for (auto& thread : threads) thread.join();
  const double wall = now() - begun, used = server.seconds() - busy;
  const auto sizes = must(store.connection().execute(
      "SELECT count(*), pg_relation_size('quarterturn.trial'), "
      "pg_indexes_size('quarterturn.trial'), "
      "(SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n "
      "ON n.oid = c.relnamespace WHERE n.nspname = 'quarterturn' AND c.relkind = 'r') "
      "FROM quarterturn.trial"));
  constexpr double kMiB = 1 << 20;
  std::printf(
      "%8lld trials there, %d writers, batches of %d: %.0f trials/s, p50 %.1f ms, p99 %.1f "
      "ms a batch, server %.1f processor s a million, %.0f MiB rows + %.0f MiB indexes, "
      "%.0f MiB in all, load %.1f\n",
      static_cast<long long>(sizes.integer(0, 0)), writers, batch, (to - from) / wall,
      1e3 * quantile(latencies, 0.5), 1e3 * quantile(latencies, 0.99), 1e6 * used / (to - from),
      static_cast<double>(sizes.integer(0, 1)) / kMiB,
      static_cast<double>(sizes.integer(0, 2)) / kMiB,
      static_cast<double>(sizes.integer(0, 3)) / kMiB, load());
  std::fflush(stdout);
}

void time_collect(const std::string& url, const std::string& folder) {
  auto store = must(SharedStore::open(url, std::chrono::seconds(600)));
  const Server server(store.connection());
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/collected.db";
  std::filesystem::remove(path);
  auto into = must(Database::open(path));
  const double busy = server.seconds(), begun = now();
  const auto report = must(store.download(into));
  const double wall = now() - begun, used = server.seconds() - busy;
  std::printf(
      "collected %lld trials in %.1f s (%.0f a second), server %.1f processor s, "
      "%.0f MiB, load %.1f\n",
      static_cast<long long>(report.trials), wall, static_cast<double>(report.trials) / wall, used,
      static_cast<double>(std::filesystem::file_size(path)) / (1 << 20), load());
}

void time_files(const std::string& folder, int shards, int each, int problems) {
  std::filesystem::create_directories(folder);
  const auto where = std::make_shared<const Env>(env());
  std::vector<double> copying;
  double bytes = 0;
  const auto shard = [&](int i) { return fmt::format("{}/shard-{:04}.db", folder, i); };
  for (int i = 0; i < shards; ++i) {
    auto local = must(Database::open(""));
    must(local.add_trials(trials(i * each, (i + 1) * each, problems, where)));
    const double begun = now();
    must(local.export_snapshot(shard(i)));
    copying.push_back(now() - begun);
    bytes += static_cast<double>(std::filesystem::file_size(shard(i)));
  }
  std::printf("%d copies of %d trials: %.1f MiB each, p50 %.0f ms, p99 %.0f ms a copy\n", shards,
              each, bytes / shards / (1 << 20), 1e3 * quantile(copying, 0.5),
              1e3 * quantile(copying, 0.99));
  const std::string path = folder + "/merged.db";
  std::filesystem::remove(path);
  auto merged = must(Database::open(path));
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const double begun = now();
  for (int i = 0; i < shards; ++i) must(merged.merge(shard(i)));
  const double wall = now() - begun;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  std::printf("merged %d trials in %.1f s, %.1f processor s, %.0f MiB, load %.1f\n", shards * each,
              wall, static_cast<double>(after.tv_sec - before.tv_sec),
              static_cast<double>(std::filesystem::file_size(path)) / (1 << 20), load());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "", url = argc > 2 ? argv[2] : "";
  const auto number = [&](int i) { return i < argc ? std::atoi(argv[i]) : 0; };
  if (mode == "leases" && argc > 5) {
    for (int i = 5; i < argc; ++i) time_leases(url, number(3), number(4), number(i), 0);
  } else if (mode == "paced" && argc == 7) {
    time_leases(url, number(3), number(4), number(5), std::atof(argv[6]));
  } else if (mode == "trials" && argc == 8) {
    time_trials(url, number(3), number(4), number(5), number(6), number(7));
  } else if (mode == "files" && argc == 6) {
    time_files(url, number(3), number(4), number(5));
  } else if (mode == "collect" && argc == 4) {
    time_collect(url, argv[3]);
  } else {
    std::fprintf(stderr, "usage: see the top of bench/store.cpp\n");
    return 2;
  }
  return 0;
}
