#include "tuner/trials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "generator/layout.hpp"
#include "tuner/hardware_questions.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kMostRotated = 256 * kMiB;
constexpr std::size_t kMostCopies = 64;

std::int64_t number_after(std::string_view text, std::string_view name) {
  const auto at = text.find(name);
  if (at == std::string_view::npos) return 0;
  std::int64_t value = 0;
  std::from_chars(text.data() + at + name.size(), text.data() + text.size(), value);
  return value;
}

Sizes sizes_at(const Problem& p, std::int64_t tokens) {
  const auto pick = [&](const Extent& extent) {
    return extent.is_static() ? extent.lo : std::clamp(tokens, extent.lo, extent.hi);
  };
  return {pick(p.m), pick(p.n), pick(p.k), p.batch.hi, p.groups.hi};
}

}  // namespace

std::vector<Sizes> representative_sizes(const Problem& p) {
  std::int64_t lo = 0, hi = 0;
  for (const Extent* extent : {&p.m, &p.n, &p.k})
    if (!extent->is_static()) lo = std::max(lo, extent->lo), hi = std::max(hi, extent->hi);
  std::vector<std::int64_t> tokens{hi};
  // Operands that come quantised lie as their full K wants: only the rows of such a call can vary.
  const bool fixed_k = p.op == Op::gemm && !p.k.is_static();
  lo = std::max<std::int64_t>(1, lo);
  if (hi > lo && !fixed_k) {
    if (hi >= 8 * lo)
      tokens.push_back(std::lround(std::sqrt(static_cast<double>(hi) * static_cast<double>(lo))));
    if (hi >= 2 * lo) tokens.push_back(lo);
  }
  std::vector<Sizes> out;
  for (const auto t : tokens) out.push_back(sizes_at(p, t));
  return out;
}

std::string text(const Sizes& sizes) {
  return fmt::format("m={} n={} k={}", sizes.m, sizes.n, sizes.k);
}

double operations(const Problem& problem, const Sizes& sizes) {
  if (problem.op != Op::gemm && problem.op != Op::hadamard_gemm && problem.op != Op::gemm_quantize)
    return 0;
  return 2.0 * static_cast<double>(sizes.m) * static_cast<double>(sizes.n) *
         static_cast<double>(sizes.k) * static_cast<double>(sizes.batch);
}

double least_traffic(const Problem& p, const Sizes& s) {
  const auto bytes = [&](DType type, Layout layout, std::int64_t rows, std::int64_t k) {
    if (type != DType::mxfp4) return static_cast<double>(rows * k * bytes_of(type));
    const auto operand =
        operand_bytes(layout == Layout::chosen ? Layout::plain : layout, rows, k, padding_unit(p));
    return static_cast<double>(operand.codes + operand.scales);
  };
  double out = bytes(p.a_type, p.a_layout, s.m, s.k);
  if (operations(p, s) > 0)
    return out + bytes(p.b_type, p.b_layout, s.n, s.k) + bytes(p.d_type, p.d_layout, s.m, s.n);
  if (p.copies != Copies::columns) out += bytes(p.d_type, p.d_layout, s.m, s.k);
  if (p.copies != Copies::rows) out += bytes(p.d_type, p.d_layout, s.k, s.m);
  return out;
}

std::int64_t last_level_cache(std::string_view performance_class) {
  const auto l3 = number_after(performance_class, "l3=");
  return l3 > 0 ? l3 : number_after(performance_class, "l2=");
}

Rotation rotation_for(const DeviceInfo& device, std::int64_t bytes_of_call) {
  Rotation out;
  out.bytes_of_call = bytes_of_call;
  out.wanted_bytes = 2 * last_level_cache(device.performance_class);
  out.most_bytes = kMostRotated;
  if (device.memory_bytes > 0) out.most_bytes = std::min(out.most_bytes, device.memory_bytes / 16);
  const auto bytes = std::min(std::max<std::int64_t>(out.wanted_bytes, 1), out.most_bytes);
  out.copies = static_cast<std::size_t>(std::clamp<std::int64_t>(
      ceil_div(bytes, std::max<std::int64_t>(1, bytes_of_call)), 1, kMostCopies));
  return out;
}

std::string Rotation::text() const {
  return fmt::format("{} copies, {} of {} MiB", copies,
                     static_cast<std::int64_t>(copies) * bytes_of_call / kMiB, wanted_bytes / kMiB);
}

LocalTrials::LocalTrials(Backend& backend, Problem problem, std::shared_ptr<const Captured> data)
    : backend_(backend),
      problem_(problem),
      data_(std::move(data)),
      sizes_(representative_sizes(problem)),
      admission_(backend, std::move(problem)),
      stopwatch_(backend.stopwatch()) {}

std::size_t LocalTrials::add(const Plan& plan) {
  candidates_.push_back({plan, nullptr, {}, {}, 0});
  return candidates_.size() - 1;
}

std::size_t LocalTrials::add(std::shared_ptr<const Executable> executable) {
  candidates_.push_back({executable->plan(), std::move(executable), {}, {}, 0});
  return candidates_.size() - 1;
}

Result<std::shared_ptr<const Executable>> LocalTrials::executable(std::size_t candidate) {
  Candidate& one = candidates_[candidate];
  if (!one.executable) {
    auto built = Executable::build(backend_, problem_, one.plan);
    if (!built.ok()) return built.status();
    one.executable = std::move(*built);
  }
  return one.executable;
}

Verdict LocalTrials::admit(std::size_t candidate, Depth depth) {
  auto loaded = executable(candidate);
  if (!loaded.ok()) {
    // Code that is not accepted (it spills, or lacks an entry) says nothing of results.
    const Status& status = loaded.status();
    return {
        status.code() == Code::rejected ? Status(Code::compile_failed, status.message()) : status,
        {}};
  }
  if (auto status = check_instructions(backend_, (*loaded)->plan()); !status.ok())
    return {std::move(status), {}};
  return admission_.admit(**loaded, depth);
}

bool LocalTrials::has_timed_sizes(const Instance* instance) const {
  if (!instance) return false;
  const Sizes &sizes = instance->spec().sizes, &wanted = sizes_.front();
  return sizes.m == wanted.m && sizes.n == wanted.n && sizes.k == wanted.k &&
         sizes.batch == wanted.batch && sizes.groups == wanted.groups;
}

// Inputs of hundreds of megabytes are made once for admission and timing where both have them.
Status LocalTrials::make_instance() {
  Instance* const known = admission_.first_instance();
  if (!data_ && has_timed_sizes(known)) {
    instance_ = known;
    return {};
  }
  InstanceSpec spec;
  spec.problem = problem_;
  spec.sizes = sizes_.front();
  spec.a_profile = profile_of(problem_.role);
  spec.a_data = data_;
  spec.beta = 1;
  auto instance = Instance::make(backend_, spec);
  if (!instance.ok()) return instance.status();
  own_instance_ = std::move(*instance);
  instance_ = own_instance_.get();
  return {};
}

Status LocalTrials::make_calls(const Executable& executable, std::vector<qt_args>& calls) {
  const Rotation rotation = rotation_for(backend_.device(), instance_->traffic_bytes(executable));
  auto made = instance_->rotated(executable, rotation.copies);
  if (!made.ok()) return made.status();
  calls = std::move(*made);
  rotation_ = rotation.text();
  return {};
}

Status LocalTrials::ready(std::size_t candidate) {
  auto loaded = executable(candidate);
  if (!loaded.ok()) return loaded.status();
  const Executable& executable = **loaded;
  Candidate& one = candidates_[candidate];
  if (!one.calls.empty() && instance_->workspace_moves() == workspace_moves_) return {};
  const SteadyClock clock;
  const double begun = clock.now();
  if (!instance_)
    if (auto status = make_instance(); !status.ok()) return status;
  auto& calls = calls_[{executable.a_layout(), executable.b_layout()}];
  if (calls.empty())
    if (auto status = make_calls(executable, calls); !status.ok()) return status;
  // The workspace may have moved to hold a plan that wants more of it.
  auto fresh = instance_->arguments(executable);
  if (!fresh.ok()) return fresh.status();
  if (instance_->workspace_moves() != workspace_moves_) {
    workspace_moves_ = instance_->workspace_moves();
    for (auto& other : candidates_) other.calls.clear();
  }
  one.recordings.clear();
  one.calls = calls;
  for (auto& call : one.calls) {
    call.workspace = fresh->workspace;
    call.workspace_bytes = fresh->workspace_bytes;
  }
  data_seconds_ += clock.now() - begun;
  return {};
}

Result<double> LocalTrials::worst(std::size_t candidate) {
  auto loaded = executable(candidate);
  if (!loaded.ok()) return loaded.status();
  const Executable& executable = **loaded;
  if (!executable.plan().find(StepKind::stand_in)) return 0.0;
  const SteadyClock clock;
  const double begun = clock.now();
  Instance* instance = admission_.edge_instance();
  if (!has_timed_sizes(instance)) {
    if (!own_worst_) {
      InstanceSpec spec;
      spec.problem = problem_;
      spec.sizes = sizes_.front();
      spec.a_profile = Profile::edge;
      spec.beta = 1;
      auto made = Instance::make(backend_, spec);
      if (!made.ok()) return made.status();
      own_worst_ = std::move(*made);
    }
    instance = own_worst_.get();
  }
  const auto args = instance->arguments(executable);
  data_seconds_ += clock.now() - begun;
  if (!args.ok()) return args.status();
  stopwatch_->start(nullptr);
  const Status status = executable.run(*args, nullptr);
  const double seconds = stopwatch_->stop(nullptr);
  if (!status.ok()) return status;
  if (std::isnan(seconds)) return Status(Code::launch_failed, "the device lost its clock");
  return seconds;
}

Result<double> LocalTrials::run(std::size_t candidate, std::size_t size, std::int64_t repeats) {
  if (auto status = ready(candidate); !status.ok()) return status;
  Candidate& one = candidates_[candidate];
  const Sizes& sizes = sizes_[size];
  for (auto& call : one.calls) {
    call.m = sizes.m;
    call.n = sizes.n;
    call.k = sizes.k;
  }
  const Executable& executable = *one.executable;
  Recording* const recording = repeats >= kUnrolled ? recorded(one, size) : nullptr;
  const std::int64_t starts = recording ? ceil_div(repeats, kUnrolled) : 0;
  stopwatch_->start(nullptr);
  Status status;
  for (std::int64_t i = 0; i < starts && status.ok(); ++i) status = recording->start(nullptr);
  for (std::int64_t i = 0; i < repeats && status.ok() && !recording; ++i) {
    status = executable.run(one.calls[one.next], nullptr);
    one.next = one.next + 1 < one.calls.size() ? one.next + 1 : 0;
  }
  const double seconds = stopwatch_->stop(nullptr);
  if (!status.ok()) return status;
  if (std::isnan(seconds)) return Status(Code::launch_failed, "the device lost its clock");
  if (!recording) return seconds;
  return seconds * static_cast<double>(repeats) / static_cast<double>(starts * kUnrolled);
}

// Short calls wait for the host's next launch rather than for each other: those are timed unrolled,
// as they run in a graph. Null where the device does not record, or not this plan.
Recording* LocalTrials::recorded(Candidate& one, std::size_t size) {
  one.recordings.resize(sizes_.size());
  auto& known = one.recordings[size];
  if (!known) {
    auto made = backend_.record([&](void* stream) {
      Status status;
      for (std::int64_t i = 0; i < kUnrolled && status.ok(); ++i)
        status =
            one.executable->run(one.calls[static_cast<std::size_t>(i) % one.calls.size()], stream);
      return status;
    });
    known = made.ok() ? std::move(*made) : nullptr;
  }
  return known.get();
}

}  // namespace quarterturn
