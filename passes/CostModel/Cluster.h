// The machine to compile for: devices with their rates and memory, and the
// links between them. Read from cluster.json, or the default of in-process CPU
// ranks.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace merak::costmodel {

// A link: transfer of n bytes takes latency + n / bandwidth.
struct Link {
  double bandwidth = 0; // bytes per second
  double latency = 0;   // seconds
  bool operator==(const Link &) const = default;
};

struct Device {
  std::string kind = "cpu";
  double flops = 0; // contractions, floating-point operations a second
  double memoryBandwidth = 0; // bytes a second
  int64_t memoryBytes = 0;    // 0: not limited
  double launchSeconds = 0;   // of one kernel or library call
  bool operator==(const Device &) const = default;
};

// Devices 0..count-1; those of one node (perNode consecutive ones) meet over
// `intra`, others over `inter`.
struct Cluster {
  std::string name;
  int64_t count = 1;
  int64_t perNode = 1;
  Device device;
  Link intra, inter;
  bool operator==(const Cluster &) const = default;

  const Link &between(int64_t a, int64_t b) const {
    return a / perNode == b / perNode ? intra : inter;
  }
  std::string toJson() const;
};

// `ranks` in-process CPU ranks of one machine that share its memory.
Cluster defaultCluster(int64_t ranks);
// All missing, negative and contradictory fields at once; `fileName` opens
// each message.
Result<Cluster> parseCluster(const std::string &json,
                             const std::string &fileName);
Result<Cluster> readCluster(const std::string &path);

} // namespace merak::costmodel
