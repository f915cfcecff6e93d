// What a large tuning database costs: makes one from a seed, and times what commands and contexts
// do with it. Prints one line a figure.
//   bench_database FOLDER [PROBLEMS TRIALS SHARDS WRITERS]     (default: 20000 2000000 64 64)
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>

#include "bench/made_up_rows.hpp"
#include "cache/database.hpp"
#include "runtime/layers.hpp"

using namespace quarterturn;
using namespace quarterturn::bench;

namespace {

struct Scale {
  int problems = 20000, trials = 2000000, shards = 64, writers = 64;
};

[[noreturn]] void stop(const Status& status) {
  std::fprintf(stderr, "bench_database: %s\n", status.message().c_str());
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

// Of this process's wall clock and of the processors: on a busy machine only the second tells.
struct Cost {
  double wall = 1e300, processor = 1e300;
};

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Cost cost_of(const std::function<void()>& work) {
  const double wall = now(CLOCK_MONOTONIC), processor = now(CLOCK_PROCESS_CPUTIME_ID);
  work();
  return {now(CLOCK_MONOTONIC) - wall, now(CLOCK_PROCESS_CPUTIME_ID) - processor};
}

Cost best_of(int times, const std::function<void()>& work) {
  Cost best;
  for (int i = 0; i < times; ++i) {
    const Cost cost = cost_of(work);
    best.wall = std::min(best.wall, cost.wall);
    best.processor = std::min(best.processor, cost.processor);
  }
  return best;
}

void print(const char* what, const Cost& cost) {
  std::printf("%-50s %11.2f ms, %11.2f ms of a processor\n", what, 1e3 * cost.wall,
              1e3 * cost.processor);
  std::fflush(stdout);
}

void fill(Database& db, int from, int to, int problems) {
  const auto where = std::make_shared<const Env>(env());
  for (int at = from; at < to; at += 10000)
    must(db.add_trials(trials(at, std::min(to, at + 10000), problems, where)));
}

std::vector<Winner> winners(const Scale& scale) {
  const auto where = std::make_shared<const Env>(env());
  std::vector<Winner> out;
  Random random{11};
  for (int i = 0; i < scale.problems; ++i) {
    Winner winner;
    winner.problem = problem(i);
    winner.plan = plan(random);
    winner.env = where;
    winner.speedup = 1.2, winner.speedup_low = 1.1, winner.speedup_high = 1.3;
    winner.evidence = scale.trials / scale.problems;
    winner.certificate = "max_error=0.5 outputs=4096";
    winner.decided = 1'700'000'000'000'000'000;
    out.push_back(std::move(winner));
  }
  return out;
}

void time_readers(const std::string& path, const Scale& scale) {
  const DatabaseOptions reading{.access = Access::read_only, .fallback = Fallback::none};
  print("open", best_of(5, [&] { must(Database::open(path, reading)); }));
  print("open and read every winner", best_of(5, [&] {
          auto db = must(Database::open(path, reading));
          const auto found = must(db.winners(env().target));
          if (static_cast<int>(found.size()) != scale.problems) std::abort();
        }));
  print("open, read and build the dispatch table", best_of(5, [&] {
          auto db = must(Database::open(path, reading));
          auto layers = load_layers(db, {}, env());
          const LookupTable table(std::move(layers.answers));
          if (static_cast<int>(table.size()) != scale.problems) std::abort();
        }));
  print("open and info", best_of(5, [&] {
          auto db = must(Database::open(path, reading));
          if (must(db.info()).trials != scale.trials) std::abort();
        }));
  auto db = must(Database::open(path, reading));
  print("trials of one problem",
        best_of(5, [&] { must(db.trials(problem(7), env().target, env().performance_class)); }));
  print("the latest 200 trials", best_of(5, [&] { must(db.recent_trials(env().target, 200)); }));
  print("whether a family was admitted",
        best_of(5, [&] { must(db.has_admission("cuda_gemm_int8", 1, env())); }));
  print("problems to decide", best_of(1, [&] { must(db.undecided()); }));
}

void time_merge(const std::string& folder, const Scale& scale) {
  const auto shard = [&](int i) { return fmt::format("{}/shard{}.db", folder, i); };
  const int each = scale.trials / scale.shards;
  for (int i = 0; i < scale.shards; ++i) {
    auto db = must(Database::open(shard(i)));
    fill(db, i * each, (i + 1) * each, scale.problems);
  }
  auto merged = must(Database::open(folder + "/merged.db"));
  print("merge of all shards", cost_of([&] {
          for (int i = 0; i < scale.shards; ++i) must(merged.merge(shard(i)));
        }));
  print("merge of a shard that is known", cost_of([&] { must(merged.merge(shard(0))); }));
  if (must(merged.info()).trials != each * scale.shards) std::abort();
}

void time_writers(const std::string& folder, const Scale& scale) {
  constexpr int kEach = 50;
  const std::string path = folder + "/shared.db";
  print("64 processes store 50 trials each, one by one", cost_of([&] {
          std::vector<pid_t> children;
          for (int i = 0; i < scale.writers; ++i) {
            const pid_t child = fork();
            if (child == 0) {
              auto db = Database::open(path, {.fallback = Fallback::none});
              if (!db.ok()) _exit(1);
              const auto where = std::make_shared<const Env>(env());
              for (const auto& trial : trials(i * kEach, (i + 1) * kEach, scale.problems, where))
                if (!db->add_trial(trial).ok()) _exit(2);
              _exit(0);
            }
            children.push_back(child);
          }
          for (const pid_t child : children) {
            int status = 0;
            waitpid(child, &status, 0);
            if (status != 0) std::fprintf(stderr, "a writer failed: %d\n", status);
          }
        }));
  auto db = must(Database::open(path));
  std::printf("  of %d trials, %lld are there\n", scale.writers * kEach,
              static_cast<long long>(must(db.info()).trials));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_database FOLDER [PROBLEMS TRIALS SHARDS WRITERS]\n");
    return 2;
  }
  const std::string folder = argv[1];
  Scale scale;
  int* const fields[] = {&scale.problems, &scale.trials, &scale.shards, &scale.writers};
  for (int i = 2; i < argc && i < 6; ++i) *fields[i - 2] = std::atoi(argv[i]);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/large.db";
  if (!std::filesystem::exists(path)) {
    auto db = must(Database::open(path));
    print("store every trial", cost_of([&] { fill(db, 0, scale.trials, scale.problems); }));
    const auto answers = winners(scale);
    print("store every winner", cost_of([&] { must(db.set_winners(answers)); }));
  }
  std::printf("%d problems, %d trials, %.1f MiB\n", scale.problems, scale.trials,
              static_cast<double>(std::filesystem::file_size(path)) / (1 << 20));
  time_readers(path, scale);
  time_writers(folder, scale);
  time_merge(folder, scale);
  return 0;
}
