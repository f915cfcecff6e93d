#include "tuner/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace quarterturn {
namespace {

constexpr unsigned char kPoison = 0xff;
constexpr unsigned char kGuardByte = 0xa5;

}  // namespace

Memory::~Memory() {
  if (base_) backend_->release(base_);
}

Result<Memory> Memory::allocate(Backend& backend, std::int64_t bytes) {
  auto base = backend.allocate(bytes + 2 * kGuard);
  if (!base.ok()) return base.status();
  Memory out;
  out.backend_ = &backend;
  out.base_ = *base;
  out.bytes_ = bytes;
  if (auto status = backend.fill(out.base_, kGuardByte, kGuard); !status.ok()) return status;
  auto* behind = static_cast<unsigned char*>(out.data()) + bytes;
  if (auto status = backend.fill(behind, kGuardByte, kGuard); !status.ok()) return status;
  if (auto status = out.poison(); !status.ok()) return status;
  return out;
}

Result<Memory> Memory::of(Backend& backend, std::span<const unsigned char> content) {
  auto out = allocate(backend, static_cast<std::int64_t>(content.size()));
  if (!out.ok()) return out;
  if (auto status = out->write(content); !status.ok()) return status;
  return out;
}

Result<Memory> Memory::copy_of(const Memory& other) {
  auto out = allocate(*other.backend_, other.bytes_);
  if (!out.ok()) return out;
  if (other.bytes_ > 0)
    if (auto status = other.backend_->copy(out->data(), other.data(), other.bytes_); !status.ok())
      return status;
  return out;
}

Status Memory::poison() { return bytes_ > 0 ? backend_->fill(data(), kPoison, bytes_) : Status(); }

Status Memory::write(std::span<const unsigned char> content) {
  if (content.empty()) return {};
  return backend_->upload(data(), content.data(), static_cast<std::int64_t>(content.size()));
}

Result<std::vector<unsigned char>> Memory::read() const {
  std::vector<unsigned char> out;
  if (auto status = read(out); !status.ok()) return status;
  return out;
}

Status Memory::read(std::vector<unsigned char>& out) const {
  out.resize(static_cast<std::size_t>(bytes_));
  return bytes_ > 0 ? backend_->download(out.data(), data(), bytes_) : Status();
}

Status Memory::read_part(std::int64_t offset, std::span<unsigned char> out) const {
  return backend_->download(out.data(), static_cast<const unsigned char*>(data()) + offset,
                            static_cast<std::int64_t>(out.size()));
}

Status Memory::check_guards(std::string_view name) const {
  if (!base_) return {};
  std::vector<unsigned char> guard(kGuard);
  const auto* behind = static_cast<const unsigned char*>(data()) + bytes_;
  for (const void* at : {static_cast<const void*>(base_), static_cast<const void*>(behind)}) {
    if (auto status = backend_->download(guard.data(), at, kGuard); !status.ok()) return status;
    const auto bad =
        std::find_if(guard.begin(), guard.end(), [](unsigned char b) { return b != kGuardByte; });
    if (bad == guard.end()) continue;
    const auto offset = bad - guard.begin();
    return Status(Code::rejected,
                  at == base_ ? fmt::format("wrote {} bytes before {}", kGuard - offset, name)
                              : fmt::format("wrote {} bytes behind {}", offset + 1, name));
  }
  return {};
}

}  // namespace quarterturn
