// Activations and their derivatives in the epilogues of CPU products: every form, type and addend
// against the reference by the kernel whose modes are members, and emitted kernels bit by bit
// against it.
#include "reference/epilogue.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cpu/gemm.h"
#include "cpu/weight_only.h"
#include "generator/cpu/families.hpp"
#include "reference/formats.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

constexpr Epilogue kAll[] = {Epilogue::none,
                             Epilogue::gelu,
                             Epilogue::gelu_tanh,
                             Epilogue::swiglu_split,
                             Epilogue::swiglu_interleaved,
                             Epilogue::dgelu,
                             Epilogue::dgelu_tanh,
                             Epilogue::dswiglu,
                             Epilogue::dswiglu_interleaved};

struct Mode {
  Epilogue epilogue;
  DType d_type, c_type;
  bool bias, accumulate, keeps_z;
};

Problem problem_of(const Mode& mode) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = mode.d_type;
  p.c_type = mode.c_type;
  p.m = {0, 4096};
  p.n = {2, 4096};
  p.k = {0, 16384};
  p.epilogue = mode.epilogue;
  p.bias = mode.bias ? Bias::per_column : Bias::none;
  p.accumulate = mode.accumulate ? Accumulate::accumulate : Accumulate::overwrite;
  p.pre_activation = mode.keeps_z ? PreActivation::kept : PreActivation::dropped;
  return p;
}

double rounding_step(DType type, double value) {
  if (type == DType::bf16) return std::max(std::fabs(value) * 0x1p-8, 0x1p-133);
  if (type == DType::f16) return std::max(std::fabs(value) * 0x1p-11, 0x1p-24);
  return std::max(std::fabs(value) * 0x1p-24, 0x1p-149);
}

float get(const Memory& memory, std::int64_t i, DType type) {
  return qt::cpu::load_element(const_cast<Memory&>(memory).data(), i,
                               static_cast<qt::cpu::DType>(type));
}

// A dense matrix of random values, its rows three elements longer than they need be.
struct Dense {
  DType type;
  std::int64_t rows, columns, ld;
  Memory memory;
  Dense(DType type_, std::int64_t rows_, std::int64_t columns_)
      : type(type_),
        rows(rows_),
        columns(columns_),
        ld(columns_ + 3),
        memory(rows_ * (columns_ + 3) * bytes_of(type_)) {}
  void fill(std::mt19937& random, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        qt::cpu::store_element(memory.data(), r * ld + c, static_cast<qt::cpu::DType>(type),
                               normal(random));
  }
  float at(std::int64_t r, std::int64_t c) const { return get(memory, r * ld + c, type); }
  qt_tensor tensor() { return {memory.data(), nullptr, ld, 0, 0, 0}; }
  bool gaps_intact() {
    if (!memory.guards_intact()) return false;
    const auto size = bytes_of(type);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = columns * size; i < ld * size; ++i)
        if (memory.data()[r * ld * size + i] != 0xff) return false;
    return true;
  }
};

// One call: operands whose products are of size 1, everything an epilogue reads, and results.
struct Call {
  Mode mode;
  Operand a, b;
  std::int64_t k;
  DType side;
  Dense c, aux, bias, d, z;
  qt_args args{};
  Packed packed_a, packed_b;

  Call(const Mode& mode_, std::int64_t m, std::int64_t n, std::int64_t k_, std::uint32_t seed)
      : Call(mode_, m, n, k_, std::mt19937(seed)) {}
  Call(const Mode& mode_, std::int64_t m, std::int64_t n, std::int64_t k_, std::mt19937 random)
      : mode(mode_),
        a(m, k_, 32, random, 123, 126),
        b(n, k_, 32, random, 123, 126),
        k(k_),
        side(mode_.c_type != DType::none ? mode_.c_type : mode_.d_type),
        c(side, m, n),
        aux(side, m, std::max<std::int64_t>(1, aux_columns(mode_.epilogue, n))),
        bias(side, 1, n),
        d(mode_.d_type, m, output_columns(mode_.epilogue, n)),
        z(side, m, n) {
    c.fill(random, 2.0f);
    aux.fill(random, 3.0f);
    bias.fill(random, 1.0f);
    packed_a = int8_blocks(a);
    packed_b = panel16(b);
    args.m = m;
    args.n = n;
    args.k = k;
    args.batch = 1;
    args.groups = 1;
    args.a = {packed_a.codes.data(), packed_a.scales.data(), 0, 0, 0, 0};
    args.b = {packed_b.codes.data(), packed_b.scales.data(), 0, 0, 0, 0};
    args.c = c.tensor();
    args.aux = aux.tensor();
    args.d = d.tensor();
    if (mode.keeps_z) args.z = z.tensor();
    args.bias = mode.bias ? bias.memory.data() : nullptr;
    args.alpha = 0.75f;
    args.beta = mode.accumulate ? -0.5f : 0.0f;
  }

  std::vector<float> result() const { return values(d); }
  static std::vector<float> values(const Dense& x) {
    std::vector<float> out;
    for (std::int64_t r = 0; r < x.rows; ++r)
      for (std::int64_t i = 0; i < x.columns; ++i) out.push_back(x.at(r, i));
    return out;
  }

  void check(double relative) {
    CHECK(d.gaps_intact());
    CHECK((!mode.keeps_z || z.gaps_intact()));
    const auto pa = plain(a), pb = plain(b);
    std::vector<float> c_values(static_cast<std::size_t>(args.m * args.n)), bias_values;
    for (std::int64_t r = 0; r < args.m; ++r)
      for (std::int64_t i = 0; i < args.n; ++i)
        c_values[static_cast<std::size_t>(r * args.n + i)] = c.at(r, i);
    for (std::int64_t i = 0; i < args.n; ++i) bias_values.push_back(bias.at(0, i));
    reference::GemmSpec spec{args.alpha, args.beta, c_values.data(), args.n,
                             mode.bias ? bias_values.data() : nullptr};
    const auto form = static_cast<reference::Epilogue>(mode.epilogue);
    long wrong = 0;
    for (std::int64_t r = 0; r < args.m; ++r) {
      const auto aux_row = [&](std::int64_t i) { return double(aux.at(r, i)); };
      for (std::int64_t i = 0; i < d.columns; ++i) {
        const auto from = reference::sources_of(form, i, args.n);
        const auto first = reference::gemm_at(pa, pb, r, from.first, spec);
        const auto second = from.second < 0 ? reference::Product{}
                                            : reference::gemm_at(pa, pb, r, from.second, spec);
        const auto wanted = reference::activate(form, i, args.n, first, second, relative, aux_row);
        const double most = wanted.error + rounding_step(mode.d_type, wanted.value);
        if (!(std::fabs(d.at(r, i) - wanted.value) <= most) && wrong++ < 3)
          FAIL_CHECK("D[" << r << ", " << i << "] = " << d.at(r, i) << ", wanted " << wanted.value
                          << " +- " << most);
      }
      if (!mode.keeps_z) continue;
      for (std::int64_t i = 0; i < args.n; ++i) {
        const auto wanted = reference::gemm_at(pa, pb, r, i, spec);
        const double most = relative * wanted.magnitude + rounding_step(side, wanted.value);
        if (!(std::fabs(z.at(r, i) - wanted.value) <= most) && wrong++ < 3)
          FAIL_CHECK("z[" << r << ", " << i << "] = " << z.at(r, i) << ", wanted " << wanted.value);
      }
    }
    CHECK(wrong == 0);
  }
};

template <class Config>
Config config_of(const Mode& mode) {
  Config out;
  const Problem p = problem_of(mode);
  out.d_type = static_cast<qt::cpu::DType>(p.d_type);
  out.side_type = static_cast<qt::cpu::DType>(side_type(p));
  out.accumulate = mode.accumulate;
  out.bias = mode.bias;
  out.epilogue = static_cast<qt::Epilogue>(mode.epilogue);
  out.keeps_z = mode.keeps_z;
  return out;
}

template <class Config>
std::int64_t parts_of(const Mode& mode, const qt_args& args) {
  const auto columns = mode.epilogue == Epilogue::swiglu_split ? args.n / 2 : args.n;
  return qt::cpu::GemmParts::of(args.m, columns, Config::block_m, Config::part_n).per_entry();
}

void run_portable(Call& call) {
  using Config = qt::cpu::GemmConfig;
  const auto config = config_of<Config>(call.mode);
  for (std::int64_t part = 0; part < parts_of<Config>(call.mode, call.args); ++part)
    qt::cpu::gemm(config, &call.args, part);
}

bool keepable(Epilogue e) { return e != Epilogue::none && !is_derivative(e); }

struct Shape {
  std::int64_t m, n, k;
};

double relative(std::int64_t k) { return static_cast<double>(k / 32 + 5) * 0x1p-24; }

}  // namespace

TEST_CASE("cpu_epilogue.every form, type and addend agrees with the reference") {
  std::uint32_t seed = 1;
  for (const Epilogue epilogue : kAll)
    for (const DType d_type : {DType::f32, DType::bf16, DType::f16})
      for (const int addends : {0, 1, 2, 3})
        for (const bool keeps_z : {false, true}) {
          if (keeps_z && !keepable(epilogue)) continue;
          const DType c_type = addends == 2 ? DType::f32 : DType::none;
          const Mode mode{epilogue, d_type, c_type, addends % 2 == 1, addends >= 2, keeps_z};
          for (const auto [m, n, k] : {Shape{1, 2, 32}, {13, 50, 64}, {5, 96, 96}, {98, 226, 32}}) {
            INFO(problem_of(mode).key() << " " << m << "x" << n << "x" << k);
            Call call(mode, m, n, k, seed++);
            run_portable(call);
            call.check(relative(k));
          }
        }
}

// The first epilogue on every target, the others on one each: compiling takes most of the time, and
// what differs between targets lies before the epilogue.
TEST_CASE("cpu_epilogue.emitted kernels give the same bits") {
  std::uint32_t seed = 100;
  const auto& targets = jit::targets();
  std::size_t turn = 0;
  for (const Epilogue epilogue : kAll) {
    const Mode mode{epilogue, DType::bf16, DType::none, true, true, keepable(epilogue)};
    const Problem p = problem_of(mode);
    const auto own = turn++;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (own > 0 && t != own % targets.size()) continue;
      const auto& target = targets[t];
      const auto variant = cpu::gemm().default_variant(p, target);
      const auto& kernel = jit::kernel(cpu::gemm(), p, target, variant);
      for (const auto [m, n, k] : {Shape{1, 2, 32}, {23, 130, 64}, {100, 226, 160}}) {
        INFO(target.key() << " " << p.key() << " " << m << "x" << n << "x" << k);
        Call wanted(mode, m, n, k, seed), now(mode, m, n, k, seed);
        run_portable(wanted);
        kernel.run(now.args);
        CHECK(now.d.gaps_intact());
        CHECK(now.result() == wanted.result());
        if (mode.keeps_z) CHECK(Call::values(now.z) == Call::values(wanted.z));
        ++seed;
      }
    }
  }
}

TEST_CASE("cpu_epilogue.weight-only products take activations too") {
  std::uint32_t seed = 200;
  for (const Epilogue epilogue : kAll) {
    const Mode mode{epilogue, DType::f32, DType::none, true, false, keepable(epilogue)};
    Call call(mode, 7, 82, 64, seed++);
    // A's values as they are: codes and scales decode to bf16 exactly.
    const auto q = plain(call.a);
    Memory wide(call.args.m * 64 * 2);
    for (std::int64_t r = 0; r < call.args.m; ++r)
      for (std::int64_t i = 0; i < 64; ++i)
        qt::cpu::store_element(wide.data(), r * 64 + i, qt::cpu::DType::bf16,
                               static_cast<float>(q.value(r, i)));
    call.args.a = {wide.data(), nullptr, 64, 0, 0, 0};
    using Config = qt::cpu::WeightOnlyConfig;
    const auto config = config_of<Config>(mode);
    for (std::int64_t part = 0; part < parts_of<Config>(mode, call.args); ++part)
      qt::cpu::weight_only(config, &call.args, part);
    call.check(72 * 0x1p-24);
  }
}
