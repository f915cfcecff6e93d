// qturn db proofs: which families are proved on which devices, what is in quarantine, and how an
// entry is lifted.
#include "tuner/commands/proofs.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace quarterturn {
namespace {

constexpr const char* kProofsFooter = R"(Examples:
  qturn db proofs
  qturn db proofs --lift cuda_gemm_sm100
  qturn db proofs --lift hip_quantize/1 --target gfx950
  qturn db proofs --lift all

Lists the families that were proved on a class of devices under a compiler (state proven), and what is in
quarantine there (wrong, crashed, hung, compile_failed, ...): a family that failed its proof is held back
altogether, a plan or variant for one problem. --lift takes entries out of quarantine, by the family's name
with or without its revision, by the subject that is listed, or all of them: the next prepare proves the
family again, on the device. Whoever runs already sees that after qturn_reload. A merge from a database that
still holds the entry brings it back; a new compiler or driver gives every family another chance by itself.

Exit codes: 0 done; 1 nothing that is named is in quarantine; 2 the command line does not make sense;
3 the database cannot be read, or not be written.)";

struct ProofsOptions {
  GlobalOptions global;
  std::string lift, target;
};

std::string when(std::int64_t nanoseconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(static_cast<std::time_t>(nanoseconds / 1'000'000'000)));
}

Result<Database> open_proofs_database(const GlobalOptions& global) {
  auto sources = sources_of(global);
  if (!sources.ok()) return sources.status();
  auto locations = Settings::load(*sources).locations();
  if (!locations.ok()) return locations.status();
  std::error_code ignored;
  if (!std::filesystem::exists(locations->database, ignored))
    return Status(Code::io_error, fmt::format("there is no file {}", locations->database));
  DatabaseOptions options;
  options.access = Access::read_write;
  options.fallback = Fallback::none;
  return Database::open(locations->database, options);
}

// Whether `name` is the entry's subject, its family, or the family of its variant.
bool is_meant(const Quarantine& entry, const std::string& name) {
  return name == "all" || entry.subject == name || entry.subject.rfind(name + "/", 0) == 0;
}

int lift_quarantine(Database& database, const ProofsOptions& options) {
  const auto held = database.quarantine();
  if (!held.ok()) return fail(held.status());
  Table table({"lifted", "problem", "target", "reason"});
  std::size_t lifted = 0;
  for (const auto& entry : *held) {
    if (!is_meant(entry, options.lift)) continue;
    if (!options.target.empty() && entry.target != options.target) continue;
    if (auto status = database.remove_quarantine(entry); !status.ok()) return fail(status);
    table.add({entry.subject, entry.problem, entry.target,
               std::string(quarantine_reason_name(entry.reason))});
    ++lifted;
  }
  if (lifted == 0) {
    std::fprintf(
        stderr, "qturn: nothing called '%s' is in quarantine%s; `qturn db proofs` lists it\n",
        options.lift.c_str(), options.target.empty() ? "" : (" on " + options.target).c_str());
    return kExitFailed;
  }
  table.print(options.global.json);
  std::fprintf(stderr, "qturn: the next prepare proves %s again\n", lifted == 1 ? "it" : "them");
  return kExitOk;
}

int list_proofs(Database& database, const ProofsOptions& options) {
  const auto proved = database.admitted_families();
  if (!proved.ok()) return fail(proved.status());
  const auto held = database.quarantine();
  if (!held.ok()) return fail(held.status());
  Table table({"subject", "state", "target", "class", "compiler", "last", "problem", "detail"});
  const auto wanted = [&](const std::string& target) {
    return options.target.empty() || options.target == target;
  };
  for (const auto& one : *proved)
    if (wanted(one.target))
      table.add({one.family, "proven", one.target, one.performance_class, one.compiler,
                 when(one.last), "", ""});
  for (const auto& entry : *held)
    if (wanted(entry.target))
      table.add({entry.subject, std::string(quarantine_reason_name(entry.reason)), entry.target,
                 entry.performance_class, entry.compiler, when(entry.last), entry.problem,
                 entry.detail});
  table.print(options.global.json);
  return kExitOk;
}

}  // namespace

std::optional<std::string> quarantine_note(Database& database) {
  const auto held = database.quarantine();
  if (!held.ok() || held->empty()) return {};
  const Quarantine& first = held->front();
  return fmt::format(
      "{} entr{}: {} on {} ({}){}; `qturn db proofs` lists them, and `qturn db proofs "
      "--lift {}` lets it be tried again",
      held->size(), held->size() == 1 ? "y" : "ies", first.subject, first.target,
      quarantine_reason_name(first.reason), held->size() == 1 ? "" : ", ...",
      first.subject.find(' ') == std::string::npos ? first.subject : '\'' + first.subject + '\'');
}

std::function<int()> register_proofs(CLI::App& db) {
  auto* command =
      db.add_subcommand("proofs", "List proofs of families and quarantines; lift a quarantine");
  auto options = std::make_shared<ProofsOptions>();
  add_database(*command, options->global);
  add_json(*command, options->global);
  command->add_option("--lift", options->lift, "A family, a listed subject, or all");
  command->add_option("--target", options->target, "Of this target alone");
  command->footer(kProofsFooter);
  return [options] {
    auto database = open_proofs_database(options->global);
    if (!database.ok()) return fail(database.status());
    return options->lift.empty() ? list_proofs(*database, *options)
                                 : lift_quarantine(*database, *options);
  };
}

}  // namespace quarterturn
