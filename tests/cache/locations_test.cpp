// Where things live, and which setting decided it.
#include "cache/locations.hpp"

#include <doctest/doctest.h>

#include <map>

using namespace quarterturn;

namespace {

Surroundings surroundings(std::map<std::string, std::string> variables,
                          std::optional<std::string> account = std::nullopt) {
  return {[variables](const std::string& name) -> std::optional<std::string> {
            const auto found = variables.find(name);
            if (found == variables.end()) return std::nullopt;
            return found->second;
          },
          [account] { return account; }};
}

}  // namespace

TEST_CASE("locations.locate asks option, QTURN_CACHE_DIR, XDG, HOME and account, in this order") {
  std::map<std::string, std::string> all{
      {"QTURN_CACHE_DIR", "/fast"}, {"XDG_CACHE_HOME", "/xdg"}, {"HOME", "/home/u"}};
  auto found = locate({"/given/my.db", ""}, surroundings(all, "/account"));
  REQUIRE(found.ok());
  CHECK(found->database == "/given/my.db");
  CHECK(found->code_cache == "/given/code");
  CHECK(found->database_origin == LocationOrigin::option);

  found = locate({}, surroundings(all, "/account"));
  CHECK(found->database == "/fast/tuning.db");
  CHECK(found->code_cache == "/fast/code");
  CHECK(found->database_origin == LocationOrigin::cache_dir);
  all.erase("QTURN_CACHE_DIR");
  found = locate({"", "/code"}, surroundings(all, "/account"));
  CHECK(found->database == "/xdg/quarterturn/tuning.db");
  CHECK(found->code_cache == "/code");
  CHECK(found->database_origin == LocationOrigin::xdg);
  CHECK(found->code_origin == LocationOrigin::option);
  all.erase("XDG_CACHE_HOME");
  CHECK(locate({}, surroundings(all, "/account"))->database ==
        "/home/u/.cache/quarterturn/tuning.db");
  all.erase("HOME");
  found = locate({}, surroundings(all, "/account"));
  CHECK(found->database == "/account/.cache/quarterturn/tuning.db");
  CHECK(found->database_origin == LocationOrigin::account);
  CHECK(found->note.empty());
}

TEST_CASE(
    "locations.locate without any home keeps results in memory and says which setting helps") {
  const auto found = locate({}, surroundings({}));
  REQUIRE(found.ok());
  CHECK(found->database.empty());
  CHECK(found->code_cache.empty());
  CHECK(found->database_origin == LocationOrigin::nowhere);
  CHECK(found->note.find("QTURN_CACHE_DIR") != std::string::npos);
}

TEST_CASE("locations.locate passes over empty and relative values of XDG_CACHE_HOME and HOME") {
  const auto found = locate(
      {}, surroundings({{"XDG_CACHE_HOME", "relative"}, {"HOME", ""}, {"QTURN_CACHE_DIR", ""}},
                       "/account"));
  REQUIRE(found.ok());
  CHECK(found->database_origin == LocationOrigin::account);
}

TEST_CASE("locations.locate refuses URLs and a relative QTURN_CACHE_DIR") {
  CHECK(locate({}, surroundings({{"QTURN_CACHE_DIR", "s3://bucket/x"}})).status().code() ==
        Code::invalid_argument);
  CHECK(locate({}, surroundings({{"QTURN_CACHE_DIR", "here"}})).status().code() ==
        Code::invalid_argument);
  CHECK(locate({"gs://b/x.db", ""}, surroundings({})).status().code() == Code::invalid_argument);
  CHECK(locate({"", "s3://b"}, surroundings({})).status().code() == Code::invalid_argument);
}

TEST_CASE("locations.of_process reads the environment of this process") {
  const auto real = Surroundings::of_process();
  CHECK(real.variable("QTURN_NO_SUCH_VARIABLE") == std::nullopt);
  CHECK(real.variable("PATH").has_value());
  CHECK(real.account_home().value_or("/").starts_with('/'));
}
