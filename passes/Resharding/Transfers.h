// How the message of a unit task gets from its sender to its receivers:
// transfers, as devices execute them.
#pragma once

#include "passes/CostModel/Cluster.h"
#include "passes/Resharding/UnitTasks.h"

namespace merak::resharding {

// With t = bytes / bandwidth of the links between nodes, A nodes with B
// receivers each:
//   SendRecv       the message to each receiver: A * B * t
//   LocalGather    a B-th to each receiver of a node, all-gather inside the
//                  node: A * t
//   ScatterGather  an (A * B)-th to each receiver, all-gather over all: 2 * t
//   Broadcast      K chunks along a chain of all receivers: t * (K + A - 1) / K
//   Convert        to another layout on one of the two meshes before (after)
//                  the transfer; of a whole resharding, not of a task
//   Alpa           LocalGather where the receivers are on one node, else
//                  SendRecv: what Alpa does (Zheng et al., 2022, arXiv
//                  2201.12023), to compare with
// (Zhuang et al., 2023, arXiv 2211.05322, section 3.1)
enum class Strategy {
  SendRecv,
  LocalGather,
  ScatterGather,
  Broadcast,
  Convert,
  Alpa
};
const std::vector<std::string> &strategyNames(); // "send-recv", ...
const std::string &nameOf(Strategy strategy);
bool parseStrategy(const std::string &name, Strategy &strategy);
// What it means for one task.
Strategy resolve(Strategy strategy, const UnitTask &task,
                 const costmodel::Cluster &cluster);

enum class TransferKind { Copy, Message, Broadcast, Gather };
const char *nameOf(TransferKind kind); // "copy", ...

// What devices do together; all of them are in it at one time.
struct Transfer {
  int task = 0;
  TransferKind kind = TransferKind::Message;
  // Copy: the keeper. Message: sender, receiver. Broadcast: the sender, then
  // the receivers as the chunks pass them. Gather: by part of the message.
  std::vector<int64_t> participants;
  // The elements of the message, row major. Of a gather all of them: member i
  // of n brings part i (partBegin).
  int64_t begin = 0, end = 0;
  // Broadcast: of all elements; chunk i is part i.
  int chunks = 1;

  bool operator==(const Transfer &) const = default;
};

// Where part i of n of a message begins: at an even share, moved to the nearest
// row, block of rows, ... that is small beside a part, so that parts are few
// boxes. Part n begins at the end.
int64_t partBegin(const std::vector<int64_t> &shape, int64_t i, int64_t n);

// The receivers by node, ascending, those of the sender's node first; in each
// the one that takes the message in from other nodes is first. Tasks with
// different source tiles take different ones.
std::vector<std::vector<int64_t>>
receiversByNode(const UnitTask &task, int64_t sender,
                const costmodel::Cluster &cluster);

// A copy for each keeper and what the strategy (one of a task) does.
std::vector<Transfer> transfersOf(const UnitTask &task, int index,
                                  int64_t sender, Strategy strategy, int chunks,
                                  const costmodel::Cluster &cluster);

// The number of chunks with which a broadcast of `bytes` along the chain is
// done first: its first chunk takes the sum of all hops, each further one the
// longest hop. With A equal hops that is sqrt((A - 1) * t / latency). At most
// one for each kSmallestChunk bytes.
inline constexpr double kSmallestChunk = 64 << 10;
inline constexpr int kMostChunks = 1024;
int chunkCount(double bytes, const std::vector<int64_t> &chain,
               const costmodel::Cluster &cluster);
// What `chunkCount` makes least, for so many chunks.
double chainSeconds(double bytes, int chunks, const std::vector<int64_t> &chain,
                    const costmodel::Cluster &cluster);

} // namespace merak::resharding
