#include "tuner/slurm_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace quarterturn {
namespace {

// What follows the options: the shell stays, as it is what Slurm signals (B:), and passes the
// signal on; a worker that was asked to end, or was killed, is sent back to the queue.
constexpr const char* kBody = R"sh(
{launch} &
worker=$!
trap 'kill -TERM "$worker" 2>/dev/null' TERM
wait "$worker"
code=$?
# A signal ends `wait` before the worker has ended.
while kill -0 "$worker" 2>/dev/null; do
  wait "$worker"
  code=$?
done

# 130: it was asked to end, and goes on from what it copied out. Above 128: a signal killed it.
{rescue}# A job that somebody cancelled, or that Slurm requeues itself, does not run any more.
if [ "$code" -gt 128 ] && { [ "$code" -eq 130 ] || [ "${SLURM_RESTART_COUNT:-0}" -lt {restarts} ]; }; then
  job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
  if [ "$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null)" = RUNNING ]; then
    echo "shard $SLURM_ARRAY_TASK_ID: back to the queue (the worker ended with code $code)" >&2
    scontrol requeue "$job" && { sleep 30 & wait $!; }
  fi
fi
exit "$code"
)sh";

// What a killed worker had not copied lies on a node where its shard may never be again.
constexpr const char* kRescue = R"sh(if [ "$code" -gt 128 ] && [ "$code" -ne 130 ]; then
  {copy} || echo "shard $SLURM_ARRAY_TASK_ID: what its killed worker had stays on $(hostname)" >&2
fi
)sh";

std::string replace(std::string text, const std::string& what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

// A `qturn cluster work` on the campaign, in the container where there is one.
std::string launch_of(const SlurmScript& s, const std::string& options) {
  std::string out;
  if (s.container.ends_with(".sif"))
    out =
        fmt::format("apptainer exec{} {} ", s.gres.empty() ? "" : " --nv", shell_word(s.container));
  else if (!s.container.empty())
    out = fmt::format("srun --ntasks=1 --container-image={} --container-mounts={} ",
                      shell_word(s.container),
                      shell_word(s.folder.substr(0, s.folder.find_last_of('/'))));
  out += fmt::format("{} cluster work {}{}", shell_word(s.qturn), shell_word(s.campaign), options);
  if (!s.scratch.empty()) out += " --scratch " + shell_word(s.scratch);
  return out;
}

std::string worker_of(const SlurmScript& s) {
  auto out = launch_of(s, fmt::format(" --shard \"$SLURM_ARRAY_TASK_ID\" --cores {}{}", s.cores,
                                      s.stage == SlurmStage::compile ? " --stage compile" : ""));
  for (const auto& word : s.worker) out += " " + shell_word(word);
  return out;
}

}  // namespace

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./:=,@%+").find(c) != std::string_view::npos;
  });
  return plain ? text : "'" + replace(text, "'", "'\\''") + "'";
}

std::string SlurmScript::text() const {
  std::string out = "#!/bin/bash\n";
  const auto option = [&out](const std::string& text) { out += "#SBATCH " + text + "\n"; };
  const auto given = [&](const char* key, const std::string& value) {
    if (!value.empty()) option(fmt::format("--{}={}", key, value));
  };
  given("job-name", name);
  option(fmt::format("--array=0-{}{}", shards - 1, at_once > 0 ? fmt::format("%{}", at_once) : ""));
  option("--ntasks=1");
  option(fmt::format("--cpus-per-task={}", cores));
  given("gres", gres);
  given("partition", partition);
  given("account", account);
  given("time", time);
  given("mem", memory);
  given("constraint", constraint);
  given("qos", qos);
  option("--requeue");
  option("--signal=B:TERM@120");
  option("--open-mode=append");
  const auto* stem = stage == SlurmStage::compile ? "compile" : "shard";
  option(fmt::format("--output=\"{}/logs/{}-%a.log\"", folder, stem));
  for (const auto& line : more) option(line);
  auto body = replace(kBody, "{launch}", worker_of(*this));
  const auto rescue = replace(kRescue, "{copy}", launch_of(*this, " --stage copy"));
  body = replace(body, "{rescue}", stage == SlurmStage::tune ? rescue : "");
  return out + replace(body, "{restarts}", std::to_string(restarts));
}

}  // namespace quarterturn
