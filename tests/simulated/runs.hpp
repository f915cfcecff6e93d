// What is kept of the threads, warps, blocks and clusters of a launch while they run.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "tests/simulated/fiber.hpp"
#include "tests/simulated/scheduler.hpp"

namespace quarterturn::simulated {

using qt::simulated::Block;
using qt::simulated::Deferred;
using qt::simulated::Thread;

constexpr std::uint32_t kMostLanes = 64;

/// What primitives keep with a thread, warp, block, cluster or launch.
class States {
 public:
  void* of(const void* key, void* (*make)(), void (*end)(void*)) {
    for (const auto& one : all_)
      if (one.key == key) return one.value;
    all_.push_back({key, make(), end});
    return all_.back().value;
  }
  /// Latest first.
  void destroy() {
    while (!all_.empty()) {
      const auto last = all_.back();
      all_.pop_back();
      last.end(last.value);
    }
  }

 private:
  struct One {
    const void* key;
    void* value;
    void (*end)(void*);
  };
  std::vector<One> all_;
};

struct WarpRun;
struct BlockRun;
struct ClusterRun;

enum class Wait { none, woken_by_others, polling, spinning, ended };

struct ThreadRun : Thread {
  Fiber* fiber = nullptr;
  WarpRun* in_warp = nullptr;
  BlockRun* in_block = nullptr;
  Wait wait = Wait::none;
  const char* what = "";     // it waits for
  std::uint32_t number = 0;  // of that
  bool (*ready)(void*) = nullptr;
  void* about = nullptr;
  bool answer = false;  // of the barrier it was in
  States states;
};

struct WarpRun {
  std::vector<ThreadRun*> lanes;
  std::vector<std::uint32_t> order;  // in which lanes run
  std::uint32_t arrived = 0, left = 0;
  const char* name = nullptr;
  void (*run)(void* const*, std::uint32_t) = nullptr;
  std::array<void*, kMostLanes> brought{};
  States states;
};

struct Barrier {
  std::uint32_t threads = 0, arrived = 0;
  bool any = false;
  std::vector<ThreadRun*> waiting;

  /// One more; the last one lets all go on.
  bool arrive(ThreadRun& thread, bool flag) {
    any = any || flag;
    if (++arrived < threads) {
      waiting.push_back(&thread);
      return false;
    }
    for (auto* other : waiting) {
      other->wait = Wait::none;
      other->answer = any;
    }
    thread.answer = any;
    *this = {};
    return true;
  }
};

struct BlockRun : Block {
  ClusterRun* in_cluster = nullptr;
  std::vector<Byte> memory;
  std::vector<ThreadRun> threads;
  std::vector<WarpRun> warps;
  std::map<std::uint32_t, Barrier> barriers;
  std::map<std::uint32_t, std::deque<Deferred>> pipes;
  States states;
};

struct ClusterRun {
  std::vector<std::unique_ptr<BlockRun>> blocks;
  std::uint32_t blocks_left = 0;
  Barrier barrier;
  States states;
};

}  // namespace quarterturn::simulated
