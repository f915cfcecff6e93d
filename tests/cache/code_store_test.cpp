// Compiled code found again, checked, evicted; and where it is never taken from.
#include "cache/code_store.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <ctime>

#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

CodeStore store_at(const std::string& folder, const CodeStoreOptions& options = {}) {
  auto store = CodeStore::open(folder, options);
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  return std::move(*store);
}

CodeKey key(int number) { return {fmt::format("source={} compiler=test", number), "so"}; }

// A builder that writes `code` and counts how often it was asked.
CodeBuilder builder(const std::string& code, int* asked = nullptr) {
  return [code, asked](const std::string& output) -> Result<CodeInfo> {
    if (asked != nullptr) ++*asked;
    test::write_file(output, code);
    CodeInfo info;
    info.compiler = "test";
    info.log = "log of " + code.substr(0, 10);
    return info;
  };
}

CodeBuilder never() {
  return [](const std::string&) -> Result<CodeInfo> {
    FAIL_CHECK("nothing should be built");
    return Status(Code::internal, "built");
  };
}

void age(const std::string& path, int seconds) {
  const timespec times[2] = {{std::time(nullptr) - seconds, 0}, {std::time(nullptr) - seconds, 0}};
  REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

}  // namespace

TEST_CASE("code_store builds once and finds afterwards, also in another process's store") {
  test::Folder folder;
  int asked = 0;
  auto store = store_at(folder / "a/code");
  const auto built = store.get_or_build(key(1), builder("the code", &asked));
  REQUIRE_MESSAGE(built.ok(), built.status().message());
  CHECK(built->origin == CodeOrigin::built);
  CHECK(asked == 1);
  auto other = store_at(folder / "a/code");
  const auto found = other.get_or_build(key(1), never());
  REQUIRE(found.ok());
  CHECK(found->origin == CodeOrigin::found);
  CHECK(found->path == built->path);
  CHECK(found->content == sha256("the code"));
  CHECK(found->key == key(1).digest());
  CHECK(found->info.log == "log of the code");
  CHECK(*CodeStore::read_code(*found) == "the code");
  CHECK(!store.find(key(2)).has_value());
  CHECK(store.usage().entries == 1);
  CHECK(store.take_notes().empty());
  struct stat info {};
  REQUIRE(stat(found->path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  REQUIRE(stat((folder / "a/code").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(test::names_in(folder / "a/code/tmp").empty());
  store.remove(key(1));
  CHECK(!other.find(key(1)).has_value());
}

TEST_CASE("code_store entries are loaded by dlopen as they lie") {
  test::Folder folder(test::Place::disk);
  auto store = store_at(folder / "code");
  test::write_file(folder / "x.c", "int answer(void) { return 42; }\n");
  const auto entry = store.get_or_build(key(1), [&](const std::string& output) -> Result<CodeInfo> {
    const auto command = fmt::format("cc -shared -fPIC -o {} {}", output, folder / "x.c");
    if (std::system(command.c_str()) != 0) return Status(Code::no_compiler, "cc failed");
    return CodeInfo{};
  });
  if (!entry.ok() && entry.status().code() == Code::no_compiler) {
    std::puts("SKIPPED: there is no C compiler");
    return;
  }
  REQUIRE_MESSAGE(entry.ok(), entry.status().message());
  void* library = dlopen(entry->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  auto* answer = reinterpret_cast<int (*)()>(dlsym(library, "answer"));
  REQUIRE((answer != nullptr));
  // Rebuilt under a process that has it loaded: the old code stays as it is.
  store.remove(key(1));
  REQUIRE(store.get_or_build(key(1), builder("something else")).ok());
  CHECK(answer() == 42);
  dlclose(library);
}

TEST_CASE("code_store rebuilds a damaged entry, warning once for it") {
  test::Folder folder;
  auto store = store_at(folder / "code");
  const std::string code(2000, 'c');  // longer than what follows it in the file
  const auto entry = store.get_or_build(key(1), builder(code));
  REQUIRE(entry.ok());
  const auto sound = test::read_file(entry->path);
  std::vector<std::string> damages{"", sound.substr(0, sound.size() / 2), "garbage"};
  damages.push_back(sound);
  damages.back()[2] ^= 4;
  for (const auto& damage : damages) {
    auto fresh = store_at(folder / "code");
    test::write_file(entry->path, damage);
    CHECK(CodeStore::read_code(*entry).status().code() == Code::damaged);
    int asked = 0;
    REQUIRE(fresh.get_or_build(key(1), builder(code, &asked)).ok());
    CHECK(asked == 1);
    CHECK(fresh.take_notes().size() == 1);
    REQUIRE(fresh.get_or_build(key(1), never()).ok());
    CHECK(fresh.take_notes().empty());
  }
}

TEST_CASE("code_store.get_or_build passes a failed build on and leaves nothing behind") {
  test::Folder folder;
  auto store = store_at(folder / "code");
  const auto failed = store.get_or_build(key(1), [](const std::string& output) -> Result<CodeInfo> {
    test::write_file(output, "half");
    test::write_file(output + ".o", "side file");
    return Status(Code::compile_failed, "line 3: no");
  });
  CHECK(failed.status().code() == Code::compile_failed);
  CHECK(failed.status().message() == "line 3: no");
  CHECK(
      store.get_or_build(key(1), [](const std::string&) -> Result<CodeInfo> { return CodeInfo{}; })
          .status()
          .code() == Code::compile_failed);
  CHECK(store.usage().entries == 0);
  CHECK(test::names_in(folder / "code/tmp").empty());
  CHECK(store.get_or_build(key(1), builder("good")).ok());
  CHECK(store.get_or_build({"", "so"}, never()).status().code() == Code::invalid_argument);
  CHECK(store.get_or_build({"k", "../x"}, never()).status().code() == Code::invalid_argument);
}

TEST_CASE("code_store evicts least recently used entries, never those of the last hour") {
  test::Folder folder;
  CodeStoreOptions options;
  options.quota_bytes = 10 * 65536;
  auto store = store_at(folder / "code", options);
  std::vector<CodeEntry> entries;
  for (int i = 0; i < 8; ++i) {
    const auto entry = store.get_or_build(key(i), builder(std::string(60000, 'x')));
    REQUIRE(entry.ok());
    entries.push_back(*entry);
    age(entry->path, 7200 + 600 * (8 - i));
  }
  REQUIRE(store.find(key(0)).has_value());  // used now
  for (int i = 8; i < 14; ++i)
    REQUIRE(store.get_or_build(key(i), builder(std::string(60000, 'x'))).ok());
  const auto usage = store.collect();
  CHECK(usage.bytes <= options.quota_bytes);
  CHECK(store.find(key(0)).has_value());
  CHECK(!store.find(key(1)).has_value());
  CHECK(store.find(key(7)).has_value());
  for (int i = 8; i < 14; ++i) CHECK(store.find(key(i)).has_value());
  // All in use: the quota is exceeded rather than running code taken away.
  for (int i = 20; i < 32; ++i)
    REQUIRE(store.get_or_build(key(i), builder(std::string(60000, 'x'))).ok());
  CHECK(store.collect().bytes > options.quota_bytes);
  for (int i = 20; i < 32; ++i) CHECK(store.find(key(i)).has_value());
}

TEST_CASE("code_store bounds the number of files, and time stamps from the future age") {
  test::Folder folder;
  CodeStoreOptions options;
  options.quota_entries = 3;
  auto store = store_at(folder / "code", options);
  for (int i = 0; i < 6; ++i) {
    const auto entry = store.get_or_build(key(i), builder("x"));
    REQUIRE(entry.ok());
    age(entry->path, i == 5 ? -1000000 : 7200);
  }
  CHECK(store.collect().entries == 3);
  REQUIRE(store.find(key(5)).has_value());
  struct stat info {};
  REQUIRE(stat(store.find(key(5))->path.c_str(), &info) == 0);
  // Not std::time, whose clock may lag by a tick behind the one of time stamps.
  CHECK(info.st_mtime <= std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
}

TEST_CASE("code_store removes leftovers of builders that died long ago, not younger ones") {
  test::Folder folder;
  auto store = store_at(folder / "code");
  REQUIRE(store.get_or_build(key(1), builder("x")).ok());
  std::filesystem::create_directories(folder / "code/tmp/old/deep");
  std::filesystem::create_directories(folder / "code/tmp/young");
  age(folder / "code/tmp/old", 2 * 24 * 3600);
  (void)store.collect();
  CHECK(test::names_in(folder / "code/tmp") == std::vector<std::string>{"young"});
}

TEST_CASE("code_store loads nothing from where others can write") {
  test::Folder folder;
  const auto code = folder / "code";
  {
    auto store = store_at(code);
    REQUIRE(store.get_or_build(key(1), builder("x")).ok());
  }
  CodeStoreOptions strict;
  strict.fallback = StoreFallback::none;
  for (const mode_t mode : {0777, 0770, 0702}) {
    REQUIRE(chmod(code.c_str(), mode) == 0);
    const auto refused = CodeStore::open(code, strict);
    CHECK(refused.status().code() == Code::not_ours);
    CHECK(refused.status().message().find("chmod") != std::string::npos);
    std::string spare;
    {
      auto store = store_at(code);  // works all the same, in a folder of its own
      int asked = 0;
      const auto entry = store.get_or_build(key(1), builder("y", &asked));
      REQUIRE(entry.ok());
      CHECK(asked == 1);
      CHECK(!entry->path.starts_with(code));
      CHECK(store.take_notes().size() == 1);
      spare = store.folder();
      struct stat info {};
      REQUIRE(stat(spare.c_str(), &info) == 0);
      CHECK((info.st_mode & 0777) == 0700);
    }
    CHECK(!std::filesystem::exists(spare));
  }
  REQUIRE(chmod(code.c_str(), 0700) == 0);
  auto store = store_at(code, strict);
  const auto path = store.find(key(1))->path;
  REQUIRE(chmod(path.c_str(), 0666) == 0);
  CHECK(!store.find(key(1)).has_value());
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  CHECK(store.find(key(1)).has_value());
  std::filesystem::rename(path, folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere", path);
  CHECK(!store.find(key(1)).has_value());
  CHECK(CodeStore::open("s3://bucket/code").status().code() == Code::invalid_argument);
}

TEST_CASE("code_store loads nothing that another user owns") {
  if (geteuid() != 0) {
    std::puts("SKIPPED: only root can give files away");
    return;
  }
  test::Folder folder;
  const auto code = folder / "code";
  CodeStoreOptions strict;
  strict.fallback = StoreFallback::none;
  auto store = store_at(code, strict);
  const auto entry = store.get_or_build(key(1), builder("x"));
  REQUIRE(entry.ok());
  REQUIRE(chown(entry->path.c_str(), 65534, 65534) == 0);
  CHECK(!store.find(key(1)).has_value());
  REQUIRE(chown(code.c_str(), 65534, 65534) == 0);
  CHECK(CodeStore::open(code, strict).status().code() == Code::not_ours);
}

TEST_CASE("code_store on a read-only disk serves what is there and builds in a spare folder") {
  test::Folder folder;
  const auto result = test::with_small_disk(folder.path, "4m", [&]() -> std::string {
    {
      auto store = CodeStore::open(folder / "code");
      CHILD_OK(store);
      CHILD_OK(store->get_or_build(key(1), builder("x")));
    }
    CHILD_CHECK(test::remount(folder.path, MS_RDONLY));
    {
      auto store = CodeStore::open(folder / "code");
      CHILD_OK(store);
      int asked = 0;
      const auto found = store->get_or_build(key(1), builder("x", &asked));
      CHILD_OK(found);
      CHILD_CHECK(asked == 0 && found->origin == CodeOrigin::found);
      const auto built = store->get_or_build(key(2), builder("y", &asked));
      CHILD_OK(built);
      CHILD_CHECK(asked == 1 && !built->path.starts_with(folder.path));
      CHILD_OK(store->get_or_build(key(2), builder("y", &asked)));
      CHILD_CHECK(asked == 1);
      CHILD_CHECK(store->take_notes().size() == 2);
    }
    CodeStoreOptions strict;
    strict.fallback = StoreFallback::none;
    CHILD_CHECK(CodeStore::open(folder / "other", strict).status().code() == Code::read_only);
    auto store = CodeStore::open(folder / "code", strict);
    CHILD_OK(store);
    CHILD_CHECK(store->get_or_build(key(3), builder("z")).status().code() == Code::read_only);
    return {};
  });
  if (test::skipped(result)) return;
  CHECK(result == "");
}

TEST_CASE("code_store on a full disk makes room, or builds in a spare folder") {
  test::Folder folder;
  const auto result = test::with_small_disk(folder.path, "2m", [&]() -> std::string {
    CodeStoreOptions options;
    options.quota_bytes = 1 << 20;
    auto store = CodeStore::open(folder / "code", options);
    CHILD_OK(store);
    const std::string code(200000, 'x');
    int spare = 0;
    for (int i = 0; i < 30; ++i) {
      const auto entry = store->get_or_build(key(i), builder(code));
      CHILD_OK(entry);
      CHILD_CHECK(*CodeStore::read_code(*entry) == code);
      if (!entry->path.starts_with(folder.path)) ++spare;
    }
    CHILD_CHECK(spare > 10);  // nothing is older than an hour, so nothing may be evicted
    CHILD_CHECK(store->take_notes().size() == 1);
    for (int i = 0; i < 30; ++i) {
      const auto entry = store->get_or_build(key(i), builder("other"));
      CHILD_OK(entry);
      CHILD_CHECK(entry->code_bytes == 200000);
    }
    return {};
  });
  if (test::skipped(result)) return;
  CHECK(result == "");
}
