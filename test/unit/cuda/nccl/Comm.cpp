#include "test/unit/cuda/nccl/Comm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace merak::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// A fault that is planted: MERAK_NCCL_FAULT.
bool isPlanted(const char *kind, int communicator, int64_t operation) {
  const char *text = std::getenv("MERAK_NCCL_FAULT");
  return text && text == std::string(kind) + ":" +
                             std::to_string(communicator) + "." +
                             std::to_string(operation);
}

int variable(const char *name, int otherwise) {
  const char *text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

// Whether this process comes now to where members join, counted from its first
// question.
bool isLate() {
  static const Clock::time_point first = Clock::now();
  static const auto late = std::chrono::seconds(variable("MERAK_NCCL_LATE", 0));
  return Clock::now() < first + late;
}

} // namespace

bool Comm::open() {
  if (isLate())
    return false;
  region->slot(me).blocks = blocks;
  region->slot(me).members = members;
  for (int i = 0; i < members; ++i) {
    const int theirs = region->slot(i).members;
    if (theirs == 0)
      return false;
    if (theirs != members) {
      misused("member " + std::to_string(i) + " opens a communicator of " +
              std::to_string(theirs) + ", member " + std::to_string(me) +
              " one of " + std::to_string(members));
      return false;
    }
    if (region->slot(i).blocks != blocks) {
      misused("members of a communicator take " +
              std::to_string(region->slot(i).blocks) + " and " +
              std::to_string(blocks) + " thread blocks");
      return false;
    }
  }
  return true;
}

ncclResult_t Comm::poll(const std::shared_ptr<Comm> &self) {
  std::lock_guard lock(mutex_);
  if (stopped() || state_ != ncclInProgress)
    return state_;
  if (!open_) {
    open_ = open();
    if (open_)
      state_ = ncclSuccess;
  } else if (--polls_ <= 0 && !(meeting_ = meets_ && !allAsked())) {
    state_ = ncclSuccess;
    if (const ncclResult_t result = enqueue(self, std::move(asked_));
        result != ncclSuccess)
      fail(result);
  }
  return state_;
}

bool Comm::allAsked() const {
  for (int i = 0; i < members; ++i)
    if (region->slot(i).asked < region->slot(me).asked)
      return false;
  return true;
}

ncclResult_t Comm::misused(const std::string &why) {
  complain(why);
  fail(ncclInvalidUsage);
  return ncclInvalidUsage;
}

ncclResult_t Comm::launch(const std::shared_ptr<Comm> &self,
                          std::vector<Call> calls, void *stream) {
  std::lock_guard lock(mutex_);
  if (stopped())
    return state_;
  if (!open_)
    return misused("a communicator that is not open yet");
  if (state_ == ncclInProgress)
    return misused("a communicator whose last call is in progress");
  if (stream_ && stream != stream_)
    return misused("a communicator that another stream uses");
  stream_ = stream;
  if (!device()->isUrgent(stream))
    return misused("a communicator on a stream that computes");
  if (counts().blocks > device()->processors())
    return misused(std::to_string(counts().blocks) +
                   " thread blocks of all communicators on " +
                   std::to_string(device()->processors()) + " multiprocessors");
  if (calls.size() > kMostCalls)
    return misused("more calls in a group than the stand-in takes");
  size_t bytes = 0;
  for (const Call &call : calls)
    bytes += call.record.count * sizeOf(call.record.type) *
             (call.record.kind == CallRecord::ReduceScatter ? members : 1);
  if (bytes > kSlotBytes)
    return misused("more bytes in a group than the stand-in takes");
  counts().used += !used_;
  used_ = true;
  if (waits)
    return enqueue(self, std::move(calls));
  // What does not block is launched by a thread of NCCL, some time later.
  // NCCL may compare where registered operands lie on all members.
  meets_ = std::any_of(calls.begin(), calls.end(),
                       [](const Call &call) { return call.known; });
  region->slot(me).asked += meets_;
  asked_ = std::move(calls);
  polls_ = 3;
  state_ = ncclInProgress;
  return ncclInProgress;
}

ncclResult_t Comm::enqueue(const std::shared_ptr<Comm> &self,
                           std::vector<Call> calls) {
  const int64_t operation = launched_++;
  ++counts().operations;
  if (isPlanted("count", number, operation))
    --calls.front().record.count;
  if (isPlanted("swap", number, operation)) {
    held_ = std::move(calls);
    return ncclSuccess;
  }
  std::vector<std::vector<Call>> groups{std::move(calls)};
  if (!held_.empty())
    groups.push_back(std::exchange(held_, {}));
  for (std::vector<Call> &group : groups) {
    const auto work = std::make_shared<Operation>(
        self, std::move(group), isPlanted("async", number, operation));
    if (std::string problem =
            device()->enqueue(stream_, {[work] { return work->ready(); },
                                        [work] { return work->run(); }});
        !problem.empty()) {
      complain(problem);
      return ncclUnhandledCudaError;
    }
  }
  return ncclSuccess;
}

void Comm::abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    asked_.clear();
    held_.clear();
    forget();
  }
  while (operations > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ++counts().aborted;
}

std::string Comm::end() {
  std::lock_guard lock(mutex_);
  const bool held = operations > 0, knew = !known_.empty();
  forget();
  aborted_ = true;
  ++counts().ended;
  if (held)
    return "a communicator ends that streams or graphs hold operations of";
  if (state_ == ncclInProgress)
    return "a communicator ends while a call is in progress";
  if (knew)
    return "a communicator ends that still knows memory";
  return "";
}

} // namespace merak::cuda
