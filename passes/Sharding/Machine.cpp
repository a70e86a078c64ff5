#include "passes/Sharding/Machine.h"

#include "dialects/Dist/DistDialect.h"

using namespace mlir;
using namespace merak::dist;

namespace merak {

Result<costmodel::Cluster> machineOf(ModuleOp module) {
  if (auto noted = module->getAttrOfType<ClusterAttr>(kClusterAttr))
    return costmodel::parseCluster(noted.getDocument().str(), "cluster");
  int64_t ranks = 1;
  if (auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr))
    for (int64_t size : mesh.getSizes())
      ranks *= size;
  return costmodel::defaultCluster(ranks);
}

} // namespace merak
