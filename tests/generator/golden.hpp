// Golden files: emitted text compared byte for byte, so that a change of it is seen and meant.
// QTURN_UPDATE_GOLDEN=1 rewrites them.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace quarterturn::golden {

inline void check(const std::string& name, const std::string& text) {
  const std::string path = QTURN_SOURCE_DIR "/tests/generator/golden/" + name;
  if (const char* update = std::getenv("QTURN_UPDATE_GOLDEN"); update && *update == '1')
    std::ofstream(path, std::ios::binary) << text;
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path << " is missing: run with QTURN_UPDATE_GOLDEN=1");
  std::ostringstream stored;
  stored << file.rdbuf();
  CHECK_MESSAGE(stored.str() == text, path << " differs from what is emitted now:\n" << text);
}

}  // namespace quarterturn::golden
