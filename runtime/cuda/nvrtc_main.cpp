// quarterturn-nvrtc: compiles one CUDA text in a process of its own, so that a crash or a hang of
// the compiler costs one kernel.
//
//   quarterturn-nvrtc LIBRARY ARCH SOURCE CUBIN [FLAG...]
//
// LIBRARY is the path of libnvrtc. The compile log goes to standard output; exit status 0, or 1
// with the reason as the output's first line.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/cuda/nvrtc.hpp"

namespace {

int fail(const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr,
                 "quarterturn-nvrtc is started by the Quarterturn library; it is not a command for "
                 "people\n");
    return 2;
  }
  using namespace quarterturn;
  if (const auto status = cuda::nvrtc_open(0, argv[1]); !status.ok()) return fail(status.message());
  std::ifstream in(argv[3], std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return fail(std::string("cannot read ") + argv[3]);
  const std::vector<std::string> flags(argv + 5, argv + argc);
  const auto cubin = cuda::nvrtc_compile(text.view(), argv[2], flags);
  if (!cubin.ok()) return fail(cubin.status().message());
  std::ofstream out(argv[4], std::ios::binary);
  out.write(cubin->code.data(), static_cast<std::streamsize>(cubin->code.size()));
  out.close();
  if (!out) return fail(std::string("cannot write ") + argv[4]);
  std::printf("%s", cubin->log.c_str());
  return 0;
}
