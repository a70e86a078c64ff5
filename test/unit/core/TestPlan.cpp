#include "test/unit/core/TestPlan.h"

#include "runtime/core/DType.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace merak::runtime::test {
namespace {

float *floats(const View &view) { return static_cast<float *>(view.data); }

void runFill(const KernelCall &call) {
  const View &out = call.outputs[0];
  for (int64_t i = 0; i < out.elements(); ++i)
    floats(out)[i] = float(call.scalars[0].asDouble());
}
void runRowSum(const KernelCall &call) {
  const View &x = call.inputs[0], &out = call.outputs[0];
  for (int64_t j = 0; j < out.elements(); ++j) {
    float sum = call.accumulate ? floats(out)[j] : 0;
    for (int64_t i = 0; i < x.shape[0]; ++i)
      sum += floats(x)[i * x.shape[1] + j];
    floats(out)[j] = sum;
  }
}
void runScale(const KernelCall &call) {
  for (int64_t i = 0; i < call.inputs[0].elements(); ++i)
    floats(call.outputs[0])[i] =
        floats(call.inputs[0])[i] * float(call.scalars[0].asDouble());
}
void runSgd(const KernelCall &call) {
  for (int64_t i = 0; i < call.inputs[0].elements(); ++i)
    floats(call.outputs[0])[i] -=
        float(call.scalars[0].asDouble()) * floats(call.inputs[0])[i];
}
void runToFloat(const KernelCall &call) {
  const auto *ids = static_cast<const int64_t *>(call.inputs[0].data);
  for (int64_t i = 0; i < call.inputs[0].elements(); ++i)
    floats(call.outputs[0])[i] = float(ids[i]);
}
void runDivide(const KernelCall &call) {
  for (int64_t i = 0; i < call.inputs[0].elements(); ++i)
    floats(call.outputs[0])[i] =
        floats(call.inputs[0])[i] / floats(call.inputs[1])[i];
}

struct Kernel : Prepared {
  void (*run)(const KernelCall &) = nullptr;
};

const std::map<std::string, void (*)(const KernelCall &)> kKernels = {
    {"fill", runFill}, {"row_sum", runRowSum},   {"scale", runScale},
    {"sgd", runSgd},   {"to_float", runToFloat}, {"divide", runDivide}};

planpb::Axis axis(const std::string &name, int64_t size) {
  planpb::Axis axis;
  axis.set_name(name);
  axis.set_size(size);
  return axis;
}

// Mesh, ranks, input x, parameter w and optimizer.
LoadedPlan emptyPlan(int64_t pp, int64_t dp, int64_t microbatches,
                     int64_t batch) {
  LoadedPlan plan;
  planpb::PlanFile &file = plan.file;
  file.set_version(kOneMeshVersion);
  file.set_mode("train");
  file.set_device("cpu");
  *file.add_mesh() = axis("pp", pp);
  *file.add_mesh() = axis("dp", dp);
  for (int64_t p = 0; p < pp; ++p)
    for (int64_t d = 0; d < dp; ++d) {
      planpb::Rank &rank = *file.add_ranks();
      rank.set_program(uint32_t(p));
      *rank.add_coords() = axis("pp", p);
      *rank.add_coords() = axis("dp", d);
    }
  file.set_global_batch(batch);
  file.set_microbatches(microbatches);
  file.set_microbatch(batch / dp / microbatches);
  planpb::Input &input = *file.add_inputs();
  input.set_name("x");
  input.set_dtype(planpb::F32);
  input.add_shape(batch);
  input.add_shape(4);
  input.set_batched(true);
  planpb::Tensor &tensor = *file.add_tensors();
  tensor.set_name("w");
  tensor.set_dtype(planpb::F32);
  tensor.add_shape(4);
  tensor.set_role(planpb::Tensor::PARAMETER);
  tensor.mutable_source()->set_kind(planpb::Source::ZERO);
  file.mutable_optimizer()->set_kind(planpb::Optimizer::SGD);
  file.mutable_optimizer()->set_lr(0.5);
  plan.programs.resize(size_t(pp));
  return plan;
}

uint32_t inputBuffer(ProgramBuilder &builder, int64_t local, int64_t batch) {
  const uint32_t x = builder.buffer("x", planpb::F32, {local, 4}, 2);
  builder.at(x).set_tensor("x");
  *builder.at(x).mutable_layout() = layoutOf({{batch, {"mb", "dp"}}, {4, {}}});
  return x;
}

// The update: all-reduce of g on the communication stream, then SGD. The loss
// is read from w before it changes.
void addUpdate(ProgramBuilder &builder, uint32_t g, uint32_t w, uint32_t loss) {
  builder.program().add_groups()->add_axes("dp");
  builder.procedure("update");
  builder.record(0, 0);
  builder.wait(0, 1);
  Instruction &reduce = builder.add(Instruction::COLLECTIVE, "", {g}, {g}, 1);
  reduce.set_name("g");
  reduce.set_collective(Instruction::ALL_REDUCE);
  reduce.set_reduction(Instruction::SUM);
  builder.record(1, 1);
  setScalar(builder.add(Instruction::LIBRARY, "scale", {w}, {loss}), 1);
  builder.wait(1, 0);
  setRuntime(builder.add(Instruction::LIBRARY, "sgd", {g}, {w}), "lr");
  planpb::Output &output = *builder.program().add_outputs();
  output.set_name("loss");
  output.set_buffer(loss);
}

struct Parameter {
  uint32_t w, g, loss;
};
Parameter parameterBuffers(ProgramBuilder &builder) {
  Parameter p{};
  p.w = builder.buffer("w", planpb::F32, {4}, 1, planpb::Buffer::PARAMETERS);
  builder.at(p.w).set_tensor("w");
  *builder.at(p.w).mutable_layout() = layoutOf({{4, {}}});
  p.g = builder.buffer("g", planpb::F32, {4}, 1, planpb::Buffer::GRADIENTS);
  builder.at(p.g).set_tensor("grad:w");
  *builder.at(p.g).mutable_layout() = layoutOf({{4, {}}});
  p.loss = builder.buffer("loss", planpb::F32, {1});
  return p;
}

} // namespace

BackendFactory TestBackend::factory() {
  return [](ThreadPool &pool) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<TestBackend>(pool));
  };
}

Result<std::unique_ptr<Prepared>>
TestBackend::prepareLibrary(const Instruction &instruction,
                            std::span<const View>, std::span<const View>) {
  const auto found = kKernels.find(instruction.op());
  if (found == kKernels.end())
    return Status::error(
        fmt::format("no library kernel \"{}\"", instruction.op()));
  auto kernel = std::make_unique<Kernel>();
  kernel->run = found->second;
  return std::unique_ptr<Prepared>(std::move(kernel));
}

Status TestBackend::runLibrary(const KernelCall &call) {
  // "scale" of one element stands for the loss and sees only w[0].
  if (call.instruction->op() == "scale" && call.outputs[0].elements() == 1) {
    floats(call.outputs[0])[0] = floats(call.inputs[0])[0];
    return {};
  }
  static_cast<Kernel *>(call.prepared)->run(call);
  return {};
}

planpb::Layout layoutOf(
    const std::vector<std::pair<int64_t, std::vector<std::string>>> &dims) {
  planpb::Layout layout;
  for (const auto &[size, axes] : dims) {
    planpb::Factor &factor = *layout.add_dims()->add_factors();
    factor.set_size(size);
    for (const std::string &name : axes)
      factor.add_axes(name);
  }
  return layout;
}

uint32_t ProgramBuilder::buffer(const std::string &name, planpb::DType dtype,
                                const std::vector<int64_t> &shape,
                                uint32_t slots,
                                planpb::Buffer::Category category) {
  planpb::Buffer &buffer = *program_.add_buffers();
  buffer.set_name(name);
  buffer.set_category(category);
  buffer.set_dtype(dtype);
  uint64_t bytes = uint64_t(dtypeSize(dtype));
  for (int64_t size : shape) {
    buffer.add_shape(size);
    bytes *= uint64_t(size);
  }
  const uint64_t rounded = (bytes + 63) / 64 * 64;
  buffer.set_offset(program_.arena_bytes());
  buffer.set_bytes(bytes);
  buffer.set_slots(slots);
  buffer.set_slot_stride(rounded);
  buffer.set_slot_class(slots > 1 ? 0 : -1);
  program_.set_arena_bytes(program_.arena_bytes() + rounded * slots);
  return uint32_t(program_.buffers_size() - 1);
}

uint32_t ProgramBuilder::procedure(const std::string &name) {
  planpb::Procedure *procedure = program_.add_procedures();
  procedure->set_name(name);
  procedure->set_action(planpb::ScheduleStep::FORWARD);
  return uint32_t(program_.procedures_size() - 1);
}

Instruction &ProgramBuilder::add(Instruction::Kind kind, const std::string &op,
                                 const std::vector<uint32_t> &inputs,
                                 const std::vector<uint32_t> &outputs,
                                 uint32_t stream) {
  Instruction &instruction =
      *program_.mutable_procedures(program_.procedures_size() - 1)
           ->add_instructions();
  instruction.set_kind(kind);
  instruction.set_op(op);
  instruction.set_stream(stream);
  auto operand = [&](planpb::Operand &operand, uint32_t index) {
    operand.set_buffer(index);
    int64_t stride = 1;
    for (int64_t size : at(index).shape()) {
      operand.add_shape(size);
      stride *= size;
    }
    for (int64_t size : at(index).shape()) {
      stride /= std::max<int64_t>(size, 1);
      operand.add_strides(stride);
    }
  };
  for (uint32_t index : inputs)
    operand(*instruction.add_inputs(), index);
  for (uint32_t index : outputs)
    operand(*instruction.add_outputs(), index);
  return instruction;
}

void ProgramBuilder::record(uint32_t event, uint32_t stream) {
  add(Instruction::RECORD, "", {}, {}, stream).set_event(event);
}
void ProgramBuilder::wait(uint32_t event, uint32_t stream) {
  add(Instruction::WAIT, "", {}, {}, stream).set_event(event);
}

planpb::Call &ProgramBuilder::call(uint32_t procedure, int64_t microbatch,
                                   std::vector<uint32_t> slots) {
  planpb::Call &call = *program_.add_calls();
  call.set_procedure(procedure);
  call.set_microbatch(microbatch);
  for (uint32_t slot : slots)
    call.add_slots(slot);
  return call;
}

void setScalar(Instruction &instruction, double value) {
  instruction.add_scalars()->set_f(value);
}
void setRuntime(Instruction &instruction, const std::string &name) {
  instruction.add_scalars()->set_runtime(name);
}

LoadedPlan dataParallelPlan(int64_t dp, int64_t microbatches, int64_t batch) {
  LoadedPlan plan = emptyPlan(1, dp, microbatches, batch);
  ProgramBuilder builder(plan.programs[0]);
  builder.program().add_streams()->set_name("compute");
  builder.program().add_streams()->set_name("comm");
  builder.program().set_events(2);
  const uint32_t x = inputBuffer(builder, batch / dp / microbatches, batch);
  const Parameter p = parameterBuffers(builder);
  const uint32_t zero = builder.procedure("prologue");
  setScalar(builder.add(Instruction::LIBRARY, "fill", {}, {p.g}), 0);
  const uint32_t forward = builder.procedure("forward");
  builder.add(Instruction::LOAD_INPUT, "x", {}, {x});
  builder.add(Instruction::LIBRARY, "row_sum", {x}, {p.g}).set_accumulate(true);
  addUpdate(builder, p.g, p.w, p.loss);
  builder.call(zero, -1, {0});
  for (int64_t mb = 0; mb < microbatches; ++mb)
    builder.call(forward, mb, {uint32_t(mb % 2)});
  builder.call(forward + 1, -1, {0});
  return plan;
}

LoadedPlan pipelinePlan(int64_t dp, int64_t microbatches, int64_t batch) {
  LoadedPlan plan = emptyPlan(2, dp, microbatches, batch);
  const int64_t local = batch / dp / microbatches;
  {
    ProgramBuilder builder(plan.programs[0]);
    builder.program().add_streams()->set_name("compute");
    builder.program().add_streams()->set_name("send");
    builder.program().set_events(1);
    const uint32_t x = inputBuffer(builder, local, batch);
    const uint32_t y = builder.buffer("y", planpb::F32, {local, 4}, 2);
    const uint32_t forward = builder.procedure("stage0.forward");
    builder.add(Instruction::LOAD_INPUT, "x", {}, {x});
    setScalar(builder.add(Instruction::LIBRARY, "scale", {x}, {y}), 2);
    builder.record(0, 0);
    builder.wait(0, 1);
    Instruction &send = builder.add(Instruction::SEND, "", {y}, {}, 1);
    send.set_channel("y");
    *send.add_peer() = axis("pp", 1);
    for (int64_t mb = 0; mb < microbatches; ++mb) {
      planpb::Call &call = builder.call(forward, mb, {uint32_t(mb % 2)});
      if (mb >= 2) { // the slot must have been sent
        planpb::CallWait &wait = *call.add_waits();
        wait.set_stream(0);
        wait.set_on(1);
        wait.set_call(uint32_t(mb - 2));
      }
    }
  }
  ProgramBuilder builder(plan.programs[1]);
  builder.program().add_streams()->set_name("compute");
  builder.program().add_streams()->set_name("comm");
  builder.program().add_streams()->set_name("recv");
  builder.program().set_events(3);
  const uint32_t y = builder.buffer("y", planpb::F32, {local, 4}, 2);
  const Parameter p = parameterBuffers(builder);
  const uint32_t zero = builder.procedure("stage1.prologue");
  setScalar(builder.add(Instruction::LIBRARY, "fill", {}, {p.g}), 0);
  const uint32_t forward = builder.procedure("stage1.forward");
  Instruction &recv = builder.add(Instruction::RECV, "", {}, {y}, 2);
  recv.set_channel("y");
  *recv.add_peer() = axis("pp", 0);
  builder.record(2, 2);
  builder.wait(2, 0);
  builder.add(Instruction::LIBRARY, "row_sum", {y}, {p.g}).set_accumulate(true);
  addUpdate(builder, p.g, p.w, p.loss);
  builder.call(zero, -1, {0});
  for (int64_t mb = 0; mb < microbatches; ++mb) {
    planpb::Call &call = builder.call(forward, mb, {uint32_t(mb % 2)});
    if (mb >= 2) { // the slot must have been read
      planpb::CallWait &wait = *call.add_waits();
      wait.set_stream(2);
      wait.set_on(0);
      wait.set_call(uint32_t(mb - 1)); // call 0 is the prologue
    }
  }
  builder.call(forward + 1, -1, {0});
  return plan;
}

std::string writeWeights(LoadedPlan &plan, const std::string &name,
                         const std::vector<float> &values) {
  const std::string dir = temporaryFolder();
  writeFile(dir + "/weights.bin",
            std::string(reinterpret_cast<const char *>(values.data()),
                        values.size() * sizeof(float)));
  plan.file.set_model_dir(dir);
  for (planpb::Tensor &tensor : *plan.file.mutable_tensors())
    if (tensor.name() == name) {
      tensor.mutable_source()->set_kind(planpb::Source::FILE);
      tensor.mutable_source()->set_path("weights.bin");
      tensor.mutable_source()->set_offset(0);
      tensor.mutable_source()->set_length(values.size() * sizeof(float));
    }
  return dir;
}

std::string temporaryFolder() {
  static std::atomic<int> counter{0};
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("merak-test-{}-{}", getpid(), counter++);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

std::string readFile(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void writeFile(const std::string &path, const std::string &bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), std::streamsize(bytes.size()));
}

} // namespace merak::runtime::test
