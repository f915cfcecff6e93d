#include "runtime/cuda/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace quarterturn::cuda {
namespace {

void* address_of(const qt_args& args, TensorMap::Memory memory) {
  switch (memory) {
    case TensorMap::Memory::a_data:
      return args.a.data;
    case TensorMap::Memory::a_scales:
      return args.a.scales;
    case TensorMap::Memory::b_data:
      return args.b.data;
    case TensorMap::Memory::b_scales:
      return args.b.scales;
    case TensorMap::Memory::c_data:
      return args.c.data;
    case TensorMap::Memory::d_data:
      return args.d.data;
    case TensorMap::Memory::d_scales:
      return args.d.scales;
    case TensorMap::Memory::d2_data:
      return args.d2.data;
    case TensorMap::Memory::workspace:
      return args.workspace;
  }
  return nullptr;
}

// CUtensorMapDataType of cuda.h.
int driver_type(TensorMap::Type type) {
  switch (type) {
    case TensorMap::Type::u8:
      return 0;
    case TensorMap::Type::f16:
      return 6;
    case TensorMap::Type::f32:
      return 7;
    case TensorMap::Type::bf16:
      return 9;
  }
  return 0;
}

constexpr int kPromoteL2To256 = 3;

bool is_encodable(const TensorMap& spec, const void* address) {
  auto all = reinterpret_cast<std::uint64_t>(address);
  for (std::uint32_t i = 0; i + 1 < spec.rank; ++i) all |= spec.strides_bytes[i];
  return all % 16 == 0;
}

}  // namespace

Result<std::shared_ptr<const Kernel>> LoadedKernel::load(const DriverApi& api, CUdevice device,
                                                         const std::string& cubin,
                                                         const Source& source) {
  std::shared_ptr<LoadedKernel> kernel(new LoadedKernel(api));
  const std::string& entry = source.entry;
  kernel->entry_ = entry;
  kernel->waits_ = source.waits;
  const auto fail = [&](CUresult error, const char* what) {
    // Only what the driver says of the code itself counts against it.
    const bool about_code = error == 1 || (error >= 200 && error < 400 && error != kInvalidContext);
    if (!about_code) {
      const auto status = api.check(error, fmt::format("{}: {}", entry, what).c_str());
      return Status(status.code() == Code::launch_failed ? Code::no_device : status.code(),
                    status.message());
    }
    return Status(Code::rejected, fmt::format("{}: {}: {}", entry, what, api.describe(error)));
  };
  if (const auto error = api.cuLibraryLoadData(&kernel->library_, cubin.data(), nullptr, nullptr, 0,
                                               nullptr, nullptr, 0))
    return fail(error, "the driver refuses the compiled code");
  if (const auto error = api.cuLibraryGetKernel(&kernel->kernel_, kernel->library_, entry.c_str()))
    return fail(error, "the compiled code has no such entry");
  int opt_in = 0, fixed = 0;
  constexpr int kKernelStaticShared = 1;
  api.cuDeviceGetAttribute(&opt_in, kDeviceSharedOptIn, device);
  api.cuKernelGetAttribute(&fixed, kKernelStaticShared, kernel->kernel_, device);
  kernel->max_dynamic_shared_ = std::max(0, opt_in - fixed);
  if (const auto error = api.cuKernelSetAttribute(kFunctionMaxDynamicShared,
                                                  static_cast<int>(kernel->max_dynamic_shared_),
                                                  kernel->kernel_, device))
    return fail(error, "dynamic shared memory");
  // The driver loads code into a context when it is first asked for: now, not at the first run.
  CUfunction function = nullptr;
  int registers = 0;
  constexpr int kFunctionRegisters = 4;
  if (const auto error = api.cuKernelGetFunction(&function, kernel->kernel_))
    return fail(error, "loading into the context");
  if (const auto error = api.cuFuncGetAttribute(&registers, kFunctionRegisters, function))
    return fail(error, "loading into the context");
  return std::shared_ptr<const Kernel>(std::move(kernel));
}

LoadedKernel::~LoadedKernel() {
  if (library_) api_.cuLibraryUnload(library_);
}

Status LoadedKernel::encode(const Launch& launch, const qt_args& args, EncodedMaps& into) const {
  for (std::uint32_t i = 0; i < launch.map_count; ++i) {
    const TensorMap& spec = launch.maps[i];
    char* base = static_cast<char*>(address_of(args, spec.memory));
    void* address = base + spec.offset_bytes;
    if (i < into.count && into.addresses[i] == address && into.specs[i] == spec) continue;
    into.specs[i] = spec;
    into.addresses[i] = address;
    if (spec.need == TensorMap::Need::where_aligned && !is_encodable(spec, address)) continue;
    constexpr std::uint32_t ones[5] = {1, 1, 1, 1, 1};
    const CUresult error =
        api_.cuTensorMapEncodeTiled(&into.maps[i], driver_type(spec.type), spec.rank, address,
                                    spec.sizes.data(), spec.strides_bytes.data(), spec.box.data(),
                                    ones, 0, static_cast<int>(spec.swizzle), kPromoteL2To256, 0);
    if (error != kSuccess) {
      into.count = 0;
      return Status(Code::misaligned,
                    fmt::format("{}: tensor map {} ({} x {} elements, stride {} bytes at {}): {}",
                                entry_, i, spec.sizes[0], spec.sizes[1], spec.strides_bytes[0],
                                address, api_.describe(error)));
    }
  }
  into.count = launch.map_count;
  return {};
}

Status LoadedKernel::enqueue(const Launch& launch, const qt_args& args, CUstream stream,
                             const Maps& maps) const {
  CUlaunchAttribute attributes[2] = {};
  unsigned int count = 0;
  if (launch.cluster != std::array<std::uint32_t, 3>{1, 1, 1}) {
    attributes[count].id = kAttributeClusterDimension;
    std::copy(launch.cluster.begin(), launch.cluster.end(), attributes[count].value.cluster);
    ++count;
  }
  if (waits_ || launch.start == Launch::Start::early) {
    attributes[count].id = kAttributeProgrammaticStart;
    attributes[count].value.flag = 1;
    ++count;
  }
  CUlaunchConfig config{};
  std::copy(launch.grid.begin(), launch.grid.end(), config.grid);
  std::copy(launch.block.begin(), launch.block.end(), config.block);
  config.shared_bytes = static_cast<unsigned int>(launch.shared_bytes);
  config.stream = stream;
  config.attributes = attributes;
  config.attribute_count = count;
  void* parameters[1 + std::tuple_size_v<Maps>] = {const_cast<qt_args*>(&args)};
  for (std::uint32_t i = 0; i < launch.map_count; ++i)
    parameters[1 + i] = const_cast<CUtensorMap*>(&maps[i]);
  const CUresult error = api_.cuLaunchKernelEx(&config, kernel_, parameters, nullptr);
  if (error == kSuccess) return {};
  return Status(Code::launch_failed, fmt::format("{}: grid {}x{}x{}, {} bytes shared: {}", entry_,
                                                 launch.grid[0], launch.grid[1], launch.grid[2],
                                                 launch.shared_bytes, api_.describe(error)));
}

Result<std::uint64_t> LoadedKernel::counter(const char* name) const {
  CUdeviceptr memory = 0;
  std::size_t bytes = 0;
  std::uint64_t value = 0;
  if (const auto error = api_.cuLibraryGetGlobal(&memory, &bytes, library_, name))
    return Status(Code::not_supported,
                  fmt::format("{} has no counter '{}': {}", entry_, name, api_.describe(error)));
  if (bytes != sizeof value)
    return Status(Code::internal, fmt::format("'{}' of {} is no 64-bit counter", name, entry_));
  if (const auto error = api_.cuMemcpyDtoH(&value, memory, sizeof value))
    return api_.check(error, "reading a counter");
  return value;
}

Status LoadedKernel::launch(const Launch& launch, const qt_args& args, CUstream stream) const {
  if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0) return {};
  if (launch.map_count == 0) return enqueue(launch, args, stream, cache_.maps);
  if (!cache_taken_.test_and_set(std::memory_order_acquire)) {
    // The launch copies its parameters, so the cache is free again once it returns.
    Status status = encode(launch, args, cache_);
    if (status.ok()) status = enqueue(launch, args, stream, cache_.maps);
    cache_taken_.clear(std::memory_order_release);
    return status;
  }
  EncodedMaps own;
  if (auto status = encode(launch, args, own); !status.ok()) return status;
  return enqueue(launch, args, stream, own.maps);
}

}  // namespace quarterturn::cuda
