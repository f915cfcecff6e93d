// quarterturn.hpp: the C interface (qturn.h) as owning C++ handles that throw. Header-only, C++17;
// units, errors and thread rules are those of qturn.h.
#ifndef QUARTERTURN_HPP
#define QUARTERTURN_HPP

#include <quarterturn/qturn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace quarterturn {
inline namespace v0 {

/// What a call that failed throws: its status, and the library's message.
class Error : public std::runtime_error {
 public:
  Error(qturn_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  qturn_status status() const noexcept { return status_; }

 private:
  qturn_status status_;
};

inline void check(qturn_status status) {
  if (status != QTURN_OK)
    throw Error(status, std::string(qturn_status_name(status)) + ": " + qturn_last_error());
}

/// A qturn_problem with its defaults, and setters that chain. What has no setter is a member of
/// `*`.
class Problem {
 public:
  Problem() { qturn_problem_init(&problem_); }

  /// Y [tokens, out] = X [tokens, in] * W [out, in]^T with a prepared weight, rotated by 32, in
  /// bf16.
  static Problem linear(std::int64_t out_features, std::int64_t in_features) {
    Problem p;
    p->op = QTURN_OP_HADAMARD_GEMM;
    p->role = QTURN_FPROP;
    p->m = {1, 1};
    p->n = {out_features, out_features};
    p->k = {in_features, in_features};
    p->b_type = QTURN_MXFP4;
    p->rotation = 32;
    return p.types(QTURN_BF16, QTURN_BF16);
  }

  /// The run-time range of m: any number of tokens from `lo` to `hi`.
  Problem& tokens(std::int64_t lo, std::int64_t hi) { return set(problem_.m, {lo, hi}); }
  /// Types of A and D.
  Problem& types(std::int32_t a, std::int32_t d) {
    problem_.a_type = a;
    problem_.d_type = d;
    return *this;
  }
  Problem& rotation(std::int32_t size) { return set(problem_.rotation, size); }
  Problem& signs(std::int32_t kind) { return set(problem_.signs, kind); }
  Problem& scale_rule(std::int32_t rule) { return set(problem_.scale_rule, rule); }
  Problem& rounding(std::int32_t a, std::int32_t b) {
    problem_.a_rounding = a;
    problem_.b_rounding = b;
    return *this;
  }
  Problem& bias(std::int32_t kind = QTURN_BIAS_PER_COLUMN) { return set(problem_.bias, kind); }

  qturn_problem& operator*() { return problem_; }
  qturn_problem* operator->() { return &problem_; }
  const qturn_problem* get() const { return &problem_; }

 private:
  template <class Member>
  Problem& set(Member& member, Member value) {
    member = value;
    return *this;
  }

  qturn_problem problem_;
};

/// An operand over memory of the caller; `ld` 0 = tightly packed.
inline qturn_operand matrix(std::int32_t type, const void* data, std::int64_t ld = 0) {
  qturn_operand operand;
  qturn_operand_init(&operand);
  operand.type = type;
  operand.data = const_cast<void*>(data);
  operand.ld = ld;
  return operand;
}

class Weight {
 public:
  explicit Weight(qturn_weight* weight) : handle_(weight, qturn_weight_destroy) {}

  void refresh(const qturn_operand& source, void* stream = nullptr) {
    check(qturn_weight_refresh(get(), &source, stream));
  }
  qturn_operand operand() const {
    qturn_operand out;
    check(qturn_weight_operand(get(), &out));
    return out;
  }
  std::vector<unsigned char> serialize() const {
    std::size_t size = 0;
    (void)qturn_weight_serialize(get(), nullptr, 0, &size);  // asks for the size
    std::vector<unsigned char> out(size);
    check(qturn_weight_serialize(get(), out.data(), out.size(), &size));
    return out;
  }
  qturn_weight* get() const { return handle_.get(); }

 private:
  std::unique_ptr<qturn_weight, void (*)(qturn_weight*)> handle_;
};

class Plan {
 public:
  explicit Plan(qturn_plan* plan) : handle_(plan, qturn_plan_destroy) {}

  std::size_t workspace_bytes() const {
    std::size_t bytes = 0;
    check(qturn_plan_workspace(get(), &bytes));
    return bytes;
  }
  /// QTURN_OPERAND_A, _B, _D or _D2 as the plan wants it; set its pointers.
  qturn_operand operand(std::int32_t which) const {
    qturn_operand out;
    check(qturn_plan_operand(get(), which, &out));
    return out;
  }
  std::int32_t match() const {
    std::int32_t match = 0;
    check(qturn_plan_match(get(), &match));
    return match;
  }

  /// Packs W [n, k] for this plan, into memory of the library's.
  Weight pack(const qturn_operand& source, void* stream = nullptr) const {
    qturn_weight* weight = nullptr;
    check(qturn_weight_create(get(), &source, nullptr, 0, stream, &weight));
    return Weight(weight);
  }

  void run(const qturn_args& args) const { check(qturn_run(get(), &args)); }

  /// Y = X W^T for `tokens` rows of X, tightly packed; `workspace` of at least workspace_bytes().
  void run(const void* x, const Weight& weight, void* y, std::int64_t tokens, void* workspace,
           std::size_t workspace_bytes, void* stream = nullptr) const {
    const qturn_operand w = weight.operand();
    qturn_args args;
    qturn_args_init(&args);
    args.m = tokens;
    args.a = operand(QTURN_OPERAND_A);
    args.a.data = const_cast<void*>(x);
    args.a.sign_seed = w.sign_seed;
    for (int i = 0; i < 8; ++i) args.a.sign_mask[i] = w.sign_mask[i];
    args.weight = weight.get();
    args.d = operand(QTURN_OPERAND_D);
    args.d.data = y;
    args.workspace = workspace;
    args.workspace_bytes = workspace_bytes;
    args.stream = stream;
    run(args);
  }

  qturn_plan* get() const { return handle_.get(); }

 private:
  std::unique_ptr<qturn_plan, void (*)(qturn_plan*)> handle_;
};

class Context {
 public:
  /// Without options: the documented defaults, as the environment and the configuration files
  /// change them.
  explicit Context(const qturn_context_options* options = nullptr)
      : handle_(create(options), qturn_context_destroy) {}

  Plan prepare(const Problem& problem) const {
    qturn_plan* plan = nullptr;
    check(qturn_prepare(get(), problem.get(), &plan));
    return Plan(plan);
  }
  bool supports(const Problem& problem) const {
    return qturn_supports(get(), problem.get()) == QTURN_OK;
  }
  std::string explain(const Problem& problem) const {
    std::size_t needed = 0;
    check(qturn_explain(get(), problem.get(), nullptr, 0, &needed));
    std::string text(needed, '\0');
    check(qturn_explain(get(), problem.get(), text.data(), text.size(), &needed));
    text.resize(needed - 1);
    return text;
  }
  qturn_stats stats() const {
    qturn_stats out{};
    out.struct_size = sizeof out;
    check(qturn_get_stats(get(), &out));
    return out;
  }
  /// SHA-256 of what prepare goes by: equal on ranks that prepare the same plans.
  std::array<unsigned char, 32> snapshot_hash() const {
    std::array<unsigned char, 32> out{};
    check(qturn_snapshot_hash(get(), out.data()));
    return out;
  }
  /// QTURN_RELOAD_KEEP or QTURN_RELOAD_REPLACE; throws, and keeps what there was, when something
  /// cannot be read.
  qturn_reload_report reload(std::int32_t flags = QTURN_RELOAD_KEEP) const {
    qturn_reload_report out{};
    out.struct_size = sizeof out;
    check(qturn_reload(get(), flags, &out));
    return out;
  }
  /// Prometheus text of this context's counters.
  std::string metrics_text(std::int32_t flags = QTURN_METRICS_WITHOUT_DEVICE) const {
    qturn_context* const one = get();
    std::string text(4096, '\0');
    for (;;) {
      std::size_t needed = 0;
      check(qturn_metrics_text(&one, 1, flags, text.data(), text.size(), &needed));
      const bool fits = needed <= text.size();
      text.resize(fits ? needed - 1 : needed);
      if (fits) return text;
    }
  }
  Weight deserialize(const void* bytes, std::size_t size) const {
    qturn_weight* weight = nullptr;
    check(qturn_weight_deserialize(get(), bytes, size, nullptr, 0, &weight));
    return Weight(weight);
  }
  qturn_context* get() const { return handle_.get(); }

 private:
  static qturn_context* create(const qturn_context_options* options) {
    qturn_context* context = nullptr;
    check(qturn_context_create(options, &context));
    return context;
  }

  std::unique_ptr<qturn_context, void (*)(qturn_context*)> handle_;
};

}  // namespace v0
}  // namespace quarterturn

#endif
