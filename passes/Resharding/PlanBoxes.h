// The instructions of one rank for a value that goes between meshes in boxes.
#pragma once

#include "passes/Resharding/Messages.h"
#include "runtime/plan/Plan.h"

#include <map>
#include <tuple>

namespace merak::resharding {

// A box of the local value, sent or received as one message.
struct BoxPart {
  std::string channel;
  uint32_t channelIndex; // as in the instructions
  bool sends;
  std::vector<int64_t> origin, extent;
  // Of a box that is passed on: the part that brings the last of it.
  int after = -1;
};

// What each rank does for values, and the channels that it takes.
class BoxParts {
public:
  // Channels are "<value>.<number>.<number>": how many messages of it the
  // sender has sent and the receiver has received before. Ranks with the same
  // boxes do the same, whoever their peers are.
  void add(const std::string &value, const std::vector<BoxMessage> &messages);

  const std::vector<planpb::Channel> &channels() const { return channels_; }
  // In their order; none where the rank has none of the value's boxes to send.
  // Who receives may pass boxes on.
  const std::vector<BoxPart> &of(const std::string &value, bool sends,
                                 int64_t rank) const;

private:
  uint32_t channelOf(const std::string &name, int64_t from, int64_t to);

  std::vector<planpb::Channel> channels_;
  std::map<std::string, uint32_t> index_;
  std::map<std::tuple<std::string, bool, int64_t>, std::vector<BoxPart>> parts_;
};

// Writes them into the procedures of a program. A box that a rank passes on
// leaves by a stream of its own as soon as it is there, while the next one
// comes; the value is there when all have left.
class BoxWriter {
public:
  explicit BoxWriter(planpb::Program &program) : program_(program) {}

  // `whole`: the SEND or RECV of the value. Its events are numbered from
  // `firstEvent` on in each procedure.
  void write(const std::vector<BoxPart> &parts,
             const planpb::Instruction &whole, uint32_t firstEvent,
             planpb::Procedure &procedure);

private:
  uint32_t passingStream(uint32_t stream);
  uint32_t newEvent(const planpb::Procedure &procedure, uint32_t first);
  void writePart(const BoxPart &part, planpb::Instruction &message) const;

  planpb::Program &program_;
  std::map<uint32_t, uint32_t> passing_; // streams, by that of the receives
  std::map<const planpb::Procedure *, uint32_t> events_;
};

} // namespace merak::resharding
