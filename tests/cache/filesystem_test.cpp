// Which file systems SQLite may write on, and folders and names.
#include "cache/filesystem.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cerrno>
#include <set>

#include "tests/cache/support.hpp"

using namespace quarterturn;

TEST_CASE("filesystem.classify refuses what other machines can write") {
  for (const auto& [magic, type] :
       std::vector<std::pair<std::uint64_t, const char*>>{{0x6969, "nfs4"},
                                                          {0x0bd00bd0, "lustre"},
                                                          {0x47504653, "gpfs"},
                                                          {0xff534d42, "cifs"},
                                                          {0x19830326, "beegfs"},
                                                          {0x00c36400, "ceph"},
                                                          {0x01021997, "9p"},
                                                          {0x65735546, "fuse.sshfs"},
                                                          {0x65735546, "fuse.glusterfs"},
                                                          {0x65735546, "fuse"},
                                                          {0x65735546, ""},
                                                          {0x1234, "wekafs"},
                                                          {0x1234, "orangefs"},
                                                          {0x1234, "fuse.newthing"}})
    CHECK_MESSAGE(classify(magic, type).kind == FilesystemKind::network, type);
  for (const auto& [magic, type] :
       std::vector<std::pair<std::uint64_t, const char*>>{{0xef53, "ext4"},
                                                          {0x58465342, "xfs"},
                                                          {0x01021994, "tmpfs"},
                                                          {0x794c7630, "overlay"},
                                                          {0x65735546, "virtiofs"},
                                                          {0x65735546, "fuseblk"},
                                                          {0x65735546, "fuse.fuse-overlayfs"},
                                                          {0x9123683e, ""},
                                                          {0x1234, "brandnewfs"},
                                                          {0x1234, ""}})
    CHECK_MESSAGE(classify(magic, type).kind == FilesystemKind::local, type);
  CHECK(classify(0x6969, "").name == "nfs");
  CHECK(classify(0x65735546, "fuse.sshfs").name == "fuse.sshfs");
}

TEST_CASE("filesystem.mount_type takes the mount nearest to the path, and the last of equals") {
  const std::string table =
      "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
      "30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw\n"
      "31 30 0:41 / /home/a\\040b rw - fuse.sshfs host: rw\n"
      "32 22 0:42 / /scratch rw master:2 propagate_from:1 - tmpfs tmpfs rw\n"
      "33 22 0:43 / /scratch rw - xfs /dev/vdb rw\n"
      "broken line\n";
  CHECK(mount_type(table, "/etc/x") == "ext4");
  CHECK(mount_type(table, "/home/me/.cache") == "nfs4");
  CHECK(mount_type(table, "/homestead") == "ext4");
  CHECK(mount_type(table, "/home/a b/c") == "fuse.sshfs");
  CHECK(mount_type(table, "/scratch") == "xfs");
  CHECK(mount_type("", "/x").empty());
}

TEST_CASE("filesystem.filesystem_of looks at the nearest folder that exists") {
  CHECK(filesystem_of("/proc/self").kind == FilesystemKind::local);
  test::Folder folder;
  CHECK(filesystem_of(folder / "not/yet/there").name == filesystem_of(folder.path).name);
  CHECK(filesystem_of("").kind == FilesystemKind::local);
}

TEST_CASE("filesystem.make_folder makes private folders and is repeatable") {
  test::Folder folder;
  REQUIRE(make_folder(folder / "a/b/c/").ok());
  REQUIRE(make_folder(folder / "a/b/c").ok());
  struct stat info {};
  REQUIRE(stat((folder / "a/b").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  test::write_file(folder / "file", "");
  CHECK(make_folder(folder / "file").code() == Code::invalid_argument);
  CHECK(!make_folder(folder / "file/below").ok());
  for (const auto& result : test::together(16, [&](int) -> std::string {
         CHILD_OK(make_folder(folder / "x/y/z/w"));
         return {};
       }))
    CHECK(result == "");
}

TEST_CASE("filesystem.folder_of takes the last part away") {
  CHECK(folder_of("/a/b") == "/a");
  CHECK(folder_of("/a/b/") == "/a");
  CHECK(folder_of("/a") == "/");
  CHECK(folder_of("//a") == "/");
  CHECK(folder_of("/") == "/");
  CHECK(folder_of("a") == ".");
  CHECK(folder_of("a/b") == "a");
  CHECK(folder_of("") == ".");
}

TEST_CASE("filesystem.unique_name never repeats, in one process or in forked ones") {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(unique_name());
  CHECK(seen.size() == 1000);
  for (const auto& name : test::together(8, [](int) { return unique_name(); })) seen.insert(name);
  CHECK(seen.size() == 1008);
  CHECK(seen.begin()->find('/') == std::string::npos);
}

TEST_CASE("filesystem.system_status sorts errors by what the user can do") {
  CHECK(system_status(EROFS, "x").code() == Code::read_only);
  CHECK(system_status(EACCES, "x").code() == Code::read_only);
  CHECK(system_status(ENOSPC, "x").code() == Code::disk_full);
  CHECK(system_status(EDQUOT, "x").code() == Code::disk_full);
  CHECK(system_status(EIO, "x").code() == Code::io_error);
}

TEST_CASE("filesystem.read_whole_file gives all bytes, and a status for what has none") {
  const test::Folder folder;
  const std::string bytes("a\0b\n", 4);
  test::write_file(folder / "file", bytes);
  CHECK(*read_whole_file(folder / "file") == bytes);
  test::write_file(folder / "empty", "");
  CHECK(read_whole_file(folder / "empty")->empty());
  for (const auto& path : {folder.path, folder / "none", std::string("/proc/self/mem")}) {
    const auto read = read_whole_file(path);
    CHECK_MESSAGE(read.status().code() == Code::io_error, path);
    CHECK_MESSAGE(read.status().message().find(path) != std::string::npos, path);
  }
}
