// What epilogues, prologues and sums cost.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "reference/formats.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/cuda/speed/speed.hpp"

namespace quarterturn::cuda_test {
namespace {

// Where everything that a plan of an epilogue, a prologue or sums may touch lies.
struct Room {
  std::unique_ptr<Memory> a, b;
  Memory d, d_scales, d2, d2_scales, z, sums, weight;

  Room(Device& device, const std::vector<unsigned char>& pattern, std::int64_t a_elements,
       std::int64_t b_elements, std::int64_t d_elements, std::int64_t columns)
      : a(repeated(device, pattern, a_elements * 2)),
        b(repeated(device, pattern, std::max<std::int64_t>(b_elements, 16) * 2)),
        d(device, d_elements * 2),
        d_scales(device, d_elements / 16),
        d2(device, d_elements),
        d2_scales(device, d_elements / 16),
        z(device, d_elements * 2),
        sums(device, columns * 4),
        weight(device, columns * 2) {
    weight.upload(pattern.data());
  }
};

qt_args args_of(const Problem& p, const Room& room) {
  const auto columns = multiplies(p.op) ? output_columns(p.epilogue, p.n.hi) : p.k.hi;
  qt_args args{};
  args.m = p.m.hi;
  args.n = p.n.hi;
  args.k = p.k.hi;
  args.batch = args.groups = 1;
  args.a = {room.a->data(), nullptr, input_columns(p.prologue, p.k.hi), 0, 0, 0};
  args.b = {room.b->data(), nullptr, p.k.hi, 0, 0, 0};
  if (p.d_type == DType::mxfp4) {
    args.d = packed_operand(p.d_layout, p.m.hi, columns, 32, room.d.data(), room.d_scales.data());
    args.d2 =
        packed_operand(p.d_layout, columns, p.m.hi, 32, room.d2.data(), room.d2_scales.data());
  } else {
    args.d = {room.d.data(), nullptr, columns, 0, 0, 0};
  }
  args.z = {room.z.data(), nullptr, p.n.hi, 0, 0, 0};
  args.aux = {room.a->data(), nullptr, aux_columns(p.epilogue, p.n.hi), 0, 0, 0};
  args.norm_weight = room.weight.data();
  args.epsilon = 1e-5f;
  args.bias_gradient = room.sums.data<float>();
  args.alpha = 1;
  return args;
}

}  // namespace

void epilogue_speeds(Device& device, Meter& meter, const std::vector<unsigned char>& pattern) {
  DeviceBackend backend(device);
  constexpr std::string_view kExact = "cuda_gemm_bf16";
  constexpr std::int64_t tokens = 8192, wide = 28672, hidden = 4096;
  const Room room(device, pattern, tokens * wide, wide * hidden, tokens * wide, wide);
  const auto time_plan = [&](const std::string& name, const Problem& p, const Plan& plan) {
    const auto built = Executable::build(backend, p, plan);
    require(built.status());
    Memory workspace(device, (*built)->workspace_bytes());
    auto args = args_of(p, room);
    args.workspace = workspace.data();
    const auto reading =
        meter.read([&](int) { require((*built)->run(args, device.stream())); }, 0.3);
    std::cout << fmt::format("  {:<44} {:9.1f} us  {:9.1f} us sustained  {} MHz\n", name,
                             reading.burst * 1e6, reading.sustained * 1e6, reading.clock);
  };
  const auto time = [&](const std::string& name, const Problem& p) {
    const auto plan = default_plan(p, device.target());
    require(plan.status());
    time_plan(name, p, *plan);
  };
  for (const bool narrow : {false, true}) {
    Problem p;
    p.op = Op::hadamard_gemm;
    p.role = Role::fprop;
    p.m = {1, tokens};
    p.n = Extent::exactly(wide);
    p.k = Extent::exactly(hidden);
    p.a_type = p.b_type = p.d_type = DType::bf16;
    p.rotation = 32;
    p.contract = Contract::fast;
    p.spread = narrow ? Spread::narrow : Spread::any;
    std::cout << fmt::format("hadamard_gemm {}x{}x{} bf16, spread {}\n", tokens, wide, hidden,
                             name_of(p.spread));
    time("no activation", p);
    for (const auto epilogue :
         {Epilogue::swiglu_split, Epilogue::swiglu_interleaved, Epilogue::gelu_tanh}) {
      p.epilogue = epilogue;
      time(std::string(name_of(epilogue)), p);
    }
    p.epilogue = Epilogue::swiglu_split;
    p.pre_activation = PreActivation::kept;
    time("swiglu_split, z kept", p);
    p.pre_activation = PreActivation::dropped;
    p.op = Op::gemm_quantize;
    p.d_type = DType::mxfp4;
    time("swiglu_split, quantised rows", p);
    p.copies = Copies::both;
    time("swiglu_split, quantised both", p);
    Problem back = p;
    back.op = Op::hadamard_gemm;
    back.copies = Copies::rows;
    back.d_type = DType::bf16;
    back.n = Extent::exactly(wide / 2);
    back.epilogue = Epilogue::none;
    time(fmt::format("{} columns, no activation", wide / 2), back);
    back.epilogue = Epilogue::dswiglu;
    time(fmt::format("{} columns, dswiglu", wide / 2), back);
  }
  // The best predictions of bf16 products whose result a step quantises, and they themselves.
  for (const auto epilogue : {Epilogue::none, Epilogue::swiglu_split, Epilogue::gelu_tanh})
    for (const bool one : {false, true}) {
      Problem p;
      p.op = Op::gemm_quantize;
      p.role = Role::fprop;
      p.m = {1, tokens};
      p.n = Extent::exactly(wide);
      p.k = Extent::exactly(hidden);
      p.a_type = p.b_type = DType::bf16;
      p.d_type = DType::mxfp4;
      p.rotation = 32;
      p.epilogue = epilogue;
      for (const auto& plan : plans(p, device.target(), 5000)) {
        if (quantizes_in_product(p, plan) != one || plan.main_step().variant.family != kExact)
          continue;
        time_plan(fmt::format("{} {}, quantised {}", kExact, name_of(epilogue),
                              one ? "in one kernel" : "by a step"),
                  p, plan);
        break;
      }
    }
  for (const Layout layout : {Layout::plain, Layout::e5m2}) {
    Problem p;
    p.op = Op::quantize;
    p.role = Role::fprop;
    p.m = {1, tokens};
    p.k = Extent::exactly(hidden);
    p.a_type = DType::bf16;
    p.d_type = DType::mxfp4;
    p.d_layout = layout;
    p.rotation = 32;
    std::cout << fmt::format("quantize {}x{} bf16 to {}\n", tokens, hidden, name_of(layout));
    time("alone", p);
    p.prologue = Prologue::rmsnorm;
    time("behind rmsnorm", p);
    p.k = Extent::exactly(wide / 2);
    p.prologue = Prologue::none;
    time(fmt::format("{} columns", wide / 2), p);
    p.prologue = Prologue::swiglu_split;
    time(fmt::format("{} columns, swiglu_split", wide / 2), p);
    if (layout != Layout::plain) continue;
    p.copies = Copies::both;
    time(fmt::format("{} columns, swiglu_split, both", wide / 2), p);
    p.prologue = Prologue::none;
    time(fmt::format("{} columns, both", wide / 2), p);
    p.bias_gradient = BiasGradient::f32;
    time(fmt::format("{} columns, both, and sums", wide / 2), p);
  }
}

}  // namespace quarterturn::cuda_test
