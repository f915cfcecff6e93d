// Products of a mixture of 8 experts, 8192 tokens, beside one dense product of as many tokens by
// the same family. Each figure is the median of rounds in which all calls of a block take turns;
// products count with their stand-in, as plans run them.
#include <algorithm>
#include <iostream>

#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {
namespace {

constexpr std::int64_t kTokens = 8192, kExperts = 8;

// The seconds of one of `count` launches.
class Clock {
 public:
  explicit Clock(Device& device) : device_(device) {
    device.check(device.api().cuEventCreate(&start_, 0), "event");
    device.check(device.api().cuEventCreate(&stop_, 0), "event");
  }
  template <class Launch>
  double time(const Launch& launch, int count) {
    device_.check(device_.api().cuEventRecord(start_, device_.stream()), "record");
    for (int i = 0; i < count; ++i) launch();
    device_.check(device_.api().cuEventRecord(stop_, device_.stream()), "record");
    device_.check(device_.api().cuEventSynchronize(stop_), "wait");
    float ms = 0;
    device_.check(device_.api().cuEventElapsedTime(&ms, start_, stop_), "time");
    return double(ms) * 1e-3 / count;
  }

 private:
  Device& device_;
  cuda::CUevent start_ = nullptr, stop_ = nullptr;
};

// A product, its stand-in, and their arguments.
struct Call {
  std::string name;
  Problem problem, unfit;
  const Family* family;
  Variant variant, exact;
  qt_args args{};
  std::vector<double> seconds{};
  const cuda::LoadedKernel *kernel = nullptr, *exact_kernel = nullptr;
  Launch launch{}, exact_launch{};

  void load(Device& device) {
    kernel = &device.kernel(*family, problem, variant);
    exact_kernel = &device.kernel(cuda::stand_in(), unfit, exact);
    launch = family->launch(problem, variant, args, device.units());
    exact_launch = cuda::stand_in().launch(unfit, exact, args, device.units());
  }
  void run(Device& device) const {
    require(kernel->launch(launch, args, device.stream()));
    require(exact_kernel->launch(exact_launch, args, device.stream()));
  }
  double median() const {
    auto sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

Problem product(const Family& family, Grouping grouping, const Shape& s) {
  Problem p;
  p.op = Op::gemm;
  p.grouping = grouping;
  if (grouping != Grouping::none) p.groups = Extent::exactly(kExperts);
  p.a_type = p.b_type = DType::mxfp4;
  p.rotation = 32;
  const bool int8 = &family == &cuda::gemm_int8();
  p.contract = int8 ? Contract::exact : Contract::fast;
  p.spread = int8 ? Spread::narrow : Spread::any;
  p.n = Extent::exactly(s.n);
  p.role = Role::fprop;
  p.m = {0, kTokens};
  p.k = Extent::exactly(s.k);
  p.d_type = DType::bf16;
  return p;
}

Call call_of(Device& device, std::string name, const Family& family, const Problem& p) {
  Call out{std::move(name), p, p, &family, family.default_variant(p, device.target()), {}};
  out.unfit.a_layout = out.unfit.b_layout = family.a_layout(p, out.variant);
  out.exact = *family.stand_in(p, out.variant);
  return out;
}

std::vector<std::int32_t> ends_of(bool ragged) {
  std::vector<std::int32_t> out;
  const std::int32_t sizes[] = {311, 2203, 97, 1340, 1811, 640, 1, 1789};  // 8192 in all
  for (std::int32_t g = 0, end = 0; g < kExperts; ++g)
    out.push_back(end += ragged ? sizes[g] : static_cast<std::int32_t>(kTokens / kExperts));
  return out;
}

// [entries, rows, k] quantised from bf16 of a normal distribution, all entries from the same X.
void fill(Device& device, const Memory& x, Layout layout, std::int64_t rows, std::int64_t k,
          std::int64_t entries, const qt_tensor& to) {
  Problem p;
  p.op = Op::quantize;
  p.m = {0, 1 << 20};
  p.k = Extent::exactly(k);
  p.a_type = DType::bf16;
  p.d_type = DType::mxfp4;
  p.rotation = 32;
  p.d_layout = layout;
  p.batch = {1, kExperts};
  qt_args args{};
  args.m = rows;
  args.k = k;
  args.batch = entries;
  args.a = dense_matrix(rows, k, x.data());
  args.a.batch_stride = 0;
  args.d = to;
  device.run(cuda::quantize(), p, cuda::quantize().default_variant(p, device.target()), args);
}

void measure(Device& device, Clock& clock, std::vector<Call>& calls, double seconds,
             double operations) {
  std::vector<std::pair<Source, std::string>> sources;
  for (const auto& c : calls) {
    sources.emplace_back(c.family->emit(c.problem, device.target(), c.variant), c.name);
    sources.emplace_back(cuda::stand_in().emit(c.unfit, device.target(), c.exact), c.name);
  }
  compile_all(device, sources);
  for (auto& c : calls) c.load(device);
  for (const auto& c : calls) c.run(device);
  const double guess = clock.time([&] { calls[0].run(device); }, 4);
  constexpr int rounds = 7;
  const int count = std::max(2, static_cast<int>(seconds / rounds / guess));
  for (int round = 0; round < rounds; ++round)
    for (auto& c : calls) c.seconds.push_back(clock.time([&] { c.run(device); }, count));
  for (const auto& c : calls)
    std::cout << fmt::format("  {:<26} {:8.1f} us {:7.0f} TFLOP/s {:6.3f} of dense   {}\n", c.name,
                             c.median() * 1e6, operations / c.median() * 1e-12,
                             calls[0].median() / c.median(), c.variant.text());
}

void products(Device& device, Clock& clock, const Memory& x, const Family& family, const Shape& s,
              double seconds) {
  const auto layout = family.a_layout({}, {});
  // Masked groups have room for twice the tokens of an even share.
  constexpr std::int64_t room = 2 * kTokens / kExperts;
  Memory a(device, kExperts * room * s.k), a_references(device, kExperts * room),
      b(device, kExperts * s.n * s.k), b_references(device, kExperts * s.n),
      d(device, kExperts * room * s.n * 2);
  const Memory even(device, ends_of(false)), ragged(device, ends_of(true)),
      counts(device, std::vector<std::int32_t>(kExperts, kTokens / kExperts));
  const auto rows = packed_operand(layout, kTokens, s.k, 32, a.data(), a_references.data());
  const auto masked = packed_operand(layout, room, s.k, 32, a.data(), a_references.data());
  const auto weights = packed_operand(layout, s.n, s.k, 32, b.data(), b_references.data());
  fill(device, x, layout, room, s.k, kExperts, masked);
  fill(device, x, layout, s.n, s.k, kExperts, weights);
  qt_args args{};
  args.m = kTokens;
  args.n = s.n;
  args.k = s.k;
  args.batch = args.groups = 1;
  args.a = rows;
  args.b = weights;
  args.d = dense_matrix(kTokens, s.n, d.data());
  args.alpha = 1;
  std::vector<Call> calls;
  const auto add = [&](const char* name, Grouping grouping, const Memory* sizes) -> qt_args& {
    calls.push_back(call_of(device, name, family, product(family, grouping, s)));
    calls.back().args = args;
    if (sizes) {
      calls.back().args.groups = kExperts;
      calls.back().args.group_sizes = sizes->data<int>();
    }
    return calls.back().args;
  };
  add("dense", Grouping::none, nullptr);
  add("contiguous, even", Grouping::m_contiguous, &even);
  add("contiguous, ragged", Grouping::m_contiguous, &ragged);
  qt_args& of_masked = add("masked, half full", Grouping::m_masked, &counts);
  of_masked.m = room;
  of_masked.batch = kExperts;
  of_masked.a = masked;
  of_masked.d = dense_matrix(room, s.n, d.data());
  std::cout << fmt::format("{} tokens {} experts {} n {} k {}\n", family.name(), kTokens, kExperts,
                           s.n, s.k);
  measure(device, clock, calls, seconds, 2.0 * kTokens * double(s.n) * double(s.k));
}

}  // namespace

void grouped_speeds(Device& device, Meter&, const Pattern& pattern) {
  Clock clock(device);
  const auto x = repeated(device, pattern, 14336 * 4096 * 2);
  for (const Family* family : {&cuda::gemm_e5m2(), &cuda::gemm_int8()})
    for (const Shape& s :
         {Shape{kTokens, 4096, 4096}, Shape{kTokens, 14336, 4096}, Shape{kTokens, 4096, 14336}})
      products(device, clock, *x, *family, s, 0.15);
}

}  // namespace quarterturn::cuda_test
