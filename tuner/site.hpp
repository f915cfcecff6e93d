// Sites: problems that multiply by one prepared weight, for other ranges of tokens. They are given
// plans that read the weight in one layout, so that it is kept once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/database.hpp"
#include "generator/problem.hpp"

namespace quarterturn {

/// The problem's key without its range of tokens; empty where no prepared weight is multiplied by,
/// or its layout is given.
std::string site_of(const Problem& problem);

/// What one layout costs a member of a site.
struct SiteMember {
  std::string problem;
  std::string plan;    ///< the member's answer now
  double lost = 0;     ///< time, relative to its best plan of any layout
  double speedup = 1;  ///< over its default plan
};

struct Site {
  std::string site;
  Layout layout = Layout::plain;
  double bits_per_element = 0;  ///< of the stored weight, scales included
  std::vector<SiteMember> members;
  std::string text() const;  ///< one line for people
};

/// A layout that some member of a site would choose and that nothing is known about for this one.
struct UntimedLayout {
  std::string problem;
  Layout layout = Layout::plain;
};
Result<std::vector<UntimedLayout>> untimed_layouts(Database& database, std::string_view target,
                                                   std::string_view performance_class);

/// Gives every site whose members' winners want different layouts the one that costs its members
/// least (the geometric mean of their times; then the one of fewer bits), among those that every
/// member has been timed with, and stores the winners. Rests on stored trials and winners alone.
/// Returns the sites of two members or more whose answers agree on a layout now.
Result<std::vector<Site>> settle_sites(Database& database, std::string_view target,
                                       std::string_view performance_class);

}  // namespace quarterturn
