#include "tests/simulated/scheduler.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/simulated/arithmetic.hpp"
#include "tests/simulated/fault_handlers.hpp"
#include "tests/simulated/fiber.hpp"
#include "tests/simulated/runs.hpp"

namespace quarterturn::simulated {
namespace {

using qt::simulated::Scope;

constexpr std::uint32_t kMostThreads = 1024;
constexpr int kSpinsBeforeDeadlock = 2000;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::uint32_t volume(Index3 i) { return i.x * i.y * i.z; }

class Engine final : public Machine {
 public:
  Engine(const LaunchShape& shape, const Schedule& schedule, const Entry& kernel,
         void* const* arguments, DescribeAddress describe_address)
      : shape_(shape),
        schedule_(schedule),
        kernel_(kernel),
        arguments_(arguments),
        describe_(describe_address),
        random_(schedule.seed) {
    grid = shape.grid;
    block = shape.block;
    cluster = shape.cluster;
    warp_size = shape.warp_size;
    landing = schedule.landing;
  }

  std::string whole() {
    if (const auto wrong = refuse(); !wrong.empty()) return wrong;
    try {
      loop();
      states_.destroy();
    } catch (const Failure& failure) {
      failed = true;
      return failure.what();
    }
    return failed ? message_ : std::string();
  }

  // ---- Machine

  bool barrier(std::uint32_t name, std::uint32_t threads, bool any) override {
    ThreadRun& me = *running_;
    Barrier& b = me.in_block->barriers[name];
    if (b.arrived > 0 && b.threads != threads)
      fail("barrier %u of %u threads, where others wait for %u", name, threads, b.threads);
    if (threads > volume(block))
      fail("barrier %u of %u threads: more than the block has", name, threads);
    b.threads = threads;
    if (!b.arrive(me, any)) hold(Wait::woken_by_others, "barrier", name);
    return me.answer;
  }
  void cluster_barrier() override {
    Barrier& b = running_->in_block->in_cluster->barrier;
    b.threads = volume(cluster) * volume(block);
    if (!b.arrive(*running_, false)) hold(Wait::woken_by_others, "cluster barrier", 0);
  }
  void wait(const char* what, std::uint32_t number, bool (*ready)(void*), void* about) override {
    if (ready(about)) return;
    running_->ready = ready;
    running_->about = about;
    hold(Wait::polling, what, number);
  }
  void pause(Scope whose) override {
    if (schedule_.seed % 3 == 0 || (whose != Scope::block && random_() % 4 != 0)) return;
    preempted_ = true;
    resting_warp_ = running_->in_warp;
    resting_block_ = whose == Scope::block ? running_->in_block : nullptr;
    wake_spinners();
    hold(Wait::none, "pause", 0);
  }
  void spin(const char* what) override { hold(Wait::spinning, what, 0); }

  void rendezvous(const char* name, void* mine, void (*run)(void* const*, std::uint32_t)) override {
    ThreadRun& me = *running_;
    WarpRun& warp = *me.in_warp;
    if (warp.lanes.size() != warp_size)
      fail("%s in a warp of %zu threads: it needs all %u lanes", name, warp.lanes.size(),
           warp_size);
    if (warp.left != warp_size)
      fail("%s, but %u lanes of the warp have ended", name, warp_size - warp.left);
    if (warp.arrived > 0 && (warp.run != run || std::strcmp(warp.name, name) != 0))
      fail("divergent: this lane is at %s, others of its warp at %s", name, warp.name);
    warp.name = name;
    warp.run = run;
    warp.brought[me.lane] = mine;
    if (++warp.arrived < warp_size) return hold(Wait::woken_by_others, name, 0);
    warp.arrived = 0;
    run(warp.brought.data(), warp_size);
    for (auto* lane : warp.lanes) lane->wait = Wait::none;
  }

  void post(std::uint32_t pipe, Deferred work) override {
    auto& queue = running_->in_block->pipes[pipe];
    if ((pipe == qt::simulated::kAnyOrder || queue.empty()) && lands_now()) return work();
    queue.push_back(std::move(work));
    ++posted_;
  }
  bool lands_now() override {
    return landing == Landing::eager || (landing == Landing::mixed && random_() % 2 == 0);
  }

  void* state_of(Scope scope, const void* key, void* (*make)(), void (*destroy)(void*)) override {
    return states_of(scope).of(key, make, destroy);
  }
  Block* peer(std::uint32_t rank) override {
    auto& blocks = running_->in_block->in_cluster->blocks;
    return rank < blocks.size() ? blocks[rank].get() : nullptr;
  }

  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...) override {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    end_badly(text);
  }

  void multiply(double* d, const float* a, const float* b, std::uint32_t m, std::uint32_t n,
                std::uint32_t k) override {
    simulated::multiply(d, a, b, m, n, k);
  }
  float fused_toward_zero(float a, float b, float c) override {
    return simulated::fused_toward_zero(a, b, c);
  }
  float half_to_float(std::uint16_t half) override { return simulated::half_to_float(half); }
  std::uint16_t float_to_half(float x) override { return simulated::float_to_half(x); }

  /// From the handler of a memory fault.
  [[noreturn]] void fault(int signal, const void* address) {
    std::string what = describe_ ? describe_(address) : std::string();
    if (running_ && running_->fiber->is_overflow(address)) what = "the fiber's stack is full";
    end_badly(fmt::format("{} at address {}{}{}",
                          signal == SIGFPE ? "arithmetic fault" : "memory fault", address,
                          what.empty() ? "" : ": ", what));
  }
  bool in_fiber() const { return in_fiber_; }

 private:
  std::string refuse() const {
    const auto threads = volume(shape_.block);
    if (threads == 0 || threads > kMostThreads)
      return fmt::format("a block of {} threads: 1 to {}", threads, kMostThreads);
    if (warp_size > kMostLanes) return fmt::format("warps of {} lanes", warp_size);
    if (shape_.grid.x % cluster.x || shape_.grid.y % cluster.y || shape_.grid.z % cluster.z)
      return fmt::format("a grid of {}x{}x{} is no multiple of the cluster {}x{}x{}", grid.x,
                         grid.y, grid.z, cluster.x, cluster.y, cluster.z);
    return {};
  }

  [[noreturn]] void end_badly(const std::string& text) {
    const std::string where =
        running_ ? fmt::format("block ({},{},{}) warp {} lane {}: ", running_->block->index.x,
                               running_->block->index.y, running_->block->index.z, running_->warp,
                               running_->lane)
                 : std::string();
    if (!in_fiber_) throw Failure(where + text);
    failed = true;
    message_ = where + text;
    running_->fiber->suspend();
    __builtin_unreachable();
  }

  // ---- fibers

  void hold(Wait wait, const char* what, std::uint32_t number) {
    running_->wait = wait;
    running_->what = what;
    running_->number = number;
    running_->fiber->suspend();
  }

  static void thread_body(void* about) {
    auto& engine = *static_cast<Engine*>(about);
    ThreadRun& me = *engine.running_;
    engine.kernel_.call(engine.arguments_);
    engine.end_thread(me);
    me.fiber->suspend();
  }

  void end_thread(ThreadRun& me) {
    me.states.destroy();
    if (me.in_warp->arrived > 0)
      fail("the lane ends, others of its warp are at %s", me.in_warp->name);
    if (--me.in_warp->left == 0) me.in_warp->states.destroy();
    if (--me.in_block->threads_left == 0) end_block(*me.in_block);
    me.wait = Wait::ended;
  }

  void end_block(BlockRun& ending) {
    for (const auto& [name, b] : ending.barriers)
      if (b.arrived > 0) fail("the block ends, %u threads wait at barrier %u", b.arrived, name);
    for (const auto& [pipe, queue] : ending.pipes)
      if (!queue.empty())
        fail("the block ends with %zu asynchronous operations on their way", queue.size());
    ending.states.destroy();
    if (--ending.in_cluster->blocks_left == 0) ending.in_cluster->states.destroy();
  }

  void resume(ThreadRun& thread) {
    thread.wait = Wait::none;
    current = running_ = &thread;
    in_fiber_ = true;
    thread.fiber->resume();
    in_fiber_ = false;
    if (failed) throw Failure(message_);
    if (thread.wait != Wait::spinning) idle_spins_ = 0;
  }

  bool can_run(ThreadRun& thread) {
    if (thread.wait == Wait::none) return true;
    if (thread.wait != Wait::polling) return false;
    current = running_ = &thread;
    return thread.ready(thread.about);
  }

  // ---- scheduling

  void loop() {
    const std::uint32_t clusters = volume(grid) / volume(cluster);
    const std::uint32_t most =
        std::max(1u, schedule_.resident_blocks / std::max(1u, volume(cluster)));
    for (;;) {
      while (resident_.size() < most && admitted_ < clusters) admit(admitted_++);
      if (resident_.empty()) return;
      if (landing == Landing::mixed && posted_ > 0 && random_() % 4 == 0) land_one();
      if (!run_some_warp() && !land_one() && !end_rest() &&
          (++idle_spins_ > kSpinsBeforeDeadlock || !wake_spinners()))
        fail_deadlock();
      retire();
    }
  }

  bool run_some_warp() {
    // Three manners, by the seed: a fixed order of preference, chance, and turns.
    const auto manner = schedule_.seed % 3;
    const auto count = order_.size();
    // Now and then those who wait for a word in memory look before all others have come to rest.
    if (manner != 0 && random_() % 8 == 0) wake_spinners();
    const std::size_t start = manner == 0 ? 0 : manner == 1 ? random_() % count : turn_++ % count;
    for (std::size_t i = 0; i < count; ++i) {
      WarpRun& warp = *order_[(start + i) % count];
      if (&warp == resting_warp_ || warp.lanes.front()->in_block == resting_block_) continue;
      if (run_warp(warp)) return true;
    }
    return false;
  }

  bool end_rest() {
    const bool rested = resting_warp_ != nullptr;
    resting_warp_ = nullptr;
    resting_block_ = nullptr;
    return rested;
  }

  bool run_warp(WarpRun& warp) {
    bool ran = false;
    for (bool again = true; again;) {
      again = false;
      for (const auto lane : warp.order)
        if (can_run(*warp.lanes[lane])) {
          resume(*warp.lanes[lane]);
          if (std::exchange(preempted_, false)) return true;
          ran = again = true;
        }
    }
    return ran;
  }

  bool land_one() {
    if (posted_ == 0) return false;
    auto number = random_() % posted_;
    for (const auto& c : resident_)
      for (const auto& b : c->blocks)
        for (auto& [pipe, queue] : b->pipes) {
          if (number >= queue.size()) {
            number -= queue.size();
            continue;
          }
          const auto at = pipe == qt::simulated::kAnyOrder ? number : 0;
          Deferred work = std::move(queue[at]);
          queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(at));
          --posted_;
          current = running_ = &b->threads.front();
          work();
          idle_spins_ = 0;
          return true;
        }
    return false;
  }

  bool wake_spinners() {
    bool woke = false;
    each_thread([&](ThreadRun& t) {
      if (t.wait != Wait::spinning) return;
      t.wait = Wait::none;
      woke = true;
    });
    return woke;
  }

  template <class Do>
  void each_thread(const Do& action) {
    for (const auto& c : resident_)
      for (const auto& b : c->blocks)
        for (auto& thread : b->threads) action(thread);
  }

  [[noreturn]] void fail_deadlock() {
    std::map<std::string, std::pair<int, std::string>> all;  // by place and cause
    each_thread([&](ThreadRun& t) {
      if (t.wait == Wait::ended) return;
      auto& [count, line] =
          all[fmt::format("block ({},{},{}) warp {:2} {} {}", t.block->index.x, t.block->index.y,
                          t.block->index.z, t.warp, t.what, t.number)];
      if (count++ == 0)
        line = fmt::format("\n  block ({},{},{}) warp {}: lanes at {} {}: {}", t.block->index.x,
                           t.block->index.y, t.block->index.z, t.warp, t.what, t.number, t.lane);
      else if (count <= 4)
        line += fmt::format(", {}", t.lane);
      else if (count == 5)
        line += ", ...";
    });
    std::string text = "deadlock: nobody can run";
    int shown = 0;
    for (const auto& [key, entry] : all)
      if (++shown <= 24) text += entry.second;
    running_ = nullptr;
    end_badly(text);
  }

  // ---- blocks

  void admit(std::uint32_t number) {
    auto c = std::make_unique<ClusterRun>();
    const Index3 across = {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z};
    const Index3 first = {number % across.x * cluster.x, number / across.x % across.y * cluster.y,
                          number / across.x / across.y * cluster.z};
    for (std::uint32_t rank = 0; rank < volume(cluster); ++rank) {
      const Index3 in = {rank % cluster.x, rank / cluster.x % cluster.y,
                         rank / cluster.x / cluster.y};
      c->blocks.push_back(make_block({first.x + in.x, first.y + in.y, first.z + in.z}, rank));
      c->blocks.back()->in_cluster = c.get();
    }
    c->blocks_left = static_cast<std::uint32_t>(c->blocks.size());
    resident_.push_back(std::move(c));
    list_warps();
  }

  std::unique_ptr<BlockRun> make_block(Index3 index, std::uint32_t rank) {
    auto out = std::make_unique<BlockRun>();
    const std::uint32_t count = volume(block);
    out->index = index;
    out->rank = rank;
    out->threads_left = count;
    out->memory.assign(shape_.shared_bytes, 0xff);
    out->shared = out->memory.data();
    out->shared_bytes = shape_.shared_bytes;
    out->threads = std::vector<ThreadRun>(count);
    out->warps = std::vector<WarpRun>((count + warp_size - 1) / warp_size);
    for (std::uint32_t i = 0; i < count; ++i) {
      ThreadRun& t = out->threads[i];
      t.block = t.in_block = out.get();
      t.index = i;
      t.place = {i % block.x, i / block.x % block.y, i / block.x / block.y};
      t.warp = i / warp_size;
      t.lane = i % warp_size;
      t.in_warp = &out->warps[t.warp];
      t.in_warp->lanes.push_back(&t);
      t.in_warp->order.push_back(t.lane);
      ++t.in_warp->left;
      t.fiber = take_fiber();
      t.fiber->prepare(thread_body, this);
    }
    // Most warps run lanes in a mixed order; seeds that end in 0 keep the usual one.
    if (schedule_.seed % 10 != 0)
      for (auto& warp : out->warps) std::shuffle(warp.order.begin(), warp.order.end(), random_);
    return out;
  }

  void retire() {
    const auto ended = [](const std::unique_ptr<ClusterRun>& c) { return c->blocks_left == 0; };
    if (std::none_of(resident_.begin(), resident_.end(), ended)) return;
    for (const auto& c : resident_)
      if (ended(c))
        for (const auto& b : c->blocks)
          for (const auto& thread : b->threads) free_fibers().push_back(thread.fiber);
    std::erase_if(resident_, ended);
    current = running_ = nullptr;
    list_warps();
  }

  // Mixed, or one block behind the other, so that a whole block may be ahead of others.
  void list_warps() {
    std::vector<BlockRun*> blocks;
    for (const auto& c : resident_)
      for (const auto& b : c->blocks) blocks.push_back(b.get());
    std::shuffle(blocks.begin(), blocks.end(), random_);
    order_.clear();
    for (auto* b : blocks) {
      const auto first = order_.size();
      for (auto& warp : b->warps) order_.push_back(&warp);
      std::shuffle(order_.begin() + static_cast<std::ptrdiff_t>(first), order_.end(), random_);
    }
    if (schedule_.seed % 2 == 0) std::shuffle(order_.begin(), order_.end(), random_);
  }

  // Stacks are kept between launches; those of launches that failed are prepared anew.
  static std::vector<Fiber*>& free_fibers() {
    static std::vector<Fiber*> fibers;
    return fibers;
  }
  static Fiber* take_fiber() {
    auto& fibers = free_fibers();
    if (fibers.empty()) return new Fiber;
    Fiber* fiber = fibers.back();
    fibers.pop_back();
    return fiber;
  }

 public:
  ~Engine() {
    each_thread([](ThreadRun& t) { free_fibers().push_back(t.fiber); });
  }

 private:
  States& states_of(Scope scope) {
    switch (scope) {
      case Scope::thread:
        return running_->states;
      case Scope::warp:
        return running_->in_warp->states;
      case Scope::block:
        return running_->in_block->states;
      case Scope::cluster:
        return running_->in_block->in_cluster->states;
      case Scope::launch:
        break;
    }
    return states_;
  }

  const LaunchShape& shape_;
  const Schedule& schedule_;
  const Entry& kernel_;
  void* const* arguments_;
  DescribeAddress describe_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<ClusterRun>> resident_;
  std::uint32_t admitted_ = 0;
  std::vector<WarpRun*> order_;
  std::size_t turn_ = 0;
  std::size_t posted_ = 0;
  int idle_spins_ = 0;
  ThreadRun* running_ = nullptr;
  bool in_fiber_ = false;
  bool preempted_ = false;
  const WarpRun* resting_warp_ = nullptr;  // by pause()
  const BlockRun* resting_block_ = nullptr;
  std::string message_;
  States states_;
};

Engine* engine_that_runs = nullptr;

void tell_fault(int signal, const void* address) {
  if (engine_that_runs && engine_that_runs->in_fiber()) engine_that_runs->fault(signal, address);
}

}  // namespace

std::string run(const LaunchShape& shape, const Schedule& schedule, const Entry& entry,
                void* const* parameters, Machine** slot, DescribeAddress describe) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  Engine engine(shape, schedule, entry, parameters, describe);
  const FaultHandlers handlers(tell_fault);
  engine_that_runs = &engine;
  *slot = &engine;
  std::string message = engine.whole();
  engine_that_runs = nullptr;
  *slot = nullptr;
  return message;
}

}  // namespace quarterturn::simulated
