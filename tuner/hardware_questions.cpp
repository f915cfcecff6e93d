#include "tuner/hardware_questions.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "generator/family.hpp"
#include "reference/quantize.hpp"
#include "tuner/memory.hpp"
#include "tuner/trial_process.hpp"

namespace quarterturn {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kSeconds = 120;

std::string hex_words(const std::vector<std::uint32_t>& words) {
  std::string out;
  out.reserve(8 * words.size());
  for (const auto word : words) out += fmt::format("{:08x}", word);
  return out;
}

std::vector<std::uint32_t> words_of(std::string_view hex) {
  std::vector<std::uint32_t> out(hex.size() / 8);
  for (std::size_t i = 0; i < out.size(); ++i)
    std::from_chars(hex.data() + 8 * i, hex.data() + 8 * i + 8, out[i], 16);
  return out;
}

// The chip's own target, which alone has cvt.rs.
std::string target_for(const std::string& target) {
  if (target == "sm_100f" || target == "sm_103f") return target.substr(0, 6) + "a";
  return target;
}

Result<std::vector<std::uint32_t>> run(Backend& backend, const RoundingProbe& probe) {
  auto binary = backend.compile(probe.source);
  if (!binary.ok()) return binary.status();
  auto kernel = backend.load(*binary, probe.source);
  if (!kernel.ok()) return kernel.status();
  const auto* bytes = reinterpret_cast<const unsigned char*>(probe.inputs.data());
  auto inputs = Memory::of(backend, {bytes, bytes + probe.inputs.size() * 4});
  if (!inputs.ok()) return inputs.status();
  const std::size_t count = std::size_t{probe.records()} * probe.result_words;
  auto results = Memory::allocate(backend, static_cast<std::int64_t>(count * 4));
  if (!results.ok()) return results.status();
  qt_args args{};
  args.m = probe.records();
  args.batch = args.groups = 1;
  args.a.data = inputs->data();
  args.d.data = results->data();
  Launch launch;
  launch.grid[0] = (probe.records() + probe.threads - 1) / probe.threads;
  launch.block[0] = probe.threads;
  const bool entered = backend.enter();
  const Status started = backend.launch(**kernel, launch, args, nullptr);
  if (entered) backend.leave();
  if (!started.ok()) return started;
  if (auto status = backend.synchronize(); !status.ok()) return status;
  auto read = results->read();
  if (!read.ok()) return read.status();
  std::vector<std::uint32_t> out(count);
  std::memcpy(out.data(), read->data(), count * 4);
  return out;
}

// What the results say of each random bit: "bit": w where it adds 2^-w of a step.
ordered_json weights_json(const RoundingProbe& probe, const std::vector<std::uint32_t>& results) {
  const auto all = weights_of(probe, results);
  constexpr const char* four[] = {"a", "b", "e", "f"};
  constexpr const char* two[] = {"x", "y"};
  ordered_json out;
  for (std::uint32_t element = 0; element < probe.elements; ++element) {
    ordered_json of = ordered_json::object();
    for (int bit = 31; bit >= 0; --bit)
      if (const int w = all[element][static_cast<std::size_t>(bit)]; w > 0)
        of[fmt::format("{}", bit)] = w;
    if (all[element][32] > 0) of["always"] = all[element][32];
    out[probe.elements == 4 ? four[element] : two[element]] = std::move(of);
  }
  return out;
}

float float_at(const RoundingProbe& probe, std::uint32_t record, std::uint32_t word) {
  return std::bit_cast<float>(probe.inputs[record * RoundingProbe::kRecordWords + word]);
}

// What the reference says of an element, where quantisers would ask: of finite values under
// scale 1.
std::optional<std::uint32_t> wanted_code(const RoundingProbe& probe, reference::Rounding rounding,
                                         std::uint32_t record, std::uint32_t element) {
  const bool four = probe.elements == 4;
  const float x = float_at(probe, record, element);
  if (!std::isfinite(x) || (!four && float_at(probe, record, 3) != 1.0f)) return {};
  const auto word = probe.inputs[record * RoundingProbe::kRecordWords + (four ? 4 : 2)];
  // The reference counts neighbours from the lowest code on, where operand f stands.
  const auto index = four ? 3 - element : element;
  return reference::encode(x, rounding, reference::draw_of_instruction(rounding, word, index));
}

Status compare_instruction(const RoundingProbe& probe, Rounding rounding,
                           const std::vector<std::uint32_t>& results) {
  const auto as = static_cast<reference::Rounding>(rounding);
  for (std::uint32_t record = 0; record < probe.records(); ++record)
    for (std::uint32_t element = 0; element < probe.elements; ++element) {
      const auto wanted = wanted_code(probe, as, record, element);
      const auto got = probe.code(results, record, element);
      if (!wanted || *wanted == got) continue;
      const auto word =
          probe.inputs[record * RoundingProbe::kRecordWords + (probe.elements == 4 ? 4 : 2)];
      return Status(
          Code::rejected,
          fmt::format("{} takes element {} = {} under random bits {:08x} to code {}, where the "
                      "documents give {}: rounding {} is not what its reference says here. `qturn "
                      "selftest --questions` writes down what each bit does; please send it",
                      probe.name, element, float_at(probe, record, element), word, got, *wanted,
                      name_of(rounding)));
    }
  return {};
}

}  // namespace

Status check_instructions(Backend& backend, const Plan& plan) {
  for (const auto& step : plan.steps) {
    const Family* family = find_family(step.variant.family);
    const auto rounding = family ? family->hardware_rounding() : std::nullopt;
    if (!rounding) continue;
    const auto probe = rounding_probe(backend.device().target);
    if (!probe)
      return Status(Code::not_supported, refuse_rounding(*rounding, backend.device().target));
    const auto results = run(backend, *probe);
    if (!results.ok()) return results.status();
    if (auto status = compare_instruction(*probe, *rounding, *results); !status.ok()) return status;
  }
  return {};
}

ordered_json ask_hardware(const std::string& program, const Worker& worker,
                          std::map<std::string, std::string> settings, const std::string& target) {
  const auto parsed = parse_target(target_for(target));
  const auto probe = parsed.ok() ? rounding_probe(*parsed) : std::nullopt;
  if (!probe) return ordered_json::array();
  settings["target"] = parsed->key();
  ordered_json out{{"name", probe->name},
                   {"question", probe->question},
                   {"target", parsed->key()},
                   {"record_words", RoundingProbe::kRecordWords},
                   {"result_words", probe->result_words},
                   {"inputs", hex_words(probe->inputs)}};
  WorkerCommand command;
  command.arguments = {program, "probe",
                       nlohmann::json{{"settings", settings}}.dump(
                           -1, ' ', true, nlohmann::json::error_handler_t::replace)};
  command.limits = {kSeconds, 0, 0};
  const auto report = worker.run(command);
  out["state"] = !report.ok() ? report.status().message() : report->ending(command.limits);
  std::istringstream lines(report.ok() ? report->output : std::string());
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) continue;
    const auto results = words_of(line.value("results", std::string()));
    if (results.size() != std::size_t{probe->records()} * probe->result_words) {
      out["state"] = line.value("message", std::string("results are missing"));
      continue;
    }
    out["state"] = "answered";
    out["results"] = hex_words(results);
    out["weights"] = weights_json(*probe, results);
  }
  return ordered_json::array({std::move(out)});
}

int answer_questions(const std::string& request, int out) {
  nlohmann::json answer;
  try {
    const auto what = nlohmann::json::parse(request);
    auto backend = open_trial_backend(what.at("settings"));
    const auto probe = backend.ok() ? rounding_probe((*backend)->device().target) : std::nullopt;
    Result<std::vector<std::uint32_t>> results =
        !backend.ok() ? backend.status()
        : probe       ? run(**backend, *probe)
                      : Status(Code::not_supported, "this device is asked nothing");
    if (results.ok())
      answer["results"] = hex_words(*results);
    else
      answer["message"] = results.status().message();
  } catch (const nlohmann::json::exception& error) {
    answer["message"] = error.what();
  }
  const auto text = answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  return write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
}

}  // namespace quarterturn
