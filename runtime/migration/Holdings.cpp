#include "runtime/migration/Holdings.h"

namespace merak::migration {

int64_t elementsOf(const std::vector<int64_t> &extent) {
  return layout::Box{{}, {}, extent}.elements();
}

int64_t Holding::bytes() const { return elementsOf(shape) * dtypeSize(dtype); }

std::vector<TensorHoldings> holdingsOf(const LoadedPlan &plan,
                                       const std::vector<int> &devices) {
  std::vector<layout::AxisMap> meshes, coords;
  for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
    meshes.push_back(layoutMesh(plan.file, rank));
    coords.push_back(coordsOf(plan.file, rank));
  }
  auto holdings = [&](const std::vector<runtime::HeldBuffer> &held) {
    std::vector<Holding> result;
    for (const runtime::HeldBuffer &where : held) {
      const planpb::Buffer &buffer =
          plan.programOf(where.rank).buffers(where.buffer);
      result.push_back(
          {devices[size_t(where.rank)],
           where.buffer,
           buffer.dtype(),
           {buffer.shape().begin(), buffer.shape().end()},
           layout::boxes(fromProto(buffer.layout()), meshes[size_t(where.rank)],
                         coords[size_t(where.rank)])});
    }
    return result;
  };
  std::vector<TensorHoldings> result;
  for (const runtime::HeldTensor &tensor : runtime::heldTensors(plan))
    result.push_back(
        {tensor.tensor, holdings(tensor.values), holdings(tensor.rounded)});
  return result;
}

} // namespace merak::migration
