#include "test/unit/plan/PlanBuilder.h"

namespace merak::plantest {

using namespace planpb;

namespace {
constexpr uint32_t kCompute = 0, kComm = 1, kAct = 2, kGrad = 3;
constexpr uint64_t kAlignment = 64;
} // namespace

ProgramBuilder::ProgramBuilder(const std::vector<std::string> &streams) {
  program_.set_version(kOneMeshVersion);
  for (const std::string &name : streams)
    program_.add_streams()->set_name(name);
}

int ProgramBuilder::buffer(const std::string &name, Buffer::Category category,
                           const std::vector<int64_t> &shape, uint32_t slots,
                           DType dtype) {
  Buffer *buffer = program_.add_buffers();
  uint64_t bytes = dtypeSize(dtype);
  for (int64_t size : shape) {
    buffer->add_shape(size);
    bytes *= size;
  }
  uint64_t stride = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  buffer->set_name(name);
  buffer->set_category(category);
  buffer->set_dtype(dtype);
  buffer->set_offset(program_.arena_bytes());
  buffer->set_bytes(bytes);
  buffer->set_slots(slots);
  buffer->set_slot_stride(stride);
  buffer->set_slot_class(slots > 1 ? 0 : -1);
  program_.set_arena_bytes(program_.arena_bytes() + stride * slots);
  return program_.buffers_size() - 1;
}

void ProgramBuilder::holds(int buffer, const std::string &tensor,
                           const layout::Layout &layout) {
  program_.mutable_buffers(buffer)->set_tensor(tensor);
  *program_.mutable_buffers(buffer)->mutable_layout() = toProto(layout);
}

int ProgramBuilder::group(const std::vector<std::string> &axes) {
  Group *group = program_.add_groups();
  for (const std::string &axis : axes)
    group->add_axes(axis);
  return program_.groups_size() - 1;
}

int ProgramBuilder::procedure(const std::string &name, Action action) {
  Procedure *procedure = program_.add_procedures();
  procedure->set_name(name);
  procedure->set_action(toProto(action));
  return program_.procedures_size() - 1;
}

Operand ProgramBuilder::whole(int index) const {
  Operand operand;
  operand.set_buffer(index);
  const Buffer &buffer = program_.buffers(index);
  *operand.mutable_shape() = buffer.shape();
  operand.mutable_strides()->Resize(buffer.shape_size(), 1);
  for (int d = buffer.shape_size() - 2; d >= 0; --d)
    operand.set_strides(d, operand.strides(d + 1) * buffer.shape(d + 1));
  return operand;
}

Instruction &ProgramBuilder::add(Instruction::Kind kind, uint32_t stream) {
  Procedure *procedure =
      program_.mutable_procedures(program_.procedures_size() - 1);
  Instruction *instruction = procedure->add_instructions();
  instruction->set_kind(kind);
  instruction->set_stream(stream);
  return *instruction;
}

Instruction &ProgramBuilder::library(const std::string &op,
                                     const std::vector<int> &inputs,
                                     const std::vector<int> &outputs) {
  Instruction &instruction = add(Instruction::LIBRARY, kCompute);
  instruction.set_op(op);
  for (int input : inputs)
    *instruction.add_inputs() = whole(input);
  for (int output : outputs)
    *instruction.add_outputs() = whole(output);
  return instruction;
}

Instruction &ProgramBuilder::collective(uint32_t stream,
                                        Instruction::Collective op, int group,
                                        int input, int output) {
  Instruction &instruction = add(Instruction::COLLECTIVE, stream);
  instruction.set_collective(op);
  instruction.set_group(group);
  instruction.set_reduction(Instruction::SUM);
  *instruction.add_inputs() = whole(input);
  *instruction.add_outputs() = whole(output);
  return instruction;
}

Instruction &ProgramBuilder::send(uint32_t stream, const std::string &channel,
                                  int buffer, const std::string &axis,
                                  int64_t peer) {
  Instruction &instruction = add(Instruction::SEND, stream);
  instruction.set_channel(channel);
  *instruction.add_inputs() = whole(buffer);
  Axis *coordinate = instruction.add_peer();
  coordinate->set_name(axis);
  coordinate->set_size(peer);
  return instruction;
}

Instruction &ProgramBuilder::recv(uint32_t stream, const std::string &channel,
                                  int buffer, const std::string &axis,
                                  int64_t peer) {
  Instruction &instruction = add(Instruction::RECV, stream);
  instruction.set_channel(channel);
  *instruction.add_outputs() = whole(buffer);
  Axis *coordinate = instruction.add_peer();
  coordinate->set_name(axis);
  coordinate->set_size(peer);
  return instruction;
}

Instruction &ProgramBuilder::load(const std::string &input, int buffer) {
  Instruction &instruction = add(Instruction::LOAD_INPUT, kCompute);
  instruction.set_op(input);
  *instruction.add_outputs() = whole(buffer);
  return instruction;
}

void ProgramBuilder::order(uint32_t from, uint32_t to) {
  uint32_t event = program_.events();
  program_.set_events(event + 1);
  add(Instruction::RECORD, from).set_event(event);
  add(Instruction::WAIT, to).set_event(event);
}

Call &ProgramBuilder::call(int procedure, int64_t microbatch,
                           const std::vector<uint32_t> &slots) {
  Call *call = program_.add_calls();
  call->set_procedure(procedure);
  call->set_microbatch(microbatch);
  for (uint32_t slot : slots)
    call->add_slots(slot);
  return *call;
}

void ProgramBuilder::wait(Call &call, uint32_t stream, uint32_t on,
                          uint32_t earlierCall) {
  CallWait *wait = call.add_waits();
  wait->set_stream(stream);
  wait->set_on(on);
  wait->set_call(earlierCall);
}

namespace {

void zero(ProgramBuilder &program, int buffer) {
  program.library("fill", {}, {buffer}).add_scalars()->set_f(0);
}

// Gradient norm over all ranks, then the update; `replicated`: first the sum of
// the gradient over dp.
int update(ProgramBuilder &program, const std::string &stage, int weight,
           int gradient, int norm, bool replicated, int loss = -1) {
  int stages = program.group({"pp"});
  int replicas = program.group({"dp"});
  int update = program.procedure(stage + ".update", Action::U);
  program.order(kCompute, kComm);
  if (replicated)
    program.collective(kComm, Instruction::ALL_REDUCE, replicas, gradient,
                       gradient);
  if (replicated && loss >= 0)
    program.collective(kComm, Instruction::ALL_REDUCE, replicas, loss, loss);
  program.order(kComm, kCompute);
  program.library("square_sum", {gradient}, {norm});
  program.order(kCompute, kComm);
  program.collective(kComm, Instruction::ALL_REDUCE, stages, norm, norm);
  program.order(kComm, kCompute);
  Instruction &sgd = program.library("sgd_update", {gradient}, {weight});
  sgd.add_scalars()->set_runtime("lr");
  sgd.add_scalars()->set_runtime("step");
  sgd.set_name("w.sgd");
  return update;
}

layout::Layout rows(int64_t batch, bool replicated) {
  layout::Layout layout = layout::Layout::replicated({batch, 8});
  layout.dims[0].factors[0].axes = {"mb"};
  if (replicated)
    layout.dims[0].factors[0].axes.push_back("dp");
  return layout;
}

Program firstStage(int64_t batch, bool replicated) {
  ProgramBuilder program({"compute", "comm", "act", "grad"});
  int x = program.buffer("x", Buffer::ACTIVATIONS, {2, 8}, 2);
  int w = program.buffer("w0", Buffer::PARAMETERS, {8, 8});
  int h = program.buffer("h", Buffer::ACTIVATIONS, {2, 8}, 2);
  int dh = program.buffer("dh", Buffer::COMMUNICATION, {2, 8});
  int dw = program.buffer("dw0", Buffer::GRADIENTS, {8, 8});
  int norm = program.buffer("norm", Buffer::WORKSPACE, {1});
  program.holds(x, "x", rows(batch, replicated));
  program.holds(w, "w0", layout::Layout::replicated({8, 8}));
  program.holds(dw, "w0", layout::Layout::replicated({8, 8}));

  int prologue = program.procedure("stage0.prologue", Action::P);
  zero(program, dw);
  int forward = program.procedure("stage0.forward", Action::F);
  program.load("x", x);
  Instruction &matmul = program.library("einsum", {x, w}, {h});
  (*matmul.mutable_attrs())["equation"] = "bk,kn->bn";
  matmul.set_name("first/MatMul");
  matmul.set_flops(2 * 2 * 8 * 8);
  program.order(kCompute, kAct);
  program.send(kAct, "act", h, "pp", 1);
  int backward = program.procedure("stage0.backward", Action::B);
  program.recv(kGrad, "grad", dh, "pp", 1);
  program.order(kGrad, kCompute);
  Instruction &weight = program.library("einsum", {x, dh}, {dw});
  (*weight.mutable_attrs())["equation"] = "bk,bn->kn";
  weight.set_accumulate(true);
  weight.set_name("first/MatMul.weight");
  weight.set_flops(2 * 2 * 8 * 8);
  int last = update(program, "stage0", w, dw, norm, replicated);

  program.call(prologue);
  program.call(forward, 0, {0});
  program.call(forward, 1, {1});
  program.call(backward, 0, {0});
  // The one copy of dh is free when microbatch 0 has been used.
  ProgramBuilder::wait(program.call(backward, 1, {1}), kGrad, kCompute, 3);
  program.call(last);
  return program.proto();
}

Program lastStage(bool replicated) {
  ProgramBuilder program({"compute", "comm", "act", "grad"});
  int h = program.buffer("h", Buffer::COMMUNICATION, {2, 8}, 2);
  int w = program.buffer("w1", Buffer::PARAMETERS, {8, 8});
  int y = program.buffer("y", Buffer::ACTIVATIONS, {2, 8});
  int dh = program.buffer("dh", Buffer::ACTIVATIONS, {2, 8});
  int dw = program.buffer("dw1", Buffer::GRADIENTS, {8, 8});
  int loss = program.buffer("loss", Buffer::ACTIVATIONS, {1, 1});
  int norm = program.buffer("norm", Buffer::WORKSPACE, {1});
  program.holds(w, "w1", layout::Layout::replicated({8, 8}));
  program.holds(dw, "w1", layout::Layout::replicated({8, 8}));

  int prologue = program.procedure("stage1.prologue", Action::P);
  zero(program, dw);
  zero(program, loss);
  int forward = program.procedure("stage1.forward", Action::F);
  program.recv(kAct, "act", h, "pp", 0);
  program.order(kAct, kCompute);
  Instruction &matmul = program.library("einsum", {h, w}, {y});
  (*matmul.mutable_attrs())["equation"] = "bk,kn->bn";
  matmul.set_name("second/MatMul");
  matmul.set_flops(2 * 2 * 8 * 8);
  Instruction &sum = program.library("reduce_sum", {y}, {loss});
  (*sum.mutable_attrs())["axes"] = "0,1";
  sum.set_accumulate(true);
  int backward = program.procedure("stage1.backward", Action::B);
  program.library("fill", {}, {y}).add_scalars()->set_f(1);
  Instruction &data = program.library("einsum", {y, w}, {dh});
  (*data.mutable_attrs())["equation"] = "bn,kn->bk";
  data.set_name("second/MatMul.data");
  data.set_flops(2 * 2 * 8 * 8);
  program.order(kCompute, kGrad);
  program.send(kGrad, "grad", dh, "pp", 0);
  Instruction &weight = program.library("einsum", {h, y}, {dw});
  (*weight.mutable_attrs())["equation"] = "bk,bn->kn";
  weight.set_accumulate(true);
  weight.set_name("second/MatMul.weight");
  weight.set_flops(2 * 2 * 8 * 8);
  int last = update(program, "stage1", w, dw, norm, replicated, loss);

  program.call(prologue);
  program.call(forward, 0, {0});
  program.call(backward, 0, {0});
  program.call(forward, 1, {1});
  // dh of microbatch 0 must have been sent before it is overwritten.
  ProgramBuilder::wait(program.call(backward, 1, {1}), kCompute, kGrad, 2);
  program.call(last);
  Output *output = program.proto().add_outputs();
  output->set_name("loss");
  output->set_buffer(loss);
  return program.proto();
}

LoadedPlan makePlan(int64_t dp, bool replicated) {
  LoadedPlan plan;
  PlanFile &file = plan.file;
  file.set_version(kOneMeshVersion);
  file.set_producer("by hand");
  file.set_model("sample.onnx");
  file.set_mode("train");
  file.set_schedule("1f1b");
  file.set_device("cpu");
  file.set_microbatch(2);
  file.set_microbatches(2);
  file.set_global_batch(4 * dp);
  for (auto [name, size] : {std::pair("pp", int64_t{2}), {"dp", dp}}) {
    Axis *axis = file.add_mesh();
    axis->set_name(name);
    axis->set_size(size);
  }
  for (int64_t pp = 0; pp < 2; ++pp) {
    for (int64_t d = 0; d < dp; ++d) {
      Rank *rank = file.add_ranks();
      rank->set_program(static_cast<uint32_t>(pp));
      for (auto [name, at] : {std::pair("pp", pp), {"dp", d}}) {
        Axis *axis = rank->add_coords();
        axis->set_name(name);
        axis->set_size(at);
      }
    }
  }
  for (const char *name : {"w0", "w1"}) {
    Tensor *tensor = file.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(F32);
    tensor->add_shape(8);
    tensor->add_shape(8);
    tensor->mutable_source()->set_kind(Source::ZERO);
  }
  Input *input = file.add_inputs();
  input->set_name("x");
  input->set_dtype(F32);
  input->add_shape(4 * dp);
  input->add_shape(8);
  input->set_batched(true);
  file.mutable_optimizer()->set_kind(Optimizer::SGD);
  file.mutable_optimizer()->set_lr(0.5);
  plan.programs = {firstStage(4 * dp, replicated), lastStage(replicated)};
  for (uint32_t i = 0; i < 2; ++i) {
    plan.programs[i].set_index(i);
    MemoryRow *row = file.add_memory();
    row->set_program(i);
    for (const Buffer &buffer : plan.programs[i].buffers())
      (*row->mutable_bytes())[categoryName(buffer.category())] +=
          buffer.slot_stride() * buffer.slots();
  }
  return plan;
}

} // namespace

LoadedPlan samplePlan() { return makePlan(1, false); }
LoadedPlan replicatedPlan(int64_t dp) { return makePlan(dp, true); }

} // namespace merak::plantest
