// qturn: the command line of Quarterturn. Results on stdout, everything else on stderr.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>

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

int run_command(int argc, char** argv) {
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

// Its reader has seen enough, as `head` has.
bool is_closed_pipe(int file) {
  pollfd asked{file, POLLOUT, 0};
  return poll(&asked, 1, 0) == 1 && (asked.revents & POLLERR) != 0;
}

// What the command printed may still be in a buffer, and its disk full.
int finish_output(int code) {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  const int error = errno;
  if (!lost || is_closed_pipe(STDOUT_FILENO)) return code;
  std::fprintf(stderr, "qturn: what was printed did not all reach its file (standard output)%s%s\n",
               error != 0 ? ": " : "", error != 0 ? std::strerror(error) : "");
  return code == quarterturn::kExitOk ? quarterturn::kExitUnavailable : code;
}

}  // namespace

int main(int argc, char** argv) {
  int code = quarterturn::kExitUnavailable;
  try {
    code = run_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qturn: an error that no command knows: %s; please report it\n",
                 error.what());
  }
  return finish_output(code);
}
