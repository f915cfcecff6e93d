// A decode loop on an NVIDIA GPU: a stack of layers, captured once as a CUDA graph and replayed a
// token at a time. prepare comes before the capture; run may be inside of it.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <quarterturn/quarterturn.hpp>
#include <vector>

#include "cuda_driver.hpp"

namespace qt = quarterturn;

namespace {

constexpr int64_t kBatch = 8, kHidden = 2048;
constexpr int kLayers = 4, kTokens = 64;

std::vector<uint16_t> bf16(int64_t count, float size, uint32_t seed) {
  std::vector<uint16_t> out(count);
  for (auto& value : out) {
    seed = seed * 1664525u + 1013904223u;
    const float x = size * (float(seed >> 8) / float(1 << 23) - 1);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    value = uint16_t(bits >> 16);
  }
  return out;
}

class Decoder {
 public:
  Decoder(const Cuda& cuda, const qt::Context& context)
      : cuda_(cuda),
        plan_(context.prepare(qt::Problem::linear(kHidden, kHidden).tokens(1, 16))),
        workspace_(cuda, plan_.workspace_bytes()),
        a_(cuda, kBatch * kHidden * 2),
        b_(cuda, kBatch * kHidden * 2) {
    Cuda::check(cuda.stream_create(&stream_, 1));  // one that does not block on the default stream
    for (int layer = 0; layer < kLayers; ++layer) {
      // Rows of such numbers keep the size of what they multiply.
      const auto values = bf16(kHidden * kHidden, std::sqrt(3.0f / kHidden), 100 + layer);
      const DeviceMemory given(cuda, values.size() * 2);
      Cuda::check(cuda.upload(given.address(), values.data(), values.size() * 2));
      weights_.push_back(plan_.pack(qt::matrix(QTURN_BF16, given.get()), stream_));
      Cuda::check(cuda.stream_synchronize(stream_));
    }
  }

  /// The state of all sequences before the first token.
  void begin() {
    const auto x = bf16(kBatch * kHidden, 1, 7);
    Cuda::check(cuda_.upload(a_.address(), x.data(), x.size() * 2));
  }

  /// One token: every layer, from the state into the state. Only enqueues.
  void step() {
    const DeviceMemory *from = &a_, *to = &b_;
    for (const auto& weight : weights_) {
      plan_.run(from->get(), weight, to->get(), kBatch, workspace_.get(), plan_.workspace_bytes(),
                stream_);
      std::swap(from, to);
    }
    if (from != &a_)
      Cuda::check(cuda_.copy_async(a_.address(), from->address(), kBatch * kHidden * 2, stream_));
  }

  /// The same step as a graph.
  Cuda::Handle capture() {
    Cuda::Handle graph = nullptr, executable = nullptr;
    Cuda::check(cuda_.begin_capture(stream_, 1));  // of this thread alone
    step();
    Cuda::check(cuda_.end_capture(stream_, &graph));
    Cuda::check(cuda_.instantiate(&executable, graph, 0));
    Cuda::check(cuda_.destroy_graph(graph));
    return executable;
  }

  void wait() { Cuda::check(cuda_.stream_synchronize(stream_)); }
  Cuda::Handle stream() const { return stream_; }

  std::vector<uint16_t> state() {
    wait();
    std::vector<uint16_t> out(kBatch * kHidden);
    Cuda::check(cuda_.download(out.data(), a_.address(), out.size() * 2));
    return out;
  }

 private:
  const Cuda& cuda_;
  qt::Plan plan_;
  DeviceMemory workspace_, a_, b_;
  std::vector<qt::Weight> weights_;
  Cuda::Handle stream_ = nullptr;
};

template <class Step>
double microseconds(Decoder& decoder, const Step& step) {
  decoder.begin();
  decoder.wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int token = 0; token < kTokens; ++token) step();
  decoder.wait();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return took.count() / kTokens;
}

}  // namespace

int main() {
  Cuda cuda;
  std::string why;
  if (!cuda.open(why)) {
    std::printf("SKIPPED: %s\n", why.c_str());
    return 0;
  }
  qturn_context_options options;
  qturn_context_options_init(&options);
  options.backend = QTURN_BACKEND_CUDA;
  const qt::Context context(&options);
  Decoder decoder(cuda, context);

  decoder.begin();
  decoder.step();  // loads whatever a first run loads
  decoder.wait();
  const double eager = microseconds(decoder, [&] { decoder.step(); });
  const auto wanted = decoder.state();

  const auto graph = decoder.capture();
  const double replayed =
      microseconds(decoder, [&] { Cuda::check(cuda.launch_graph(graph, decoder.stream())); });
  const bool same = decoder.state() == wanted;
  Cuda::check(cuda.destroy_executable(graph));

  std::printf(
      "%d layers of %lld, %lld sequences: %.1f us a token enqueued, %.1f us as a graph; %s\n",
      kLayers, static_cast<long long>(kHidden), static_cast<long long>(kBatch), eager, replayed,
      same ? "the same bits" : "OTHER BITS");
  return same ? 0 : 1;
}
