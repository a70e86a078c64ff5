#include "test/unit/checkpoint/Layouts.h"

#include "runtime/checkpoint/CheckpointWriter.h"

namespace merak::runtime::test {
namespace {

// Dimension 12 = 3 x 4@tp: each rank holds three boxes.
planpb::Layout fused() {
  planpb::Layout layout = layoutOf({{5, {}}});
  planpb::DimLayout &dim = *layout.add_dims();
  dim.add_factors()->set_size(3);
  planpb::Factor &heads = *dim.add_factors();
  heads.set_size(4);
  heads.add_axes("tp");
  return layout;
}

} // namespace

std::unique_ptr<Holder> holder(int kind) {
  const planpb::Tensor::Role frozen = planpb::Tensor::FROZEN,
                             optimizer = planpb::Tensor::OPTIMIZER,
                             parameter = planpb::Tensor::PARAMETER;
  std::unique_ptr<Holder> h;
  switch (kind) {
  case 0: // one rank
    h = std::make_unique<Holder>(1, 1, 1);
    h->add("w", {6, 8}, {{6, {}}, {8, {}}});
    h->add("qkv", {5, 12}, {{5, {}}, {12, {}}});
    h->add("tied", {4, 3}, {{4, {}}, {3, {}}});
    h->add("scalar", {}, Dims{});
    h->add("mask", {2}, {{2, {}}}, {0}, frozen);
    h->add("w.exp_avg", {6, 8}, {{6, {}}, {8, {}}}, {0}, optimizer);
    break;
  case 1: // replicas and rows
    h = std::make_unique<Holder>(1, 2, 2);
    h->add("w", {6, 8}, {{6, {"tp"}}, {8, {}}});
    h->add("qkv", {5, 12}, fused(), {0}, parameter);
    h->add("tied", {4, 3}, {{4, {"tp"}}, {3, {}}});
    h->add("scalar", {}, Dims{});
    h->add("mask", {2}, {{2, {}}}, {0}, frozen);
    // Optimizer state over replicas too.
    h->add("w.exp_avg", {6, 8}, {{6, {"tp"}}, {8, {"dp"}}}, {0}, optimizer);
    break;
  case 2: // two stages, columns, a tied weight on both
    h = std::make_unique<Holder>(2, 1, 4);
    h->add("w", {6, 8}, {{6, {}}, {8, {"tp"}}}, {1});
    h->add("qkv", {5, 12}, fused(), {0}, parameter);
    h->add("tied", {4, 3}, {{4, {"tp"}}, {3, {}}}, {0, 1});
    h->add("scalar", {}, Dims{}, {1});
    h->add("mask", {2}, {{2, {}}}, {0}, frozen);
    h->add("w.exp_avg", {6, 8}, {{6, {}}, {8, {"tp"}}}, {1}, optimizer);
    break;
  default: // stages that hold the tied weight in different layouts
    h = std::make_unique<Holder>(2, 1, 2);
    h->add("w", {6, 8}, {{6, {"tp"}}, {8, {}}}, {0});
    h->add("qkv", {5, 12}, fused(), {1}, parameter);
    h->add("tied", {4, 3}, {{4, {"tp"}}, {3, {}}}, {0});
    ProgramBuilder builder(h->plan.programs[1]);
    const uint32_t tied = builder.buffer("tied", planpb::F32, {4, 3});
    builder.at(tied).set_tensor("tied");
    *builder.at(tied).mutable_layout() = layoutOf({{4, {}}, {3, {}}});
    h->add("scalar", {}, Dims{}, {0});
    h->add("mask", {2}, {{2, {}}}, {1}, frozen);
    h->add("w.exp_avg", {6, 8}, {{6, {}}, {8, {}}}, {0}, optimizer);
    break;
  }
  h->start();
  return h;
}

Status save(Holder &h, const std::string &dir, const CheckpointState &state,
            int keep, Files &files) {
  auto writer =
      CheckpointWriter::open(h.plan, h.ranks, {dir, keep}, nullptr, files);
  return writer ? (*writer)->write(state) : writer.status();
}

Status load(Holder &h, const std::string &path, CheckpointState &state) {
  TensorStore checkpoint;
  MERAK_RETURN_IF_ERROR(openCheckpoint(h.plan, path, checkpoint, state));
  auto store = TensorStore::fromPlan(h.plan, &checkpoint);
  if (!store)
    return store.status();
  for (const auto &[name, tensor] : checkpoint.tensors())
    store->add(name, tensor);
  return loadTensors(h.plan, h.ranks, *store);
}

} // namespace merak::runtime::test
