// The HIP families executed: the very text that is compiled for gfx950, on the simulated machine,
// against the scalar reference. Data are such that every binary32 sum is exact in any order, so
// that results are compared bit for bit; copies land as early and as late as they may.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"
#include "reference/column_sums.hpp"
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

// What went wrong, or nothing.
std::string run_quietly(const Family& family, const Problem& p, const Variant& v,
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

void run(const Family& family, const Problem& p, const Variant& v, const qt_args& args,
         const simulated::Schedule& schedule) {
  const auto wrong = run_quietly(family, p, v, args, schedule);
  REQUIRE_MESSAGE(wrong.empty(), v.text(), ": ", wrong);
}

Variant with(const Family& family, const Problem& p,
             std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  auto v = family.default_variant(p, kTarget);
  for (const auto& [name, value] : values) v.values[name] = value;
  return v;
}

// ---- products

// Scales in layout aiter, as aiter's e8m0_shuffle orders them: rows that fill a tile hold 0xff,
// blocks behind the last one 0.
std::vector<unsigned char> shuffled(const Quantized& q) {
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
std::vector<unsigned char> panels(const Quantized& q) {
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

// What is wrong under the first schedule that gives anything but the reference's bits.
std::string complaint_about(const Problem& p, const Variant& v, const Shape& s,
                            std::uint32_t seed) {
  auto a = cuda_test::random_operand(s.m, s.k, Data::forward, seed);
  auto b = cuda_test::random_operand(s.n, s.k, Data::forward, seed + 1);
  if (a.rows > 4) a.scales[static_cast<std::size_t>(3 * a.k / 32)] = 255;
  const auto& family = hip::gemm_mfma_scale();
  const OperandMemory a_memory(a, s.gap, s.shift, family.a_layout(p, v)),
      b_memory(b, s.gap, s.shift, family.b_layout(p, v));
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
  const Memory workspace(std::vector<unsigned char>(
      static_cast<std::size_t>(family.workspace_bytes(p, v, {s.m, s.n, s.k})), 0xff));
  args.workspace = workspace.data();
  for (const auto& schedule : kSchedules) {
    if (!old.empty()) std::memcpy(d.data(), old.data(), old.size());
    const auto fault = run_quietly(family, p, v, args, schedule);
    if (!fault.empty()) return fault;
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
    if (wrong > 0)
      return std::to_string(wrong) + " wrong under seed " + std::to_string(schedule.seed) +
             ", first at " + first_wrong;
  }
  return {};
}

void check_product(const Problem& p, const Variant& v, const Shape& s, std::uint32_t seed) {
  INFO(v.text(), " m=", s.m, " n=", s.n, " k=", s.k, " gap=", s.gap, " shift=", s.shift);
  CHECK(complaint_about(p, v, s, seed) == "");
}

// A weight-only product; B has a row of scale 0, one of 254 and one of NaN where it has rows
// enough.
void check_weight_only(const Problem& p, const Variant& v, const Shape& s, std::uint32_t seed) {
  INFO(v.text(), " m=", s.m, " n=", s.n, " k=", s.k, " gap=", s.gap, " shift=", s.shift);
  auto b = cuda_test::random_operand(s.n, round_up(s.k, 32), Data::forward, seed);
  for (auto& scale : b.scales) scale = static_cast<std::uint8_t>(126 + scale % 3);
  const auto blocks = b.k / 32;
  for (std::int64_t k = s.k; k < b.k; ++k)
    for (std::int64_t row = 0; row < b.rows; ++row) {
      auto& byte = b.codes[static_cast<std::size_t>((row * b.k + k) / 2)];
      byte = static_cast<std::uint8_t>(k % 2 == 0 ? byte & 0xf0 : byte & 0x0f);
    }
  if (b.rows > 4 && blocks > 0) {
    std::fill_n(b.scales.begin() + blocks, blocks, std::uint8_t{0});
    std::fill_n(b.codes.begin() + 2 * b.k / 2, b.k / 2, std::uint8_t{0});
    std::fill_n(b.scales.begin() + 2 * blocks, blocks, std::uint8_t{254});
    b.codes[static_cast<std::size_t>(b.k)] = 1;  // 0.5
    b.scales[static_cast<std::size_t>(4 * blocks + blocks / 2)] = 255;
  }
  const auto a = noise(p.a_type, s.m * (s.k + s.gap) + s.shift, seed + 1);
  const auto size_a = bytes_of(p.a_type), size = bytes_of(p.d_type);
  const auto a_at = [&](std::int64_t i, std::int64_t k) {
    return double(cuda_test::as_float(
        p.a_type, &a[static_cast<std::size_t>((s.shift + i * (s.k + s.gap) + k) * size_a)]));
  };
  const OperandMemory b_memory(b, 0, 0, hip::weight_only().b_layout(p, v));
  const Memory a_memory(a);
  const auto old = noise(p.d_type, s.m * s.n, seed + 2), bias = noise(p.d_type, s.n, seed + 3);
  Memory d(old.size()), bias_memory(bias);
  qt_args args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = args.groups = 1;
  args.a = {a_memory.data() + s.shift * size_a, nullptr, s.k + s.gap, 0, 0, 0};
  args.b = b_memory.tensor;
  args.d = args.c = {d.data(), nullptr, s.n, 0, 0, 0};
  args.alpha = 0.75f;
  args.beta = p.accumulate == Accumulate::accumulate ? 0.5f : 0.0f;
  args.bias = bias_memory.data();
  for (const auto& schedule : kSchedules) {
    if (!old.empty()) std::memcpy(d.data(), old.data(), old.size());
    run(hip::weight_only(), p, v, args, schedule);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < s.k; ++k) sum += a_at(i, k) * b.value(j, k);
        REQUIRE((std::isnan(sum) || std::isinf(float(sum)) || double(float(sum)) == sum));
        const auto at = static_cast<std::size_t>((i * s.n + j) * size);
        float z = args.alpha * float(sum);
        if (args.beta != 0) z += args.beta * cuda_test::as_float(p.d_type, &old[at]);
        if (p.bias == Bias::per_column)
          z += cuda_test::as_float(p.d_type, &bias[static_cast<std::size_t>(j * size)]);
        wrong += !same(p.d_type, d.data() + at, z);
      }
    CHECK(wrong == 0);
  }
}

Problem any_product(DType d_type) { return gemm_problem({0, 4096}, {1, 4096}, {0, 4096}, d_type); }

// z as the exact sums make it, at a row and a column of z.
float z_of(const Quantized& a, const Quantized& b, std::int64_t i, std::int64_t j, float alpha,
           DType type, const std::vector<unsigned char>& bias) {
  const float z = alpha * exact_sum(a, b, i, j);
  return z + cuda_test::as_float(type, &bias[static_cast<std::size_t>(j * bytes_of(type))]);
}

// ---- quantisers

float of_bits(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// Values that look like tensors, with one block in a few of each hard kind.
std::vector<float> awkward(std::int64_t rows, std::int64_t k, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  std::uint32_t kind = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) kind = random() % 20;
    float v = normal(engine);
    if (kind == 0) v = random() % 2 ? -0.0f : 0.0f;
    if (kind == 1) v = static_cast<float>(random() % 25) * 0.25f;  // ties
    if (kind == 2 && random() % 16 == 0) v = of_bits(0x7fc00000u | random() % 2 << 31);
    if (kind == 3 && random() % 16 == 0) v = of_bits(0x7f800000u | random() % 2 << 31);
    if (kind == 4) v = of_bits(random() % 0x00800000u);  // subnormal
    if (kind == 5) v = std::ldexp(v, 100);
    if (kind == 6) v = std::ldexp(v, -110);
    x[i] = v;
  }
  return x;
}

std::int64_t wrong_bytes(const Quantized& want, const Memory& codes, const Memory& scales,
                         Layout layout) {
  std::int64_t wrong = 0;
  if (layout == Layout::aiter) {
    const auto expected = shuffled(want);
    REQUIRE(expected.size() == scales.bytes());
    for (std::size_t i = 0; i < want.codes.size(); ++i) wrong += codes.data()[i] != want.codes[i];
    for (std::size_t i = 0; i < expected.size(); ++i) wrong += scales.data()[i] != expected[i];
    return wrong;
  }
  for (std::size_t i = 0; i < want.codes.size(); ++i) wrong += codes.data()[i] != want.codes[i];
  for (std::size_t i = 0; i < want.scales.size(); ++i) wrong += scales.data()[i] != want.scales[i];
  return wrong;
}

struct Copy {
  Memory codes, scales;
  qt_tensor tensor;
  Copy(std::int64_t rows, std::int64_t k, Layout layout)
      : codes(static_cast<std::size_t>(operand_bytes(layout, rows, k).codes)),
        scales(static_cast<std::size_t>(operand_bytes(layout, rows, k).scales)),
        tensor{codes.data(), scales.data(), k, k / 32, 0, 0} {}
  void clear() const {
    std::memset(codes.data(), 0xff, codes.bytes());
    std::memset(scales.data(), 0xff, scales.bytes());
  }
};

void check_quantize(const Problem& p, std::int64_t m, std::int64_t k, std::int64_t gap,
                    std::uint32_t seed) {
  INFO(p.key(), " m=", m, " k=", k, " gap=", gap);
  const Family& family = *find_family(
      p.a_rounding == Rounding::sr_cvt_scalef32 ? "hip_quantize_cvt_scalef32" : "hip_quantize");
  const auto v = family.default_variant(p, kTarget);
  auto x = awkward(m, k, seed);
  const auto tight = cuda_test::stored(p.a_type, x);
  const auto size = bytes_of(p.a_type);
  // The last row ends with the memory.
  std::vector<unsigned char> strided(
      static_cast<std::size_t>(std::max<std::int64_t>(0, m * (k + gap) - gap) * size), 0xff);
  for (std::int64_t i = 0; i < m; ++i)
    std::copy_n(tight.begin() + i * k * size, k * size, strided.begin() + i * (k + gap) * size);
  const Memory in(strided);
  const auto unit = padding_unit(p);
  const Copy rows(m, round_up(k, unit), p.d_layout), columns(k, round_up(m, unit), p.d_layout);
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = args.groups = 1;
  args.a = {in.data(), nullptr, k + gap, 0, 0, 0};
  args.noise_seed = 0x1234567890abcdefull + seed;
  args.sign_seed = 77 + seed;
  for (std::uint32_t i = 0; i < 8; ++i) args.sign_mask[i] = 0x9e3779b9u * (i + 1 + seed);
  args.stream = 5;
  args.operand = seed % 2;
  const bool by_rows = p.copies != Copies::columns, by_columns = p.copies != Copies::rows;
  args.d = by_rows ? rows.tensor : columns.tensor;
  args.d2 = columns.tensor;
  const auto spec = cuda_test::spec_of(p, p.a_rounding, args);
  const auto want_rows = reference::quantize(x.data(), m, k, k, spec);
  const auto want_columns = reference::quantize_columns(x.data(), m, k, k, spec);
  for (const auto& schedule : kSchedules) {
    rows.clear();
    columns.clear();
    run(family, p, v, args, schedule);
    INFO("seed ", schedule.seed);
    if (by_rows) CHECK(wrong_bytes(want_rows, rows.codes, rows.scales, p.d_layout) == 0);
    if (by_columns)
      CHECK(wrong_bytes(want_columns, columns.codes, columns.scales, p.d_layout) == 0);
  }
}

Problem any_quantize(DType type, std::int32_t g, Signs signs, ScaleRule rule, Rounding rounding,
                     Copies copies) {
  auto p = quantize_problem({0, 4096}, {0, 4096}, type, g, rule, rounding, copies);
  p.role = Role::wgrad;  // any sizes
  p.signs = signs;
  return p;
}

}  // namespace

TEST_CASE("simulated hip products: awkward shapes, aligned and not, in every tile shape") {
  const auto& family = hip::gemm_mfma_scale();
  const auto plain = any_product(DType::f32);
  const auto small = with(family, plain, {{"tile_m", 64}, {"tile_n", 64}, {"stages", 3}});
  for (const auto& s : {Shape{1, 1, 32}, Shape{7, 5, 64}, Shape{129, 70, 96}, Shape{65, 130, 512},
                        Shape{64, 64, 672, 96, 0}, Shape{5, 9, 160, 32, 1}, Shape{3, 4, 0}})
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

TEST_CASE("simulated hip products share out K among blocks") {
  const auto& family = hip::gemm_mfma_scale();
  auto p = gemm_problem({0, 512}, {1, 512}, {0, 131072}, DType::f32);
  p.accumulate = Accumulate::accumulate;
  p.bias = Bias::per_column;
  const auto three = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"splits", 3}});
  // With whole and other last stages, unaligned, fewer stages than parts, and no K at all.
  for (const auto& s : {Shape{70, 130, 1312}, Shape{65, 7, 1024}, Shape{5, 9, 672, 32, 1},
                        Shape{3, 70, 160}, Shape{3, 4, 0}})
    check_product(p, three, s, 17);
  const auto tiles = with(family, p,
                          {{"tile_m", 32},
                           {"tile_n", 128},
                           {"shape", 32},
                           {"stages", 4},
                           {"scales", 1},
                           {"splits", 8}});
  check_product(p, tiles, {40, 100, 1184}, 18);
}

TEST_CASE("simulated hip products read scales in tiles, of both operands or of one") {
  const auto& family = hip::gemm_mfma_scale();
  auto p = any_product(DType::f32);
  const auto tiles = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"scales", 1}});
  for (const auto& s : {Shape{1, 1, 32}, Shape{70, 130, 512}, Shape{129, 66, 672},
                        Shape{40, 5, 1184, 32, 0}, Shape{9, 70, 416, 0, 1}})
    check_product(p, tiles, s, 15);
  p.a_layout = Layout::plain;
  p.b_layout = Layout::aiter;
  check_product(p, with(family, p, {{"tile_m", 64}, {"tile_n", 128}, {"shape", 32}, {"scales", 2}}),
                {33, 70, 640}, 16);
}

TEST_CASE("simulated hip products read weights in panels of 16 rows") {
  const auto& family = hip::gemm_mfma_scale();
  const auto p = any_product(DType::f32);
  for (const std::int64_t scales : {4, 5}) {
    const auto v = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"scales", scales}});
    for (const auto& s : {Shape{1, 1, 32}, Shape{70, 130, 512}, Shape{9, 70, 416, 0, 1}})
      check_product(p, v, s, 17);
  }
  check_product(p, with(family, p, {{"tile_m", 64}, {"tile_n", 128}, {"shape", 32}, {"scales", 4}}),
                {33, 77, 672}, 18);
}

TEST_CASE("simulated hip weight-only products: awkward shapes, both types, every layout of B") {
  auto p = any_product(DType::f32);
  p.a_type = DType::bf16;
  for (const std::int64_t weights : {0, 1, 2}) {
    const auto v = with(hip::weight_only(), p,
                        {{"tile_m", 64}, {"tile_n", 64}, {"stages", 3}, {"weights", weights}});
    for (const auto& s : {Shape{1, 1, 32}, Shape{7, 5, 64}, Shape{129, 70, 96}, Shape{65, 130, 544},
                          Shape{5, 9, 160, 32, 1}, Shape{3, 4, 0}})
      check_weight_only(p, v, s, 61);
  }
  auto few = p;
  few.a_type = few.d_type = DType::f16;
  few.m = {0, 16};
  few.bias = Bias::per_column;
  few.accumulate = Accumulate::accumulate;
  const auto flat = with(hip::weight_only(), few, {{"tile_m", 16}, {"tile_n", 128}, {"stages", 4}});
  for (const auto& s : {Shape{7, 100, 896}, Shape{16, 128, 128}, Shape{1, 3, 1024, 64, 0}})
    check_weight_only(few, flat, s, 62);
  // K of A that is no multiple of a block: tokens, whose copies in B are padded.
  p.role = Role::wgrad;
  check_weight_only(p, with(hip::weight_only(), p, {{"tile_m", 32}, {"tile_n", 64}}), {33, 40, 301},
                    63);
}

TEST_CASE("simulated hip packs move every layout to every other, and back") {
  constexpr Layout layouts[] = {Layout::plain, Layout::aiter, Layout::aiter_16x16};
  for (const auto& [rows, k] :
       {std::pair<std::int64_t, std::int64_t>{1, 32}, {37, 288}, {70, 1056}})
    for (const Layout from : layouts)
      for (const Layout to : layouts) {
        INFO(name_of(from), " to ", name_of(to), " rows=", rows, " k=", k);
        const auto q = cuda_test::random_operand(rows, k, Data::wide, 71);
        Problem p;
        p.op = Op::pack;
        p.role = Role::wgrad;  // any sizes
        p.m = p.k = {0, 4096};
        p.a_type = p.d_type = DType::mxfp4;
        p.a_layout = from;
        p.d_layout = to;
        const OperandMemory given(q, 0, from == Layout::plain && rows == 37 ? 1 : 0, from);
        const OperandMemory wanted(q, 0, 0, to);
        const Copy moved(rows, k, to);
        qt_args args{};
        args.m = rows;
        args.k = k;
        args.batch = args.groups = 1;
        args.a = given.tensor;
        args.d = moved.tensor;
        moved.clear();
        run(hip::pack(), p, hip::pack().default_variant(p, kTarget), args, kSchedules[0]);
        REQUIRE(moved.codes.bytes() == wanted.codes.bytes());
        REQUIRE(moved.scales.bytes() == wanted.scales.bytes());
        CHECK(std::memcmp(moved.codes.data(), wanted.codes.data(), wanted.codes.bytes()) == 0);
        CHECK(std::memcmp(moved.scales.data(), wanted.scales.data(), wanted.scales.bytes()) == 0);
      }
}

TEST_CASE("simulated hip products of large tiles with two stages") {
  const auto& family = hip::gemm_mfma_scale();
  const auto p = any_product(DType::bf16);
  check_product(p, with(family, p, {{"tile_m", 256}, {"tile_n", 256}, {"stages", 2}}),
                {300, 280, 288}, 14);
}

TEST_CASE("simulated hip products pair a SwiGLU's columns, keep z, and follow groups of rows") {
  const auto& family = hip::gemm_mfma_scale();
  auto p = any_product(DType::f32);
  p.epilogue = Epilogue::swiglu_split;
  p.pre_activation = PreActivation::kept;
  p.bias = Bias::per_column;
  const std::int64_t m = 37, n = 74, k = 288;
  const auto a = cuda_test::random_operand(m, k, Data::forward, 21);
  const auto b = cuda_test::random_operand(n, k, Data::forward, 22);
  const OperandMemory a_memory(a, 0, 0), b_memory(b, 0, 0);
  const auto bias = noise(DType::f32, n, 23);
  const Memory d(static_cast<std::size_t>(m * n / 2 * 4)), z(static_cast<std::size_t>(m * n * 4)),
      bias_memory(bias);
  qt_args args{};
  args.m = m;
  args.n = n;
  args.k = k;
  args.batch = args.groups = 1;
  args.a = a_memory.tensor;
  args.b = b_memory.tensor;
  args.d = {d.data(), nullptr, n / 2, 0, 0, 0};
  args.z = {z.data(), nullptr, n, 0, 0, 0};
  args.alpha = 0.0625f;
  args.bias = bias_memory.data();
  const auto v = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"stages", 2}});
  for (const auto& schedule : kSchedules) {
    std::memset(z.data(), 0xff, z.bytes());
    std::memset(d.data(), 0xff, d.bytes());
    run(family, p, v, args, schedule);
    std::int64_t wrong = 0, wrong_outputs = 0;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const float want = z_of(a, b, i, j, args.alpha, DType::f32, bias);
        wrong += !same(DType::f32, z.data() + (i * n + j) * 4, want);
        if (j >= n / 2) continue;
        const double value = z_of(a, b, i, j + n / 2, args.alpha, DType::f32, bias);
        const double output = double(want) / (1 + std::exp(-double(want))) * value;
        const float got = cuda_test::as_float(DType::f32, d.data() + (i * n / 2 + j) * 4);
        wrong_outputs += !(std::fabs(got - output) <= 1e-6 * std::fabs(output) + 1e-30);
      }
    CHECK(wrong == 0);
    CHECK(wrong_outputs == 0);
  }

  auto grouped = any_product(DType::f32);
  grouped.grouping = Grouping::m_contiguous;
  grouped.groups = {1, 8};
  const std::int64_t groups = 4, each = 30;
  const auto weights = cuda_test::random_operand(groups * each, k, Data::forward, 24);
  const OperandMemory weights_memory(weights, 0, 0);
  const std::vector<int> ends = {5, 5, 30, 34};  // rows behind the last belong to nobody
  std::vector<unsigned char> bytes(ends.size() * 4);
  std::memcpy(bytes.data(), ends.data(), bytes.size());
  const Memory sizes(bytes), rows(static_cast<std::size_t>(m * each * 4));
  args.n = each;
  args.groups = groups;
  args.group_sizes = reinterpret_cast<const int*>(sizes.data());
  args.b = weights_memory.tensor;
  args.b.batch_stride = each * weights.k;
  args.b.scale_batch_stride = each * weights.k / 32;
  args.d = {rows.data(), nullptr, each, 0, 0, 0};
  args.bias = nullptr;
  std::memset(rows.data(), 0xff, rows.bytes());
  run(family, grouped, with(family, grouped, {{"tile_m", 32}, {"tile_n", 64}}), args,
      kSchedules[0]);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < each; ++j) {
      std::size_t group = 0;
      while (group < ends.size() && i >= ends[group]) ++group;
      const auto* got = rows.data() + (i * each + j) * 4;
      const auto column = static_cast<std::int64_t>(group) * each + j;
      wrong += group == ends.size()
                   ? std::memcmp(got, "\xff\xff\xff\xff", 4) != 0
                   : !same(DType::f32, got, args.alpha * exact_sum(a, weights, i, column));
    }
  CHECK(wrong == 0);
}

TEST_CASE("simulated hip quantisers give the reference's bits") {
  using enum ScaleRule;
  constexpr auto rne = Rounding::rne, sr16 = Rounding::sr16;
  const auto all = {
      any_quantize(DType::bf16, 32, Signs::per_call, rceil, rne, Copies::rows),
      any_quantize(DType::f32, 64, Signs::fixed, rceil, sr16, Copies::both),
      any_quantize(DType::f16, 128, Signs::fixed, search, rne, Copies::columns),
      any_quantize(DType::bf16, 256, Signs::per_call, ts34, sr16, Copies::both),
      any_quantize(DType::bf16, 16, Signs::none, quest, rne, Copies::rows),
  };
  std::uint32_t seed = 31;
  for (const auto& p : all) {
    check_quantize(p, 70, 1000, 0, seed++);
    check_quantize(p, 7, 96, 8, seed++);
    check_quantize(p, 129, 160, 1, seed++);
  }
  auto tiles = any_quantize(DType::bf16, 32, Signs::none, rceil, rne, Copies::both);
  tiles.d_layout = Layout::aiter;
  check_quantize(tiles, 70, 1000, 0, seed++);
  check_quantize(tiles, 7, 96, 0, seed++);
  auto squares = any_quantize(DType::bf16, 0, Signs::none, even, rne, Copies::both);
  squares.scale_block = ScaleBlock::b32x32;
  check_quantize(squares, 70, 100, 0, seed++);
}

TEST_CASE("simulated hip quantisers by gfx950's own rounding give the reference's bits") {
  using enum ScaleRule;
  constexpr auto own = Rounding::sr_cvt_scalef32;
  std::uint32_t seed = 81;
  auto tiles = any_quantize(DType::bf16, 32, Signs::none, rceil, own, Copies::both);
  tiles.d_layout = Layout::aiter;
  check_quantize(tiles, 70, 264, 0, seed++);
  check_quantize(any_quantize(DType::f32, 64, Signs::fixed, rceil, own, Copies::rows), 37, 1000, 3,
                 seed++);
  check_quantize(any_quantize(DType::bf16, 0, Signs::none, quest, own, Copies::columns), 70, 100, 0,
                 seed++);
  check_quantize(any_quantize(DType::f16, 256, Signs::per_call, ts34, own, Copies::rows), 7, 300, 0,
                 seed++);
  auto squares = any_quantize(DType::bf16, 0, Signs::none, rceil, own, Copies::both);
  squares.scale_block = ScaleBlock::b32x32;
  check_quantize(squares, 70, 100, 0, seed++);
}

TEST_CASE("simulated hip simple kernels: dequantise, rotate, add columns up") {
  const std::int64_t m = 37, k = 160;
  Problem p;
  p.role = Role::wgrad;  // any sizes
  p.m = p.k = {0, 4096};
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = args.groups = 1;
  const auto run_all = [&](const char* name, const auto& check) {
    const Family& family = *find_family(name);
    for (const auto& schedule : kSchedules) {
      run(family, p, family.default_variant(p, kTarget), args, schedule);
      check();
    }
  };

  const auto q = cuda_test::random_operand(m, k, Data::wide, 51);
  const OperandMemory q_memory(q, 0, 0);
  const Memory d(static_cast<std::size_t>(m * k * 2));
  p.op = Op::dequantize;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_type = DType::bf16;
  args.a = q_memory.tensor;
  args.d = {d.data(), nullptr, k, 0, 0, 0};
  run_all("hip_dequantize", [&] {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < m * k; ++i)
      wrong += !same(p.d_type, d.data() + i * 2, static_cast<float>(q.value(i / k, i % k)));
    CHECK(wrong == 0);
  });

  auto x = awkward(m, k, 52);
  const Memory in(cuda_test::stored(DType::bf16, x));
  const Memory rotated(static_cast<std::size_t>(m * k * 4));
  p.op = Op::hadamard;
  p.k = Extent::exactly(k);
  p.a_type = DType::bf16;
  p.a_layout = Layout::chosen;
  p.d_type = DType::f32;
  p.rotation = 32;
  args.a = {in.data(), nullptr, k, 0, 0, 0};
  args.d = {rotated.data(), nullptr, k, 0, 0, 0};
  auto want = x;
  const auto spec = cuda_test::spec_of(p, Rounding::rne, args);
  for (std::int64_t i = 0; i < m; ++i)
    reference::rotate_row(std::span(want).subspan(static_cast<std::size_t>(i * k), k), spec);
  run_all("hip_hadamard", [&] {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < m * k; ++i)
      wrong += !same(DType::f32, rotated.data() + i * 4, want[static_cast<std::size_t>(i)]);
    CHECK(wrong == 0);
  });

  const Memory sums(static_cast<std::size_t>(k * 4));
  p.op = Op::column_sums;
  p.rotation = 0;
  args.d = {sums.data(), nullptr, k, 0, 0, 0};
  const auto want_sums = reference::column_sums(x.data(), m, k, k);
  run_all("hip_column_sums", [&] {
    std::int64_t wrong = 0;
    for (std::int64_t j = 0; j < k; ++j)
      wrong += !same(DType::f32, sums.data() + j * 4, want_sums[static_cast<std::size_t>(j)]);
    CHECK(wrong == 0);
  });
}
