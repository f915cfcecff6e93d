// How the tuner takes time on a CUDA device: events, and graphs of calls.
#pragma once

#include <cmath>
#include <functional>

#include "runtime/backend.hpp"
#include "runtime/cuda/scopes.hpp"

namespace quarterturn::cuda {

/// Events around what is timed on a stream.
class EventClock final : public Stopwatch {
 public:
  EventClock(const DriverApi& api, CUdevice device, CUcontext primary)
      : api_(api), device_(device), primary_(primary) {
    api_.cuEventCreate(&begin_, 0);
    api_.cuEventCreate(&end_, 0);
  }
  ~EventClock() override {
    const ContextScope scope(api_, device_, primary_);
    api_.cuEventDestroy(begin_);
    api_.cuEventDestroy(end_);
  }
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;

  void start(void* stream) override {
    const ContextScope scope(api_, device_, primary_);
    api_.cuEventRecord(begin_, static_cast<CUstream>(stream));
  }
  double stop(void* stream) override {
    const ContextScope scope(api_, device_, primary_);
    api_.cuEventRecord(end_, static_cast<CUstream>(stream));
    if (api_.cuEventSynchronize(end_) != kSuccess) return std::nan("");
    float milliseconds = 0;
    if (api_.cuEventElapsedTime(&milliseconds, begin_, end_) != kSuccess) return std::nan("");
    return milliseconds * 1e-3;
  }

 private:
  const DriverApi& api_;
  CUdevice device_;
  CUcontext primary_;
  CUevent begin_ = nullptr, end_ = nullptr;
};

/// Calls captured into a graph, on a stream of their own.
class GraphRecording final : public Recording {
 public:
  GraphRecording(const DriverApi& api, CUdevice device, CUcontext primary)
      : api_(api), device_(device), primary_(primary) {}
  ~GraphRecording() override {
    const ContextScope scope(api_, device_, primary_);
    if (exec_) api_.cuGraphExecDestroy(exec_);
    if (graph_) api_.cuGraphDestroy(graph_);
  }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  Status capture(const std::function<Status(void* stream)>& calls) {
    const ContextScope scope(api_, device_, primary_);
    CUstream stream = nullptr;
    constexpr unsigned int kNonBlocking = 1;
    if (auto status = api_.check(api_.cuStreamCreate(&stream, kNonBlocking), "stream");
        !status.ok())
      return status;
    Status status = api_.check(api_.cuStreamBeginCapture(stream, kCaptureRelaxed), "begin capture");
    if (status.ok()) {
      status = calls(stream);
      const auto ended = api_.check(api_.cuStreamEndCapture(stream, &graph_), "end capture");
      if (status.ok()) status = ended;
    }
    if (status.ok())
      status = api_.check(api_.cuGraphInstantiateWithFlags(&exec_, graph_, 0), "instantiate");
    api_.cuStreamDestroy(stream);
    return status;
  }

  Status start(void* stream) override {
    const ContextScope scope(api_, device_, primary_);
    return api_.check(api_.cuGraphLaunch(exec_, static_cast<CUstream>(stream)), "start a graph");
  }

 private:
  const DriverApi& api_;
  CUdevice device_;
  CUcontext primary_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace quarterturn::cuda
