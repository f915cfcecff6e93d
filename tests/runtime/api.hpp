// The C interface as these tests use it: contexts over a folder of the test program's own, and
// problems small enough to compile in a moment.
#pragma once

#include <doctest/doctest.h>
#include <quarterturn/qturn.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/temporary_folder.hpp"

namespace quarterturn::api {

/// One code cache for all tests of a build tree, so that each kernel is compiled once.
inline const std::string& shared_code() {
  static const std::string path = QTURN_TEST_CODE;
  return path;
}

struct Logged {
  std::vector<std::pair<int, std::string>> lines;
  static void add(void* user, int32_t level, const char* message) {
    static_cast<Logged*>(user)->lines.emplace_back(level, message);
  }
  int count(const std::string& part) const {
    int found = 0;
    for (const auto& line : lines) found += line.second.find(part) != std::string::npos;
    return found;
  }
};

/// Options for a context that touches nothing of the user's.
struct Options {
  test::TemporaryFolder folder;
  std::string database = folder.file("tuning.db");
  Logged logged;
  qturn_context_options c;

  Options() {
    qturn_context_options_init(&c);
    c.backend = QTURN_BACKEND_CPU;
    c.threads = 2;
    c.database = database.c_str();
    c.code_cache = shared_code().c_str();
    c.log = Logged::add;
    c.log_user = &logged;
    c.log_level = QTURN_LOG_WARNING;
  }
};

/// An environment variable while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_.empty() ? unsetenv(name_) : setenv(name_, before_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string before_;
};

template <class T, void (*destroy)(T*)>
struct Destroy {
  void operator()(T* handle) const { destroy(handle); }
};
using Context = std::unique_ptr<qturn_context, Destroy<qturn_context, qturn_context_destroy>>;
using Plan = std::unique_ptr<qturn_plan, Destroy<qturn_plan, qturn_plan_destroy>>;
using Weight = std::unique_ptr<qturn_weight, Destroy<qturn_weight, qturn_weight_destroy>>;

inline Context make_context(const Options& options) {
  qturn_context* out = nullptr;
  const auto status = qturn_context_create(&options.c, &out);
  REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
  return Context(out);
}

inline Plan prepare(const Context& context, const qturn_problem& problem) {
  qturn_plan* out = nullptr;
  const auto status = qturn_prepare(context.get(), &problem, &out);
  REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
  return Plan(out);
}

/// Y [m, n] = X [m, k] W [n, k]^T in f32, rotated by 32; W in f32 or a prepared weight.
inline qturn_problem linear(int64_t m_hi, int64_t n, int64_t k, int32_t b_type = QTURN_F32) {
  qturn_problem p;
  qturn_problem_init(&p);
  p.op = QTURN_OP_HADAMARD_GEMM;
  p.role = QTURN_FPROP;
  p.m = {0, m_hi};
  p.n = {n, n};
  p.k = {k, k};
  p.a_type = p.d_type = QTURN_F32;
  p.b_type = b_type;
  p.rotation = 32;
  return p;
}

/// The op whose kernel compiles fastest, for tests that must compile afresh.
inline qturn_problem dequantizing() {
  qturn_problem p;
  qturn_problem_init(&p);
  p.op = QTURN_OP_DEQUANTIZE;
  p.m = {0, 16};
  p.k = {64, 64};
  p.a_type = QTURN_MXFP4;
  p.a_layout = QTURN_LAYOUT_PLAIN;
  p.d_type = QTURN_F32;
  return p;
}

inline std::vector<float> values(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (auto& value : out) value = draw(random);
  return out;
}

inline qturn_operand f32(const std::vector<float>& data) {
  qturn_operand out;
  qturn_operand_init(&out);
  out.type = QTURN_F32;
  out.data = const_cast<float*>(data.data());
  return out;
}

inline Weight pack(const Plan& plan, const qturn_operand& source) {
  qturn_weight* out = nullptr;
  const auto status = qturn_weight_create(plan.get(), &source, nullptr, 0, nullptr, &out);
  REQUIRE_MESSAGE(status == QTURN_OK, qturn_last_error());
  return Weight(out);
}

/// A call of `plan` with its own result and workspace.
struct Run {
  std::vector<float> d;
  std::vector<char> workspace;
  qturn_args args;

  Run(const Plan& plan, int64_t m, int64_t n, const std::vector<float>& a)
      : d(static_cast<std::size_t>(m * n), std::nanf("")) {
    std::size_t bytes = 0;
    REQUIRE(qturn_plan_workspace(plan.get(), &bytes) == QTURN_OK);
    workspace.resize(bytes);
    qturn_args_init(&args);
    args.m = m;
    args.a = f32(a);
    args.d = f32(d);
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
  }
};

}  // namespace quarterturn::api
