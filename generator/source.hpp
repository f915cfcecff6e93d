// Source: generated text and everything a compiler must be told about it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/digest.hpp"
#include "generator/status.hpp"
#include "generator/target.hpp"

namespace quarterturn {

enum class Language { cxx, cuda, hip };

struct Source {
  Language language = Language::cxx;
  std::string
      entry;  ///< symbol of the kernel, `extern "C"`, same for every variant of a family and role
  std::string text;                ///< short and readable; includes kernel texts by their path
  std::vector<std::string> flags;  ///< beyond the target's own: none that change the arithmetic
  /// The kernel itself waits for the one before it in the stream before it touches memory, so that
  /// it may be started before that one has ended.
  bool waits = false;

  bool operator==(const Source&) const = default;
};

/// The text with every `#include "..."` of an embedded kernel text replaced by that text, once
/// each. This is what compilers get and what keys of stored code are made of.
Result<std::string> flatten(const Source& source);

/// SHA-256 over flattened text without comments, language, entry, flags and target: the name of the
/// code it becomes, before the compiler's identity is added.
Result<Digest> source_digest(const Source& source, const Target& target);

}  // namespace quarterturn
