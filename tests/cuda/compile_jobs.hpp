// Kernels to compile without a GPU, and the rules that they are held to: shared by the tests of
// this folder's compile programs.
#pragma once

#include <doctest/doctest.h>

#include <future>
#include <iostream>

#include "generator/cuda/families.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace quarterturn {

inline Problem gemm_problem(Contract contract, Spread spread, DType d_type, Extent k) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.m = {1, 8192};
  p.n = Extent::exactly(4096);
  p.k = k;
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = d_type;
  p.rotation = 32;
  p.contract = contract;
  p.spread = spread;
  return p;
}

// The default, then each parameter at its other values where that alone is legal.
inline std::vector<Variant> corners(const Family& family, const Problem& p, const Target& t) {
  const auto start = family.default_variant(p, t);
  std::vector<Variant> out;
  const auto add = [&](const Variant& v) {
    if (family.illegal(p, t, v).empty()) out.push_back(v);
  };
  add(start);
  for (const auto& axis : family.parameters(p, t)) {
    if (axis.stage == ParameterStage::run || axis.values.size() < 2) continue;
    auto v = start;
    v.values[axis.name] = axis.values.back();
    add(v);
  }
  return out;
}

// Every epilogue, with all that it may read and a kept z where it has one.
inline std::vector<Problem> epilogue_problems(Contract contract, Spread spread, DType d_type) {
  std::vector<Problem> out;
  for (const auto epilogue :
       {Epilogue::gelu, Epilogue::gelu_tanh, Epilogue::swiglu_split, Epilogue::swiglu_interleaved,
        Epilogue::dgelu, Epilogue::dgelu_tanh, Epilogue::dswiglu, Epilogue::dswiglu_interleaved}) {
    auto p = gemm_problem(contract, spread, d_type, Extent::exactly(4096));
    p.epilogue = epilogue;
    p.bias = Bias::per_column;
    if (!is_derivative(epilogue)) p.pre_activation = PreActivation::kept;
    if (is_derivative(epilogue)) p.accumulate = Accumulate::accumulate;
    out.push_back(p);
  }
  return out;
}

// Whether another form of the kind takes as many registers or more.
inline bool is_light(Epilogue epilogue) {
  return epilogue == Epilogue::gelu_tanh || epilogue == Epilogue::dgelu_tanh ||
         epilogue == Epilogue::gelu || epilogue == Epilogue::dswiglu_interleaved;
}

struct Job {
  std::string name, arch, text;
  std::vector<std::string> flags;
};

inline Job job_of(const Family& family, const Problem& p, const Target& t, const Variant& v,
                  const std::string& arch) {
  const auto source = family.emit(p, t, v);
  const auto flat = flatten(source);
  REQUIRE(flat.ok());
  CHECK(source.entry.find("quarterturn_") == 0);
  return {v.text() + " for " + p.key(), arch, *flat, source.flags};
}

inline void compile_jobs(const std::vector<Job>& jobs, std::size_t least) {
  const auto work = [&jobs](std::size_t from) {
    std::vector<std::string> complaints;
    for (std::size_t i = from; i < jobs.size(); i += 2) {
      const auto& job = jobs[i];
      const auto cubin = cuda::nvrtc_compile(job.text, job.arch, job.flags);
      if (!cubin.ok())
        complaints.push_back(job.name + ": " + cubin.status().message());
      else if (cubin->spill_bytes > 0 || cubin->serialised_wgmma)
        complaints.push_back(job.name + ": " + cubin->log);
    }
    return complaints;
  };
  auto other = std::async(std::launch::async, work, 1);
  for (const auto& complaint : work(0)) FAIL_CHECK(complaint);
  for (const auto& complaint : other.get()) FAIL_CHECK(complaint);
  CHECK(jobs.size() >= least);
  std::cout << jobs.size() << " kernels compiled\n";
}

inline bool no_compiler() {
  const auto identity = cuda::nvrtc_identity();
  if (!identity.ok()) std::cout << "SKIPPED: " << identity.status().message() << "\n";
  return !identity.ok();
}

}  // namespace quarterturn
