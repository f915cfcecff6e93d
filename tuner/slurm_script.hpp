// SlurmScript: the batch script of a campaign's array, as text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace quarterturn {

enum class SlurmStage { tune, compile };

struct SlurmScript {
  SlurmStage stage = SlurmStage::tune;
  std::string name;      ///< of the job
  std::string campaign;  ///< path of the campaign's file, absolute
  std::string folder;    ///< where logs go, absolute
  std::string qturn = "qturn";
  std::size_t shards = 1;
  std::size_t at_once = 0;  ///< array tasks that run at a time; 0 = as many as Slurm starts
  std::size_t cores = 8;    ///< of each
  std::string gres;         ///< "gpu:1", "gpu:1g.10gb:1"; empty: none
  std::string partition, account, time, memory, constraint, qos;
  std::string container;            ///< an image: .sif by apptainer, others by srun (pyxis)
  std::string scratch;              ///< on the node; empty: its TMPDIR
  std::size_t restarts = 8;         ///< of a task whose worker was killed
  std::vector<std::string> more;    ///< lines behind #SBATCH, as given
  std::vector<std::string> worker;  ///< more arguments of `qturn cluster work`

  std::string text() const;
};

/// One word for a shell, quoted where it must be.
std::string shell_word(const std::string& text);

}  // namespace quarterturn
