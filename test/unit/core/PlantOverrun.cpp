// merak-plant-overrun PLAN OUT: a copy of a plan in which the call of one
// generated kernel has a row more than its operands, so that it writes behind
// its first output. Prints the number of the instruction, the kernel and the
// buffer; for test/e2e/arena.py.
#include "runtime/plan/KernelRecords.h"

#include <cstdio>
#include <fmt/format.h>

using namespace merak;

namespace {

// Whether the rows of the call are those of its first output: a prefix of the
// dimensions, of all of a buffer. A kernel of one row is not cut at all.
bool fits(const planpb::Program &program, const planpb::Instruction &call) {
  if (call.kind() != planpb::Instruction::KERNEL || call.rows() < 2 ||
      call.outputs_size() == 0 || call.outputs(0).offset() != 0)
    return false;
  const planpb::Operand &out = call.outputs(0);
  const planpb::Buffer &buffer = program.buffers(int(out.buffer()));
  int64_t rows = 1;
  for (int d = 0; d < out.shape_size() && rows < int64_t(call.rows()); ++d)
    rows *= out.shape(d);
  // Not beyond the red zone.
  return rows == int64_t(call.rows()) && buffer.bytes() / call.rows() <= 8192 &&
         elementCount(out) * dtypeSize(buffer.dtype()) ==
             int64_t(buffer.bytes());
}

int fail(const std::string &text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return 1;
}

int plant(const std::string &path, const std::string &out) {
  auto plan = loadPlan(path);
  if (!plan)
    return fail(plan.status().str());
  for (planpb::Program &program : plan->programs)
    for (planpb::Procedure &procedure : *program.mutable_procedures())
      for (int i = 0; i < procedure.instructions_size(); ++i) {
        planpb::Instruction &call = *procedure.mutable_instructions(i);
        if (!fits(program, call))
          continue;
        call.set_rows(call.rows() + 1);
        recordKernels(*plan);
        std::vector<PlanExtra> extras;
        for (const std::string &name :
             {plan->file.kernels(), plan->file.constants()})
          if (!name.empty())
            extras.push_back({name, plan->dir + "/" + name, ""});
        fmt::print("{} {} {}\n", i, call.op(),
                   program.buffers(int(call.outputs(0).buffer())).name());
        const Status saved = savePlan(out, plan->file, plan->programs, extras);
        return saved.ok() ? 0 : fail(saved.str());
      }
  return fail("no call of a generated kernel");
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 3)
    return fail("usage: merak-plant-overrun PLAN OUT");
  return plant(argv[1], argv[2]);
}
