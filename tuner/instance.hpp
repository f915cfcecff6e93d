// Instance: one call of a problem, with sizes, inputs and device memory, ready to be given to any
// plan.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "generator/grouping.hpp"
#include "runtime/executable.hpp"
#include "tuner/inputs.hpp"
#include "tuner/memory.hpp"
#include "tuner/preparation.hpp"

namespace quarterturn {

/// Whether rows lie tightly behind each other, or are parts of wider matrices.
enum class Rows { tight, wider };

struct InstanceSpec {
  Problem problem;
  Sizes sizes;
  Profile a_profile = Profile::forward;
  Profile b_profile = Profile::weight;
  std::uint64_t seed = 1;
  Rows rows = Rows::tight;
  float alpha = 1, beta = 0;  ///< beta is used where the problem accumulates
  /// A NaN in A's first and an infinity in its last row or, where A is stored as its transpose,
  /// column.
  bool special = false;
  std::shared_ptr<const Captured> a_data;  ///< of A instead of its profile, where it is there
};

/// The high-precision source of an operand, [rows, k] as the contract sees it, and how it is
/// stored.
struct SourceOperand {
  std::vector<Matrix> entries;  ///< one a batch entry, as stored
  Major major = Major::k;
  std::int64_t rows = 0, k = 0;
  bool special = false;

  float at(std::int64_t batch, std::int64_t row, std::int64_t k_index) const;
};

/// Results as they lie in memory, without the gaps between rows.
struct Outputs {
  DType type = DType::f32;
  std::vector<unsigned char> bytes;

  bool empty() const { return bytes.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()) / bytes_of(type); }
  float at(std::int64_t i) const { return load_element(type, bytes.data() + i * bytes_of(type)); }
};

class Instance {
 public:
  /// Whether this problem can be posed here at all; says why not.
  static Status supports(const Problem& problem);
  static Result<std::unique_ptr<Instance>> make(Backend& backend, const InstanceSpec& spec);

  const InstanceSpec& spec() const { return spec_; }
  const SourceOperand& a() const { return a_; }
  const SourceOperand& b() const { return b_; }
  /// C and bias as the oracle needs them, in d's type.
  float c_at(std::int64_t batch, std::int64_t row, std::int64_t column) const;
  float bias_at(std::int64_t column) const;
  /// What a derivative epilogue differentiates at, and an RMSNorm's weights.
  float aux_at(std::int64_t batch, std::int64_t row, std::int64_t column) const;
  float norm_weight_at(std::int64_t column) const;
  /// Columns of D, also where it is quantised.
  std::int64_t columns() const;
  /// Matrices of A, B and D; and which of A's and B's make a row of D.
  Entries entries() const { return entries_; }
  std::int64_t entry_of_a(std::int64_t entry) const { return entries_.a == 1 ? 0 : entry; }
  std::int64_t entry_of_b(std::int64_t entry, std::int64_t row) const;
  /// Ends of the groups, or in m_masked their counts; empty without groups.
  const std::vector<std::int32_t>& group_sizes() const { return group_sizes_; }

  /// The call's arguments for a plan: operands in its layouts (quantised here where the problem
  /// takes them quantised), a poisoned result and workspace.
  Result<qt_args> arguments(const Executable& executable);

  /// The same call over further copies of operands and result, so that caches hold none of them
  /// between two calls. The first element is `arguments`.
  Result<std::vector<qt_args>> rotated(const Executable& executable, std::size_t copies);

  /// Poisons result and workspace again.
  Status poison();
  /// Every guard, and whether the inputs are what they were.
  enum class Inputs { compared, trusted };
  Status check_memory(Inputs inputs) const;

  /// The result, [batch][m][n]; fails when a gap between rows was written. `out` may have served
  /// before.
  Status result(Outputs& out) const;
  /// Of every batch entry the rows named, [batch][rows][n].
  Status result_rows(const std::vector<std::int64_t>& rows, Outputs& out) const;
  Result<std::vector<unsigned char>> workspace() const { return workspace_.read(); }
  /// The kept pre-activation, [batch][m][n]; and the sums beside the result, [batch][columns of A
  /// as it is stored].
  Result<Outputs> pre_activation() const;
  Result<Outputs> sums() const;
  /// Raised when the workspace moves, and with it what earlier `arguments` say.
  std::int64_t workspace_moves() const { return workspace_moves_; }
  /// Codes and scales of a one-operand op: of D, and of D2 where there is one.
  struct Packed {
    std::vector<unsigned char> codes, scales;
  };
  Result<Packed> packed(int which) const;
  /// An operand that the problem takes quantised, as it was made for a layout.
  Result<Packed> prepared(std::uint32_t which, Layout layout) const;

  /// Bytes that one call reads and writes, for rates and for rotating buffers.
  std::int64_t traffic_bytes(const Executable& executable) const;

  Instance(Backend& backend, InstanceSpec spec)
      : backend_(backend),
        spec_(std::move(spec)),
        entries_(entries_of(spec_.problem, spec_.sizes.batch, spec_.sizes.groups)) {}

 private:
  struct Stored {
    Memory data, scales;
    qt_tensor tensor{};
    std::uint64_t fingerprint = 0;  ///< of what was stored
  };

  void describe_sources();
  Status allocate_sources();
  Status allocate_groups();
  Status allocate_result(const Executable& executable);
  Result<Stored> store_source(const SourceOperand& source) const;
  Result<qt_tensor> copy_of(const qt_tensor& tensor);
  Status check_gap(const unsigned char* line, std::int64_t columns, std::int64_t row) const;
  const Stored* stored_at(const void* data) const;
  Result<Stored> prepare(const Preparation& step, const SourceOperand& source, std::uint32_t which,
                         const qt_tensor& from);
  Result<qt_tensor> operand(const SourceOperand& source, DType type, Layout layout,
                            std::uint32_t which, std::map<Layout, Stored>& packed);

  Backend& backend_;
  InstanceSpec spec_;
  Entries entries_;
  std::vector<std::int32_t> group_sizes_;  ///< ends, or counts
  Memory group_memory_;
  SourceOperand a_, b_;
  std::vector<Matrix> c_, aux_;
  Matrix bias_, norm_weight_;
  Stored a_memory_, b_memory_, c_memory_, aux_memory_, d_memory_, d2_memory_, z_memory_;
  Memory bias_memory_, norm_memory_, sums_memory_, workspace_;
  std::int64_t workspace_moves_ = 0;
  std::map<Layout, Stored> a_packed_, b_packed_;
  std::map<std::uint32_t, Stored> sources_;  ///< of operands that the problem takes quantised
  std::vector<Stored> copies_;
  std::int64_t result_ld_ = 0;
  mutable std::vector<unsigned char> scratch_;
};

/// The noise and sign keys that every instance uses.
struct InstanceKeys {
  static constexpr std::uint64_t noise_seed = 0x5eed0123456789abull;
  static constexpr std::uint32_t stream = 7;
  static constexpr float epsilon = 1e-5f;  // of an RMSNorm
  static constexpr std::uint64_t sign_seed = 0x51600fedcba98765ull;
  static constexpr std::uint32_t sign_mask[8] = {0x9d2c5680u, 0x1571c3a5u, 0x8f0e7d64u,
                                                 0x2b4a9913u, 0xe5d06f88u, 0x73b812ceu,
                                                 0x0c9aa551u, 0xd61f3e07u};
};

}  // namespace quarterturn
