// The machine to compile for: kinds of devices with their rates and memory,
// nodes that hold devices, and the links between them. Read from cluster.json
// (docs/CostModel.md), or the default of in-process CPU ranks.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace merak::costmodel {

// A link: transfer of n bytes takes latency + n / bandwidth.
struct Link {
  double bandwidth = 0; // bytes per second
  double latency = 0;   // seconds
  // True: all devices of a node share the bandwidth (one network adapter);
  // false: each device has it for itself.
  bool shared = false;
  bool operator==(const Link &) const = default;
};

// How collectives move their bytes. Ring: n-1 rounds of one n-th. Tree: log2(n)
// rounds of everything. Direct: every member reads what it needs from the
// others at once, so latency does not grow with n (ranks in one process). Nccl:
// what that library does, the faster of rings through all adapters of the nodes
// and a double binary tree of the nodes.
enum class Algorithm { Ring, Tree, Direct, Nccl };

// A measured or published point of a kernel's speed: the share of the device's
// flops (of the dtype) that an m x n x k contraction reaches.
struct ShapePoint {
  double m = 1, n = 1, k = 1;
  double efficiency = 1; // above 0, at most 1
  // At the second, third, ... of the device's distances, where the first is at
  // the first one; empty: the same at all.
  std::vector<double> farther;
  bool operator==(const ShapePoint &) const = default;
};
// Bytes a second when a kernel touches this many bytes: caches are faster than
// memory, small kernels slower than large ones.
struct SizePoint {
  double bytes = 0, bandwidth = 0;
  std::vector<double> farther; // bandwidths, as above
  bool operator==(const SizePoint &) const = default;
};

// What is known about one class of kernels or one kernel. Everything is
// optional: what is absent is the device's.
struct KernelRates {
  double launch = -1;             // seconds; negative: the device's
  double flops = 0;               // a second; 0: the device's of the dtype
  std::vector<ShapePoint> shapes; // none: efficiency 1
  std::vector<SizePoint> sizes;   // by bytes; none: the device's bandwidth
  // Arithmetic and memory take turns instead of overlapping: their times add.
  bool adds = false;
  bool operator==(const KernelRates &) const = default;
};

// A kind of device.
struct Device {
  std::string name = "cpu";    // of the kind
  std::string backend = "cpu"; // "cpu" or "cuda"
  // Contractions, floating-point operations a second, by dtype ("f32",
  // "bf16", ...). "f32" is always there.
  std::map<std::string, double> rates;
  double memoryBandwidth = 0; // bytes a second
  int64_t memoryBytes = 0;    // 0: not limited
  double launchSeconds = 0;   // of one kernel or library call
  // By kernel ("layer_norm") or class ("matmul", "attention", "conv",
  // "elementwise", "rows", "copy", "gather", "optimizer"). On CPUs also the
  // ranks' own work in "all_reduce", ... and "transfer".
  std::map<std::string, KernelRates> kernels;
  // A kernel is slower on operands that the caches no longer hold. A rate can
  // be given for several distances: bytes that the device touched between two
  // uses of an operand, ascending. Empty: one rate.
  std::vector<double> distances;
  // How much longer a computation lasts while the device communicates, and a
  // communication while it computes; at least 1.
  double computeSlowdown = 1, communicationSlowdown = 1;

  // Of a dtype that the file does not list: f32's; of f8 bf16's, which is then
  // what computes it.
  double flops(const std::string &dtype = "f32") const;
  // Whether no kernel takes longer for a byte or an operation of many than of
  // few: of measured rates, where larger sizes leave no cache.
  bool isFasterOnMore() const;
  bool operator==(const Device &) const = default;
};

// Devices 0..count-1, numbered node by node. Those of one node meet over
// `intra`, others over `inter`. The per-device vectors are empty for what is
// the same everywhere, so that a uniform cluster is a handful of numbers.
struct Cluster {
  std::string name;
  int64_t count = 1;
  int64_t perNode = 1;                 // devices of the largest node
  std::vector<Device> kinds{Device{}}; // never empty
  std::vector<int> kindOf;             // by device; empty: all are kinds[0]
  std::vector<int> nodeOf;             // by device; empty: device / perNode
  std::vector<double> rateOf;          // share of the kind's speed; empty: 1
  Link intra, inter;
  Algorithm algorithm = Algorithm::Ring;
  // Threads of the machine that CPU devices of one node share; 0: each device
  // has its own. `threads`: those of one device.
  int64_t cores = 0, threads = 1;
  bool operator==(const Cluster &) const = default;

  // Of a device, without its own rate factor.
  const Device &device(int64_t index = 0) const {
    return kinds[kindOf.empty() ? 0 : size_t(kindOf[size_t(index)])];
  }
  int64_t node(int64_t index) const {
    return nodeOf.empty() ? index / perNode : nodeOf[size_t(index)];
  }
  // Speed of a device against its kind's: stragglers, and cores shared by more
  // threads than there are.
  double rate(int64_t index) const;
  // Of that what a device has of the cores of its node, if ranks share them.
  double hostShare(int64_t index) const;
  const Link &between(int64_t a, int64_t b) const {
    return node(a) == node(b) ? intra : inter;
  }
  std::string toJson() const;
};

// `ranks` in-process CPU ranks of one machine that share its memory.
Cluster defaultCluster(int64_t ranks);
// All missing, negative, unknown and contradictory fields at once, each with
// its path in the file; `fileName` opens each message.
Result<Cluster> parseCluster(const std::string &json,
                             const std::string &fileName);
Result<Cluster> readCluster(const std::string &path);

} // namespace merak::costmodel
