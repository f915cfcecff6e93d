#include "runtime/settings.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "cache/filesystem.hpp"

namespace quarterturn {
namespace {

using Kind = SettingKind;

constexpr std::array<SettingSpec, kSettings> kSpecs = {{
    {Setting::backend, "backend", "QTURN_BACKEND", "auto", Kind::choice, "auto|cpu|cuda|hip",
     "which kind of device a context opens; auto: a GPU that can be used, else the CPU"},
    {Setting::device, "device", "QTURN_DEVICE", "0", Kind::count, "0..1023",
     "ordinal of the device among those of its back end"},
    {Setting::threads, "threads", "QTURN_THREADS", "0", Kind::count, "0..4096",
     "CPU workers, the calling thread included; 0: as many as the process may use"},
    {Setting::target, "target", "QTURN_TARGET", "", Kind::text, "",
     "what kernels are compiled for (x86-64-v3, sm_90a, gfx950, ...); empty: what the machine has"},
    {Setting::on_miss, "on_miss", "QTURN_ON_MISS", "heuristic", Kind::choice,
     "heuristic|background|error",
     "what prepare does for a problem that nobody tuned: compile the analytic default, do that in "
     "the background, or fail"},
    {Setting::no_jit, "no_jit", "QTURN_NO_JIT", "0", Kind::choice, "0|1",
     "1: no compiler is started; stored code and prebuilt kernels serve"},
    {Setting::disable, "disable", "QTURN_DISABLE", "", Kind::list, "",
     "kernel families or back ends that are not used: cpu_gemm:cuda"},
    {Setting::cache_dir, "cache_dir", "QTURN_CACHE_DIR", "", Kind::text, "",
     "folder of the tuning database and compiled code; empty: quarterturn in the user's cache"},
    {Setting::database, "database", "QTURN_DATABASE", "", Kind::text, "",
     "path of the tuning database; empty: in cache_dir"},
    {Setting::code_cache, "code_cache", "QTURN_CODE_CACHE", "", Kind::text, "",
     "folder of compiled code; empty: beside the database"},
    {Setting::snapshots, "snapshots", "QTURN_SNAPSHOTS", "", Kind::list, "",
     "read-only tuning databases, or folders of published ones, consulted in this order after the "
     "local one"},
    {Setting::snapshot_keys, "snapshot_keys", "QTURN_SNAPSHOT_KEYS", "", Kind::list, "",
     "public keys (64 hex digits) of those whose snapshots are served; empty: anybody's"},
    {Setting::bundle, "bundle", "QTURN_BUNDLE", "", Kind::text, "",
     "folder of `qturn bundle`: its answers come last, its code is used before compiling; with "
     "no_jit nothing else is opened or written"},
    {Setting::pins, "pins", "QTURN_PINS", "", Kind::text, "",
     "file of plans that are served whatever the databases say"},
    {Setting::data_profile, "data_profile", "QTURN_DATA_PROFILE", "", Kind::text, "",
     "answers that were tuned with this data come first: captured:..., as `qturn tune --data` "
     "says"},
    {Setting::lock, "lock", "QTURN_LOCK", "", Kind::text, "",
     "file of `qturn lock write`: what it does not name is not prepared"},
    {Setting::cxx, "cxx", "QTURN_CXX", "", Kind::text, "",
     "C++ compiler command for CPU kernels; empty: $CXX, c++, g++, clang++"},
    {Setting::worker, "worker", "QTURN_WORKER", "", Kind::text, "",
     "path of quarterturn-worker; empty: beside the library"},
    {Setting::unproven, "unproven", "QTURN_UNPROVEN", "admit", Kind::choice, "admit|refuse|serve",
     "kernel families that have not run on such a device: prove each once, in a child process, "
     "before it serves; do without them; or serve them as they are"},
    {Setting::prover, "prover", "QTURN_PROVER", "", Kind::text, "",
     "path of quarterturn-trial, which proves families; empty: beside the library"},
    {Setting::proof_seconds, "proof_seconds", "QTURN_PROOF_SECONDS", "120", Kind::count, "1..86400",
     "time limit of one proof"},
    {Setting::compile_seconds, "compile_seconds", "QTURN_COMPILE_SECONDS", "120", Kind::count,
     "1..86400", "time limit of one compilation"},
    {Setting::compile_memory_mib, "compile_memory_mib", "QTURN_COMPILE_MEMORY_MIB", "4096",
     Kind::count, "64..1048576", "memory limit of one compilation"},
    {Setting::cuda_driver, "cuda_driver", "QTURN_CUDA_DRIVER", "", Kind::text, "",
     "path of libcuda; empty: found by the loader or in the usual folders"},
    {Setting::nvrtc, "nvrtc", "QTURN_NVRTC", "", Kind::text, "",
     "path of libnvrtc; empty: found by the loader or in the toolkit's usual folders"},
    {Setting::hip_runtime, "hip_runtime", "QTURN_HIP_RUNTIME", "", Kind::text, "",
     "path of libamdhip64; empty: found by the loader or in /opt/rocm"},
    {Setting::hiprtc, "hiprtc", "QTURN_HIPRTC", "", Kind::text, "",
     "path of libhiprtc; empty: found by the loader or in /opt/rocm"},
    {Setting::hip_clang, "hip_clang", "QTURN_HIP_CLANG", "", Kind::text, "",
     "clang for AMD GPUs, used in place of hipRTC; empty: ROCm's or clang-22, where hipRTC is not"},
    {Setting::simulators, "simulators", "QTURN_SIMULATORS", "", Kind::list, "",
     "libraries with simulated devices, of which --device simulated:gfx950 takes one; our tests "
     "build them"},
    {Setting::log, "log", "QTURN_LOG", "", Kind::choice, "|error|warning|info|debug",
     "what is logged; empty: what the program asks for"},
    {Setting::dump, "dump", "QTURN_DUMP", "", Kind::text, "",
     "folder that gets every compiled source with its command and log"},
}};

bool parse_count(std::string_view text, std::int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Empty when `text` is a value of this setting; else what is allowed.
std::string refuse(const SettingSpec& spec, std::string_view text) {
  if (spec.kind == Kind::choice) {
    for (std::string_view rest = spec.allowed;;) {
      const auto bar = rest.find('|');
      if (rest.substr(0, bar) == text) return {};
      if (bar == std::string_view::npos) break;
      rest.remove_prefix(bar + 1);
    }
    std::string allowed;
    for (const char c : spec.allowed)
      allowed += c == '|' ? std::string(allowed.empty() ? "" : ", ") : std::string(1, c);
    return fmt::format("one of {} is allowed", allowed);
  }
  if (spec.kind == Kind::count) {
    const auto dots = spec.allowed.find("..");
    std::int64_t low = 0, high = 0, value = 0;
    parse_count(spec.allowed.substr(0, dots), low);
    parse_count(spec.allowed.substr(dots + 2), high);
    if (!parse_count(text, value) || value < low || value > high)
      return fmt::format("a whole number of {} to {} is allowed", low, high);
  }
  return {};
}

// The text of a JSON value as a variable would spell it.
std::optional<std::string> text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (value.is_number_integer()) return fmt::format("{}", value.get<std::int64_t>());
  if (!value.is_array()) return std::nullopt;
  std::string out;
  for (const auto& part : value) {
    if (!part.is_string()) return std::nullopt;
    out += (out.empty() ? "" : ":") + part.get<std::string>();
  }
  return out;
}

std::string user_file(const Surroundings& surroundings) {
  if (const auto folder = surroundings.variable("XDG_CONFIG_HOME");
      folder && !folder->empty() && folder->front() == '/')
    return *folder + "/quarterturn/config.json";
  auto home = surroundings.variable("HOME");
  if (!home || home->empty()) home = surroundings.account_home();
  if (!home || home->empty()) return {};
  return *home + "/.config/quarterturn/config.json";
}

}  // namespace

std::span<const SettingSpec, kSettings> setting_specs() { return kSpecs; }

std::string_view setting_origin_name(SettingOrigin origin) {
  switch (origin) {
    case SettingOrigin::standard:
      return "default";
    case SettingOrigin::site_file:
      return "site file";
    case SettingOrigin::user_file:
      return "user file";
    case SettingOrigin::environment:
      return "environment";
    case SettingOrigin::option:
      return "option";
  }
  return "?";
}

void Settings::take(const SettingSpec& spec, SettingOrigin origin, const std::string& place,
                    const std::string& text) {
  auto& value = values_[static_cast<std::size_t>(spec.id)];
  if (const auto reason = refuse(spec, text); !reason.empty()) {
    problems_.push_back(fmt::format("{} = '{}' ({}): {}; '{}' holds instead ({})", spec.name, text,
                                    place, reason, value.text, setting_origin_name(value.origin)));
    return;
  }
  value = {text, origin, place};
}

void Settings::read_file(const std::string& path, SettingOrigin origin) {
  struct stat state {};
  if (path.empty() || ::stat(path.c_str(), &state) != 0) return;
  // It may name a compiler to run, so it must be as trustworthy as the program itself.
  if ((state.st_mode & (S_IWGRP | S_IWOTH)) != 0 ||
      (state.st_uid != 0 && state.st_uid != ::geteuid())) {
    problems_.push_back(fmt::format(
        "{} is not read: it must belong to you or to root and be writable by nobody else", path));
    return;
  }
  const auto whole = read_whole_file(path);
  const auto json = nlohmann::json::parse(whole.ok() ? *whole : "", nullptr, false, true);
  if (json.is_discarded() || !json.is_object()) {
    problems_.push_back(fmt::format(
        "{} cannot be read: it must hold one JSON object, such as {{\"threads\": 4}}", path));
    return;
  }
  for (const auto& [name, given] : json.items()) {
    const SettingSpec* spec = nullptr;
    for (const auto& each : kSpecs)
      if (each.name == name) spec = &each;
    const auto text = text_of(given);
    if (!spec)
      problems_.push_back(fmt::format("{}: no setting is called '{}'", path, name));
    else if (!text)
      problems_.push_back(
          fmt::format("{}: {} must be a text, a number or a list of texts", path, name));
    else
      take(*spec, origin, path, *text);
  }
}

Settings Settings::load(const SettingSources& sources) {
  Settings out;
  out.surroundings_ = sources.surroundings;
  for (std::size_t i = 0; i < kSettings; ++i)
    out.values_[i] = {std::string(kSpecs[i].standard), SettingOrigin::standard, {}};
  out.read_file(sources.site_file, SettingOrigin::site_file);
  out.read_file(user_file(sources.surroundings), SettingOrigin::user_file);
  for (const auto& spec : kSpecs) {
    const std::string variable(spec.variable);
    // An empty variable counts as unset, as shells make it hard to tell them apart.
    if (const auto value = sources.surroundings.variable(variable); value && !value->empty())
      out.take(spec, SettingOrigin::environment, variable, *value);
  }
  for (const auto& [id, text] : sources.options)
    out.take(kSpecs[static_cast<std::size_t>(id)], SettingOrigin::option, "option", text);
  return out;
}

std::int64_t Settings::count(Setting setting) const {
  std::int64_t out = 0;
  parse_count(text(setting), out);
  return out;
}

std::vector<std::string> Settings::list(Setting setting) const {
  std::vector<std::string> out;
  for (std::string_view rest = text(setting); !rest.empty();) {
    // A comma is what people write for names, a colon for paths.
    const auto end = rest.find_first_of(setting == Setting::disable ? ":," : ":");
    if (const auto part = rest.substr(0, end); !part.empty()) out.emplace_back(part);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  }
  return out;
}

bool Settings::lists(Setting setting, std::string_view word) const {
  for (const auto& part : list(setting))
    if (part == word) return true;
  return false;
}

Result<Locations> Settings::locations() const {
  Surroundings surroundings = surroundings_;
  surroundings.variable = [this](const std::string& name) -> std::optional<std::string> {
    if (name != "QTURN_CACHE_DIR") return surroundings_.variable(name);
    const auto& value = text(Setting::cache_dir);
    return value.empty() ? std::nullopt : std::optional(value);
  };
  return locate({text(Setting::database), text(Setting::code_cache)}, surroundings);
}

}  // namespace quarterturn
