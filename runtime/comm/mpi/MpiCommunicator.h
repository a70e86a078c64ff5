// One rank's collectives and transfers as messages (private to this folder).
#pragma once

#include "runtime/comm/mpi/MpiEngine.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"

namespace merak::runtime {

// A world's communicator. Groups and channels have a tag each, the same on all
// ranks because the store numbers them.
class MpiCommunicator : public Communicator {
public:
  MpiCommunicator(ProcessWorld &world, MpiEngine &engine)
      : world_(world), engine_(engine) {}
  int rank() const override { return world_.ranks()[0]; }
  int size() const override { return world_.size(); }
  Result<std::unique_ptr<Endpoint>>
  prepare(CommSpec spec, std::span<const View> inputs,
          std::span<const View> outputs) override;
  Status run(const CommCall &call) override;
  void abort(const Status &reason) override { world_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return world_.aborted(); }
  Status abortReason() const override { return world_.abortReason(); }

private:
  Result<int> tagOf(const CommSpec &spec);

  ProcessWorld &world_;
  MpiEngine &engine_;
};

} // namespace merak::runtime
