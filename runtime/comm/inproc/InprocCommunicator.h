// Ranks as threads of one process: they read each other's buffers directly.
//
// A collective is a rendezvous: each member posts its views, all meet at a
// barrier, each computes its part from the posted views, and nobody leaves
// while others still read. Sums run in group order. A transfer is copied by
// whichever end comes second, so that the second never waits.
#pragma once

#include "runtime/comm/World.h"
#include "runtime/comm/inproc/LinkEmulation.h"
#include "runtime/core/Gate.h"

#include <map>
#include <tuple>

namespace merak::runtime {

struct InprocGroup;
struct InprocChannel;

// What the ranks share. Outlives its communicators.
class InprocWorld : public World {
public:
  // With `links` communication takes as long as they need.
  explicit InprocWorld(int size,
                       std::unique_ptr<LinkEmulation> links = nullptr);
  ~InprocWorld() override;
  int size() const override { return size_; }
  const std::vector<int> &ranks() const override { return ranks_; }
  LinkEmulation *links() const { return links_.get(); }
  std::unique_ptr<Communicator> communicator(int rank);
  // On a device: see DeviceCommunicator.h.
  Result<std::unique_ptr<Communicator>> communicator(int rank,
                                                     Backend &backend) override;

  void abort(const Status &reason) override;
  const std::atomic<bool> &aborted() const override { return aborted_; }
  Status abortReason() const override;

  // The meeting points, created by whoever comes first.
  InprocGroup &group(const std::vector<int> &members,
                     const std::string &channel);
  InprocChannel &channel(int from, int to, const std::string &name);

private:
  int size_;
  std::vector<int> ranks_;
  std::unique_ptr<LinkEmulation> links_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  Status reason_;
  std::map<std::pair<std::vector<int>, std::string>,
           std::unique_ptr<InprocGroup>>
      groups_;
  std::map<std::tuple<int, int, std::string>, std::unique_ptr<InprocChannel>>
      channels_;
};

} // namespace merak::runtime
