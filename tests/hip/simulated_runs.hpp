// The HIP families executed: the very text that is compiled for gfx950, on the simulated machine.
// Guarded device memory, operands in it, and launches of a family's variant.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"
#include "tests/cuda/oracle.hpp"
#include "tests/hip/problems.hpp"
#include "tests/simulated/device_memory.hpp"
#include "tests/simulated/kernel_compiler.hpp"
#include "tests/simulated/scheduler.hpp"

namespace hip_test {

using namespace quarterturn;
using namespace qturn_test;
using cuda_test::Data;
using cuda_test::Quantized;

inline const Target kTarget = *parse_target("gfx950");

// Memory of the simulated device that ends at a page which nobody may touch.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes), at_(simulated::allocate_guarded(bytes)) {}
  explicit Memory(const std::vector<unsigned char>& content) : Memory(content.size()) {
    if (bytes_ > 0) std::memcpy(at_, content.data(), bytes_);
  }
  ~Memory() { simulated::free_guarded(at_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  unsigned char* data() const { return static_cast<unsigned char*>(at_); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* at_;
};

struct LoadedText {
  const simulated::Entry* entry;
  simulated::Machine** slot;
};

inline LoadedText loaded(const Source& source) {
  static std::map<std::string, LoadedText> all;
  const auto flat = flatten(source);
  REQUIRE(flat.ok());
  if (const auto found = all.find(*flat); found != all.end()) return found->second;
  const auto object = simulated::compile_kernel(*flat, simulated::Dialect::hip);
  REQUIRE_MESSAGE(object.ok(), object.status().message());
  std::string why;
  void* handle = simulated::load_object(object->data(), why);
  REQUIRE_MESSAGE(bool(handle), why);
  const LoadedText out{
      static_cast<const simulated::Entry*>(dlsym(handle, (source.entry + "_simulated").c_str())),
      static_cast<simulated::Machine**>(dlsym(handle, "qt_simulated_machine"))};
  REQUIRE(bool(out.entry));
  return all[*flat] = out;
}

inline const simulated::Schedule kSchedules[] = {{1, simulated::Landing::late, 3},
                                                 {2, simulated::Landing::eager, 2},
                                                 {3, simulated::Landing::mixed, 1}};

// What went wrong, or nothing.
inline std::string run_quietly(const Family& family, const Problem& p, const Variant& v,
                               const qt_args& args, const simulated::Schedule& schedule) {
  REQUIRE(family.refuses(p, kTarget) == "");
  REQUIRE(family.illegal(p, kTarget, v) == "");
  const auto text = loaded(family.emit(p, kTarget, v));
  const auto launch = family.launch(p, v, args, 4);
  if (launch.grid[0] == 0 || launch.grid[2] == 0) return {};
  simulated::LaunchShape shape;
  shape.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  shape.block = {launch.block[0], launch.block[1], launch.block[2]};
  shape.shared_bytes = static_cast<std::uint32_t>(launch.shared_bytes);
  void* parameters[] = {const_cast<qt_args*>(&args)};
  return simulated::run(shape, schedule, *text.entry, parameters, text.slot,
                        simulated::describe_address);
}

inline void run(const Family& family, const Problem& p, const Variant& v, const qt_args& args,
                const simulated::Schedule& schedule) {
  const auto wrong = run_quietly(family, p, v, args, schedule);
  REQUIRE_MESSAGE(wrong.empty(), v.text(), ": ", wrong);
}

inline Variant with(const Family& family, const Problem& p,
                    std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  auto v = family.default_variant(p, kTarget);
  for (const auto& [name, value] : values) v.values[name] = value;
  return v;
}

// ---- operands

// Scales in layout aiter, as aiter's e8m0_shuffle orders them: rows that fill a tile hold 0xff,
// blocks behind the last one 0.
inline std::vector<unsigned char> shuffled(const Quantized& q) {
  const auto rows = round_up(q.rows, 32), blocks = q.k / 32, padded = round_up(blocks, 8);
  std::vector<unsigned char> out(static_cast<std::size_t>(rows * padded), 0xff);
  for (std::int64_t m = 0; m < q.rows; ++m)
    for (std::int64_t kb = 0; kb < padded; ++kb)
      out[static_cast<std::size_t>(
          (((m / 32 * (padded / 8) + kb / 8) * 4 + kb % 4) * 16 + m % 16) * 4 + kb / 4 % 2 * 2 +
          m / 16 % 2)] = kb < blocks ? q.scales[static_cast<std::size_t>(m * blocks + kb)] : 0;
  return out;
}

// Codes in layout aiter_16x16, as aiter's shuffle_weight(w, (16, 16)) permutes a view of w [N,
// K/2]: (N/16, 16, K/64, 2, 16) to (0, 2, 3, 1, 4); for other K, pairs of blocks end with one of
// them.
inline std::vector<unsigned char> panels(const Quantized& q) {
  const auto half = q.k / 2, rows = round_up(q.rows, 16);
  std::vector<unsigned char> out;
  for (std::int64_t panel = 0; panel < rows / 16; ++panel)
    for (std::int64_t pair = 0; pair < ceil_div(half, 32); ++pair)
      for (std::int64_t piece = 0; piece < 2 && pair * 32 + piece * 16 < half; ++piece)
        for (std::int64_t row = panel * 16; row < panel * 16 + 16; ++row)
          for (std::int64_t byte = 0; byte < 16; ++byte)
            out.push_back(
                row < q.rows
                    ? q.codes[static_cast<std::size_t>(row * half + pair * 32 + piece * 16 + byte)]
                    : 0);
  return out;
}

// An operand in memory, rows `gap` elements apart beyond K, the first `shift` bytes into it; its
// scales in tiles lie without gaps.
struct OperandMemory {
  Memory codes, scales;
  qt_tensor tensor;
  OperandMemory(const Quantized& q, std::int64_t gap, std::int64_t shift,
                Layout layout = Layout::plain)
      : codes(layout == Layout::aiter_16x16 ? panels(q)
                                            : laid_out(q.codes, q.rows, q.k / 2, gap / 2, shift)),
        scales(layout == Layout::plain ? laid_out(q.scales, q.rows, q.k / 32, gap / 32, shift)
                                       : shuffled(q)),
        tensor{codes.data() + (layout == Layout::aiter_16x16 ? 0 : shift),
               scales.data() + (layout == Layout::plain ? shift : 0),
               layout == Layout::aiter_16x16 ? 0 : q.k + gap,
               layout == Layout::plain ? q.k / 32 + gap / 32 : 0,
               0,
               0} {}

 private:
  static std::vector<unsigned char> laid_out(const std::vector<std::uint8_t>& rows,
                                             std::int64_t count, std::int64_t width,
                                             std::int64_t gap, std::int64_t shift) {
    // The last row ends with the memory.
    const auto bytes = shift + std::max<std::int64_t>(0, count * (width + gap) - gap);
    std::vector<unsigned char> out(static_cast<std::size_t>(bytes), 0xff);
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(rows.begin() + i * width, width, out.begin() + shift + i * (width + gap));
    return out;
  }
};

inline void put(DType type, unsigned char* at, float x) {
  if (type == DType::f32) {
    std::memcpy(at, &x, 4);
  } else {
    const auto h = type == DType::bf16 ? reference::bf16_bits(x) : reference::f16_bits(x);
    std::memcpy(at, &h, 2);
  }
}

inline bool same(DType type, const unsigned char* got, float want) {
  if (std::isnan(want)) return std::isnan(cuda_test::as_float(type, got));
  unsigned char bytes[4];
  put(type, bytes, want);
  return std::memcmp(bytes, got, static_cast<std::size_t>(bytes_of(type))) == 0;
}

}  // namespace hip_test
