// A case of an admission: sizes and inputs, what the reference says of them, and what a plan gave.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tuner/admission.hpp"
#include "tuner/oracle.hpp"

namespace quarterturn {

inline constexpr std::size_t kMostRows = 48;  ///< of one case, that the reference computes

inline Status rejected(std::string reason) { return Status(Code::rejected, std::move(reason)); }

/// Compares on all cores.
bool same_bits(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b);

struct Admission::Case {
  InstanceSpec spec;
  std::unique_ptr<Instance> instance;
  std::unique_ptr<Oracle> oracle;
  std::vector<std::int64_t> rows, columns;
  std::vector<std::int64_t> rows_of_b;  ///< that those columns of D come from
  std::set<Layout> prepared;            ///< layouts whose prepared operands were compared

  bool sampled = false;              ///< only the rows above are read back
  std::vector<OracleOutput> wanted;  ///< of the sampled outputs, by batch entry, row and column
  Outputs stand_in;                  ///< all outputs of the admitted plan
  Outputs now, before;               ///< of the plan being tried, twice
  std::vector<std::vector<double>> a_norms, b_norms;  ///< by batch entry
};

}  // namespace quarterturn
