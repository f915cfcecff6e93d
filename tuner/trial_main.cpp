// quarterturn-trial: runs candidates for the tuner, and plans of unproven families for the library;
// a crash or a hang here costs one of them.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tuner/hardware_questions.hpp"
#include "tuner/trial_process.hpp"

int main(int argc, char** argv) {
  const bool proves = argc == 3 && std::strcmp(argv[1], "prove") == 0;
  const bool probes = argc == 3 && std::strcmp(argv[1], "probe") == 0;
  if (argc > 1 && !proves && !probes) {
    const bool help = std::strcmp(argv[1], "--help") == 0;
    std::fprintf(
        help ? stdout : stderr,
        "quarterturn-trial is started by qturn and by the library to try kernels; it is not a "
        "command for people\n");
    return help ? 0 : 2;
  }
  // Dies with the tuner; leaves no core file for what is an ordinary event here.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{1, 1};  // 1 and not 0: it also keeps a core handler from being started
  setrlimit(RLIMIT_CORE, &no_core);
  // A candidate that prints must not disturb the answers.
  const int out = dup(1);
  const int null = open("/dev/null", O_WRONLY);
  if (out < 0 || null < 0 || dup2(null, 1) < 0) return 1;
  if (!proves && !probes) return quarterturn::serve_trials(0, out);
  // Whoever asked reads stderr along with the answers.
  if (dup2(null, 2) < 0) return 1;
  return proves ? quarterturn::prove_plans(argv[2], out)
                : quarterturn::answer_questions(argv[2], out);
}
