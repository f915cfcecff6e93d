// Questions that only hardware answers (generator/probe.hpp), asked in a process of their own, as
// an instruction that is not what it seems may end it.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "generator/probe.hpp"
#include "generator/variant.hpp"
#include "runtime/backend.hpp"
#include "runtime/worker.hpp"

namespace quarterturn {

/// The questions that a device of this target can answer: for each its words, the inputs and
/// results as hexadecimal words, and what they say; or why there are none. Where its own target
/// lacks the instruction, that of the chip is compiled for (sm_100a for sm_100f). An empty list: no
/// question.
nlohmann::ordered_json ask_hardware(const std::string& program, const Worker& worker,
                                    std::map<std::string, std::string> settings,
                                    const std::string& target);

/// Whether the instructions by which families of `plan` round do here what the reference has them
/// do, as far as those families use them; asked in the process at hand. `rejected`: which bit, or
/// which value, is other than that.
Status check_instructions(Backend& backend, const Plan& plan);

/// The other side: runs the probe of the device that `request` names, and says on `out` what came.
/// Returns the exit status.
int answer_questions(const std::string& request, int out);

}  // namespace quarterturn
