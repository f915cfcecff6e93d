// What an AMD code object says of its kernels: the msgpack note that every compiler for amdhsa
// writes, read without LLVM (LLVM, User Guide for AMDGPU Backend, "Code Object V3 Metadata").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn::hip {

struct KernelNote {
  std::string name;
  std::int64_t vector_registers = 0;  ///< of a lane, accumulation registers included
  std::int64_t accumulation_registers = 0;
  std::int64_t scalar_registers = 0;
  std::int64_t vector_spills = 0, scalar_spills = 0;  ///< registers
  std::int64_t lds_bytes = 0;                         ///< static
  std::int64_t scratch_bytes = 0;  ///< of a lane: spills and arrays that are no registers
  std::int64_t wave = 0;           ///< lanes of a wavefront
};

struct CodeObject {
  std::string target;  ///< "amdgcn-amd-amdhsa--gfx950"
  std::vector<KernelNote> kernels;
  const KernelNote* find(std::string_view name) const;
};

/// Reads the notes of an ELF64 code object; what follows the ELF's own bytes is ignored. An error
/// for anything that is no code object, whatever its bytes.
Result<CodeObject> read_code_object(std::string_view bytes);

}  // namespace quarterturn::hip
