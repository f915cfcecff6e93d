#include "tuner/commands/command.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/gpu_backend.hpp"

namespace quarterturn {
namespace {

template <class E>
Status read_enum(const char* option, const std::string& text, E& out) {
  const auto value = parse_enum<E>(text);
  if (!value)
    return Status(Code::invalid_argument, fmt::format("--{} '{}' is not known; allowed: {}", option,
                                                      text, allowed_names<E>()));
  out = *value;
  return {};
}

Result<Recipe> recipe_of(const WorkOptions& options) {
  Recipe recipe;
  recipe.rotation = options.rotation;
  recipe.biased = options.allow_biased ? BiasedRounding::allowed : BiasedRounding::refused;
  for (const auto& status :
       {read_enum("op", options.op, recipe.op), read_enum("signs", options.signs, recipe.signs),
        read_enum("scale-rule", options.scale_rule, recipe.scale_rule),
        read_enum("rounding", options.rounding, recipe.a_rounding),
        read_enum("type", options.in_type, recipe.in_type),
        read_enum("contract", options.contract, recipe.contract),
        read_enum("spread", options.spread, recipe.spread),
        read_enum("epilogue", options.epilogue, recipe.epilogue),
        read_enum("pre-activation", options.pre_activation, recipe.pre_activation),
        read_enum("prologue", options.prologue, recipe.prologue),
        read_enum("bias-gradient", options.bias_gradient, recipe.bias_gradient),
        read_enum("grouping", options.grouping, recipe.grouping),
        read_enum("reproducibility", options.repro, recipe.repro)})
    if (!status.ok()) return status;
  recipe.groups = options.groups;
  // Weights are rounded to nearest: noise belongs to activations and gradients. Wgrad has no
  // weight.
  if (!options.out_type.empty())
    if (auto status = read_enum("out-type", options.out_type, recipe.out_type); !status.ok())
      return status;
  auto roles = parse_roles(options.roles);
  if (!roles.ok()) return roles.status();
  recipe.roles = std::move(*roles);
  auto tokens = parse_tokens(options.tokens);
  if (!tokens.ok()) return tokens.status();
  recipe.tokens = std::move(*tokens);
  return recipe;
}

nlohmann::ordered_json json_value(const std::string& text) {
  if (!text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-')) {
    std::int64_t whole = 0;
    const auto* const end = text.data() + text.size();
    if (const auto r = std::from_chars(text.data(), end, whole);
        r.ec == std::errc() && r.ptr == end)
      return whole;
    double real = 0;
    if (const auto r = std::from_chars(text.data(), end, real); r.ec == std::errc() && r.ptr == end)
      return real;
  }
  return text;
}

}  // namespace

int exit_code_of(const Status& status) {
  switch (status.code()) {
    case Code::ok:
      return kExitOk;
    case Code::invalid_argument:
    case Code::invalid_problem:
    case Code::not_supported:
    case Code::unknown_name:
      return kExitUsage;
    case Code::interrupted:
      return kExitInterrupted;
    case Code::no_device:
    case Code::no_driver:
    case Code::no_compiler:
    case Code::io_error:
    case Code::read_only:
    case Code::disk_full:
    case Code::not_ours:
    case Code::newer_version:
    case Code::damaged:
    case Code::network_filesystem:
      return kExitUnavailable;
    default:
      return kExitFailed;
  }
}

int fail(const Status& status) {
  std::fprintf(stderr, "qturn: %s\n", status.message().c_str());
  return exit_code_of(status);
}

void add_json(CLI::App& app, GlobalOptions& options) {
  app.add_flag("--json", options.json, "One JSON object a line on stdout instead of a table");
}
void add_database(CLI::App& app, GlobalOptions& options) {
  app.add_option("--db", options.database,
                 "The tuning database's file (default: `qturn config` shows it)");
}
void add_device(CLI::App& app, GlobalOptions& options) {
  app.add_option("--device", options.device,
                 "cpu, cuda, cuda:1, hip, ... (default: a GPU that can be used, else cpu)");
  app.add_option("--threads", options.threads,
                 "CPU workers (default: all that this process may use)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--log", options.log, "What is logged to stderr: error, warning, info, debug");
}

CLI::Validator whole_between(std::uint64_t least, std::uint64_t most) {
  const auto allowed = fmt::format("{} to {}", least, most);
  return CLI::Validator(
      [=](std::string& text) {
        std::uint64_t value = 0;
        const auto* const end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        if (read.ec == std::errc() && read.ptr == end && value >= least && value <= most)
          return std::string();
        return fmt::format("'{}' is no whole number from {}", text, allowed);
      },
      allowed);
}

CLI::Validator number_between(double least, double most) {
  const auto allowed = fmt::format("{} to {}", least, most);
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most)
          return std::string();
        return fmt::format("'{}' is no number from {}", text, allowed);
      },
      allowed);
}

CLI::Validator positive_number() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0)
          return std::string();
        return fmt::format("'{}' is no number above 0", text);
      },
      "POSITIVE");
}

CLI::Validator no_sign() {
  return CLI::Validator(
      [](std::string& text) {
        return text.starts_with('-') ? fmt::format("'{}' is below 0", text) : std::string();
      },
      "");
}

namespace {

using NameDevices = const char* (*)();

// Which of a library's devices has a target; -1: none, or it is no library of simulated devices.
int simulated_ordinal(const std::string& path, const std::string& target) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto name_devices =
      handle ? reinterpret_cast<NameDevices>(dlsym(handle, kSimulatedDevices)) : nullptr;
  if (!name_devices) return -1;
  std::istringstream names(name_devices());
  int ordinal = 0;
  for (std::string name; names >> name; ++ordinal)
    if (name == target) return ordinal;
  return -1;
}

// --device simulated:TARGET: driver, runtime and compiler are one library with such a device.
Status use_simulated(const std::string& target, SettingSources& sources) {
  const auto libraries = Settings::load(sources).list(Setting::simulators);
  for (const auto& path : libraries) {
    const int ordinal = simulated_ordinal(path, target);
    if (ordinal < 0) continue;
    const bool amd = target.starts_with("gfx");
    auto& given = sources.options;
    given[Setting::backend] = amd ? "hip" : "cuda";
    given[Setting::device] = std::to_string(ordinal);
    given[amd ? Setting::hip_runtime : Setting::cuda_driver] = path;
    given[amd ? Setting::hiprtc : Setting::nvrtc] = path;
    return {};
  }
  return Status(
      Code::no_device,
      fmt::format("--device simulated:{}: {}", target,
                  libraries.empty() ? "QTURN_SIMULATORS names no library of simulated "
                                      "devices; our tests build two of them"
                                    : "no library of QTURN_SIMULATORS has such a device"));
}

// Other processes are told settings as JSON, which has no other text.
Status check_utf8(const std::map<std::string, std::string>& settings) {
  using nlohmann::json;
  for (const auto& [name, text] : settings) {
    try {
      (void)json(text).dump();
    } catch (const json::exception&) {
      return Status(
          Code::invalid_argument,
          fmt::format("the setting {}, {}, is not UTF-8 text; give names and paths that "
                      "are (`qturn config` says where it comes from)",
                      name, json(text).dump(-1, ' ', false, json::error_handler_t::replace)));
    }
  }
  return {};
}

}  // namespace

Result<SettingSources> sources_of(const GlobalOptions& options) {
  SettingSources sources;
  auto& given = sources.options;
  if (!options.database.empty()) given[Setting::database] = options.database;
  if (options.threads > 0) given[Setting::threads] = std::to_string(options.threads);
  if (!options.log.empty()) given[Setting::log] = options.log;
  if (options.device.empty()) return sources;
  const auto colon = options.device.find(':');
  const auto backend = options.device.substr(0, colon);
  if (backend == "simulated") {
    const auto target = colon == std::string::npos ? "" : options.device.substr(colon + 1);
    if (auto status = use_simulated(target, sources); !status.ok()) return status;
    return sources;
  }
  const auto ordinal =
      colon == std::string::npos ? std::string("0") : options.device.substr(colon + 1);
  const bool number = !ordinal.empty() &&
                      ordinal.find_first_not_of("0123456789") == std::string::npos &&
                      ordinal.size() < 4;
  if ((backend != "cpu" && backend != "cuda" && backend != "hip") || !number)
    return Status(Code::invalid_argument,
                  fmt::format("--device '{}' is not a device; write cpu, cuda, cuda:1, hip or "
                              "hip:0 (`qturn devices` lists them)",
                              options.device));
  given[Setting::backend] = backend;
  given[Setting::device] = ordinal;
  return sources;
}

Result<std::shared_ptr<Context>> open_context(const GlobalOptions& options,
                                              const std::map<Setting, std::string>& more) {
  auto sources = sources_of(options);
  if (!sources.ok()) return sources.status();
  for (const auto& [setting, text] : more) sources->options[setting] = text;
  ContextOptions context;
  context.sources = std::move(*sources);
  context.log = [](LogLevel, const char* message) { std::fprintf(stderr, "qturn: %s\n", message); };
  auto out = Context::create(std::move(context));
  if (out.ok())
    if (auto status = check_utf8((*out)->settings_for_child()); !status.ok()) return status;
  return out;
}

Status write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, path, error);
  if (out && !error) return {};
  std::filesystem::remove(temporary, error);
  return Status(Code::io_error, fmt::format("{} cannot be written", path));
}

void add_work(CLI::App& app, WorkOptions& options) {
  auto* model = app.add_option("--model", options.model,
                               "A bundled model (Llama-3.1-8B, ...) or the path of a config.json");
  auto* shape =
      app.add_option("--shape", options.shape,
                     "Products instead, comma-separated: MxNxK = tokens x out features x in "
                     "features; the token counts of one NxK share a weight");
  shape->delimiter(',');
  model->excludes(shape);
  app.add_option(
         "--problem", options.problem,
         "A problem by its key, as `qturn explain` and the debug log print it; may be given "
         "several times")
      ->allow_extra_args(false)
      ->excludes(model)
      ->excludes(shape);
  app.add_option("--tokens", options.tokens, "Token counts and ranges, each a problem: 1,16,1..512")
      ->capture_default_str();
  app.add_option("--roles", options.roles, "fprop, dgrad, wgrad, or several")
      ->capture_default_str();
  app.add_option("--tp", options.tp, "Ranks of tensor parallelism that share each layer")
      ->capture_default_str()
      ->check(positive_number());
  app.add_option("--op", options.op, "hadamard_gemm, gemm, quantize, ...")->capture_default_str();
  app.add_option("--rotation", options.rotation, "Hadamard block: 0 (none), 16, 32, 64, 128, 256")
      ->capture_default_str();
  app.add_option("--signs", options.signs, "none, fixed, per_call")->capture_default_str();
  app.add_option("--scale-rule", options.scale_rule, "floor, even, rceil, ceil, ts34, quest, ...")
      ->capture_default_str();
  app.add_option(
         "--rounding", options.rounding,
         "Of activations and gradients: rne, sr16, ...; sr_cvt_rs and sr_cvt_scalef32 by hardware")
      ->capture_default_str();
  app.add_flag("--allow-biased", options.allow_biased,
               "Stochastic rounding even where the scale rule clips");
  app.add_option("--type", options.in_type, "Of high-precision operands: bf16, f16, f32")
      ->capture_default_str();
  app.add_option("--out-type", options.out_type,
                 "Of the result (default: as --type; f32 for wgrad)");
  app.add_option("--contract", options.contract, "exact, or fast (GPU: FP8 accumulation, promoted)")
      ->capture_default_str();
  app.add_option("--spread", options.spread, "narrow for rotated forward data, any for gradients")
      ->capture_default_str();
  app.add_option(
         "--epilogue", options.epilogue,
         "Of fprop: gelu, gelu_tanh, swiglu_split, swiglu_interleaved; of dgrad: dgelu, ...")
      ->capture_default_str();
  app.add_option("--pre-activation", options.pre_activation,
                 "kept: what the activation was applied to is a second result")
      ->capture_default_str();
  app.add_option("--prologue", options.prologue,
                 "Of quantize: rmsnorm, swiglu_split, swiglu_interleaved")
      ->capture_default_str();
  app.add_option("--bias-gradient", options.bias_gradient,
                 "f32: sums over the tokens, of wgrad and of quantize")
      ->capture_default_str();
  app.add_option("--grouping", options.grouping,
                 "Experts in one call: m_contiguous (rows behind each other) or m_masked; wgrad "
                 "divides its tokens")
      ->capture_default_str();
  app.add_option("--groups", options.groups, "How many experts")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--reproducibility", options.repro, "any, run_to_run, batch_invariant")
      ->capture_default_str();
}

Result<Workload> workload_of(const WorkOptions& options) {
  if (!options.problem.empty()) {
    Workload all;
    for (const auto& key : options.problem) {
      auto problem = parse_problem(key);
      if (!problem.ok()) return problem.status();
      if (auto status = validate(*problem); !status.ok()) return status;
      all.items.push_back({fmt::format("problem {}", all.items.size() + 1), *problem, 1});
    }
    return all;
  }
  if (options.model.empty() && options.shape.empty())
    return Status(Code::invalid_argument,
                  "name what to work on: --model NAME, --shape MxNxK, or --problem KEY");
  auto recipe = recipe_of(options);
  if (!recipe.ok()) return recipe.status();
  if (!options.shape.empty()) {
    Workload all;
    for (const auto& text : options.shape) {
      auto shape = parse_shape(text, recipe->op);
      if (!shape.ok()) return shape.status();
      recipe->tokens = {shape->tokens};
      auto workload = make_workload({{shape->linear}, {}}, *recipe);
      if (workload.items.empty() && !workload.refused.empty())
        return Status(Code::invalid_problem, workload.refused.front().reason);
      std::move(workload.items.begin(), workload.items.end(), std::back_inserter(all.items));
      std::move(workload.refused.begin(), workload.refused.end(), std::back_inserter(all.refused));
    }
    return all;
  }
  auto model = find_model(options.model);
  if (!model.ok()) return model.status();
  return make_workload(linear_layers(*model, options.tp), *recipe);
}

void report_refusals(const Workload& workload) {
  for (const auto& refusal : workload.refused)
    std::fprintf(stderr, "qturn: %s is left out: %s\n", refusal.layer.c_str(),
                 refusal.reason.c_str());
}

void Table::print(bool json) const {
  if (json) {
    for (const auto& row : rows_) {
      nlohmann::ordered_json object;
      for (std::size_t i = 0; i < columns_.size() && i < row.size(); ++i)
        object[columns_[i]] = json_value(row[i]);
      // Names from a damaged database may be no UTF-8.
      constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;
      std::printf("%s\n", object.dump(-1, ' ', false, replace).c_str());
    }
    return;
  }
  std::vector<std::size_t> widths;
  for (const auto& column : columns_) widths.push_back(column.size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  const auto line = [&](const std::vector<std::string>& values) {
    std::string out;
    for (std::size_t i = 0; i < values.size(); ++i)
      out += i + 1 == values.size() ? values[i] : fmt::format("{:<{}}  ", values[i], widths[i]);
    std::printf("%s\n", out.c_str());
  };
  line(columns_);
  for (const auto& row : rows_) line(row);
}

}  // namespace quarterturn
