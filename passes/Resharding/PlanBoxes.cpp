#include "passes/Resharding/PlanBoxes.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

using merak::planpb::Instruction;

namespace merak::resharding {

namespace {

bool overlap(const BoxPart &a, const std::vector<int64_t> &origin,
             const std::vector<int64_t> &extent) {
  for (size_t d = 0; d < origin.size(); ++d)
    if (a.origin[d] + a.extent[d] <= origin[d] ||
        origin[d] + extent[d] <= a.origin[d])
      return false;
  return true;
}

// The last part that brings some of a box.
int bringer(const std::vector<BoxPart> &parts, const BoxMessage &message) {
  for (size_t i = parts.size(); i-- > 0;)
    if (!parts[i].sends && overlap(parts[i], message.source, message.extent))
      return static_cast<int>(i);
  return -1;
}

void addEvent(Instruction::Kind kind, uint32_t event, uint32_t stream,
              const std::string &name, planpb::Procedure &out) {
  Instruction *instruction = out.add_instructions();
  instruction->set_kind(kind);
  instruction->set_event(event);
  instruction->set_stream(stream);
  instruction->set_name(name);
}

} // namespace

uint32_t BoxParts::channelOf(const std::string &name, int64_t from,
                             int64_t to) {
  auto [it, fresh] = index_.try_emplace(name, channels_.size());
  if (fresh)
    channels_.emplace_back().set_name(name);
  planpb::RankPair *pair = channels_[it->second].add_pairs();
  pair->set_from(static_cast<uint32_t>(from));
  pair->set_to(static_cast<uint32_t>(to));
  return it->second + 1;
}

void BoxParts::add(const std::string &value,
                   const std::vector<BoxMessage> &messages) {
  std::map<int64_t, int> sent, received;
  for (const BoxMessage &message : messages) {
    const std::string name = fmt::format(
        "{}.{}.{}", value, sent[message.from]++, received[message.to]++);
    const uint32_t index = channelOf(name, message.from, message.to);
    std::vector<BoxPart> &out =
        parts_[{value, !message.forwarded, message.from}];
    out.push_back({name, index, true, message.source, message.extent,
                   message.forwarded ? bringer(out, message) : -1});
    parts_[{value, false, message.to}].push_back(
        {name, index, false, message.target, message.extent, -1});
  }
}

const std::vector<BoxPart> &BoxParts::of(const std::string &value, bool sends,
                                         int64_t rank) const {
  static const std::vector<BoxPart> none;
  auto it = parts_.find({value, sends, rank});
  return it == parts_.end() ? none : it->second;
}

uint32_t BoxWriter::passingStream(uint32_t stream) {
  auto [it, fresh] =
      passing_.try_emplace(stream, uint32_t(program_.streams_size()));
  if (fresh) {
    const std::string name = program_.streams(int(stream)).name();
    program_.add_streams()->set_name("pass on, " + name);
  }
  return it->second;
}

uint32_t BoxWriter::newEvent(const planpb::Procedure &procedure,
                             uint32_t first) {
  const uint32_t event = events_.try_emplace(&procedure, first).first->second++;
  program_.set_events(std::max(program_.events(), event + 1));
  return event;
}

void BoxWriter::writePart(const BoxPart &part, Instruction &message) const {
  message.clear_peer();
  message.set_channel(part.channel);
  message.set_channel_index(part.channelIndex);
  if (part.sends && message.kind() == Instruction::RECV) {
    message.set_kind(Instruction::SEND);
    message.mutable_outputs()->Swap(message.mutable_inputs());
  }
  planpb::Operand *view =
      part.sends ? message.mutable_inputs(0) : message.mutable_outputs(0);
  int64_t offset = view->offset();
  double bytes =
      double(dtypeSize(program_.buffers(int(view->buffer())).dtype()));
  for (size_t d = 0; d < part.extent.size(); ++d) {
    offset += part.origin[d] * view->strides(int(d));
    view->set_shape(int(d), part.extent[d]);
    bytes *= double(part.extent[d]);
  }
  view->set_offset(offset);
  message.set_bytes(bytes);
}

void BoxWriter::write(const std::vector<BoxPart> &parts,
                      const Instruction &whole, uint32_t firstEvent,
                      planpb::Procedure &procedure) {
  const bool sends = whole.kind() == Instruction::SEND;
  const uint32_t stream = whole.stream();
  std::optional<uint32_t> passing;
  // The last part that the other stream has waited for, and the events of those
  // that it waits for.
  int known = -1;
  std::map<int, uint32_t> eventOf;
  for (const BoxPart &part : parts)
    if (part.after > known) {
      known = part.after;
      eventOf[known] = newEvent(procedure, firstEvent);
    }
  known = -1;
  for (size_t i = 0; i < parts.size(); ++i) {
    const BoxPart &part = parts[i];
    const bool passes = part.sends && !sends;
    if (passes)
      passing = passingStream(stream);
    if (passes && part.after > known) {
      known = part.after;
      addEvent(Instruction::WAIT, eventOf.at(known), *passing, whole.name(),
               procedure);
    }
    Instruction *message = procedure.add_instructions();
    *message = whole;
    message->set_stream(passes ? *passing : stream);
    writePart(part, *message);
    if (auto event = eventOf.find(int(i)); event != eventOf.end())
      addEvent(Instruction::RECORD, event->second, stream, whole.name(),
               procedure);
  }
  if (!passing)
    return;
  const uint32_t last = newEvent(procedure, firstEvent);
  addEvent(Instruction::RECORD, last, *passing, whole.name(), procedure);
  addEvent(Instruction::WAIT, last, stream, whole.name(), procedure);
}

} // namespace merak::resharding
