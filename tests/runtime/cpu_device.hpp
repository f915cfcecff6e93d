// A CPU back end for tests, with a code store that all test programs of a build tree share.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "runtime/cpu/backend.hpp"
#include "tests/runtime/temporary_folder.hpp"

namespace quarterturn::test {

inline std::shared_ptr<CodeStore> shared_store() {
  static const auto store =
      std::make_shared<CodeStore>(std::move(*CodeStore::open(QTURN_TEST_CODE)));
  return store;
}

inline std::unique_ptr<Backend> cpu_device(cpu::BackendOptions options = {}) {
  if (options.threads == 0) options.threads = 2;
  auto backend = cpu::open_backend(shared_store(), options);
  REQUIRE_MESSAGE(backend.ok(), backend.status().message());
  return std::move(*backend);
}

/// Normal numbers, the same in every run.
inline std::vector<float> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (auto& value : out) value = draw(random);
  return out;
}

/// Memory at a multiple of 256.
class Aligned {
 public:
  explicit Aligned(std::int64_t bytes)
      : memory_(std::aligned_alloc(256, static_cast<std::size_t>((bytes + 511) / 256 * 256))) {}
  ~Aligned() { std::free(memory_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  void* get() { return memory_; }

 private:
  void* memory_;
};

}  // namespace quarterturn::test
