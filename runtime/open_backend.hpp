// Opens the back end that the settings name, over a code store.
#pragma once

#include <memory>

#include "cache/code_store.hpp"
#include "runtime/backend.hpp"
#include "runtime/settings.hpp"
#include "runtime/worker.hpp"

namespace quarterturn {

/// `auto` takes the first GPU back end that has a device and is not disabled, else the CPU. Where
/// no target is set, a CPU takes the best of `targets` that it can run; with none, its own.
Result<std::unique_ptr<Backend>> open_backend(const Settings& settings,
                                              std::shared_ptr<CodeStore> store,
                                              const std::vector<std::string>& targets = {});

/// The limits of one compilation, and the worker that keeps them.
WorkerLimits compile_limits(const Settings& settings);

}  // namespace quarterturn
