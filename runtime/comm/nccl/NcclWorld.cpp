#include "runtime/comm/nccl/NcclWorld.h"

#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/comm/nccl/DenseCommunicator.h"
#include "runtime/comm/nccl/NcclApi.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

namespace merak::runtime {
namespace {

constexpr double kOpenSeconds = 120;       // for all members to come
constexpr uint64_t kBufferBytes = 4 << 20; // NCCL_BUFFSIZE if it is not set
// Thread blocks of a kernel: what suffices for a transfer between neighbours or
// a few bytes, and the most that NCCL takes by itself.
constexpr int kNarrowBlocks = 2, kMostBlocks = 32;
constexpr auto kPoll = std::chrono::milliseconds(50);
constexpr auto kAbortPatience = std::chrono::seconds(5);

// What NCCL sums and compares; the rest is an error. The maximum of booleans is
// their "or".
Result<ncclDataType_t> numberType(planpb::DType type) {
  switch (type) {
  case planpb::F32:
    return ncclFloat32;
  case planpb::F64:
    return ncclFloat64;
  case planpb::BF16:
    return ncclBfloat16;
  case planpb::F16:
    return ncclFloat16;
  case planpb::I64:
    return ncclInt64;
  case planpb::U64:
    return ncclUint64;
  case planpb::I32:
    return ncclInt32;
  case planpb::U32:
    return ncclUint32;
  case planpb::I8:
    return ncclInt8;
  case planpb::U8:
  case planpb::BOOL:
    return ncclUint8;
  default:
    return Status::error(
        fmt::format("NCCL has no arithmetic on {}", dtypeName(type)));
  }
}

// Of what is only moved, NCCL needs to know the bytes.
size_t bytesOf(int64_t count, planpb::DType type) {
  return static_cast<size_t>(count * dtypeSize(type));
}

cudaStream_t native(StreamHandle stream) {
  return static_cast<cudaStream_t>(cuda::CudaBackend::native(stream));
}

class NcclWorld;

class NcclLink : public DenseLink {
public:
  NcclLink(NcclWorld &world, std::string name)
      : world_(world), name_(std::move(name)) {}
  ~NcclLink() override;
  // `blocks`: the most of a kernel; 0: as NCCL chooses.
  Status init(const ncclUniqueId &id, int members, int me, int blocks);
  // From the watcher's thread: what NCCL noticed since.
  Status error();
  // Asks for the end of everything that runs, and returns at once. NCCL frees
  // the communicator when no kernel and no graph of it is left, and what frees
  // memory may wait for all kernels of the device: each link has a thread of
  // its own for that.
  void abort();
  bool isAborting() const { return aborting_ && !aborting_->load(); }
  // Tells the communicator of memory that its operations find operands in, and
  // that they do no longer.
  Status add(void *memory, uint64_t bytes);
  void remove(void *memory);

  Status begin() override;
  Status end() override;
  Status allReduce(const void *in, void *out, int64_t count, planpb::DType type,
                   bool maximum, StreamHandle stream) override;
  Status allGather(const void *in, void *out, int64_t count, planpb::DType type,
                   StreamHandle stream) override;
  Status reduceScatter(const void *in, void *out, int64_t count,
                       planpb::DType type, bool maximum,
                       StreamHandle stream) override;
  Status broadcast(const void *in, void *out, int64_t count, planpb::DType type,
                   StreamHandle stream) override;
  Status send(const void *in, int64_t count, planpb::DType type, int peer,
              StreamHandle stream) override;
  Status receive(void *out, int64_t count, planpb::DType type, int peer,
                 StreamHandle stream) override;

private:
  Status settle(const char *what);
  NcclWorld &world_;
  std::string name_;
  std::mutex mutex_; // of comm_ against the watcher
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> ready_{false};
  std::map<void *, void *> handles_;            // of memory that it was told of
  std::shared_ptr<std::atomic<bool>> aborting_; // set when it is done
};

class NcclWorld : public ProcessWorld, public DenseLinks, private MemorySource {
public:
  NcclWorld(std::unique_ptr<Store> store, std::shared_ptr<const NcclApi> api)
      : ProcessWorld(std::move(store)), api_(std::move(api)),
        watcher_([this] { watch(); }) {}
  ~NcclWorld() override {
    stop_ = true;
    watcher_.join();
    if (aborted())
      for (auto &[name, link] : links_)
        link->abort();
    // What does not end in time ends with the process.
    const auto until = std::chrono::steady_clock::now() + kAbortPatience;
    for (auto &[name, link] : links_)
      while (link->isAborting() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    links_.clear();
  }
  const std::shared_ptr<const NcclApi> &sharedApi() const { return api_; }
  const NcclApi &api() const { return *api_; }

  Result<std::unique_ptr<Communicator>>
  communicator(int, Backend &backend) override {
    auto *cuda = dynamic_cast<cuda::CudaBackend *>(&backend);
    if (!cuda)
      return Status::error(
          fmt::format("NCCL communicates memory of GPUs, the backend is {}",
                      backend.name()));
    device_ = cuda->device();
    return denseCommunicator(*this, backend, sessions_++);
  }

  // NCCL's own memory, of which all communicators are told: they send from
  // where operands lie, to where they are wanted, instead of through buffers of
  // their own, where links and switches can do that.
  MemorySource *memory() override {
    const char *text = std::getenv("NCCL_LOCAL_REGISTER");
    return text && std::strcmp(text, "0") == 0 ? nullptr : this;
  }

  int rank() const override { return store_->rank(); }
  int size() const override { return store_->size(); }
  void abort(const Status &reason) override { ProcessWorld::abort(reason); }
  const std::atomic<bool> &aborted() const override {
    return ProcessWorld::aborted();
  }
  Status abortReason() const override { return ProcessWorld::abortReason(); }
  // One buffer; more with more channels and links, which NCCL decides.
  uint64_t linkBytes() const override {
    const char *text = std::getenv("NCCL_BUFFSIZE");
    const uint64_t bytes = text ? std::strtoull(text, nullptr, 10) : 0;
    return bytes ? bytes : kBufferBytes;
  }

  // A kernel of NCCL stays on its multiprocessors until the other members have
  // come with theirs, which may wait behind kernels of other communicators.
  // Each has one at a time, since it has one stream: where those of all of them
  // fit beside each other, and something else besides, none waits for ever, in
  // whatever order they start. Those of a plan that the run leaves run no
  // more when those of the next one do.
  Status expect(int narrow, int wide) override {
    auto all = store_->gather("nccl communicators",
                              fmt::format("{} {}", narrow, wide), kOpenSeconds);
    if (!all)
      return all.status();
    for (const std::string &text : *all) { // every rank takes the same shares
      int theirNarrow = 0, theirWide = 0;
      std::sscanf(text.c_str(), "%d %d", &theirNarrow, &theirWide);
      narrow = std::max(narrow, theirNarrow);
      wide = std::max(wide, theirWide);
    }
    const int processors = device_->info().processors;
    const int left = processors - processors / 8 - kNarrowBlocks * narrow;
    narrowBlocks_ = kNarrowBlocks;
    wideBlocks_ = std::clamp(left / std::max(1, wide), 1, kMostBlocks);
    if (narrowBlocks_ * narrow + wideBlocks_ * wide < processors)
      return {};
    return Status::error(
        fmt::format("the kernels of {} communicators are more than fit on {} "
                    "multiprocessors at once",
                    narrow + wide, processors));
  }

  Result<DenseLink *> open(const std::vector<int> &members,
                           const std::string &purpose, bool narrow) override {
    // NCCL uses the device of the calling thread, and lanes are threads.
    MERAK_RETURN_IF_ERROR(device_->freeBytes().status());
    const std::string name =
        fmt::format("nccl {} {}", fmt::join(members, ","), purpose);
    NcclLink *link = nullptr;
    std::map<void *, uint64_t> memory;
    {
      std::lock_guard lock(mutex_);
      memory = memory_;
      auto &slot = links_[name];
      if (slot)
        return static_cast<DenseLink *>(slot.get());
      slot = std::make_unique<NcclLink>(*this, name);
      link = slot.get();
    }
    // The first member makes the number by which the others find it.
    ncclUniqueId id;
    std::string bytes(sizeof(id.internal), 0);
    if (members.front() == rank()) {
      MERAK_RETURN_IF_ERROR(
          api_->check(api_->GetUniqueId(&id), "ncclGetUniqueId"));
      std::memcpy(bytes.data(), id.internal, bytes.size());
      MERAK_RETURN_IF_ERROR(store_->put(name, bytes));
    } else {
      auto found = store_->get(name, kOpenSeconds);
      if (!found)
        return found.status();
      if (found->size() != bytes.size())
        return Status::error(fmt::format("rank {} runs another version of NCCL",
                                         members.front()));
      std::memcpy(id.internal, found->data(), bytes.size());
    }
    int me = 0;
    while (members[size_t(me)] != rank())
      ++me;
    MERAK_RETURN_IF_ERROR(link->init(id, static_cast<int>(members.size()), me,
                                     narrow ? narrowBlocks_ : wideBlocks_));
    for (const auto &[begin, size] : memory)
      MERAK_RETURN_IF_ERROR(link->add(begin, size));
    return static_cast<DenseLink *>(link);
  }

  // Of a plan that the run has left. What an abort is to end stays.
  void close(DenseLink *link) override {
    std::unique_ptr<NcclLink> ended; // behind the lock: it may take a while
    if (aborted() || !device_->freeBytes().ok())
      return;
    std::lock_guard lock(mutex_);
    for (auto found = links_.begin(); found != links_.end(); ++found)
      if (found->second.get() == link) {
        ended = std::move(found->second);
        links_.erase(found);
        return;
      }
  }

private:
  Result<void *> allocate(uint64_t bytes) override {
    MERAK_RETURN_IF_ERROR(device_->freeBytes().status());
    void *memory = nullptr;
    MERAK_RETURN_IF_ERROR(
        api_->check(api_->MemAlloc(&memory, std::max<uint64_t>(bytes, 1)),
                    fmt::format("cannot allocate {} bytes for NCCL on {}",
                                bytes, device_->info().name)
                        .c_str()));
    Status status = device_->clear(memory, bytes, nullptr);
    if (status.ok())
      status = device_->synchronize(nullptr);
    {
      std::lock_guard lock(mutex_);
      memory_[memory] = bytes;
      for (auto &[name, link] : links_)
        if (status.ok())
          status = link->add(memory, bytes);
    }
    if (status.ok())
      return memory;
    release(memory);
    return status;
  }

  // What kernels of an aborted run still read ends with the process: unmapping
  // it does not wait for them.
  void release(void *memory) override {
    {
      std::lock_guard lock(mutex_);
      memory_.erase(memory);
      for (auto &[name, link] : links_)
        link->remove(memory);
    }
    if (!aborted() && device_->freeBytes().ok())
      api_->MemFree(memory);
  }

  void watch() {
    while (!stop_) {
      std::this_thread::sleep_for(kPoll);
      std::lock_guard lock(mutex_);
      for (auto &[name, link] : links_) {
        if (aborted())
          link->abort();
        else if (Status status = link->error(); !status.ok())
          abort(status);
      }
    }
  }

  std::shared_ptr<const NcclApi> api_;
  std::shared_ptr<cuda::Device> device_; // outlives the communicators
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<NcclLink>> links_;
  std::map<void *, uint64_t> memory_;     // bytes
  int sessions_ = 0;                      // communicators of this rank
  int narrowBlocks_ = 0, wideBlocks_ = 0; // of a kernel; 0: not known
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

NcclLink::~NcclLink() {
  while (!handles_.empty())
    remove(handles_.begin()->first);
  if (comm_)
    world_.api().CommDestroy(comm_);
}

Status NcclLink::add(void *memory, uint64_t bytes) {
  if (!ready_ || bytes == 0)
    return {};
  {
    std::lock_guard lock(mutex_);
    if (comm_)
      MERAK_RETURN_IF_ERROR(world_.api().check(
          world_.api().CommRegister(comm_, memory, bytes, &handles_[memory]),
          "ncclCommRegister"));
  }
  return settle("ncclCommRegister");
}

void NcclLink::remove(void *memory) {
  std::lock_guard lock(mutex_);
  auto found = handles_.find(memory);
  if (found == handles_.end())
    return;
  if (comm_ && found->second)
    world_.api().CommDeregister(comm_, found->second);
  handles_.erase(found);
}

// Communicators do not block: a call that has to wait for others says that it
// is in progress, and an abort ends the wait.
Status NcclLink::init(const ncclUniqueId &id, int members, int me, int blocks) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (blocks > 0)
    config.maxCTAs = blocks;
  const NcclApi &api = world_.api();
  {
    std::lock_guard lock(mutex_);
    MERAK_RETURN_IF_ERROR(
        api.check(api.CommInitRankConfig(&comm_, members, id, me, &config),
                  "ncclCommInitRank"));
  }
  Status status = settle("ncclCommInitRank");
  ready_ = status.ok();
  return status;
}

Status NcclLink::settle(const char *what) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (!comm_)
        break;
      ncclResult_t state = ncclSuccess;
      const NcclApi &api = world_.api();
      MERAK_RETURN_IF_ERROR(
          api.check(api.CommGetAsyncError(comm_, &state), what));
      MERAK_RETURN_IF_ERROR(api.check(state, what));
      if (state == ncclSuccess)
        return {};
    }
    if (world_.aborted())
      break;
    std::this_thread::yield();
  }
  const Status reason = world_.abortReason();
  return Status::error(fmt::format(
      "{}: {}", what, reason.ok() ? "aborted" : reason.messages().front()));
}

Status NcclLink::error() {
  std::lock_guard lock(mutex_);
  ncclResult_t state = ncclSuccess;
  if (!comm_ || !ready_)
    return {};
  world_.api().CommGetAsyncError(comm_, &state);
  return world_.api().check(state, name_.c_str());
}

void NcclLink::abort() {
  std::lock_guard lock(mutex_);
  if (!comm_)
    return;
  aborting_ = std::make_shared<std::atomic<bool>>(false);
  std::thread([api = world_.sharedApi(), comm = comm_, done = aborting_] {
    api->CommAbort(comm);
    done->store(true);
  }).detach();
  comm_ = nullptr;
}

// The watcher must not take the communicator away inside of a group.
Status NcclLink::begin() {
  mutex_.lock();
  if (comm_) {
    Status status =
        world_.api().check(world_.api().GroupStart(), "ncclGroupStart");
    if (!status.ok())
      mutex_.unlock();
    return status;
  }
  mutex_.unlock();
  const Status reason = world_.abortReason();
  return Status::error("stopped: " +
                       (reason.ok() ? name_ : reason.messages().front()));
}

Status NcclLink::end() {
  const Status status =
      world_.api().check(world_.api().GroupEnd(), "ncclGroupEnd");
  mutex_.unlock();
  MERAK_RETURN_IF_ERROR(status);
  return settle("ncclGroupEnd");
}

Status NcclLink::allReduce(const void *in, void *out, int64_t count,
                           planpb::DType type, bool maximum,
                           StreamHandle stream) {
  auto number = numberType(type);
  if (!number)
    return number.status();
  return world_.api().check(world_.api().AllReduce(in, out, size_t(count),
                                                   *number,
                                                   maximum ? ncclMax : ncclSum,
                                                   comm_, native(stream)),
                            "ncclAllReduce");
}

Status NcclLink::allGather(const void *in, void *out, int64_t count,
                           planpb::DType type, StreamHandle stream) {
  return world_.api().check(
      world_.api().AllGather(in, out, bytesOf(count, type), ncclUint8, comm_,
                             native(stream)),
      "ncclAllGather");
}

Status NcclLink::reduceScatter(const void *in, void *out, int64_t count,
                               planpb::DType type, bool maximum,
                               StreamHandle stream) {
  auto number = numberType(type);
  if (!number)
    return number.status();
  return world_.api().check(
      world_.api().ReduceScatter(in, out, size_t(count), *number,
                                 maximum ? ncclMax : ncclSum, comm_,
                                 native(stream)),
      "ncclReduceScatter");
}

Status NcclLink::broadcast(const void *in, void *out, int64_t count,
                           planpb::DType type, StreamHandle stream) {
  return world_.api().check(
      world_.api().Broadcast(in, out, bytesOf(count, type), ncclUint8, 0, comm_,
                             native(stream)),
      "ncclBroadcast");
}

Status NcclLink::send(const void *in, int64_t count, planpb::DType type,
                      int peer, StreamHandle stream) {
  return world_.api().check(world_.api().Send(in, bytesOf(count, type),
                                              ncclUint8, peer, comm_,
                                              native(stream)),
                            "ncclSend");
}

Status NcclLink::receive(void *out, int64_t count, planpb::DType type, int peer,
                         StreamHandle stream) {
  return world_.api().check(world_.api().Recv(out, bytesOf(count, type),
                                              ncclUint8, peer, comm_,
                                              native(stream)),
                            "ncclRecv");
}

} // namespace

Result<std::unique_ptr<World>> openNcclWorld(std::unique_ptr<Store> store) {
  // Steps are captured (runtime/core/StepGraph.h), each rank in an order of its
  // own: registering buffers then would wait for the other ranks.
  setenv("NCCL_GRAPH_REGISTER", "0", /*replace=*/0);
  // With it a kernel waits for the start of the one launched before, whatever
  // their communicators. Lanes are threads that launch in an order of their own
  // on each rank: those that wait for each other across ranks wait for ever.
  const char *order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (order && std::strcmp(order, "0") != 0)
    return Status::error(
        fmt::format("NCCL_LAUNCH_ORDER_IMPLICIT is {}, but ranks launch in "
                    "different orders: unset it",
                    order));
  auto api = std::make_shared<NcclApi>();
  MERAK_RETURN_IF_ERROR(api->open());
  return std::unique_ptr<World>(
      std::make_unique<NcclWorld>(std::move(store), std::move(api)));
}

} // namespace merak::runtime
