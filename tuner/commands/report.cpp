// qturn report: what a tuning database knows, as one HTML file.
#include "tuner/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/version.hpp"
#include "tuner/commands/command.hpp"

namespace quarterturn {
namespace {

constexpr const char* kReportFooter = R"(Examples:
  qturn report --db tuning.db -o report.html
  qturn report --db tuning.db -o report.html --x gemm.tile_m --y gemm.tile_n

One file that loads nothing and runs no script: each problem's speed against the device's roofline and
against the default, with confidence intervals; how each search went; heat maps of its space;
coverage and staleness. The database is only read. The file names devices as the database does, and
holds no host, user or path name.)";

struct Arguments {
  std::string output;
  ReportOptions report;
};

Status write_whole(const std::string& path, const std::string& text) {
  // Readers of an older report never see half of the new one.
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wxb");
  if (!file)
    return {Code::io_error, fmt::format("cannot write {}: {}", temporary, std::strerror(errno))};
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (written && closed && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  std::remove(temporary.c_str());
  return {Code::io_error, fmt::format("cannot write {}: {}", path, std::strerror(error))};
}

int report(const GlobalOptions& global, Arguments arguments) {
  auto sources = sources_of(global);
  if (!sources.ok()) return fail(sources.status());
  auto locations = Settings::load(*sources).locations();
  if (!locations.ok()) return fail(locations.status());
  std::error_code ignored;
  if (!std::filesystem::exists(locations->database, ignored))
    return fail(Status(Code::io_error, fmt::format("there is no file {}", locations->database)));
  auto database = Database::open(locations->database,
                                 {.access = Access::read_only, .fallback = Fallback::none});
  if (!database.ok()) return fail(database.status());
  arguments.report.library = kVersion;
  arguments.report.now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  const auto data = collect_report(*database, arguments.report);
  if (!data.ok()) return fail(data.status());
  const std::string page = report_page(*data, arguments.report);
  if (arguments.output == "-") {
    std::fwrite(page.data(), 1, page.size(), stdout);
    return kExitOk;
  }
  if (auto status = write_whole(arguments.output, page); !status.ok()) return fail(status);
  std::fprintf(stderr, "qturn: %s: %zu problems, %zu KiB\n", arguments.output.c_str(),
               data->problems.size() + data->left_out, page.size() / 1024);
  return kExitOk;
}

}  // namespace

std::function<int()> register_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "Show what was tuned as one HTML file");
  command->footer(kReportFooter);
  auto global = std::make_shared<GlobalOptions>();
  auto arguments = std::make_shared<Arguments>();
  add_database(*command, *global);
  command->add_option("-o,--output", arguments->output, "The file; -: stdout")->required();
  command
      ->add_option("--details", arguments->report.details,
                   "Problems with tuning curves and heat maps, those with most trials first")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{0}, std::size_t{1000}));
  auto* x = command->add_option("--x", arguments->report.x,
                                "Parameter across heat maps, gemm.tile_m (default: the two "
                                "parameters that tell most of the time)");
  auto* y = command->add_option("--y", arguments->report.y, "Parameter down heat maps");
  x->needs(y);
  y->needs(x);
  return [=] { return report(*global, *arguments); };
}

}  // namespace quarterturn
