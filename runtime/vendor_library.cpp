#include "runtime/vendor_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

namespace quarterturn {
namespace {

std::string path_of(void* handle, const std::string& fallback) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name)
    return map->l_name;
  return fallback;
}

std::string last_reason() {
  const char* reason = dlerror();
  return reason ? reason : "unknown reason";
}

}  // namespace

Result<VendorLibrary> VendorLibrary::open(const std::string& override_path,
                                          const std::vector<std::string>& sonames,
                                          const std::vector<std::string>& folders) {
  VendorLibrary library;
  std::string tried;
  const auto attempt = [&](const std::string& name, int extra) {
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | extra);
    if (library.handle_)
      library.path_ = path_of(library.handle_, name);
    else if (extra == 0)
      tried += fmt::format("\n  {}", last_reason());
    return library.handle_ != nullptr;
  };
  if (!override_path.empty()) {
    if (attempt(override_path, 0)) return library;
    return Status(Code::no_driver, fmt::format("{} cannot be opened:{}", override_path, tried));
  }
  for (const auto& soname : sonames)
    if (attempt(soname, RTLD_NOLOAD)) return library;
  for (const auto& soname : sonames)
    if (attempt(soname, 0)) return library;
  for (const auto& folder : folders)
    for (const auto& soname : sonames)
      if (attempt(fmt::format("{}/{}", folder, soname), 0)) return library;
  return Status(Code::no_driver,
                fmt::format("{} was not found; tried:{}", fmt::join(sonames, " or "), tried));
}

void* VendorLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace quarterturn
