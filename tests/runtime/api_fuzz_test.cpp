// Arguments at random through the C interface: every call ends in a documented status that says
// why, and none reads or writes where it must not.
#include <sys/mman.h>

#include <cstring>

#include "tests/runtime/api.hpp"

using namespace quarterturn;
using namespace quarterturn::api;

namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  /// Mostly one of 0 to most, now and then anything.
  std::int32_t choice(std::int32_t most) {
    return one_in(24) ? static_cast<std::int32_t>(engine_())
                      : static_cast<std::int32_t>(below(most + 1));
  }
  std::int64_t size() {
    static constexpr std::int64_t kSizes[] = {0, 1, 2, 16, 31, 32, 33, 64, 96, 128, 256};
    if (one_in(40)) return static_cast<std::int64_t>(engine_());
    return kSizes[below(std::size(kSizes))];
  }
  qturn_extent extent() {
    const auto a = size();
    return one_in(3) ? qturn_extent{size(), a} : qturn_extent{a, a};
  }

 private:
  std::mt19937_64 engine_;
};

// QTURN_FUZZ_ROUNDS=100 looks that many times longer.
int rounds() {
  const char* given = std::getenv("QTURN_FUZZ_ROUNDS");
  return given ? std::max(1, std::atoi(given)) : 1;
}

// Memory between pages that nobody may touch; `bytes` end at the far one.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes) {
    const std::size_t inside = (bytes + kPage - 1) / kPage * kPage;
    all_ = inside + 2 * kPage;
    base_ = static_cast<char*>(
        mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(mprotect(base_ + kPage, inside, PROT_READ | PROT_WRITE) == 0);
    end_ = base_ + kPage + inside;
  }
  ~Guarded() { munmap(base_, all_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  void* data() const { return end_ - bytes_; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t bytes_, all_ = 0;
  char *base_ = nullptr, *end_ = nullptr;
};

// A sound problem, some of whose members are drawn again.
qturn_problem any_problem(Random& random) {
  static constexpr int32_t kOps[] = {QTURN_OP_QUANTIZE,   QTURN_OP_GEMM,     QTURN_OP_HADAMARD_GEMM,
                                     QTURN_OP_DEQUANTIZE, QTURN_OP_HADAMARD, QTURN_OP_PACK};
  static constexpr int32_t kRotations[] = {0, 16, 32, 64, 128, 256};
  const auto rotation = [&] { return kRotations[random.below(std::size(kRotations))]; };
  qturn_problem p;
  qturn_problem_init(&p);
  p.op = kOps[random.below(std::size(kOps))];
  const bool multiplies = p.op == QTURN_OP_GEMM || p.op == QTURN_OP_HADAMARD_GEMM;
  const bool takes_mx =
      p.op == QTURN_OP_GEMM || p.op == QTURN_OP_DEQUANTIZE || p.op == QTURN_OP_PACK;
  p.m = {0, 1 + random.below(40)};
  p.k = {256, 256};
  p.a_type = takes_mx ? QTURN_MXFP4 : QTURN_BF16 + static_cast<int32_t>(random.below(3));
  p.d_type = p.op == QTURN_OP_QUANTIZE || p.op == QTURN_OP_PACK ? QTURN_MXFP4 : QTURN_F32;
  p.rotation = p.op == QTURN_OP_HADAMARD ? 32 : rotation();
  if (takes_mx) p.a_layout = QTURN_LAYOUT_PLAIN;
  if (multiplies) {
    p.role = QTURN_FPROP;
    p.n = {64, 64};
    p.b_type = takes_mx || random.one_in(2) ? QTURN_MXFP4 : QTURN_F32;
    if (takes_mx) p.b_layout = QTURN_LAYOUT_PLAIN;
  }
  for (auto changes = random.below(4); changes > 0; --changes) switch (random.below(22)) {
      case 0:
        p.op = random.choice(9);
        break;
      case 1:
        p.role = random.choice(3);
        break;
      case 2:
        p.m = random.extent();
        break;
      case 3:
        p.n = random.extent();
        break;
      case 4:
        p.k = random.extent();
        break;
      case 5:
        p.batch = random.extent();
        break;
      case 6:
        p.a_type = random.choice(4);
        break;
      case 7:
        p.b_type = random.choice(4);
        break;
      case 8:
        p.d_type = random.choice(4);
        break;
      case 9:
        p.a_major = random.choice(1);
        break;
      case 10:
        p.b_major = random.choice(1);
        break;
      case 11:
        p.a_layout = random.choice(9);
        break;
      case 12:
        p.d_layout = random.choice(9);
        break;
      case 13:
        p.rotation = random.one_in(4) ? random.choice(300) : rotation();
        break;
      case 14:
        p.signs = random.choice(2);
        break;
      case 15:
        p.scale_rule = random.choice(7);
        break;
      case 16:
        p.a_rounding = random.choice(5);
        break;
      case 17:
        p.epilogue = random.choice(8);
        break;
      case 18:
        p.bias = random.choice(1);
        break;
      case 19:
        p.accumulate = random.choice(1);
        break;
      case 20:
        p.copies = random.choice(2);
        break;
      default:
        switch (random.below(6)) {
          case 0:
            p.scale_block = random.choice(1);
            break;
          case 1:
            p.bias_gradient = random.choice(1);
            break;
          case 2:
            p.prologue = random.choice(3);
            break;
          case 3:
            p.pre_activation = random.choice(1);
            break;
          case 4:
            p.grouping = random.choice(3), p.groups = random.extent();
            break;
          default:
            p.struct_size = static_cast<std::uint32_t>(random.below(1 << 17));
        }
    }
  return p;
}

void check_status(qturn_status status) {
  CHECK(std::string(qturn_status_name(status)) != "unknown");
  if (status != QTURN_OK) CHECK(std::strlen(qturn_last_error()) > 10);
}

// A struct in as much memory as it says it has, as a program of another version gives it.
template <class Struct>
class Claimed {
 public:
  explicit Claimed(const Struct& given)
      : memory_(std::max<std::size_t>(given.struct_size, sizeof given)) {
    std::memcpy(memory_.data(), &given, sizeof given);
  }
  const Struct* get() const { return reinterpret_cast<const Struct*>(memory_.data()); }

 private:
  std::vector<unsigned char> memory_;
};

bool is_small(const qturn_problem& p) {
  for (const auto& extent : {p.m, p.n, p.k, p.batch, p.groups})
    if (extent.hi > 4096) return false;
  return true;
}

}  // namespace

TEST_CASE("fuzz.problems at random are taken or refused with a reason") {
  Options options;
  options.c.jit = QTURN_JIT_OFF;  // prebuilt kernels: nothing is compiled
  options.c.log_level = QTURN_LOG_ERROR;
  const auto context = make_context(options);
  Random random(1);
  int taken = 0;
  for (int i = 0; i < 2500 * rounds(); ++i) {
    const auto p = any_problem(random);
    const Claimed claimed(p);
    const auto status = qturn_supports(context.get(), claimed.get());
    check_status(status);
    taken += status == QTURN_OK;
    char text[64];
    std::memset(text, '?', sizeof text);
    std::size_t needed = 0;
    const auto capacity = static_cast<std::size_t>(random.below(sizeof text));
    check_status(qturn_problem_key(claimed.get(), text, capacity, &needed));
    CHECK(text[capacity] == '?');
  }
  CHECK(taken > 500);
}

TEST_CASE("fuzz.runs at random stay inside the memory that they were given") {
  Options options;
  options.c.jit = QTURN_JIT_OFF;
  options.c.log_level = QTURN_LOG_ERROR;
  const auto context = make_context(options);
  Random random(2);
  int done = 0, refused = 0;
  for (int i = 0; i < 250 * rounds(); ++i) {
    const auto p = any_problem(random);
    const Claimed claimed(p);
    if (!is_small(p) || p.grouping != 0 || qturn_supports(context.get(), claimed.get()) != QTURN_OK)
      continue;
    qturn_plan* made = nullptr;
    const auto prepared = qturn_prepare(context.get(), claimed.get(), &made);
    check_status(prepared);
    if (prepared != QTURN_OK) continue;
    const Plan plan(made);
    std::size_t workspace_bytes = 0;
    REQUIRE(qturn_plan_workspace(plan.get(), &workspace_bytes) == QTURN_OK);
    qturn_args args;
    qturn_args_init(&args);
    args.m = p.m.hi;
    args.n = p.n.hi;
    args.k = p.k.hi;
    args.batch = p.batch.hi;
    std::vector<std::unique_ptr<Guarded>> memory;
    const auto give = [&](std::size_t bytes) {
      // What the plan asks for, and no more.
      memory.push_back(std::make_unique<Guarded>((bytes + 63) / 64 * 64));
      return memory.back()->data();
    };
    struct Place {
      std::int32_t which;
      qturn_operand* operand;
    };
    for (const auto& [which, operand] :
         {Place{QTURN_OPERAND_A, &args.a}, Place{QTURN_OPERAND_B, &args.b},
          Place{QTURN_OPERAND_D, &args.d}, Place{QTURN_OPERAND_D2, &args.d2},
          Place{QTURN_OPERAND_Z, &args.z}}) {
      if (qturn_plan_operand(plan.get(), which, operand) != QTURN_OK) continue;
      if (operand->data_bytes > 0) operand->data = give(operand->data_bytes);
      if (operand->scales_bytes > 0) operand->scales = give(operand->scales_bytes);
    }
    const auto entries = static_cast<std::size_t>(std::max<std::int64_t>(p.batch.hi, 1));
    const auto side = static_cast<std::size_t>(p.m.hi * 2 * p.n.hi) * 4 * entries;
    if (p.accumulate) args.c = give(side);
    if (p.bias) args.bias = give(static_cast<std::size_t>(p.n.hi) * 8);
    if (p.epilogue >= QTURN_EPILOGUE_DGELU) args.aux = give(side);
    if (p.bias_gradient)
      args.bias_gradient = static_cast<float*>(
          give(static_cast<std::size_t>(std::max(p.m.hi, p.k.hi)) * 4 * entries));
    if (p.prologue == QTURN_PROLOGUE_RMSNORM)
      args.norm_weight = give(static_cast<std::size_t>(p.k.hi) * 4);
    args.workspace = give(workspace_bytes);
    args.workspace_bytes = workspace_bytes;
    // Some calls are spoilt: sizes, strides, pointers, meanings.
    if (random.one_in(2)) {
      switch (random.below(12)) {
        case 0:
          args.m = random.size();
          break;
        case 1:
          args.n = random.size();
          break;
        case 2:
          args.k = random.size();
          break;
        case 3:
          args.batch = random.size();
          break;
        case 4:
          args.a.data = nullptr;
          break;
        case 5:
          args.d.data = nullptr;
          break;
        case 6:
          args.workspace_bytes = static_cast<std::size_t>(random.below(64));
          break;
        case 7:
          args.a.type = random.choice(5);
          break;
        case 8:
          args.d.layout = random.choice(12);
          break;
        case 9:
          args.a.ld = -random.below(100);
          break;
        case 10:
          args.struct_size = static_cast<std::uint32_t>(random.below(4096));
          break;
        default:
          args.k0 = random.size();
          break;
      }
    }
    const auto status = qturn_run(plan.get(), Claimed(args).get());
    check_status(status);
    (status == QTURN_OK ? done : refused)++;
  }
  MESSAGE(done << " ran, " << refused << " were refused");
  CHECK(done > 50);
  CHECK(refused > 15);
}
