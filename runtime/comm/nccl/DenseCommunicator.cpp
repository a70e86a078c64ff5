#include "runtime/comm/nccl/DenseCommunicator.h"

#include "runtime/comm/inproc/InprocCollectives.h"
#include "runtime/comm/inproc/StridedOps.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

namespace merak::runtime {
namespace {

// What a few thread blocks move in about the time that a launch takes.
constexpr int64_t kNarrowBytes = 256 << 10;

// How one operand's memory is handed to the library.
struct Operand {
  // In place of a view that the library cannot take: an array in scratch.
  bool packsInput = false, packsOutput = false;
  uint64_t inputAt = 0, outputAt = 0; // in scratch
};

struct DenseEndpoint : Endpoint {
  CommSpec spec;
  int me = 0;
  std::vector<Operand> operands;
  char *scratch = nullptr;   // of the stream's workspace, for one call
  DenseLink *link = nullptr; // from the first call on
};

// Whether the parts of dimension `dim` of a dense view lie one after the other.
bool outermost(const View &view, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d)
    if (view.shape[d] != 1)
      return false;
  return view.dense();
}

class DenseCommunicator : public Communicator {
public:
  DenseCommunicator(DenseLinks &links, Backend &backend, int session)
      : links_(links), backend_(backend), session_(session) {}
  ~DenseCommunicator() override {
    for (const auto &[name, link] : opened_)
      links_.close(link);
  }
  int rank() const override { return links_.rank(); }
  int size() const override { return links_.size(); }
  void abort(const Status &reason) override { links_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return links_.aborted(); }
  Status abortReason() const override { return links_.abortReason(); }

  Result<std::unique_ptr<Endpoint>>
  prepare(CommSpec spec, std::span<const View> inputs,
          std::span<const View> outputs) override;
  MemorySource *memory() override { return links_.memory(); }
  Status open() override;
  Status run(const CommCall &call) override;
  Status capturable() const override { return {}; }
  uint64_t libraryBytes() const override {
    return named_.size() * links_.linkBytes();
  }
  std::string note() const override;

private:
  using Name = std::pair<std::vector<int>, std::string>;
  Status open(DenseEndpoint &endpoint);
  Result<DenseLink *> link(const Name &name, bool narrow);
  Status pack(DenseEndpoint &endpoint, const Operand &operand,
              const View &input, StreamHandle stream);
  Status unpack(DenseEndpoint &endpoint, const Operand &operand,
                const View &output, StreamHandle stream);
  Status start(DenseEndpoint &endpoint, const void *in, void *out,
               const View *input, const View *output, StreamHandle stream);

  DenseLinks &links_;
  Backend &backend_;
  struct Needed {
    bool transfers = false;
    int64_t bytes = 0; // of the greatest collective
    bool isNarrow() const { return transfers || bytes <= kNarrowBytes; }
  };
  // Communicators that prepared instructions need, by members and purpose, in
  // the order in which they are opened. Equal on all members.
  std::map<Name, Needed> named_;
  int session_;
  std::mutex mutex_; // lanes open what is not open yet
  std::map<Name, DenseLink *> opened_;
};

// What tells communicators of the same members apart.
std::string purposeOf(const CommSpec &spec, int rank) {
  const std::string &what = spec.streams.empty() ? spec.channel : spec.streams;
  if (spec.kind == CommSpec::Send)
    return fmt::format("{} {}>{}", what, rank, spec.peer);
  if (spec.kind == CommSpec::Recv)
    return fmt::format("{} {}>{}", what, spec.peer, rank);
  return spec.channel;
}

int64_t bytesOf(const View &view) {
  return (view.elements() * dtypeSize(view.dtype) + 255) / 256 * 256;
}

Result<std::unique_ptr<Endpoint>>
DenseCommunicator::prepare(CommSpec spec, std::span<const View> inputs,
                           std::span<const View> outputs) {
  auto endpoint = std::make_unique<DenseEndpoint>();
  const bool sends = spec.kind == CommSpec::Send;
  const bool transfers = sends || spec.kind == CommSpec::Recv;
  if (transfers) {
    if ((sends ? inputs : outputs).size() != 1)
      return Status::error(fmt::format("{} takes one operand, found {}",
                                       commKindName(spec.kind),
                                       (sends ? inputs : outputs).size()));
    if (spec.peer < 0 || spec.peer >= size() || spec.peer == rank())
      return Status::error(fmt::format("{} has rank {} as peer",
                                       commKindName(spec.kind), spec.peer));
    spec.members = {std::min(rank(), spec.peer), std::max(rank(), spec.peer)};
  }
  const auto self = std::find(spec.members.begin(), spec.members.end(), rank());
  if (self == spec.members.end())
    return Status::error(fmt::format("rank {} is not in the group {}", rank(),
                                     fmt::join(spec.members, ",")));
  if (!transfers && (inputs.size() != outputs.size() || inputs.empty()))
    return Status::error(fmt::format("{} has {} inputs and {} outputs",
                                     commKindName(spec.kind), inputs.size(),
                                     outputs.size()));
  endpoint->me = static_cast<int>(self - spec.members.begin());
  uint64_t scratch = 0;
  for (size_t i = 0; i < std::max(inputs.size(), outputs.size()); ++i) {
    Operand operand;
    if (!transfers)
      MERAK_RETURN_IF_ERROR(checkCollective(spec, inputs[i], outputs[i]));
    if (i < inputs.size()) {
      const bool cut = spec.kind == CommSpec::ReduceScatter ||
                       spec.kind == CommSpec::AllToAll;
      operand.packsInput =
          cut ? !outermost(inputs[i], spec.dim) : !inputs[i].dense();
    }
    if (i < outputs.size()) {
      const bool joined =
          spec.kind == CommSpec::AllGather || spec.kind == CommSpec::AllToAll;
      const int64_t dim =
          spec.kind == CommSpec::AllToAll ? spec.dim2 : spec.dim;
      operand.packsOutput =
          spec.accumulate ||
          (joined ? !outermost(outputs[i], dim) : !outputs[i].dense());
    }
    if (operand.packsInput) {
      operand.inputAt = scratch;
      scratch += static_cast<uint64_t>(bytesOf(inputs[i]));
    }
    if (operand.packsOutput) {
      operand.outputAt = scratch;
      scratch += static_cast<uint64_t>(bytesOf(outputs[i]));
    }
    endpoint->operands.push_back(operand);
  }
  endpoint->workspace = scratch;
  Needed &needed = named_[{spec.members, purposeOf(spec, rank())}];
  needed.transfers = transfers;
  int64_t bytes = 0;
  for (const View &input : inputs)
    bytes += bytesOf(input);
  needed.bytes = std::max(needed.bytes, bytes);
  endpoint->spec = std::move(spec);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

// Opening waits for the other members. All ranks take their communicators in
// one order, by members and purpose: of those that are not open yet, the first
// one of all ranks is what each of its members opens next.
Status DenseCommunicator::open() {
  int narrow = 0;
  for (const auto &[name, needed] : named_)
    narrow += needed.isNarrow();
  MERAK_RETURN_IF_ERROR(
      links_.expect(narrow, static_cast<int>(named_.size()) - narrow));
  for (const auto &[name, needed] : named_)
    if (auto opened = link(name, needed.isNarrow()); !opened)
      return opened.status();
  return {};
}

Result<DenseLink *> DenseCommunicator::link(const Name &name, bool narrow) {
  auto opened = links_.open(
      name.first,
      session_ > 0 ? fmt::format("{} of session {}", name.second, session_)
                   : name.second,
      narrow);
  if (!opened)
    return opened.status();
  std::lock_guard lock(mutex_);
  opened_[name] = *opened;
  return *opened;
}

// Streams of one group have a communicator each, since nothing orders their
// operations in the same way on all ranks.
std::string DenseCommunicator::note() const {
  std::set<std::vector<int>> groups;
  size_t transfers = 0;
  for (const auto &[name, needed] : named_) {
    transfers += needed.transfers;
    if (!needed.transfers)
      groups.insert(name.first);
  }
  return fmt::format("rank {} has {} communicators for {} groups of ranks on "
                     "their streams, {} for transfers",
                     rank(), named_.size() - transfers, groups.size(),
                     transfers);
}

// Of a communicator whose rank has not opened all before the first step.
Status DenseCommunicator::open(DenseEndpoint &endpoint) {
  if (endpoint.link)
    return {};
  const CommSpec &spec = endpoint.spec;
  const Name name{spec.members, purposeOf(spec, rank())};
  auto opened = link(name, named_[name].isNarrow());
  if (!opened)
    return opened.status();
  endpoint.link = *opened;
  return {};
}

// Cuts along `dim` go one after the other into the array.
Status DenseCommunicator::pack(DenseEndpoint &endpoint, const Operand &operand,
                               const View &input, StreamHandle stream) {
  const CommSpec &spec = endpoint.spec;
  char *array = endpoint.scratch + operand.inputAt;
  if (spec.kind != CommSpec::ReduceScatter && spec.kind != CommSpec::AllToAll)
    return backend_.combine({&input, 1}, denseLike(input, array), false, false,
                            stream);
  const int64_t members = static_cast<int64_t>(spec.members.size());
  const int64_t size = input.shape[spec.dim] / members;
  const int64_t bytes = input.elements() / members * dtypeSize(input.dtype);
  for (int64_t i = 0; i < members; ++i) {
    const View part = sliceView(input, spec.dim, i * size, size);
    MERAK_RETURN_IF_ERROR(backend_.combine(
        {&part, 1}, denseLike(part, array + i * bytes), false, false, stream));
  }
  return {};
}

Status DenseCommunicator::unpack(DenseEndpoint &endpoint,
                                 const Operand &operand, const View &output,
                                 StreamHandle stream) {
  const CommSpec &spec = endpoint.spec;
  char *array = endpoint.scratch + operand.outputAt;
  if (spec.kind != CommSpec::AllGather && spec.kind != CommSpec::AllToAll) {
    const View from = denseLike(output, array);
    return backend_.combine({&from, 1}, output, false, spec.accumulate, stream);
  }
  const int64_t dim = spec.kind == CommSpec::AllGather ? spec.dim : spec.dim2;
  const int64_t members = static_cast<int64_t>(spec.members.size());
  const int64_t size = output.shape[dim] / members;
  const int64_t bytes = output.elements() / members * dtypeSize(output.dtype);
  for (int64_t i = 0; i < members; ++i) {
    const View to = sliceView(output, dim, i * size, size);
    const View from = denseLike(to, array + i * bytes);
    MERAK_RETURN_IF_ERROR(
        backend_.combine({&from, 1}, to, false, spec.accumulate, stream));
  }
  return {};
}

Status DenseCommunicator::start(DenseEndpoint &endpoint, const void *in,
                                void *out, const View *input,
                                const View *output, StreamHandle stream) {
  const CommSpec &spec = endpoint.spec;
  DenseLink &link = *endpoint.link;
  const planpb::DType type = (input ? input : output)->dtype;
  const int64_t members = static_cast<int64_t>(spec.members.size());
  const int peer = 1 - endpoint.me; // of a transfer
  switch (spec.kind) {
  case CommSpec::AllReduce:
    return link.allReduce(in, out, input->elements(), type, spec.maximum,
                          stream);
  case CommSpec::AllGather:
    return link.allGather(in, out, input->elements(), type, stream);
  case CommSpec::ReduceScatter:
    return link.reduceScatter(in, out, output->elements(), type, spec.maximum,
                              stream);
  case CommSpec::Broadcast:
    return link.broadcast(in, out, input->elements(), type, stream);
  case CommSpec::Send:
    return link.send(in, input->elements(), type, peer, stream);
  case CommSpec::Recv:
    return link.receive(out, output->elements(), type, peer, stream);
  case CommSpec::AllToAll:
    break;
  }
  const int64_t count = input->elements() / members;
  const int64_t bytes = count * dtypeSize(type);
  for (int64_t i = 0; i < members; ++i) {
    MERAK_RETURN_IF_ERROR(link.send(static_cast<const char *>(in) + i * bytes,
                                    count, type, int(i), stream));
    MERAK_RETURN_IF_ERROR(link.receive(static_cast<char *>(out) + i * bytes,
                                       count, type, int(i), stream));
  }
  return {};
}

Status DenseCommunicator::run(const CommCall &call) {
  auto &endpoint = static_cast<DenseEndpoint &>(*call.endpoint);
  MERAK_RETURN_IF_ERROR(open(endpoint));
  if (endpoint.workspace > 0) {
    auto memory = backend_.workspace(call.stream, endpoint.workspace);
    if (!memory)
      return memory.status();
    endpoint.scratch = static_cast<char *>(*memory);
  }
  const size_t count = endpoint.operands.size();
  for (size_t i = 0; i < count; ++i)
    if (endpoint.operands[i].packsInput)
      MERAK_RETURN_IF_ERROR(
          pack(endpoint, endpoint.operands[i], call.inputs[i], call.stream));
  MERAK_RETURN_IF_ERROR(endpoint.link->begin());
  Status status;
  for (size_t i = 0; i < count && status.ok(); ++i) {
    const Operand &operand = endpoint.operands[i];
    const View *input = i < call.inputs.size() ? &call.inputs[i] : nullptr;
    const View *output = i < call.outputs.size() ? &call.outputs[i] : nullptr;
    const void *in = operand.packsInput ? endpoint.scratch + operand.inputAt
                     : input            ? input->data
                                        : nullptr;
    void *out = operand.packsOutput ? endpoint.scratch + operand.outputAt
                : output            ? output->data
                                    : nullptr;
    status = start(endpoint, in, out, input, output, call.stream);
  }
  Status ended = endpoint.link->end();
  MERAK_RETURN_IF_ERROR(std::move(status));
  MERAK_RETURN_IF_ERROR(std::move(ended));
  for (size_t i = 0; i < count; ++i)
    if (endpoint.operands[i].packsOutput)
      MERAK_RETURN_IF_ERROR(
          unpack(endpoint, endpoint.operands[i], call.outputs[i], call.stream));
  return {};
}

} // namespace

std::unique_ptr<Communicator> denseCommunicator(DenseLinks &links,
                                                Backend &backend, int session) {
  return std::make_unique<DenseCommunicator>(links, backend, session);
}

} // namespace merak::runtime
