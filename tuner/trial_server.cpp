// The process in which candidates run: one JSON object a line in, one out. Or, for the library's
// Prover: one list of plans in, a line out for each.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/code_store.hpp"
#include "runtime/open_backend.hpp"
#include "tuner/trial_process.hpp"

namespace quarterturn {

Result<std::unique_ptr<Backend>> open_trial_backend(const nlohmann::json& settings) {
  SettingSources sources;
  for (const auto& spec : setting_specs())
    if (const auto at = settings.find(std::string(spec.name)); at != settings.end())
      sources.options[spec.id] = at->get<std::string>();
  const auto loaded = Settings::load(sources);
  auto store = CodeStore::open(loaded.text(Setting::code_cache));
  if (!store.ok()) return store.status();
  return open_backend(loaded, std::make_shared<CodeStore>(std::move(*store)));
}

namespace {

using nlohmann::json;

json object_of(const Status& status) {
  json out{{"code", static_cast<std::int32_t>(status.code())}};
  if (!status.ok()) out["message"] = status.message();
  return out;
}

// Lines of a descriptor.
class Lines {
 public:
  explicit Lines(int fd) : fd_(fd) {}
  bool next(std::string& line) {
    for (;;) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      char bytes[4096];
      const auto n = read(fd_, bytes, sizeof bytes);
      if (n == 0 || (n < 0 && errno != EINTR)) return false;
      if (n > 0) buffer_.append(bytes, static_cast<std::size_t>(n));
    }
  }

 private:
  int fd_;
  std::string buffer_;
};

bool write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto n = write(fd, text.data() + done, text.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      return false;
  }
  return true;
}

json object_of(const Verdict& verdict) {
  const Certificate& proved = verdict.certificate;
  json out = object_of(verdict.status);
  out.update({{"max_error", proved.max_error},
              {"outputs", proved.outputs},
              {"all_outputs", proved.all_outputs},
              {"code_rows", proved.code_rows},
              {"bias_z", proved.bias_z},
              {"repeatable", proved.repeatable},
              {"whole", proved.whole}});
  return out;
}

class Server {
 public:
  Status begin(const json& what) {
    auto problem = parse_problem(what.at("problem").get<std::string>());
    if (!problem.ok()) return problem.status();
    known_.clear();
    trials_.reset();
    if (!backend_ || what.at("settings") != settings_) {
      backend_.reset();
      settings_ = what.at("settings");
      auto backend = open_trial_backend(settings_);
      if (!backend.ok()) return backend.status();
      backend_ = std::move(*backend);
    }
    const auto path = what.value("data", std::string());
    if (path != data_path_ || path.empty()) data_.reset();
    data_path_ = path;
    if (!path.empty() && !data_) {
      auto data = Captured::open(path);
      if (!data.ok()) return data.status();
      data_ = std::move(*data);
    }
    trials_ = std::make_unique<LocalTrials>(*backend_, *problem, data_);
    return {};
  }

  json answer(const json& what) {
    const auto text = what.at("plan").get<std::string>();
    auto plan = parse_plan(text);
    if (!plan.ok()) return object_of(plan.status());
    if (known_.count(text) == 0) known_[text] = trials_->add(*plan);
    const std::size_t candidate = known_[text];
    const auto action = what.at("do").get<std::string>();
    if (action == "admit")
      return admit(candidate, what.value("whole", true) ? Depth::whole : Depth::sampled);
    if (action == "ready") {
      json out = object_of(trials_->ready(candidate));
      out["rotation"] = trials_->rotation();
      return out;
    }
    if (action == "run" || action == "worst") {
      const auto seconds = action == "worst"
                               ? trials_->worst(candidate)
                               : trials_->run(candidate, what.at("size").get<std::size_t>(),
                                              what.at("repeats").get<std::int64_t>());
      json out = object_of(seconds.status());
      if (seconds.ok()) out["seconds"] = *seconds;
      return out;
    }
    return object_of(Status(Code::invalid_argument, fmt::format("unknown request '{}'", action)));
  }

  double data_seconds() const { return trials_ ? trials_->data_seconds() : 0; }

  /// Whether the device still works, once all that was enqueued is done.
  Status device() { return backend_ ? backend_->synchronize() : Status(); }

 private:
  json admit(std::size_t candidate, Depth depth) {
    json out = object_of(trials_->admit(candidate, depth));
    out["disproved"] = trials_->disproved();
    return out;
  }

  std::string data_path_;
  std::shared_ptr<const Captured> data_;
  json settings_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<LocalTrials> trials_;
  std::map<std::string, std::size_t> known_;
};

// A plan of a problem of its own, with what it left of the device.
json prove_one(Backend& backend, const json& task) {
  auto problem = parse_problem(task.at("problem").get<std::string>());
  if (!problem.ok()) return object_of(problem.status());
  auto plan = parse_plan(task.at("plan").get<std::string>());
  if (!plan.ok()) return object_of(plan.status());
  LocalTrials trials(backend, *problem);
  json out = object_of(trials.admit(trials.add(*plan), Depth::whole));
  if (const Status device = backend.synchronize(); !device.ok()) {
    out = object_of(Status(Code::launch_failed, device.message()));
    out["lost"] = true;
  }
  return out;
}

}  // namespace

int prove_plans(const std::string& request, int out) {
  const auto say = [out](const json& line) {
    return write_all(out, line.dump(-1, ' ', true, json::error_handler_t::replace) + "\n");
  };
  try {
    const json what = json::parse(request);
    auto backend = open_trial_backend(what.at("settings"));
    json opened = object_of(backend.status());
    opened["opened"] = true;
    if (!say(opened) || !backend.ok()) return 0;
    for (const auto& task : what.at("tasks")) {
      const json line = prove_one(**backend, task);
      if (!say(line) || line.at("code") != 0) return 0;
    }
  } catch (const json::exception& error) {
    say(object_of(Status(Code::invalid_argument, error.what())));
    return 2;
  }
  return 0;
}

int serve_trials(int in, int out) {
  Lines lines(in);
  std::string line;
  if (!lines.next(line)) return 0;
  Server server;
  Status status;
  try {
    status = server.begin(json::parse(line));
    while (lines.next(line)) {
      const json what = json::parse(line);
      if (what.contains("problem")) {
        status = server.begin(what);
        continue;
      }
      json answer = status.ok() ? server.answer(what) : object_of(status);
      answer["data"] = server.data_seconds();
      // A kernel that faults takes the device's context along: nothing runs in this process again.
      const Status device = status.ok() ? server.device() : Status();
      if (!device.ok()) {
        answer = object_of(Status(Code::launch_failed, device.message()));
        answer["lost"] = true;
      }
      if (!write_all(out, answer.dump(-1, ' ', true, json::error_handler_t::replace) + "\n"))
        return 0;
      if (!device.ok()) return 0;
    }
  } catch (const json::exception& error) {
    write_all(out, object_of(Status(Code::invalid_argument, error.what())).dump() + "\n");
    return 2;
  }
  return 0;
}

}  // namespace quarterturn
