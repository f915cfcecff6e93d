// Data files of this folder, embedded at build time so that the installed command needs no files.
#pragma once

#include <string_view>

namespace quarterturn {

/// models.json: a list of {"name", "config"}, whose config has the fields of a Hugging Face
/// config.json.
std::string_view embedded_models();

/// report.html: the page around a report, a style sheet, and {{title}} and {{body}} to be replaced.
std::string_view embedded_report();

}  // namespace quarterturn
