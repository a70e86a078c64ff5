// Predicted times: kernels by the roofline with measured efficiencies,
// collectives and transfers by the alpha-beta model of the algorithm that the
// communicator uses. Formulas and sources: docs/CostModel.md.
#pragma once

#include "passes/CostModel/Cluster.h"

namespace merak::costmodel {

// What a kernel has to do, as far as its time depends on it.
struct Kernel {
  // "einsum", "layer_norm"; with a variant "einsum:nt"; a class name will do.
  std::string name;
  double flops = 0; // floating-point operations
  double bytes = 0; // read and written, each operand once
  std::string dtype = "f32";
  // Of a contraction: rows, columns, and what is summed over; 0: not known.
  double m = 0, n = 0, k = 0;
  // How much of its operands is met at each of the device's distances, together
  // 1; empty: nothing is known, all at the middle one.
  std::vector<double> shares;
  // Elements of factors that are rounded to 8 bits before ("f8").
  double rounded = 0;
  bool operator==(const Kernel &) const = default;
};

// The class whose rates stand in for those of a kernel that the file does not
// list (runtime/plan/LibraryKernels.h): "matmul" for "einsum", "rows" for
// "softmax"; "elementwise" for a generated kernel, which has no name.
std::string kernelClass(const std::string &name);

// The rates of the variant, else of the kernel, else of its class; null: none.
// Each of them first for the dtype alone ("einsum:nn@bf16"; of f8 then for
// bf16).
const KernelRates *findRates(const Device &device, const std::string &name,
                             const std::string &dtype = "f32");
// The name under which a file lists rates of the dtype alone; f32 has none.
std::string ratesName(const std::string &name, const std::string &dtype);
// max(flops / rate, bytes / bandwidth) + launch, with these rates or the
// device's; the sum instead of the maximum where the rates say so. The mean
// over the distances of its operands.
double kernelSeconds(const Device &device, const Kernel &kernel);
// The same for operations of which only this is known.
double opSeconds(const Device &device, double flops, double bytes);

enum class Collective {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Broadcast
};
// "all_reduce", ...; false if it is none.
bool parseCollective(const std::string &name, Collective &kind);

// `bytes`: the largest buffer of the collective, that is the whole tensor for
// all-reduce and broadcast, the gathered one for all-gather, the unreduced one
// for reduce-scatter, a device's own buffer for all-to-all.
// Bytes that each of n devices sends: all-reduce 2 b (n-1)/n, the others but
// broadcast b (n-1)/n, broadcast (pipelined ring) b.
double ringBytes(Collective kind, double bytes, int64_t devices);
// Over one link: rounds * latency + moved bytes / bandwidth.
//   ring    n-1 rounds, all-reduce 2(n-1); ringBytes
//   tree    ceil(log2 n) rounds, all-reduce twice as many; all bytes a round
//   direct  1 round, all-reduce 2; ringBytes
//   nccl    see GroupShape, each device on a node of its own
// Thakur, Rabenseifner and Gropp, Optimization of Collective Communication
// Operations in MPICH, 2005.
double collectiveSeconds(Collective kind, double bytes, int64_t devices,
                         const Link &link,
                         Algorithm algorithm = Algorithm::Ring);
// How a group lies on the nodes, for NCCL's algorithms.
struct GroupShape {
  int64_t devices = 1, nodes = 1;
  Link intra, inter; // between neighbours; inter: of all adapters of a node
};
// The faster of two (NCCL 2.28, src/graph/tuning.cc):
//   ring   the rounds of a ring; all but one a node (twice that many of an
//          all-reduce) stay inside a node; ringBytes over the slower link
//   tree   of an all-reduce: up and down a chain inside each node and a binary
//          tree of the nodes, floor(log2 nodes) high. There are two such trees,
//          each for one half, in which no node is an inner one twice, so that a
//          node sends 2 b (Sanders, Speck and Traff, Two-tree algorithms for
//          full bandwidth broadcast, reduction and scan, 2009)
double ncclSeconds(Collective kind, double bytes, const GroupShape &group);
// Of a group of devices, with the cluster's algorithm. But for NCCL the slowest
// link between neighbours carries the ring. `sharing`: groups that run the same
// collective at the same time over one node's adapter, if that is shared. Not
// less than the devices' own work, if their kernels list the collective.
double collectiveSeconds(Collective kind, double bytes,
                         const std::vector<int64_t> &devices,
                         const Cluster &cluster, int64_t sharing = 1);
double transferSeconds(const Link &link, double bytes);
// Between two devices; `sharing` as above, own work as "transfer".
double transferSeconds(double bytes, int64_t from, int64_t to,
                       const Cluster &cluster, int64_t sharing = 1);

} // namespace merak::costmodel
