#include "cache/filesystem.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "cache/records.hpp"

namespace quarterturn {
namespace {

struct Magic {
  std::uint64_t value;
  std::string_view name;
};

// Numbers from linux/magic.h, and from their projects for those that Linux does not carry.
constexpr Magic network_magics[] = {
    {0x6969, "nfs"},       {0x517b, "smb"},        {0xfe534d42, "smb2"},   {0xff534d42, "cifs"},
    {0x564c, "ncp"},       {0x73757245, "coda"},   {0x5346414f, "afs"},    {0x6b414653, "afs"},
    {0x00c36400, "ceph"},  {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},   {0x19830326, "beegfs"},
    {0x01021997, "9p"},    {0x7461636f, "ocfs2"},  {0x01161970, "gfs2"},   {0xaad7aaea, "panfs"},
    {0x20030528, "pvfs2"}, {0x786f4256, "vboxsf"}, {0xbacbacbc, "vmhgfs"},
};
constexpr Magic local_magics[] = {
    {0xef53, "ext4"},      {0x58465342, "xfs"},      {0x9123683e, "btrfs"},
    {0x01021994, "tmpfs"}, {0x794c7630, "overlay"},  {0x2fc12fc1, "zfs"},
    {0xf2f52010, "f2fs"},  {0x858458f6, "ramfs"},    {0x73717368, "squashfs"},
    {0xe0f5e1e2, "erofs"}, {0xca451a4e, "bcachefs"},
};
constexpr std::uint64_t fuse_magic = 0x65735546;

// By the mount table's name, where the magic number does not say (FUSE) or nobody published one.
constexpr std::string_view network_types[] = {
    "nfs",    "nfs4",  "cifs",   "smb3",   "smbfs",  "lustre", "gpfs",  "beegfs",   "beegfs_nodev",
    "wekafs", "ceph",  "9p",     "afs",    "coda",   "panfs",  "pvfs2", "orangefs", "glusterfs",
    "gfs2",   "ocfs2", "vboxsf", "vmhgfs", "prl_fs", "ncpfs",  "davfs", "dvs",      "cvmfs2"};
constexpr std::string_view local_fuse_types[] = {
    "virtiofs", "fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.ecryptfs"};

bool holds(const auto& list, std::string_view value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

const Magic* find(const auto& list, std::uint64_t value) {
  const auto found = std::find_if(std::begin(list), std::end(list),
                                  [&](const Magic& magic) { return magic.value == value; });
  return found == std::end(list) ? nullptr : &*found;
}

// The mount table writes blanks and backslashes as octal.
std::string unescape(std::string_view field) {
  std::string out;
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out += static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 +
                               (field[i + 3] - '0'));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const auto end = std::min(text.find(at), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

bool is_below(std::string_view path, std::string_view folder) {
  if (folder == "/") return true;
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

Filesystem classify(std::uint64_t magic, std::string_view type) {
  const auto named = [&](const Magic& known) {
    return type.empty() ? std::string(known.name) : std::string(type);
  };
  if (const auto* known = find(network_magics, magic))
    return {FilesystemKind::network, named(*known)};
  if (const auto* known = find(local_magics, magic)) return {FilesystemKind::local, named(*known)};
  const bool fuse = magic == fuse_magic || type == "fuse" || type.starts_with("fuse.");
  if (fuse) {
    const auto kind =
        holds(local_fuse_types, type) ? FilesystemKind::local : FilesystemKind::network;
    return {kind, type.empty() ? "fuse" : std::string(type)};
  }
  if (holds(network_types, type)) return {FilesystemKind::network, std::string(type)};
  // Neither number nor name is known: a new local file system, more likely than a new network one.
  return {FilesystemKind::local, type.empty() ? fmt::format("{:#x}", magic) : std::string(type)};
}

std::string mount_type(std::string_view mountinfo, std::string_view path) {
  std::string best, type;
  for (const auto line : split(mountinfo, '\n')) {
    // "36 35 98:0 /root /mount/point options [tags] - type source superoptions"
    const auto fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 5 || dash == fields.end() || dash + 1 == fields.end()) continue;
    const auto mounted = unescape(fields[4]);
    // Of two mounts on one folder the later line covers the earlier one.
    if (is_below(path, mounted) && mounted.size() >= best.size()) {
      best = mounted;
      type = std::string(*(dash + 1));
    }
  }
  return type;
}

Filesystem filesystem_of(const std::string& path) {
  std::string existing = path.empty() ? "." : path;
  struct statfs info {};
  while (statfs(existing.c_str(), &info) != 0) {
    if (errno == EINTR) continue;
    const auto above = folder_of(existing);
    if (above == existing) return {};
    existing = above;
  }
  // f_type is signed on some machines; the magic numbers have 32 bits.
  const auto magic = static_cast<std::uint32_t>(info.f_type);
  if (find(network_magics, magic) != nullptr || find(local_magics, magic) != nullptr)
    return classify(magic, {});
  std::string type;
  if (char* real = realpath(existing.c_str(), nullptr); real != nullptr) {
    if (const auto table = read_whole_file("/proc/self/mountinfo"); table.ok())
      type = mount_type(*table, real);
    std::free(real);
  }
  return classify(magic, type);
}

Result<std::string> read_to_end(int file, const std::string& name) {
  struct stat info {};
  if (fstat(file, &info) != 0) return system_status(errno, fmt::format("read {}", name));
  if (S_ISDIR(info.st_mode))
    return Status(Code::io_error,
                  fmt::format("cannot read {}: it is a folder, and a file is wanted", name));
  std::string out;
  std::vector<char> bytes(1 << 16);
  while (true) {
    const auto n = ::read(file, bytes.data(), bytes.size());
    if (n > 0) out.append(bytes.data(), static_cast<std::size_t>(n));
    if (n == 0) return out;
    if (n < 0 && errno != EINTR) return system_status(errno, fmt::format("read {}", name));
  }
}

Result<std::string> read_whole_file(const std::string& path) {
  int file = -1;
  do {
    file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (file < 0 && errno == EINTR);
  if (file < 0) return system_status(errno, fmt::format("read {}", path));
  auto out = read_to_end(file, path);
  close(file);
  return out;
}

Status make_folder(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return {};
    return {Code::invalid_argument, fmt::format("{} is not a folder", path)};
  }
  const auto above = folder_of(path);
  if (above != path && above != ".") {
    Status status = make_folder(above);
    if (!status.ok()) return status;
  }
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return system_status(errno, fmt::format("create the folder {}", path));
}

std::string unique_name() {
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, HOST_NAME_MAX) != 0) std::strcpy(host, "host");
  std::string name;
  for (const char* c = host; *c != 0 && name.size() < 64; ++c)
    name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
  std::string random = text(random_uuid());
  std::erase(random, '-');
  return fmt::format("{}-{}-{}", name, getpid(), random);
}

std::string folder_of(const std::string& path) {
  const auto end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const auto slash = path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  const auto last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

Status system_status(int error, std::string_view doing) {
  Code code = Code::io_error;
  if (error == EROFS || error == EACCES || error == EPERM) code = Code::read_only;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = Code::disk_full;
  return {code, fmt::format("cannot {}: {}", doing, std::strerror(error))};
}

}  // namespace quarterturn
