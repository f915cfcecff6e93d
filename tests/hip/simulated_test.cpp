// The HIP families executed: the very text that is compiled for gfx950, on the simulated machine,
// against the scalar reference. Data are such that every binary32 sum is exact in any order, so
// that results are compared bit for bit; copies land as early and as late as they may.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <map>

#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"
#include "tests/cuda/oracle.hpp"
#include "tests/hip/problems.hpp"
#include "tests/simulated/device_memory.hpp"
#include "tests/simulated/kernel_compiler.hpp"
#include "tests/simulated/scheduler.hpp"

using namespace quarterturn;
using namespace qturn_test;
using cuda_test::Data;
using cuda_test::Quantized;

namespace {

const Target kTarget = *parse_target("gfx950");

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

LoadedText loaded(const Source& source) {
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

const simulated::Schedule kSchedules[] = {{1, simulated::Landing::late, 3},
                                          {2, simulated::Landing::eager, 2},
                                          {3, simulated::Landing::mixed, 1}};

void run(const Family& family, const Problem& p, const Variant& v, const qt_args& args,
         const simulated::Schedule& schedule) {
  REQUIRE(family.refuses(p, kTarget) == "");
  REQUIRE(family.illegal(p, kTarget, v) == "");
  const auto text = loaded(family.emit(p, kTarget, v));
  const auto launch = family.launch(p, v, args, 4);
  if (launch.grid[0] == 0 || launch.grid[2] == 0) return;
  simulated::LaunchShape shape;
  shape.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  shape.block = {launch.block[0], launch.block[1], launch.block[2]};
  shape.shared_bytes = static_cast<std::uint32_t>(launch.shared_bytes);
  void* parameters[] = {const_cast<qt_args*>(&args)};
  const auto wrong = simulated::run(shape, schedule, *text.entry, parameters, text.slot,
                                    simulated::describe_address);
  REQUIRE_MESSAGE(wrong.empty(), v.text(), ": ", wrong);
}

Variant with(const Family& family, const Problem& p,
             std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  auto v = family.default_variant(p, kTarget);
  for (const auto& [name, value] : values) v.values[name] = value;
  return v;
}

// ---- products

// An operand in memory, rows `gap` elements apart beyond K, the first `shift` bytes into it.
struct OperandMemory {
  Memory codes, scales;
  qt_tensor tensor;
  OperandMemory(const Quantized& q, std::int64_t gap, std::int64_t shift)
      : codes(laid_out(q.codes, q.rows, q.k / 2, gap / 2, shift)),
        scales(laid_out(q.scales, q.rows, q.k / 32, gap / 32, shift)),
        tensor{codes.data() + shift, scales.data() + shift, q.k + gap, q.k / 32 + gap / 32, 0, 0} {}

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

struct Shape {
  std::int64_t m, n, k;
  std::int64_t gap = 0, shift = 0;
};

void put(DType type, unsigned char* at, float x) {
  if (type == DType::f32) {
    std::memcpy(at, &x, 4);
  } else {
    const auto h = type == DType::bf16 ? reference::bf16_bits(x) : reference::f16_bits(x);
    std::memcpy(at, &h, 2);
  }
}

std::vector<unsigned char> noise(DType type, std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto size = bytes_of(type);
  std::vector<unsigned char> out(static_cast<std::size_t>(count * size));
  for (std::int64_t i = 0; i < count; ++i)
    put(type, &out[static_cast<std::size_t>(i * size)],
        static_cast<float>(static_cast<int>(random() % 64) - 32) / 8.0f);
  return out;
}

bool same(DType type, const unsigned char* got, float want) {
  if (std::isnan(want)) return std::isnan(cuda_test::as_float(type, got));
  unsigned char bytes[4];
  put(type, bytes, want);
  return std::memcmp(bytes, got, static_cast<std::size_t>(bytes_of(type))) == 0;
}

float exact_sum(const Quantized& a, const Quantized& b, std::int64_t i, std::int64_t j) {
  const double sum = reference::gemm_at(a, b, i, j).value;
  const auto rounded = static_cast<float>(sum);
  REQUIRE((std::isnan(sum) || double(rounded) == sum));
  return rounded;
}

void check_product(const Problem& p, const Variant& v, const Shape& s, std::uint32_t seed) {
  INFO(v.text(), " m=", s.m, " n=", s.n, " k=", s.k, " gap=", s.gap, " shift=", s.shift);
  auto a = cuda_test::random_operand(s.m, s.k, Data::forward, seed);
  auto b = cuda_test::random_operand(s.n, s.k, Data::forward, seed + 1);
  if (a.rows > 4) a.scales[static_cast<std::size_t>(3 * a.k / 32)] = 255;
  const OperandMemory a_memory(a, s.gap, s.shift), b_memory(b, s.gap, s.shift);
  const auto size = bytes_of(p.d_type);
  const auto ld = s.n + (s.shift ? 3 : 0);
  const auto old = noise(p.d_type, s.m * ld, seed + 2), bias = noise(p.d_type, s.n, seed + 3);
  Memory d(old.size()), bias_memory(bias);
  qt_args args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = args.groups = 1;
  args.a = a_memory.tensor;
  args.b = b_memory.tensor;
  args.d = args.c = {d.data(), nullptr, ld, 0, 0, 0};
  args.alpha = 0.75f;
  args.beta = p.accumulate == Accumulate::accumulate ? 0.5f : 0.0f;
  args.bias = bias_memory.data();
  for (const auto& schedule : kSchedules) {
    if (!old.empty()) std::memcpy(d.data(), old.data(), old.size());
    run(hip::gemm_mfma_scale(), p, v, args, schedule);
    std::int64_t wrong = 0;
    std::string first_wrong;
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < ld; ++j) {
        const auto at = static_cast<std::size_t>((i * ld + j) * size);
        if (j >= s.n) {
          wrong += std::memcmp(d.data() + at, &old[at], static_cast<std::size_t>(size)) != 0;
          continue;
        }
        float z = args.alpha * exact_sum(a, b, i, j);
        if (args.beta != 0) z += args.beta * cuda_test::as_float(p.d_type, &old[at]);
        if (p.bias == Bias::per_column)
          z += cuda_test::as_float(p.d_type, &bias[static_cast<std::size_t>(j * size)]);
        if (same(p.d_type, d.data() + at, z)) continue;
        if (wrong++ == 0)
          first_wrong = std::to_string(i) + ", " + std::to_string(j) + ": " +
                        std::to_string(cuda_test::as_float(p.d_type, d.data() + at)) + " for " +
                        std::to_string(z);
      }
    CHECK_MESSAGE(wrong == 0, "seed ", schedule.seed, ", first at ", first_wrong);
  }
}

Problem any_product(DType d_type) { return gemm_problem({0, 4096}, {1, 4096}, {0, 4096}, d_type); }

}  // namespace

TEST_CASE("simulated hip products: awkward shapes, aligned and not, in every tile shape") {
  const auto& family = hip::gemm_mfma_scale();
  const auto plain = any_product(DType::f32);
  const auto small = with(family, plain, {{"tile_m", 64}, {"tile_n", 64}, {"stages", 3}});
  for (const auto& s : {Shape{1, 1, 32}, Shape{7, 5, 64}, Shape{129, 70, 96}, Shape{65, 130, 512},
                        Shape{64, 64, 672, 128, 0}, Shape{5, 9, 160, 32, 1}, Shape{3, 4, 0}})
    check_product(plain, small, s, 11);

  auto full = any_product(DType::bf16);
  full.accumulate = Accumulate::accumulate;
  full.bias = Bias::per_column;
  const auto wide = with(family, full, {{"tile_m", 64}, {"tile_n", 128}, {"shape", 32}});
  for (const auto& s : {Shape{1, 1000, 64}, Shape{70, 131, 416}, Shape{33, 8, 256, 0, 1}})
    check_product(full, wide, s, 12);

  auto few = gemm_problem({0, 16}, {1, 4096}, {0, 4096}, DType::f16);
  const auto flat = with(family, few, {{"tile_m", 16}, {"tile_n", 64}, {"stages", 4}});
  for (const auto& s : {Shape{7, 100, 896}, Shape{16, 64, 128}, Shape{1, 1, 1024, 64, 0}})
    check_product(few, flat, s, 13);
}

TEST_CASE("simulated hip products of large tiles with two stages") {
  const auto& family = hip::gemm_mfma_scale();
  const auto p = any_product(DType::bf16);
  check_product(p, with(family, p, {{"tile_m", 256}, {"tile_n", 256}, {"stages", 2}}),
                {300, 280, 288}, 14);
}
