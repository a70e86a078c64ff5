#include "runtime/report/Costs.h"

#include "runtime/plan/Trim.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace merak::planpb;

namespace merak::report {
namespace {

double
operandBytes(const Program &program,
             const google::protobuf::RepeatedPtrField<Operand> &operands) {
  double bytes = 0;
  for (const Operand &operand : operands)
    bytes += static_cast<double>(elementCount(operand)) *
             dtypeSize(program.buffers(operand.buffer()).dtype());
  return bytes;
}

} // namespace

double instructionBytes(const Program &program, const Instruction &inst) {
  if (inst.bytes() > 0)
    return inst.bytes();
  return operandBytes(program, inst.inputs()) +
         operandBytes(program, inst.outputs());
}

std::string communicationKind(const Instruction &inst) {
  return inst.kind() == Instruction::COLLECTIVE ? opName(inst)
                                                : kindName(inst.kind());
}

std::string communicationPartners(const Program &program,
                                  const Instruction &inst) {
  if (inst.kind() == Instruction::COLLECTIVE)
    return groupStr(program.groups(int(inst.group())));
  if (inst.channel_index() > 0) // between meshes: its stream names the stage
    return program.streams(int(inst.stream())).name();
  std::string over;
  for (const Axis &axis : inst.peer())
    over += fmt::format("{}{}={}", over.empty() ? "" : " ", axis.name(),
                        axis.size());
  return over;
}

double messageBytes(const Program &program, const Instruction &inst) {
  return sentShare(inst) * std::max(operandBytes(program, inst.inputs()),
                                    operandBytes(program, inst.outputs()));
}

} // namespace merak::report
