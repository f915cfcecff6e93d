// Grouped calls of the C interface on a GPU: sizes are read when the work runs, so that one
// recorded graph serves whatever a router decides.
#include "tests/cuda_api/support.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_api;

namespace {

constexpr int64_t kExperts = 5, kN = 208, kK = 320, kMost = 260;

qturn_problem experts(int32_t grouping, int32_t b_type, int32_t contract) {
  auto p = linear(kMost, kN, kK, b_type, QTURN_F32);
  p.grouping = grouping;
  p.groups = {kExperts, kExperts};
  p.contract = contract;
  return p;
}

// Rows first..end of X [*, k], by W [n, k] of expert `g`.
double worst_of_rows(const std::vector<float>& x, const std::vector<float>& w, int64_t g,
                     int64_t first, int64_t end, const std::vector<float>& d, int32_t contract) {
  const std::vector<float> rows(x.begin() + first * kK, x.begin() + end * kK),
      weights(w.begin() + g * kN * kK, w.begin() + (g + 1) * kN * kK),
      got(d.begin() + first * kN, d.begin() + end * kN);
  return worst_error(expected_product(rows, weights, end - first, kN, kK), got, kK, QTURN_F32,
                     contract);
}

bool untouched(const std::vector<float>& d, int64_t first, int64_t end) {
  return std::all_of(d.begin() + first * kN, d.begin() + end * kN,
                     [](float v) { return std::isnan(v); });
}

struct Graph {
  Gpu& gpu;
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec exec = nullptr;
  Graph(Gpu& device, const Plan& plan, const Call& call, const Stream& stream) : gpu(device) {
    const auto& api = gpu.api();
    gpu.check(api.cuStreamBeginCapture(stream.get(), 0), "begin capture");
    run(plan, call);
    gpu.check(api.cuStreamEndCapture(stream.get(), &graph), "end capture");
    gpu.check(api.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  }
  ~Graph() {
    gpu.api().cuGraphExecDestroy(exec);
    gpu.api().cuGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
};

}  // namespace

TEST_CASE("cuda_api.one graph of experts follows the sizes of groups between its replays") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  const Bf16 x(kExperts * kMost * kK, 1), w(kExperts * kN * kK, 2, 0.05f);
  const Buffer x_memory(gpu, x.bits), w_memory(gpu, w.bits);
  using Sizes = std::vector<std::int32_t>;
  for (const int32_t grouping : {QTURN_M_CONTIGUOUS, QTURN_M_MASKED})
    for (const int32_t contract : {QTURN_EXACT, QTURN_FAST}) {
      const bool masked = grouping == QTURN_M_MASKED;
      const int64_t matrices = masked ? kExperts : 1;
      const auto plan = library.prepare(experts(grouping, QTURN_BF16, contract));
      const Stream stream(gpu);
      Buffer sizes(gpu, Sizes(kExperts, 0));
      Buffer d(gpu, static_cast<std::size_t>(matrices * kMost * kN * 4));
      Call call(gpu, plan, kMost, kN, QTURN_F32, x_memory.data(), w_memory.data(), stream.get());
      call.args.d.data = d.data();
      (masked ? call.args.group_counts : call.args.group_ends) =
          static_cast<const std::int32_t*>(sizes.data());
      const Graph graph(gpu, plan, call, stream);
      for (const Sizes& now :
           masked ? std::vector<Sizes>{{260, 0, 1, 129, 64}, {0, 0, 0, 0, 0}, {3, 260, 0, 0, 7}}
                  : std::vector<Sizes>{
                        {0, 0, 131, 132, 260}, {0, 0, 0, 0, 0}, {52, 104, 156, 208, 255}}) {
        sizes.write(now);
        d.write(std::vector<float>(static_cast<std::size_t>(matrices * kMost * kN), NAN));
        gpu.check(gpu.api().cuGraphLaunch(graph.exec, stream.get()), "launch the graph");
        stream.wait();
        const auto result = d.read<float>();
        for (int64_t g = 0; g < kExperts; ++g) {
          const int64_t size = now[static_cast<std::size_t>(g)];
          const int64_t first = masked   ? g * kMost
                                : g == 0 ? 0
                                         : now[static_cast<std::size_t>(g - 1)];
          const int64_t end = masked ? first + size : size;
          CAPTURE(grouping);
          CAPTURE(g);
          CHECK(worst_of_rows(x.values, w.values, g, first, end, result, contract) <= 1);
          if (masked) CHECK(untouched(result, end, first + kMost));
        }
        if (!masked) CHECK(untouched(result, now.back(), kMost));
      }
    }
}

TEST_CASE("cuda_api.experts' prepared weights serve every group") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  const Bf16 x(kMost * kK, 3), w(kExperts * kN * kK, 4, 0.05f);
  const Buffer x_memory(gpu, x.bits), w_memory(gpu, w.bits);
  const std::vector<std::int32_t> ends = {17, 17, 100, 230, 251};
  const Buffer sizes(gpu, ends);
  for (const int32_t contract : {QTURN_EXACT, QTURN_FAST}) {
    const auto plan = library.prepare(experts(QTURN_M_CONTIGUOUS, QTURN_MXFP4, contract));
    const Stream stream(gpu);
    qturn_operand source;
    qturn_operand_init(&source);
    source.type = QTURN_BF16;
    source.data = w_memory.data();
    qturn_weight* out = nullptr;
    REQUIRE_MESSAGE(
        qturn_weight_create(plan.get(), &source, nullptr, 0, stream.get(), &out) == QTURN_OK,
        qturn_last_error());
    const Weight weight(out);
    Call call(gpu, plan, kMost, kN, QTURN_F32, x_memory.data(), nullptr, stream.get());
    call.args.weight = weight.get();
    call.args.group_ends = static_cast<const std::int32_t*>(sizes.data());
    run(plan, call);
    stream.wait();
    const auto result = call.result();
    for (int64_t g = 0, first = 0; g < kExperts; first = ends[static_cast<std::size_t>(g++)])
      CHECK(worst_of_rows(x.values, w.values, g, first, ends[static_cast<std::size_t>(g)], result,
                          contract) <= 1);
    CHECK(untouched(result, ends.back(), kMost));
  }
}

TEST_CASE("cuda_api.experts' gradients contract their own tokens, and are zero without any") {
  QTURN_NEEDS_GPU(gpu);
  const Library library;
  constexpr int64_t tokens = 700;
  const Bf16 dy(tokens * kN, 5), x(tokens * kK, 6);
  const Buffer dy_memory(gpu, dy.bits), x_memory(gpu, x.bits);
  const std::vector<std::int32_t> ends = {0, 131, 131, 400, 690};
  const Buffer sizes(gpu, ends);
  const auto transposed = [](const std::vector<float>& all, int64_t first, int64_t end,
                             int64_t columns) {
    std::vector<float> out;
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t t = first; t < end; ++t)
        out.push_back(all[static_cast<std::size_t>(t * columns + c)]);
    return out;
  };
  for (const int32_t contract : {QTURN_EXACT, QTURN_FAST}) {
    auto p = experts(QTURN_K_GROUPED, QTURN_BF16, contract);
    p.role = QTURN_WGRAD;
    p.m = {kN, kN};
    p.n = {kK, kK};
    p.k = {0, 1024};
    p.a_major = p.b_major = QTURN_MAJOR_ROWS;
    const auto plan = library.prepare(p);
    const Stream stream(gpu);
    Call call(gpu, plan, kN, kK, QTURN_F32, dy_memory.data(), x_memory.data(), stream.get());
    const Buffer d(gpu, static_cast<std::size_t>(kExperts * kN * kK * 4));
    call.args.d.data = d.data();
    call.args.k = tokens;
    call.args.group_ends = static_cast<const std::int32_t*>(sizes.data());
    run(plan, call);
    stream.wait();
    const auto result = d.read<float>();
    for (int64_t g = 0, first = 0; g < kExperts; first = ends[static_cast<std::size_t>(g++)]) {
      const int64_t end = ends[static_cast<std::size_t>(g)];
      const std::vector<float> got(result.begin() + g * kN * kK,
                                   result.begin() + (g + 1) * kN * kK);
      CAPTURE(g);
      CHECK(worst_error(expected_product(transposed(dy.values, first, end, kN),
                                         transposed(x.values, first, end, kK), kN, kK, end - first),
                        got, end - first, QTURN_F32, contract) <= 1);
    }
  }
}
