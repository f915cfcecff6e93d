#include "tuner/report.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "tuner/chart.hpp"

using namespace quarterturn;

namespace {

constexpr std::int64_t kDecided = 1'700'000'000'000'000'000;

Env env(const std::string& compiler = "gcc 12") {
  Env out;
  out.target = "x86-64-v4:avx512_vnni";
  out.performance_class = "cpu model=6-207-2 units=4 l2=2097152";
  out.compiler = compiler;
  out.library = "0.1.0";
  return out;
}

std::string problem(int n) {
  return fmt::format("op=gemm m=16 n={} k=512 a_type=mxfp4 b_type=mxfp4 d_type=f32", n);
}

// Time depends on tile_m and tile_n, and not on prefetch.
std::vector<Trial> trials(const std::string& key, const Env& where) {
  std::vector<Trial> out;
  for (int m : {2, 4, 8})
    for (int n : {16, 32})
      for (int prefetch : {0, 1}) {
        Trial trial;
        trial.problem = key;
        trial.plan =
            fmt::format("gemm=cpu_gemm/1{{prefetch={},tile_m={},tile_n={}}}", prefetch, m, n);
        trial.env = std::make_shared<const Env>(where);
        trial.median_ns = 100000.0 / (m * n) + prefetch;
        trial.ratio = 1000 / trial.median_ns;
        trial.clock_mhz = 3000;
        trial.started = kDecided + static_cast<std::int64_t>(out.size());
        out.push_back(trial);
      }
  Trial failed = out.back();
  failed.plan = "gemm=cpu_gemm/1{prefetch=0,tile_m=16,tile_n=32}";
  failed.status = TrialStatus::compile_failed;
  failed.median_ns = failed.ratio = 0;
  failed.detail = "ld returned <1> & stopped\nmore";
  out.push_back(failed);
  return out;
}

Winner winner(const std::string& key, const Env& where, double speedup) {
  Winner out;
  out.problem = key;
  out.plan = "gemm=cpu_gemm/1{prefetch=0,tile_m=8,tile_n=32}";
  out.env = std::make_shared<const Env>(where);
  out.choice = speedup > 1 ? Choice::tuned : Choice::fallback;
  out.speedup = speedup, out.speedup_low = 0.97 * speedup, out.speedup_high = 1.03 * speedup;
  out.median_ns = 391;
  out.evidence = 12;
  out.decided = kDecided;
  return out;
}

Database database() {
  auto out = Database::open("");
  REQUIRE(out.ok());
  return std::move(*out);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

std::string page_of(Database& db, ReportOptions options = {}) {
  options.now = kDecided + 3 * 86400'000'000'000;
  options.library = "0.1.0";
  const auto data = collect_report(db, options);
  REQUIRE(data.ok());
  return report_page(*data, options);
}

}  // namespace

TEST_CASE("html.escapes what means something, and shows bytes that are no text") {
  CHECK(html("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(html("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80") == "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  const std::string unknown = "\xEF\xBF\xBD";
  CHECK(html(std::string("\0\x1B\x7F", 3)) == unknown + unknown + unknown);
  CHECK(html("\xC0\xAF") == unknown + unknown);                // overlong '/'
  CHECK(html("\xED\xA0\x80") == unknown + unknown + unknown);  // a surrogate
  CHECK(html("\xF0\x9F") == unknown + unknown);                // cut short
}

TEST_CASE("report.shows speed, curve, heat map, failures, coverage and staleness") {
  auto db = database();
  REQUIRE(db.add_trials(trials(problem(512), env())).ok());
  Winner old = winner(problem(1024), env("gcc 11"), 1);
  old.decided -= 86400'000'000'000;
  old.evidence = 0;
  REQUIRE(db.set_winner(old).ok());
  REQUIRE(db.set_winner(winner(problem(512), env(), 2.5)).ok());
  const auto page = page_of(db);
  CHECK(page.find("2.500 (2.425 to 2.575)") != std::string::npos);
  // 2 * 16 * 512 * 512 operations in 391 ns of 4 cores * 256 a clock * 3 GHz
  CHECK(page.find("698 %") != std::string::npos);
  CHECK(page.find("3.072 T operations a second assumed: 4 units at 3000 MHz") != std::string::npos);
  CHECK(page.find("13 plans tried, 1 failed") != std::string::npos);
  CHECK(page.find("ld returned &lt;1&gt; &amp; stopped<") != std::string::npos);
  CHECK(page.find("gemm.tile_m=8, gemm.tile_n=32: median 391 ns of 2 plans") != std::string::npos);
  CHECK(page.find("default, stale") != std::string::npos);
  CHECK(count(page, "<svg") == count(page, "</svg>"));
  CHECK(count(page, "<details") == count(page, "</details>"));
  CHECK(count(page, "<table") == count(page, "</table>"));
}

TEST_CASE("report.axes of heat maps can be chosen") {
  auto db = database();
  REQUIRE(db.add_trials(trials(problem(512), env())).ok());
  ReportOptions options;
  options.x = "gemm.prefetch", options.y = "gemm.tile_m";
  CHECK(page_of(db, options).find("gemm.prefetch=1, gemm.tile_m=8: median") != std::string::npos);
}

TEST_CASE("report.holds no markup from the database") {
  auto db = database();
  Env hostile = env("\"><script>alert(1)</script>");
  hostile.performance_class = "cpu units=2 '><img src=x onerror=alert(2)>";
  hostile.product = "{{body}}{{title}}</table></svg>";
  const std::string key = "op=<svg onload=alert(3)> \xFF";
  auto some = trials(key, hostile);
  some.back().detail = "</td><iframe src=//example.com>";
  REQUIRE(db.add_trials(some).ok());
  REQUIRE(db.set_winner(winner(key, hostile, 1.5)).ok());
  Miss miss{"<a href=javascript:alert(4)>", hostile.target, hostile.performance_class, 7, 9};
  REQUIRE(db.record_miss(miss).ok());
  const auto page = page_of(db);
  for (const char* markup : {"<script", "<img", "<iframe", "<a ", "<svg onload", "http"})
    CHECK_MESSAGE(count(page, markup) == (std::string(markup) == "http" ? 1u : 0u), markup);
  CHECK(page.find("http-equiv=\"Content-Security-Policy\"") != std::string::npos);
  CHECK(page.find("&lt;svg onload=alert(3)&gt; \xEF\xBF\xBD") != std::string::npos);
  CHECK(page.find("{{body}}{{title}}&lt;/table&gt;") != std::string::npos);
  CHECK(count(page, "<svg") == count(page, "</svg>"));
}

TEST_CASE("report.of an empty database is a page") {
  auto db = database();
  CHECK(page_of(db).find("<b>0</b><span>problems measured") != std::string::npos);
}

TEST_CASE("roof.is assumed from silicon facts, or said to be unknown") {
  Env h200 = env();
  h200.target = "sm_90a";
  h200.performance_class = "nvidia model=sm_90a units=132 l2=62914560 memory_gib=140";
  const Roof roof = roof_of(h200, 1980);
  CHECK(roof.operations == doctest::Approx(8192.0 * 132 * 1.98e9));
  CHECK(roof.bytes == doctest::Approx(4.8e12));
  CHECK(roof.operations_at(1e6, 1e6) == doctest::Approx(4.8e12));  // memory-bound
  CHECK(roof.operations_at(1e9, 1) == doctest::Approx(roof.operations));
  CHECK(roof_of(h200, 0).operations == 0);
  CHECK(roof_of(h200, 0).assumption.find("no trial recorded the clock") != std::string::npos);
  Env slice = h200;  // a part of a device has not all of its memory's speed
  slice.performance_class = "nvidia model=sm_90a units=60 memory_gib=70 partition=mig:3g.71gb";
  CHECK(roof_of(slice, 1980).bytes == 0);
  Env unknown = env();
  unknown.target = "sm_999x";
  CHECK(roof_of(unknown, 2000).operations == 0);
  CHECK(roof_of(unknown, 2000).assumption.find("no peak is known") != std::string::npos);
}
