#include "runtime/report/Costs.h"

#include <algorithm>

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

double messageBytes(const Program &program, const Instruction &inst) {
  return std::max(operandBytes(program, inst.inputs()),
                  operandBytes(program, inst.outputs()));
}

MachineCosts MachineCosts::of(const std::string &device) {
  // cuda: an H100-class card at 70 % of its dense bf16 and memory peaks,
  // NVLink.
  if (device == "cuda")
    return {0.7 * 989e12, 0.7 * 3.3e12, 5e-6, 5e-6, 200e9};
  // cpu: two cores with AVX2, ranks in one process.
  return {60e9, 10e9, 1e-6, 5e-6, 5e9};
}

double MachineCosts::computeSeconds(const Program &program,
                                    const Instruction &inst, int) const {
  return std::max({launchSeconds, inst.flops() / flopsPerSecond,
                   instructionBytes(program, inst) / bytesPerSecond});
}

double MachineCosts::transferSeconds(const Program &program,
                                     const Instruction &inst, int, int) const {
  return linkLatencySeconds + messageBytes(program, inst) / linkBytesPerSecond;
}

double MachineCosts::collectiveSeconds(const Program &program,
                                       const Instruction &inst,
                                       const std::vector<int> &ranks) const {
  if (ranks.size() < 2)
    return 0;
  // Ring: each of n - 1 rounds passes on one n-th; an all-reduce is a
  // reduce-scatter followed by an all-gather.
  double n = static_cast<double>(ranks.size()), rounds = n - 1;
  double bytes = messageBytes(program, inst) * rounds / n;
  if (inst.op() == "all_reduce") {
    rounds *= 2;
    bytes *= 2;
  } else if (inst.op() == "broadcast") {
    bytes = messageBytes(program, inst);
  }
  return rounds * linkLatencySeconds + bytes / linkBytesPerSecond;
}

} // namespace merak::report
