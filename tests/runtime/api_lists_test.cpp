// Lists of problems through the C interface: as text, and prepared all at once.
#include <cstring>

#include "tests/runtime/api.hpp"

using namespace quarterturn;
using namespace quarterturn::api;

TEST_CASE("qturn_problem_key.and parse are each other's way back") {
  for (auto p : {linear(16, 32, 64), linear(1, 64, 128, QTURN_MXFP4), dequantizing()}) {
    p.contract = QTURN_FAST;
    size_t needed = 0;
    REQUIRE(qturn_problem_key(&p, nullptr, 0, &needed) == QTURN_OK);
    std::string key(needed, '?');
    REQUIRE(qturn_problem_key(&p, key.data(), key.size(), nullptr) == QTURN_OK);
    CHECK(key.back() == '\0');
    qturn_problem back;
    REQUIRE_MESSAGE(qturn_problem_parse(key.c_str(), &back) == QTURN_OK, qturn_last_error());
    CHECK(std::memcmp(&p, &back, sizeof p) == 0);
    char few[5];
    REQUIRE(qturn_problem_key(&p, few, sizeof few, &needed) == QTURN_OK);
    CHECK(std::string(few) == key.substr(0, 4));
  }
  qturn_problem out;
  CHECK(qturn_problem_parse(nullptr, &out) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_problem_parse("op=gemm colour=red", &out) == QTURN_INVALID_PROBLEM);
  CHECK(qturn_problem_parse("op=gemm", nullptr) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_problem_key(nullptr, nullptr, 0, nullptr) == QTURN_INVALID_ARGUMENT);
}

TEST_CASE("qturn_prepare_many.prepares what it can and names what it cannot") {
  const Options options;
  const auto context = make_context(options);
  auto good = dequantizing(), other = dequantizing(), bad = dequantizing();
  other.d_type = QTURN_BF16;
  bad.k = {33, 33};
  const qturn_problem* problems[] = {&good, &bad, &other, nullptr};
  qturn_plan* plans[4] = {};
  qturn_status statuses[4] = {};
  CHECK(qturn_prepare_many(context.get(), problems, 4, plans, statuses) == QTURN_INVALID_PROBLEM);
  CHECK(std::string(qturn_last_error()).find("problems[1]: ") == 0);
  CHECK(statuses[0] == QTURN_OK);
  CHECK(statuses[1] == QTURN_INVALID_PROBLEM);
  CHECK(statuses[2] == QTURN_OK);
  CHECK(statuses[3] == QTURN_INVALID_ARGUMENT);
  const Plan first(plans[0]), third(plans[2]);
  CHECK(bool(first));
  CHECK(bool(third));
  CHECK(plans[1] == nullptr);
  CHECK(plans[3] == nullptr);
  int32_t match = -1;
  REQUIRE(qturn_plan_match(first.get(), &match) == QTURN_OK);
  CHECK(match == QTURN_MATCH_HEURISTIC);

  qturn_plan* again[1] = {};
  CHECK(qturn_prepare_many(context.get(), problems, 1, again, nullptr) == QTURN_OK);
  const Plan same(again[0]);
  CHECK(qturn_prepare_many(context.get(), nullptr, 0, nullptr, nullptr) == QTURN_OK);
  CHECK(qturn_prepare_many(context.get(), nullptr, 1, again, nullptr) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_prepare_many(nullptr, problems, 1, again, nullptr) == QTURN_INVALID_ARGUMENT);
}
