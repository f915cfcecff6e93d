// NodeFacts: what each node of a cluster says of itself, one JSON object a line, and where nodes
// differ that should not.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

/// One fact of one node: {"node":"n1","fact":"library","value":"0.1.0"}.
struct NodeFact {
  std::string node, fact, value;
};
/// With the end of line. Bytes that are no UTF-8 are replaced.
std::string line_of(const NodeFact& fact);

/// By node, then by fact.
using NodeFacts = std::map<std::string, std::map<std::string, std::string>>;

/// Adds the lines of a text; a launcher's label in front of a line ("3: ") is passed over, as are
/// empty lines. invalid_argument: a line is none of these, with its number.
Status add_facts(std::string_view text, const std::string& place, NodeFacts& out);

/// What is said of a fact over all nodes.
struct Finding {
  enum class State { ok, note, wrong };
  State state = State::ok;
  std::string fact, nodes, found, remedy;
};
std::string_view state_name(Finding::State state);

/// Facts in a fixed order: one finding where nodes agree, else one for each value that few have.
std::vector<Finding> compare_nodes(const NodeFacts& nodes);

}  // namespace quarterturn
