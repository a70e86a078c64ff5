#include "runtime/plan/KernelRecords.h"

using namespace merak::planpb;

namespace merak {

uint64_t kernelSignature(const Program &program,
                         const Instruction &instruction) {
  std::vector<int64_t> words = {instruction.rows(), instruction.accumulate(),
                                instruction.inputs_size(),
                                instruction.scalars_size()};
  for (const auto *operands : {&instruction.inputs(), &instruction.outputs()})
    for (const Operand &operand : *operands) {
      words.push_back(program.buffers(operand.buffer()).dtype());
      words.push_back(operand.shape_size());
      words.insert(words.end(), operand.shape().begin(), operand.shape().end());
      words.insert(words.end(), operand.strides().begin(),
                   operand.strides().end());
    }
  for (const Scalar &scalar : instruction.scalars())
    words.push_back(scalar.value_case());
  return planChecksum(words.data(), words.size() * sizeof(int64_t));
}

void recordKernels(LoadedPlan &plan) {
  KernelSignatures found;
  for (const Program &program : plan.programs)
    for (const Procedure &procedure : program.procedures())
      for (const Instruction &instruction : procedure.instructions())
        if (instruction.kind() == Instruction::KERNEL)
          found.emplace(instruction.op(),
                        kernelSignature(program, instruction));
  plan.file.clear_kernel_records();
  for (const auto &[op, signature] : found) {
    KernelRecord *record = plan.file.add_kernel_records();
    record->set_op(op);
    record->set_signature(signature);
  }
}

KernelSignatures kernelRecords(const PlanFile &file) {
  KernelSignatures records;
  for (const KernelRecord &record : file.kernel_records())
    records.emplace(record.op(), record.signature());
  return records;
}

} // namespace merak
