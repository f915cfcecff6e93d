#include "tuner/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace quarterturn {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kMostDots = 1500;

// Bytes of the UTF-8 character at `at`; 0 where there is none.
std::size_t character_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  const bool overlong =
      (first == 0xE0 && byte(at + 1) < 0xA0) || (first == 0xF0 && byte(at + 1) < 0x90);
  const bool outside =
      (first == 0xED && byte(at + 1) > 0x9F) || (first == 0xF4 && byte(at + 1) > 0x8F);
  return overlong || outside ? 0 : size;
}

// A picture of a size in CSS pixels that shrinks with the page.
class Picture {
 public:
  Picture(double width, double height, std::string_view kind)
      : out_(fmt::format("<svg class=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
                         "height=\"{:.0f}\" role=\"img\">",
                         kind, width, height, width, height)) {}

  void line(double x1, double y1, double x2, double y2, std::string_view kind) {
    add("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", kind, x1,
        y1, x2, y2);
  }
  void rectangle(double x, double y, double width, double height, std::string_view kind) {
    add("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>", kind,
        x, y, std::max(0.0, width), std::max(0.0, height));
  }
  void cell(double x, double y, double width, double height, std::string_view colour,
            std::string_view title) {
    add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"{}\"><title>{}</title></rect>",
        x, y, width, height, colour, html(title));
  }
  void dot(double x, double y, double radius, std::string_view kind, std::string_view title) {
    add("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"><title>{}</title></circle>",
        kind, x, y, radius, html(title));
  }
  void path(std::string_view data, std::string_view kind) {
    add("<path class=\"{}\" d=\"{}\"/>", kind, data);
  }
  void text(double x, double y, std::string_view kind, std::string_view what) {
    add("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", kind, x, y, html(what));
  }
  /// Read from below, its middle at the place.
  void upright(double x, double y, std::string_view what) {
    add("<text class=\"middle\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>", x, y,
        html(what));
  }
  std::string finish() { return std::move(out_) + "</svg>"; }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> form, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), form, std::forward<Values>(values)...);
  }

  std::string out_;
};

struct Axis {
  double from, to, begin, end;  // values, and where they lie
  double at(double value) const {
    const double share = to > from ? (value - from) / (to - from) : 0.5;
    return begin + std::clamp(share, 0.0, 1.0) * (end - begin);
  }
};

// Steps of 1, 2 or 5 times a power of ten, about `count` of them.
double step_for(double range, int count) {
  const double raw = std::max(range, 1e-9) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

// From dark to bright, as matplotlib's viridis (CC0).
std::string heat_colour(double share) {
  constexpr std::array<std::array<double, 3>, 5> stops{
      {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};
  const double at = std::clamp(share, 0.0, 1.0) * (stops.size() - 1);
  const auto low = std::min(static_cast<std::size_t>(at), stops.size() - 2);
  const double part = at - static_cast<double>(low);
  const auto channel = [&](std::size_t i) {
    return static_cast<int>(std::lround(stops[low][i] * (1 - part) + stops[low + 1][i] * part));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2));
}

void draw_speedup_axis(Picture& picture, const Axis& y, double left, double right) {
  const double step = step_for(y.to - y.from, 4);
  for (double value = std::ceil(y.from / step) * step; value <= y.to + 1e-9; value += step) {
    picture.line(left, y.at(value), right, y.at(value), "grid");
    picture.text(left - 6, y.at(value) + 4, "end", fmt::format("{:.3g}x", value));
  }
}

}  // namespace

std::string html(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = character_bytes(text, at);
    const auto c = static_cast<unsigned char>(text[at]);
    if (size == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
      out += kReplacement;
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += text.substr(at, size);
    at += std::max<std::size_t>(1, size);
  }
  return out;
}

std::string time_text(double nanoseconds) {
  if (nanoseconds < 1e3) return fmt::format("{:.0f} ns", nanoseconds);
  if (nanoseconds < 1e6) return fmt::format("{:.4g} us", nanoseconds / 1e3);
  if (nanoseconds < 1e9) return fmt::format("{:.4g} ms", nanoseconds / 1e6);
  return fmt::format("{:.4g} s", nanoseconds / 1e9);
}

std::string interval_chart(const IntervalMark& mark, double from, double to) {
  constexpr double width = 180, height = 18, middle = height / 2;
  const Axis x{std::log(from), std::log(to), 4, width - 4};
  const auto at = [&](double value) { return x.at(std::log(std::max(value, 1e-6))); };
  Picture picture(width, height, "interval");
  picture.line(at(1), 0, at(1), height, "one");
  picture.line(at(mark.low), middle, at(mark.high), middle, "whisker");
  picture.dot(
      at(mark.value), middle, 4, mark.low > 1 ? "gain" : "even",
      fmt::format("{:.3f}x the default, {:.3f} to {:.3f}", mark.value, mark.low, mark.high));
  return picture.finish();
}

std::string share_chart(double share) {
  constexpr double width = 70, height = 10;
  Picture picture(width, height, "share");
  picture.rectangle(0, 0, width, height, "trough");
  picture.rectangle(0, 0, width * std::clamp(share, 0.0, 1.0), height, "filling");
  return picture.finish();
}

std::string tuning_chart(const TuningCurve& curve) {
  constexpr double width = 520, height = 220, left = 52, right = width - 10, top = 12,
                   bottom = height - 34;
  double low = 1, high = std::max(1.0, curve.answer.high);
  for (const auto& point : curve.points) {
    low = std::min(low, point.speedup);
    high = std::max(high, point.speedup);
  }
  // Slow plans would squeeze what matters into the top.
  low = std::max(low, 0.6);
  const double margin = 0.06 * (high - low) + 0.01;
  const Axis x{0, static_cast<double>(std::max<std::int64_t>(1, curve.tried)), left, right};
  const Axis y{std::max(0.0, low - margin), high + margin, bottom, top};
  Picture picture(width, height, "curve");
  if (curve.answer.high > curve.answer.low)
    picture.rectangle(left, y.at(curve.answer.high), right - left,
                      y.at(curve.answer.low) - y.at(curve.answer.high), "band");
  draw_speedup_axis(picture, y, left, right);
  const double step = std::max(1.0, step_for(x.to, 6));
  for (double value = 0; value <= x.to + 1e-9; value += step)
    picture.text(x.at(value), bottom + 16, "middle", fmt::format("{:.0f}", value));
  picture.text((left + right) / 2, height - 4, "middle", "plans tried");
  picture.line(left, y.at(1), right, y.at(1), "one");

  const std::size_t skip = 1 + curve.points.size() / kMostDots;
  for (std::size_t i = 0; i < curve.points.size(); i += skip) {
    const auto& point = curve.points[i];
    picture.dot(x.at(static_cast<double>(point.tried)), y.at(point.speedup), 2, "trial",
                fmt::format("{}: {:.3f}x", point.name, point.speedup));
  }
  const std::size_t skip_failures = 1 + curve.failures.size() / kMostDots;
  for (std::size_t i = 0; i < curve.failures.size(); i += skip_failures)
    picture.dot(x.at(static_cast<double>(curve.failures[i].tried)), bottom, 2, "failure",
                curve.failures[i].name);
  double best = 1;
  std::string path = fmt::format("M{:.1f} {:.1f}", x.at(0), y.at(best));
  for (const auto& point : curve.points) {
    if (point.speedup <= best) continue;
    best = point.speedup;
    path += fmt::format("H{:.1f}V{:.1f}", x.at(static_cast<double>(point.tried)), y.at(best));
  }
  path += fmt::format("H{:.1f}", right);
  picture.path(path, "best");
  return picture.finish();
}

std::string heat_chart(const HeatMap& map) {
  constexpr double left = 74, below = 40, wide = 62, tall = 26, name = 100;
  const double table = tall * static_cast<double>(map.rows.size());
  const double top = 8 + std::max(0.0, (name - table) / 2);  // the name beside it needs room
  const double width = left + wide * static_cast<double>(map.columns.size()) + 10;
  const double height = top + std::max(table, (name + table) / 2) + below;
  double least = 0, most = 0;
  for (const auto& cell : map.cells)
    if (cell.plans > 0) {
      least = least == 0 ? cell.median : std::min(least, cell.median);
      most = std::max(most, cell.median);
    }
  Picture picture(width, height, "heat");
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const double y = top + tall * static_cast<double>(row);
    picture.text(left - 8, y + tall / 2 + 4, "end", fmt::format("{}", map.rows[row]));
    for (std::size_t column = 0; column < map.columns.size(); ++column) {
      const auto& cell = map.cells[row * map.columns.size() + column];
      const double x = left + wide * static_cast<double>(column);
      if (cell.plans == 0) {
        picture.rectangle(x, y, wide - 1, tall - 1, "untried");
        continue;
      }
      const double share = most > least ? std::log(most / cell.median) / std::log(most / least) : 1;
      picture.cell(x, y, wide - 1, tall - 1, heat_colour(share),
                   fmt::format("{}={}, {}={}: median {} of {} plans, best {}", map.x,
                               map.columns[column], map.y, map.rows[row], time_text(cell.median),
                               cell.plans, time_text(cell.best)));
      picture.text(x + wide / 2, y + tall / 2 + 4, share > 0.6 ? "on-bright" : "on-dark",
                   time_text(cell.median));
    }
  }
  for (std::size_t column = 0; column < map.columns.size(); ++column)
    picture.text(left + wide * (static_cast<double>(column) + 0.5), top + table + 15, "middle",
                 fmt::format("{}", map.columns[column]));
  picture.text(left + (width - left) / 2, top + table + 32, "middle", map.x);
  picture.upright(14, top + tall * static_cast<double>(map.rows.size()) / 2, map.y);
  return picture.finish();
}

std::string roofline_chart(const RooflineChart& chart) {
  constexpr double width = 620, height = 280, left = 64, right = width - 24, top = 12,
                   bottom = height - 38;
  double least_x = 1e300, most_x = 0, least_y = 1e300, most_y = chart.peak_operations;
  for (const auto& point : chart.points) {
    least_x = std::min(least_x, point.intensity), most_x = std::max(most_x, point.intensity);
    least_y = std::min(least_y, point.operations), most_y = std::max(most_y, point.operations);
  }
  const double ridge = chart.peak_bytes > 0 && chart.peak_operations > 0
                           ? chart.peak_operations / chart.peak_bytes
                           : 0;
  if (ridge > 0) most_x = std::max(most_x, 2 * ridge), least_x = std::min(least_x, ridge / 4);
  const auto down = [](double value) { return std::floor(std::log10(std::max(value, 1e-3))); };
  const auto up = [](double value) { return std::ceil(std::log10(std::max(value, 1e-2)) + 1e-9); };
  const Axis x{down(least_x), std::max(up(most_x), down(least_x) + 1), left, right};
  const Axis y{down(least_y), std::max(up(most_y), down(least_y) + 1), bottom, top};
  const auto place_x = [&](double value) { return x.at(std::log10(value)); };
  const auto place_y = [&](double value) { return y.at(std::log10(value)); };

  Picture picture(width, height, "roofline");
  for (double decade = y.from; decade <= y.to; ++decade) {
    picture.line(left, y.at(decade), right, y.at(decade), "grid");
    const double value = std::pow(10.0, decade);
    picture.text(left - 6, y.at(decade) + 4, "end",
                 value >= 1e12 ? fmt::format("{:.0f} T", value / 1e12)
                               : fmt::format("{:.4g} G", value / 1e9));
  }
  for (double decade = x.from; decade <= x.to; ++decade) {
    picture.line(x.at(decade), top, x.at(decade), bottom, "grid");
    picture.text(x.at(decade), bottom + 16, "middle",
                 fmt::format("{:.6g}", std::pow(10.0, decade)));
  }
  picture.text((left + right) / 2, height - 5, "middle",
               "operations a byte (vertical: operations a second)");
  if (chart.peak_operations > 0) {
    const double level = place_y(chart.peak_operations);
    picture.line(ridge > 0 ? place_x(ridge) : left, level, right, level, "roof");
    if (ridge > 0) {
      // Along the slope down to where it leaves the picture.
      const double foot =
          std::max(std::pow(10.0, x.from), std::pow(10.0, y.from) / chart.peak_bytes);
      picture.line(place_x(foot), place_y(foot * chart.peak_bytes), place_x(ridge), level, "roof");
    }
  }
  for (const auto& point : chart.points)
    picture.dot(place_x(point.intensity), place_y(point.operations), 4, "gain", point.name);
  return picture.finish();
}

}  // namespace quarterturn
