#include "runtime/executable.hpp"

#include <fmt/format.h>

#include <cstring>

#include "generator/grouping.hpp"
#include "runtime/operand.hpp"

namespace quarterturn {
namespace {

class ContextScope {
 public:
  explicit ContextScope(const Backend& backend) : backend_(backend), entered_(backend.enter()) {}
  ~ContextScope() {
    if (entered_) backend_.leave();
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Backend& backend_;
  bool entered_;
};

constexpr unsigned kResultOperand = 2;        // whose draws a quantised D takes
constexpr std::size_t kPrebuiltTries = 1000;  // plans, the default first

Status with_step(const Status& status, const Step& step) {
  return Status(status.code(), fmt::format("{} ({}): {}", step_name(step.kind), step.variant.text(),
                                           status.message()));
}

}  // namespace

std::shared_ptr<Executable> Executable::outline(const Backend& backend, const Problem& problem,
                                                Plan plan, const Target& target) {
  std::shared_ptr<Executable> out(new Executable);
  out->problem_ = problem;
  out->plan_ = std::move(plan);
  out->target_ = target;
  out->backend_ = &backend;
  out->padding_ = padding_unit(problem);
  out->workspace_ = workspace_of(problem, target, out->plan_, most_sizes(problem));
  const Step& main = out->plan_.main_step();
  const Family& family = *find_family(main.variant.family);
  out->a_packed_ = family.a_layout(problem, main.variant);
  out->b_packed_ = family.b_layout(problem, main.variant);
  // What the caller hands in: as the problem gives it, or as the multiplying kernel reads it.
  const auto read_as = [](Layout given, Layout packed) {
    return given == Layout::chosen ? packed : given;
  };
  out->a_layout_ = read_as(problem.a_layout, out->a_packed_);
  out->b_layout_ = read_as(problem.b_layout, out->b_packed_);
  return out;
}

Result<std::shared_ptr<const Executable>> Executable::build(Backend& backend,
                                                            const Problem& problem,
                                                            const Plan& plan) {
  const Target& target = backend.device().target;
  if (auto status = check_plan(problem, target, plan); !status.ok()) return status;
  auto out = outline(backend, problem, plan, target);
  for (const Step& step : plan.steps) {
    const Family* family = find_family(step.variant.family);
    const Problem part = step_problem(problem, target, plan, step.kind);
    const Source source = family->emit(part, target, step.variant);
    auto binary = backend.compile(source);
    if (!binary.ok()) return with_step(binary.status(), step);
    auto kernel = backend.load(*binary, source);
    if (!kernel.ok()) return with_step(kernel.status(), step);
    out->binaries_.push_back(std::move(*binary));
    out->steps_.push_back({step.kind, family, step.variant, part, std::move(*kernel)});
  }
  out->launches_.reserve(out->steps_.size());
  out->step_args_.resize(out->steps_.size());
  return std::shared_ptr<const Executable>(std::move(out));
}

Result<std::shared_ptr<const Executable>> Executable::prebuilt(
    Backend& backend, const Problem& problem, const std::function<bool(const Plan&)>& allowed) {
  const Target target = backend.prebuilt_target();
  auto all = plans(problem, target, kPrebuiltTries);
  if (all.empty()) return default_plan(problem, target).status();
  Status first;
  // Not every family has a form without a compiler: the first plan whose steps all have one.
  for (Plan& plan : all) {
    if (allowed && !allowed(plan)) continue;
    std::vector<std::shared_ptr<const Kernel>> kernels;
    for (Step& step : plan.steps) {
      auto kernel = backend.prebuilt(step_problem(problem, target, plan, step.kind), step.variant);
      if (!kernel.ok()) {
        if (first.ok()) first = with_step(kernel.status(), step);
        break;
      }
      kernels.push_back(std::move(kernel->kernel));
      step.variant = std::move(kernel->variant);
    }
    if (kernels.size() != plan.steps.size()) continue;
    auto out = outline(backend, problem, std::move(plan), target);
    out->prebuilt_ = true;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const Step& step = out->plan_.steps[i];
      out->steps_.push_back({step.kind, find_family(step.variant.family), step.variant,
                             step_problem(problem, target, out->plan_, step.kind),
                             std::move(kernels[i])});
    }
    out->launches_.reserve(out->steps_.size());
    out->step_args_.resize(out->steps_.size());
    return std::shared_ptr<const Executable>(std::move(out));
  }
  if (first.ok()) first = Status(Code::not_supported, "no plan with a prebuilt form is allowed");
  return first;
}

qt_args Executable::step_args(const LoadedStep& step, const qt_args& args,
                              std::int64_t row0_b) const {
  char* const scratch = static_cast<char*>(args.workspace);
  qt_args out = args;
  out.workspace = scratch ? scratch + workspace_.kernel : nullptr;
  out.workspace_bytes = workspace_.bytes - workspace_.kernel;
  const std::int64_t length = copy_length(problem_, args.k, args.groups);
  const Entries entries = entries_of(problem_, args.batch, args.groups);
  const auto packed_a = [&] {
    return packed_operand(a_packed_, args.m, length, padding_, scratch + workspace_.a_codes,
                          scratch + workspace_.a_scales);
  };
  const auto packed_b = [&] {
    return packed_operand(b_packed_, args.n, length, padding_, scratch + workspace_.b_codes,
                          scratch + workspace_.b_scales);
  };
  // An operand that is quantised into layout plain and packed from there.
  const auto plain = [&](std::int64_t rows) {
    return packed_operand(Layout::plain, rows, length, padding_, scratch + workspace_.plain_codes,
                          scratch + workspace_.plain_scales);
  };
  const std::int64_t columns = output_columns(problem_.epilogue, args.n);
  const auto result = [&] { return dense_matrix(args.m, columns, scratch + workspace_.result); };
  switch (step.kind) {
    case StepKind::whole:
      return out;
    case StepKind::gemm:
    case StepKind::stand_in:
      if (plan_.find(StepKind::quantize_a) || plan_.find(StepKind::pack_a)) out.a = packed_a();
      if (plan_.find(StepKind::quantize_b) || plan_.find(StepKind::pack_b)) out.b = packed_b();
      if (plan_.find(StepKind::quantize_d)) out.d = result();
      if (quantizes_in_product(problem_, plan_)) {
        out.operand = kResultOperand;
        out.k0 = out.k_global = 0;
      }
      return out;
    case StepKind::quantize_d:
      out.a = result();
      out.k = columns;
      out.n = 0;
      out.operand = kResultOperand;
      out.k0 = out.k_global = 0;
      return out;
    case StepKind::bias_gradient:
      if (multiplies(problem_.op)) std::swap(out.m, out.k);
      out.n = 0;
      out.d = dense_matrix(1, out.k, args.bias_gradient);
      return out;
    case StepKind::quantize_a:
      out.d = plan_.find(StepKind::pack_a) ? plain(args.m) : packed_a();
      out.operand = 0;
      out.batch = entries.a;
      break;
    case StepKind::pack_a:
      if (plan_.find(StepKind::quantize_a)) out.a = plain(args.m);
      out.d = packed_a();
      out.batch = entries.a;
      break;
    case StepKind::quantize_b:
    case StepKind::pack_b:
      out.a = args.b;
      out.d = packed_b();
      out.m = args.n;
      out.operand = 1;
      out.row0 = row0_b;
      out.batch = entries.b;
      if (plan_.find(StepKind::quantize_b) && plan_.find(StepKind::pack_b))
        (step.kind == StepKind::quantize_b ? out.d : out.a) = plain(args.n);
      break;
  }
  out.n = 0;
  // An operand stored as its transpose is quantised along its columns: X is then [k, rows].
  if (step.problem.op == Op::quantize && step.problem.copies == Copies::columns)
    std::swap(out.m, out.k);
  return out;
}

Executable::Shape Executable::shape_of(const qt_args& args) {
  Shape out{args.m, args.n, args.k, args.batch, args.groups};
  std::size_t at = 5;
  for (const qt_tensor* t : {&args.a, &args.b, &args.c, &args.d, &args.d2, &args.z, &args.aux})
    for (const long long stride : {t->ld, t->scale_ld, t->batch_stride, t->scale_batch_stride})
      out[at++] = stride;
  return out;
}

Status Executable::run(const qt_args& args, void* stream, std::int64_t row0_b) const {
  if (args.batch == 0 || is_empty(problem_, args.m, args.n)) return {};
  const ContextScope scope(*backend_);
  const auto launch_of = [&](const LoadedStep& step, const qt_args& now) {
    Launch launch = step.family->launch(step.problem, step.variant, now, backend_->threads());
    // An early start reads the weights before the kernel in front has ended: only this plan's own
    // quantiser of A is known not to write them.
    const bool follows_a = &step != steps_.data() && (&step - 1)->kind == StepKind::quantize_a;
    if (!follows_a) launch.start = Launch::Start::in_order;
    return launch;
  };
  if (taken_.test_and_set(std::memory_order_acquire)) {
    for (const LoadedStep& step : steps_) {
      const qt_args now = step_args(step, args, row0_b);
      if (is_empty(step.problem, now.m, now.n)) continue;
      if (auto status = backend_->launch(*step.kernel, launch_of(step, now), now, stream);
          !status.ok())
        return status;
    }
    return {};
  }
  const bool repeated =
      !launches_.empty() && row0_b == row0_b_ && std::memcmp(&args, &args_, sizeof args) == 0;
  if (!repeated) {
    const Shape shape = shape_of(args);
    const bool known = !launches_.empty() && shape == shape_;
    launches_.resize(steps_.size());  // within what was reserved
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      step_args_[i] = step_args(steps_[i], args, row0_b);
      if (!known) launches_[i] = launch_of(steps_[i], step_args_[i]);
    }
    shape_ = shape;
    args_ = args;
    row0_b_ = row0_b;
  }
  Status status;
  for (std::size_t i = 0; i < steps_.size() && status.ok(); ++i)
    if (!is_empty(steps_[i].problem, step_args_[i].m, step_args_[i].n))
      status = backend_->launch(*steps_[i].kernel, launches_[i], step_args_[i], stream);
  if (!status.ok()) launches_.clear();
  taken_.clear(std::memory_order_release);
  return status;
}

Result<std::uint64_t> Executable::window_fallbacks() const {
  std::uint64_t sum = 0;
  for (const LoadedStep& step : steps_) {
    auto rows = backend_->window_fallbacks(*step.kernel);
    if (!rows.ok()) return rows.status();
    sum += *rows;
  }
  return sum;
}

}  // namespace quarterturn
