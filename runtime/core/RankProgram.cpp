#include "runtime/core/RankProgram.h"

#include "runtime/core/DType.h"
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Communication.h"
#include "runtime/plan/Joined.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Trim.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace merak::runtime {

using planpb::Instruction;

RankProgram::RankProgram(const LoadedPlan &plan, int rank, Backend &backend,
                         Communicator &comm)
    : plan_(plan), proto_(&plan.programOf(rank)), rank_(rank),
      backend_(backend), comm_(comm), ranks_(plan.file),
      mesh_(layoutMesh(plan.file, rank)), coords_(coordsOf(plan.file, rank)),
      arena_(*proto_, backend, comm.memory()) {}

RankProgram::~RankProgram() {
  ops_.clear();
  for (EventHandle event : ownedEvents_)
    backend_.destroyEvent(event);
  for (StreamHandle stream : streams_)
    backend_.destroyStream(stream);
}

Result<std::unique_ptr<RankProgram>>
RankProgram::create(const LoadedPlan &plan, int rank, Backend &backend,
                    Communicator &comm, bool separate, BufferMemory given) {
  std::unique_ptr<RankProgram> program(
      new RankProgram(plan, rank, backend, comm));
  Status status = program->build(separate, std::move(given));
  if (!status.ok())
    return std::move(status).withContext(fmt::format("rank {}", rank));
  return program;
}

// The first stream computes, whatever else it does.
std::set<uint32_t> RankProgram::communicatingStreams() const {
  std::set<uint32_t> streams;
  for (const planpb::Procedure &procedure : proto_->procedures())
    for (const Instruction &instruction : procedure.instructions())
      if (instruction.stream() > 0 && communicates(instruction))
        streams.insert(instruction.stream());
  return streams;
}

Status RankProgram::build(bool separate, BufferMemory given) {
  MERAK_RETURN_IF_ERROR(arena_.take(separate, std::move(given)));
  const std::set<uint32_t> communicating = communicatingStreams();
  for (int i = 0; i < std::max(1, proto_->streams_size()); ++i) {
    auto stream = backend_.createStream(
        communicating.count(uint32_t(i)) ? Priority::High : Priority::Usual);
    if (!stream)
      return stream.status();
    streams_.push_back(*stream);
  }
  Status problems;
  for (const planpb::Procedure &procedure : proto_->procedures())
    problems.merge(buildProcedure(procedure));
  if (!problems.ok())
    return problems;
  return buildLanes();
}

Status RankProgram::buildProcedure(const planpb::Procedure &procedure) {
  Status problems;
  auto &lanes = procedures_.emplace_back(streams_.size());
  for (int i = 0; i < procedure.instructions_size(); ++i) {
    const Instruction &instruction = procedure.instructions(i);
    if (instruction.kind() == Instruction::NOP)
      continue;
    auto where = [&] {
      return fmt::format("{} · instr {} {} \"{}\"", procedure.name(), i,
                         kindName(instruction.kind()),
                         opName(instruction).empty() ? instruction.channel()
                                                     : opName(instruction));
    };
    if (instruction.stream() >= streams_.size()) {
      problems.merge(
          Status::error(fmt::format("{}: stream {} of {}", where(),
                                    instruction.stream(), streams_.size())));
      continue;
    }
    Op &op = ops_.emplace_back();
    op.index = i;
    problems.merge(buildOp(instruction, op).withContext(where()));
    lanes[instruction.stream()].push_back(&op);
  }
  for (const std::vector<Op *> &ops : lanes)
    linkTransfers(ops);
  problems.merge(buildEvents(procedure, lanes));
  return problems;
}

void RankProgram::linkTransfers(const std::vector<Op *> &ops) {
  Op *sends = nullptr, *receives = nullptr; // the ones before
  for (Op *op : ops) {
    const Instruction::Kind kind = op->instruction->kind();
    if (kind == Instruction::SEND && sends) {
      sends->staysOpen = true;
      op->open = sends;
    }
    if (kind == Instruction::RECV && receives)
      receives->next = op;
    if (kind != Instruction::WAIT)
      sends = kind == Instruction::SEND ? op : nullptr;
    if (kind != Instruction::RECORD)
      receives = kind == Instruction::RECV ? op : nullptr;
  }
}

Status RankProgram::buildEvents(const planpb::Procedure &procedure,
                                const std::vector<std::vector<Op *>> &lanes) {
  std::map<uint32_t, int> index;
  std::map<uint32_t, int> records;
  for (const auto &ops : lanes)
    for (Op *op : ops) {
      const Instruction &instruction = *op->instruction;
      if (instruction.kind() != Instruction::RECORD &&
          instruction.kind() != Instruction::WAIT)
        continue;
      op->event = index.try_emplace(instruction.event(), int(index.size()))
                      .first->second;
      records[instruction.event()] += instruction.kind() == Instruction::RECORD;
    }
  eventCounts_.push_back(static_cast<int>(index.size()));
  Status problems;
  for (const auto &[event, count] : records)
    if (count != 1)
      problems.merge(
          Status::error(fmt::format("{}: event {} is recorded {} times",
                                    procedure.name(), event, count)));
  return problems;
}

Status RankProgram::buildOp(const Instruction &instruction, Op &op) {
  op.instruction = &instruction;
  MERAK_RETURN_IF_ERROR(resolve(instruction.inputs(), op.inputs, op));
  MERAK_RETURN_IF_ERROR(resolve(instruction.outputs(), op.outputs, op));
  MERAK_RETURN_IF_ERROR(buildScalars(op));
  switch (instruction.kind()) {
  case Instruction::KERNEL:
  case Instruction::LIBRARY: {
    auto prepared = backend_.prepare(instruction, op.inputs, op.outputs);
    if (!prepared)
      return prepared.status();
    op.prepared = std::move(*prepared);
    return {};
  }
  case Instruction::COLLECTIVE:
  case Instruction::SEND:
  case Instruction::RECV:
    return buildComm(op);
  case Instruction::RECORD:
  case Instruction::WAIT:
    if (instruction.event() >= proto_->events())
      return Status::error(
          fmt::format("event {} of {}", instruction.event(), proto_->events()));
    return {};
  case Instruction::LOAD_INPUT:
    return buildInput(op);
  default:
    return Status::error("an instruction this runtime does not know");
  }
}

Status RankProgram::resolve(
    const google::protobuf::RepeatedPtrField<planpb::Operand> &operands,
    std::vector<View> &views, Op &op) {
  views.resize(operands.size());
  for (int i = 0; i < operands.size(); ++i) {
    const planpb::Operand &operand = operands[i];
    if (operand.buffer() >= uint32_t(proto_->buffers_size()))
      return Status::error(fmt::format("operand {}: buffer {} of {}", i,
                                       operand.buffer(),
                                       proto_->buffers_size()));
    const planpb::Buffer &buffer = proto_->buffers(operand.buffer());
    View &view = views[i];
    view.dtype = buffer.dtype();
    view.shape.assign(operand.shape().begin(), operand.shape().end());
    view.strides.assign(operand.strides().begin(), operand.strides().end());
    if (view.shape.size() != view.strides.size())
      return Status::error(fmt::format("operand {}: {} sizes, {} strides", i,
                                       view.shape.size(), view.strides.size()));
    // The first and last element touched must lie in the buffer.
    const int64_t size = dtypeSize(buffer.dtype());
    int64_t low = operand.offset(), high = operand.offset();
    for (size_t d = 0; d < view.shape.size(); ++d)
      (view.strides[d] < 0 ? low : high) +=
          (view.shape[d] - 1) * view.strides[d];
    const uint64_t lastSlot =
        buffer.slots() > 1 ? (buffer.slots() - 1) * buffer.slot_stride() : 0;
    if (size == 0 || (view.elements() > 0 &&
                      (low < 0 || uint64_t(high + 1) * size > buffer.bytes())))
      return Status::error(fmt::format(
          "operand {} reaches elements {}..{} of buffer \"{}\" ({} bytes)", i,
          low, high, buffer.name(), buffer.bytes()));
    if (buffer.offset() + lastSlot + buffer.bytes() > proto_->arena_bytes())
      return Status::error(
          fmt::format("buffer \"{}\" exceeds the arena", buffer.name()));
    char *base = arena_.base(int(operand.buffer())) + operand.offset() * size;
    view.data = base;
    if (buffer.slot_class() >= 0 && buffer.slots() > 0)
      op.patches.push_back({&view, base, arena_.stride(int(operand.buffer())),
                            buffer.slot_class()});
  }
  return {};
}

Status RankProgram::buildScalars(Op &op) {
  for (const planpb::Scalar &scalar : op.instruction->scalars()) {
    const int index = static_cast<int>(op.scalars.size());
    ScalarValue value;
    auto patch = [&](Op::Runtime source, int64_t scale = 1) {
      op.scalarPatches.push_back({index, source, scale});
    };
    const int64_t scale = scalar.scale() ? scalar.scale() : 1;
    switch (scalar.value_case()) {
    case planpb::Scalar::kI:
      value = ScalarValue::integer(scalar.i());
      break;
    case planpb::Scalar::kF:
      value = ScalarValue::real(scalar.f());
      break;
    case planpb::Scalar::kCoordinate:
      if (scalar.coordinate() == "mb") {
        op.microbatchScale = submicrobatches(plan_.file);
        patch(Op::Runtime::Microbatch, scale);
      } else {
        const auto found = coords_.find(scalar.coordinate());
        if (found == coords_.end())
          return Status::error(fmt::format("scalar {}: no mesh axis \"{}\"",
                                           index, scalar.coordinate()));
        value = ScalarValue::integer(found->second * scale);
      }
      break;
    case planpb::Scalar::kRuntime:
      if (scalar.runtime() == "lr")
        patch(Op::Runtime::Lr);
      else if (scalar.runtime() == "step")
        patch(Op::Runtime::Step);
      else if (scalar.runtime() == "lr_before")
        patch(Op::Runtime::LrBefore);
      else if (scalar.runtime() == "step_before")
        patch(Op::Runtime::StepBefore);
      else if (scalar.runtime() == "seed")
        patch(Op::Runtime::Seed);
      else if (scalar.runtime() == kGradScale)
        patch(Op::Runtime::GradScale);
      else
        return Status::error(fmt::format("scalar {}: no run-time value \"{}\"",
                                         index, scalar.runtime()));
      break;
    default:
      return Status::error(fmt::format("scalar {} has no value", index));
    }
    op.scalars.push_back(value);
  }
  return {};
}

Status RankProgram::buildInput(Op &op) {
  if (op.outputs.size() != 1 || !op.outputs[0].dense())
    return Status::error("expected one dense output");
  op.ahead = stepsAhead(*op.instruction);
  const planpb::Buffer &buffer =
      proto_->buffers(op.instruction->outputs(0).buffer());
  op.layout = fromProto(buffer.layout());
  if (op.layout.localShape(mesh_) != op.outputs[0].shape)
    return Status::error(
        fmt::format("layout {} gives {}, the buffer has {}", op.layout.str(),
                    fmt::join(op.layout.localShape(mesh_), "x"),
                    fmt::join(op.outputs[0].shape, "x")));
  layout::AxisMap coords = coords_;
  const int64_t parts = submicrobatches(plan_.file);
  for (int64_t mb = 0; mb < std::max<int64_t>(1, plan_.file.microbatches());
       ++mb) {
    coords["mb"] = mb * parts + op.instruction->submicrobatch();
    op.boxes.push_back(layout::boxes(op.layout, mesh_, coords));
  }
  if (!backend_.isHost())
    op.staging.resize(op.outputs[0].elements() *
                      dtypeSize(op.outputs[0].dtype));
  return {};
}

static std::optional<CommSpec::Kind> kindOf(Instruction::Collective kind) {
  switch (kind) {
  case Instruction::ALL_REDUCE:
    return CommSpec::AllReduce;
  case Instruction::ALL_GATHER:
    return CommSpec::AllGather;
  case Instruction::REDUCE_SCATTER:
    return CommSpec::ReduceScatter;
  case Instruction::ALL_TO_ALL:
    return CommSpec::AllToAll;
  case Instruction::BROADCAST:
    return CommSpec::Broadcast;
  default:
    return std::nullopt;
  }
}

Status RankProgram::buildComm(Op &op) {
  const Instruction &instruction = *op.instruction;
  CommSpec spec;
  spec.name = instruction.name();
  spec.dim = instruction.dim();
  spec.dim2 = instruction.dim2();
  spec.accumulate = instruction.accumulate();
  spec.trims = isTrimmed(instruction);
  if (instruction.kind() == Instruction::COLLECTIVE) {
    std::optional<CommSpec::Kind> kind = kindOf(instruction.collective());
    if (!kind)
      return Status::error("no such collective");
    spec.kind = *kind;
    spec.maximum = instruction.reduction() == Instruction::MAX;
    if (instruction.group() >= uint32_t(proto_->groups_size()))
      return Status::error(fmt::format("group {} of {}", instruction.group(),
                                       proto_->groups_size()));
    spec.members =
        ranks_.members(rank_, proto_->groups(int(instruction.group())));
    spec.channel = streamName(instruction.stream());
    op.members = spec.members;
    if (isJoined(instruction)) {
      auto elements = joinedElements(*proto_, instruction);
      if (!elements)
        return elements.status();
      const View &first = op.inputs.front();
      op.joined = {{first.data, first.dtype, {*elements}, {1}}};
    }
  } else {
    spec.kind = instruction.kind() == Instruction::SEND ? CommSpec::Send
                                                        : CommSpec::Recv;
    spec.channel = instruction.channel();
    spec.streams = transferStreams(plan_, ranks_, rank_, instruction);
    spec.peer = op.peer = ranks_.peer(rank_, instruction);
  }
  auto endpoint = comm_.prepare(std::move(spec), op.sent(), op.received());
  if (!endpoint)
    return endpoint.status();
  op.endpoint = std::move(*endpoint);
  backend_.askWorkspace(streams_[instruction.stream()], op.endpoint->workspace);
  return {};
}

Status RankProgram::buildLanes() {
  laneCalls_.resize(streams_.size());
  firstEvent_.assign(1, 0);
  for (int c = 0; c < proto_->calls_size(); ++c) {
    const planpb::Call &call = proto_->calls(c);
    auto fail = [&](const std::string &what) {
      return Status::error(fmt::format("call {}: {}", c, what));
    };
    if (call.procedure() >= procedures_.size())
      return fail(fmt::format("procedure {} of {}", call.procedure(),
                              procedures_.size()));
    if (call.microbatch() >= std::max<int64_t>(1, plan_.file.microbatches()))
      return fail(fmt::format("microbatch {} of {}", call.microbatch(),
                              plan_.file.microbatches()));
    firstEvent_.push_back(firstEvent_.back() + eventCounts_[call.procedure()]);
    const auto &byStream = procedures_[call.procedure()];
    for (const auto &ops : byStream)
      for (const Op *op : ops)
        for (const Op::Patch &patch : op->patches)
          if (patch.slotClass >= call.slots_size())
            return fail(fmt::format("no slot of class {}", patch.slotClass));
    for (size_t lane = 0; lane < streams_.size(); ++lane) {
      LaneCall work;
      work.call = c;
      work.ops = &byStream[lane];
      for (const planpb::CallWait &wait : call.waits()) {
        if (wait.stream() >= streams_.size() || wait.on() >= streams_.size() ||
            wait.call() >= uint32_t(c))
          return fail(fmt::format("waits for stream {} call {}", wait.on(),
                                  wait.call()));
        // A stream is in order with itself.
        if (wait.stream() == lane && wait.on() != lane)
          work.waits.push_back({int(wait.on()), int(wait.call())});
      }
      if (!work.ops->empty() || !work.waits.empty())
        laneCalls_[lane].push_back(std::move(work));
    }
  }
  // A wait for a call stands for the last work of that lane up to the call.
  for (auto &calls : laneCalls_)
    for (LaneCall &work : calls)
      for (LaneCall::Wait &wait : work.waits) {
        auto &other = laneCalls_[wait.lane];
        auto after = std::upper_bound(
            other.begin(), other.end(), wait.call,
            [](int call, const LaneCall &entry) { return call < entry.call; });
        if (after == other.begin())
          continue;
        LaneCall &awaited = *std::prev(after);
        if (!awaited.finished && !backend_.isHost()) {
          auto event = backend_.createEvent();
          if (!event)
            return event.status();
          awaited.finished = *event;
          ownedEvents_.push_back(*event);
        }
        wait.event = awaited.finished;
      }
  return {};
}

const std::vector<Op *> *RankProgram::entry(std::string_view name) const {
  for (int p = 0; p < proto_->procedures_size(); ++p)
    if (proto_->procedures(p).name() == name)
      return &procedures_[size_t(p)].front();
  return nullptr;
}

// What is run between steps has no microbatch and no slots.
const planpb::Call &RankProgram::callOf(const LaneCall &call) const {
  static const planpb::Call kBetween = [] {
    planpb::Call between;
    between.set_microbatch(-1);
    return between;
  }();
  return call.call < 0 ? kBetween : proto_->calls(call.call);
}

void RankProgram::place(const LaneCall &call, Op &op,
                        const StepScalars &scalars) const {
  const planpb::Call &proto = callOf(call);
  for (const Op::Patch &patch : op.patches)
    patch.view->data = patch.base + patch.stride * proto.slots(patch.slotClass);
  for (const Op::ScalarPatch &patch : op.scalarPatches) {
    ScalarValue &value = op.scalars[patch.scalar];
    switch (patch.source) {
    case Op::Runtime::Lr:
      value = ScalarValue::real(scalars.lr);
      break;
    case Op::Runtime::Step:
      value = ScalarValue::integer(scalars.step + 1);
      break;
    case Op::Runtime::LrBefore:
      value = ScalarValue::real(scalars.lrBefore);
      break;
    case Op::Runtime::StepBefore:
      value = ScalarValue::integer(scalars.stepBefore);
      break;
    case Op::Runtime::Seed:
      value = ScalarValue::integer(scalars.seed);
      break;
    case Op::Runtime::GradScale:
      value = ScalarValue::real(scalars.gradScale);
      break;
    case Op::Runtime::Microbatch:
      value = ScalarValue::integer(
          (std::max<int64_t>(0, proto.microbatch()) * op.microbatchScale +
           op.instruction->submicrobatch()) *
          patch.scale);
      break;
    }
  }
}

std::string RankProgram::streamName(int lane) const {
  if (lane < proto_->streams_size() && !proto_->streams(lane).name().empty())
    return proto_->streams(lane).name();
  return fmt::format("stream {}", lane);
}

void *RankProgram::bufferData(int buffer, int slot) const {
  return arena_.base(buffer) + uint64_t(slot) * arena_.stride(buffer);
}

Status RankProgram::checkArena(const LaneCall &call, const Op &op) const {
  const Instruction &instruction = *op.instruction;
  for (const planpb::Operand &output : instruction.outputs())
    MERAK_RETURN_IF_ERROR(arena_.check(
        int(output.buffer()),
        slotOf(proto_->buffers(int(output.buffer())), proto_->calls(call.call)),
        streams_[instruction.stream()]));
  return {};
}

std::string RankProgram::describe(const LaneCall &call, const Op &op) const {
  const planpb::Call &proto = proto_->calls(call.call);
  const Instruction &instruction = *op.instruction;
  std::string text = proto_->procedures(proto.procedure()).name();
  if (proto.microbatch() >= 0)
    text += fmt::format(" mb {}", proto.microbatch());
  text += fmt::format(" · instr {} ", op.index);
  switch (instruction.kind()) {
  case Instruction::SEND:
    return text + fmt::format("send \"{}\" to rank {}", instruction.channel(),
                              op.peer);
  case Instruction::RECV:
    return text + fmt::format("recv \"{}\" from rank {}", instruction.channel(),
                              op.peer);
  case Instruction::COLLECTIVE:
    return text + fmt::format("{} \"{}\" over ranks {}", opName(instruction),
                              instruction.name(), fmt::join(op.members, ","));
  case Instruction::RECORD:
  case Instruction::WAIT:
    return text + fmt::format("{} event {}", kindName(instruction.kind()),
                              instruction.event());
  case Instruction::LOAD_INPUT:
    return text + fmt::format("load \"{}\"", instruction.op());
  default:
    text += instruction.op();
    if (!instruction.name().empty())
      text += fmt::format(" \"{}\"", instruction.name());
    return text;
  }
}

} // namespace merak::runtime
