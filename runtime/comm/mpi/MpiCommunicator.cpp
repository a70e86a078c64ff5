#include "runtime/comm/mpi/MpiCommunicator.h"

#include "runtime/comm/inproc/InprocCollectives.h"
#include "runtime/comm/inproc/StridedOps.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace merak::runtime {
namespace {

int64_t bytesOf(const View &view) {
  return view.elements() * dtypeSize(view.dtype);
}

// Over TCP MPI libraries ask the receiver before they send more, 64 KiB with
// their header, and the answer comes behind all that is on its way: a round
// trip through full queues for each message of an all-to-all. Of longer pieces
// others are sent meanwhile.
constexpr int64_t kSentAtOnce = (64 << 10) - 256, kMostPieces = 64;

// What is prepared for one instruction: a tag and memory for packed operands.
struct MpiEndpoint : Endpoint {
  CommSpec spec;
  int me = 0; // index in the group
  int tag = 0;
  std::vector<char> packed, received;
  std::shared_ptr<MpiEngine::Batch> open; // what may be under way
};

// One operand of a collective, or a transfer.
class Exchange {
public:
  Exchange(MpiEndpoint &endpoint, MpiEngine &engine, const View &input,
           const View &output)
      : endpoint_(endpoint), spec_(endpoint.spec), engine_(engine),
        input_(input), output_(output), members_(int(spec_.members.size())) {}

  Status collective() {
    switch (spec_.kind) {
    case CommSpec::AllReduce:
      if (isOneRound(bytesOf(input_), members_))
        return allReduceSmall();
      return allReduceLarge();
    case CommSpec::AllGather:
      return allGather();
    case CommSpec::ReduceScatter:
      return reduceScatter();
    case CommSpec::AllToAll:
      return allToAll();
    default:
      return broadcast();
    }
  }
  // Where a receiver is asked before a message is sent, two of a stream hide
  // each other's answers; more than two would overtake what else leaves the
  // host.
  Status send(MpiEndpoint *before, bool staysOpen) {
    const View dense = pack(input_);
    post(true, spec_.peer, dense.data, bytesOf(dense));
    endpoint_.open = engine_.begin(messages_);
    messages_.clear();
    if (before)
      MERAK_RETURN_IF_ERROR(engine_.wait(std::exchange(before->open, nullptr)));
    return staysOpen ? Status()
                     : engine_.wait(std::exchange(endpoint_.open, nullptr));
  }
  // Begins unless it has begun.
  void expect() {
    if (endpoint_.open)
      return;
    const View target = landing();
    post(false, spec_.peer, target.data, bytesOf(target));
    endpoint_.open = engine_.begin(messages_);
    messages_.clear();
  }
  Status receive() {
    MERAK_RETURN_IF_ERROR(engine_.wait(std::exchange(endpoint_.open, nullptr)));
    if (!isDirect())
      copyViews(landing(), output_, spec_.accumulate);
    return {};
  }

private:
  // Where a message arrives.
  bool isDirect() const { return output_.dense() && !spec_.accumulate; }
  View landing() {
    if (isDirect())
      return output_;
    endpoint_.received.resize(size_t(bytesOf(output_)));
    return denseLike(output_, endpoint_.received.data());
  }
  void post(bool send, int peer, void *data, int64_t bytes) {
    MpiMessage message{send, peer, endpoint_.tag, static_cast<char *>(data),
                       bytes};
    message.trims = spec_.trims;
    // All members of a collective come for their messages; who sends to
    // another stage may be far ahead of it.
    if (spec_.kind != CommSpec::Send && spec_.kind != CommSpec::Recv)
      message.longest =
          std::clamp(bytes / kMostPieces, kSentAtOnce, kLongestPiece);
    if (spec_.trims && send)
      message.live = liveBytes(message.data, bytes);
    messages_.push_back(message);
  }
  Status flush() {
    Status status = engine_.run(messages_);
    messages_.clear();
    return status;
  }
  // The view as dense memory; `position` in the endpoint's packed memory, which
  // must be large enough, is used if the view has gaps.
  View pack(const View &view) {
    if (view.dense())
      return view;
    endpoint_.packed.resize(size_t(bytesOf(view)));
    return packAt(view, 0);
  }
  View packAt(const View &view, int64_t position) {
    const View dense = denseLike(view, endpoint_.packed.data() + position);
    copyViews(view, dense, false);
    return dense;
  }
  // Room for what the others send: one dense tensor of the shape for each.
  std::vector<View> roomForAll(const View &like) {
    const int64_t bytes = bytesOf(like);
    endpoint_.received.resize(size_t(bytes * members_));
    std::vector<View> room;
    for (int i = 0; i < members_; ++i)
      room.push_back(denseLike(like, endpoint_.received.data() + i * bytes));
    return room;
  }

  // post(to, from) for all other members: in each turn every member sends to
  // one and receives from one, so that no two messages of it share a link.
  template <typename Post> Status inTurns(const Post &postBoth) {
    for (int turn = 1; turn < members_; ++turn)
      postBoth((endpoint_.me + turn) % members_,
               (endpoint_.me + members_ - turn) % members_);
    return flush();
  }

  // Sends slices[i] to member i and receives member i's tensor, of the shape
  // `like`; own[me] is not sent. All go at once.
  Result<std::vector<View>> exchange(const std::vector<View> &slices,
                                     const View &like) {
    std::vector<View> received = roomForAll(like);
    received[size_t(endpoint_.me)] =
        slices[size_t(endpoint_.me)]; // in place, with its strides
    int64_t total = 0;
    for (const View &slice : slices)
      total += bytesOf(slice);
    const bool packs = std::any_of(slices.begin(), slices.end(),
                                   [](const View &v) { return !v.dense(); });
    if (packs)
      endpoint_.packed.resize(size_t(total));
    int64_t position = 0;
    MERAK_RETURN_IF_ERROR(inTurns([&](int to, int from) {
      View slice = slices[size_t(to)];
      if (!slice.dense())
        slice = packAt(slice, position);
      position += bytesOf(slice);
      post(false, spec_.members[size_t(from)], received[size_t(from)].data,
           bytesOf(like));
      post(true, spec_.members[size_t(to)], slice.data, bytesOf(slice));
    }));
    return received;
  }
  std::vector<View> sameForAll(const View &view) {
    return std::vector<View>(size_t(members_), pack(view));
  }

  // All get all inputs and add by themselves: one round.
  Status allReduceSmall() {
    auto inputs = exchange(sameForAll(input_), input_);
    if (!inputs.ok())
      return inputs.status();
    reduceViews(*inputs, output_, spec_.maximum, spec_.accumulate);
    return {};
  }

  // Each member adds one part of all inputs, then all get the parts: every
  // element is added once and crosses each link twice.
  Status allReduceLarge() {
    const View input = pack(input_);
    const int64_t count = input.elements();
    auto begin = [&](int i) { return count * i / members_; };
    auto part = [&](const View &view, int i) {
      return View{static_cast<char *>(view.data) +
                      begin(i) * dtypeSize(view.dtype),
                  view.dtype,
                  {begin(i + 1) - begin(i)},
                  {1}};
    };
    std::vector<View> parts;
    for (int i = 0; i < members_; ++i)
      parts.push_back(part(input, i));
    auto inputs = exchange(parts, parts[size_t(endpoint_.me)]);
    if (!inputs.ok())
      return inputs.status();
    const bool direct = output_.dense() && !spec_.accumulate;
    std::vector<char> aside;
    View result = output_;
    if (!direct) {
      aside.resize(size_t(bytesOf(output_)));
      result = denseLike(output_, aside.data());
    }
    const View mine = part(result, endpoint_.me);
    reduceViews(*inputs, mine, spec_.maximum, false);
    MERAK_RETURN_IF_ERROR(inTurns([&](int to, int from) {
      const View theirs = part(result, from);
      post(false, spec_.members[size_t(from)], theirs.data, bytesOf(theirs));
      post(true, spec_.members[size_t(to)], mine.data, bytesOf(mine));
    }));
    if (!direct)
      copyViews(result, output_, spec_.accumulate);
    return {};
  }

  Status allGather() {
    auto inputs = exchange(sameForAll(input_), input_);
    if (!inputs.ok())
      return inputs.status();
    const int64_t size = input_.shape[size_t(spec_.dim)];
    for (int i = 0; i < members_; ++i) {
      const View slice = sliceView(output_, spec_.dim, i * size, size);
      // In place: already there.
      const View &input = i == endpoint_.me ? input_ : (*inputs)[size_t(i)];
      if (input.data != slice.data)
        copyViews(input, slice, spec_.accumulate);
    }
    return {};
  }

  std::vector<View> slicesOf(const View &view, int64_t dim) {
    const int64_t size = view.shape[size_t(dim)] / members_;
    std::vector<View> slices;
    for (int i = 0; i < members_; ++i)
      slices.push_back(sliceView(view, dim, i * size, size));
    return slices;
  }

  Status reduceScatter() {
    auto inputs = exchange(slicesOf(input_, spec_.dim), output_);
    if (!inputs.ok())
      return inputs.status();
    reduceViews(*inputs, output_, spec_.maximum, spec_.accumulate);
    return {};
  }

  Status allToAll() {
    const std::vector<View> slices = slicesOf(input_, spec_.dim);
    auto inputs = exchange(slices, slices[0]);
    if (!inputs.ok())
      return inputs.status();
    const std::vector<View> targets = slicesOf(output_, spec_.dim2);
    for (int i = 0; i < members_; ++i)
      copyViews((*inputs)[size_t(i)], targets[size_t(i)], spec_.accumulate);
    return {};
  }

  Status broadcast() {
    if (endpoint_.me == 0) {
      const View dense = pack(input_);
      for (int i = 1; i < members_; ++i)
        post(true, spec_.members[size_t(i)], dense.data, bytesOf(dense));
      MERAK_RETURN_IF_ERROR(flush());
      if (input_.data != output_.data)
        copyViews(input_, output_, spec_.accumulate);
      return {};
    }
    endpoint_.received.resize(size_t(bytesOf(output_)));
    const View received = denseLike(output_, endpoint_.received.data());
    post(false, spec_.members[0], received.data, bytesOf(received));
    MERAK_RETURN_IF_ERROR(flush());
    copyViews(received, output_, spec_.accumulate);
    return {};
  }

  MpiEndpoint &endpoint_;
  const CommSpec &spec_;
  MpiEngine &engine_;
  const View &input_, &output_;
  int members_;
  std::vector<MpiMessage> messages_;
};

} // namespace

Result<int> MpiCommunicator::tagOf(const CommSpec &spec) {
  std::string key;
  if (spec.kind == CommSpec::Send)
    key = fmt::format("transfer {} {} {}", rank(), spec.peer, spec.channel);
  else if (spec.kind == CommSpec::Recv)
    key = fmt::format("transfer {} {} {}", spec.peer, rank(), spec.channel);
  else
    key =
        fmt::format("group {} {}", fmt::join(spec.members, ","), spec.channel);
  auto number = world_.store()->number(key);
  if (!number.ok())
    return number.status();
  if (*number > engine_.tagLimit())
    return Status::error(
        fmt::format("the plan has more than {} groups and channels, the most "
                    "that this MPI library tells apart",
                    engine_.tagLimit()));
  return int(*number);
}

Result<std::unique_ptr<Endpoint>>
MpiCommunicator::prepare(CommSpec spec, std::span<const View> inputs,
                         std::span<const View> outputs) {
  auto endpoint = std::make_unique<MpiEndpoint>();
  auto me = checkSpec(spec, rank(), size(), inputs, outputs);
  if (!me.ok())
    return me.status();
  auto tag = tagOf(spec);
  if (!tag.ok())
    return tag.status();
  endpoint->me = *me;
  endpoint->tag = *tag;
  endpoint->spec = std::move(spec);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Status MpiCommunicator::run(const CommCall &call) {
  auto &endpoint = static_cast<MpiEndpoint &>(*call.endpoint);
  const CommSpec &spec = endpoint.spec;
  const View none;
  Status status;
  if (spec.kind == CommSpec::Send) {
    status = Exchange(endpoint, engine_, call.inputs[0], none)
                 .send(static_cast<MpiEndpoint *>(call.open), call.staysOpen);
  } else if (spec.kind == CommSpec::Recv) {
    Exchange own(endpoint, engine_, none, call.outputs[0]);
    own.expect();
    // Its sender is answered while this one comes.
    if (call.next)
      Exchange(static_cast<MpiEndpoint &>(*call.next->endpoint), engine_, none,
               call.next->outputs[0])
          .expect();
    status = own.receive();
  } else {
    for (size_t i = 0; i < call.inputs.size() && status.ok(); ++i)
      status = Exchange(endpoint, engine_, call.inputs[i], call.outputs[i])
                   .collective();
  }
  // An empty message: the wait ended with the run.
  if (status.ok() || !status.messages().front().empty())
    return status;
  if (spec.kind == CommSpec::Send || spec.kind == CommSpec::Recv)
    return Status::error(
        fmt::format("waits for rank {}: {}", spec.peer, abortCause()));
  return Status::error(fmt::format("waits for ranks {}: {}",
                                   fmt::join(spec.members, ","), abortCause()));
}

} // namespace merak::runtime
