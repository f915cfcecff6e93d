// The cookbook of docs/cluster.md, run block after block in one shell, as an operator would.
#include <doctest/doctest.h>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

TEST_CASE("the cookbook's commands run as they stand") {
  const auto page = read_file(QTURN_DOCS "/cluster.md");
  const auto begin = page.find("\n## Cookbook\n");
  REQUIRE(begin != std::string::npos);
  const auto chapter = page.substr(begin, page.find("\n## ", begin + 5) - begin);
  std::string all = "set -eu\n";
  int blocks = 0;
  for (auto at = chapter.find("\n```sh\n"); at != std::string::npos;
       at = chapter.find("\n```sh\n", at + 1), ++blocks)
    all += "echo 'block " + std::to_string(blocks) + "' >&2\n" +
           chapter.substr(at + 7, chapter.find("\n```\n", at + 7) + 1 - (at + 7));
  CHECK(blocks >= 9);

  Home home;
  const auto devices = home.run({"devices", "--json"});
  REQUIRE(devices.code == 0);
  home.set("PATH", std::filesystem::path(QTURN_PROGRAM).parent_path().string() + ":" +
                       std::string(std::getenv("PATH")));
  home.set("SHARED", (home / "shared").string());
  home.set("INSIDE", (home / "inside").string());
  home.set("TARGETS", devices.lines().at(0).at("target"));
  home.set("QTURN_THREADS", "2");
  home.set("TUNE", "--candidates 2");
  home.set("WORK", "--shape 4x96x128");
  const auto outcome = home.start({script(home, "cookbook.sh", all)}, "/bin/sh").finish(240);
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  // What was tuned serves behind the network's end, and from the bundle.
  home.set("QTURN_SNAPSHOTS", (home / "inside").string());
  home.set("QTURN_DATABASE", (home / "other.db").string());
  CHECK(home.run({"explain", "--shape", "4x96x128", "--threads", "2", "--json"})
            .says("\"match\":\"exact\""));
}
