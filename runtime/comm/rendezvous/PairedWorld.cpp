#include "runtime/comm/rendezvous/PairedWorld.h"

namespace merak::runtime {
namespace {

// A store as somebody else has it.
class BorrowedStore : public Store {
public:
  explicit BorrowedStore(Store &store) : store_(store) {}
  int rank() const override { return store_.rank(); }
  int size() const override { return store_.size(); }
  Status put(const std::string &key, const std::string &value) override {
    return store_.put(key, value);
  }
  Result<std::string> get(const std::string &key, double seconds) override {
    return store_.get(key, seconds);
  }
  Result<std::string> take(const std::string &key, double seconds) override {
    return store_.take(key, seconds);
  }
  Status contribute(const std::string &name,
                    const std::string &value) override {
    return store_.contribute(name, value);
  }
  Result<std::vector<std::string>> collect(const std::string &name,
                                           double seconds) override {
    return store_.collect(name, seconds);
  }
  Result<int64_t> number(const std::string &key) override {
    return store_.number(key);
  }
  Status notify(const std::string &topic, const std::string &text) override {
    return store_.notify(topic, text);
  }
  void listen(Listener listener) override {
    store_.listen(std::move(listener));
  }
  void abort(const Status &reason) override { store_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return store_.aborted(); }
  Status abortReason() const override { return store_.abortReason(); }
  int abortedBy() const override { return store_.abortedBy(); }
  void leave(double seconds) override { store_.leave(seconds); }

private:
  Store &store_;
};

class PairedWorld : public World {
public:
  PairedWorld(std::unique_ptr<World> hosts, std::unique_ptr<World> devices)
      : hosts_(std::move(hosts)), devices_(std::move(devices)) {}
  int size() const override { return hosts_->size(); }
  const std::vector<int> &ranks() const override { return hosts_->ranks(); }
  Result<std::unique_ptr<Communicator>>
  communicator(int rank, Backend &backend) override {
    return (backend.isHost() ? hosts_ : devices_)->communicator(rank, backend);
  }
  void abort(const Status &reason) override { hosts_->abort(reason); }
  const std::atomic<bool> &aborted() const override {
    return hosts_->aborted();
  }
  Status abortReason() const override { return hosts_->abortReason(); }
  Store *store() override { return hosts_->store(); }

private:
  std::unique_ptr<World> hosts_; // which has the store of both
  std::unique_ptr<World> devices_;
};

} // namespace

Result<std::unique_ptr<World>> pairWorlds(std::unique_ptr<World> hosts,
                                          const DeviceWorldFactory &open) {
  auto devices = open(std::make_unique<BorrowedStore>(*hosts->store()));
  if (!devices)
    return devices.status();
  return std::unique_ptr<World>(
      std::make_unique<PairedWorld>(std::move(hosts), std::move(*devices)));
}

} // namespace merak::runtime
