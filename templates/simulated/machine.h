// The machine that simulated primitives run on: what the body of a primitive may ask of it. Host
// code only; kernels see it through primitives (simulated/cuda/, simulated/hip/), never directly.
//
// Every thread of a kernel is a fiber of one host thread. A fiber runs until it waits; then the
// scheduler (tests/simulated/scheduler.hpp) picks another. So a primitive is plain C++:
//   - what lanes do together is a `collective`: the last lane of the warp to arrive does it for
//   all;
//   - what waits for others says so by `wait_until`, `barrier` or `spin`;
//   - what happens in the background is `post`ed, or added to `Groups`: it lands at once (eager),
//   as
//     late as the rules allow (late), or by chance (mixed);
//   - shared memory is bytes under a checked 32-bit address, 0xff at first;
//   - what no program may do ends the launch with a message (`fail`).
// State of a primitive's own (barriers in shared memory, tensor memory, ...) is kept by `state`.
#ifndef QT_SIMULATED_MACHINE_H
#define QT_SIMULATED_MACHINE_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace qt::simulated {

using Byte = unsigned char;

struct Index3 {
  std::uint32_t x = 0, y = 0, z = 0;
};

/// When asynchronous work is done, between its issue and the wait that needs it.
enum class Landing { late, eager, mixed };

/// A block that runs now.
struct Block {
  Index3 index;
  std::uint32_t rank = 0;          ///< in its cluster
  std::uint32_t threads_left = 0;  ///< that have not ended
  Byte* shared = nullptr;
  std::uint32_t shared_bytes = 0;
};

/// One thread of a block. Fibers never see each other's.
struct Thread {
  Block* block = nullptr;
  std::uint32_t index = 0;  ///< in its block, x fastest
  Index3 place;             ///< the same as three numbers
  std::uint32_t warp = 0, lane = 0;
};

/// Work that is done once, later: a callable that may be moved, not copied.
class Deferred {
 public:
  template <class Work>
  Deferred(Work work)
      : work_(new Work(std::move(work))),
        run_([](void* w) { (*static_cast<Work*>(w))(); }),
        drop_([](void* w) { delete static_cast<Work*>(w); }) {}
  Deferred(Deferred&& other) noexcept
      : work_(std::exchange(other.work_, nullptr)), run_(other.run_), drop_(other.drop_) {}
  Deferred& operator=(Deferred&& other) noexcept {
    std::swap(work_, other.work_);
    std::swap(run_, other.run_);
    std::swap(drop_, other.drop_);
    return *this;
  }
  ~Deferred() {
    if (work_) drop_(work_);
  }
  void operator()() { run_(work_); }

 private:
  void* work_;
  void (*run_)(void*);
  void (*drop_)(void*);
};

/// Whose state it is. A cluster of one block is that block.
enum class Scope { thread, warp, block, cluster, launch };

/// Shared addresses begin here, as where a driver keeps the first KiB for itself.
constexpr std::uint32_t kSharedBase = 1024;

/// The pipe whose work lands in any order; other numbers name pipes of a block that keep theirs.
constexpr std::uint32_t kAnyOrder = 0;

/// What the engine does for primitives. One for each launch; alive while it runs.
class Machine {
 public:
  // ---- where we are
  Thread* current = nullptr;  ///< the thread that runs
  Index3 grid, block, cluster;
  std::uint32_t warp_size = 32;
  Landing landing = Landing::late;
  bool failed = false;  ///< the launch has ended by `fail`; background work is dropped, not done

  // ---- waiting
  /// A barrier of `threads` threads of the block under a name; the answer is whether `any` was set
  /// in one of them.
  virtual bool barrier(std::uint32_t name, std::uint32_t threads, bool any) = 0;
  /// A barrier of all threads of the cluster.
  virtual void cluster_barrier() = 0;
  /// Until `ready(about)`; `what` and `number` are for messages ("mbarrier 1032").
  virtual void wait(const char* what, std::uint32_t number, bool (*ready)(void*), void* about) = 0;
  /// A place behind which this warp, or this block, may be the last to run on, under some
  /// schedules: it has told others something, and what it should have done before that it has not
  /// done yet.
  virtual void pause(Scope whose) = 0;
  /// Lets all others run before a loop looks again at memory that they write.
  virtual void spin(const char* what) = 0;

  // ---- warps
  /// All lanes of the warp come here, with the same `name` and `run`; the last one runs it on what
  /// all brought, in the order of lanes.
  virtual void rendezvous(const char* name, void* mine,
                          void (*run)(void* const* lanes, std::uint32_t count)) = 0;

  // ---- background work
  /// Enqueues on a pipe of this block. Late work of a pipe lands when nobody can run otherwise.
  virtual void post(std::uint32_t pipe, Deferred work) = 0;
  /// Whether work issued now is done at once: by the mode, in mixed mode by chance.
  virtual bool lands_now() = 0;

  // ---- state of primitives, made when first asked for, gone with whose it is
  virtual void* state_of(Scope scope, const void* key, void* (*make)(), void (*destroy)(void*)) = 0;
  /// The block of this cluster with a rank; null when there is none.
  virtual Block* peer(std::uint32_t rank) = 0;

  // ---- what must not be
  /// Ends the launch. `format` as of printf; where it happened is added.
  [[noreturn]] virtual void fail(const char* format, ...) __attribute__((format(printf, 2, 3))) = 0;

  // ---- arithmetic that one object file holds, compiled for speed
  /// d[m x n] (row pitch n) += a[m x k] b[n x k]^T, in double.
  virtual void multiply(double* d, const float* a, const float* b, std::uint32_t m, std::uint32_t n,
                        std::uint32_t k) = 0;
  /// a * b + c with one rounding toward zero.
  virtual float fused_toward_zero(float a, float b, float c) = 0;
  virtual float half_to_float(std::uint16_t half) = 0;
  virtual std::uint16_t float_to_half(float x) = 0;

 protected:
  ~Machine() = default;
};

}  // namespace qt::simulated

/// Of the launch that runs the code of this object file; the engine sets it.
extern "C" qt::simulated::Machine* qt_simulated_machine;

namespace qt::simulated {

inline Machine& machine() { return *qt_simulated_machine; }

/// The bytes at a shared address of a block (this one's by default), inside of it and aligned.
inline Byte* shared(std::uint32_t at, std::uint32_t bytes, std::uint32_t alignment,
                    const Block* of = nullptr) {
  Machine& m = machine();
  const Block& block = of ? *of : *m.current->block;
  if (at < kSharedBase || bytes > block.shared_bytes ||
      at - kSharedBase > block.shared_bytes - bytes)
    m.fail("%u bytes of shared memory at %u: the block has %u from %u on", bytes, at,
           block.shared_bytes, kSharedBase);
  if (at % alignment != 0) m.fail("shared address %u is no multiple of %u", at, alignment);
  return block.shared + (at - kSharedBase);
}

/// Whether a pointer to global memory is a multiple of `alignment`, or the launch ends.
inline void require_aligned(const void* p, std::uint32_t alignment, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0)
    machine().fail("%s: address %p is no multiple of %u", what, p, alignment);
}

/// All lanes of a warp bring a `Lane`; `run(Lane* const* lanes)` is done once. `run` captures
/// nothing: what it needs lies in the lanes, or is a template's argument.
template <class Lane, class Run>
void collective(const char* name, Lane& mine, Run) {
  static_assert(sizeof(Run) == 1, "captures nothing");
  machine().rendezvous(name, &mine, [](void* const* lanes, std::uint32_t) {
    std::vector<Lane*> all;
    all.reserve(64);
    for (std::uint32_t i = 0; i < machine().warp_size; ++i)
      all.push_back(static_cast<Lane*>(lanes[i]));
    Run{}(all.data());
  });
}

template <class Ready>
void wait_until(const char* what, std::uint32_t number, const Ready& ready) {
  machine().wait(
      what, number, [](void* about) { return bool((*static_cast<const Ready*>(about))()); },
      const_cast<Ready*>(&ready));
}

/// The state of type T (default-constructed) of the current thread, warp, block, cluster or launch.
template <class T>
T& state(Scope scope) {
  static const char key = 0;
  return *static_cast<T*>(machine().state_of(
      scope, &key, []() -> void* { return new T(); }, [](void* p) { delete static_cast<T*>(p); }));
}

/// Background work that lands in order and is waited for by groups: cp.async, wgmma, counters of
/// outstanding loads. Late work lands at the wait that needs it, or when its owner ends.
class Groups {
 public:
  Groups() = default;
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups() {
    if (!machine().failed) finish();
  }

  void add(Deferred work) {
    open_.push_back(std::move(work));
    ++waiting_;
    if (waiting_ == 1 && machine().lands_now()) {
      open_.back()();
      open_.pop_back();
      --waiting_;
    }
  }
  void commit() {
    committed_.push_back(std::move(open_));
    open_.clear();
  }
  /// Until at most `pending` committed groups are left.
  void wait(std::uint32_t pending) {
    while (committed_.size() > pending) {
      for (auto& work : committed_.front()) {
        work();
        --waiting_;
      }
      committed_.pop_front();
    }
  }
  /// All of it, also what was not committed.
  void finish() {
    commit();
    wait(0);
  }
  std::size_t groups() const { return committed_.size(); }
  bool idle() const { return waiting_ == 0; }

 private:
  std::vector<Deferred> open_;
  std::deque<std::vector<Deferred>> committed_;
  std::size_t waiting_ = 0;
};

// ---- how the engine calls a kernel

/// One kernel of an object file: `call` runs it once with the launch's parameters.
struct Entry {
  void (*call)(void* const* parameters);
  std::uint32_t count;              ///< of parameters
  const std::uint32_t* size_bytes;  ///< of each
};

template <class... Parameters, std::size_t... i>
void call_kernel(void (*kernel)(Parameters...), void* const* parameters,
                 std::index_sequence<i...>) {
  kernel(*static_cast<const Parameters*>(parameters[i])...);
}

/// Makes the Entry of a kernel, exported as <kernel>_simulated.
template <auto kernel>
struct EntryOf;
template <class... Parameters, void (*kernel)(Parameters...)>
struct EntryOf<kernel> {
  static constexpr std::uint32_t sizes[] = {std::uint32_t(sizeof(Parameters))...};
  static void call(void* const* parameters) {
    call_kernel(kernel, parameters, std::index_sequence_for<Parameters...>{});
  }
  static constexpr Entry value = {call, std::uint32_t(sizeof...(Parameters)), sizes};
};
#define QT_SIMULATED_ENTRY(kernel)                  \
  extern "C" __attribute__((visibility("default"))) \
  const qt::simulated::Entry kernel##_simulated = qt::simulated::EntryOf<&kernel>::value;

}  // namespace qt::simulated

#endif
