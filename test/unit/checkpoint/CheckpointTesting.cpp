#include "test/unit/checkpoint/CheckpointTesting.h"

#include "runtime/comm/inproc/InprocCommunicator.h"

namespace merak::runtime::test {
namespace {

InprocWorld &worldOf(size_t size) {
  static std::vector<std::unique_ptr<InprocWorld>> worlds;
  return *worlds.emplace_back(std::make_unique<InprocWorld>(int(size)));
}

planpb::Axis *addAxis(google::protobuf::RepeatedPtrField<planpb::Axis> *axes,
                      const std::string &name, int64_t size) {
  planpb::Axis *axis = axes->Add();
  axis->set_name(name);
  axis->set_size(size);
  return axis;
}

} // namespace

Holder::Holder(int64_t pp, int64_t dp, int64_t tp) {
  planpb::PlanFile &file = plan.file;
  file.set_mode("train");
  file.set_model("test.onnx");
  addAxis(file.mutable_mesh(), "pp", pp);
  addAxis(file.mutable_mesh(), "dp", dp);
  addAxis(file.mutable_mesh(), "tp", tp);
  for (int64_t p = 0; p < pp; ++p)
    for (int64_t d = 0; d < dp; ++d)
      for (int64_t t = 0; t < tp; ++t) {
        planpb::Rank &rank = *file.add_ranks();
        rank.set_program(uint32_t(p));
        addAxis(rank.mutable_coords(), "pp", p);
        addAxis(rank.mutable_coords(), "dp", d);
        addAxis(rank.mutable_coords(), "tp", t);
      }
  plan.programs.resize(size_t(pp));
}

void Holder::add(const std::string &name, std::vector<int64_t> shape,
                 Dims layout, std::vector<int> stages,
                 planpb::Tensor::Role role) {
  add(name, std::move(shape), layoutOf(layout), std::move(stages), role);
}

void Holder::add(const std::string &name, std::vector<int64_t> shape,
                 planpb::Layout layout, std::vector<int> stages,
                 planpb::Tensor::Role role) {
  if (name.rfind("grad:", 0) != 0) {
    planpb::Tensor &tensor = *plan.file.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(planpb::F32);
    for (int64_t size : shape)
      tensor.add_shape(size);
    tensor.set_role(role);
    tensor.mutable_source()->set_kind(planpb::Source::ZERO);
  }
  for (int stage : stages) {
    ProgramBuilder builder(plan.programs[size_t(stage)]);
    const uint32_t buffer = builder.buffer(
        name, planpb::F32, fromProto(layout).localShape(layoutMesh(plan.file)));
    builder.at(buffer).set_tensor(name);
    *builder.at(buffer).mutable_layout() = layout;
  }
}

void Holder::start() {
  const int count = plan.file.ranks_size();
  InprocWorld &world = worldOf(size_t(count));
  for (int r = 0; r < count; ++r) {
    pools_.push_back(std::make_unique<ThreadPool>(1));
    backends_.push_back(std::make_unique<TestBackend>(*pools_.back()));
    comms_.push_back(world.communicator(r));
    auto program =
        RankProgram::create(plan, r, *backends_.back(), *comms_.back());
    ASSERT_TRUE(program.ok()) << program.status().str();
    programs_.push_back(std::move(*program));
    ranks.push_back({programs_.back().get(), backends_.back().get()});
  }
}

void Holder::fill(float base) {
  for (RankMemory &rank : ranks) {
    const planpb::Program &program = rank.program->proto();
    for (int b = 0; b < program.buffers_size(); ++b) {
      const layout::Layout layout = fromProto(program.buffers(b).layout());
      const std::vector<int64_t> shape = layout.globalShape();
      int64_t elements = 1;
      for (int64_t size : shape)
        elements *= size;
      std::vector<float> values(static_cast<size_t>(elements));
      for (int64_t i = 0; i < elements; ++i)
        values[size_t(i)] = base + float(i);
      for (const layout::Box &box :
           layout::boxes(layout, rank.program->mesh(), rank.program->coords()))
        layout::copyBox(values.data(), shape, box.globalOrigin,
                        rank.program->bufferData(b),
                        layout.localShape(rank.program->mesh()),
                        box.localOrigin, box.extent, 4);
    }
  }
}

std::string Holder::gather(const std::string &name) {
  std::vector<HeldBuffer> held;
  std::vector<int64_t> shape;
  for (size_t r = 0; r < ranks.size(); ++r)
    for (int b = 0; b < ranks[r].program->proto().buffers_size(); ++b)
      if (ranks[r].program->proto().buffers(b).tensor() == name) {
        held.push_back({int(r), b});
        shape = fromProto(ranks[r].program->proto().buffers(b).layout())
                    .globalShape();
      }
  int64_t bytes = 4;
  for (int64_t size : shape)
    bytes *= size;
  std::string data(size_t(bytes), '\0');
  Relay relay(ranks, nullptr, name);
  const Status status =
      gatherTensor(plan, relay, held, shape, planpb::F32, data.data());
  EXPECT_TRUE(status.ok()) << status.str();
  return data;
}

} // namespace merak::runtime::test
