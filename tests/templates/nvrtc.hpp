// NVRTC opened at run time, with just the calls that compile one text to a cubin.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace nvrtc {

struct Compiled {
  int status = -1;
  std::string cubin;
  std::string log;
};

class Library {
 public:
  Library() {
    std::vector<std::string> folders = {""};
    if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(home);
    folders.push_back("/usr/local/cuda");
    for (const auto& folder : folders)
      for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"})
        for (const char* sub : {"/lib64/", "/lib/"}) {
          if (handle_) return;
          const std::string path = folder.empty() ? name : folder + sub + name;
          handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  explicit operator bool() const { return handle_ != nullptr; }

  Compiled compile(const std::string& text, const std::vector<std::string>& options) const {
    using Program = void*;
    const auto create =
        call<int(Program*, const char*, const char*, int, const char* const*, const char* const*)>(
            "nvrtcCreateProgram");
    const auto build = call<int(Program, int, const char* const*)>("nvrtcCompileProgram");
    const auto log_size = call<int(Program, std::size_t*)>("nvrtcGetProgramLogSize");
    const auto log = call<int(Program, char*)>("nvrtcGetProgramLog");
    const auto cubin_size = call<int(Program, std::size_t*)>("nvrtcGetCUBINSize");
    const auto cubin = call<int(Program, char*)>("nvrtcGetCUBIN");
    const auto destroy = call<int(Program*)>("nvrtcDestroyProgram");

    Compiled out;
    Program program = nullptr;
    out.status = create(&program, text.c_str(), "kernel.cu", 0, nullptr, nullptr);
    if (out.status != 0) return out;
    std::vector<const char*> flags;
    for (const auto& option : options) flags.push_back(option.c_str());
    out.status = build(program, int(flags.size()), flags.data());
    std::size_t size = 0;
    if (log_size(program, &size) == 0 && size > 1) {
      out.log.resize(size);
      log(program, out.log.data());
    }
    if (out.status == 0 && cubin_size(program, &size) == 0) {
      out.cubin.resize(size);
      cubin(program, out.cubin.data());
    }
    destroy(&program);
    return out;
  }

 private:
  template <class Signature>
  Signature* call(const char* name) const {
    return reinterpret_cast<Signature*>(dlsym(handle_, name));
  }

  void* handle_ = nullptr;  // never closed: NVRTC keeps threads of its own
};

}  // namespace nvrtc
