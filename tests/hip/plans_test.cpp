// Whole plans of gfx950 through the back end: compiled by a helper process, loaded, launched and
// captured, on doubles of hipRTC and the HIP runtime over the simulated machine.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "runtime/executable.hpp"
#include "runtime/hip/backend.hpp"
#include "tests/cuda/oracle.hpp"
#include "tests/hip/problems.hpp"
#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;
using namespace qturn_test;
using cuda_test::Quantized;

namespace {

class Memory {
 public:
  Memory(Backend& backend, const std::vector<unsigned char>& content)
      : backend_(backend), bytes_(static_cast<std::int64_t>(content.size())) {
    auto memory = backend_.allocate(bytes_);
    REQUIRE_MESSAGE(memory.ok(), memory.status().message());
    at_ = *memory;
    REQUIRE(backend_.upload(at_, content.data(), bytes_).ok());
  }
  ~Memory() { backend_.release(at_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return at_; }
  std::int64_t bytes() const { return bytes_; }
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> out(static_cast<std::size_t>(bytes_));
    REQUIRE(backend_.download(out.data(), at_, bytes_).ok());
    return out;
  }

 private:
  Backend& backend_;
  std::int64_t bytes_;
  void* at_ = nullptr;
};

// Small integers, so that rotated values and sums are few bits long.
std::vector<float> integers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (auto& x : out) x = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return out;
}

std::vector<unsigned char> zeros(std::int64_t bytes) {
  return std::vector<unsigned char>(static_cast<std::size_t>(bytes), 0xff);
}

}  // namespace

TEST_CASE(
    "simulated hip plans quantise both operands and multiply them, also captured in a graph") {
  const test::TemporaryFolder folder;
  auto store = CodeStore::open(folder.file("code"));
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  hip::BackendOptions options;
  options.runtime = options.compiler.hiprtc = QTURN_SIMULATED_HIP;
  auto opened = hip::open_backend(std::make_shared<CodeStore>(std::move(*store)), options);
  REQUIRE_MESSAGE(opened.ok(), opened.status().message());
  Backend& backend = **opened;
  CHECK(backend.device().compiler.rfind("hiprtc 7.1 ", 0) == 0);
  CHECK(backend.device().performance_class.find(" units=4 ") != std::string::npos);

  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::fprop;
  p.m = {0, 256};
  p.n = Extent::exactly(72);
  p.k = Extent::exactly(96);
  p.rotation = 32;
  p.signs = Signs::per_call;
  p.a_type = p.b_type = DType::bf16;
  p.d_type = DType::f32;
  const auto plan = default_plan(p, backend.device().target);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto built = Executable::build(backend, p, *plan);
  REQUIRE_MESSAGE(built.ok(), built.status().message());

  const std::int64_t m = 37, n = 72, k = 96;
  auto a = integers(m * k, 1), b = integers(n * k, 2);
  const Memory a_memory(backend, cuda_test::stored(DType::bf16, a)),
      b_memory(backend, cuda_test::stored(DType::bf16, b)), d(backend, zeros(m * n * 4)),
      workspace(backend, zeros((*built)->workspace_bytes()));
  qt_args args{};
  args.m = m;
  args.n = n;
  args.k = k;
  args.batch = args.groups = 1;
  args.a = {a_memory.data(), nullptr, k, 0, 0, 0};
  args.b = {b_memory.data(), nullptr, k, 0, 0, 0};
  args.d = {d.data(), nullptr, n, 0, 0, 0};
  args.alpha = 0.5f;
  args.sign_seed = 777;
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  auto spec = cuda_test::spec_of(p, p.a_rounding, args);
  const auto a_codes = reference::quantize(a.data(), m, k, k, spec);
  spec.noise.operand = 1;
  const auto b_codes = reference::quantize(b.data(), n, k, k, spec);
  const auto check = [&] {
    const auto got = d.download();
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const double want = 0.5 * reference::gemm_at(a_codes, b_codes, i, j).value;
        wrong += double(cuda_test::as_float(DType::f32, got.data() + (i * n + j) * 4)) != want;
      }
    CHECK(wrong == 0);
  };
  const auto ran = (*built)->run(args, nullptr);
  REQUIRE_MESSAGE(ran.ok(), ran.message());
  check();

  REQUIRE(backend.fill(d.data(), 0xff, d.bytes()).ok());
  const auto recording = backend.record([&](void* stream) { return (*built)->run(args, stream); });
  REQUIRE_MESSAGE(recording.ok(), recording.status().message());
  REQUIRE((*recording)->start(nullptr).ok());
  check();
}

TEST_CASE("simulated hip launches that go wrong say where") {
  const test::TemporaryFolder folder;
  auto store = CodeStore::open(folder.file("code"));
  REQUIRE(store.ok());
  hip::BackendOptions options;
  options.runtime = options.compiler.hiprtc = QTURN_SIMULATED_HIP;
  auto opened = hip::open_backend(std::make_shared<CodeStore>(std::move(*store)), options);
  REQUIRE(opened.ok());
  Backend& backend = **opened;
  auto p = quantize_problem({1, 64}, Extent::exactly(64), DType::bf16, 32, ScaleRule::rceil,
                            Rounding::rne, Copies::rows);
  const auto plan = default_plan(p, backend.device().target);
  REQUIRE(plan.ok());
  const auto built = Executable::build(backend, p, *plan);
  REQUIRE(built.ok());
  const Memory x(backend, zeros(8 * 64 * 2)), codes(backend, zeros(8 * 32)),
      scales(backend, zeros(8 * 2));
  qt_args args{};
  args.m = 9;  // one row more than there is
  args.k = 64;
  args.batch = args.groups = 1;
  args.a = {x.data(), nullptr, 64, 0, 0, 0};
  args.d = {codes.data(), scales.data(), 64, 2, 0, 0};
  const auto ran = (*built)->run(args, nullptr);
  CHECK(ran.code() == Code::launch_failed);
  CHECK_MESSAGE(ran.message().find("memory fault") != std::string::npos, ran.message());
}
