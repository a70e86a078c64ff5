#include "runtime/core/StepGraph.h"

#include "runtime/core/DType.h"
#include "runtime/plan/Execution.h"

#include <fmt/format.h>

namespace merak::runtime {

using planpb::Instruction;

// Enqueues a step from one thread: each stream as far as it gets, then the
// next, until all are through. What communicates comes in the order of all
// ranks: a library may wait in it until the others have enqueued theirs.
class StepGraph::Issue {
public:
  Issue(StepGraph &graph, const StepScalars &scalars)
      : graph_(graph), program_(graph.program_), backend_(graph.backend_),
        scalars_(scalars), cursors_(size_t(program_.lanes())),
        events_(size_t(program_.eventInstances())) {}
  ~Issue() {
    for (EventHandle event : own_)
      backend_.destroyEvent(event);
  }

  // All streams begin behind the first one and end before it.
  Status all() {
    const StreamHandle first = program_.stream(0);
    MERAK_RETURN_IF_ERROR(orderStreams(first, true));
    MERAK_RETURN_IF_ERROR(advanceAll());
    for (uint32_t lane : communicationOrder(program_.plan(), program_.rank())) {
      MERAK_RETURN_IF_ERROR(communicate(lane));
      MERAK_RETURN_IF_ERROR(advanceAll());
    }
    for (int lane = 0; lane < program_.lanes(); ++lane)
      if (cursors_[lane].call < program_.laneCalls(lane).size())
        return Status::error("instructions that wait for each other");
    return orderStreams(first, false);
  }

private:
  struct Cursor {
    size_t call = 0, op = 0;
    bool begun = false; // the waits of the call are enqueued
  };

  Result<EventHandle> newEvent() {
    auto event = backend_.createEvent();
    if (event.ok())
      own_.push_back(*event);
    return event;
  }
  Status orderStreams(StreamHandle first, bool fork) {
    for (int lane = 1; lane < program_.lanes(); ++lane) {
      if (program_.laneCalls(lane).empty())
        continue;
      const StreamHandle other = program_.stream(lane);
      auto event = newEvent();
      if (!event)
        return event.status();
      MERAK_RETURN_IF_ERROR(backend_.recordEvent(*event, fork ? first : other));
      MERAK_RETURN_IF_ERROR(backend_.waitEvent(fork ? other : first, *event));
    }
    return {};
  }

  // All lanes, up to their next communications.
  Status advanceAll() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int lane = 0; lane < program_.lanes(); ++lane) {
        auto steps = advance(lane);
        if (!steps)
          return steps.status();
        moved |= *steps;
      }
    }
    return {};
  }
  // The communication that the lane has come to.
  Status communicate(uint32_t lane) {
    Cursor &at = cursors_[lane];
    const std::vector<LaneCall> &calls = program_.laneCalls(int(lane));
    if (at.call >= calls.size() || !at.begun ||
        at.op >= calls[at.call].ops->size() ||
        !communicates(*(*calls[at.call].ops)[at.op]->instruction))
      return Status::error("instructions that wait for each other");
    const LaneCall &call = calls[at.call];
    const Place place{&call, (*call.ops)[at.op], program_.stream(int(lane))};
    ++at.op;
    Status status = enqueue(place, false);
    return status.ok() ? status : graph_.error(place, std::move(status));
  }
  // Whether the lane moved on at all.
  Result<bool> advance(int lane) {
    Cursor &at = cursors_[lane];
    const std::vector<LaneCall> &calls = program_.laneCalls(lane);
    bool moved = false;
    for (; at.call < calls.size(); ++at.call, at.op = 0, at.begun = false) {
      const LaneCall &call = calls[at.call];
      if (!at.begun) {
        for (const LaneCall::Wait &wait : call.waits)
          if (!reached(wait))
            return moved;
        for (const LaneCall::Wait &wait : call.waits)
          if (wait.event)
            MERAK_RETURN_IF_ERROR(
                backend_.waitEvent(program_.stream(lane), wait.event));
        at.begun = moved = true;
      }
      for (; at.op < call.ops->size(); ++at.op) {
        Op &op = *(*call.ops)[at.op];
        if (communicates(*op.instruction) ||
            (op.instruction->kind() == Instruction::WAIT &&
             !events_[program_.eventInstance(call.call, op)]))
          return moved;
        const Place place{&call, &op, program_.stream(lane)};
        Status status = enqueue(place, at.op + 1 < call.ops->size() &&
                                           (*call.ops)[at.op + 1]->computes());
        if (!status.ok())
          return graph_.error(place, std::move(status));
        moved = true;
      }
      if (call.finished)
        MERAK_RETURN_IF_ERROR(
            backend_.recordEvent(call.finished, program_.stream(lane)));
      moved = true;
    }
    return moved;
  }
  // Whether everything that the wait is for is enqueued.
  bool reached(const LaneCall::Wait &wait) const {
    const std::vector<LaneCall> &calls = program_.laneCalls(wait.lane);
    const size_t next = cursors_[wait.lane].call;
    return next >= calls.size() || calls[next].call > wait.call;
  }

  // `followed`: see KernelCall.
  Status enqueue(const Place &at, bool followed) {
    Op &op = *at.op;
    const Instruction &instruction = *op.instruction;
    const StreamHandle stream = at.stream;
    program_.place(*at.call, op, scalars_);
    switch (instruction.kind()) {
    case Instruction::KERNEL:
    case Instruction::LIBRARY: {
      KernelCall call{
          &instruction, op.prepared.get(),        op.inputs, op.outputs,
          op.scalars,   instruction.accumulate(), stream,    -1,
          followed};
      if (op.changes()) {
        call.changes = static_cast<int>(graph_.changing_.size());
        graph_.changing_.push_back(at);
      }
      return backend_.run(call);
    }
    case Instruction::COLLECTIVE:
    case Instruction::SEND:
    case Instruction::RECV:
      return graph_.comm_.run(
          {op.endpoint.get(), op.sent(), op.received(), stream});
    case Instruction::RECORD: {
      auto event = newEvent();
      if (!event)
        return event.status();
      events_[program_.eventInstance(at.call->call, op)] = *event;
      return backend_.recordEvent(*event, stream);
    }
    case Instruction::WAIT:
      return backend_.waitEvent(
          stream, events_[program_.eventInstance(at.call->call, op)]);
    case Instruction::LOAD_INPUT:
      for (const Input &input : graph_.inputs_)
        if (input.at.call == at.call && input.at.op == at.op)
          return backend_.upload(op.outputs[0].data, input.staging,
                                 op.staging.size(), stream);
      return Status::error("no memory to load from");
    default:
      return {};
    }
  }

  StepGraph &graph_;
  RankProgram &program_;
  Backend &backend_;
  const StepScalars &scalars_;
  std::vector<Cursor> cursors_;
  std::vector<EventHandle> events_; // by instance, once recorded
  std::vector<EventHandle> own_;
};

Result<std::unique_ptr<StepGraph>>
StepGraph::capture(RankProgram &program, Backend &backend, Communicator &comm,
                   const StepScalars &scalars) {
  std::unique_ptr<StepGraph> graph(new StepGraph(program, backend, comm));
  MERAK_RETURN_IF_ERROR(graph->prepare());
  const StreamHandle first = program.stream(0);
  MERAK_RETURN_IF_ERROR(backend.beginCapture(first));
  Status issued;
  Result<std::unique_ptr<CapturedStep>> captured = Status::error("");
  {
    Issue issue(*graph, scalars);
    issued = issue.all();
    captured = backend.endCapture(first);
  }
  MERAK_RETURN_IF_ERROR(issued);
  if (!captured)
    return captured.status();
  graph->captured_ = std::move(*captured);
  return graph;
}

// Looks at all instructions, and takes the memory that data are loaded from:
// none may be taken during the capture.
Status StepGraph::prepare() {
  for (int lane = 0; lane < program_.lanes(); ++lane)
    for (const LaneCall &call : program_.laneCalls(lane))
      for (Op *op : *call.ops) {
        if (op->endpoint)
          MERAK_RETURN_IF_ERROR(comm_.capturable());
        if (op->instruction->kind() != Instruction::LOAD_INPUT)
          continue;
        auto staging = backend_.allocateStaging(op->staging.size());
        if (!staging)
          return staging.status();
        inputs_.push_back({{&call, op, program_.stream(lane)}, *staging});
      }
  return {};
}

StepGraph::~StepGraph() {
  captured_.reset();
  for (const Input &input : inputs_)
    backend_.releaseStaging(input.staging);
}

Status StepGraph::run(const StepScalars &scalars, InputReader *reader) {
  for (const Input &input : inputs_) {
    const Op &op = *input.at.op;
    if (!reader)
      return error(input.at, Status::error("the run has no data"));
    const int64_t microbatch = std::max<int64_t>(
        0, program_.proto().calls(input.at.call->call).microbatch());
    Status status =
        reader->read(op.instruction->op(), scalars.step + op.ahead,
                     op.boxes[microbatch], input.staging, op.outputs[0].shape);
    if (!status.ok())
      return error(input.at, std::move(status));
  }
  for (size_t i = 0; i < changing_.size(); ++i) {
    Op &op = *changing_[i].op;
    program_.place(*changing_[i].call, op, scalars);
    Status status =
        captured_->update({op.instruction, op.prepared.get(), op.inputs,
                           op.outputs, op.scalars, op.instruction->accumulate(),
                           changing_[i].stream, static_cast<int>(i)});
    if (!status.ok())
      return error(changing_[i], std::move(status));
  }
  MERAK_RETURN_IF_ERROR(captured_->launch(program_.stream(0)));
  return backend_.synchronize(program_.stream(0));
}

} // namespace merak::runtime
