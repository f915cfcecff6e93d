// Models: where the sizes of real linear layers come from, a bundled list or a model's config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

/// The sizes of a decoder-only transformer that decide its matrix products.
struct Model {
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate = 0;  ///< of the dense MLP; 0 when every MLP consists of experts
  std::int64_t layers = 0;
  std::int64_t vocabulary = 0;
  std::int64_t experts = 0;  ///< of one layer; 0 in dense models
  std::int64_t experts_per_token = 0;
  std::int64_t expert_intermediate = 0;
  std::int64_t shared_intermediate = 0;  ///< of the expert that every token passes; 0 = none

  bool operator==(const Model&) const = default;
};

/// The models that need no file.
const std::vector<Model>& bundled_models();

/// `name_or_path`: a bundled model in any case, with or without its owner ("Qwen/Qwen3-8B"), or the
/// path of a config.json or of the folder that holds one. An unknown name gets the list and the
/// nearest names.
Result<Model> find_model(const std::string& name_or_path);

/// Reads the text of a Hugging Face config.json; `name` is what messages call it. Sizes nested in
/// "text_config" or "llm_config" (multimodal models) are found.
Result<Model> parse_config(std::string_view text, const std::string& name);

/// Single-character edits between two names, without regard to case.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace quarterturn
