#include "cache/libpq.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>

namespace quarterturn::pg {
namespace {

constexpr const char* kLibpqName = "libpq.so.5";

Result<Libpq> load() {
  void* const handle = dlopen(kLibpqName, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const reason = dlerror();
    return Status(
        Code::no_driver,
        fmt::format("PostgreSQL's client library is needed for a shared store and cannot "
                    "be opened ({}); install it (Debian: libpq5), or work without --store",
                    reason ? reason : kLibpqName));
  }
  Libpq out;
#define X(result, name, parameters)                                                             \
  {                                                                                             \
    void* const symbol = dlsym(handle, #name);                                                  \
    if (!symbol) return Status(Code::no_driver, fmt::format("{} lacks {}", kLibpqName, #name)); \
    std::memcpy(&out.name, &symbol, sizeof symbol);                                             \
  }
  QTURN_LIBPQ_FUNCTIONS(X)
#undef X
  return out;
}

}  // namespace

Result<const Libpq*> libpq() {
  static const Result<Libpq> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace quarterturn::pg
