// The C++ face: owning handles that throw.
#include <quarterturn/quarterturn.hpp>

#include "tests/runtime/api.hpp"

namespace qt = quarterturn::v0;
using quarterturn::api::values;

TEST_CASE("quarterturn.hpp.a linear layer from end to end") {
  quarterturn::api::Options options;
  const qt::Context context(&options.c);
  const auto problem = qt::Problem::linear(48, 96).tokens(0, 16).types(QTURN_F32, QTURN_F32);
  CHECK(context.supports(problem));
  const qt::Plan plan = context.prepare(problem);
  const auto x = values(4 * 96, 1), w = values(48 * 96, 2);
  const qt::Weight weight = plan.pack(qt::matrix(QTURN_F32, w.data()));
  std::vector<float> y(4 * 48), z(4 * 48);
  std::vector<char> workspace(plan.workspace_bytes());
  plan.run(x.data(), weight, y.data(), 4, workspace.data(), workspace.size());
  const auto image = weight.serialize();
  const qt::Weight copy = context.deserialize(image.data(), image.size());
  plan.run(x.data(), copy, z.data(), 4, workspace.data(), workspace.size());
  CHECK(y == z);
  CHECK(context.stats().runs == 2);
  quarterturn::api::Options other;
  CHECK(context.snapshot_hash() == qt::Context(&other.c).snapshot_hash());
  CHECK(plan.match() == QTURN_MATCH_HEURISTIC);
  const auto report = context.reload(QTURN_RELOAD_REPLACE);
  CHECK(report.changed == 0);
  CHECK(report.prepared_changed == 0);
  const auto metrics = context.metrics_text(QTURN_METRICS_WITH_DEVICE);
  CHECK(metrics.find("qturn_runs_total{backend=\"cpu\",device=\"0\"} 2\n") != std::string::npos);
  CHECK(metrics.back() == '\n');
  CHECK(context.explain(problem).find("hadamard_gemm") != std::string::npos);
}

TEST_CASE("quarterturn.hpp.a failure is an exception with status and message") {
  quarterturn::api::Options options;
  const qt::Context context(&options.c);
  const auto problem = qt::Problem::linear(48, 95);
  CHECK_FALSE(context.supports(problem));
  try {
    context.prepare(problem);
    FAIL("95 features cannot be prepared");
  } catch (const qt::Error& error) {
    CHECK(error.status() == QTURN_INVALID_PROBLEM);
    CHECK(std::string(error.what()).find("invalid_problem: k = 95") == 0);
  }
}
