#include "runtime/executable.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "reference/gemm.hpp"
#include "runtime/operand.hpp"
#include "tests/runtime/cpu_device.hpp"

using namespace quarterturn;
using test::Aligned;
using test::cpu_device;
using test::normal_values;

namespace {

Problem product(Role role, Extent m, Extent n, Extent k) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = role;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a_type = p.b_type = p.d_type = DType::f32;
  p.rotation = 32;
  if (role == Role::dgrad) p.b_major = Major::rows;
  if (role == Role::wgrad) p.a_major = p.b_major = Major::rows;
  return p;
}

struct Inputs {
  std::vector<float> a, b;
};

// A [m, k] and B [n, k] as the problem stores them.
qt_args arguments(const Problem& p, const Inputs& in, std::vector<float>& d, std::int64_t m,
                  std::int64_t n, std::int64_t k) {
  qt_args args{};
  args.m = m;
  args.n = n;
  args.k = k;
  args.batch = 1;
  const auto stored = [&](Major major, std::int64_t rows, const std::vector<float>& values) {
    auto* data = const_cast<float*>(values.data());
    return major == Major::k ? dense_matrix(rows, k, data) : dense_matrix(k, rows, data);
  };
  args.a = stored(p.a_major, m, in.a);
  args.b = stored(p.b_major, n, in.b);
  args.d = dense_matrix(m, n, d.data());
  args.alpha = 1;
  return args;
}

std::vector<float> run(const Executable& executable, qt_args args, std::vector<float>& d) {
  Aligned workspace(executable.workspace_bytes());
  std::memset(workspace.get(), 0xff, static_cast<std::size_t>(executable.workspace_bytes()));
  args.workspace = workspace.get();
  args.workspace_bytes = executable.workspace_bytes();
  const auto status = executable.run(args, nullptr);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return d;
}

std::vector<reference::Product> oracle(const Problem& p, const Inputs& in, std::int64_t m,
                                       std::int64_t n, std::int64_t k) {
  reference::QuantizeSpec spec;
  spec.rotation = p.rotation;
  spec.rule = static_cast<reference::ScaleRule>(p.scale_rule);
  const auto quantized = [&](Major major, const std::vector<float>& x, std::int64_t rows) {
    return major == Major::k ? reference::quantize(x.data(), rows, k, k, spec)
                             : reference::quantize_columns(x.data(), k, rows, rows, spec);
  };
  reference::GemmSpec gemm;
  if (p.scale_rule == ScaleRule::ts34) gemm.alpha = 16.0 / 9.0;
  return reference::gemm(quantized(p.a_major, in.a, m), quantized(p.b_major, in.b, n), gemm);
}

void check_close(const std::vector<float>& d, const std::vector<reference::Product>& want,
                 std::int64_t k) {
  REQUIRE(d.size() == want.size());
  // Exact block sums added in binary32: at most one rounding a block, and the epilogue's.
  const double unit = std::ldexp(1.0, -24) * static_cast<double>(k / 32 + 4);
  std::size_t bad = 0;
  for (std::size_t i = 0; i < d.size(); ++i)
    bad += !(std::abs(static_cast<double>(d[i]) - want[i].value) <= unit * want[i].magnitude);
  CHECK(bad == 0);
}

std::shared_ptr<const Executable> compiled(Backend& backend, const Problem& p) {
  const auto plan = default_plan(p, backend.device().target);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  auto executable = Executable::build(backend, p, *plan);
  REQUIRE_MESSAGE(executable.ok(), executable.status().message());
  return *executable;
}

std::shared_ptr<const Executable> prebuilt(Backend& backend, const Problem& p) {
  auto executable = Executable::prebuilt(backend, p);
  REQUIRE_MESSAGE(executable.ok(), executable.status().message());
  return *executable;
}

}  // namespace

TEST_CASE("executable.compiled and prebuilt plans solve every role, and agree bit for bit") {
  const auto backend = cpu_device();
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad}) {
    const std::int64_t m = 37, n = 48, k = role == Role::wgrad ? 70 : 96;
    const Extent tokens{0, 128};
    const auto p = product(role, role == Role::wgrad ? Extent::exactly(m) : tokens,
                           Extent::exactly(n), role == Role::wgrad ? tokens : Extent::exactly(k));
    REQUIRE(validate(p).ok());
    const Inputs in{normal_values(m * k, 1), normal_values(n * k, 2)};
    std::vector<float> d(static_cast<std::size_t>(m * n), std::nanf(""));
    const auto args = arguments(p, in, d, m, n, k);
    const auto fast = run(*compiled(*backend, p), args, d);
    check_close(fast, oracle(p, in, m, n, k), k);
    std::fill(d.begin(), d.end(), std::nanf(""));
    const auto slow = run(*prebuilt(*backend, p), args, d);
    CHECK(std::memcmp(fast.data(), slow.data(), fast.size() * 4) == 0);
  }
}

TEST_CASE("executable.every op has a prebuilt kernel that gives the compiled one's bits") {
  const auto backend = cpu_device();
  const std::int64_t m = 33, n = 48, k = 192;
  const auto op = [&](Op which, DType a, DType d) {
    Problem p;
    p.op = which;
    p.m = {0, 64};
    p.k = Extent::exactly(k);
    p.a_type = a;
    p.d_type = d;
    p.rotation = 64;
    return p;
  };
  std::vector<Problem> problems;
  for (const auto copies : {Copies::rows, Copies::columns, Copies::both})
    for (const auto rounding : {Rounding::rne, Rounding::sr16}) {
      problems.push_back(op(Op::quantize, DType::bf16, DType::mxfp4));
      problems.back().copies = copies;
      problems.back().a_rounding = rounding;
    }
  problems.push_back(op(Op::hadamard, DType::bf16, DType::f32));
  for (const auto layout : {Layout::int8_blocks, Layout::panel16}) {
    problems.push_back(op(Op::pack, DType::mxfp4, DType::mxfp4));
    problems.back().a_layout = Layout::plain;
    problems.back().d_layout = layout;
  }
  problems.push_back(op(Op::dequantize, DType::mxfp4, DType::f16));
  problems.back().a_layout = Layout::plain;
  problems.push_back(op(Op::gemm, DType::bf16, DType::bf16));
  problems.back().rotation = 0;
  problems.back().n = Extent::exactly(n);
  problems.back().b_type = DType::mxfp4;

  std::mt19937 random(9);
  std::vector<unsigned char> a(1 << 16), scales(1 << 14), b(1 << 16), b_scales(1 << 14);
  for (auto& byte : a) byte = static_cast<unsigned char>(random() & 0x3f);  // small bf16, any codes
  for (auto& byte : b) byte = static_cast<unsigned char>(random());
  for (auto* bytes : {&scales, &b_scales})
    for (auto& byte : *bytes) byte = static_cast<unsigned char>(110 + random() % 20);
  for (const Problem& p : problems) {
    CAPTURE(p.key());
    REQUIRE_MESSAGE(validate(p).ok(), validate(p).message());
    std::vector<std::vector<unsigned char>> results;
    for (const auto& executable : {compiled(*backend, p), prebuilt(*backend, p)}) {
      qt_args args{};
      args.m = m;
      args.n = p.n.lo;
      args.k = k;
      args.batch = 1;
      args.alpha = 1;
      args.noise_seed = 5;
      Aligned in(1 << 16), in_scales(1 << 14), in_b(1 << 16), in_b_scales(1 << 14);
      std::memcpy(in.get(), a.data(), a.size());
      std::memcpy(in_scales.get(), scales.data(), scales.size());
      std::memcpy(in_b.get(), b.data(), b.size());
      std::memcpy(in_b_scales.get(), b_scales.data(), b_scales.size());
      Aligned out(1 << 18);
      std::memset(out.get(), 0x5a, 1 << 18);
      auto* bytes = static_cast<unsigned char*>(out.get());
      const auto unit = padding_unit(p);
      args.a = p.a_type == DType::mxfp4
                   ? packed_operand(Layout::plain, m, k, unit, in.get(), in_scales.get())
                   : dense_matrix(m, k, in.get());
      args.b = packed_operand(Layout::panel16, n, k, unit, in_b.get(), in_b_scales.get());
      const bool along = p.copies != Copies::columns;
      args.d = p.d_type == DType::mxfp4 ? packed_operand(p.d_layout, along ? m : k, along ? k : m,
                                                         unit, bytes, bytes + (1 << 16))
                                        : dense_matrix(m, p.op == Op::gemm ? n : k, bytes);
      args.d2 = packed_operand(Layout::plain, k, m, unit, bytes + (2 << 16), bytes + (3 << 16));
      Aligned workspace(executable->workspace_bytes());
      args.workspace = workspace.get();
      REQUIRE(executable->run(args, nullptr).ok());
      results.emplace_back(bytes, bytes + (1 << 18));
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] != std::vector<unsigned char>(1 << 18, 0x5a));
  }
}

TEST_CASE("executable.one Wgrad plan takes any number of tokens, none included") {
  const auto backend = cpu_device();
  const std::int64_t m = 32, n = 20;
  const auto p = product(Role::wgrad, Extent::exactly(m), Extent::exactly(n), {0, 8192});
  const auto executable = compiled(*backend, p);
  for (const std::int64_t tokens : {0, 1, 31, 33, 8191}) {
    const Inputs in{normal_values(m * tokens, 3), normal_values(n * tokens, 4)};
    std::vector<float> d(static_cast<std::size_t>(m * n), std::nanf(""));
    run(*executable, arguments(p, in, d, m, n, tokens), d);
    check_close(d, oracle(p, in, m, n, tokens), tokens);
    if (tokens == 0) CHECK(d == std::vector<float>(d.size(), 0.0f));
  }
}

TEST_CASE("executable.nothing to do is done") {
  const auto backend = cpu_device();
  const auto p = product(Role::fprop, {0, 64}, Extent::exactly(32), Extent::exactly(64));
  qt_args args{};
  args.n = 32;
  args.k = 64;
  args.batch = 1;
  CHECK(compiled(*backend, p)->run(args, nullptr).ok());
}

TEST_CASE("executable.TS34 is taken out of the product once") {
  const auto backend = cpu_device();
  auto p = product(Role::fprop, Extent::exactly(16), Extent::exactly(16), Extent::exactly(64));
  p.scale_rule = ScaleRule::ts34;
  const Inputs in{normal_values(16 * 64, 5), normal_values(16 * 64, 6)};
  std::vector<float> d(256);
  run(*compiled(*backend, p), arguments(p, in, d, 16, 16, 64), d);
  check_close(d, oracle(p, in, 16, 16, 64), 64);
}

TEST_CASE("executable.code is found the second time, by another back end too") {
  const auto p = product(Role::fprop, {0, 48}, Extent::exactly(16), Extent::exactly(32));
  const auto first = compiled(*cpu_device(), p);
  for (const auto& binary : first->binaries()) CHECK(binary.path.size() > 0);
  const auto second = compiled(*cpu_device(), p);
  for (const auto& binary : second->binaries()) CHECK(binary.cached);
  // Without a compiler, too: what any compiler made of this source serves.
  cpu::BackendOptions no_jit;
  no_jit.jit = cpu::Jit::off;
  const auto third = compiled(*cpu_device(no_jit), p);
  for (const auto& binary : third->binaries()) CHECK(binary.cached);
  auto other = p;
  other.n = Extent::exactly(64);
  const auto backend = cpu_device(no_jit);
  const auto missing =
      Executable::build(*backend, other, *default_plan(other, backend->device().target));
  CHECK(missing.status().code() == Code::no_compiler);
}

TEST_CASE("executable.stored code that cannot be loaded is built anew") {
  const test::TemporaryFolder folder;
  const auto store = std::make_shared<CodeStore>(std::move(*CodeStore::open(folder.file("code"))));
  cpu::BackendOptions options;
  options.threads = 1;
  const auto backend = std::move(*cpu::open_backend(store, options));
  Problem p;
  p.op = Op::dequantize;
  p.m = {0, 8};
  p.k = Extent::exactly(32);
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_type = DType::f32;
  const auto& target = backend->device().target;
  const auto plan = *default_plan(p, target);
  const auto source =
      find_family(plan.steps[0].variant.family)->emit(p, target, plan.steps[0].variant);
  const CodeKey key{fmt::format("source={}\ncompiler={}", hex(*source_digest(source, target)),
                                backend->device().compiler),
                    "so"};
  const auto planted = store->get_or_build(key, [&](const std::string& output) -> Result<CodeInfo> {
    std::ofstream(output) << "sound by its checksum, but no shared object";
    CodeInfo info;
    info.target = target.key();
    return info;
  });
  REQUIRE(planted.ok());
  REQUIRE(backend->compile(source)->cached);
  const auto executable = Executable::build(*backend, p, plan);
  CHECK_MESSAGE(executable.ok(), executable.status().message());

  // Code for a CPU that has more than this one is refused before it is opened.
  Binary foreign = *backend->compile(source);
  foreign.target = "x86-64-v4:made_up_feature";
  CHECK(backend->load(foreign, source).status().code() == Code::not_supported);
}

TEST_CASE("executable.a narrower target than the machine's") {
  cpu::BackendOptions options;
  options.target = cpu::open_backend(test::shared_store(), {}).value()->prebuilt_target().key();
  const auto backend = cpu_device(options);
  const auto p = product(Role::fprop, {0, 40}, Extent::exactly(16), Extent::exactly(32));
  const Inputs in{normal_values(8 * 32, 7), normal_values(16 * 32, 8)};
  std::vector<float> d(8 * 16);
  run(*compiled(*backend, p), arguments(p, in, d, 8, 16, 32), d);
  check_close(d, oracle(p, in, 8, 16, 32), 32);
  options.target = "x86-64-v4:made_up_feature";
  CHECK(cpu::open_backend(test::shared_store(), options).status().code() == Code::not_supported);
}

TEST_CASE("executable.plans that do not fit are refused with the reason") {
  const auto backend = cpu_device();
  const auto p = product(Role::fprop, {0, 64}, Extent::exactly(32), Extent::exactly(64));
  const auto plan = parse_plan("gemm=cpu_gemm/1{tile_m=5}");
  REQUIRE(plan.ok());
  CHECK_FALSE(Executable::build(*backend, p, *plan).ok());
}
