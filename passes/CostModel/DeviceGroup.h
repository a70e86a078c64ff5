// A group of devices that a collective is asked about for many sizes: it is
// looked at once, which matters for thousands of devices.
#pragma once

#include "passes/CostModel/Cost.h"

#include <memory>
#include <vector>

namespace merak::costmodel {

class DeviceGroup {
public:
  // `sharing`: see collectiveSeconds().
  DeviceGroup(const std::vector<int64_t> &devices, const Cluster &cluster,
              int64_t sharing = 1);
  // collectiveSeconds() of the devices.
  double seconds(Collective kind, double bytes) const;

private:
  friend double collectiveSeconds(Collective kind, double bytes,
                                  const std::vector<int64_t> &devices,
                                  const Cluster &cluster, int64_t sharing);
  // With the first device as the cluster has it, which must outlive this.
  static DeviceGroup within(const std::vector<int64_t> &devices,
                            const Cluster &cluster, int64_t sharing);
  DeviceGroup() = default;

  int64_t count = 0;
  Algorithm algorithm = Algorithm::Ring;
  GroupShape shape;        // for NCCL
  std::vector<Link> links; // for others, all that differ between neighbours
  std::shared_ptr<const Device> host; // null: none has work of its own
};

} // namespace merak::costmodel
