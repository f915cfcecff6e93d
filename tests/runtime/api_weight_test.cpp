// Prepared weights: packing, refreshing, byte images, and refusals.
#include <cstring>

#include "tests/runtime/api.hpp"

using namespace quarterturn::api;

namespace {

std::vector<float> product(const Plan& plan, int64_t m, int64_t n, const std::vector<float>& a,
                           const Weight& weight) {
  Run run(plan, m, n, a);
  run.args.weight = weight.get();
  const auto status = qturn_run(plan.get(), &run.args);
  REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
  return run.d;
}

std::vector<unsigned char> image_of(const Weight& weight) {
  std::size_t size = 0;
  CHECK(qturn_weight_serialize(weight.get(), nullptr, 0, &size) == QTURN_INVALID_ARGUMENT);
  std::vector<unsigned char> out(size);
  REQUIRE(qturn_weight_serialize(weight.get(), out.data(), out.size(), &size) == QTURN_OK);
  return out;
}

}  // namespace

TEST_CASE("qturn_weight.equals quantising B in every run") {
  const Options options;
  const auto context = make_context(options);
  const auto a = values(9 * 128, 1), b = values(40 * 128, 2);
  const auto each_time = prepare(context, linear(16, 40, 128));
  Run run(each_time, 9, 40, a);
  run.args.b = f32(b);
  REQUIRE(qturn_run(each_time.get(), &run.args) == QTURN_OK);
  const auto plan = prepare(context, linear(16, 40, 128, QTURN_MXFP4));
  const auto weight = pack(plan, f32(b));
  CHECK(product(plan, 9, 40, a, weight) == run.d);

  std::size_t bytes = 0;
  REQUIRE(qturn_weight_bytes(plan.get(), &bytes) == QTURN_OK);
  CHECK(bytes > 40 * 128 / 2);
  CHECK(bytes < 40 * 128);
  CHECK(qturn_weight_bytes(each_time.get(), &bytes) == QTURN_NOT_SUPPORTED);
}

TEST_CASE("qturn_weight.is made where its plan alone has an answer") {
  Options options;
  const auto problem = linear(16, 40, 128, QTURN_MXFP4);
  std::string told(1 << 16, 0);
  {
    const auto anybody = make_context(options);
    std::size_t needed = 0;
    REQUIRE(qturn_explain(anybody.get(), &problem, told.data(), told.size(), &needed) == QTURN_OK);
  }
  const auto between = [&](const std::string& from) {
    const auto at = told.find(from) + from.size();
    return told.substr(at, told.find('"', at) - at);
  };
  const auto pinned = between("\"problem\":\"") + " -> " + between("\"plan\":\"") + "\n";
  const Variable pins("QTURN_PINS", options.folder.write("pins", pinned));
  options.c.miss_policy = QTURN_MISS_ERROR;
  const auto context = make_context(options);
  const auto plan = prepare(context, problem);
  const auto a = values(9 * 128, 1), b = values(40 * 128, 2);
  const auto weight = pack(plan, f32(b));
  const Options free;
  const auto other = make_context(free);
  const auto same = prepare(other, problem);
  CHECK(product(plan, 9, 40, a, weight) == product(same, 9, 40, a, pack(same, f32(b))));
}

TEST_CASE("qturn_weight.is refreshed in place") {
  const Options options;
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(16, 40, 128, QTURN_MXFP4));
  const auto a = values(9 * 128, 1), first = values(40 * 128, 2), second = values(40 * 128, 3);
  const auto weight = pack(plan, f32(first));
  qturn_operand before, after;
  REQUIRE(qturn_weight_operand(weight.get(), &before) == QTURN_OK);
  const auto old = product(plan, 9, 40, a, weight);
  const auto source = f32(second);
  REQUIRE(qturn_weight_refresh(weight.get(), &source, nullptr) == QTURN_OK);
  REQUIRE(qturn_weight_operand(weight.get(), &after) == QTURN_OK);
  CHECK(before.data == after.data);
  const auto now = product(plan, 9, 40, a, weight);
  CHECK(now != old);
  CHECK(now == product(plan, 9, 40, a, pack(plan, f32(second))));
}

TEST_CASE("qturn_weight.lives in the caller's storage") {
  const Options options;
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(16, 40, 128, QTURN_MXFP4));
  const auto a = values(9 * 128, 1), b = values(40 * 128, 2);
  std::size_t bytes = 0;
  REQUIRE(qturn_weight_bytes(plan.get(), &bytes) == QTURN_OK);
  std::vector<char> memory(bytes + 128);
  auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  auto* storage = memory.data() + (64 - at % 64) % 64;
  const auto source = f32(b);
  qturn_weight* out = nullptr;
  CHECK(qturn_weight_create(plan.get(), &source, storage, bytes - 1, nullptr, &out) ==
        QTURN_INVALID_ARGUMENT);
  CHECK(qturn_weight_create(plan.get(), &source, storage + 1, bytes, nullptr, &out) ==
        QTURN_MISALIGNED);
  REQUIRE(qturn_weight_create(plan.get(), &source, storage, bytes, nullptr, &out) == QTURN_OK);
  const Weight weight(out);
  qturn_operand operand;
  REQUIRE(qturn_weight_operand(weight.get(), &operand) == QTURN_OK);
  CHECK(operand.data == storage);
  CHECK(product(plan, 9, 40, a, weight) == product(plan, 9, 40, a, pack(plan, f32(b))));
}

TEST_CASE("qturn_weight.its image brings it back, in another context too") {
  const Options options, elsewhere;
  const auto context = make_context(options), other = make_context(elsewhere);
  auto problem = linear(16, 40, 128, QTURN_MXFP4);
  problem.signs = QTURN_SIGNS_PER_CALL;
  const auto plan = prepare(context, problem), there = prepare(other, problem);
  const auto a = values(9 * 128, 1), b = values(40 * 128, 2);
  auto source = f32(b);
  source.sign_seed = 77;
  const auto weight = pack(plan, source);
  const auto image = image_of(weight);
  CHECK(image == image_of(weight));
  qturn_weight* out = nullptr;
  REQUIRE(qturn_weight_deserialize(other.get(), image.data(), image.size(), nullptr, 0, &out) ==
          QTURN_OK);
  const Weight copy(out);
  const auto run_with = [&](const Plan& by, const Weight& w) {
    Run run(by, 9, 40, a);
    run.args.weight = w.get();
    run.args.a.sign_seed = 77;
    REQUIRE_MESSAGE(qturn_run(by.get(), &run.args) == QTURN_OK, qturn_last_error());
    return run.d;
  };
  CHECK(run_with(there, copy) == run_with(plan, weight));
  CHECK(image_of(copy) == image);
  // A copy can be refreshed like any other.
  REQUIRE(qturn_weight_refresh(copy.get(), &source, nullptr) == QTURN_OK);
  CHECK(image_of(copy) == image);
}

TEST_CASE("qturn_weight.damaged and foreign images are refused") {
  const Options options;
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(16, 40, 128, QTURN_MXFP4));
  const auto image = image_of(pack(plan, f32(values(40 * 128, 2))));
  const auto refused = [&](qturn_status status, std::vector<unsigned char> bytes) {
    qturn_weight* out = nullptr;
    CHECK(qturn_weight_deserialize(context.get(), bytes.data(), bytes.size(), nullptr, 0, &out) ==
          status);
    CHECK(out == nullptr);
  };
  for (const std::size_t at : {std::size_t{20}, image.size() / 2, image.size() - 1}) {
    auto flipped = image;
    flipped[at] ^= 1;
    refused(QTURN_DAMAGED, flipped);
  }
  for (const std::size_t size : {std::size_t{17}, image.size() / 2, image.size() - 1})
    refused(QTURN_DAMAGED, {image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size)});
  auto newer = image;
  newer[8] = 2;
  refused(QTURN_NEWER_VERSION, newer);
  auto foreign = image;
  foreign[0] = 'X';
  refused(QTURN_NOT_OURS, foreign);
  refused(QTURN_NOT_OURS, {1, 2, 3});
  auto huge = image;
  huge[12] = huge[13] = huge[14] = huge[15] = 0xff;
  refused(QTURN_DAMAGED, huge);
}

TEST_CASE("qturn_weight.another meaning is refused by both names") {
  const Options options;
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(16, 40, 128, QTURN_MXFP4));
  const auto a = values(9 * 128, 1), b = values(40 * 128, 2);
  const auto refused = [&](const std::string& given, const std::string& wanted, auto change) {
    CAPTURE(given);
    auto problem = linear(16, 40, 128, QTURN_MXFP4);
    change(problem);
    const auto other = prepare(context, problem);
    const auto weight = pack(other, f32(values(problem.n.lo * problem.k.lo, 3)));
    Run run(plan, 9, 40, a);
    run.args.weight = weight.get();
    CHECK(qturn_run(plan.get(), &run.args) == QTURN_WRONG_OPERAND);
    const std::string message = qturn_last_error();
    CHECK_MESSAGE(message.find(given) != std::string::npos, message);
    CHECK_MESSAGE(message.find(wanted) != std::string::npos, message);
  };
  refused("rotation is 64", "32", [](auto& p) { p.rotation = 64; });
  refused("scale rule is floor", "rceil", [](auto& p) { p.scale_rule = QTURN_SCALE_FLOOR; });
  refused("signs is fixed", "none", [](auto& p) { p.signs = QTURN_SIGNS_FIXED; });
  refused("48 x 128", "40", [](auto& p) { p.n = {48, 48}; });

  // An operand that says it lies in another layout.
  const auto weight = pack(plan, f32(b));
  Run run(plan, 9, 40, a);
  REQUIRE(qturn_weight_operand(weight.get(), &run.args.b) == QTURN_OK);
  REQUIRE(qturn_run(plan.get(), &run.args) == QTURN_OK);
  run.args.b.layout = QTURN_LAYOUT_PLAIN;
  CHECK(qturn_run(plan.get(), &run.args) == QTURN_WRONG_OPERAND);
  const std::string message = qturn_last_error();
  CHECK(message.find("plain") != std::string::npos);
  CHECK(message.find("panel16") != std::string::npos);
  run.args.weight = weight.get();
  CHECK(qturn_run(plan.get(), &run.args) == QTURN_INVALID_ARGUMENT);
}

TEST_CASE("qturn_weight.other signs than A's are refused") {
  const Options options;
  const auto context = make_context(options);
  auto problem = linear(16, 40, 128, QTURN_MXFP4);
  problem.signs = QTURN_SIGNS_PER_CALL;
  const auto plan = prepare(context, problem);
  const auto a = values(9 * 128, 1);
  auto source = f32(values(40 * 128, 2));
  const auto b = values(40 * 128, 2);
  source = f32(b);
  source.sign_seed = 5;
  const auto weight = pack(plan, source);
  Run run(plan, 9, 40, a);
  run.args.weight = weight.get();
  run.args.a.sign_seed = 6;
  CHECK(qturn_run(plan.get(), &run.args) == QTURN_WRONG_OPERAND);
  const std::string message = qturn_last_error();
  CHECK(message.find("a's sign seed is 6, b's is 5") != std::string::npos);
  run.args.a.sign_seed = 5;
  CHECK(qturn_run(plan.get(), &run.args) == QTURN_OK);
}
