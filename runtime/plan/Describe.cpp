#include "runtime/plan/Describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace merak::planpb;

namespace merak {

std::string describe(const Instruction &instruction) {
  switch (instruction.kind()) {
  case Instruction::SEND:
  case Instruction::RECV:
    return fmt::format("{} \"{}\"", kindName(instruction.kind()),
                       instruction.channel());
  case Instruction::RECORD:
  case Instruction::WAIT:
    return fmt::format("{} {}", kindName(instruction.kind()),
                       instruction.event());
  case Instruction::LOAD_INPUT:
    return fmt::format("load_input \"{}\"", instruction.op());
  case Instruction::KERNEL:
  case Instruction::LIBRARY:
  case Instruction::COLLECTIVE:
    if (instruction.name().empty())
      return opName(instruction);
    return fmt::format("{} \"{}\"", opName(instruction), instruction.name());
  default:
    return kindName(instruction.kind());
  }
}

std::string describe(const Program &program, int procedure, int instruction) {
  const Procedure &proc = program.procedures(procedure);
  return fmt::format("procedure {} \"{}\" · instruction {} {}", procedure,
                     proc.name(), instruction,
                     describe(proc.instructions(instruction)));
}

std::string describeCall(const Program &program, int call) {
  const Call &proto = program.calls(call);
  std::string text = fmt::format("call {} \"{}\"", call,
                                 program.procedures(proto.procedure()).name());
  if (proto.microbatch() >= 0)
    text += fmt::format(" microbatch {}", proto.microbatch());
  return text;
}

std::string describeAt(const Program &program, int call, int instruction) {
  const Procedure &proc = program.procedures(program.calls(call).procedure());
  return fmt::format("{} · instruction {} {}", describeCall(program, call),
                     instruction, describe(proc.instructions(instruction)));
}

std::string describe(DType dtype,
                     const google::protobuf::RepeatedField<int64_t> &shape) {
  return fmt::format("{}[{}]", dtypeName(dtype), fmt::join(shape, ","));
}

void Problems::add(const std::string &text) {
  if (++count_ <= kShown)
    status_.merge(
        Status::error(context_.empty() ? text : context_ + " · " + text));
}

void Problems::addOnce(const std::string &key, const std::string &text) {
  if (keys_.insert(key).second)
    add(text);
}

Status Problems::take() {
  if (count_ > kShown)
    status_.merge(
        Status::error((context_.empty() ? "" : context_ + " · ") +
                      fmt::format("and {} more problems", count_ - kShown)));
  count_ = 0;
  return std::move(status_);
}

} // namespace merak
