// qturn selftest: every family of kernels held against the scalar reference on the device at hand,
// with a report that can be sent to the developers.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "generator/family.hpp"
#include "runtime/version.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/interrupt.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/hardware_questions.hpp"
#include "tuner/session.hpp"
#include "tuner/trial_process.hpp"

namespace quarterturn {
namespace {

constexpr const char* kSelftestFooter = R"(Examples:
  qturn selftest                                on the first GPU, else the CPU
  qturn selftest --device hip:0 -o mi355x.json
  qturn selftest --family cuda_gemm_sm120

Compiles some variants of every family that the device can run, for small and awkward sizes, and holds
each against the scalar reference: codes bit for bit, products within their bound, stochastic rounding
unbiased, guard bands untouched. What has only been simulated so far is marked so. Where the device has
stochastic rounding of its own (sm_100, sm_103, gfx950), it is asked what it does with each random bit. The
report is one JSON file with the device, its driver and compiler, each result, and those answers with the
bits they were read from; it holds no host, user or path name.
Nothing is tuned, and nothing is stored.

Exit codes: 0 all are right; 1 some are wrong or could not be tried; 2 the command line makes no
sense; 3 the machine lacks something; 130 interrupted.)";

constexpr std::size_t kPlans = 400;  // of a problem, from which each family's are taken
constexpr std::size_t kOfAFamily =
    2;  // plans of one family and problem: its first, and one far off

using OrderedJson = nlohmann::ordered_json;

struct SelftestOptions {
  std::string file = "selftest.json", family;
  bool force = false, questions_only = false;
};

Problem product(Op op, Role role, DType type) {
  Problem p;
  p.op = op;
  p.role = role;
  p.m = {1, 300};
  p.n = Extent::exactly(328);
  p.k = Extent::exactly(576);
  if (role == Role::wgrad) {
    p.m = Extent::exactly(192);
    p.k = {1, 300};
    p.a_major = p.b_major = type == DType::mxfp4 ? Major::k : Major::rows;
  }
  p.a_type = p.b_type = type;
  p.d_type = role == Role::wgrad ? DType::f32 : DType::bf16;
  p.rotation = op == Op::hadamard_gemm ? 32 : 0;
  return p;
}

Problem quantiser(Copies copies, std::int32_t rotation, Rounding rounding) {
  Problem p;
  p.op = Op::quantize;
  p.m = {1, 300};
  p.k = Extent::exactly(768);
  p.a_type = DType::bf16;
  p.d_type = DType::mxfp4;
  p.copies = copies;
  p.rotation = rotation;
  p.a_rounding = rounding;
  return p;
}

/// What between them all families are asked for.
std::vector<Problem> problems() {
  std::vector<Problem> out;
  for (const auto copies : {Copies::rows, Copies::columns, Copies::both})
    for (const std::int32_t rotation : {0, 32, 128})
      out.push_back(quantiser(copies, rotation, rotation == 32 ? Rounding::sr16 : Rounding::rne));
  for (const auto rounding : {Rounding::sr_cvt_rs, Rounding::sr_cvt_scalef32})
    out.push_back(quantiser(Copies::both, 32, rounding));
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad})
    for (const auto contract : {Contract::exact, Contract::fast}) {
      for (const auto& [op, type] :
           {std::pair(Op::gemm, DType::mxfp4), std::pair(Op::hadamard_gemm, DType::bf16)}) {
        Problem p = product(op, role, type);
        p.contract = contract;
        p.spread = role == Role::fprop ? Spread::narrow : Spread::any;
        if (role == Role::wgrad) p.accumulate = Accumulate::accumulate;
        out.push_back(p);
      }
    }
  Problem weight_only = product(Op::gemm, Role::fprop, DType::mxfp4);
  weight_only.a_type = DType::bf16;
  out.push_back(weight_only);
  Problem grouped = product(Op::hadamard_gemm, Role::fprop, DType::bf16);
  grouped.grouping = Grouping::m_contiguous;
  grouped.groups = Extent::exactly(4);
  out.push_back(grouped);
  return out;
}

struct Candidate {
  Problem problem;
  Plan plan;
  const Family* family;
};

// Of each problem and main family, its first plan and one from the far end of its variants.
std::vector<Candidate> candidates(const Context& context, const std::string& only) {
  std::vector<Candidate> out;
  for (const auto& problem : problems()) {
    std::map<std::string, std::vector<Plan>> by_family;
    for (auto& plan : context.enabled_plans(problem, kPlans))
      by_family[plan.main_step().variant.family].push_back(std::move(plan));
    for (auto& [name, plans] : by_family) {
      if (!only.empty() && name != only) continue;
      for (std::size_t i = 0; i < std::min(kOfAFamily, plans.size()); ++i)
        out.push_back({problem, i == 0 ? plans.front() : plans.back(), find_family(name)});
    }
  }
  return out;
}

std::string_view state_of(const Verdict& verdict, Loss loss) {
  if (verdict.status.ok()) return "right";
  if (loss == Loss::crashed) return "crashed";
  if (loss == Loss::hung) return "hung";
  return verdict.status.code() == Code::rejected ? "wrong" : "not tried";
}

OrderedJson result_of(const Target& target, const Candidate& candidate, const Verdict& verdict,
                      std::string_view state, double seconds) {
  const Certificate& proved = verdict.certificate;
  return {
      {"family", candidate.family->name()},
      {"evidence",
       candidate.family->evidence(target) == Family::Evidence::hardware ? "hardware" : "simulated"},
      {"problem", candidate.problem.key()},
      {"plan", candidate.plan.text()},
      {"state", state},
      {"reason", verdict.status.message()},
      {"max_error", proved.max_error},
      {"outputs", proved.outputs},
      {"code_rows", proved.code_rows},
      {"bias_z", proved.bias_z},
      {"repeatable", proved.repeatable},
      {"seconds", seconds}};
}

OrderedJson facts_of(const Context& context) {
  const Env& env = context.env();
  return {{"format", 1},
          {"library", kVersion},
          {"target", env.target},
          {"device", env.product},
          {"class", env.performance_class},
          {"driver", env.driver},
          {"toolkit", env.toolkit},
          {"compiler", env.compiler}};
}

void print_families(const OrderedJson& results, const GlobalOptions& global) {
  std::map<std::string, std::map<std::string, int>> counts;
  std::map<std::string, std::string> evidence;
  for (const auto& one : results) {
    ++counts[one.at("family")][one.at("state")];
    evidence[one.at("family")] = one.at("evidence");
  }
  Table table({"family", "so_far", "right", "wrong", "crashed", "hung", "not_tried"});
  for (auto& [family, of] : counts)
    table.add({family, evidence[family] == "simulated" ? "simulated only" : "run on hardware",
               fmt::format("{}", of["right"]), fmt::format("{}", of["wrong"]),
               fmt::format("{}", of["crashed"]), fmt::format("{}", of["hung"]),
               fmt::format("{}", of["not tried"])});
  table.print(global.json);
}

int selftest(const GlobalOptions& global, const SelftestOptions& options) {
  std::error_code ignored;
  if (!options.force && std::filesystem::exists(options.file, ignored))
    return fail(
        Status(Code::invalid_argument,
               fmt::format("{} is there already; name another -o, or --force writes over it",
                           options.file)));
  if (!options.family.empty() && !find_family(options.family)) {
    std::vector<std::string_view> names;
    for (const Family* family : families()) names.push_back(family->name());
    return fail(Status(Code::unknown_name,
                       fmt::format("--family '{}': {}", options.family, fmt::join(names, ", "))));
  }
  watch_interrupts();
  auto context = open_context(global);
  if (!context.ok()) return fail(context.status());
  const auto all =
      options.questions_only ? std::vector<Candidate>() : candidates(**context, options.family);
  if (all.empty() && !options.questions_only)
    return fail(Status(Code::not_supported, fmt::format("no family {} runs on {}", options.family,
                                                        (*context)->env().target)));
  TrialProcessOptions process_options;
  process_options.settings = (*context)->settings_for_child();
  process_options.interrupted = is_interrupted;
  OrderedJson results = OrderedJson::array();
  bool right = true;
  const SteadyClock clock;
  for (const auto& candidate : all) {
    if (is_interrupted()) break;
    TrialProcess process(candidate.problem, process_options);
    const double begun = clock.now();
    const auto index = process.add(candidate.plan);
    const Verdict verdict = process.admit(index);
    if (verdict.status.code() == Code::interrupted) break;
    const auto state = state_of(verdict, process.loss(index));
    right = right && state == "right";
    results.push_back(result_of((*context)->backend().device().target, candidate, verdict, state,
                                clock.now() - begun));
    std::fprintf(stderr, "qturn: %zu/%zu %s: %s\n", results.size(), all.size(),
                 std::string(candidate.family->name()).c_str(), std::string(state).c_str());
  }
  OrderedJson report = facts_of(**context);
  report["complete"] = results.size() == all.size();
  report["results"] = results;
  if (!is_interrupted())
    report["questions"] =
        ask_hardware(find_trial_program(), Worker((*context)->settings().text(Setting::worker)),
                     (*context)->settings_for_child(), (*context)->env().target);
  if (auto status = write_file(options.file, report.dump(1) + "\n"); !status.ok())
    return fail(status);
  print_families(results, global);
  std::fprintf(stderr, "qturn: the report is %s\n", options.file.c_str());
  return is_interrupted() ? kExitInterrupted : right ? kExitOk : kExitFailed;
}

}  // namespace

std::function<int()> register_selftest(CLI::App& app) {
  auto* command =
      app.add_subcommand("selftest", "Hold every family of kernels against the reference here");
  command->footer(kSelftestFooter);
  auto global = std::make_shared<GlobalOptions>();
  auto options = std::make_shared<SelftestOptions>();
  add_device(*command, *global);
  add_json(*command, *global);
  command->add_option("-o,--output", options->file, "The report")->capture_default_str();
  command->add_option("--family", options->family, "This one alone");
  command->add_flag("--questions", options->questions_only,
                    "Only ask what hardware alone can answer; try no family");
  command->add_flag("--force", options->force, "Write over the report");
  return [=] { return selftest(*global, *options); };
}

}  // namespace quarterturn
