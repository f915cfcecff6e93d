#include "cache/publication.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

namespace {

Database filled(const std::string& path, int winners) {
  auto db = Database::open(path);
  REQUIRE(db.ok());
  for (int i = 0; i < winners; ++i) {
    REQUIRE(db->add_trial(trial(i)).ok());
    REQUIRE(db->set_winner(winner(i)).ok());
  }
  return std::move(*db);
}

std::int64_t answers(const std::string& place, const std::vector<std::string>& keys = {}) {
  auto db = open_published(place, keys);
  REQUIRE_MESSAGE(db.ok(), db.status().message());
  return static_cast<std::int64_t>(db->winners(env()->target)->size());
}

}  // namespace

TEST_CASE("publication.readers follow the current generation, and older ones stay") {
  const Folder folder;
  const auto place = folder / "site";
  auto db = filled(folder / "a.db", 2);
  CHECK(read_manifest(place).status().code() == Code::miss);
  CHECK(open_published(place).status().code() != Code::ok);
  const auto first = publish(db, place);
  REQUIRE_MESSAGE(first.ok(), first.status().message());
  CHECK(first->number == 1);
  CHECK(answers(place) == 2);
  auto old = open_published(place);
  REQUIRE(db.set_winner(winner(5)).ok());
  REQUIRE(publish(db, place).ok());
  CHECK(answers(place) == 3);
  CHECK(old->winners(env()->target)->size() == 2);  // a job that has it open goes on with it
  REQUIRE(make_current(place, 1).ok());
  CHECK(answers(place) == 2);
  CHECK(make_current(place, 3).code() == Code::out_of_range);
  // The next one is a new number, not the one that was rolled back.
  CHECK(publish(db, place)->number == 3);
  CHECK(answers(place) == 3);
  CHECK(read_manifest(place)->generations.size() == 3);
  for (const auto& name : names_in(place)) CHECK(name.find(".tmp") == std::string::npos);
}

TEST_CASE("publication.equal content has equal hashes, whoever publishes it") {
  const Folder folder;
  auto a = filled(folder / "a.db", 3), b = filled(folder / "b.db", 0);
  REQUIRE(b.merge(folder / "a.db").ok());
  for (int i = 2; i >= 0; --i) REQUIRE(b.set_winner(winner(i)).ok());
  const auto from_a = publish(a, folder / "x"), from_b = publish(b, folder / "y");
  REQUIRE(from_a.ok());
  REQUIRE(from_b.ok());
  CHECK(from_a->winners == from_b->winners);
}

TEST_CASE(
    "publication.only generations that an allowed key signed are served, when keys are named") {
  const Folder folder;
  const auto place = folder / "site";
  auto db = filled(folder / "a.db", 2);
  const auto key = make_signing_key(folder / "key"), other = make_signing_key(folder / "other");
  REQUIRE(key.ok());
  REQUIRE(other.ok());
  CHECK(make_signing_key(folder / "key").status().code() != Code::ok);  // never overwritten
  const auto read = read_signing_key(folder / "key");
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->public_hex() == key->public_hex());

  REQUIRE(publish(db, place).ok());
  const std::vector<std::string> allowed{key->public_hex()};
  CHECK(open_published(place, allowed).status().code() == Code::not_ours);  // not signed
  const auto made = publish(db, place, {}, &*key);
  REQUIRE(made.ok());
  CHECK(answers(place, allowed) == 2);
  CHECK(open_published(place, {other->public_hex()}).status().code() == Code::not_ours);
  CHECK(open_published(place + "/" + made->file, allowed).status().code() == Code::not_ours);

  // Another file under the signed name, and another signature under the signed content.
  auto bad = filled(folder / "b.db", 5);
  REQUIRE(bad.export_snapshot(folder / "bad.qturn").ok());
  const auto good = read_file(place + "/" + made->file);
  write_file(place + "/" + made->file, read_file(folder / "bad.qturn"));
  const auto forged = open_published(place, allowed);
  CHECK(forged.status().code() == Code::not_ours);
  CHECK(forged.status().message().find("other winners") != std::string::npos);
  write_file(place + "/" + made->file, good);
  CHECK(answers(place, allowed) == 2);
  auto manifest = read_file(place + "/CURRENT");
  const auto at = manifest.find(made->signature);
  REQUIRE(at != std::string::npos);
  manifest[at] = manifest[at] == '0' ? '1' : '0';
  write_file(place + "/CURRENT", manifest);
  CHECK(open_published(place, allowed).status().code() == Code::not_ours);
}

TEST_CASE("publication.a signing key that others can read is refused") {
  const Folder folder;
  REQUIRE(make_signing_key(folder / "key").ok());
  REQUIRE(chmod((folder / "key").c_str(), 0640) == 0);
  const auto key = read_signing_key(folder / "key");
  CHECK(key.status().code() == Code::not_ours);
  CHECK(key.status().message().find("chmod 600") != std::string::npos);
  CHECK(is_signed_by("zz", "message", "aa") == false);
}

TEST_CASE("publication.hostile and damaged manifests are refused, and nothing outside is opened") {
  const Folder folder;
  const auto place = folder / "site";
  auto db = filled(folder / "a.db", 1);
  REQUIRE(publish(db, place).ok());
  const auto good = read_file(place + "/CURRENT");
  const auto file = read_manifest(place)->generations[0].file;
  const auto with = [&](const std::string& from, const std::string& to) {
    auto text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    write_file(place + "/CURRENT", text);
    return read_manifest(place).status().code();
  };
  CHECK(with(file, "../a.db") == Code::damaged);
  CHECK(with(file, "..") == Code::damaged);
  CHECK(with(file, ".hidden") == Code::damaged);
  CHECK(with(file, "a/b") == Code::damaged);
  CHECK(with(file, "a\\u0000b") == Code::damaged);
  CHECK(with(file, std::string(300, 'x')) == Code::damaged);
  CHECK(with(file, "/etc/passwd") == Code::damaged);
  CHECK(with("\"current\": 1", "\"current\": 9") == Code::damaged);
  CHECK(with("\"quarterturn_publication\": 1", "\"quarterturn_publication\": 2") ==
        Code::newer_version);
  CHECK(with("\"generations\"", "\"generation\"") == Code::damaged);
  // Sizes and numbers that would be rounded, wrapped or overflow when the next one is counted.
  for (const char* number : {"-1", "1.0", "1e300", "9223372036854775807", "18446744073709551615",
                             "99999999999999999999", "\"1\"", "null", "[1]"}) {
    CHECK_MESSAGE(with("\"number\": 1", std::string("\"number\": ") + number) == Code::damaged,
                  number);
    CHECK_MESSAGE(with("\"sequence\": 1", std::string("\"sequence\": ") + number) == Code::damaged,
                  number);
  }
  CHECK(with("\"content_sha256\": \"", "\"content_sha256\": \"0") == Code::damaged);
  CHECK(with("\"winners_sha256\": \"", "\"winners_sha256\": \"1\\nnumber=2") == Code::damaged);
  write_file(place + "/CURRENT", std::string(200'000, '['));
  CHECK(read_manifest(place).status().code() == Code::damaged);
  write_file(place + "/CURRENT", good);
  std::filesystem::resize_file(place + "/CURRENT", std::uintmax_t{1} << 34);  // sparse
  CHECK(read_manifest(place).status().code() == Code::damaged);
  write_file(place + "/CURRENT", good);
  for (std::size_t length = 0; length + 2 < good.size(); length += 7) {
    write_file(place + "/CURRENT", good.substr(0, length));
    CHECK(read_manifest(place).status().code() == Code::damaged);
  }
  // Publishing over a manifest that cannot be read would lose the generations.
  CHECK(publish(db, place).status().code() == Code::damaged);
}

TEST_CASE("publication.an older manifest that is put back is refused where the newer was read") {
  const Folder folder;
  const auto place = folder / "site";
  auto db = filled(folder / "a.db", 1);
  const auto key = make_signing_key(folder / "key"), other = make_signing_key(folder / "other");
  REQUIRE(key.ok());
  REQUIRE(other.ok());
  const std::vector<std::string> allowed{key->public_hex()};
  REQUIRE(publish(db, place, {}, &*key).ok());
  const auto first = read_file(place + "/CURRENT");
  REQUIRE(db.set_winner(winner(5)).ok());
  REQUIRE(publish(db, place, {}, &*key).ok());
  const auto second = read_file(place + "/CURRENT");
  const auto seen = open_current(place, allowed)->sequence;
  CHECK(seen == 2);
  write_file(place + "/CURRENT", first);
  CHECK(open_current(place, allowed, seen).status().code() == Code::not_ours);
  CHECK(open_current(place, allowed, 1)->number == 1);  // one that never saw the newer
  // The publisher's own return to it is a newer choice, and has to be signed as such.
  write_file(place + "/CURRENT", second);
  CHECK(make_current(place, 1).code() == Code::invalid_argument);
  CHECK(open_current(place, allowed, seen)->number == 2);
  REQUIRE(make_current(place, 1, &*key).ok());
  CHECK(open_current(place, allowed, seen)->number == 1);
  CHECK(open_current(place, allowed, seen)->sequence == 3);
  // Nobody else's choice counts, and what is current cannot be edited.
  REQUIRE(make_current(place, 2, &*other).ok());
  CHECK(open_current(place, allowed, seen).status().code() == Code::not_ours);
  CHECK(open_current(place, {key->public_hex(), other->public_hex()}, seen)->number == 2);
  auto edited = second;
  edited.replace(edited.find("\"current\": 2"), 12, "\"current\": 1");
  write_file(place + "/CURRENT", edited);
  CHECK(open_current(place, allowed).status().code() == Code::not_ours);
  edited = first;
  edited.replace(edited.find("\"sequence\": 1"), 13, "\"sequence\": 9");
  write_file(place + "/CURRENT", edited);
  CHECK(open_current(place, allowed, seen).status().code() == Code::not_ours);
}

TEST_CASE(
    "publication.a signed generation whose file was swapped, cut, linked or replaced by a pipe") {
  const Folder folder;
  const auto place = folder / "site";
  auto db = filled(folder / "a.db", 2);
  const auto key = make_signing_key(folder / "key");
  REQUIRE(key.ok());
  const std::vector<std::string> allowed{key->public_hex()};
  const auto one = publish(db, place, {}, &*key);
  REQUIRE(db.set_winner(winner(5)).ok());
  const auto two = publish(db, place, {}, &*key);
  REQUIRE(two.ok());
  const auto path = place + "/" + two->file;
  const auto good = read_file(path);
  const auto code = [&](const std::vector<std::string>& keys) {
    const auto begun = std::chrono::steady_clock::now();
    const auto out = open_published(place, keys).status().code();
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
    return out;
  };
  REQUIRE(code(allowed) == Code::ok);
  write_file(path, read_file(place + "/" + one->file));  // signed as well, but not as this one
  CHECK(code(allowed) == Code::not_ours);
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{50}, std::size_t{4096}, good.size() / 2}) {
    write_file(path, good.substr(0, length));
    CHECK(code(allowed) != Code::ok);
    CHECK(code({}) != Code::ok);
  }
  auto inflated = good;  // a header that speaks of 4 billion pages
  for (int i = 28; i < 32; ++i) inflated[static_cast<std::size_t>(i)] = '\xff';
  write_file(path, inflated);
  CHECK(code(allowed) != Code::ok);
  REQUIRE(unlink(path.c_str()) == 0);
  CHECK(code(allowed) == Code::io_error);
  REQUIRE(symlink((folder / "a.db").c_str(), path.c_str()) == 0);
  CHECK(code({}) == Code::not_ours);
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(code({}) == Code::not_ours);
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(mkdir(path.c_str(), 0700) == 0);
  CHECK(code({}) == Code::not_ours);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(open_published(folder / "pipe").status().code() == Code::not_ours);
  // And a manifest that is no file.
  REQUIRE(unlink((place + "/CURRENT").c_str()) == 0);
  REQUIRE(mkfifo((place + "/CURRENT").c_str(), 0600) == 0);
  CHECK(code({}) == Code::miss);
}
