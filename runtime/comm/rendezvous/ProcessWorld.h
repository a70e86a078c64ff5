// A world of processes with one rank each, which meet in a store. What is left
// to a transport (MPI, NCCL) is to make the communicator.
#pragma once

#include "runtime/comm/World.h"

namespace merak::runtime {

class ProcessWorld : public World {
public:
  explicit ProcessWorld(std::unique_ptr<Store> store)
      : store_(std::move(store)), ranks_{store_->rank()} {}
  int size() const override { return store_->size(); }
  const std::vector<int> &ranks() const override { return ranks_; }
  void abort(const Status &reason) override;
  const std::atomic<bool> &aborted() const override {
    return store_->aborted();
  }
  Status abortReason() const override { return store_->abortReason(); }
  Store *store() override { return store_.get(); }

protected:
  std::unique_ptr<Store> store_;

private:
  std::vector<int> ranks_;
};

// Whether all processes succeeded; otherwise the problems of all. Rank 0 gets
// them, each once, with the ranks that have it unless all have. The first
// message is empty on all ranks, the only one on all but rank 0, which speaks
// for them: nobody needs to be told. Without a store it is `mine`.
Status agree(Store *store, const std::string &what, const Status &mine);
bool isAgreed(const Status &status);

} // namespace merak::runtime
