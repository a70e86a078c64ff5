#include "runtime/comm/inproc/InprocCommunicator.h"

#include "runtime/comm/inproc/DeviceCommunicator.h"
#include "runtime/comm/inproc/InprocCollectives.h"
#include "runtime/comm/inproc/InprocGroup.h"
#include "runtime/comm/inproc/StridedOps.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace merak::runtime {

const char *commKindName(CommSpec::Kind kind) {
  switch (kind) {
  case CommSpec::AllReduce:
    return "all_reduce";
  case CommSpec::AllGather:
    return "all_gather";
  case CommSpec::ReduceScatter:
    return "reduce_scatter";
  case CommSpec::AllToAll:
    return "all_to_all";
  case CommSpec::Broadcast:
    return "broadcast";
  case CommSpec::Send:
    return "send";
  case CommSpec::Recv:
    return "recv";
  }
  return "";
}

std::string InprocGroup::missing(int me) const {
  std::vector<int> late;
  for (size_t i = 0; i < members.size(); ++i)
    if (arrived[i].load() < arrived[me].load())
      late.push_back(members[i]);
  return fmt::format("{}", fmt::join(late, ","));
}

InprocWorld::InprocWorld(int size, std::unique_ptr<LinkEmulation> links)
    : size_(size), ranks_(size_t(size)), links_(std::move(links)) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}
InprocWorld::~InprocWorld() = default;

void InprocWorld::abort(const Status &reason) {
  std::lock_guard lock(mutex_);
  if (reason_.ok())
    reason_ = reason;
  aborted_ = true;
}

Status InprocWorld::abortReason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

InprocGroup &InprocWorld::group(const std::vector<int> &members,
                                const std::string &channel) {
  std::lock_guard lock(mutex_);
  auto &slot = groups_[{members, channel}];
  if (!slot)
    slot = std::make_unique<InprocGroup>(members);
  return *slot;
}

InprocChannel &InprocWorld::channel(int from, int to, const std::string &name) {
  std::lock_guard lock(mutex_);
  auto &slot = channels_[{from, to, name}];
  if (!slot)
    slot = std::make_unique<InprocChannel>();
  return *slot;
}

namespace {

struct CollectiveEndpoint : Endpoint {
  CommSpec spec;
  InprocGroup *group = nullptr;
  int me = 0; // index in the group
  std::vector<char> scratch;
};
struct TransferEndpoint : Endpoint {
  CommSpec spec;
  InprocChannel *channel = nullptr;
};

class InprocCommunicator : public Communicator {
public:
  InprocCommunicator(InprocWorld &world, int rank)
      : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  Result<std::unique_ptr<Endpoint>>
  prepare(CommSpec spec, std::span<const View> inputs,
          std::span<const View> outputs) override;
  Status run(const CommCall &call) override;
  void abort(const Status &reason) override { world_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return world_.aborted(); }
  Status abortReason() const override { return world_.abortReason(); }

private:
  Status collective(CollectiveEndpoint &endpoint, const View &input,
                    const View &output, bool last);
  // Until the links have carried what was communicated.
  void linger(double end);
  Status transfer(TransferEndpoint &endpoint, const View &view);

  InprocWorld &world_;
  int rank_;
};

Result<std::unique_ptr<Endpoint>>
InprocCommunicator::prepare(CommSpec spec, std::span<const View> inputs,
                            std::span<const View> outputs) {
  auto me = checkSpec(spec, rank_, size(), inputs, outputs);
  if (!me)
    return me.status();
  if (spec.kind == CommSpec::Send || spec.kind == CommSpec::Recv) {
    const bool sends = spec.kind == CommSpec::Send;
    auto endpoint = std::make_unique<TransferEndpoint>();
    endpoint->channel = &world_.channel(
        sends ? rank_ : spec.peer, sends ? spec.peer : rank_, spec.channel);
    endpoint->spec = std::move(spec);
    return std::unique_ptr<Endpoint>(std::move(endpoint));
  }
  auto endpoint = std::make_unique<CollectiveEndpoint>();
  endpoint->group = &world_.group(spec.members, spec.channel);
  endpoint->me = *me;
  endpoint->spec = std::move(spec);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Status InprocCommunicator::run(const CommCall &call) {
  if (auto *transferring = dynamic_cast<TransferEndpoint *>(call.endpoint))
    return transfer(*transferring, transferring->spec.kind == CommSpec::Send
                                       ? call.inputs[0]
                                       : call.outputs[0]);
  auto &endpoint = static_cast<CollectiveEndpoint &>(*call.endpoint);
  for (size_t i = 0; i < call.inputs.size(); ++i)
    MERAK_RETURN_IF_ERROR(collective(endpoint, call.inputs[i], call.outputs[i],
                                     i + 1 == call.inputs.size()));
  return {};
}

Status InprocCommunicator::collective(CollectiveEndpoint &endpoint,
                                      const View &input, const View &output,
                                      bool last) {
  CollectiveRun run{.spec = endpoint.spec,
                    .group = *endpoint.group,
                    .me = endpoint.me,
                    .abort = world_.aborted(),
                    .input = input,
                    .output = output,
                    .scratch = endpoint.scratch,
                    .links = world_.links(),
                    .lastOperand = last,
                    .end = 0,
                    .failure = {}};
  if (runCollective(run)) {
    if (last)
      linger(run.end);
    return {};
  }
  if (!run.failure.ok())
    return run.failure;
  return Status::error(fmt::format("waits for rank {}: {}",
                                   endpoint.group->missing(endpoint.me),
                                   abortCause()));
}

void InprocCommunicator::linger(double end) {
  if (world_.links())
    world_.links()->sleepUntil(end, world_.aborted());
}

Status InprocCommunicator::transfer(TransferEndpoint &endpoint,
                                    const View &view) {
  InprocChannel &channel = *endpoint.channel;
  const bool sends = endpoint.spec.kind == CommSpec::Send;
  InprocChannel::End &mine = sends ? channel.sender : channel.receiver;
  InprocChannel::End &other = sends ? channel.receiver : channel.sender;
  const uint64_t target = ++mine.done;
  auto finished = [&] { return channel.transfers.load() >= target; };
  {
    std::lock_guard lock(channel.mutex);
    if (world_.aborted().load())
      return Status::error(fmt::format("waits for rank {}: {}",
                                       endpoint.spec.peer, abortCause()));
    if (other.view) {
      if (LinkEmulation *links = world_.links())
        channel.end = links->transfer(
            sends ? rank_ : endpoint.spec.peer,
            sends ? endpoint.spec.peer : rank_,
            double(view.elements() * dtypeSize(view.dtype)), links->now());
      const View &from = sends ? view : *other.view;
      const View &to = sends ? *other.view : view;
      if (from.shape != to.shape || from.dtype != to.dtype)
        channel.failure = Status::error(
            fmt::format("\"{}\": the sender has {}x{}, the receiver {}x{}",
                        endpoint.spec.channel, fmt::join(from.shape, "x"),
                        dtypeName(from.dtype), fmt::join(to.shape, "x"),
                        dtypeName(to.dtype)));
      else
        copyViews(from, to,
                  sends ? other.accumulate : endpoint.spec.accumulate);
      other.view = nullptr;
      channel.transfers.store(target);
    } else {
      mine.view = &view;
      mine.accumulate = endpoint.spec.accumulate;
    }
  }
  if (finished()) {
    channel.gate.notify();
    linger(channel.end);
    return channel.failure;
  }
  if (channel.gate.wait(finished, world_.aborted())) {
    linger(channel.end);
    return channel.failure;
  }
  // Nobody may copy from or to our buffer once we have left.
  std::lock_guard lock(channel.mutex);
  if (finished())
    return channel.failure;
  mine.view = nullptr;
  return Status::error(
      fmt::format("waits for rank {}: {}", endpoint.spec.peer, abortCause()));
}

} // namespace

std::unique_ptr<Communicator> InprocWorld::communicator(int rank) {
  return std::make_unique<InprocCommunicator>(*this, rank);
}

Result<std::unique_ptr<Communicator>>
InprocWorld::communicator(int rank, Backend &backend) {
  if (backend.isHost())
    return communicator(rank);
  if (links_)
    return Status::error(
        "links are emulated between ranks in host memory only");
  return deviceCommunicator(*this, rank, backend);
}

} // namespace merak::runtime
