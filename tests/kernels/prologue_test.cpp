// cpu_quantize behind a prologue, and sums of columns: the reference's bits from the kernel whose
// modes are members and from emitted ones.
#include "reference/prologue.hpp"

#include <doctest/doctest.h>

#include "cpu/column_sums.h"
#include "cpu/primitives_lanes.h"
#include "cpu/quantize.h"
#include "generator/cpu/families.hpp"
#include "reference/column_sums.hpp"
#include "reference/formats.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

Problem problem_of(Prologue prologue, DType type, Copies copies, std::int32_t rotation,
                   Rounding rounding) {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::wgrad;
  p.m = {0, 4096};
  p.k = {1, 4096};
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.copies = copies;
  p.prologue = prologue;
  p.rotation = rotation;
  p.a_rounding = rounding;
  return p;
}

// X with three elements between rows, weights, and the codes that the reference gives.
struct Case {
  Problem p;
  std::int64_t m, k, ld;
  Memory x, weight;
  std::vector<reference::Quantized> wanted;

  Case(const Problem& p_, std::int64_t m_, std::int64_t k_, std::uint32_t seed)
      : p(p_),
        m(m_),
        k(k_),
        ld(input_columns(p_.prologue, k_) + 3),
        x(m_ * ld * bytes_of(p_.a_type)),
        weight(k_ * bytes_of(p_.a_type)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    const auto type = static_cast<qt::cpu::DType>(p.a_type);
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t i = 0; i < ld - 3; ++i)
        qt::cpu::store_element(x.data(), r * ld + i, type, normal(random));
    for (std::int64_t i = 0; i < k; ++i)
      qt::cpu::store_element(weight.data(), i, type, normal(random));
    const auto value = [&](Memory& memory, std::int64_t i) {
      return qt::cpu::load_element(memory.data(), i, type);
    };
    std::vector<float> y, turned(static_cast<std::size_t>(m * k)), weights;
    for (std::int64_t i = 0; i < k; ++i) weights.push_back(value(weight, i));
    for (std::int64_t r = 0; r < m; ++r) {
      std::vector<float> row;
      for (std::int64_t i = 0; i < ld - 3; ++i) row.push_back(value(x, r * ld + i));
      const auto at = [&](std::int64_t i) { return row[static_cast<std::size_t>(i)]; };
      if (p.prologue == Prologue::rmsnorm) {
        const auto normed = reference::rmsnorm(row.data(), weights.data(), k, 1e-5f);
        y.insert(y.end(), normed.begin(), normed.end());
      } else {
        const bool split = p.prologue == Prologue::swiglu_split;
        for (std::int64_t i = 0; i < k; ++i)
          y.push_back(split ? reference::swiglu32(at(i), at(k + i))
                            : reference::swiglu32(at(2 * i), at(2 * i + 1)));
      }
    }
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t i = 0; i < k; ++i)
        turned[static_cast<std::size_t>(i * m + r)] = y[static_cast<std::size_t>(r * k + i)];
    reference::QuantizeSpec spec;
    spec.rule = reference::ScaleRule::rceil;
    spec.rounding = static_cast<reference::Rounding>(p.a_rounding);
    spec.rotation = p.rotation;
    spec.noise = {17, 3, 0, 0};
    if (p.copies != Copies::columns) wanted.push_back(reference::quantize(y.data(), m, k, k, spec));
    spec.noise.transposed = 1;
    if (p.copies != Copies::rows)
      wanted.push_back(reference::quantize(turned.data(), k, m, m, spec));
  }

  // How many bytes differ after `run` has been given the call.
  template <class Run>
  std::int64_t wrong(const Run& run) {
    std::vector<Memory> codes, scales;
    qt_args args{};
    args.m = m;
    args.k = k;
    args.batch = args.groups = 1;
    args.a = {x.data(), nullptr, ld, 0, 0, 0};
    args.norm_weight = weight.data();
    args.epsilon = 1e-5f;
    args.noise_seed = 17;
    args.stream = 3;
    for (const auto& q : wanted) {
      codes.emplace_back(q.rows * q.k / 2);
      scales.emplace_back(q.rows * q.k / 32);
    }
    args.d = {codes[0].data(), scales[0].data(), wanted[0].k, wanted[0].k / 32, 0, 0};
    if (wanted.size() > 1)
      args.d2 = {codes[1].data(), scales[1].data(), wanted[1].k, wanted[1].k / 32, 0, 0};
    run(args);
    std::int64_t out = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CHECK(codes[i].guards_intact());
      CHECK(scales[i].guards_intact());
      for (std::size_t at = 0; at < wanted[i].codes.size(); ++at)
        out += codes[i].data()[at] != wanted[i].codes[at];
      for (std::size_t at = 0; at < wanted[i].scales.size(); ++at)
        out += scales[i].data()[at] != wanted[i].scales[at];
    }
    return out;
  }
};

void run_portable(const Problem& p, const qt_args& args) {
  using Config = qt::cpu::QuantizeConfig<qt::cpu::PortableLanes>;
  Config config;
  config.a_type = static_cast<qt::cpu::DType>(p.a_type);
  config.copies = static_cast<qt::cpu::Copies>(p.copies);
  config.rotation = p.rotation;
  config.rounding = static_cast<qt::Rounding>(p.a_rounding);
  config.prologue = static_cast<qt::Prologue>(p.prologue);
  config.tile_m = 256;
  config.tile_k = 512;
  const auto parts =
      qt::cpu::QuantizeParts::of(args.m, args.k, padding_unit(p), p.copies != Copies::columns,
                                 p.copies != Copies::rows, false, 256, 512);
  for (std::int64_t part = parts.per_entry(); part-- > 0;) qt::cpu::quantize(config, &args, part);
}

constexpr Prologue kAll[] = {Prologue::rmsnorm, Prologue::swiglu_split,
                             Prologue::swiglu_interleaved};

}  // namespace

TEST_CASE("cpu_prologue.codes are those of the reference") {
  std::uint32_t seed = 1;
  for (const Prologue prologue : kAll)
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
      for (const Copies copies : {Copies::rows, Copies::columns, Copies::both})
        for (const std::int32_t rotation : {0, 32, 256}) {
          if (prologue == Prologue::rmsnorm && copies != Copies::rows) continue;
          const auto rounding = seed % 2 ? Rounding::sr16 : Rounding::rne;
          const Problem p = problem_of(prologue, type, copies, rotation, rounding);
          for (const auto& [m, k] : {std::pair{1, 32}, {67, 544}, {300, 1056}}) {
            INFO(p.key() << " " << m << "x" << k);
            Case one(p, m, k, seed++);
            CHECK(one.wrong([&](const qt_args& args) { run_portable(p, args); }) == 0);
          }
        }
}

TEST_CASE("cpu_prologue.emitted kernels give the same codes") {
  std::uint32_t seed = 300;
  for (const Prologue prologue : kAll) {
    const auto copies = prologue == Prologue::rmsnorm ? Copies::rows : Copies::both;
    const Problem p = problem_of(prologue, DType::bf16, copies, 32, Rounding::sr16);
    for (const auto& target : jit::targets()) {
      const auto& kernel =
          jit::kernel(cpu::quantize(), p, target, cpu::quantize().default_variant(p, target));
      for (const auto& [m, k] : {std::pair{5, 96}, {290, 1056}}) {
        INFO(target.key() << " " << p.key() << " " << m << "x" << k);
        Case one(p, m, k, seed++);
        CHECK(one.wrong([&](const qt_args& args) { kernel.run(args); }) == 0);
      }
    }
  }
}

TEST_CASE("cpu_column_sums.bits are those of the reference") {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const auto& [m, k] :
         {std::pair<std::int64_t, std::int64_t>{0, 3}, {1, 64}, {63, 70}, {64, 1}, {1000, 130}}) {
      const auto ld = k + 2;
      Memory x(m * ld * bytes_of(type)), d(k * 4);
      std::vector<float> values;
      for (std::int64_t i = 0; i < m * ld; ++i) {
        qt::cpu::store_element(x.data(), i, static_cast<qt::cpu::DType>(type), normal(random));
        values.push_back(qt::cpu::load_element(x.data(), i, static_cast<qt::cpu::DType>(type)));
      }
      qt_args args{};
      args.m = m;
      args.k = k;
      args.batch = 1;
      args.a = {x.data(), nullptr, ld, 0, 0, 0};
      args.d = {d.data(), nullptr, k, 0, 0, 0};
      const qt::cpu::ColumnSumsConfig config{static_cast<qt::cpu::DType>(type)};
      for (std::int64_t part = 0; part < ceil_div(k, qt::cpu::kSumColumns); ++part)
        qt::cpu::column_sums(config, &args, part);
      CHECK(d.guards_intact());
      const auto wanted = reference::column_sums(values.data(), m, k, ld);
      CHECK(std::equal(wanted.begin(), wanted.end(), d.as<float>()));
    }
}
