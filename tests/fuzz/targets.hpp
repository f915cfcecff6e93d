// What is fuzzed: each function takes any bytes and must neither crash nor let them do harm. Run by
// libFuzzer (QTURN_FUZZ) and, over the stored corpora, by ordinary tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quarterturn::fuzz {

/// Bytes as a snapshot, as a local database that is mended, and as the source of a merge.
void database(const std::uint8_t* data, std::size_t size);
/// Bytes as the JSON text that `qturn db import` reads; what is taken comes out the same again.
void json(const std::uint8_t* data, std::size_t size);
/// Bytes as a configuration file.
void config(const std::uint8_t* data, std::size_t size);

}  // namespace quarterturn::fuzz
