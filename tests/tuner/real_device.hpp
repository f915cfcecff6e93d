// This machine's CPU as a back end over a code store that lives as long as the test, and compilers
// that plant faults in what they compile.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "cache/code_store.hpp"
#include "runtime/cpu/backend.hpp"
#include "runtime/worker.hpp"

namespace quarterturn {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char pattern[] = "/tmp/qturn-tuner-XXXXXX";
    REQUIRE(mkdtemp(pattern) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// A compiler that runs `edit` (a sed script) over the source first.
inline std::string compiler_with(const TemporaryFolder& folder, const std::string& name,
                                 const std::string& edit) {
  const auto path = folder / name;
  std::ofstream(path) << "#!/bin/sh\n"
                         "case \" $* \" in *\" kernel.cpp \"*) sed -i '"
                      << edit
                      << "' kernel.cpp ;; esac\n"
                         "exec g++ \"$@\"\n";
  chmod(path.c_str(), 0755);
  return path.string();
}

/// Compiled code stays in the build folder: each test case is a process of its own, and many need
/// the same kernels.
inline std::unique_ptr<Backend> real_device(std::int64_t threads = 2) {
  auto store = CodeStore::open(QTURN_CODE_FOLDER);
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  cpu::BackendOptions options;
  options.threads = threads;
  options.worker = Worker(QTURN_WORKER);
  auto backend = cpu::open_backend(std::make_shared<CodeStore>(std::move(*store)), options);
  REQUIRE_MESSAGE(backend.ok(), backend.status().message());
  return std::move(*backend);
}

/// The real device, but kernels of one family do `instead` of calling their text: C++ that may use
/// `args`, `part` and REAL(args, part). One worker: what is planted may touch other parts' results.
class FaultyDevice : public Backend {
 public:
  FaultyDevice(std::string call, std::string instead)
      : real_(real_device(1)), call_(std::move(call)), instead_(std::move(instead)) {}

  const DeviceInfo& device() const override { return real_->device(); }
  Result<Binary> compile(const Source& source) override { return real_->compile(faulty(source)); }
  Result<std::shared_ptr<const Kernel>> load(const Binary& binary, const Source& source) override {
    return real_->load(binary, faulty(source));
  }
  Result<PrebuiltKernel> prebuilt(const Problem& step, const Variant& wanted) override {
    return real_->prebuilt(step, wanted);
  }
  bool enter() const override { return real_->enter(); }
  void leave() const override { real_->leave(); }
  Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                void* stream) const override {
    return real_->launch(kernel, launch, args, stream);
  }
  Result<void*> allocate(std::int64_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory) override { real_->release(memory); }
  Status upload(void* device, const void* host, std::int64_t bytes) override {
    return real_->upload(device, host, bytes);
  }
  Status download(void* host, const void* device, std::int64_t bytes) override {
    return real_->download(host, device, bytes);
  }
  Status synchronize() override { return real_->synchronize(); }
  std::unique_ptr<Stopwatch> stopwatch() override { return real_->stopwatch(); }
  std::int64_t threads() const override { return real_->threads(); }

 private:
  Source faulty(Source source) const {
    const auto at = source.text.find(call_ + "(");
    if (at == std::string::npos) return source;
    const auto end = source.text.find(';', at);
    source.text.replace(at, end + 1 - at, instead_);
    const auto entry = source.text.find("extern \"C\"");
    REQUIRE(entry != std::string::npos);
    source.text.insert(entry, "#define REAL(args, part) " + call_ + "(Config{}, args, part)\n");
    source.flags.push_back("-O0");  // quick to compile, and there is little to compute
    return source;
  }

  std::unique_ptr<Backend> real_;
  std::string call_, instead_;
};

}  // namespace quarterturn
