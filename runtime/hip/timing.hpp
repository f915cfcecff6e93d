// How the tuner takes time on an AMD GPU: events, and graphs of calls.
#pragma once

#include <cmath>
#include <functional>

#include "runtime/backend.hpp"
#include "runtime/hip/scopes.hpp"

namespace quarterturn::hip {

/// Events around what is timed on a stream.
class EventClock final : public Stopwatch {
 public:
  EventClock(const RuntimeApi& api, int device) : api_(api), device_(device) {
    const DeviceScope scope(api_, device_);
    api_.hipEventCreateWithFlags(&begin_, kEventDefault);
    api_.hipEventCreateWithFlags(&end_, kEventDefault);
  }
  ~EventClock() override {
    const DeviceScope scope(api_, device_);
    api_.hipEventDestroy(begin_);
    api_.hipEventDestroy(end_);
  }
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;

  void start(void* stream) override {
    const DeviceScope scope(api_, device_);
    api_.hipEventRecord(begin_, static_cast<hipStream>(stream));
  }
  double stop(void* stream) override {
    const DeviceScope scope(api_, device_);
    float milliseconds = 0;
    if (api_.hipEventRecord(end_, static_cast<hipStream>(stream)) != kSuccess ||
        api_.hipEventSynchronize(end_) != kSuccess ||
        api_.hipEventElapsedTime(&milliseconds, begin_, end_) != kSuccess)
      return std::nan("");
    return milliseconds * 1e-3;
  }

 private:
  const RuntimeApi& api_;
  int device_;
  hipEvent begin_ = nullptr, end_ = nullptr;
};

/// Calls captured into a graph, on a stream of their own.
class GraphRecording final : public Recording {
 public:
  GraphRecording(const RuntimeApi& api, int device) : api_(api), device_(device) {}
  ~GraphRecording() override {
    const DeviceScope scope(api_, device_);
    if (exec_) api_.hipGraphExecDestroy(exec_);
    if (graph_) api_.hipGraphDestroy(graph_);
  }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  Status capture(const std::function<Status(void* stream)>& calls) {
    const DeviceScope scope(api_, device_);
    hipStream stream = nullptr;
    if (auto status =
            api_.check(api_.hipStreamCreateWithFlags(&stream, kStreamNonBlocking), "stream");
        !status.ok())
      return status;
    Status status =
        api_.check(api_.hipStreamBeginCapture(stream, kCaptureRelaxed), "begin capture");
    if (status.ok()) {
      status = calls(stream);
      const auto ended = api_.check(api_.hipStreamEndCapture(stream, &graph_), "end capture");
      if (status.ok()) status = ended;
    }
    if (status.ok())
      status =
          api_.check(api_.hipGraphInstantiate(&exec_, graph_, nullptr, nullptr, 0), "instantiate");
    api_.hipStreamDestroy(stream);
    return status;
  }

  Status start(void* stream) override {
    const DeviceScope scope(api_, device_);
    return api_.check(api_.hipGraphLaunch(exec_, static_cast<hipStream>(stream)), "start a graph");
  }

 private:
  const RuntimeApi& api_;
  int device_;
  hipGraph graph_ = nullptr;
  hipGraphExec exec_ = nullptr;
};

}  // namespace quarterturn::hip
