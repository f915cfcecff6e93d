// Data files of this folder, embedded at build time so that the installed command needs no files.
#pragma once

#include <string_view>

namespace quarterturn {

/// models.json: a list of {"name", "config"}, whose config has the fields of a Hugging Face
/// config.json.
std::string_view embedded_models();

}  // namespace quarterturn
