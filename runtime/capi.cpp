// The C interface: handles, guards and version checks around the C++ runtime.
#include <cstring>
#include <new>

#include "runtime/arguments.hpp"
#include "runtime/context.hpp"
#include "runtime/convert.hpp"
#include "runtime/include/quarterturn/qturn.h"
#include "runtime/metrics.hpp"
#include "runtime/prepare_many.hpp"
#include "runtime/slots.hpp"
#include "runtime/version.hpp"
#include "runtime/weight.hpp"

using namespace quarterturn;

struct qturn_context {
  std::shared_ptr<Context> context;
};
struct qturn_plan {
  std::shared_ptr<Context> context;
  std::shared_ptr<PreparedPlan> plan;
  LastCall last{};
};
struct qturn_weight {
  std::unique_ptr<Weight> weight;
};

namespace {

// The smallest struct_size that each struct ever had; a later version appends and keeps these.
constexpr std::size_t kLeastProblem = sizeof(qturn_problem);
constexpr std::size_t kLeastOptions = sizeof(qturn_context_options);
constexpr std::size_t kLeastOperand = sizeof(qturn_operand);

// Fixed room, so that even reporting "out of memory" needs none.
thread_local char last_error[2048] = "";

qturn_status report(const Status& status) {
  if (status.ok()) return QTURN_OK;
  const auto& message = status.message();
  const auto length = std::min(message.size(), sizeof last_error - 1);
  std::memcpy(last_error, message.data(), length);
  last_error[length] = 0;
  return static_cast<qturn_status>(status.code());
}

qturn_status report(Code code, const char* message) {
  std::strncpy(last_error, message, sizeof last_error - 1);
  return static_cast<qturn_status>(code);
}

// Runs a body that returns Status; nothing is thrown across the C interface.
template <class Body>
qturn_status guarded(Body body) {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Code::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return report(Code::internal, error.what());
  } catch (...) {
    return report(Code::internal, "an unknown exception");
  }
}

Status null_argument(const char* name) {
  return Status(Code::invalid_argument, fmt::format("{} is NULL", name));
}

#define QTURN_REQUIRE(pointer) \
  if (!(pointer)) return null_argument(#pointer)

Status check_choice(const char* name, std::int32_t value, std::int32_t most) {
  if (value >= 0 && value <= most) return {};
  return Status(Code::invalid_argument,
                fmt::format("{} = {}: 0 to {} are allowed", name, value, most));
}

Status options_of(const qturn_context_options& given, ContextOptions& out) {
  static constexpr const char* backends[] = {"auto", "cpu", "cuda", "hip"};
  static constexpr const char* policies[] = {"heuristic", "background", "error"};
  if (auto s = check_choice("backend", given.backend, QTURN_BACKEND_HIP); !s.ok()) return s;
  if (auto s = check_choice("miss_policy", given.miss_policy, QTURN_MISS_ERROR); !s.ok()) return s;
  if (auto s = check_choice("jit", given.jit, QTURN_JIT_OFF); !s.ok()) return s;
  if (auto s = check_choice("log_level", given.log_level, QTURN_LOG_DEBUG); !s.ok()) return s;
  if (auto s = check_choice("device", given.device, 1023); !s.ok()) return s;
  if (auto s = check_choice("threads", given.threads, 4096); !s.ok()) return s;
  if (given.snapshot_count > 0 && !given.snapshots) return null_argument("snapshots");
  // A member at its default leaves the setting to the environment and the files.
  auto& options = out.sources.options;
  if (given.backend != QTURN_BACKEND_AUTO) options[Setting::backend] = backends[given.backend];
  if (given.device != 0) options[Setting::device] = fmt::format("{}", given.device);
  if (given.threads != 0) options[Setting::threads] = fmt::format("{}", given.threads);
  if (given.miss_policy != QTURN_MISS_HEURISTIC)
    options[Setting::on_miss] = policies[given.miss_policy];
  if (given.jit != QTURN_JIT_ON) options[Setting::no_jit] = "1";
  if (given.database) options[Setting::database] = given.database;
  if (given.code_cache) options[Setting::code_cache] = given.code_cache;
  if (given.worker) options[Setting::worker] = given.worker;
  if (given.bundle) options[Setting::bundle] = given.bundle;
  if (given.lock) options[Setting::lock] = given.lock;
  for (std::size_t i = 0; i < given.snapshot_count; ++i) {
    if (!given.snapshots[i]) return null_argument("snapshots[i]");
    auto& list = options[Setting::snapshots];
    list += (list.empty() ? "" : ":") + std::string(given.snapshots[i]);
  }
  if (given.log)
    out.log = [log = given.log, user = given.log_user](LogLevel level, const char* message) {
      log(user, static_cast<std::int32_t>(level), message);
    };
  out.log_level = static_cast<LogLevel>(given.log_level);
  return {};
}

// Of a struct that is filled in: what its caller has room for.
Status check_size(const char* name, std::uint32_t given, std::size_t most) {
  if (given >= sizeof(std::uint32_t) && given <= most) return {};
  return Status(
      Code::invalid_argument,
      fmt::format("{}->struct_size = {}: set it to the struct's sizeof, {}", name, given, most));
}

void give_report(const Reloaded& from, qturn_reload_report& out) {
  qturn_reload_report now{};
  now.struct_size = out.struct_size;
  now.changed = from.before != from.after;
  std::copy(from.before.begin(), from.before.end(), now.hash_before);
  std::copy(from.after.begin(), from.after.end(), now.hash_after);
  now.answers_before = from.answers_before;
  now.answers_after = from.answers_after;
  now.problems_changed = from.problems_changed;
  now.prepared_changed = from.prepared_changed;
  now.prepared_held = from.prepared_held;
  now.generation_before = from.generation_before;
  now.generation_after = from.generation_after;
  std::memcpy(&out, &now, out.struct_size);
}

void give_text(const std::string& text, char* out, std::size_t capacity, std::size_t* needed) {
  if (needed) *needed = text.size() + 1;
  if (capacity == 0) return;
  const auto length = std::min(text.size(), capacity - 1);
  std::memcpy(out, text.data(), length);
  out[length] = 0;
}

Result<Problem> read_problem(const qturn_problem* given) {
  qturn_problem problem;
  qturn_problem_init(&problem);
  if (auto s = read_struct(given, "problem", kLeastProblem, problem); !s.ok()) return s;
  return problem_of(problem);
}

Status read_operand(const qturn_operand* given, qturn_operand& out) {
  qturn_operand_init(&out);
  return read_struct(given, "source", kLeastOperand, out);
}

// The command that runs this very call again, once for each distinct set of sizes.
void log_call(const qturn_plan& plan, const qt_args& args) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const auto value : {args.m, args.n, args.k, args.batch, args.groups})
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccdull;
  if (!plan.plan->is_new_call(hash)) return;
  Problem exactly = plan.plan->problem();
  exactly.m = Extent::exactly(args.m);
  exactly.k = Extent::exactly(args.k);
  if (exactly.grouping == Grouping::none)
    exactly.batch = Extent::exactly(args.batch);
  else
    exactly.groups = Extent::exactly(args.groups);
  plan.context->log()(LogLevel::debug, "qturn bench --problem '{}'", exactly.key());
}

Status run(const qturn_plan& plan, const qturn_args& args) {
  if (args.struct_size < sizeof(qturn_args) || args.struct_size > kMostStruct)
    return Status(
        Code::invalid_argument,
        fmt::format("args->struct_size = {}: set it by qturn_args_init", args.struct_size));
  if (auto s = check_unknown(&args, "args", sizeof args, args.struct_size); !s.ok()) return s;
  const PreparedPlan& prepared = *plan.plan;
  const qturn_operand* b = &args.b;
  if (args.weight) {
    if (args.b.data)
      return Status(Code::invalid_argument, "args->weight and args->b are both given; choose one");
    if (auto s = args.weight->weight->check_size(prepared.problem()); !s.ok()) return s;
    b = &args.weight->weight->operand();
  }
  Call call;
  if (!plan.last.recall(args, *b, call)) {
    if (auto s = bind(prepared, args, *b, call); !s.ok()) return s;
    plan.last.keep(args, *b, call);
  }
  if (plan.context->backend().device().target.vendor == Vendor::cpu)
    if (auto s = check_groups(prepared.problem(), call.args); !s.ok()) return s;
  prepared.count_run();
  plan.context->statistics().runs.fetch_add(1, std::memory_order_relaxed);
  if (call.work == Call::Work::none) return {};
  if (plan.context->log().wants(LogLevel::debug)) log_call(plan, call.args);
  return prepared.executable().run(call.args, args.stream, call.row0_b);
}

}  // namespace

extern "C" {

void qturn_context_options_init(qturn_context_options* options) {
  if (!options) return;
  std::memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
  options->log_level = QTURN_LOG_WARNING;
}

void qturn_problem_init(qturn_problem* problem) {
  if (!problem) return;
  std::memset(problem, 0, sizeof *problem);
  problem->struct_size = sizeof *problem;
  problem->op = QTURN_OP_GEMM;
  problem->batch = {1, 1};
  problem->groups = {1, 1};
  problem->d_layout = QTURN_LAYOUT_PLAIN;
  problem->scale_rule = QTURN_SCALE_RCEIL;
  problem->reproducibility = QTURN_RUN_TO_RUN;
}

void qturn_operand_init(qturn_operand* operand) {
  if (!operand) return;
  std::memset(operand, 0, sizeof *operand);
  operand->struct_size = sizeof *operand;
  operand->layout = QTURN_LAYOUT_PLAIN;
  operand->scale_rule = QTURN_SCALE_RCEIL;
}

void qturn_args_init(qturn_args* args) {
  if (!args) return;
  std::memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
  for (auto* operand : {&args->a, &args->b, &args->d, &args->d2, &args->z})
    qturn_operand_init(operand);
  args->alpha = 1;
  args->epsilon = 1e-5f;
}

qturn_status qturn_context_create(const qturn_context_options* options, qturn_context** out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(out);
    qturn_context_options ours;
    qturn_context_options_init(&ours);
    if (options)
      if (auto s = read_struct(options, "options", kLeastOptions, ours); !s.ok()) return s;
    ContextOptions wanted;
    if (auto s = options_of(ours, wanted); !s.ok()) return s;
    auto context = Context::create(std::move(wanted));
    if (!context.ok()) return context.status();
    *out = new qturn_context{std::move(*context)};
    return {};
  });
}

void qturn_context_destroy(qturn_context* context) {
  (void)guarded([&]() -> Status {
    delete context;
    return {};
  });
}

qturn_status qturn_reload(qturn_context* context, int32_t flags, qturn_reload_report* report) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    if (auto s = check_choice("flags", flags, QTURN_RELOAD_REPLACE); !s.ok()) return s;
    if (report)
      if (auto s = check_size("report", report->struct_size, sizeof *report); !s.ok()) return s;
    const auto reloaded = context->context->reload(static_cast<Reload>(flags));
    if (!reloaded.ok()) return reloaded.status();
    if (report) give_report(*reloaded, *report);
    return {};
  });
}

qturn_status qturn_snapshot_hash(qturn_context* context, unsigned char hash[32]) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    QTURN_REQUIRE(hash);
    const Digest digest = context->context->snapshot_hash();
    std::copy(digest.begin(), digest.end(), hash);
    return {};
  });
}

qturn_status qturn_supports(qturn_context* context, const qturn_problem* problem) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    auto ours = read_problem(problem);
    return ours.ok() ? context->context->supports(*ours) : ours.status();
  });
}

qturn_status qturn_prepare(qturn_context* context, const qturn_problem* problem, qturn_plan** out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    QTURN_REQUIRE(out);
    auto ours = read_problem(problem);
    if (!ours.ok()) return ours.status();
    auto plan = context->context->prepare(*ours);
    if (!plan.ok()) return plan.status();
    *out = new qturn_plan{context->context, std::move(*plan)};
    return {};
  });
}

qturn_status qturn_prepare_many(qturn_context* context, const qturn_problem* const* problems,
                                size_t count, qturn_plan** plans, qturn_status* statuses) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    if (count == 0) return {};
    QTURN_REQUIRE(problems);
    QTURN_REQUIRE(plans);
    std::fill_n(plans, count, nullptr);
    std::vector<Status> found(count);
    std::vector<Problem> good;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < count; ++i) {
      auto ours = read_problem(problems[i]);
      found[i] = ours.status();
      if (!ours.ok()) continue;
      good.push_back(std::move(*ours));
      places.push_back(i);
    }
    auto prepared = prepare_many(*context->context, good);
    for (std::size_t i = 0; i < places.size(); ++i) {
      found[places[i]] = prepared[i].status();
      if (prepared[i].ok())
        plans[places[i]] = new qturn_plan{context->context, std::move(*prepared[i])};
    }
    Status first;
    for (std::size_t i = count; i-- > 0;) {
      if (statuses) statuses[i] = static_cast<qturn_status>(found[i].code());
      if (!found[i].ok())
        first = Status(found[i].code(), fmt::format("problems[{}]: {}", i, found[i].message()));
    }
    return first;
  });
}

void qturn_plan_destroy(qturn_plan* plan) {
  (void)guarded([&]() -> Status {
    delete plan;
    return {};
  });
}

qturn_status qturn_plan_workspace(const qturn_plan* plan, size_t* bytes) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(plan);
    QTURN_REQUIRE(bytes);
    const auto needed = plan->plan->workspace_bytes();
    *bytes = needed > 0 ? static_cast<std::size_t>(needed + kWorkspaceAlignment) : 0;
    return {};
  });
}

qturn_status qturn_plan_operand(const qturn_plan* plan, int32_t which, qturn_operand* out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(plan);
    QTURN_REQUIRE(out);
    if (auto s = check_choice("which", which, QTURN_OPERAND_Z); !s.ok()) return s;
    const PreparedPlan& prepared = *plan->plan;
    const Problem& p = prepared.problem();
    const auto slot = slot_of(p, prepared.a_layout(), prepared.b_layout(),
                              static_cast<Which>(which), most_sizes(p));
    if (slot.type == DType::none)
      return Status(Code::invalid_argument, fmt::format("this plan has no operand '{}'",
                                                        slot_name(static_cast<Which>(which))));
    *out = describe(p, slot, static_cast<Which>(which), most_sizes(p));
    return {};
  });
}

qturn_status qturn_run(const qturn_plan* plan, const qturn_args* args) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(plan);
    QTURN_REQUIRE(args);
    return run(*plan, *args);
  });
}

qturn_status qturn_plan_match(const qturn_plan* plan, int32_t* match) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(plan);
    QTURN_REQUIRE(match);
    *match = static_cast<std::int32_t>(plan->plan->match());
    return {};
  });
}

qturn_status qturn_problem_key(const qturn_problem* problem, char* text, size_t capacity,
                               size_t* needed) {
  return guarded([&]() -> Status {
    if (capacity > 0) QTURN_REQUIRE(text);
    auto ours = read_problem(problem);
    if (!ours.ok()) return ours.status();
    give_text(ours->key(), text, capacity, needed);
    return {};
  });
}

qturn_status qturn_problem_parse(const char* key, qturn_problem* out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(key);
    QTURN_REQUIRE(out);
    auto problem = parse_problem(key);
    if (!problem.ok()) return problem.status();
    const qturn_problem ours = c_problem_of(*problem);
    // As it will be read back: with the bounds of this interface.
    if (auto checked = problem_of(ours); !checked.ok()) return checked.status();
    *out = ours;
    return {};
  });
}

qturn_status qturn_explain(qturn_context* context, const qturn_problem* problem, char* text,
                           size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    if (capacity > 0) QTURN_REQUIRE(text);
    auto ours = read_problem(problem);
    if (!ours.ok()) return ours.status();
    const auto json = context->context->explain(*ours);
    give_text(json, text, capacity, needed);
    return {};
  });
}

qturn_status qturn_weight_bytes(const qturn_plan* plan, size_t* bytes) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(plan);
    QTURN_REQUIRE(bytes);
    auto needed = Weight::bytes_for(*plan->plan);
    if (!needed.ok()) return needed.status();
    *bytes = static_cast<std::size_t>(*needed);
    return {};
  });
}

qturn_status qturn_weight_create(const qturn_plan* plan, const qturn_operand* source, void* storage,
                                 size_t storage_bytes, void* stream, qturn_weight** out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(plan);
    QTURN_REQUIRE(out);
    qturn_operand ours;
    if (auto s = read_operand(source, ours); !s.ok()) return s;
    auto weight = Weight::create(plan->context, *plan->plan, ours, storage, storage_bytes, stream);
    if (!weight.ok()) return weight.status();
    *out = new qturn_weight{std::move(*weight)};
    return {};
  });
}

qturn_status qturn_weight_refresh(qturn_weight* weight, const qturn_operand* source, void* stream) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(weight);
    qturn_operand ours;
    if (auto s = read_operand(source, ours); !s.ok()) return s;
    return weight->weight->refresh(ours, stream);
  });
}

qturn_status qturn_weight_operand(const qturn_weight* weight, qturn_operand* out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(weight);
    QTURN_REQUIRE(out);
    *out = weight->weight->operand();
    return {};
  });
}

qturn_status qturn_weight_serialize(const qturn_weight* weight, void* bytes, size_t capacity,
                                    size_t* written) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(weight);
    QTURN_REQUIRE(written);
    *written = weight->weight->image_bytes();
    if (capacity < *written)
      return Status(Code::invalid_argument,
                    fmt::format("capacity = {}: the image has {} bytes", capacity, *written));
    QTURN_REQUIRE(bytes);
    return weight->weight->serialize(bytes);
  });
}

qturn_status qturn_weight_deserialize(qturn_context* context, const void* bytes, size_t size,
                                      void* storage, size_t storage_bytes, qturn_weight** out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    QTURN_REQUIRE(bytes);
    QTURN_REQUIRE(out);
    auto weight = Weight::deserialize(context->context, {static_cast<const char*>(bytes), size},
                                      storage, storage_bytes);
    if (!weight.ok()) return weight.status();
    *out = new qturn_weight{std::move(*weight)};
    return {};
  });
}

void qturn_weight_destroy(qturn_weight* weight) {
  (void)guarded([&]() -> Status {
    delete weight;
    return {};
  });
}

qturn_status qturn_get_stats(qturn_context* context, qturn_stats* out) {
  return guarded([&]() -> Status {
    QTURN_REQUIRE(context);
    QTURN_REQUIRE(out);
    if (auto s = check_size("out", out->struct_size, sizeof *out); !s.ok()) return s;
    const auto& from = context->context->statistics();
    qturn_stats now{};
    now.struct_size = out->struct_size;
    now.prepares = from.prepares;
    now.runs = from.runs;
    for (std::size_t i = 0; i < from.matched.size(); ++i) now.matched[i] = from.matched[i];
    now.failures = from.failures;
    now.compiles = from.compiles;
    now.code_hits = from.code_hits;
    now.quarantined = from.quarantined;
    auto fallbacks = context->context->window_fallbacks();
    if (!fallbacks.ok()) return fallbacks.status();
    now.window_fallbacks = *fallbacks;
    std::memcpy(out, &now, out->struct_size);
    return {};
  });
}

qturn_status qturn_metrics_text(qturn_context* const* contexts, size_t count, int32_t flags,
                                char* text, size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    if (capacity > 0) QTURN_REQUIRE(text);
    if (count == 0) return Status(Code::invalid_argument, "count = 0: name at least one context");
    QTURN_REQUIRE(contexts);
    if (auto s = check_choice("flags", flags, QTURN_METRICS_WITH_DEVICE); !s.ok()) return s;
    std::vector<Context*> all;
    for (std::size_t i = 0; i < count; ++i) {
      if (!contexts[i]) return null_argument("contexts[i]");
      all.push_back(contexts[i]->context.get());
      if (flags != QTURN_METRICS_WITH_DEVICE) continue;
      if (auto rows = all.back()->window_fallbacks(); !rows.ok()) return rows.status();
    }
    give_text(metrics_text(all), text, capacity, needed);
    return {};
  });
}

const char* qturn_status_name(qturn_status status) {
  // Every name is a literal, so it ends with a 0.
  return code_name(static_cast<Code>(status)).data();
}

const char* qturn_last_error(void) { return last_error; }

const char* qturn_version_string(void) { return kVersion.data(); }

int32_t qturn_version_number(void) {
  return QTURN_VERSION_MAJOR * 10000 + QTURN_VERSION_MINOR * 100 + QTURN_VERSION_PATCH;
}

}  // extern "C"
