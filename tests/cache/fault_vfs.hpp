// A SQLite file layer that fails or dies at the n-th file operation, for use in a child process
// only.
#pragma once

#include <sqlite3.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <utility>

namespace quarterturn::test {

/// What happens at operation `at`, counted from 1; later ones fail as well unless they die.
struct Faults {
  enum class Kind { none, die, full, io_error };
  Kind kind = Kind::none;
  long at = 0;
  long count = 0;                 ///< operations that change files, so far
  std::function<void()> before;   ///< called once, before the next operation
  long reads = 0;                 ///< so far
  long first_bad_read = 0;        ///< fails with EIO, counted from 1; 0: none does
  long last_bad_read = 0;         ///< and all from the first to this one
  bool no_shared_memory = false;  ///< as on file systems without coherent shared maps
  bool no_locks = false;          ///< as on file systems without byte-range locks
};

inline Faults& faults() {
  static Faults value;
  return value;
}

namespace fault_detail {

inline int trouble() {
  Faults& f = faults();
  ++f.count;
  if (f.before) std::exchange(f.before, nullptr)();
  if (f.kind == Faults::Kind::none || f.count < f.at) return SQLITE_OK;
  if (f.kind == Faults::Kind::die) _exit(42);
  return f.kind == Faults::Kind::full ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}

// SQLite's own tables of file functions, by ours that stand in front of them.
inline std::map<const sqlite3_io_methods*, const sqlite3_io_methods*>& originals() {
  static std::map<const sqlite3_io_methods*, const sqlite3_io_methods*> value;
  return value;
}
inline const sqlite3_io_methods* original(sqlite3_file* file) {
  return originals().at(file->pMethods);
}

inline int write(sqlite3_file* f, const void* data, int n, sqlite3_int64 at) {
  if (const int code = trouble(); code != SQLITE_OK) return code;
  return original(f)->xWrite(f, data, n, at);
}
inline int read(sqlite3_file* f, void* data, int n, sqlite3_int64 at) {
  Faults& faulty = faults();
  ++faulty.reads;
  if (faulty.first_bad_read > 0 && faulty.reads >= faulty.first_bad_read &&
      faulty.reads <= faulty.last_bad_read)
    return SQLITE_IOERR_READ;
  return original(f)->xRead(f, data, n, at);
}
inline int truncate(sqlite3_file* f, sqlite3_int64 size) {
  if (const int code = trouble(); code != SQLITE_OK) return code;
  return original(f)->xTruncate(f, size);
}
inline int sync(sqlite3_file* f, int flags) {
  if (const int code = trouble(); code != SQLITE_OK) return code;
  return original(f)->xSync(f, flags);
}
inline int lock(sqlite3_file* f, int level) {
  if (faults().no_locks) return SQLITE_IOERR_LOCK;
  return original(f)->xLock(f, level);
}
inline int shm_map(sqlite3_file* f, int page, int size, int extend, void volatile** out) {
  if (faults().no_shared_memory) return SQLITE_IOERR_SHMMAP;
  return original(f)->xShmMap(f, page, size, extend, out);
}
// The real methods look at file->pMethods themselves when they close.
inline int close(sqlite3_file* f) {
  const auto* real = original(f);
  f->pMethods = real;
  return real->xClose(f);
}

inline sqlite3_vfs* real_vfs = nullptr;
inline int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
  const int code = real_vfs->xOpen(real_vfs, name, file, flags, out);
  if (code != SQLITE_OK || file->pMethods == nullptr) return code;
  static std::map<const sqlite3_io_methods*, sqlite3_io_methods> tables;
  auto [slot, fresh] = tables.emplace(file->pMethods, *file->pMethods);
  if (fresh) {
    auto& table = slot->second;
    table.xRead = read;
    table.xWrite = write;
    table.xTruncate = truncate;
    table.xSync = sync;
    table.xLock = lock;
    table.xClose = close;
    if (table.iVersion >= 2 && table.xShmMap != nullptr) table.xShmMap = shm_map;
    originals()[&table] = file->pMethods;
  }
  file->pMethods = &slot->second;
  return code;
}
inline int remove(sqlite3_vfs*, const char* name, int sync) {
  if (const int code = trouble(); code != SQLITE_OK) return code;
  return real_vfs->xDelete(real_vfs, name, sync);
}

}  // namespace fault_detail

/// Puts the layer in front of SQLite's own. It stays for the rest of the process.
inline void install_faults() {
  static sqlite3_vfs vfs;
  fault_detail::real_vfs = sqlite3_vfs_find(nullptr);
  vfs = *fault_detail::real_vfs;
  vfs.zName = "qturn-fault";
  vfs.pNext = nullptr;
  vfs.xOpen = fault_detail::open;
  vfs.xDelete = fault_detail::remove;
  sqlite3_vfs_register(&vfs, 1);
}

}  // namespace quarterturn::test
