#include "tuner/models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tuner/embedded.hpp"

namespace quarterturn {
namespace {

using nlohmann::json;

// A config.json larger than this is something else.
constexpr std::uintmax_t kMostBytes = 4u << 20;
// Sizes beyond this are typing errors; products of two of them still fit 64 bits.
constexpr std::int64_t kMostSize = std::int64_t{1} << 30;

// Architectures whose decoder layers are the linear layers of layers.hpp: attention with query, key
// and value projections, and a gated MLP. `experts` says where the numbers of a mixture of experts
// are.
enum class Experts { none, all_layers, beside_shared };
struct Architecture {
  std::string_view model_type;
  Experts experts;
};
constexpr Architecture kArchitectures[] = {
    {"llama", Experts::none},           {"mistral", Experts::none},
    {"qwen2", Experts::none},           {"qwen3", Experts::none},
    {"gemma", Experts::none},           {"gemma2", Experts::none},
    {"gemma3_text", Experts::none},     {"phi3", Experts::none},
    {"olmo2", Experts::none},           {"granite", Experts::none},
    {"mixtral", Experts::all_layers},   {"gpt_oss", Experts::all_layers},
    {"qwen3_moe", Experts::all_layers}, {"qwen2_moe", Experts::beside_shared},
};

const Architecture* find_architecture(std::string_view model_type) {
  for (const auto& known : kArchitectures)
    if (known.model_type == model_type) return &known;
  return nullptr;
}

std::string known_architectures() {
  std::vector<std::string_view> names;
  for (const auto& known : kArchitectures) names.push_back(known.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Reads sizes from one JSON object and remembers the first thing that is wrong.
class Reader {
 public:
  Reader(const json& object, std::string name) : object_(object), name_(std::move(name)) {}

  std::int64_t required(std::initializer_list<const char*> fields) {
    if (const auto found = optional(fields, -1); found >= 0 || !status_.ok()) return found;
    return fail(fmt::format("{}: field '{}' is missing", name_,
                            fmt::join(std::vector<const char*>(fields), "' or '")));
  }

  std::int64_t optional(std::initializer_list<const char*> fields, std::int64_t fallback) {
    for (const char* field : fields) {
      const auto at = object_.find(field);
      if (at == object_.end() || at->is_null()) continue;
      if (!at->is_number_integer() || at->get<double>() < 1 ||
          at->get<double>() > static_cast<double>(kMostSize))
        return fail(fmt::format("{}: field '{}' is {}: it must be a whole number from 1 to {}",
                                name_, field, shortened(*at), kMostSize));
      return at->get<std::int64_t>();
    }
    return fallback;
  }

  std::int64_t fail(std::string message) {
    if (status_.ok()) status_ = Status(Code::invalid_argument, std::move(message));
    return 1;
  }
  const Status& status() const { return status_; }

 private:
  static std::string shortened(const json& value) {
    auto text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 37) + "...";
    return text;
  }

  const json& object_;
  std::string name_;
  Status status_;
};

// Multimodal models keep their language model's sizes one level down.
const json& language_part(const json& config) {
  for (const char* field : {"text_config", "llm_config", "language_config"}) {
    const auto at = config.find(field);
    if (at != config.end() && at->is_object() && !config.contains("hidden_size")) return *at;
  }
  return config;
}

std::string model_type_of(const json& part, const json& config) {
  for (const json* object : {&part, &config}) {
    const auto at = object->find("model_type");
    if (at != object->end() && at->is_string()) return at->get<std::string>();
  }
  return {};
}

Result<Model> model_from(const json& config, const std::string& name) {
  if (!config.is_object())
    return Status(Code::invalid_argument,
                  fmt::format("{}: a model's config.json holds one JSON object", name));
  const json& part = language_part(config);
  const auto model_type = model_type_of(part, config);
  if (model_type.empty())
    return Status(Code::invalid_argument,
                  fmt::format("{}: field 'model_type' is missing; it says how the layers are built "
                              "(known: {})",
                              name, known_architectures()));
  const auto* architecture = find_architecture(model_type);
  if (!architecture)
    return Status(
        Code::unknown_name,
        fmt::format("{}: model_type '{}' is not known, so its linear layers cannot be derived "
                    "from its sizes. Known: {}. For others, give each layer as --shape MxNxK",
                    name, model_type, known_architectures()));
  Reader read(part, name);
  Model model;
  model.name = name;
  model.hidden = read.required({"hidden_size"});
  model.heads = read.required({"num_attention_heads"});
  model.kv_heads = read.optional({"num_key_value_heads"}, model.heads);
  model.layers = read.required({"num_hidden_layers"});
  model.vocabulary = read.required({"vocab_size"});
  model.head_dim = read.optional({"head_dim"}, 0);
  if (read.status().ok() && model.head_dim == 0) {
    if (model.hidden % model.heads != 0)
      read.fail(
          fmt::format("{}: field 'head_dim' is missing, and hidden_size {} is not a multiple of "
                      "num_attention_heads {}",
                      name, model.hidden, model.heads));
    model.head_dim = model.hidden / model.heads;
  }
  if (read.status().ok() && model.heads % model.kv_heads != 0)
    read.fail(fmt::format("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
                          name, model.heads, model.kv_heads));
  if (architecture->experts == Experts::none) {
    model.intermediate = read.required({"intermediate_size"});
  } else {
    model.experts = read.required({"num_local_experts", "num_experts"});
    model.experts_per_token = read.required({"num_experts_per_tok", "experts_per_token"});
    model.expert_intermediate = read.required({"moe_intermediate_size", "intermediate_size"});
    if (architecture->experts == Experts::beside_shared)
      model.shared_intermediate = read.required({"shared_expert_intermediate_size"});
    if (read.status().ok() && model.experts_per_token > model.experts)
      read.fail(fmt::format("{}: a token cannot pass {} of {} experts", name,
                            model.experts_per_token, model.experts));
  }
  if (!read.status().ok()) return read.status();
  return model;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

Result<Model> read_config(const std::filesystem::path& path) {
  std::error_code error;
  if (const auto bytes = std::filesystem::file_size(path, error); error || bytes > kMostBytes) {
    if (error)
      return Status(Code::io_error,
                    fmt::format("cannot read {}: {}", path.string(), error.message()));
    return Status(Code::invalid_argument,
                  fmt::format("{} has {} bytes: a config.json has at most {}; is it another file?",
                              path.string(), bytes, kMostBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return Status(Code::io_error, fmt::format("cannot read {}: {}", path.string(),
                                              std::strerror(errno ? errno : EIO)));
  return parse_config(text.str(), path.string());
}

Status unknown_model(const std::string& name) {
  std::vector<std::pair<std::size_t, std::string>> near;
  std::vector<std::string> all;
  for (const auto& model : bundled_models()) {
    all.push_back(model.name);
    const auto distance = edit_distance(name, model.name);
    if (distance <= std::max(name.size(), model.name.size()) / 2)
      near.emplace_back(distance, model.name);
  }
  std::sort(near.begin(), near.end());
  std::string hint;
  for (std::size_t i = 0; i < near.size() && i < 2; ++i)
    hint += fmt::format("{} {}", i == 0 ? "; did you mean" : " or", near[i].second);
  return Status(
      Code::unknown_name,
      fmt::format("no model is called '{}'{}? Bundled: {}. Others: give the path of the model's "
                  "config.json",
                  name, hint, fmt::join(all, ", ")));
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::string x = lower(a), y = lower(b);
  std::vector<std::size_t> row(y.size() + 1);
  for (std::size_t j = 0; j <= y.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= x.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= y.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (x[i - 1] == y[j - 1] ? 0u : 1u)});
      diagonal = above;
    }
  }
  return row.back();
}

const std::vector<Model>& bundled_models() {
  static const auto models = [] {
    std::vector<Model> out;
    for (const auto& entry : json::parse(embedded_models()))
      out.push_back(*model_from(entry.at("config"), entry.at("name").get<std::string>()));
    return out;
  }();
  return models;
}

Result<Model> parse_config(std::string_view text, const std::string& name) {
  try {
    return model_from(json::parse(text), name);
  } catch (const json::exception& error) {
    return Status(Code::invalid_argument, fmt::format("{} is not JSON: {}", name, error.what()));
  }
}

Result<Model> find_model(const std::string& name_or_path) {
  namespace fs = std::filesystem;
  const fs::path path(name_or_path);
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (fs::exists(path / "config.json", error)) return read_config(path / "config.json");
    return Status(Code::io_error, fmt::format("the folder {} holds no config.json", name_or_path));
  }
  if (fs::exists(path, error) || path.extension() == ".json") return read_config(path);
  const auto slash = name_or_path.find_last_of('/');
  const auto wanted =
      lower(slash == std::string::npos ? name_or_path : name_or_path.substr(slash + 1));
  for (const auto& model : bundled_models())
    if (lower(model.name) == wanted) return model;
  return unknown_model(name_or_path);
}

}  // namespace quarterturn
