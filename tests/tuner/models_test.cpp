// Model names and config.json files as people really give them.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tuner/models.hpp"

using namespace quarterturn;

namespace {

const char* const kLlama =
    R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
  "num_key_value_heads": 8, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256})";

std::string error_of(std::string_view text) {
  return parse_config(text, "config.json").status().message();
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("bundled models are found in any case, with or without an owner") {
  CHECK(bundled_models().size() == 5);
  for (const auto* name :
       {"Llama-3.1-8B", "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "LLAMA-3.1-8B"}) {
    const auto model = find_model(name);
    REQUIRE_MESSAGE(model.ok(), name);
    CHECK(model->hidden == 4096);
    CHECK(model->intermediate == 14336);
    CHECK(model->head_dim == 128);
  }
  CHECK(find_model("Qwen2.5-0.5B")->head_dim == 64);
  const auto experts = find_model("gpt-oss-20b");
  CHECK(experts->experts == 32);
  CHECK(experts->intermediate == 0);
  CHECK(experts->expert_intermediate == 2880);
  CHECK(experts->head_dim == 64);
}

TEST_CASE("an unknown model gets the list and the nearest name") {
  const auto status = find_model("qwen2.5-0.5").status();
  CHECK(status.code() == Code::unknown_name);
  CHECK(says(status.message(), "did you mean Qwen2.5-0.5B"));
  CHECK(says(status.message(), "gpt-oss-20b"));
  const auto far = find_model("zzzzzzzzzzzzzzzz").status();
  CHECK(says(far.message(), "Bundled: Llama-3.1-8B"));
  CHECK(!says(far.message(), "did you mean"));
}

TEST_CASE("config.json: sizes are read, nested ones too") {
  const auto plain = parse_config(kLlama, "c");
  REQUIRE_MESSAGE(plain.ok(), plain.status().message());
  CHECK(plain->head_dim == 128);
  const auto nested =
      parse_config(std::string(R"({"model_type": "llava", "text_config": )") + kLlama + "}", "c");
  REQUIRE_MESSAGE(nested.ok(), nested.status().message());
  CHECK(*nested == *plain);
  const auto no_kv = parse_config(replaced(kLlama, "\"num_key_value_heads\": 8,", ""), "c");
  CHECK(no_kv->kv_heads == 32);
  const auto null_kv = parse_config(replaced(kLlama, "heads\": 8", "heads\": null"), "c");
  CHECK(null_kv->kv_heads == 32);
}

TEST_CASE("config.json: what is wrong is named by file and field") {
  CHECK(says(error_of("{"), "config.json is not JSON"));
  CHECK(says(error_of(""), "config.json is not JSON"));
  CHECK(says(error_of("[1, 2]"), "one JSON object"));
  CHECK(says(error_of("{}"), "'model_type' is missing"));
  CHECK(says(error_of(replaced(kLlama, "hidden_size", "hidden")),
             "config.json: field 'hidden_size' is missing"));
  CHECK(says(error_of(replaced(kLlama, "4096", "-4096")), "field 'hidden_size' is -4096"));
  CHECK(says(error_of(replaced(kLlama, "4096", "0")), "field 'hidden_size' is 0"));
  CHECK(says(error_of(replaced(kLlama, "4096", "4096.5")), "field 'hidden_size' is 4096.5"));
  CHECK(says(error_of(replaced(kLlama, "4096", "\"big\"")), "field 'hidden_size' is \"big\""));
  CHECK(says(error_of(replaced(kLlama, "4096", "99999999999999999999")), "field 'hidden_size'"));
  CHECK(says(error_of(replaced(kLlama, "heads\": 32", "heads\": 31")), "head_dim"));
  CHECK(says(error_of(replaced(kLlama, "heads\": 8", "heads\": 5")),
             "not a multiple of num_key_value_heads 5"));
  const auto other =
      parse_config(replaced(kLlama, "\"llama\"", "\"deepseek_v3\""), "config.json").status();
  CHECK(other.code() == Code::unknown_name);
  CHECK(says(other.message(), "deepseek_v3"));
  CHECK(says(other.message(), "--shape"));
}

TEST_CASE("paths: a file, a folder, a missing file, a folder without the file") {
  namespace fs = std::filesystem;
  char pattern[] = "/tmp/qturn-models-XXXXXX";
  REQUIRE(mkdtemp(pattern) != nullptr);
  const fs::path folder(pattern);
  CHECK(says(find_model(folder.string()).status().message(), "holds no config.json"));
  CHECK(says(find_model((folder / "none.json").string()).status().message(), "cannot read"));
  std::ofstream(folder / "config.json") << kLlama;
  CHECK(find_model(folder.string()).ok());
  CHECK(find_model((folder / "config.json").string())->hidden == 4096);
  fs::create_directory(folder / "dir.json");
  CHECK(!find_model((folder / "dir.json").string()).ok());
  fs::remove_all(folder);
}
