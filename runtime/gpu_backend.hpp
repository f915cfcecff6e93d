// GpuBackend: what back ends of GPUs have in common. Code is compiled once, kept in the store and
// judged by what its compiler said of it; a device may be missing where only compiling is asked
// for.
#pragma once

#include <memory>
#include <string>

#include "runtime/backend.hpp"
#include "runtime/stored_code.hpp"
#include "runtime/vendor_library.hpp"

namespace quarterturn {

/// An entry, `const char* ()`, of libraries whose devices are simulated: their targets, in the
/// order of ordinals, with spaces between them.
inline constexpr const char* kSimulatedDevices = "qturn_simulated_devices";

class GpuBackend : public Backend {
 public:
  struct Description {
    Vendor vendor;
    std::string vendor_name;     ///< for messages: "an NVIDIA"
    std::string code_extension;  ///< of compiled code: "cubin"
    std::string text_extension;  ///< of dumped text: "cu"
    std::string target;  ///< a Target key; empty = the device's own, which must be there then
    bool may_compile = true;
    std::string dump;  ///< folder for sources and logs; empty = none
  };
  GpuBackend(std::shared_ptr<CodeStore> store, Description description)
      : description_(std::move(description)),
        code_(std::move(store), description_.code_extension) {}

  Status open();

  const DeviceInfo& device() const override { return device_; }
  Status usable() const override { return unavailable_; }
  Result<Binary> compile(const Source& source) override;
  bool has_code(const Source& source) override;
  Result<std::shared_ptr<const Kernel>> load(const Binary& binary, const Source& source) override;

 protected:
  /// Code as a compiler made it, and its figures.
  struct Compiled {
    std::string code, log;
    std::int64_t registers = 0, spills = 0, shared_bytes = 0;
  };

  /// Finds the device and describes it in device_, whose target is given where one was asked for.
  virtual Status open_device() = 0;
  /// The compiler's identity, or why there is none.
  virtual Result<std::string> find_compiler() = 0;
  /// `folder`: for files on the way.
  virtual Result<Compiled> compile_text(const Source& source, const std::string& text,
                                        const std::string& folder) const = 0;
  /// Why code that compiled must not be used. It is stored all the same, so that nobody compiles it
  /// twice.
  virtual Status refuse_code(const CodeInfo& info) const = 0;
  /// Not OK while a stream is being captured that compiling or loading would break.
  virtual Status refuse_capture() const = 0;
  virtual Result<std::shared_ptr<const Kernel>> load_code(const std::string& code,
                                                          const Source& source) = 0;

  /// What the performance class of a library's devices begins with: kSimulatedClass where the
  /// library says, by an entry that no vendor's has, that its devices are simulated.
  static std::string_view class_prefix(const VendorLibrary& library);

  bool has_own_target() const { return !description_.target.empty(); }

  DeviceInfo device_;
  Status unavailable_;  ///< why nothing can run here

 private:
  Result<CodeInfo> build(const Source& source, const std::string& text, const std::string& digest,
                         const std::string& path) const;
  Result<Binary> admit(CodeEntry entry) const;

  Description description_;
  StoredCode code_;
  Status no_compiler_;  ///< OK: there is one, device_.compiler
};

}  // namespace quarterturn
