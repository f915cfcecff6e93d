// qturn: the command line of Quarterturn. Results on stdout, everything else on stderr.
#include "runtime/version.hpp"
#include "tuner/commands/command.hpp"

namespace {

constexpr const char* kFooter = R"(Examples:
  qturn shapes --model Llama-3.1-8B --tokens 1,512 --roles fprop,dgrad,wgrad
  qturn tune   --model Llama-3.1-8B --tokens 1,512 --time-limit 3600
  qturn bench  --shape 512x4096x14336
  qturn explain --shape 512x4096x14336
  qturn doctor

Exit codes: 0 done; 1 it did not succeed; 2 the command line does not make sense;
3 the machine lacks something (device, compiler, usable file); 130 interrupted, with
everything kept that was done.
Settings: `qturn config` prints each with its QTURN_* variable.)";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Generates, compiles, tunes and dispatches Hadamard-MXFP4 matrix products", "qturn");
  app.set_version_flag("--version", "qturn " + std::string(quarterturn::kVersion));
  app.require_subcommand(1);
  app.footer(kFooter);
  constexpr quarterturn::Register commands[] = {
      quarterturn::register_devices,  quarterturn::register_shapes,   quarterturn::register_emit,
      quarterturn::register_compile,  quarterturn::register_bench,    quarterturn::register_tune,
      quarterturn::register_recheck,  quarterturn::register_replay,   quarterturn::register_check,
      quarterturn::register_selftest, quarterturn::register_explain,  quarterturn::register_report,
      quarterturn::register_config,   quarterturn::register_lock,     quarterturn::register_bundle,
      quarterturn::register_db,       quarterturn::register_campaign, quarterturn::register_doctor};
  std::vector<std::pair<CLI::App*, std::function<int()>>> chosen;
  for (const auto command : commands) {
    auto run = command(app);
    chosen.emplace_back(app.get_subcommands({}).back(), std::move(run));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? quarterturn::kExitOk : quarterturn::kExitUsage;
  }
  for (const auto& [command, run] : chosen)
    if (command->parsed()) return run();
  return quarterturn::kExitUsage;
}
