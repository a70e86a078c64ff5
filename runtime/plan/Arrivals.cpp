#include "runtime/plan/Arrivals.h"

#include "runtime/layout/Strides.h"

#include <algorithm>

using namespace merak::planpb;

namespace merak {

int64_t BufferBox::elements() const {
  int64_t count = 1;
  for (int64_t size : extent)
    count *= size;
  return count;
}

bool BufferBox::intersect(const BufferBox &other, BufferBox &out) const {
  out.origin.resize(origin.size());
  out.extent.resize(origin.size());
  if (origin.size() != other.origin.size())
    return false;
  for (size_t d = 0; d < origin.size(); ++d) {
    out.origin[d] = std::max(origin[d], other.origin[d]);
    out.extent[d] =
        std::min(origin[d] + extent[d], other.origin[d] + other.extent[d]) -
        out.origin[d];
    if (out.extent[d] <= 0)
      return false;
  }
  return true;
}

namespace {

// A view of a buffer as a box of it. One with strides of its own is a box of
// something else, whose further dimensions say which.
BufferBox boxOf(const Program &program, const Operand &view) {
  const Buffer &buffer = program.buffers(int(view.buffer()));
  const std::vector<int64_t> shape(buffer.shape().begin(),
                                   buffer.shape().end());
  const std::vector<int64_t> strides = layout::denseStrides(shape);
  BufferBox box;
  box.extent.assign(view.shape().begin(), view.shape().end());
  int64_t rest = view.offset();
  bool isBox = view.shape_size() == int(shape.size()) &&
               std::equal(strides.begin(), strides.end(),
                          view.strides().begin(), view.strides().end());
  for (size_t d = 0; isBox && d < shape.size(); ++d) {
    if (strides[d] == 0)
      isBox = false; // of nothing
    if (!isBox)
      break;
    box.origin.push_back(rest / strides[d]);
    rest %= strides[d];
    isBox &= box.origin[d] + box.extent[d] <= shape[d];
  }
  if (isBox)
    return box;
  box.origin.assign(box.extent.size(), 0);
  box.origin.push_back(view.offset());
  box.origin.insert(box.origin.end(), view.strides().begin(),
                    view.strides().end());
  box.extent.resize(box.origin.size(), 1);
  return box;
}

BufferBox moved(const BufferBox &part, const BufferBox &from,
                const BufferBox &to) {
  BufferBox out = part;
  for (size_t d = 0; d < out.origin.size(); ++d)
    out.origin[d] += to.origin[d] - from.origin[d];
  return out;
}

const Instruction &instructionAt(const Program &program, int call,
                                 int instruction) {
  return program.procedures(int(program.calls(call).procedure()))
      .instructions(instruction);
}

} // namespace

Arrivals::Arrivals(const CommunicationMap &map) : map_(map) {
  const LoadedPlan &plan = map.plan();
  if (plan.file.channels().empty())
    return; // nothing goes in boxes
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    std::map<std::string, int> &sends = sends_.emplace_back();
    const std::vector<TransferSequence> &all = map.program(int(p)).transfers;
    for (size_t t = 0; t < all.size(); ++t)
      if (all[t].send)
        sends[all[t].channel] = int(t);
  }
  for (int rank = 0; rank < map.ranks().size(); ++rank)
    collect(rank);
  for (const auto &[key, list] : received_)
    for (const Received &one : list)
      for (Arrival &arrival : traced(one, 0))
        arrivals_[key].push_back(std::move(arrival));
  for (auto &[key, list] : arrivals_)
    std::stable_sort(list.begin(), list.end(),
                     [](const Arrival &a, const Arrival &b) {
                       return a.into.origin < b.into.origin;
                     });
}

const std::vector<Arrival> &Arrivals::of(int rank, uint32_t buffer) const {
  static const std::vector<Arrival> none;
  auto it = arrivals_.find({rank, buffer});
  return it == arrivals_.end() ? none : it->second;
}

// The transfer of the peer that meets a receive of the rank; -1: none.
int Arrivals::sendTo(int rank, int sequence) const {
  const int peer = map_.peer(rank, sequence);
  if (peer < 0)
    return -1;
  const auto &sends = sends_[map_.plan().file.ranks(peer).program()];
  auto it = sends.find(map_.ofRank(rank).transfers[size_t(sequence)].channel);
  return it != sends.end() && map_.peer(peer, it->second) == rank ? it->second
                                                                  : -1;
}

void Arrivals::collect(int rank) {
  const LoadedPlan &plan = map_.plan();
  const std::vector<TransferSequence> &all = map_.ofRank(rank).transfers;
  for (int t = 0; t < int(all.size()); ++t) {
    if (all[size_t(t)].send || all[size_t(t)].channelIndex == 0 ||
        all[size_t(t)].steps.empty())
      continue;
    const int other = sendTo(rank, t), peer = map_.peer(rank, t);
    if (other < 0)
      continue;
    const TransferSequence &sends = map_.ofRank(peer).transfers[size_t(other)];
    if (sends.steps.empty())
      continue;
    const CommStep own = all[size_t(t)].steps[0], there = sends.steps[0];
    const Program &program = plan.programOf(rank), &of = plan.programOf(peer);
    const Operand &into =
        instructionAt(program, own.call, own.instruction).outputs(0);
    const Operand &sent =
        instructionAt(of, there.call, there.instruction).inputs(0);
    received_[{rank, into.buffer()}].push_back(
        {{boxOf(program, into), peer, other, sent.buffer(), boxOf(of, sent)},
         there.call,
         there.instruction,
         own.call,
         own.instruction});
  }
}

// Whether the sender has the box from others alone, in the same call.
bool Arrivals::passesOn(int sender, const Received &one) const {
  if (!received_.count({sender, one.arrival.buffer}))
    return false;
  const Program &program = map_.plan().programOf(sender);
  const Procedure &procedure =
      program.procedures(int(program.calls(one.call).procedure()));
  for (int i = 0; i < one.instruction; ++i)
    for (const Operand &output : procedure.instructions(i).outputs())
      if (output.buffer() == one.arrival.buffer &&
          procedure.instructions(i).kind() != Instruction::RECV)
        return false;
  return true;
}

std::vector<Arrival> Arrivals::traced(const Received &one, int depth) const {
  const Arrival &arrival = one.arrival;
  if (depth > map_.ranks().size() || !passesOn(arrival.sender, one))
    return {arrival};
  std::vector<Received> parts;
  int64_t elements = 0;
  BufferBox both;
  for (const Received &earlier :
       received_.at({arrival.sender, arrival.buffer})) {
    if (earlier.ownCall != one.call ||
        earlier.ownInstruction > one.instruction ||
        !earlier.arrival.into.intersect(arrival.of, both))
      continue;
    Received &part = parts.emplace_back(earlier);
    part.arrival.of = moved(both, earlier.arrival.into, earlier.arrival.of);
    part.arrival.into = moved(both, arrival.of, arrival.into);
    elements += both.elements();
  }
  if (elements != arrival.of.elements())
    return {arrival};
  std::vector<Arrival> result;
  for (const Received &part : parts)
    for (Arrival &each : traced(part, depth + 1))
      result.push_back(std::move(each));
  return result;
}

} // namespace merak
