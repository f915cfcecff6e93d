// Report: what a tuning database knows, as one HTML file that runs no script and loads nothing.
//
// Names in a database may come from anybody; all of them are escaped, and the page's content
// security policy forbids scripts and loading besides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/database.hpp"
#include "generator/problem.hpp"
#include "tuner/roofline.hpp"

namespace quarterturn {

struct ReportOptions {
  std::size_t details = 24;  ///< problems with a curve and heat maps: those with most evidence
  std::size_t rows = 2000;   ///< problems in the table, likewise
  std::string x, y;          ///< parameters of heat maps ("gemm.tile_m"); empty: chosen
  std::int64_t now = 0;      ///< nanoseconds since 1970
  std::string library;       ///< this library's version, to tell what others decided
};

/// One problem on one performance class.
struct ReportProblem {
  std::string problem, target, performance_class;
  std::string name;  ///< short_name; the key where this version cannot read it
  std::optional<Winner> winner;
  bool stale = false;            ///< decided elsewhere than in the class' newest environment
  double work = 0, traffic = 0;  ///< operations and bytes of a call at the largest size; 0: unknown
  std::vector<Trial> trials;     ///< only of problems with details
};

/// Devices of one target and performance class.
struct ReportClass {
  std::string target, performance_class;
  std::vector<std::shared_ptr<const Env>> envs;  ///< the newest first
  std::vector<std::int64_t> winners, stale;      ///< of each env
  std::vector<std::int64_t> oldest, newest;      ///< decisions, nanoseconds since 1970
  std::int64_t measured = 0, tuned = 0, fallback = 0, undecided = 0;
  double clock_mhz = 0;
  Roof roof;
  std::vector<Miss> misses;
};

struct ReportData {
  DatabaseInfo info;
  std::vector<ReportClass> classes;
  std::vector<ReportProblem> problems;  ///< most evidence first
  std::size_t left_out = 0;             ///< problems beyond ReportOptions::rows
};

/// Reads winners, and trials of the problems with details.
Result<ReportData> collect_report(Database& database, const ReportOptions& options);
std::string report_page(const ReportData& data, const ReportOptions& options);

}  // namespace quarterturn
