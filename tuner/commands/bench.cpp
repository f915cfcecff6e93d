// qturn bench: the tuned plan beside the default and beside peers, in interleaved rounds of one
// run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tuner/commands/command.hpp"
#include "tuner/peer_cuda.hpp"
#include "tuner/peer_onednn.hpp"
#include "tuner/statistics.hpp"
#include "tuner/trials.hpp"

namespace quarterturn {
namespace {

struct BenchOptions {
  std::int64_t rounds = 9;
  double batch_ms = 30;
  double sustain_ms = 400;
  bool lookup = false;
};

/// Something that can be timed: seconds of `repeats` calls, back to back.
struct Contender {
  std::string name;
  std::function<Result<double>(std::int64_t repeats)> run;
  std::int64_t repeats = 1;
  std::vector<double> seconds = {};  // of one call, by round

  // Of GPUs: one call once clock and power have settled, and what the device said then.
  double sustained = 0;
  GpuState state = {};

  double median() const {
    auto sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
  double least() const {
    return seconds.empty() ? 0 : *std::min_element(seconds.begin(), seconds.end());
  }
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Copies half of `bytes` with as many threads as the kernels use, over as many buffers as they
/// rotate through: what memory allows on this machine.
class CopyPeer {
 public:
  CopyPeer(double bytes, std::int64_t threads, std::size_t buffers)
      : threads_(static_cast<std::size_t>(threads)),
        size_(static_cast<std::size_t>(bytes / 2)),
        from_(buffers),
        to_(buffers) {
    for (auto& buffer : from_) buffer.assign(size_, 1);
    for (auto& buffer : to_) buffer.assign(size_, 2);
  }

  double run(std::int64_t repeats) {
    return seconds_of([&] {
      std::vector<std::thread> workers;
      const std::size_t share = size_ / threads_;
      for (std::size_t t = 0; t < threads_; ++t)
        workers.emplace_back([&, t] {
          for (std::int64_t i = 0; i < repeats; ++i) {
            const std::size_t buffer = (next_ + static_cast<std::size_t>(i)) % from_.size();
            std::memcpy(to_[buffer].data() + t * share, from_[buffer].data() + t * share, share);
          }
        });
      for (auto& worker : workers) worker.join();
      next_ += static_cast<std::size_t>(repeats);
    });
  }

 private:
  std::size_t threads_, size_, next_ = 0;
  std::vector<std::vector<unsigned char>> from_, to_;
};

Status calibrate(Contender& contender, double batch_seconds) {
  auto once = contender.run(1);  // warms caches and threads
  if (!once.ok()) return once.status();
  once = contender.run(1);
  if (!once.ok()) return once.status();
  contender.repeats = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(batch_seconds / std::max(*once, 1e-9)), 1, 1 << 20);
  return {};
}

/// Rounds over all contenders, each starting with another, so that drift falls on all alike.
Status race(std::vector<Contender>& contenders, const BenchOptions& options) {
  for (auto& contender : contenders)
    if (auto status = calibrate(contender, options.batch_ms * 1e-3); !status.ok()) return status;
  for (std::int64_t round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      auto& contender = contenders[(i + static_cast<std::size_t>(round)) % contenders.size()];
      auto seconds = contender.run(contender.repeats);
      if (!seconds.ok()) return seconds.status();
      contender.seconds.push_back(*seconds / static_cast<double>(contender.repeats));
    }
  return {};
}

/// Under load a GPU lowers its clock until its power fits, which takes a tenth of a second or so:
/// each contender runs for a while untimed, then as long again. What NVML says is read halfway
/// through the timed part, while the device is still busy with it.
Status sustain(std::vector<Contender>& contenders, const CudaPeers& device, double seconds) {
  for (auto& contender : contenders) {
    const auto pieces = std::max<std::int64_t>(
        2, static_cast<std::int64_t>(
               seconds / 2 /
               std::max(1e-9, contender.median() * static_cast<double>(contender.repeats))));
    double timed = 0;
    for (std::int64_t piece = 0; piece < 2 * pieces; ++piece) {
      auto took = contender.run(contender.repeats);
      if (!took.ok()) return took.status();
      if (piece >= pieces) timed += *took;
      if (piece == pieces + pieces / 2) contender.state = device.state();
    }
    contender.sustained = timed / static_cast<double>(pieces * contender.repeats);
  }
  return {};
}

class Bench {
 public:
  Bench(Context& context, const BenchOptions& options)
      : context_(context),
        options_(options),
        table_({"problem", "sizes", "contender", "us", "us_min", "gflops", "gb_per_s", "speedup",
                "of_copy", "sustained_us", "sustained_gflops", "sustained_speedup", "mhz", "watts",
                "held_by", "how"}) {}

  Status run(const Item& item) {
    if (context_.backend().device().target.vendor == Vendor::nvidia && !gpu_) {
      auto opened = CudaPeers::open(context_.backend());
      if (!opened.ok()) return opened.status();
      gpu_ = std::move(*opened);
    }
    auto prepared = context_.prepare(item.problem);
    if (!prepared.ok()) return prepared.status();
    LocalTrials trials(context_.backend(), item.problem);
    const auto sizes = representative_sizes(item.problem);
    const std::string how(match_name((*prepared)->match()));
    std::vector<std::pair<std::string, std::size_t>> plans;
    auto fallback = default_plan(item.problem, context_.backend().device().target);
    if (fallback.ok()) plans.emplace_back("default", trials.add(*fallback));
    const bool same = fallback.ok() && (*prepared)->executable().plan() == *fallback;
    if (!same)
      plans.emplace_back(how, trials.add(std::shared_ptr<const Executable>(
                                  *prepared, &(*prepared)->executable())));
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      std::vector<Contender> contenders;
      for (const auto& [name, index] : plans)
        contenders.push_back({name, [&trials, index = index, s](std::int64_t n) {
                                return trials.run(index, s, n);
                              }});
      add_peers(item.problem, sizes[s], contenders);
      if (auto status = race(contenders, options_); !status.ok()) return status;
      if (gpu_)
        if (auto status = sustain(contenders, *gpu_, options_.sustain_ms * 1e-3); !status.ok())
          return status;
      report(item.problem, sizes[s], contenders, same ? how + ": the default" : how);
    }
    return {};
  }

  void print(bool json) const { table_.print(json); }

 private:
  void add_peers(const Problem& p, const Sizes& sizes, std::vector<Contender>& contenders) {
    if (gpu_) return add_gpu_peers(p, sizes, contenders);
    if (context_.backend().device().target.vendor != Vendor::cpu) return;
    if (operations(p, sizes) > 0) {
      auto peer = OneDnnMatmul::create(sizes.m, sizes.n, sizes.k);
      if (!peer.ok()) return say_once(peer.status().message());
      contenders.push_back({"onednn_bf16",
                            [peer = std::shared_ptr<OneDnnMatmul>(std::move(*peer))](
                                std::int64_t n) -> Result<double> {
                              Status status;
                              const double seconds = seconds_of([&] {
                                for (std::int64_t i = 0; i < n && status.ok(); ++i)
                                  status = peer->run();
                              });
                              if (!status.ok()) return status;
                              return seconds;
                            }});
    } else {
      const auto copies = rotation_for(context_.backend().device(),
                                       static_cast<std::int64_t>(least_traffic(p, sizes)))
                              .copies;
      auto copy =
          std::make_shared<CopyPeer>(least_traffic(p, sizes), context_.backend().threads(), copies);
      contenders.push_back(
          {"copy", [copy](std::int64_t n) { return Result<double>(copy->run(n)); }});
    }
  }

  void add_gpu_peers(const Problem& p, const Sizes& sizes, std::vector<Contender>& contenders) {
    std::vector<std::string> notes;
    if (operations(p, sizes) > 0) {
      for (auto& peer : gpu_->products(sizes.m, sizes.n, sizes.k, notes))
        contenders.push_back({peer.name, std::move(peer.run)});
    } else if (auto copy = gpu_->copy(static_cast<std::int64_t>(least_traffic(p, sizes)));
               copy.ok()) {
      contenders.push_back({copy->name, std::move(copy->run)});
    } else {
      notes.push_back(copy.status().message());
    }
    for (const auto& note : notes) say_once(note);
  }

  void say_once(const std::string& message) {
    if (!said_) std::fprintf(stderr, "qturn: a peer is missing: %s\n", message.c_str());
    said_ = true;
  }

  void report(const Problem& p, const Sizes& sizes, const std::vector<Contender>& contenders,
              const std::string& how) {
    const double work = operations(p, sizes), bytes = least_traffic(p, sizes);
    const auto copy = std::find_if(contenders.begin(), contenders.end(),
                                   [](const Contender& c) { return c.name == "copy"; });
    for (const auto& c : contenders) {
      const double seconds = c.median();
      table_.add({short_name(p), text(sizes), c.name, fmt::format("{:.2f}", seconds * 1e6),
                  fmt::format("{:.2f}", c.least() * 1e6),
                  work > 0 ? fmt::format("{:.1f}", work / seconds * 1e-9) : "",
                  fmt::format("{:.2f}", bytes / seconds * 1e-9),
                  fmt::format("{:.3f}", contenders.front().median() / seconds),
                  copy != contenders.end() ? fmt::format("{:.3f}", copy->median() / seconds) : "",
                  number(c.sustained * 1e6, 2),
                  work > 0 && c.sustained > 0 ? number(work / c.sustained * 1e-9, 1) : "",
                  c.sustained > 0 ? number(contenders.front().sustained / c.sustained, 3) : "",
                  number(c.state.clock_mhz, 0), number(c.state.watts, 0), c.state.throttle_text(),
                  c.name == "default" || c.name == how ? how : ""});
    }
  }

  // Empty for what was not measured.
  static std::string number(double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}", value, digits) : "";
  }

  Context& context_;
  BenchOptions options_;
  Table table_;
  std::unique_ptr<CudaPeers> gpu_;
  bool said_ = false;
};

int bench_lookup(Context& context, const Workload& workload, bool json) {
  const auto table_of_answers = context.table();
  if (!table_of_answers || workload.items.empty()) return kExitFailed;
  Table table({"answers", "problem", "ns_per_lookup", "how"});
  for (const auto& item : workload.items) {
    constexpr std::int64_t kCalls = 1'000'000;
    double least = 1;
    Found found;
    for (int round = 0; round < 5; ++round)
      least = std::min(least, seconds_of([&] {
                         for (std::int64_t i = 0; i < kCalls; ++i) {
                           found = table_of_answers->find(item.problem);
                           asm volatile("" : : "g"(&found) : "memory");  // keeps every look-up
                         }
                       }));
    table.add({fmt::format("{}", table_of_answers->size()), short_name(item.problem),
               fmt::format("{:.1f}", least / static_cast<double>(kCalls) * 1e9),
               found.answer ? std::string(match_name(found.match)) : "none"});
  }
  table.print(json);
  return kExitOk;
}

}  // namespace

std::function<int()> register_bench(CLI::App& app) {
  auto* command =
      app.add_subcommand("bench", "Time the tuned plan beside the default and beside peers");
  command->footer(
      "Peers are opened when they are found: for products oneDNN's in bf16, on an NVIDIA GPU "
      "cuBLASLt's in bf16\n"
      "and FP8; for quantize and other one-operand operations a copy of the same bytes. On a GPU "
      "`us` is what\n"
      "short bursts reach, `sustained_us` what is left once clock and power have "
      "settled.\nExamples:\n  qturn bench --shape 512x4096x14336 "
      "--type f32\n"
      "  qturn bench --op quantize --shape 8192x4096\n  qturn bench --lookup --model Llama-3.1-8B");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<BenchOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  command->add_option("--rounds", options->rounds, "Interleaved rounds; medians are over them")
      ->capture_default_str()
      ->check(positive_number());
  command->add_option("--batch-ms", options->batch_ms, "Least duration of one timing")
      ->capture_default_str()
      ->check(positive_number());
  command
      ->add_option("--sustain-ms", options->sustain_ms,
                   "Of a GPU: how long each contender runs to settle and be timed")
      ->capture_default_str()
      ->check(positive_number());
  command->add_flag("--lookup", options->lookup, "Time the dispatcher's look-up instead");
  return [work, global, options] {
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    auto context = open_context(*global);
    if (!context.ok()) return fail(context.status());
    if (options->lookup) return bench_lookup(**context, *workload, global->json);
    Bench bench(**context, *options);
    int code = workload->items.empty() ? kExitFailed : kExitOk;
    for (const auto& item : workload->items)
      if (auto status = bench.run(item); !status.ok()) code = fail(status);
    bench.print(global->json);
    return code;
  };
}

}  // namespace quarterturn
