// Env: where something was measured. It separates what makes an answer wrong, slower, or only old.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/digest.hpp"

namespace quarterturn {

/// What decides how fast a kernel runs on a device, from silicon facts and never from a product
/// name. Printed by text(), which is the performance class that winners are keyed by.
struct Silicon {
  std::string vendor;      ///< "cpu", "nvidia", "amd"
  std::string model;       ///< CPUID family-model-stepping, "sm_90a", "gfx950"
  std::int64_t units = 0;  ///< worker threads of a CPU, SMs or CUs of a GPU
  std::int64_t l2_bytes = 0, l3_bytes = 0;
  std::int64_t memory_gib = 0;  ///< rounded: two boards of one kind differ by megabytes
  std::string partition;        ///< "mig:3g.71gb", "cpx/nps4"; empty when the device is whole
  std::string profile;          ///< data profile, where it is not the role's own ("captured:<sha>")

  bool operator==(const Silicon&) const = default;

  /// "cpu model=6-143-8 units=2 l2=2097152 l3=110100480": fields that are 0 or empty are left out.
  std::string text() const;
};

/// One row of the table env: immutable, named by the hash of all its fields.
struct Env {
  std::string target;             ///< hard key: Target::key(); a mismatch means no entry
  std::string performance_class;  ///< Silicon::text(); a mismatch means borrowed
  // Soft validators: a mismatch means stale but usable. Empty says "there is none here";
  // "unknown" equals nothing, not even itself.
  std::string driver, toolkit, compiler, library;
  std::string product;  ///< shown to people, part of no comparison

  bool operator==(const Env&) const = default;

  /// One "name=value" a line, the same bytes in every process and locale.
  std::string text() const;
  Digest hash() const;
};

/// A class that begins so is of simulated devices: what they measured says nothing of real ones,
/// and goes into no database of real ones (Database::merge, import_json).
inline constexpr std::string_view kSimulatedClass = "simulated ";
inline bool is_simulated(std::string_view performance_class) {
  return performance_class.starts_with(kSimulatedClass);
}

/// How an answer measured in `stored` serves a device that is `here`.
enum class Validity {
  valid,
  stale,     ///< other driver, toolkit, compiler or library: serve it, and check it again
  borrowed,  ///< other performance class: usable, its speed is not known
  foreign,   ///< other target, or a simulated device's: must not be used
};

Validity compare(const Env& stored, const Env& here);
std::string_view validity_name(Validity validity);

}  // namespace quarterturn
