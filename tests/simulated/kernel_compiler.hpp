// Kernel text to shared objects for the simulated machine, by the host compiler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn::simulated {

/// Which vendor's primitives stand in front of the text: "cuda" reads simulated/cuda.h.
enum class Dialect { cuda, hip };

/// The shared object (its bytes) of flattened kernel text. Every `extern "C" __global__` function
/// of it is exported as an Entry. Objects are kept in a folder of the build (QTURN_SIMULATED_CACHE
/// names another), by the content of text, headers and flags. `compile_failed` holds the compiler's
/// first errors. Thread-safe.
Result<std::string> compile_kernel(std::string_view text, Dialect dialect,
                                   const std::vector<std::string>& flags = {});

/// Where the object of bytes such as compile_kernel's ends, for interfaces that give no size.
std::size_t object_size(const void* object);

/// Loads an object of its own, counters and all. Null with the reason in `why`.
void* load_object(const void* object, std::string& why);

}  // namespace quarterturn::simulated
