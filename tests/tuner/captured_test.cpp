// Matrices of real data from files, which are not trusted.
#include "tuner/captured.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <fstream>

#include "tests/runtime/temporary_folder.hpp"
#include "tuner/inputs.hpp"

using namespace quarterturn;

namespace {

std::string npy(const std::string& dict, const std::vector<float>& values) {
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(dict.size());
  out += '\0';
  out += dict;
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  return out;
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i));
  return out + header + data;
}

struct Files {
  test::TemporaryFolder folder;
  Result<std::shared_ptr<const Captured>> open(const std::string& bytes, const char* name = "") {
    const auto path = folder.file("x");
    std::ofstream(path, std::ios::binary) << bytes;
    return Captured::open(path + name);
  }
  void refused(const std::string& bytes, const std::string& why, const char* name = "") {
    const auto out = open(bytes, name);
    REQUIRE(!out.ok());
    CHECK_MESSAGE(out.status().message().find(why) != std::string::npos, out.status().message());
  }
};

const std::string kDict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

}  // namespace

TEST_CASE("captured.numpy files are read as they were written") {
  Files files;
  const auto data = files.open(npy(kDict, {1, 2, 3, 4, 5, 6}));
  REQUIRE_MESSAGE(data.ok(), data.status().message());
  CHECK((*data)->rows() == 2);
  CHECK((*data)->columns() == 3);
  CHECK((*data)->at(1, 2) == 6);
  CHECK((*data)->name().size() == std::strlen("captured:") + 16);
  // A larger matrix repeats it, rounded to its own type.
  const Matrix matrix(*data, DType::bf16, 5, 7);
  CHECK(matrix.at(3, 5) == 6);
  CHECK(matrix.at(4, 3) == 1);
  const std::string name = (*data)->name();
  const auto other = files.open(npy(kDict, {1, 2, 3, 4, 5, 7}));
  REQUIRE(other.ok());
  CHECK((*other)->name() != name);
}

TEST_CASE("captured.safetensors files give their first matrix, or the named one") {
  Files files;
  const std::string header =
      R"({"__metadata__":{"a":"b"},"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("half":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},)"
      R"("x":{"dtype":"F32","shape":[1,1],"data_offsets":[12,16]}})";
  std::string data(16, '\0');
  const std::uint16_t pair[2] = {0x3f80, 0xc000};
  const float one = 7;
  std::memcpy(&data[8], pair, 4);
  std::memcpy(&data[12], &one, 4);
  const auto first = files.open(safetensors(header, data));
  REQUIRE_MESSAGE(first.ok(), first.status().message());
  CHECK((*first)->type() == DType::bf16);
  CHECK((*first)->at(0, 1) == -2);
  const auto named = files.open(safetensors(header, data), ":x");
  REQUIRE_MESSAGE(named.ok(), named.status().message());
  CHECK((*named)->at(0, 0) == 7);
  files.refused(safetensors(header, data), "no such matrix called 'y'", ":y");
  files.refused(safetensors(header, data.substr(0, 10)), "lies outside the file");
}

TEST_CASE("captured.what does not add up is refused") {
  Files files;
  const std::vector<float> six(6);
  files.refused("short", "no such file");
  files.refused(npy(kDict, {1, 2}), "more than it holds");
  files.refused(npy(kDict, six).substr(0, 30), "cut off");
  files.refused(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }", six), "type");
  files.refused(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", six), "Fortran");
  files.refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }", six),
                "two dimensions");
  files.refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", six), "-2 x 3");
  files.refused(
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2), }", six),
      "x 2");
  files.refused(std::string(64, '\xff'), "cut off");
  files.refused(safetensors("[1, 2, 3, 4, 5]", ""), "not a JSON object");
  files.refused(safetensors(R"({"x":{"dtype":"F32","shape":[-1,4],"data_offsets":[0,16]}})", ""),
                "no sound shape");
  files.refused(safetensors(R"({"x":{"dtype":"F32","shape":[4,4],"data_offsets":[99,3]}})",
                            std::string(64, 0)),
                "outside the file");
  CHECK(!Captured::open(files.folder.file("missing")).ok());
}
