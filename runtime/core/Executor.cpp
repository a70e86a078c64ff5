#include "runtime/core/Executor.h"

#include "runtime/core/DType.h"
#include "runtime/core/Finite.h"
#include "runtime/core/PromptThread.h"

#include <fmt/format.h>

#include <cmath>
#include <csignal>

namespace merak::runtime {

using planpb::Instruction;

namespace {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

Executor::Executor(RankProgram &program, Backend &backend, Communicator &comm,
                   InputReader *reader, ExecutorOptions options)
    : program_(program), backend_(backend), comm_(comm), reader_(reader),
      options_(options), record_(options.trace),
      events_(size_t(program.eventInstances())) {
  for (int i = 0; i < program.lanes(); ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    if ((options_.trace || options_.records) && !backend_.isHost())
      lanes_.back()->timeline = std::make_unique<DeviceTimeline>(backend_);
  }
  trace_.resize(lanes_.size());
  for (int i = 1; i < program.lanes(); ++i)
    if (!program.laneCalls(i).empty())
      lanes_[i]->thread = std::thread([this, i] { laneMain(i); });
}

Executor::~Executor() {
  stop_ = true;
  start_.notify();
  for (auto &lane : lanes_)
    if (lane->thread.joinable())
      lane->thread.join();
  for (const Event &event : events_)
    if (event.handle)
      backend_.destroyEvent(event.handle);
}

void Executor::laneMain(int lane) {
  wakePromptly(); // the first lane computes
  for (uint64_t step = 1;; ++step) {
    if (!start_.wait([&] { return started_.load() >= step; }, stop_))
      return;
    runLane(lane);
    if (running_.fetch_sub(1) == 1)
      finish_.notify();
  }
}

Status Executor::step(const StepScalars &scalars) {
  scalars_ = scalars;
  visibleStep_ = scalars.step;
  if (graph_)
    return runGraph();
  int others = 0;
  for (size_t i = 1; i < lanes_.size(); ++i)
    others += lanes_[i]->thread.joinable();
  running_ = others;
  started_ = stepsBegun_ + 1;
  if (others > 0)
    start_.notify();
  runLane(0);
  static const std::atomic<bool> kNever{false};
  if (others > 0)
    finish_.wait([&] { return running_.load() == 0; }, kNever);
  ++stepsBegun_;
  {
    std::lock_guard lock(failureMutex_);
    if (!failure_.ok())
      return failure_;
  }
  return checkArena();
}

Status Executor::runEntry(std::string_view name, const StepScalars &scalars) {
  const std::vector<Op *> *ops = program_.entry(name);
  if (!ops)
    return {};
  const LaneCall between{-1, ops, {}, nullptr};
  const StreamHandle stream = program_.stream(0);
  Status status;
  for (Op *op : *ops) {
    program_.place(between, *op, scalars);
    status = op->endpoint
                 ? comm_.run(
                       {op->endpoint.get(), op->sent(), op->received(), stream})
                 : backend_.run({op->instruction, op->prepared.get(),
                                 op->inputs, op->outputs, op->scalars,
                                 op->instruction->accumulate(), stream});
    if (!status.ok())
      break;
  }
  if (status.ok())
    status = backend_.synchronize(stream);
  if (status.ok())
    return status;
  status = std::move(status).withContext(
      fmt::format("rank {} · {}", program_.rank(), name));
  comm_.abort(status);
  return status;
}

// What no instruction was told of that writes the buffer beside it.
Status Executor::checkArena() {
  Status status = program_.arena().checkAll(program_.stream(0));
  if (status.ok())
    return status;
  status = std::move(status).withContext(fmt::format(
      "rank {} · step {} · an instruction that does not write the buffer",
      program_.rank(), scalars_.step + 1));
  comm_.abort(status);
  return status;
}

Status Executor::capture(const StepScalars &scalars) {
  if (options_.trace)
    return Status::error("--trace times each instruction");
  if (options_.records)
    return Status::error("--rates times each instruction");
  if (options_.checkNumerics)
    return Status::error("--check-numerics looks at each value");
  if (program_.arena().isSeparate())
    return Status::error("--arena=separate looks around each value");
  auto graph = StepGraph::capture(program_, backend_, comm_, scalars);
  if (!graph)
    return graph.status();
  graph_ = std::move(*graph);
  return {};
}

Status Executor::runGraph() {
  Lane &self = *lanes_[0];
  inGraph_ = true;
  self.moves.fetch_add(1);
  Status status;
  if (comm_.aborted())
    status = Status::error("stopped: " + comm_.abortCause());
  if (status.ok())
    status = injectFault();
  if (status.ok())
    status = graph_->run(scalars_, reader_);
  ++stepsBegun_;
  inGraph_ = false;
  if (status.ok())
    return status;
  status = std::move(status).withContext(
      fmt::format("rank {} · step {}", program_.rank(), scalars_.step + 1));
  comm_.abort(status);
  return status;
}

void Executor::runLane(int lane) {
  Lane &self = *lanes_[lane];
  const std::vector<LaneCall> &calls = program_.laneCalls(lane);
  self.busy.store(true, std::memory_order_relaxed);
  bool failed = false;
  if (Status status = beginTrace(lane); !status.ok() && !calls.empty()) {
    fail(calls.front(), nullptr, std::move(status));
    failed = true;
  }
  for (size_t i = 0; i < calls.size() && !failed; ++i) {
    // Everything of this stream before the call is finished.
    self.call.store(static_cast<uint32_t>(i), std::memory_order_relaxed);
    self.done.store(callNumber(calls[i].call));
    self.gate.notify();
    failed = !runCall(lane, calls[i]).ok();
  }
  if (!failed) {
    Status status = backend_.synchronize(program_.stream(lane));
    if (status.ok())
      status = endTrace(lane);
    if (!status.ok() && !calls.empty())
      fail(calls.back(), nullptr, std::move(status));
    self.done.store(callNumber(program_.proto().calls_size()));
    self.gate.notify();
  } else {
    dropTrace(lane);
  }
  self.busy.store(false, std::memory_order_relaxed);
}

Status Executor::runCall(int lane, const LaneCall &call) {
  Lane &self = *lanes_[lane];
  for (const LaneCall::Wait &wait : call.waits) {
    Lane &other = *lanes_[wait.lane];
    const uint64_t target = callNumber(wait.call) + 1;
    if (!program_.laneCalls(wait.lane).empty()) {
      self.waitsFor.store(wait.lane, std::memory_order_relaxed);
      const bool ready = other.gate.wait(
          [&] { return other.done.load() >= target; }, comm_.aborted());
      self.waitsFor.store(-1, std::memory_order_relaxed);
      if (!ready) {
        Status status = Status::error("stopped: " + comm_.abortCause());
        fail(call, nullptr, status);
        return status;
      }
    }
    if (wait.event)
      MERAK_RETURN_IF_ERROR(
          backend_.waitEvent(program_.stream(lane), wait.event));
  }
  const std::vector<Op *> &ops = *call.ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    self.op.store(static_cast<uint32_t>(i), std::memory_order_relaxed);
    self.moves.store(self.moves.load(std::memory_order_relaxed) + 1,
                     std::memory_order_relaxed);
    self.followed = i + 1 < ops.size() && ops[i + 1]->computes();
    Status status = runOp(lane, call, *ops[i]);
    if (!status.ok()) {
      fail(call, ops[i], status);
      return status;
    }
  }
  if (call.finished)
    return backend_.recordEvent(call.finished, program_.stream(lane));
  return {};
}

Status Executor::runOp(int lane, const LaneCall &call, Op &op) {
  if (comm_.aborted().load(std::memory_order_relaxed))
    return Status::error("stopped: " + comm_.abortCause());
  program_.place(call, op, scalars_);
  if (!record_ && !options_.checkNumerics)
    return executeChecked(lane, call, op);
  const Result<int64_t> begin = here(lane);
  Status status = begin.status();
  if (status.ok())
    status = executeChecked(lane, call, op);
  if (status.ok() && record_) {
    const Result<int64_t> end = here(lane);
    status = end.status();
    if (status.ok())
      trace_[lane].push_back({&call, &op, scalars_.step, *begin, *end});
  }
  if (status.ok() && options_.checkNumerics)
    return checkFinite(lane, call, op);
  return status;
}

// A device has only been asked to do what the host passed.
Result<int64_t> Executor::here(int lane) {
  DeviceTimeline *timeline = lanes_[lane]->timeline.get();
  if (!timeline)
    return now();
  auto mark = timeline->mark(program_.stream(lane));
  if (!mark)
    return mark.status();
  return int64_t(*mark);
}

Status Executor::beginTrace(int lane) {
  Lane &self = *lanes_[lane];
  if (!self.timeline || !record_)
    return {};
  self.traced = trace_[lane].size();
  return self.timeline->begin(program_.stream(lane));
}

Status Executor::endTrace(int lane) {
  Lane &self = *lanes_[lane];
  if (!self.timeline || !record_)
    return {};
  auto times = self.timeline->read();
  if (!times) {
    dropTrace(lane);
    return times.status();
  }
  for (size_t i = self.traced; i < trace_[lane].size(); ++i)
    for (int64_t *mark : {&trace_[lane][i].begin, &trace_[lane][i].end})
      *mark = (*times)[size_t(*mark)];
  return {};
}

void Executor::dropTrace(int lane) {
  if (lanes_[lane]->timeline && record_)
    trace_[lane].erase(trace_[lane].begin() + int64_t(lanes_[lane]->traced),
                       trace_[lane].end());
}

// With a separate arena an instruction that writes beyond its operands is told.
Status Executor::executeChecked(int lane, const LaneCall &call, Op &op) {
  MERAK_RETURN_IF_ERROR(execute(lane, call, op));
  return program_.arena().isSeparate() ? program_.checkArena(call, op)
                                       : Status();
}

Status Executor::execute(int lane, const LaneCall &call, Op &op) {
  const StreamHandle stream = program_.stream(lane);
  const Instruction &instruction = *op.instruction;
  switch (instruction.kind()) {
  case Instruction::KERNEL:
  case Instruction::LIBRARY:
    MERAK_RETURN_IF_ERROR(injectFault());
    return compute(lane, op);
  case Instruction::COLLECTIVE:
  case Instruction::SEND:
  case Instruction::RECV:
    return communicate(lane, call, op);
  case Instruction::RECORD: {
    Event &event = events_[program_.eventInstance(call.call, op)];
    if (!backend_.isHost())
      MERAK_RETURN_IF_ERROR(recordOnDevice(event, stream));
    event.recorded.store(stepsBegun_ + 1);
    event.gate.notify();
    return {};
  }
  case Instruction::WAIT: {
    Event &event = events_[program_.eventInstance(call.call, op)];
    const uint64_t target = stepsBegun_ + 1;
    if (!event.gate.wait([&] { return event.recorded.load() >= target; },
                         comm_.aborted()))
      return Status::error("stopped: " + comm_.abortCause());
    return backend_.waitEvent(stream, event.handle);
  }
  case Instruction::LOAD_INPUT:
    return loadInput(lane, call, op);
  default:
    return {};
  }
}

Status Executor::communicate(int lane, const LaneCall &call, Op &op) {
  const StreamHandle stream = program_.stream(lane);
  CommCall next;
  if (op.next) {
    program_.place(call, *op.next, scalars_);
    next = {op.next->endpoint.get(), {}, op.next->received(), stream};
  }
  return comm_.run({op.endpoint.get(), op.sent(), op.received(), stream,
                    op.staysOpen, op.open ? op.open->endpoint.get() : nullptr,
                    op.next ? &next : nullptr});
}

Status Executor::compute(int lane, const Op &op) {
  const bool slow = options_.slowness > 1 &&
                    scalars_.step >= options_.slowFrom &&
                    scalars_.step < options_.slowTo;
  const bool paced = bool(options_.lasts);
  const int64_t begin = slow || paced ? now() : 0;
  // Who looks at a call, or how long it took, has it done by itself.
  const bool alone = record_ || slow || paced || options_.checkNumerics ||
                     program_.arena().isSeparate();
  MERAK_RETURN_IF_ERROR(backend_.run(
      {op.instruction, op.prepared.get(), op.inputs, op.outputs, op.scalars,
       op.instruction->accumulate(), program_.stream(lane), -1,
       lanes_[size_t(lane)]->followed && !alone}));
  if (!slow && !paced)
    return {};
  double &owed = lanes_[size_t(lane)]->owedSeconds;
  const double took = 1e-9 * double(now() - begin);
  const double lasts = paced ? options_.lasts(*op.instruction) : took;
  owed += (slow ? options_.slowness : 1) * lasts - took;
  if (owed < 5e-5)
    return {};
  const int64_t asleep = now();
  std::this_thread::sleep_for(std::chrono::duration<double>(owed));
  owed -= 1e-9 * double(now() - asleep);
  return {};
}

Status Executor::recordOnDevice(Event &event, StreamHandle stream) {
  if (!event.handle) {
    auto handle = backend_.createEvent();
    if (!handle)
      return handle.status();
    event.handle = *handle;
  }
  return backend_.recordEvent(event.handle, stream);
}

Status Executor::loadInput(int lane, const LaneCall &call, Op &op) {
  if (!reader_)
    return Status::error("the run has no data");
  const int64_t microbatch =
      std::max<int64_t>(0, program_.proto().calls(call.call).microbatch());
  const View &view = op.outputs[0];
  void *target = op.staging.empty() ? view.data : op.staging.data();
  MERAK_RETURN_IF_ERROR(
      reader_->read(op.instruction->op(), scalars_.step + op.ahead,
                    op.boxes[microbatch], target, view.shape));
  if (op.staging.empty())
    return {};
  return backend_.copyToDevice(view.data, target, op.staging.size(),
                               program_.stream(lane));
}

Status Executor::checkFinite(int lane, const LaneCall &call, const Op &op) {
  // The plan says so: before the first step a factor is no number.
  if (op.instruction->op() == "fill" && op.instruction->scalars_size() == 1 &&
      op.instruction->scalars(0).has_f() &&
      std::isnan(op.instruction->scalars(0).f()))
    return {};
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const View &view = op.outputs[i];
    if (!isFloat(view.dtype))
      continue;
    const planpb::Buffer &buffer =
        program_.proto().buffers(op.instruction->outputs(int(i)).buffer());
    std::vector<char> copy;
    View host = view;
    if (!backend_.isHost()) {
      // The whole slot: the view may be strided.
      const uint32_t slot = slotOf(buffer, program_.proto().calls(call.call));
      char *data = static_cast<char *>(
          program_.bufferData(op.instruction->outputs(int(i)).buffer(), slot));
      copy.resize(buffer.bytes());
      MERAK_RETURN_IF_ERROR(backend_.copyToHost(copy.data(), data, copy.size(),
                                                program_.stream(lane)));
      MERAK_RETURN_IF_ERROR(backend_.synchronize(program_.stream(lane)));
      host.data = copy.data() + (static_cast<char *>(view.data) - data);
    }
    if (auto found = findNonFinite(host)) {
      std::lock_guard lock(failureMutex_);
      if (!nonFinite_)
        nonFinite_ = program_.proto().calls(call.call).microbatch();
      return Status::error(fmt::format("wrote {} to \"{}\"{}", found->value,
                                       buffer.name(), found->index));
    }
  }
  return {};
}

Status Executor::injectFault() {
  if (options_.failAtStep == scalars_.step)
    return Status::error("killed by request");
  if (options_.killAtStep == scalars_.step)
    std::raise(SIGKILL);
  if (options_.hangAtStep != scalars_.step)
    return {};
  while (!comm_.aborted().load())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return Status::error("hung by request: " + comm_.abortCause());
}

void Executor::fail(const LaneCall &call, const Op *op, Status status) {
  const planpb::Call &proto = program_.proto().calls(call.call);
  status = std::move(status).withContext(
      fmt::format("rank {} · step {} · {}", program_.rank(), scalars_.step + 1,
                  op ? program_.describe(call, *op)
                     : program_.proto().procedures(proto.procedure()).name()));
  // Of what the lanes report, the cause says most, then which rank was awaited.
  const bool awaitsPeer = op && op->endpoint;
  const int weight = !comm_.aborted().load() ? 3 : awaitsPeer ? 2 : 1;
  comm_.abort(status);
  std::lock_guard lock(failureMutex_);
  if (weight > failureWeight_) {
    failureWeight_ = weight;
    failure_ = std::move(status);
  }
}

uint64_t Executor::progress() const {
  uint64_t sum = 0;
  for (const auto &lane : lanes_)
    sum += lane->moves.load(std::memory_order_relaxed) + lane->done.load();
  return sum;
}

std::vector<std::string> Executor::positions() const {
  std::vector<std::string> lines;
  if (inGraph_)
    lines.push_back(fmt::format("rank {} · step {} · all streams: launched as "
                                "one graph",
                                program_.rank(), visibleStep_.load() + 1));
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane &lane = *lanes_[i];
    const auto &calls = program_.laneCalls(int(i));
    const uint32_t index = lane.call.load(std::memory_order_relaxed);
    if (!lane.busy.load(std::memory_order_relaxed) || index >= calls.size())
      continue;
    const LaneCall &call = calls[index];
    const int awaited = lane.waitsFor.load(std::memory_order_relaxed);
    const uint32_t op = lane.op.load(std::memory_order_relaxed);
    std::string text;
    if (awaited >= 0 || op >= call.ops->size())
      text = fmt::format("call {}: waits for stream \"{}\"", call.call,
                         program_.streamName(std::max(awaited, 0)));
    else
      text = program_.describe(call, *(*call.ops)[op]);
    lines.push_back(fmt::format("rank {} · step {} · {}: {}", program_.rank(),
                                visibleStep_.load() + 1,
                                program_.streamName(int(i)), text));
  }
  return lines;
}

} // namespace merak::runtime
