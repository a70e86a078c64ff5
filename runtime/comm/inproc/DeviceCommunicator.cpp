#include "runtime/comm/inproc/DeviceCommunicator.h"

#include "runtime/comm/inproc/InprocCollectives.h"
#include "runtime/comm/inproc/InprocGroup.h"
#include "runtime/comm/inproc/StridedOps.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace merak::runtime {
namespace {

// Events of an instruction; given back with it.
struct DeviceEndpoint : Endpoint {
  explicit DeviceEndpoint(Backend &backend) : backend(backend) {}
  ~DeviceEndpoint() override {
    for (EventHandle event : events)
      if (event)
        backend.destroyEvent(event);
  }
  Status makeEvents() {
    for (EventHandle &event : events) {
      auto made = backend.createEvent();
      if (!made)
        return made.status();
      event = *made;
    }
    return {};
  }

  Backend &backend;
  CommSpec spec;
  InprocGroup *group = nullptr;
  InprocChannel *channel = nullptr;
  int me = 0; // index in the group
  // One call of a collective can be ahead of another member's: two sets of
  // ready and left. Transfers use the first.
  EventHandle events[4] = {nullptr, nullptr, nullptr, nullptr};
};

class DeviceCommunicator : public Communicator {
public:
  DeviceCommunicator(InprocWorld &world, int rank, Backend &backend)
      : world_(world), rank_(rank), backend_(backend) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  void abort(const Status &reason) override { world_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return world_.aborted(); }
  Status abortReason() const override { return world_.abortReason(); }

  Result<std::unique_ptr<Endpoint>>
  prepare(CommSpec spec, std::span<const View> inputs,
          std::span<const View> outputs) override;
  Status run(const CommCall &call) override;

private:
  // One operand of a collective; the posts of all members.
  struct Meeting {
    DeviceEndpoint &endpoint;
    StreamHandle stream;
    std::vector<InprocGroup::Post> *posts;
    int parity;
    void *sum; // of an all-reduce, in the stream's workspace
  };
  Status collective(DeviceEndpoint &endpoint, const View &input,
                    const View &output, StreamHandle stream);
  Status meet(Meeting &meeting, const View &input, const View &output);
  Status leave(Meeting &meeting);
  Status exchange(const Meeting &meeting, const View &input,
                  const View &output);
  Status transfer(DeviceEndpoint &endpoint, const View &view,
                  StreamHandle stream);
  Status lost(const DeviceEndpoint &endpoint) const {
    return Status::error(fmt::format("waits for rank {}: {}",
                                     endpoint.group->missing(endpoint.me),
                                     abortCause()));
  }

  InprocWorld &world_;
  int rank_;
  Backend &backend_;
};

Result<std::unique_ptr<Endpoint>>
DeviceCommunicator::prepare(CommSpec spec, std::span<const View> inputs,
                            std::span<const View> outputs) {
  auto endpoint = std::make_unique<DeviceEndpoint>(backend_);
  if (spec.kind == CommSpec::Send || spec.kind == CommSpec::Recv) {
    const bool sends = spec.kind == CommSpec::Send;
    if ((sends ? inputs : outputs).size() != 1)
      return Status::error(fmt::format("{} takes one operand, found {}",
                                       commKindName(spec.kind),
                                       (sends ? inputs : outputs).size()));
    if (spec.peer < 0 || spec.peer >= size() || spec.peer == rank_)
      return Status::error(fmt::format("{} has rank {} as peer",
                                       commKindName(spec.kind), spec.peer));
    endpoint->channel = &world_.channel(
        sends ? rank_ : spec.peer, sends ? spec.peer : rank_, spec.channel);
  } else {
    const auto &members = spec.members;
    const auto self = std::find(members.begin(), members.end(), rank_);
    if (self == members.end())
      return Status::error(fmt::format("rank {} is not in the group {}", rank_,
                                       fmt::join(members, ",")));
    if (inputs.size() != outputs.size() || inputs.empty())
      return Status::error(fmt::format("{} has {} inputs and {} outputs",
                                       commKindName(spec.kind), inputs.size(),
                                       outputs.size()));
    int64_t bytes = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      MERAK_RETURN_IF_ERROR(checkCollective(spec, inputs[i], outputs[i]));
      bytes =
          std::max(bytes, inputs[i].elements() * dtypeSize(inputs[i].dtype));
    }
    if (spec.kind == CommSpec::AllReduce)
      endpoint->workspace = static_cast<uint64_t>(bytes);
    endpoint->group = &world_.group(members, spec.channel);
    endpoint->me = static_cast<int>(self - members.begin());
  }
  MERAK_RETURN_IF_ERROR(endpoint->makeEvents());
  endpoint->spec = std::move(spec);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Status DeviceCommunicator::run(const CommCall &call) {
  auto &endpoint = static_cast<DeviceEndpoint &>(*call.endpoint);
  if (endpoint.channel)
    return transfer(endpoint,
                    endpoint.spec.kind == CommSpec::Send ? call.inputs[0]
                                                         : call.outputs[0],
                    call.stream);
  for (size_t i = 0; i < call.inputs.size(); ++i)
    MERAK_RETURN_IF_ERROR(
        collective(endpoint, call.inputs[i], call.outputs[i], call.stream));
  return {};
}

Status DeviceCommunicator::meet(Meeting &meeting, const View &input,
                                const View &output) {
  DeviceEndpoint &endpoint = meeting.endpoint;
  InprocGroup &group = *endpoint.group;
  const CommSpec &spec = endpoint.spec;
  const uint64_t number = ++group.operands[endpoint.me];
  meeting.parity = static_cast<int>(number % 2);
  meeting.posts = &group.posted[meeting.parity];
  InprocGroup::Post &mine = (*meeting.posts)[endpoint.me];
  mine.kind = spec.kind;
  mine.maximum = spec.maximum;
  mine.dim = spec.dim;
  mine.dim2 = spec.dim2;
  mine.name = spec.name;
  mine.input = input;
  mine.output = output;
  mine.ready = endpoint.events[2 * meeting.parity];
  mine.left = endpoint.events[2 * meeting.parity + 1];
  MERAK_RETURN_IF_ERROR(backend_.recordEvent(mine.ready, meeting.stream));
  if (!group.barrier(endpoint.me, world_.aborted()))
    return lost(endpoint);
  for (size_t i = 0; i < meeting.posts->size(); ++i) {
    const InprocGroup::Post &other = (*meeting.posts)[i];
    if (other.kind != spec.kind || other.maximum != spec.maximum ||
        other.dim != spec.dim || other.dim2 != spec.dim2 ||
        other.input.dtype != input.dtype || other.input.shape != input.shape)
      return Status::error(fmt::format(
          "{} \"{}\" of {}x{} meets rank {} with {} \"{}\" of {}x{}",
          commKindName(spec.kind), spec.name, fmt::join(input.shape, "x"),
          dtypeName(input.dtype), group.members[i], commKindName(other.kind),
          other.name, fmt::join(other.input.shape, "x"),
          dtypeName(other.input.dtype)));
    if (static_cast<int>(i) != endpoint.me)
      MERAK_RETURN_IF_ERROR(backend_.waitEvent(meeting.stream, other.ready));
  }
  return {};
}

// Nobody's later work may change what another member still reads.
Status DeviceCommunicator::leave(Meeting &meeting) {
  DeviceEndpoint &endpoint = meeting.endpoint;
  MERAK_RETURN_IF_ERROR(
      backend_.recordEvent((*meeting.posts)[endpoint.me].left, meeting.stream));
  // A member that has left may post anew, but to the other set.
  if (!endpoint.group->barrier(endpoint.me, world_.aborted()))
    return lost(endpoint);
  for (size_t i = 0; i < meeting.posts->size(); ++i)
    if (static_cast<int>(i) != endpoint.me)
      MERAK_RETURN_IF_ERROR(
          backend_.waitEvent(meeting.stream, (*meeting.posts)[i].left));
  return {};
}

Status DeviceCommunicator::exchange(const Meeting &meeting, const View &input,
                                    const View &output) {
  const CommSpec &spec = meeting.endpoint.spec;
  const auto &posts = *meeting.posts;
  const int64_t members = static_cast<int64_t>(posts.size());
  const int me = meeting.endpoint.me;
  auto copy = [&](const View &from, const View &to) {
    return from.data == to.data && !spec.accumulate // in place: there already
               ? Status()
               : backend_.combine({&from, 1}, to, false, spec.accumulate,
                                  meeting.stream);
  };
  std::vector<View> inputs;
  switch (spec.kind) {
  case CommSpec::AllReduce:
    for (const InprocGroup::Post &post : posts)
      inputs.push_back(post.input);
    return backend_.combine(inputs, denseLike(input, meeting.sum), spec.maximum,
                            false, meeting.stream);
  case CommSpec::AllGather: {
    const int64_t size = input.shape[spec.dim];
    for (int64_t i = 0; i < members; ++i)
      MERAK_RETURN_IF_ERROR(
          copy(posts[i].input, sliceView(output, spec.dim, i * size, size)));
    return {};
  }
  case CommSpec::ReduceScatter: {
    const int64_t size = output.shape[spec.dim];
    for (const InprocGroup::Post &post : posts)
      inputs.push_back(sliceView(post.input, spec.dim, me * size, size));
    return backend_.combine(inputs, output, spec.maximum, spec.accumulate,
                            meeting.stream);
  }
  case CommSpec::AllToAll: {
    const int64_t from = input.shape[spec.dim] / members;
    const int64_t to = output.shape[spec.dim2] / members;
    for (int64_t i = 0; i < members; ++i)
      MERAK_RETURN_IF_ERROR(
          copy(sliceView(posts[i].input, spec.dim, me * from, from),
               sliceView(output, spec.dim2, i * to, to)));
    return {};
  }
  default: // broadcast
    return copy(posts[0].input, output);
  }
}

Status DeviceCommunicator::collective(DeviceEndpoint &endpoint,
                                      const View &input, const View &output,
                                      StreamHandle stream) {
  Meeting meeting{endpoint, stream, nullptr, 0, nullptr};
  if (endpoint.spec.kind == CommSpec::AllReduce) {
    auto memory = backend_.workspace(stream, endpoint.workspace);
    if (!memory)
      return memory.status();
    meeting.sum = *memory;
  }
  MERAK_RETURN_IF_ERROR(meet(meeting, input, output));
  MERAK_RETURN_IF_ERROR(exchange(meeting, input, output));
  MERAK_RETURN_IF_ERROR(leave(meeting));
  if (endpoint.spec.kind != CommSpec::AllReduce)
    return {};
  // Only now nobody reads an output that is an input as well.
  const View result = denseLike(input, meeting.sum);
  return backend_.combine({&result, 1}, output, false, endpoint.spec.accumulate,
                          stream);
}

// Whichever end comes second enqueues the copy; the first one's stream then
// waits for it.
Status DeviceCommunicator::transfer(DeviceEndpoint &endpoint, const View &view,
                                    StreamHandle stream) {
  InprocChannel &channel = *endpoint.channel;
  const bool sends = endpoint.spec.kind == CommSpec::Send;
  InprocChannel::End &mine = sends ? channel.sender : channel.receiver;
  InprocChannel::End &other = sends ? channel.receiver : channel.sender;
  const uint64_t target = ++mine.done;
  auto finished = [&] { return channel.transfers.load() >= target; };
  MERAK_RETURN_IF_ERROR(backend_.recordEvent(endpoint.events[0], stream));
  {
    std::lock_guard lock(channel.mutex);
    if (world_.aborted().load())
      return Status::error(fmt::format("waits for rank {}: {}",
                                       endpoint.spec.peer, abortCause()));
    if (other.view) {
      const View &from = sends ? view : *other.view;
      const View &to = sends ? *other.view : view;
      const bool adds = sends ? other.accumulate : endpoint.spec.accumulate;
      Status status;
      if (from.shape != to.shape || from.dtype != to.dtype)
        status = Status::error(
            fmt::format("\"{}\": the sender has {}x{}, the receiver {}x{}",
                        endpoint.spec.channel, fmt::join(from.shape, "x"),
                        dtypeName(from.dtype), fmt::join(to.shape, "x"),
                        dtypeName(to.dtype)));
      if (status.ok())
        status = backend_.waitEvent(stream, other.ready);
      if (status.ok())
        status = backend_.combine({&from, 1}, to, false, adds, stream);
      if (status.ok())
        status = backend_.recordEvent(endpoint.events[1], stream);
      channel.failure = status;
      channel.copied = endpoint.events[1];
      other.view = nullptr;
      channel.transfers.store(target);
    } else {
      mine.view = &view;
      mine.accumulate = endpoint.spec.accumulate;
      mine.ready = endpoint.events[0];
    }
  }
  if (finished()) {
    channel.gate.notify();
    return channel.failure;
  }
  if (channel.gate.wait(finished, world_.aborted())) {
    MERAK_RETURN_IF_ERROR(channel.failure);
    return backend_.waitEvent(stream, channel.copied);
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

std::unique_ptr<Communicator> deviceCommunicator(InprocWorld &world, int rank,
                                                 Backend &backend) {
  return std::make_unique<DeviceCommunicator>(world, rank, backend);
}

} // namespace merak::runtime
