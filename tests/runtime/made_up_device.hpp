// A made-up device with a made-up database, for tests of the way from a problem to a plan.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/context.hpp"
#include "tests/runtime/temporary_folder.hpp"

namespace quarterturn::test {

struct NothingLoaded final : Kernel {};

/// Compiles in no time; what it is told to refuse, it refuses. Any thread may compile.
class MadeUp final : public Backend {
 public:
  std::set<std::string> refused_words;
  Code refusal = Code::compile_failed;
  bool has_prebuilt = true;
  std::vector<std::string> compiled;
  DeviceInfo info;

  MadeUp() {
    info.name = "made up";
    info.target = *parse_target("x86-64-v4:avx512_vnni");
    info.performance_class = "cpu model=made-up units=4";
    info.compiler = "made-up 1.0";
    info.units = 4;
  }
  const DeviceInfo& device() const override { return info; }
  Result<Binary> compile(const Source& source) override {
    for (const auto& word : refused_words)
      if (source.text.find(word) != std::string::npos) return Status(refusal, "refuses " + word);
    const std::lock_guard lock(mutex_);
    compiled.push_back(source.text);
    Binary out;
    out.target = info.target.key();
    return out;
  }
  Result<std::shared_ptr<const Kernel>> load(const Binary&, const Source&) override {
    return std::shared_ptr<const Kernel>(std::make_shared<NothingLoaded>());
  }
  Result<PrebuiltKernel> prebuilt(const Problem&, const Variant& wanted) override {
    if (!has_prebuilt) return Status(Code::no_compiler, "nothing is prebuilt");
    return PrebuiltKernel{std::make_shared<NothingLoaded>(), wanted};
  }
  Status launch(const Kernel&, const Launch&, const qt_args&, void*) const override { return {}; }
  Result<void*> allocate(std::int64_t) override { return Status(Code::out_of_memory, "none"); }
  void release(void*) override {}
  Status upload(void*, const void*, std::int64_t) override { return {}; }
  Status download(void*, const void*, std::int64_t) override { return {}; }
  Status synchronize() override { return {}; }
  std::unique_ptr<Stopwatch> stopwatch() override { return nullptr; }

 private:
  std::mutex mutex_;
};

/// Contexts over one folder and a made-up device.
struct Setup {
  TemporaryFolder folder;
  std::map<std::string, std::string> variables;
  std::vector<std::string> logged;
  MadeUp* device = nullptr;

  std::shared_ptr<Context> make(const std::function<void(MadeUp&)>& change = {}) {
    ContextOptions options;
    options.sources.surroundings.variable =
        [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    options.sources.surroundings.account_home = [] { return std::optional<std::string>(); };
    options.sources.site_file = folder.file("none");
    options.sources.options[Setting::database] = folder.file("tuning.db");
    options.sources.options[Setting::code_cache] = folder.file("code");
    options.log = [this](LogLevel, const char* message) { logged.emplace_back(message); };
    auto backend = std::make_unique<MadeUp>();
    device = backend.get();
    if (change) change(*device);
    options.backend = std::move(backend);
    auto context = Context::create(std::move(options));
    REQUIRE_MESSAGE(context.ok(), context.status().message());
    return *context;
  }
  int said(const std::string& part) const {
    int count = 0;
    for (const auto& line : logged) count += line.find(part) != std::string::npos;
    return count;
  }
};

inline Problem problem(std::int64_t lo = 1, std::int64_t hi = 16) {
  Problem p;
  p.op = Op::gemm;
  p.m = {lo, hi};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = DType::bf16;
  return p;
}

/// The i-th plan for a problem; 0 is the default.
inline Plan plan_number(const Problem& p, std::size_t i) {
  const auto all = plans(p, *parse_target("x86-64-v4:avx512_vnni"), i + 1);
  REQUIRE(all.size() == i + 1);
  return all[i];
}

inline void store_winner(Context& context, const Problem& p, const Plan& plan,
                         const std::function<void(Env&)>& change = {}) {
  Env env = context.env();
  if (change) change(env);
  Winner winner;
  winner.problem = p.key();
  winner.plan = plan.text();
  winner.env = std::make_shared<Env>(env);
  const auto status = context.database().set_winner(winner);
  REQUIRE_MESSAGE(status.ok(), status.message());
}

inline std::string served(const PreparedPlan& plan) { return plan.executable().plan().text(); }

}  // namespace quarterturn::test
