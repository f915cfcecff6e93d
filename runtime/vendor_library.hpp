// VendorLibrary: a GPU vendor's library, opened at run time and never closed. Its absence is an
// ordinary state with a message that lists what was tried.
#pragma once

#include <string>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

class VendorLibrary {
 public:
  /// Tries, in this order: `override_path` alone where it is not empty; a copy that the process has
  /// already mapped (so that a framework's copy is shared); each soname by the loader's rules; each
  /// soname in each folder of `folders`. Opens with RTLD_NOW | RTLD_LOCAL.
  static Result<VendorLibrary> open(const std::string& override_path,
                                    const std::vector<std::string>& sonames,
                                    const std::vector<std::string>& folders);

  void* symbol(const char* name) const;

  /// The file the library was loaded from, as the loader knows it.
  const std::string& path() const { return path_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace quarterturn
