// quarterturn-hiprtc: hipRTC in a process of its own, so that a crash or a hang of the compiler
// costs one kernel, and so that kernels are compiled side by side.
//
//   quarterturn-hiprtc facts [LIBRARY]                       which hipRTC there is
//   quarterturn-hiprtc compile LIBRARY ARCH SOURCE OBJECT [FLAG...]
//
// `facts` prints "library PATH", "comgr PATH", "version MAJOR.MINOR" and a line "arch NAME" for
// each architecture. The compile log goes to standard output; exit status 0, or 1 with the reason.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/hip/hiprtc.hpp"

namespace {

using namespace quarterturn;

int fail(const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  return 1;
}

int print_facts(const std::string& library) {
  const auto facts = hip::hiprtc_facts(library);
  if (!facts.ok()) return fail(facts.status().message());
  std::printf("library %s\ncomgr %s\nversion %d.%d\n", facts->library.c_str(), facts->comgr.c_str(),
              facts->major, facts->minor);
  for (const auto& name : facts->architectures) std::printf("arch %s\n", name.c_str());
  return 0;
}

int compile(const std::string& library, const char* arch, const char* source, const char* object,
            const std::vector<std::string>& flags) {
  std::ifstream in(source, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return fail(std::string("cannot read ") + source);
  const auto code = hip::hiprtc_compile(library, text.view(), arch, flags);
  if (!code.ok()) return fail(code.status().message());
  std::ofstream out(object, std::ios::binary);
  out.write(code->code.data(), static_cast<std::streamsize>(code->code.size()));
  out.close();
  if (!out) return fail(std::string("cannot write ") + object);
  std::printf("%s", code->log.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && std::strcmp(argv[1], "facts") == 0) return print_facts(argc > 2 ? argv[2] : "");
  if (argc >= 6 && std::strcmp(argv[1], "compile") == 0)
    return compile(argv[2], argv[3], argv[4], argv[5], {argv + 6, argv + argc});
  std::fprintf(stderr,
               "quarterturn-hiprtc is started by the Quarterturn library; it is not a command for "
               "people\n");
  return 2;
}
