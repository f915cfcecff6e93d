// Memory of a device with guard bands, for kernels that are not trusted yet.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/backend.hpp"

namespace quarterturn {

/// Bytes between two guards; everything starts as 0xff: NaN in every floating type, the NaN scale
/// byte.
class Memory {
 public:
  Memory() = default;
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  static Result<Memory> allocate(Backend& backend, std::int64_t bytes);
  static Result<Memory> of(Backend& backend, std::span<const unsigned char> content);
  /// On the device, without a way through the host.
  static Result<Memory> copy_of(const Memory& other);

  /// At a multiple of 256 when the back end's memory is.
  void* data() const { return base_ ? static_cast<unsigned char*>(base_) + kGuard : nullptr; }
  std::int64_t bytes() const { return bytes_; }

  Status poison();
  Status write(std::span<const unsigned char> content);
  Result<std::vector<unsigned char>> read() const;
  /// Into memory that may have served before: large buffers cost most when they are new.
  Status read(std::vector<unsigned char>& out) const;
  Status read_part(std::int64_t offset, std::span<unsigned char> out) const;
  /// Fails when a byte before or behind was written.
  Status check_guards(std::string_view name) const;

 private:
  static constexpr std::int64_t kGuard = 4096;
  Backend* backend_ = nullptr;
  void* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace quarterturn
