// What the C interface computes on a GPU, held against the oracle.
#include "tests/cuda_api/support.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_api;

TEST_CASE("cuda_api.run gives the oracle's product over the range of m") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t n = 272, k = 416, most = 300;
  const Bf16 a(most * k, 1), b(n * k, 2, 0.05f);
  const Buffer a_memory(gpu, a.bits), b_memory(gpu, b.bits);
  const auto expected = expected_product(a.values, b.values, most, n, k);
  for (const int32_t contract : {QTURN_EXACT, QTURN_FAST})
    for (const int32_t spread : {QTURN_SPREAD_ANY, QTURN_SPREAD_NARROW})
      for (const int32_t d_type : {QTURN_BF16, QTURN_F32}) {
        auto problem = linear(most, n, k, QTURN_BF16, d_type);
        problem.contract = contract;
        problem.spread = spread;
        const auto plan = library.prepare(problem);
        for (const int64_t m : {most, int64_t{129}, int64_t{7}, int64_t{1}, int64_t{0}}) {
          const Stream stream(gpu);
          const Call call(gpu, plan, m, n, d_type, a_memory.data(), b_memory.data(), stream.get());
          run(plan, call);
          stream.wait();
          Expected part = expected;
          part.value.resize(static_cast<std::size_t>(m * n));
          part.magnitude.resize(part.value.size());
          const double worst = worst_error(part, call.result(), k, d_type, contract);
          CHECK_MESSAGE(worst <= 1, "m = " << m << ", contract " << contract << ", spread "
                                           << spread << ", type " << d_type);
        }
      }
  INFO(library.log);
  qturn_stats stats{};
  stats.struct_size = sizeof stats;
  REQUIRE(qturn_get_stats(library.context.get(), &stats) == QTURN_OK);
  CHECK(stats.runs >= 32);
  CHECK(stats.matched[QTURN_MATCH_REFERENCE] == 0);
}

TEST_CASE("cuda_api.rows outside a plan's window are computed all the same, and counted") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t m = 512, n = 512, k = 1024;
  Bf16 a(m * k, 3), b(n * k, 4, 0.05f);
  for (int64_t i = 0; i < 32; ++i) {  // one block of row 7 far above the others
    auto& bits = a.bits[static_cast<std::size_t>(7 * k + 64 + i)];
    const float large = reference::bf16_value(bits) * 0x1p40f;
    bits = reference::bf16_bits(large);
    a.values[static_cast<std::size_t>(7 * k + 64 + i)] = reference::bf16_value(bits);
  }
  const Buffer a_memory(gpu, a.bits), b_memory(gpu, b.bits);
  auto problem = linear(m, n, k, QTURN_BF16, QTURN_F32);
  problem.contract = QTURN_FAST;
  problem.spread = QTURN_SPREAD_NARROW;
  const auto plan = library.prepare(problem);
  const auto fallbacks = [&] {
    qturn_stats stats{};
    stats.struct_size = sizeof stats;
    REQUIRE_MESSAGE(qturn_get_stats(library.context.get(), &stats) == QTURN_OK, qturn_last_error());
    return stats.window_fallbacks;
  };
  CHECK(fallbacks() == 0);
  const Stream stream(gpu);
  const Call call(gpu, plan, m, n, QTURN_F32, a_memory.data(), b_memory.data(), stream.get());
  for (std::uint64_t runs = 1; runs <= 3; ++runs) {
    run(plan, call);
    stream.wait();
    CHECK(fallbacks() == runs);
  }
  const auto expected = expected_product(a.values, b.values, m, n, k);
  CHECK(worst_error(expected, call.result(), k, QTURN_F32, QTURN_FAST) <= 1);
}

TEST_CASE("cuda_api.a prepared weight serves its plan, and is refreshed in place") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t n = 256, k = 512, m = 33;
  const Bf16 a(m * k, 3), b(n * k, 4, 0.05f), b2(n * k, 5, 0.05f);
  const Buffer a_memory(gpu, a.bits);
  Buffer b_memory(gpu, b.bits);
  for (const int32_t contract : {QTURN_EXACT, QTURN_FAST}) {
    auto problem = linear(64, n, k, QTURN_MXFP4, QTURN_BF16);
    problem.contract = contract;
    const auto plan = library.prepare(problem);
    const Stream stream(gpu);
    qturn_operand source;
    qturn_operand_init(&source);
    source.type = QTURN_BF16;
    source.data = b_memory.data();
    b_memory.write(b.bits);
    qturn_weight* out = nullptr;
    REQUIRE_MESSAGE(
        qturn_weight_create(plan.get(), &source, nullptr, 0, stream.get(), &out) == QTURN_OK,
        qturn_last_error());
    const Weight weight(out);
    Call call(gpu, plan, m, n, QTURN_BF16, a_memory.data(), nullptr, stream.get());
    call.args.weight = weight.get();
    run(plan, call);
    stream.wait();
    CHECK(worst_error(expected_product(a.values, b.values, m, n, k), call.result(), k, QTURN_BF16,
                      contract) <= 1);
    b_memory.write(b2.bits);
    REQUIRE_MESSAGE(qturn_weight_refresh(out, &source, stream.get()) == QTURN_OK,
                    qturn_last_error());
    run(plan, call);
    stream.wait();
    CHECK(worst_error(expected_product(a.values, b2.values, m, n, k), call.result(), k, QTURN_BF16,
                      contract) <= 1);

    // Its image makes the same weight again.
    std::size_t bytes = 0;
    (void)qturn_weight_serialize(out, nullptr, 0, &bytes);
    std::vector<char> image(bytes);
    REQUIRE_MESSAGE(qturn_weight_serialize(out, image.data(), image.size(), &bytes) == QTURN_OK,
                    qturn_last_error());
    qturn_weight* copied = nullptr;
    REQUIRE_MESSAGE(qturn_weight_deserialize(library.context.get(), image.data(), image.size(),
                                             nullptr, 0, &copied) == QTURN_OK,
                    qturn_last_error());
    const Weight copy(copied);
    Call again(gpu, plan, m, n, QTURN_BF16, a_memory.data(), nullptr, stream.get());
    again.args.weight = copied;
    run(plan, again);
    stream.wait();
    CHECK(again.result() == call.result());
  }
}

TEST_CASE("cuda_api.a weight-only product takes activations of any stride and alignment") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t n = 264, k = 416, ld = k + 3;
  const Bf16 b(n * k, 4, 0.05f);
  const Buffer b_memory(gpu, b.bits);
  const auto weights = reference::dequantize(
      reference::quantize(b.values.data(), n, k, k, reference::QuantizeSpec{}));
  for (const int64_t most : {int64_t{16}, int64_t{300}}) {
    auto problem = linear(most, n, k, QTURN_MXFP4, QTURN_F32);
    problem.op = QTURN_OP_GEMM;
    problem.rotation = 0;
    const auto plan = library.prepare(problem);
    const Stream stream(gpu);
    qturn_operand source;
    qturn_operand_init(&source);
    source.type = QTURN_BF16;
    source.data = b_memory.data();
    qturn_weight* out = nullptr;
    REQUIRE_MESSAGE(
        qturn_weight_create(plan.get(), &source, nullptr, 0, stream.get(), &out) == QTURN_OK,
        qturn_last_error());
    const Weight weight(out);
    for (const int64_t m : {most, int64_t{7}, int64_t{1}, int64_t{0}})
      for (const bool strided : {false, true}) {
        const Bf16 a(m * k, 3);
        std::vector<std::uint16_t> rows(static_cast<std::size_t>(1 + m * ld), 0xffff);
        for (int64_t i = 0; i < m; ++i)
          std::copy_n(a.bits.begin() + i * k, k, rows.begin() + 1 + i * ld);
        const Buffer dense(gpu, a.bits), apart(gpu, rows);
        Call call(gpu, plan, m, n, QTURN_F32,
                  strided ? static_cast<std::uint16_t*>(apart.data()) + 1 : dense.data(), nullptr,
                  stream.get());
        if (strided) call.args.a.ld = ld;
        call.args.weight = weight.get();
        run(plan, call);
        stream.wait();
        CHECK_MESSAGE(worst_error(product_of(a.values, weights, m, n, k), call.result(), k,
                                  QTURN_F32, QTURN_EXACT) <= 1,
                      "m = " << m << " of " << most << (strided ? ", strided" : ""));
      }
  }
}

TEST_CASE("cuda_api.operands in layout bf16 need no scales") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t m = 70, n = 264, k = 416;
  const Bf16 a(m * k, 3), b(n * k, 4, 0.05f);
  const Stream stream(gpu);
  const auto quantize = [&](const Bf16& x, int64_t rows, Buffer& to) {
    qturn_problem p;
    qturn_problem_init(&p);
    p.op = QTURN_OP_QUANTIZE;
    p.m = {0, rows};
    p.k = {k, k};
    p.a_type = QTURN_BF16;
    p.d_type = QTURN_MXFP4;
    p.d_layout = QTURN_LAYOUT_BF16;
    p.rotation = 32;
    const auto plan = library.prepare(p);
    const Buffer from(gpu, x.bits);
    qturn_args args;
    qturn_args_init(&args);
    args.m = rows;
    args.a.type = QTURN_BF16;
    args.a.data = from.data();
    args.d.type = QTURN_MXFP4;
    args.d.layout = QTURN_LAYOUT_BF16;
    args.d.data = to.data();
    args.stream = stream.get();
    REQUIRE_MESSAGE(qturn_run(plan.get(), &args) == QTURN_OK, qturn_last_error());
    stream.wait();
  };
  Buffer a_memory(gpu, m * k * 2), b_memory(gpu, n * k * 2);
  quantize(a, m, a_memory);
  quantize(b, n, b_memory);
  auto problem = linear(m, n, k, QTURN_MXFP4, QTURN_F32);
  problem.op = QTURN_OP_GEMM;
  problem.a_type = QTURN_MXFP4;
  problem.a_layout = problem.b_layout = QTURN_LAYOUT_BF16;
  const auto plan = library.prepare(problem);
  Call call(gpu, plan, m, n, QTURN_F32, a_memory.data(), b_memory.data(), stream.get());
  for (qturn_operand* operand : {&call.args.a, &call.args.b}) {
    operand->type = QTURN_MXFP4;
    operand->layout = QTURN_LAYOUT_BF16;
    operand->rotation = 32;
    operand->scale_rule = problem.scale_rule;
  }
  run(plan, call);
  stream.wait();
  CHECK(worst_error(expected_product(a.values, b.values, m, n, k), call.result(), k, QTURN_F32,
                    QTURN_EXACT) <= 1);
}

TEST_CASE("cuda_api.quantised codes and scales are the oracle's") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t k = 320, most = 200;
  const Bf16 x(most * k, 6);
  const Buffer x_memory(gpu, x.bits);
  for (const int32_t rounding : {QTURN_RNE, QTURN_SR16}) {
    const auto plan = library.prepare(quantizing(most, k, 64, rounding));
    for (const int64_t m : {most, int64_t{1}}) {
      const Stream stream(gpu);
      qturn_args args;
      qturn_args_init(&args);
      args.m = m;
      args.a.type = QTURN_BF16;
      args.a.data = x_memory.data();
      args.noise_seed = 77;
      args.noise_stream = 5;
      REQUIRE(qturn_plan_operand(plan.get(), QTURN_OPERAND_D, &args.d) == QTURN_OK);
      const Buffer codes(gpu, static_cast<std::size_t>(m * k / 2)),
          scales(gpu, static_cast<std::size_t>(m * k / 32));
      args.d.data = codes.data();
      args.d.scales = scales.data();
      args.stream = stream.get();
      REQUIRE_MESSAGE(qturn_run(plan.get(), &args) == QTURN_OK, qturn_last_error());
      stream.wait();
      reference::QuantizeSpec spec;
      spec.rotation = 64;
      spec.rounding = static_cast<reference::Rounding>(rounding);
      spec.noise = {77, 5, 0, 0};
      const auto wanted = reference::quantize(x.values.data(), m, k, k, spec);
      CHECK(codes.read<std::uint8_t>() == wanted.codes);
      CHECK(scales.read<std::uint8_t>() == wanted.scales);
    }
  }
}

TEST_CASE("cuda_api.dgrad and wgrad read operands stored as their transposes") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t m = 96, n = 160, k = 256;
  const Bf16 a(m * k, 7), b(n * k, 8);
  const auto transposed = [](const std::vector<std::uint16_t>& x, int64_t rows, int64_t columns) {
    std::vector<std::uint16_t> out(x.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        out[static_cast<std::size_t>(j * rows + i)] = x[static_cast<std::size_t>(i * columns + j)];
    return out;
  };
  const Buffer a_rows(gpu, a.bits), a_columns(gpu, transposed(a.bits, m, k)),
      b_columns(gpu, transposed(b.bits, n, k));
  const auto expected = expected_product(a.values, b.values, m, n, k);
  for (const int32_t role : {QTURN_DGRAD, QTURN_WGRAD})
    for (const int32_t contract : {QTURN_EXACT, QTURN_FAST}) {
      auto p = linear(m, n, k, QTURN_BF16, QTURN_F32);
      p.role = role;
      p.contract = contract;
      p.b_major = QTURN_MAJOR_ROWS;
      if (role == QTURN_WGRAD) {
        p.a_major = QTURN_MAJOR_ROWS;
        p.m = {m, m};
        p.k = {0, k};
      }
      const auto plan = library.prepare(p);
      const Stream stream(gpu);
      Call call(gpu, plan, m, n, QTURN_F32, role == QTURN_WGRAD ? a_columns.data() : a_rows.data(),
                b_columns.data(), stream.get());
      call.args.k = k;
      run(plan, call);
      stream.wait();
      CHECK_MESSAGE(worst_error(expected, call.result(), k, QTURN_F32, contract) <= 1,
                    "role " << role << ", contract " << contract);
    }
}
