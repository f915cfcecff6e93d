// Fleet: one tuning process a device. Devices of one kind share the problems and the database; a
// process that dies costs the trial that it had in flight.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tuner/session.hpp"

namespace quarterturn {

struct FleetDevice {
  std::string name;                  ///< "cuda:0"
  std::vector<std::string> command;  ///< program and arguments of its process: see fleet_server.hpp
};

struct FleetOptions {
  std::vector<FleetDevice> devices;
  double time_limit = 0;        ///< seconds for everything; 0 = none
  double greeting_limit = 120;  ///< seconds for a process to say what its device is
  std::function<bool()> interrupted;
  /// One line of a device's process, or about it: "ended by signal 9 ...".
  std::function<void(const std::string& device, const std::string& line)> say;
};

/// What a device's process says at its start. Devices whose kinds are equal share problems.
struct FleetKind {
  std::string target, performance_class;
  auto operator<=>(const FleetKind&) const = default;
};

class Fleet {
 public:
  explicit Fleet(FleetOptions options);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  /// Every item on one device of each kind, or what was missed on each kind where its processes say
  /// so (fleet_server.hpp). `done` is called for each as it is known, `changed` now and then with
  /// what one device does.
  std::vector<Tuned> run(
      const std::vector<Item>& items,
      const std::function<void(const std::string& device, const Progress&)>& changed,
      const std::function<void(const std::string& device, const Tuned&)>& done);

  /// After run: whether any could be used.
  bool has_devices() const { return !groups_.empty(); }

  struct KindEstimate {
    FleetKind kind;
    std::size_t devices = 0;
    std::vector<Estimate> problems;
  };
  /// Tries nothing.
  Result<std::vector<KindEstimate>> estimate(const std::vector<Item>& items);

 private:
  struct Child;
  struct Group;
  void start(Child& child);
  bool greet();
  void end_silent();
  const std::vector<Item>& items_of(const Child& child, const std::vector<Item>& items) const;
  void assign(Child& child, Group& group);
  void settle(Group& group);
  void take(Child& child, const nlohmann::json& line);
  void lost(Child& child);
  void read_from(Child& child, int& fd, std::string& buffer, bool is_output);
  void poll_children(int milliseconds);
  bool send(Child& child, const nlohmann::json& line);
  double time_left() const;

  FleetOptions options_;
  SteadyClock clock_;
  double begun_ = 0;
  bool ending_ = false;
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::function<void(const std::string&, const Progress&)> changed_;
  std::function<void(const std::string&, const Tuned&)> done_;
};

}  // namespace quarterturn
