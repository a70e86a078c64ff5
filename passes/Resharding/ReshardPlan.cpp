#include "passes/Resharding/ReshardPlan.h"

#include "passes/Resharding/PlanBoxes.h"
#include "runtime/layout/Strides.h"

#include <algorithm>
#include <map>

using namespace merak::planpb;

namespace merak::resharding {

namespace {

constexpr uint32_t kCompute = 0, kTransfers = 1;
constexpr const char *kValue = "value", *kRanks = "ranks";

class PlanOfOne {
public:
  PlanOfOne(const Boundary &boundary, std::vector<BoxMessage> found,
            const costmodel::Cluster &cluster)
      : boundary(boundary), messages(std::move(found)) {
    for (const Placement *end : {&boundary.source, &boundary.target})
      for (int64_t device : end->devices)
        rankOf.emplace(device, 0);
    int64_t rank = 0;
    for (auto &[device, number] : rankOf)
      number = rank++;
    for (BoxMessage &message : messages) {
      message.from = rankOf.at(message.from);
      message.to = rankOf.at(message.to);
    }
    parts.add(kValue, messages);
    writeManifest(cluster);
  }

  LoadedPlan take() {
    for (const Placement *end : {&boundary.source, &boundary.target})
      for (size_t i = 0; i < end->devices.size(); ++i)
        addRank(*end, i);
    return std::move(plan);
  }

private:
  bool isSource(const Placement &end) const { return &end == &boundary.source; }

  DType dtype() const {
    for (int value = 1; value < DType_ARRAYSIZE; ++value)
      if (dtypeName(DType(value)) == boundary.dtype)
        return DType(value);
    return F32;
  }

  void writeManifest(const costmodel::Cluster &cluster) {
    PlanFile &file = plan.file;
    file.set_producer("merak-plan reshard");
    file.set_model(boundary.name);
    file.set_mode("train");
    file.set_schedule("gpipe");
    file.set_device("cpu");
    file.set_microbatch(1);
    file.set_microbatches(1);
    file.set_global_batch(1);
    // Ranks are its devices if none is left out.
    if (rankOf.rbegin()->second == rankOf.rbegin()->first)
      file.set_cluster(cluster.toJson());
    for (const Channel &channel : parts.channels())
      *file.add_channels() = channel;
    for (const Placement *end : {&boundary.source, &boundary.target}) {
      Mesh *mesh = file.add_meshes();
      addAxis(*mesh->mutable_axes(), "pp", 2);
      // All meshes of a plan name the same axes.
      for (const auto &[name, size] : axes())
        addAxis(*mesh->mutable_axes(), name, sizeOn(*end, name));
    }
    NamedGroup *all = file.add_groups();
    all->set_name(kRanks);
    RankList *list = all->add_lists();
    for (size_t rank = 0; rank < rankOf.size(); ++rank) {
      file.add_ranks();
      list->add_ranks(uint32_t(rank));
    }
  }

  static void addAxis(google::protobuf::RepeatedPtrField<Axis> &list,
                      const std::string &name, int64_t size) {
    Axis *axis = list.Add();
    axis->set_name(name);
    axis->set_size(size);
  }
  std::map<std::string, int64_t> axes() const {
    std::map<std::string, int64_t> all;
    for (const Placement *end : {&boundary.source, &boundary.target})
      for (const MeshAxis &axis : end->axes)
        all.emplace(axis.name, axis.size);
    return all;
  }
  static int64_t sizeOn(const Placement &end, const std::string &name) {
    const layout::AxisMap mesh = end.mesh();
    auto it = mesh.find(name);
    return it == mesh.end() ? 1 : it->second;
  }

  void addRank(const Placement &end, size_t index) {
    const int64_t rank = rankOf.at(end.devices[index]);
    Rank *out = plan.file.mutable_ranks(int(rank));
    out->set_program(uint32_t(plan.programs.size()));
    out->set_mesh(isSource(end) ? 0 : 1);
    addAxis(*out->mutable_coords(), "pp", isSource(end) ? 0 : 1);
    const layout::AxisMap coords = end.coords(index);
    for (const auto &[name, size] : axes())
      addAxis(*out->mutable_coords(), name,
              coords.count(name) ? coords.at(name) : 0);
    plan.programs.push_back(programOf(end, index, rank));
    plan.programs.back().set_index(uint32_t(plan.programs.size()) - 1);
    MemoryRow *row = plan.file.add_memory();
    row->set_program(plan.programs.back().index());
    for (const Buffer &buffer : plan.programs.back().buffers())
      (*row->mutable_bytes())[categoryName(buffer.category())] +=
          buffer.slot_stride();
  }

  Program programOf(const Placement &end, size_t index, int64_t rank) const {
    Program program;
    program.add_streams()->set_name("compute");
    program.add_streams()->set_name(isSource(end) ? "send" : "receive");
    const Operand whole =
        addBuffer(program, kValue, dtype(), end.localShape(index));
    const Operand met = addBuffer(program, "met", F32, {1});
    if (isSource(end)) {
      Procedure *fill = program.add_procedures();
      fill->set_name("fill");
      fill->set_action(ScheduleStep::PROLOGUE);
      addFill(*fill, whole);
    }
    Procedure *forward = program.add_procedures();
    forward->set_name("reshard");
    forward->set_action(ScheduleStep::FORWARD);
    Instruction transfer;
    transfer.set_stream(kTransfers);
    transfer.set_name(boundary.name);
    transfer.set_kind(isSource(end) ? Instruction::SEND : Instruction::RECV);
    *(isSource(end) ? transfer.add_inputs() : transfer.add_outputs()) = whole;
    BoxWriter(program).write(parts.of(kValue, isSource(end), rank), transfer, 0,
                             *forward);
    Call *call = program.add_calls();
    if (isSource(end)) {
      call->set_procedure(0);
      call->set_microbatch(-1);
      call = program.add_calls();
      CallWait *wait = call->add_waits();
      wait->set_stream(kTransfers);
      wait->set_on(kCompute);
      wait->set_call(0);
    }
    call->set_procedure(uint32_t(program.procedures_size()) - 1);
    call->set_microbatch(0);
    addMeeting(program, met);
    return program;
  }

  // A step lasts until all ranks are done.
  static void addMeeting(Program &program, const Operand &met) {
    const uint32_t before = uint32_t(program.calls_size()) - 1;
    program.add_groups()->set_named(kRanks);
    Procedure *procedure = program.add_procedures();
    procedure->set_name("meet");
    procedure->set_action(ScheduleStep::UPDATE);
    addFill(*procedure, met);
    Instruction *meet = procedure->add_instructions();
    meet->set_kind(Instruction::COLLECTIVE);
    meet->set_collective(Instruction::ALL_REDUCE);
    meet->set_reduction(Instruction::SUM);
    meet->set_stream(kCompute);
    *meet->add_inputs() = met;
    *meet->add_outputs() = met;
    Call *call = program.add_calls();
    call->set_procedure(uint32_t(program.procedures_size()) - 1);
    call->set_microbatch(-1);
    CallWait *wait = call->add_waits();
    wait->set_stream(kCompute);
    wait->set_on(kTransfers);
    wait->set_call(before);
  }

  static Operand addBuffer(Program &program, const std::string &name,
                           DType dtype, const std::vector<int64_t> &shape) {
    Buffer *buffer = program.add_buffers();
    buffer->set_name(name);
    buffer->set_category(Buffer::COMMUNICATION);
    buffer->set_dtype(dtype);
    Operand whole;
    whole.set_buffer(uint32_t(program.buffers_size()) - 1);
    int64_t bytes = dtypeSize(dtype);
    for (int64_t size : shape) {
      buffer->add_shape(size);
      whole.add_shape(size);
      bytes *= size;
    }
    for (int64_t stride : layout::denseStrides(shape))
      whole.add_strides(stride);
    const uint64_t rounded = (uint64_t(bytes) + 63) / 64 * 64;
    buffer->set_offset(program.arena_bytes());
    buffer->set_bytes(uint64_t(bytes));
    buffer->set_slots(1);
    buffer->set_slot_stride(rounded);
    buffer->set_slot_class(-1);
    program.set_arena_bytes(program.arena_bytes() + rounded);
    return whole;
  }

  static void addFill(Procedure &procedure, const Operand &whole) {
    Instruction *fill = procedure.add_instructions();
    fill->set_kind(Instruction::LIBRARY);
    fill->set_op("fill");
    fill->set_stream(kCompute);
    *fill->add_outputs() = whole;
    fill->add_scalars()->set_f(1);
  }

  const Boundary &boundary;
  std::vector<BoxMessage> messages;
  std::map<int64_t, int64_t> rankOf; // by device
  BoxParts parts;
  LoadedPlan plan;
};

} // namespace

Result<LoadedPlan> planOf(const Boundary &boundary,
                          const Resharding &resharding,
                          const costmodel::Cluster &cluster) {
  Result<std::vector<BoxMessage>> messages = messagesOf(resharding);
  if (!messages)
    return messages.status();
  return PlanOfOne(boundary, std::move(*messages), cluster).take();
}

} // namespace merak::resharding
