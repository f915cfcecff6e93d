// A linear layer, rotated and rounded to MXFP4, on the device at hand.
#include <cmath>
#include <cstdio>
#include <quarterturn/quarterturn.hpp>
#include <vector>

namespace qt = quarterturn;

int main() {
  const int64_t tokens = 16, in = 896, out = 4864;
  std::vector<float> x(tokens * in), w(out * in), y(tokens * out);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.7f * float(i));
  for (size_t i = 0; i < w.size(); ++i) w[i] = std::sin(0.7f * float(i % in));

  qt::Context context;
  qt::Problem layer = qt::Problem::linear(out, in).tokens(1, 512).types(QTURN_F32, QTURN_F32);
  qt::Plan plan = context.prepare(layer);                          // may compile
  qt::Weight weight = plan.pack(qt::matrix(QTURN_F32, w.data()));  // once

  std::vector<char> workspace(plan.workspace_bytes());
  plan.run(x.data(), weight, y.data(), tokens, workspace.data(), workspace.size());  // often
  std::printf("y[0][0] = %g, from %d products of sines\n", y[0], int(in));
}
