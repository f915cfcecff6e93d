#include "generator/status.hpp"

namespace quarterturn {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::invalid_problem:
      return "invalid_problem";
    case Code::not_supported:
      return "not_supported";
    case Code::out_of_range:
      return "out_of_range";
    case Code::wrong_operand:
      return "wrong_operand";
    case Code::workspace_too_small:
      return "workspace_too_small";
    case Code::misaligned:
      return "misaligned";
    case Code::unknown_name:
      return "unknown_name";
    case Code::no_device:
      return "no_device";
    case Code::no_driver:
      return "no_driver";
    case Code::no_compiler:
      return "no_compiler";
    case Code::out_of_memory:
      return "out_of_memory";
    case Code::busy:
      return "busy";
    case Code::capturing:
      return "capturing";
    case Code::interrupted:
      return "interrupted";
    case Code::launch_failed:
      return "launch_failed";
    case Code::compile_failed:
      return "compile_failed";
    case Code::compile_timeout:
      return "compile_timeout";
    case Code::rejected:
      return "rejected";
    case Code::quarantined:
      return "quarantined";
    case Code::unproven:
      return "unproven";
    case Code::miss:
      return "miss";
    case Code::not_ours:
      return "not_ours";
    case Code::newer_version:
      return "newer_version";
    case Code::damaged:
      return "damaged";
    case Code::io_error:
      return "io_error";
    case Code::read_only:
      return "read_only";
    case Code::disk_full:
      return "disk_full";
    case Code::network_filesystem:
      return "network_filesystem";
    case Code::not_locked:
      return "not_locked";
    case Code::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace quarterturn
