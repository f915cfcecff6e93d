#include "cache/env.hpp"

#include <fmt/format.h>

namespace quarterturn {
namespace {

// Values are words: what would split or end one is replaced, so that the text parses one way only.
std::string word(std::string_view value) {
  std::string out(value);
  for (char& c : out)
    if (static_cast<unsigned char>(c) <= ' ' || c == '=') c = '_';
  return out;
}

void add(std::string& out, std::string_view name, std::string_view value) {
  if (!value.empty()) out += fmt::format(" {}={}", name, word(value));
}

void add(std::string& out, std::string_view name, std::int64_t value) {
  if (value != 0) out += fmt::format(" {}={}", name, value);
}

// A line break inside a value would let two different rows print the same text.
std::string line(std::string_view name, std::string_view value) {
  std::string out = fmt::format("{}=", name);
  for (const char c : value) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + '\n';
}

bool same(std::string_view a, std::string_view b) { return a == b && a != "unknown"; }

}  // namespace

std::string Silicon::text() const {
  std::string out = word(vendor);
  add(out, "model", model);
  add(out, "units", units);
  add(out, "l2", l2_bytes);
  add(out, "l3", l3_bytes);
  add(out, "memory_gib", memory_gib);
  add(out, "partition", partition);
  add(out, "profile", profile);
  return out;
}

std::string Env::text() const {
  return line("target", target) + line("class", performance_class) + line("driver", driver) +
         line("toolkit", toolkit) + line("compiler", compiler) + line("library", library) +
         line("product", product);
}

Digest Env::hash() const { return sha256(text()); }

Validity compare(const Env& stored, const Env& here) {
  if (stored.target.empty() || !same(stored.target, here.target)) return Validity::foreign;
  if (stored.performance_class.empty() || !same(stored.performance_class, here.performance_class))
    return is_simulated(stored.performance_class) || is_simulated(here.performance_class)
               ? Validity::foreign
               : Validity::borrowed;
  const bool current = same(stored.driver, here.driver) && same(stored.toolkit, here.toolkit) &&
                       same(stored.compiler, here.compiler) && same(stored.library, here.library);
  return current ? Validity::valid : Validity::stale;
}

std::string_view validity_name(Validity validity) {
  switch (validity) {
    case Validity::valid:
      return "valid";
    case Validity::stale:
      return "stale";
    case Validity::borrowed:
      return "borrowed";
    case Validity::foreign:
      return "foreign";
  }
  return "foreign";
}

}  // namespace quarterturn
