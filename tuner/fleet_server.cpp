#include "tuner/fleet_server.hpp"

#include <errno.h>
#include <unistd.h>

#include "tuner/fleet_lines.hpp"
#include "tuner/missed.hpp"

namespace quarterturn {
namespace {

using Json = nlohmann::json;
using fleet_lines::items_of;
using fleet_lines::json_of;

constexpr double kProgressSeconds = 0.5;

}  // namespace

int serve_fleet(Context& context, const SessionOptions& options,
                const std::optional<std::vector<Item>>& missed, int in, int out) {
  const auto say = [out](const Json& line) {
    return fleet_lines::write_all(out,
                                  line.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n");
  };
  Json greeting{{"device",
                 {{"target", context.env().target},
                  {"class", context.env().performance_class},
                  {"name", context.backend().device().name}}}};
  if (missed) greeting["missed"] = json_of(*missed);
  say(greeting);
  std::string buffer;
  SteadyClock clock;
  for (;;) {
    if (options.interrupted && options.interrupted()) return 130;
    const auto end = buffer.find('\n');
    if (end == std::string::npos) {
      char bytes[16384];
      const auto n = ::read(in, bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return 0;
      buffer.append(bytes, static_cast<std::size_t>(n));
      continue;
    }
    const auto request = Json::parse(buffer.substr(0, end), nullptr, false);
    buffer.erase(0, end + 1);
    if (!request.is_object()) return 2;
    const auto* const kind = request.contains("run")      ? "run"
                             : request.contains("settle") ? "settle"
                                                          : "estimate";
    if (!request.contains(kind)) return 2;
    const auto given = items_of(request[kind]);
    if (!given.ok()) return 2;
    const auto& items = *given;
    auto settings = options;
    settings.time_limit = request.value("time_limit", 0.0);
    // Everything is decided by now.
    const bool settles = request.contains("settle");
    if (settles) settings.cached = Cached::reused;
    Session session(context, settings);
    if (settles) {
      Json rows = Json::array();
      for (const auto& tuned : session.run(items, {}, {})) rows.push_back(json_of(tuned));
      if (rows.size() == items.size()) say({{"settled", rows}});
      say({{"done", true}});
      continue;
    }
    if (!request.contains("run")) {
      const auto estimates = session.estimate(items);
      Json rows = Json::array();
      if (!estimates.ok()) return 1;
      for (const auto& e : *estimates)
        rows.push_back({{"decided", e.decided},
                        {"space", e.space},
                        {"candidates", e.candidates},
                        {"seconds", e.seconds},
                        {"bytes", e.bytes}});
      say({{"estimates", rows}});
      continue;
    }
    double said = -1e9;
    session.run(
        items,
        [&](const Progress& p) {
          if (clock.now() < said + kProgressSeconds) return;
          said = clock.now();
          say({{"progress",
                {{"phase", static_cast<int>(p.phase)},
                 {"name", p.name},
                 {"tried", p.tried},
                 {"failed", p.failed},
                 {"best", p.best}}}});
        },
        [&](const Tuned& tuned) {
          (void)clear_missed(context, tuned);  // else it would be tuned once more, no worse
          say({{"tuned", json_of(tuned)}});
        });
    say({{"done", true}});
  }
}

}  // namespace quarterturn
