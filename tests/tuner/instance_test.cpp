// Instances: rows read back alone are those of the whole result, and gaps between rows are watched.
#include "tuner/instance.hpp"

#include <cstring>

#include "tests/tuner/real_device.hpp"
#include "tuner/workload.hpp"

using namespace quarterturn;

TEST_CASE("rows of a result are those of the whole, with gaps and without") {
  const auto device = real_device();
  InstanceSpec spec;
  spec.problem = linear_problem({"layer", 96, 128, 1}, Role::fprop, Extent::exactly(40), Recipe{});
  spec.sizes = {40, 96, 128, 1};
  const auto plan = default_plan(spec.problem, device->device().target);
  REQUIRE(plan.ok());
  const auto executable = Executable::build(*device, spec.problem, *plan);
  REQUIRE_MESSAGE(executable.ok(), executable.status().message());
  for (const Rows rows : {Rows::tight, Rows::wider}) {
    spec.rows = rows;
    auto instance = Instance::make(*device, spec);
    REQUIRE(instance.ok());
    auto args = (*instance)->arguments(**executable);
    REQUIRE_MESSAGE(args.ok(), args.status().message());
    REQUIRE((*executable)->run(*args, nullptr).ok());
    Outputs whole, some;
    REQUIRE((*instance)->result(whole).ok());
    const std::vector<std::int64_t> chosen{0, 7, 39};
    REQUIRE((*instance)->result_rows(chosen, some).ok());
    CHECK(whole.size() == 40 * 96);
    REQUIRE(some.size() == 3 * 96);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 96; ++j)
        CHECK(some.at(i * 96 + j) == whole.at(chosen[static_cast<std::size_t>(i)] * 96 + j));
    CHECK((*instance)->check_memory(Instance::Inputs::compared).ok());
    if (rows == Rows::tight) continue;
    // One element behind the end of row 7.
    auto* const behind =
        static_cast<char*>(args->d.data) + (7 * args->d.ld + 96) * bytes_of(spec.problem.d_type);
    std::memset(behind, 0, 1);
    CHECK((*instance)->result(whole).code() == Code::rejected);
    CHECK((*instance)->result_rows(chosen, some).code() == Code::rejected);
    CHECK((*instance)->result_rows({0, 39}, some).ok());
  }
}

TEST_CASE("an input that a kernel changed is noticed") {
  const auto device = real_device();
  InstanceSpec spec;
  spec.problem = linear_problem({"layer", 32, 64, 1}, Role::fprop, Extent::exactly(8), Recipe{});
  spec.sizes = {8, 32, 64, 1};
  const auto plan = default_plan(spec.problem, device->device().target);
  const auto executable = Executable::build(*device, spec.problem, *plan);
  REQUIRE_MESSAGE(executable.ok(), executable.status().message());
  auto instance = Instance::make(*device, spec);
  REQUIRE(instance.ok());
  auto args = (*instance)->arguments(**executable);
  REQUIRE(args.ok());
  CHECK((*instance)->check_memory(Instance::Inputs::compared).ok());
  static_cast<unsigned char*>(args->a.data)[101] ^= 1;
  CHECK((*instance)->check_memory(Instance::Inputs::compared).code() == Code::rejected);
  CHECK((*instance)->check_memory(Instance::Inputs::trusted).ok());
}
