#include "runtime/cpu/host_compiler.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <stdlib.h>

#include "runtime/cpu/features.hpp"
#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;
using namespace quarterturn::cpu;
using test::TemporaryFolder;

namespace {

constexpr std::string_view kAdd =
    "extern \"C\" __attribute__((visibility(\"default\"))) int add(int a, int b) { return a + b; "
    "}\n";

Result<HostCompiler> find(const std::string& wanted, WorkerLimits limits = {}) {
  return HostCompiler::find(wanted, Worker(), limits);
}

// A planted compiler: answers its version and then does `body`.
std::string planted(const TemporaryFolder& folder, const std::string& name,
                    const std::string& body) {
  return folder.script(name,
                       "case \"$1\" in\n"
                       "  --version) echo 'g++ (planted) 12.2.0'; exit 0;;\n"
                       "  -dumpmachine) echo x86_64-linux-gnu; exit 0;;\n"
                       "  -print-prog-name=cc1plus) echo cc1plus; exit 0;;\n"
                       "esac\n" +
                           body);
}

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { before_.empty() ? unsetenv(name_) : setenv(name_, before_.c_str(), 1); }

 private:
  const char* name_;
  std::string before_;
};

}  // namespace

TEST_CASE("host_compiler.builds a shared object for this machine") {
  const auto compiler = find("");
  REQUIRE_MESSAGE(compiler.ok(), compiler.status().message());
  const TemporaryFolder folder;
  Compilation done;
  const auto target = detect_cpu().target;
  const auto status = compiler->compile(kAdd, target, {}, folder.path(), done);
  REQUIRE_MESSAGE(status.ok(), status.message());
  void* object = dlopen(folder.file("kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(object != nullptr);
  const auto add = reinterpret_cast<int (*)(int, int)>(dlsym(object, "add"));
  CHECK(add(2, 3) == 5);
  dlclose(object);
  CHECK(compiler->check(target, folder.path()).ok());
  CHECK(done.command.find("native") == std::string::npos);
  CHECK(done.command.find("-ffp-contract=off") != std::string::npos);
}

TEST_CASE("host_compiler.flags are an explicit instruction set") {
  const auto flags = [](const char* key) {
    std::string out;
    for (const auto& flag : HostCompiler::flags_for(*parse_target(key))) out += flag + " ";
    return out;
  };
  CHECK(flags("x86-64-v4:avx512_vnni,avx_vnni").find("-march=x86-64-v4 -mavx512vnni -mavxvnni") !=
        std::string::npos);
  CHECK(flags("x86-64").find("-march=x86-64 ") != std::string::npos);
  CHECK(flags("aarch64:dotprod,i8mm").find("-march=armv8.2-a+dotprod+i8mm") != std::string::npos);
}

TEST_CASE("host_compiler.an error in the text gives its log") {
  const auto compiler = find("");
  REQUIRE(compiler.ok());
  const TemporaryFolder folder;
  Compilation done;
  const auto status = compiler->compile("int f() { return nonsense; }", detect_cpu().target, {},
                                        folder.path(), done);
  CHECK(status.code() == Code::compile_failed);
  CHECK(status.message().find("nonsense") != std::string::npos);
  CHECK(done.log.find("kernel.cpp:1") != std::string::npos);
}

TEST_CASE("host_compiler.two compilers of one version string differ") {
  const TemporaryFolder folder;
  const auto one = find(planted(folder, "one", "exit 0"));
  const auto two = find(planted(folder, "two", "exit 1"));
  const auto again = find(planted(folder, "again", "exit 0"));
  REQUIRE((one.ok() && two.ok() && again.ok()));
  CHECK(one->identity() != two->identity());
  CHECK(one->identity() == again->identity());
  CHECK(one->identity().find("g++ (planted) 12.2.0 x86_64-linux-gnu ") == 0);
  CHECK(one->identity().find(folder.path()) == std::string::npos);
}

TEST_CASE("host_compiler.planted compilers that misbehave cost one call") {
  const TemporaryFolder folder;
  const auto target = detect_cpu().target;
  const WorkerLimits limits{2, 2, std::int64_t{300} << 20};
  const auto compile = [&](const std::string& body, WorkerLimits within) {
    const auto compiler = find(planted(folder, "cc", body), within);
    REQUIRE(compiler.ok());
    Compilation done;
    std::filesystem::remove_all(folder.file("probe"));
    std::filesystem::remove_all(folder.file("kernel.so"));
    return compiler->compile(kAdd, target, {}, folder.path(), done);
  };
  CHECK(compile("sleep 60", limits).code() == Code::compile_timeout);
  CHECK(compile("kill -SEGV $$", limits).code() == Code::no_compiler);
  CHECK(compile("kill -TERM $$", limits).code() == Code::interrupted);
  CHECK(compile("echo 'x.s: No space left on device'; exit 1", limits).code() == Code::disk_full);
  const auto greedy = compile("x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done", limits);
  CHECK_FALSE(greedy.ok());
  CHECK(compile("head -c 100000 /dev/urandom; exit 0", limits).code() == Code::no_compiler);
  CHECK(compile("echo 'cannot execute as: No such file'; exit 1", limits)
            .message()
            .find("cannot execute as") != std::string::npos);
}

TEST_CASE("host_compiler.only the kernel that crashes the compiler fails") {
  const TemporaryFolder folder;
  // A good compiler but for texts that hold a certain word.
  const auto compiler =
      find(planted(folder, "cc", "grep -q poison kernel.cpp && kill -ILL $$\nexec c++ \"$@\""));
  REQUIRE(compiler.ok());
  Compilation done;
  const auto target = detect_cpu().target;
  CHECK(compiler->compile("// poison\n", target, {}, folder.path(), done).code() ==
        Code::compile_failed);
  CHECK(compiler->compile(kAdd, target, {}, folder.path(), done).ok());
}

TEST_CASE("host_compiler.none on this machine, and a named one that is missing") {
  const TemporaryFolder empty;
  const ScopedVariable path("PATH", empty.path());
  const auto none = find("");
  CHECK(none.status().code() == Code::no_compiler);
  for (const auto* name : {"c++", "g++", "clang++", "QTURN_CXX"})
    CHECK(none.status().message().find(name) != std::string::npos);
  const auto named = find("/nonexistent/g++");
  CHECK(named.status().code() == Code::no_compiler);
  CHECK(named.status().message().find("/nonexistent/g++") != std::string::npos);
}

TEST_CASE("host_compiler.the host's include path variables have no effect") {
  const TemporaryFolder folder;
  folder.write("include/immintrin.h", "#error hijacked\n");
  const ScopedVariable cpath("CPATH", folder.file("include"));
  const ScopedVariable more("CPLUS_INCLUDE_PATH", folder.file("include"));
  const auto compiler = find("");
  REQUIRE(compiler.ok());
  CHECK(compiler->check(detect_cpu().target, folder.path()).ok());
}

TEST_CASE("content_id.follows the bytes, not the name or the time") {
  const TemporaryFolder folder;
  CHECK(content_id(folder.write("a", "text")) == content_id(folder.write("b", "text")));
  CHECK(content_id(folder.write("a", "text")) != content_id(folder.write("c", "texT")));
  CHECK(content_id("/proc/self/exe") == content_id("/proc/self/exe"));
  CHECK(content_id("/proc/self/exe") != content_id("/bin/sh"));
}

TEST_CASE("find_in_path.never looks in the current folder") {
  const TemporaryFolder folder;
  folder.script("tool", "exit 0");
  CHECK(find_in_path("tool", folder.path()) == folder.file("tool"));
  CHECK(find_in_path("tool", "/nonexistent:" + folder.path()) == folder.file("tool"));
  CHECK(find_in_path("tool", "").empty());
  CHECK(find_in_path("tool", ":.:").empty());
  folder.write("plain", "not executable");
  CHECK(find_in_path("plain", folder.path()).empty());
}
