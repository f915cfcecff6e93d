// Filesystem: which file systems SQLite may write on, private folders, and unique names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/status.hpp"

namespace quarterturn {

enum class FilesystemKind { local, network };

struct Filesystem {
  FilesystemKind kind = FilesystemKind::local;
  std::string name;  ///< "ext4", "nfs", "fuse.sshfs"
};

/// `magic` is statfs's f_type; `type` the mount table's name, empty when unknown.
///
/// overlay (containers) and virtiofs (virtual machines) count as local. Other FUSE types are judged
/// by name, and unknown ones count as network: many reach another machine, and shared memory maps,
/// which SQLite's write-ahead log needs, are optional in FUSE. 9p counts as network: by default it
/// has no coherent shared maps either, and the other side writes behind our back.
Filesystem classify(std::uint64_t magic, std::string_view type);

/// The type of the mount that holds `path` (absolute, resolved), from the text of
/// /proc/self/mountinfo; empty when there is none.
std::string mount_type(std::string_view mountinfo, std::string_view path);

/// Of an existing path, or of the nearest folder above it that exists.
Filesystem filesystem_of(const std::string& path);

/// The bytes of a file. A folder, and a file that cannot be read to its end, give a status.
Result<std::string> read_whole_file(const std::string& path);
/// What is left of an open file; `name` is what messages call it.
Result<std::string> read_to_end(int file, const std::string& name);

/// Creates a folder and those above it with mode 0700; ok when it exists already.
Status make_folder(const std::string& path);

/// "<host>-<pid>-<32 random hex digits>": unique without any check, and never a clock.
std::string unique_name();

/// The folder part of a path: "." when there is none.
std::string folder_of(const std::string& path);

/// The status for a failed system call: read_only, disk_full or io_error, by errno.
Status system_status(int error, std::string_view doing);

}  // namespace quarterturn
