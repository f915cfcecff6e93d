// The kernel texts under templates/, embedded at build time under their path below that folder.
#pragma once

#include <span>
#include <string_view>

namespace quarterturn::templates {

struct Text {
  std::string_view path;  ///< "mxfp4/e2m1.h"
  std::string_view text;
};

/// Every embedded text, sorted by path.
std::span<const Text> all();

}  // namespace quarterturn::templates
