#include "test/unit/cuda/MirrorWorld.h"

#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/comm/inproc/StridedOps.h"
#include "runtime/comm/nccl/DenseCommunicator.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/DType.h"

#include <map>
#include <mutex>

namespace merak::cuda {

namespace {

using runtime::StreamHandle;

// What one rank tells is what all tell.
class MirrorStore : public runtime::Store {
public:
  MirrorStore(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status put(const std::string &key, const std::string &value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    return {};
  }
  Result<std::string> get(const std::string &key, double) override {
    std::lock_guard lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end())
      return Status::error("no other rank will tell \"" + key + "\"");
    return found->second;
  }
  Result<std::string> take(const std::string &key, double seconds) override {
    return get(key, seconds);
  }
  Status contribute(const std::string &name,
                    const std::string &value) override {
    return put("all " + name, value);
  }
  Result<std::vector<std::string>> collect(const std::string &name,
                                           double seconds) override {
    auto value = get("all " + name, seconds);
    if (!value.ok())
      return value.status();
    return std::vector<std::string>(size_t(size_), *value);
  }
  Result<int64_t> number(const std::string &key) override {
    std::lock_guard lock(mutex_);
    return numbers_.try_emplace(key, int64_t(numbers_.size())).first->second;
  }
  Status notify(const std::string &, const std::string &) override {
    return {};
  }
  void listen(Listener) override {}
  void abort(const Status &reason) override {
    std::lock_guard lock(mutex_);
    if (!aborted_.exchange(true))
      reason_ = reason;
  }
  const std::atomic<bool> &aborted() const override { return aborted_; }
  Status abortReason() const override {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  int abortedBy() const override { return aborted_ ? rank_ : -1; }
  void leave(double) override {}

private:
  int rank_, size_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> numbers_;
  std::atomic<bool> aborted_{false};
  Status reason_;
};

class MirrorLink : public runtime::DenseLink {
public:
  MirrorLink(EmulatedDevice &device, int me, int members)
      : device_(device), me_(me), members_(members) {}
  Status begin() override { return {}; }
  Status end() override { return {}; }
  Status allReduce(const void *in, void *out, int64_t count, planpb::DType type,
                   bool maximum, StreamHandle stream) override {
    return enqueue(stream, [=, this] {
      reduce(static_cast<const char *>(in), out, count, type, maximum);
    });
  }
  Status allGather(const void *in, void *out, int64_t count, planpb::DType type,
                   StreamHandle stream) override {
    const size_t bytes = size_t(count * runtime::dtypeSize(type));
    return enqueue(stream, [=, this] {
      const std::string part(static_cast<const char *>(in), bytes);
      for (int i = 0; i < members_; ++i)
        part.copy(static_cast<char *>(out) + size_t(i) * bytes, bytes);
    });
  }
  Status reduceScatter(const void *in, void *out, int64_t count,
                       planpb::DType type, bool maximum,
                       StreamHandle stream) override {
    const int64_t bytes = count * runtime::dtypeSize(type);
    return enqueue(stream, [=, this] {
      reduce(static_cast<const char *>(in) + me_ * bytes, out, count, type,
             maximum);
    });
  }
  Status broadcast(const void *in, void *out, int64_t count, planpb::DType type,
                   StreamHandle stream) override {
    return enqueue(stream, [=] {
      std::memmove(out, in, size_t(count * runtime::dtypeSize(type)));
    });
  }
  // Parts of an all-to-all: what another member sends here is what is sent to
  // this one there.
  Status send(const void *in, int64_t, planpb::DType, int peer,
              StreamHandle) override {
    if (peer == me_)
      own_ = in;
    return {};
  }
  Status receive(void *out, int64_t count, planpb::DType type, int peer,
                 StreamHandle stream) override {
    if (peer < me_)
      return Status::error("the mirror shows the first rank only");
    if (own_)
      return broadcast(own_, out, count, type, stream);
    return enqueue(stream, [=] { // a transfer: what it brings is not known
      std::memset(out, 0, size_t(count * runtime::dtypeSize(type)));
    });
  }

private:
  Status enqueue(StreamHandle stream, std::function<void()> work) {
    return device_.enqueue(CudaBackend::native(stream),
                           [work = std::move(work)] {
                             work();
                             return Status();
                           });
  }
  void reduce(const char *in, void *out, int64_t count, planpb::DType type,
              bool maximum) const {
    std::string part(in, size_t(count * runtime::dtypeSize(type)));
    const std::vector<runtime::View> inputs(
        size_t(members_), runtime::View{part.data(), type, {count}, {1}});
    runtime::reduceViews(inputs, {out, type, {count}, {1}}, maximum, false);
  }

  EmulatedDevice &device_;
  int me_, members_;
  const void *own_ = nullptr;
};

class MirrorWorld : public runtime::ProcessWorld, public runtime::DenseLinks {
public:
  MirrorWorld(std::shared_ptr<EmulatedDevice> device, int rank, int size)
      : ProcessWorld(std::make_unique<MirrorStore>(rank, size)),
        device_(std::move(device)) {}
  Result<std::unique_ptr<runtime::Communicator>>
  communicator(int, runtime::Backend &backend) override {
    return runtime::denseCommunicator(*this, backend);
  }
  int rank() const override { return store_->rank(); }
  int size() const override { return store_->size(); }
  Result<runtime::DenseLink *> open(const std::vector<int> &members,
                                    const std::string &purpose, bool) override {
    std::string name = purpose;
    int me = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      name += " " + std::to_string(members[i]);
      if (members[i] == rank())
        me = int(i);
    }
    std::lock_guard lock(mutex_);
    auto &link = links_[name];
    if (!link)
      link = std::make_unique<MirrorLink>(*device_, me, int(members.size()));
    return static_cast<runtime::DenseLink *>(link.get());
  }
  void abort(const Status &reason) override { ProcessWorld::abort(reason); }
  const std::atomic<bool> &aborted() const override {
    return ProcessWorld::aborted();
  }
  Status abortReason() const override { return ProcessWorld::abortReason(); }

private:
  std::shared_ptr<EmulatedDevice> device_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<MirrorLink>> links_;
};

} // namespace

Result<std::unique_ptr<runtime::World>>
openMirrorWorld(std::shared_ptr<EmulatedDevice> device,
                const runtime::LaunchIdentity &identity) {
  return std::unique_ptr<runtime::World>(std::make_unique<MirrorWorld>(
      std::move(device), identity.rank, identity.size));
}

} // namespace merak::cuda
