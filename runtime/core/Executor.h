// Runs the steps of one rank. Each stream with work has a lane: a host thread
// that goes through the stream's instructions of all calls in order. Stream 0
// is driven by the thread that calls `step`, so a program without communication
// never changes threads.
//
// Order between lanes: events inside a call, call waits between calls. Both are
// counters that only grow, so that nothing is reset between steps.
//
// On a device that can, steps after `capture` are launched whole (StepGraph.h)
// by the thread that calls `step`.
#pragma once

#include "runtime/core/DeviceTimeline.h"
#include "runtime/core/Gate.h"
#include "runtime/core/StepGraph.h"

#include <chrono>
#include <functional>
#include <optional>

namespace merak::runtime {

struct ExecutorOptions {
  bool trace = false;   // of all steps, else as `record` says
  bool records = false; // whether `record` may be called
  // Looks at every value that an instruction writes; stops at the first one
  // that is not finite.
  bool checkNumerics = false;
  // For tests of what a lost rank does: at this step (from 0; -1: never) the
  // rank fails, stops answering, or kills its process before its first compute
  // instruction.
  int64_t failAtStep = -1;
  int64_t hangAtStep = -1;
  int64_t killAtStep = -1;
  // And of what a slow one does: in these steps its compute instructions take
  // so many times as long.
  double slowness = 1;
  int64_t slowFrom = 0, slowTo = 0;
  // And of devices that this machine does not have: a compute instruction lasts
  // so many seconds; what one takes longer the next ones take less.
  std::function<double(const planpb::Instruction &)> lasts;
};

struct TraceEvent {
  const LaneCall *call;
  const Op *op;
  int64_t step;
  // Nanoseconds of the steady clock; of a device, until the end of the step,
  // the numbers of marks in its timeline.
  int64_t begin, end;
};

class Executor {
public:
  // All arguments must outlive the executor.
  Executor(RankProgram &program, Backend &backend, Communicator &comm,
           InputReader *reader, ExecutorOptions options);
  ~Executor();
  Executor(const Executor &) = delete;
  Executor &operator=(const Executor &) = delete;

  // Runs every call once. On an error all ranks are told.
  Status step(const StepScalars &scalars);

  // Between steps: runs a procedure that has this name (Entries.h), if there is
  // one, and waits for its end.
  Status runEntry(std::string_view name, const StepScalars &scalars);

  // Between steps, after the first one: captures the step, so that later ones
  // are launched as one object of the device. The error says why not.
  Status capture(const StepScalars &scalars);
  // Back to one instruction after the other.
  void dropCapture() { graph_.reset(); }
  // Operations of the captured step; 0: there is none.
  size_t captured() const { return graph_ ? graph_->operations() : 0; }

  // Between steps: whether the next ones are recorded, as all are that are
  // traced.
  void record(bool on) { record_ = on || options_.trace; }
  // Between steps: from the next one on.
  void checkNumerics(bool check) { options_.checkNumerics = check; }
  // The microbatch (-1: of none, e.g. of the update) in whose call the first
  // value was found that is not finite; and what the failed step says of it.
  std::optional<int64_t> nonFinite() const { return nonFinite_; }
  const Status &failure() const { return failure_; }

  RankProgram &program() { return program_; }
  // A number that changes whenever any lane moves on; for the watchdog.
  uint64_t progress() const;
  // One line for each lane that is not idle: what it waits in.
  std::vector<std::string> positions() const;
  // By lane, what was recorded since `forgetTrace`. Valid between steps.
  const std::vector<std::vector<TraceEvent>> &trace() const { return trace_; }
  void forgetTrace() {
    for (std::vector<TraceEvent> &lane : trace_)
      lane.clear();
  }

private:
  // What the watchdog and other lanes can see of a lane.
  struct Lane {
    std::atomic<uint64_t> done{0};        // calls finished, over all steps
    std::atomic<uint64_t> moves{0};       // instructions started
    std::atomic<uint32_t> call{0}, op{0}; // indices; op counts in its call
    std::atomic<int> waitsFor{-1};        // lane whose call it awaits
    std::atomic<bool> busy{false};
    Gate gate; // `done` has grown
    // Of traces of a device, whose events hold marks from `traced` on.
    std::unique_ptr<DeviceTimeline> timeline;
    size_t traced = 0;
    double owedSeconds = 0; // of these two: no sleep is that short
    std::thread thread;
    bool followed = false; // see KernelCall: of the call under way
  };
  // An event of one call: procedures reuse the numbers, and lanes may be
  // several calls apart.
  struct Event {
    std::atomic<uint64_t> recorded{0}; // last step (from 1) that recorded it
    EventHandle handle = nullptr;      // on a device, made when first recorded
    // Its own: a lane that sleeps until a late event must not be woken by, and
    // hold up, every earlier one.
    Gate gate;
  };

  Status runGraph();
  Status checkArena();
  void laneMain(int lane);
  void runLane(int lane);
  Status runCall(int lane, const LaneCall &call);
  Status runOp(int lane, const LaneCall &call, Op &op);
  Status execute(int lane, const LaneCall &call, Op &op);
  Status executeChecked(int lane, const LaneCall &call, Op &op);
  // Where the lane is, for its trace.
  Result<int64_t> here(int lane);
  Status beginTrace(int lane);
  Status endTrace(int lane);
  // After a failure: the step's events have marks and no times.
  void dropTrace(int lane);
  Status recordOnDevice(Event &event, StreamHandle stream);
  Status loadInput(int lane, const LaneCall &call, Op &op);
  Status checkFinite(int lane, const LaneCall &call, const Op &op);
  Status injectFault();
  Status communicate(int lane, const LaneCall &call, Op &op);
  Status compute(int lane, const Op &op);
  void fail(const LaneCall &call, const Op *op, Status status);
  uint64_t callNumber(int call) const {
    return stepsBegun_ * uint64_t(program_.proto().calls_size()) + call;
  }

  RankProgram &program_;
  Backend &backend_;
  Communicator &comm_;
  InputReader *reader_;
  ExecutorOptions options_;
  bool record_;

  StepScalars scalars_;
  std::atomic<int64_t> visibleStep_{0}; // scalars_.step for the watchdog
  uint64_t stepsBegun_ = 0;             // before the current one
  std::unique_ptr<StepGraph> graph_;
  std::atomic<bool> inGraph_{false};
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Event> events_; // by instance
  std::vector<std::vector<TraceEvent>> trace_;

  // Start and end of a step for the other lanes.
  Gate start_, finish_;
  std::atomic<uint64_t> started_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};

  std::optional<int64_t> nonFinite_;
  std::mutex failureMutex_;
  Status failure_;
  int failureWeight_ = 0;
};

} // namespace merak::runtime
