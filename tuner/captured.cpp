#include "tuner/captured.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "generator/digest.hpp"
#include "generator/problem.hpp"
#include "tuner/inputs.hpp"

namespace quarterturn {
namespace {

constexpr std::string_view kNumpy = "\x93NUMPY";
constexpr std::uint64_t kMostHeader = 100 << 20;
constexpr std::int64_t kMostSide = std::int64_t{1} << 40;

Status refuse(const std::string& path, std::string_view why) {
  return Status(
      Code::invalid_argument,
      fmt::format("{}: {}; a matrix in a .npy or .safetensors file is wanted", path, why));
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t out = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    out = out << 8 | static_cast<unsigned char>(bytes[i]);
  return out;
}

std::string_view after(std::string_view text, std::string_view word) {
  const auto at = text.find(word);
  return at == std::string_view::npos ? std::string_view{} : text.substr(at + word.size());
}

bool take_number(std::string_view& text, std::int64_t& out) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '(' || text.front() == ','))
    text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

Result<std::shared_ptr<const Captured>> Captured::open(const std::string& path) {
  std::string file = path, wanted;
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) {
    // "FILE:NAME", unless a file is called so.
    const auto colon = path.rfind(':');
    if (colon == std::string::npos) return refuse(path, std::strerror(errno));
    file = path.substr(0, colon);
    wanted = path.substr(colon + 1);
    if (::stat(file.c_str(), &info) != 0) return refuse(file, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode) || info.st_size < 16) return refuse(file, "it is no such file");
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return refuse(file, std::strerror(errno));
  const auto size = static_cast<std::size_t>(info.st_size);
  void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  if (at == MAP_FAILED) return refuse(file, std::strerror(errno));
  std::shared_ptr<Captured> out(new Captured);
  out->mapping_ = std::shared_ptr<const void>(
      at, [size](const void* mapped) { munmap(const_cast<void*>(mapped), size); });
  if (auto status = out->find_matrix({static_cast<const char*>(at), size}, wanted, file);
      !status.ok())
    return status;
  return std::shared_ptr<const Captured>(std::move(out));
}

Status Captured::find_matrix(std::string_view bytes, std::string_view wanted,
                             const std::string& path) {
  if (!bytes.starts_with(kNumpy)) return parse_safetensors(bytes, wanted, path);
  if (!wanted.empty()) return refuse(path, "a .npy file has one matrix and no names");
  return parse_npy(bytes, path);
}

// Magic, version, length of the header, and a Python dictionary (NumPy's format specification).
Status Captured::parse_npy(std::string_view bytes, const std::string& path) {
  const bool old = bytes[6] == 1;
  const std::uint64_t head = old ? 10 : 12;
  const auto length = little_endian(bytes.substr(8, old ? 2 : 4));
  if (bytes.size() < head || length > bytes.size() - head)
    return refuse(path, "its header is cut off");
  const auto text = bytes.substr(head, length);
  const auto descr = after(text, "'descr': '").substr(0, 3);
  if (descr != "<f4" && descr != "<f2")
    return refuse(path, fmt::format("its type '{}' is neither float32 nor float16", descr));
  type_ = descr == "<f4" ? DType::f32 : DType::f16;
  if (!after(text, "'fortran_order': ").starts_with("False"))
    return refuse(path, "it is in Fortran order");
  auto shape = after(text, "'shape': ");
  shape = shape.substr(0, shape.find(')'));
  std::int64_t more = 0;
  if (!take_number(shape, rows_) || !take_number(shape, columns_) || take_number(shape, more))
    return refuse(path, "it does not have two dimensions");
  return settle(bytes, head + length, bytes.size(), path);
}

// Length of the header in 8 bytes, JSON, tensors (the format's README).
Status Captured::parse_safetensors(std::string_view bytes, std::string_view wanted,
                                   const std::string& path) {
  const auto length = little_endian(bytes.substr(0, 8));
  if (length > kMostHeader || length > bytes.size() - 8)
    return refuse(path, "it is neither .npy nor safetensors, or cut off");
  const auto json = nlohmann::json::parse(bytes.substr(8, length), nullptr, false);
  if (!json.is_object()) return refuse(path, "its header is not a JSON object");
  for (const auto& [name, tensor] : json.items()) {
    if (!wanted.empty() && name != wanted) continue;
    if (!tensor.is_object() || !tensor.contains("shape") || !tensor["shape"].is_array() ||
        tensor["shape"].size() != 2 || !tensor.contains("dtype") || !tensor["dtype"].is_string())
      continue;
    const auto& dtype = tensor["dtype"].get_ref<const std::string&>();
    if (dtype != "F32" && dtype != "F16" && dtype != "BF16") continue;
    const auto offsets = tensor.value("data_offsets", nlohmann::json());
    const auto is_size = [](const nlohmann::json& value) { return value.is_number_unsigned(); };
    if (!is_size(tensor["shape"][0]) || !is_size(tensor["shape"][1]) || !offsets.is_array() ||
        offsets.size() != 2 || !is_size(offsets[0]) || !is_size(offsets[1]))
      return refuse(path, fmt::format("tensor '{}' has no sound shape or offsets", name));
    type_ = dtype == "F32" ? DType::f32 : dtype == "F16" ? DType::f16 : DType::bf16;
    rows_ = static_cast<std::int64_t>(
        std::min<std::uint64_t>(tensor["shape"][0].get<std::uint64_t>(), kMostSide));
    columns_ = static_cast<std::int64_t>(
        std::min<std::uint64_t>(tensor["shape"][1].get<std::uint64_t>(), kMostSide));
    const auto room = bytes.size() - 8 - length;
    const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
    if (begin > end || end > room)
      return refuse(path, fmt::format("tensor '{}' lies outside the file", name));
    return settle(bytes, 8 + length + begin, 8 + length + end, path);
  }
  return refuse(path, wanted.empty() ? std::string("it has no matrix of F32, F16 or BF16")
                                     : fmt::format("it has no such matrix called '{}'", wanted));
}

Status Captured::settle(std::string_view bytes, std::uint64_t offset, std::uint64_t end,
                        const std::string& path) {
  if (rows_ < 1 || columns_ < 1 || rows_ > kMostSide / columns_)
    return refuse(path, fmt::format("it is {} x {}", rows_, columns_));
  const auto size = static_cast<std::uint64_t>(rows_ * columns_ * bytes_of(type_));
  if (offset > end || size > end - offset)
    return refuse(path, fmt::format("{} x {} elements are more than it holds", rows_, columns_));
  const auto values = bytes.substr(offset, size);
  data_ = reinterpret_cast<const unsigned char*>(values.data());
  const auto digest =
      sha256(fmt::format("{} {} {} {}", rows_, columns_, name_of(type_), hex(sha256(values))));
  name_ = fmt::format("captured:{}", hex(digest).substr(0, 16));
  return {};
}

float Captured::at(std::int64_t row, std::int64_t column) const {
  return load_element(type_, data_ + (row * columns_ + column) * bytes_of(type_));
}

}  // namespace quarterturn
