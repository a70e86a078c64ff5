#include "tools/merak-plan/Workspace.h"

#include "passes/CostModel/PlanCosts.h"
#include "runtime/backends/cpu/Attention.h"
#include "runtime/backends/cpu/Gemm.h"

#include <algorithm>

namespace merak {
namespace {

// The most of each kind so far.
struct Most {
  int64_t a = 0, b = 0, scores = 0, gradients = 0;

  void product(double n, double k) {
    const cpu::GemmWorkspace one = cpu::gemmWorkspace(int64_t(n), int64_t(k));
    a = std::max(a, one.a);
    b = std::max(b, one.b);
  }
  void attention(const costmodel::Kernel &work, bool backward) {
    const double rows = std::min<double>(cpu::AttentionShape::kBlock, work.m);
    const int64_t bytes = int64_t(rows * work.n) * int64_t(sizeof(float));
    product(work.n, work.k); // scores of all keys
    product(work.k, work.n); // times the values
    if (backward)
      product(work.k, rows);
    scores = std::max(scores, bytes);
    if (backward)
      gradients = std::max(gradients, bytes);
  }
};

} // namespace

int64_t workspaceBytes(const planpb::Program &program) {
  Most most;
  for (const planpb::Procedure &procedure : program.procedures())
    for (const planpb::Instruction &inst : procedure.instructions()) {
      if (inst.kind() != planpb::Instruction::LIBRARY)
        continue;
      const costmodel::Kernel work = costmodel::kernelOf(program, inst);
      if (work.m <= 0)
        continue;
      const std::string group = costmodel::kernelClass(work.name);
      if (group == "attention")
        most.attention(work, inst.op() == "attention_grad");
      else if (group == "matmul")
        most.product(work.n, work.k);
    }
  return most.a + most.b + most.scores + most.gradients;
}

} // namespace merak
