// The library's version as text; qturn.h holds the numbers.
#pragma once

#include <string_view>

#include "runtime/include/quarterturn/qturn.h"

namespace quarterturn {

#define QTURN_TEXT_OF(x) #x
#define QTURN_VERSION_TEXT(major, minor, patch) \
  QTURN_TEXT_OF(major) "." QTURN_TEXT_OF(minor) "." QTURN_TEXT_OF(patch)
constexpr std::string_view kVersion =
    QTURN_VERSION_TEXT(QTURN_VERSION_MAJOR, QTURN_VERSION_MINOR, QTURN_VERSION_PATCH);
#undef QTURN_VERSION_TEXT
#undef QTURN_TEXT_OF

}  // namespace quarterturn
