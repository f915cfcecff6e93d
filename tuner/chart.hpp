// Charts: small SVG pictures for HTML reports, drawn as text. They need no script and no network,
// and take their colours from the page's style sheet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quarterturn {

/// Text as an element's content or a quoted attribute's value: & < > " ' are escaped; control
/// characters and bytes that are not UTF-8 become U+FFFD.
std::string html(std::string_view text);

/// "1.25 ms", "38.2 us"
std::string time_text(double nanoseconds);

/// A value and its confidence interval, on a logarithmic axis shared by all rows of a table.
struct IntervalMark {
  double value = 1, low = 1, high = 1;
};
/// `from` and `to` are the axis' ends, above 0; 1 is marked by a line.
std::string interval_chart(const IntervalMark& mark, double from, double to);

/// A bar filled to a share of 0 to 1.
std::string share_chart(double share);

/// Best so far over plans tried.
struct TuningCurve {
  struct Point {
    std::int64_t tried = 0;  ///< plans tried when this one was timed
    double speedup = 1;      ///< its own, against the default
    std::string name;        ///< shown when pointed at
  };
  std::vector<Point> points;    ///< by `tried`
  std::vector<Point> failures;  ///< speedup is not used
  std::int64_t tried = 0;       ///< in all
  IntervalMark answer;          ///< the decided speed-up
};
std::string tuning_chart(const TuningCurve& curve);

/// Cells of a grid: columns are values of one parameter, rows those of another.
struct HeatMap {
  std::string x, y;  ///< parameters
  std::vector<std::int64_t> columns, rows;
  struct Cell {
    double median = 0, best = 0;  ///< nanoseconds, over the plans of the cell
    std::size_t plans = 0;        ///< 0: none was timed
  };
  std::vector<Cell> cells;  ///< row by row
};
std::string heat_chart(const HeatMap& map);

/// Problems below the roof that a device's peaks make; log-log.
struct RooflineChart {
  struct Point {
    double intensity = 0;   ///< operations a byte
    double operations = 0;  ///< a second
    std::string name;
  };
  std::vector<Point> points;
  double peak_operations = 0, peak_bytes = 0;  ///< a second; 0: not known, not drawn
};
std::string roofline_chart(const RooflineChart& chart);

}  // namespace quarterturn
