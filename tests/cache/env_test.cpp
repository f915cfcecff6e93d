// Keys and validity: what a stored answer is worth on another machine.
#include "cache/env.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace quarterturn;

namespace {

Env here() {
  return {"sm_90a", "nvidia model=sm_90a units=132", "550.54", "12.4", "nvrtc-12.4.131", "0.1.0",
          "H200"};
}

}  // namespace

TEST_CASE("env.compare tells wrong, borrowed and stale apart") {
  CHECK(compare(here(), here()) == Validity::valid);
  Env other = here();
  other.target = "sm_90";
  CHECK(compare(other, here()) == Validity::foreign);
  other = here();
  other.performance_class = "nvidia model=sm_90a units=114";
  CHECK(compare(other, here()) == Validity::borrowed);
  for (std::string Env::*validator : {&Env::driver, &Env::toolkit, &Env::compiler, &Env::library}) {
    other = here();
    other.*validator = "another";
    CHECK(compare(other, here()) == Validity::stale);
  }
  other = here();
  other.product = "H100 80GB HBM3";  // a name on a label decides nothing
  CHECK(compare(other, here()) == Validity::valid);
}

TEST_CASE("env.compare never matches what is unknown, not even with itself") {
  for (std::string Env::*field : {&Env::target, &Env::performance_class, &Env::driver,
                                  &Env::toolkit, &Env::compiler, &Env::library}) {
    Env unknown = here();
    unknown.*field = "unknown";
    CHECK(compare(unknown, unknown) != Validity::valid);
    CHECK(compare(unknown, here()) != Validity::valid);
    CHECK(compare(here(), unknown) != Validity::valid);
  }
  Env empty = here();
  empty.driver.clear();
  CHECK(compare(empty, here()) == Validity::stale);  // stored without a driver, used with one
  CHECK(compare(empty, empty) == Validity::valid);   // a CPU has none
  Env nothing;
  CHECK(compare(nothing, nothing) == Validity::foreign);
}

TEST_CASE("env.hash covers every field, and no two rows share a text") {
  std::set<Digest> hashes{here().hash()};
  for (std::string Env::*field : {&Env::target, &Env::performance_class, &Env::driver,
                                  &Env::toolkit, &Env::compiler, &Env::library, &Env::product}) {
    Env changed = here();
    changed.*field += "x";
    hashes.insert(changed.hash());
    changed.*field += "\ndriver=550";  // a value cannot pretend to be the next line
    hashes.insert(changed.hash());
  }
  CHECK(hashes.size() == 15);
  Env a, b;
  a.driver = "1\ntoolkit=2";
  b.driver = "1";
  b.toolkit = "2";
  CHECK(a.text() != b.text());
  a.driver = "1\\ntoolkit=2";
  b.driver = "1\ntoolkit=2";
  b.toolkit.clear();
  CHECK(a.text() != b.text());
}

TEST_CASE("env.silicon prints what decides the speed and nothing else") {
  Silicon cpu{"cpu", "6-143-8", 2, 2097152, 110100480, 0, "", ""};
  CHECK(cpu.text() == "cpu model=6-143-8 units=2 l2=2097152 l3=110100480");
  Silicon mig{"nvidia", "sm_90a", 60, 31457280, 0, 71, "mig:3g.71gb", "captured:ab"};
  CHECK(mig.text() ==
        "nvidia model=sm_90a units=60 l2=31457280 memory_gib=71 partition=mig:3g.71gb "
        "profile=captured:ab");
  Silicon odd{"cpu", "a b=c\nd", 1, 0, 0, 0, "", ""};
  CHECK(odd.text() == "cpu model=a_b_c_d units=1");
}
