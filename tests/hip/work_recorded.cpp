// Launches that are written down and do nothing; code is real code objects.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/hip/device_work.hpp"

namespace qturn_test::work {
namespace {

struct Code {
  std::string image;
  std::vector<std::unique_ptr<std::string>> entries;
};

// As far as its section headers say.
std::size_t elf_bytes(const unsigned char* image) {
  std::uint64_t headers = 0;
  std::uint16_t size = 0, count = 0;
  std::memcpy(&headers, image + 40, 8);
  std::memcpy(&size, image + 58, 2);
  std::memcpy(&count, image + 60, 2);
  return headers + std::size_t{size} * count;
}

}  // namespace

Model model() { return {"AMD Instinct MI355X", 256, std::size_t{288} << 30}; }

void* allocate(std::size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xff, bytes);
  return memory;
}
void release(void* memory) { std::free(memory); }

void* load(const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes, "\177ELF", 4) != 0) return nullptr;
  return new Code{std::string(reinterpret_cast<const char*>(bytes), elf_bytes(bytes)), {}};
}
void unload(void* code) { delete static_cast<Code*>(code); }
void* entry(void* code, const char* name) {
  auto& all = *static_cast<Code*>(code);
  // Kernels have a descriptor under their name.
  if (all.image.find(std::string(name) + ".kd") == std::string::npos) return nullptr;
  all.entries.push_back(std::make_unique<std::string>(name));
  return all.entries.back().get();
}

bool run(void*, const RecordedLaunch&) { return true; }
const std::string& failure() {
  static const std::string none;
  return none;
}

}  // namespace qturn_test::work
