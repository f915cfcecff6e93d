#include "runtime/hip/code_object.hpp"

#include <elf.h>

#include <cstring>
#include <nlohmann/json.hpp>

namespace quarterturn::hip {
namespace {

constexpr unsigned kMetadataNote = 32;  // NT_AMDGPU_METADATA

Status damaged(const char* what) {
  return Status(Code::rejected, std::string("not an AMD code object: ") + what);
}

template <class T>
bool read_at(std::string_view bytes, std::uint64_t at, T& out) {
  if (at > bytes.size() || bytes.size() - at < sizeof out) return false;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return true;
}

// The metadata among a segment's notes; empty when there is none.
std::string_view metadata_in(std::string_view notes) {
  std::uint64_t at = 0;
  for (Elf64_Nhdr note; read_at(notes, at, note);) {
    const std::uint64_t name_at = at + sizeof note;
    const std::uint64_t value_at = name_at + (note.n_namesz + std::uint64_t{3}) / 4 * 4;
    if (value_at > notes.size() || notes.size() - value_at < note.n_descsz) return {};
    if (note.n_type == kMetadataNote && note.n_namesz == 7 &&
        std::memcmp(notes.data() + name_at, "AMDGPU", 7) == 0)
      return notes.substr(value_at, note.n_descsz);
    at = value_at + (note.n_descsz + std::uint64_t{3}) / 4 * 4;
  }
  return {};
}

Result<std::string_view> metadata_of(std::string_view bytes) {
  Elf64_Ehdr header;
  if (!read_at(bytes, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64)
    return damaged("no ELF64 header");
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (header.e_phoff > bytes.size() ||
        !read_at(bytes, header.e_phoff + i * sizeof segment, segment))
      return damaged("its program headers are cut short");
    if (segment.p_type != PT_NOTE || segment.p_offset > bytes.size() ||
        bytes.size() - segment.p_offset < segment.p_filesz)
      continue;
    if (const auto found = metadata_in(bytes.substr(segment.p_offset, segment.p_filesz));
        !found.empty())
      return found;
  }
  return damaged("it has no AMDGPU metadata");
}

std::int64_t number(const nlohmann::json& map, const char* name) {
  const auto found = map.find(name);
  return found != map.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

std::string text(const nlohmann::json& map, const char* name) {
  const auto found = map.find(name);
  return found != map.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

const KernelNote* CodeObject::find(std::string_view name) const {
  for (const auto& kernel : kernels)
    if (kernel.name == name) return &kernel;
  return nullptr;
}

Result<CodeObject> read_code_object(std::string_view bytes) {
  const auto metadata = metadata_of(bytes);
  if (!metadata.ok()) return metadata.status();
  const auto map = nlohmann::json::from_msgpack(metadata->begin(), metadata->end(), true, false);
  if (!map.is_object()) return damaged("its metadata is no map");
  CodeObject out;
  out.target = text(map, "amdhsa.target");
  const auto kernels = map.find("amdhsa.kernels");
  if (kernels == map.end() || !kernels->is_array()) return damaged("its metadata lists no kernels");
  for (const auto& kernel : *kernels) {
    if (!kernel.is_object()) return damaged("a kernel's metadata is no map");
    KernelNote note;
    note.name = text(kernel, ".name");
    note.vector_registers = number(kernel, ".vgpr_count");
    note.accumulation_registers = number(kernel, ".agpr_count");
    note.scalar_registers = number(kernel, ".sgpr_count");
    note.vector_spills = number(kernel, ".vgpr_spill_count");
    note.scalar_spills = number(kernel, ".sgpr_spill_count");
    note.lds_bytes = number(kernel, ".group_segment_fixed_size");
    note.scratch_bytes = number(kernel, ".private_segment_fixed_size");
    note.wave = number(kernel, ".wavefront_size");
    out.kernels.push_back(std::move(note));
  }
  return out;
}

}  // namespace quarterturn::hip
