// What the commands of `qturn` share: exit codes, options, opening a context, tables.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "generator/status.hpp"
#include "runtime/context.hpp"
#include "tuner/workload.hpp"

namespace quarterturn {

/// Exit codes of every command; `qturn --help` lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,        ///< it was tried and did not succeed
  kExitUsage = 2,         ///< the command line does not make sense
  kExitUnavailable = 3,   ///< the machine lacks something: device, compiler, readable file
  kExitInterrupted = 130  ///< Ctrl-C or a termination signal; what was done is kept
};

/// The exit code that fits a status.
int exit_code_of(const Status& status);
/// The same, after its message went to stderr.
int fail(const Status& status);

/// Options of every command that touches a device or the database.
struct GlobalOptions {
  std::string database;
  std::string device;  ///< "cpu", "cuda", "cuda:1", "hip:0"; empty: the settings decide
  std::int64_t threads = 0;
  std::string log;
  bool json = false;
};
void add_json(CLI::App& app, GlobalOptions& options);
void add_database(CLI::App& app, GlobalOptions& options);
void add_device(CLI::App& app, GlobalOptions& options);

/// Checks of options: a whole number without a sign, so that -1 does not become 2^64 - 1; and a
/// number, which NaN is not.
CLI::Validator whole_between(std::uint64_t least, std::uint64_t most);
CLI::Validator number_between(double least, double most);
CLI::Validator positive_number();
/// Before a size with its unit, such as 200M, is read.
CLI::Validator no_sign();

/// What the options say, over the environment and the configuration files.
Result<SettingSources> sources_of(const GlobalOptions& options);
Result<std::shared_ptr<Context>> open_context(const GlobalOptions& options,
                                              const std::map<Setting, std::string>& more = {});

/// Through a temporary name, so that a reader sees the old file or the new one.
Status write_file(const std::string& path, const std::string& text);

/// The problems a command works on: of a model, of shapes, or those of keys.
struct WorkOptions {
  std::vector<std::string> shape, problem;
  std::string model, tokens = "1,512", roles = "fprop";
  std::int64_t tp = 1;
  std::string op = "hadamard_gemm", signs = "none", scale_rule = "rceil", rounding = "rne";
  std::string in_type = "bf16", out_type, contract = "exact", spread = "any", repro = "run_to_run";
  std::string epilogue = "none", prologue = "none", pre_activation = "dropped",
              bias_gradient = "none", grouping = "none";
  std::int64_t groups = 1;
  std::int32_t rotation = 32;
  bool allow_biased = false;
};
void add_work(CLI::App& app, WorkOptions& options);
Result<Workload> workload_of(const WorkOptions& options);

/// Says on stderr which layers were refused, and why.
void report_refusals(const Workload& workload);

/// Rows of named values: aligned columns, or one JSON object a line.
class Table {
 public:
  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> values) { rows_.push_back(std::move(values)); }
  /// To stdout. In JSON, values that read as numbers become numbers.
  void print(bool json) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// One command: declares its options below `app` and returns what to run when it was chosen.
using Register = std::function<int()> (*)(CLI::App& app);

std::function<int()> register_devices(CLI::App& app);
std::function<int()> register_shapes(CLI::App& app);
std::function<int()> register_emit(CLI::App& app);
std::function<int()> register_compile(CLI::App& app);
std::function<int()> register_tune(CLI::App& app);
std::function<int()> register_bench(CLI::App& app);
std::function<int()> register_replay(CLI::App& app);
std::function<int()> register_report(CLI::App& app);
std::function<int()> register_explain(CLI::App& app);
std::function<int()> register_check(CLI::App& app);
std::function<int()> register_config(CLI::App& app);
std::function<int()> register_recheck(CLI::App& app);
std::function<int()> register_selftest(CLI::App& app);
std::function<int()> register_lock(CLI::App& app);
std::function<int()> register_bundle(CLI::App& app);
std::function<int()> register_db(CLI::App& app);
std::function<int()> register_campaign(CLI::App& app);
std::function<int()> register_doctor(CLI::App& app);

}  // namespace quarterturn
