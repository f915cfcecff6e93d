// CodeFile: one entry of the code store as bytes: code, JSON text, footer.
//
//   code | json | json length, 8 bytes little-endian | SHA-256 of all before | "QTCODE01"
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cache/code_store.hpp"

namespace quarterturn::code_file {

/// What follows the code in its file.
std::string trailer(const CodeKey& key, const CodeInfo& info, std::string_view code);

/// Takes an entry apart; empty when it is cut short, altered, or belongs to another key. `path` and
/// `origin` are the caller's to fill in.
std::optional<CodeEntry> parse(std::string_view bytes, const CodeKey& key);

}  // namespace quarterturn::code_file
