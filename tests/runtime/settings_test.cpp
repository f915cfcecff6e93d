#include "runtime/settings.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;
using test::TemporaryFolder;

namespace {

// A made-up machine: variables from a map, files in a folder of the test.
struct Machine {
  TemporaryFolder folder;
  std::map<std::string, std::string> variables;
  std::map<Setting, std::string> options;

  SettingSources sources() const {
    SettingSources out;
    out.surroundings.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    out.surroundings.account_home = [this] { return std::optional(folder.file("home")); };
    out.site_file = folder.file("etc/config.json");
    out.options = options;
    return out;
  }
  Settings load() const { return Settings::load(sources()); }
  std::string user_file(const std::string& text) const {
    return folder.write("home/.config/quarterturn/config.json", text);
  }
};

}  // namespace

TEST_CASE("settings.the table names each setting once") {
  std::set<std::string_view> names, variables;
  for (std::size_t i = 0; i < kSettings; ++i) {
    const auto& spec = setting_specs()[i];
    CHECK(static_cast<std::size_t>(spec.id) == i);
    CHECK(names.insert(spec.name).second);
    CHECK(variables.insert(spec.variable).second);
    CHECK(spec.variable.substr(0, 6) == "QTURN_");
    CHECK_FALSE(spec.meaning.empty());
  }
}

TEST_CASE("settings.stronger sources win, one by one") {
  Machine machine;
  CHECK(machine.load().of(Setting::threads).origin == SettingOrigin::standard);
  machine.folder.write("etc/config.json", R"({"threads": 1, "device": 7})");
  CHECK(machine.load().count(Setting::threads) == 1);
  const auto user = machine.user_file(R"({"threads": "2"})");
  auto settings = machine.load();
  CHECK(settings.count(Setting::threads) == 2);
  CHECK(settings.of(Setting::threads).place == user);
  CHECK(settings.count(Setting::device) == 7);
  CHECK(settings.of(Setting::device).origin == SettingOrigin::site_file);
  machine.variables["QTURN_THREADS"] = "3";
  settings = machine.load();
  CHECK(settings.count(Setting::threads) == 3);
  CHECK(settings.of(Setting::threads).place == "QTURN_THREADS");
  machine.options[Setting::threads] = "4";
  CHECK(machine.load().count(Setting::threads) == 4);
  CHECK(machine.load().of(Setting::threads).origin == SettingOrigin::option);
  CHECK(machine.load().problems().empty());
}

TEST_CASE("settings.a malformed value says so, and the weaker source holds") {
  Machine machine;
  machine.user_file(R"({"threads": 2})");
  for (const auto* bad : {"two", "-1", "4097", "2 ", "99999999999999999999"}) {
    machine.variables["QTURN_THREADS"] = bad;
    const auto settings = machine.load();
    CHECK(settings.count(Setting::threads) == 2);
    REQUIRE(settings.problems().size() == 1);
    CHECK(settings.problems()[0].find("QTURN_THREADS") != std::string::npos);
    CHECK(settings.problems()[0].find("0 to 4096") != std::string::npos);
  }
  machine.variables = {{"QTURN_ON_MISS", "maybe"}};
  CHECK(machine.load().text(Setting::on_miss) == "heuristic");
  CHECK(machine.load().problems().at(0).find("heuristic, background, error") != std::string::npos);
}

TEST_CASE("settings.damaged, mistyped and untrustworthy files") {
  Machine machine;
  const auto user = machine.user_file("{ threads: ");
  REQUIRE(machine.load().problems().size() == 1);
  CHECK(machine.load().problems()[0].find(user) == 0);
  machine.user_file("[1, 2]");
  CHECK(machine.load().problems().size() == 1);
  machine.user_file(R"({"thread": 2, "log": {"level": 1}, "device": 3})");
  CHECK(machine.load().problems().size() == 2);
  CHECK(machine.load().count(Setting::device) == 3);
  std::filesystem::remove(user);
  std::filesystem::create_directory(user);
  CHECK(machine.load().problems().size() == 1);
  std::filesystem::remove(user);
  machine.user_file(R"({"cxx": "/tmp/evil"})");
  for (const mode_t mode : {0666, 0664}) {
    chmod(user.c_str(), mode);
    CHECK(machine.load().text(Setting::cxx).empty());
    CHECK(machine.load().problems().at(0).find("writable") != std::string::npos);
  }
}

TEST_CASE("settings.lists come as arrays or separated words") {
  Machine machine;
  machine.user_file(R"({"snapshots": ["/a b", "/c"], "no_jit": true})");
  machine.variables["QTURN_DISABLE"] = "cpu_gemm,cuda";
  const auto settings = machine.load();
  CHECK(settings.list(Setting::snapshots) == std::vector<std::string>{"/a b", "/c"});
  CHECK(settings.text(Setting::no_jit) == "1");
  CHECK(settings.lists(Setting::disable, "cuda"));
  CHECK_FALSE(settings.lists(Setting::disable, "cpu"));
}

TEST_CASE("settings.the user file follows XDG_CONFIG_HOME, then HOME, then the account") {
  Machine machine;
  machine.user_file(R"({"threads": 5})");
  CHECK(machine.load().count(Setting::threads) == 5);
  machine.variables["HOME"] = machine.folder.file("other");
  CHECK(machine.load().count(Setting::threads) == 0);
  machine.folder.write("other/.config/quarterturn/config.json", R"({"threads": 6})");
  CHECK(machine.load().count(Setting::threads) == 6);
  machine.variables["XDG_CONFIG_HOME"] = machine.folder.file("xdg");
  machine.folder.write("xdg/quarterturn/config.json", R"({"threads": 8})");
  CHECK(machine.load().count(Setting::threads) == 8);
}

TEST_CASE("settings.locations take cache_dir from any source") {
  Machine machine;
  machine.user_file(R"({"cache_dir": "/somewhere/cache"})");
  const auto settings = machine.load();
  const auto places = settings.locations();
  REQUIRE(places.ok());
  CHECK(places->database.find("/somewhere/cache/") == 0);
  machine.options[Setting::database] = "/elsewhere/tuned.db";
  CHECK(machine.load().locations()->database == "/elsewhere/tuned.db");
}
