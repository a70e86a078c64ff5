#include "passes/Lowering/FusionGroups.h"

#include "passes/Lowering/Iteration.h"

#include "mlir/IR/Value.h"
#include "llvm/ADT/DenseMap.h"

#include <deque>

using namespace mlir;

namespace merak::lowering {

std::optional<planning::Loops> loopsOf(Operation *op) {
  std::optional<Iteration> it = iterationOf(op);
  if (!it)
    return std::nullopt;
  planning::Loops loops;
  loops.sizes.assign(it->sizes.begin(), it->sizes.end());
  loops.reduced.assign(it->reduced.begin(), it->reduced.end());
  for (const DimLoops &dims : it->operands)
    loops.operands.emplace_back(dims.begin(), dims.end());
  for (const DimLoops &dims : it->results)
    loops.results.emplace_back(dims.begin(), dims.end());
  return loops;
}

std::vector<FusionGroup>
formFusionGroups(Block &block, const FusionOptions &options,
                 llvm::function_ref<bool(Operation *, Operation *)> mayDelay,
                 llvm::function_ref<bool(Operation *)> isBarrier,
                 llvm::function_ref<bool(ArrayRef<Operation *>)> mayBe) {
  std::vector<Operation *> all;
  std::vector<planning::FusionOp> ops;
  std::deque<planning::Loops> loops;
  llvm::DenseMap<Value, int> numbers;
  auto numberOf = [&](Value value) {
    return numbers.try_emplace(value, static_cast<int>(numbers.size()))
        .first->second;
  };
  for (Operation &op : block) {
    planning::FusionOp &made = ops.emplace_back();
    if (auto of = loopsOf(&op)) {
      made.loops = &loops.emplace_back(std::move(*of));
      made.sizes = made.loops->sizes;
    }
    made.barrier = isBarrier(&op);
    // With what ops inside of it read.
    op.walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        made.operands.push_back(numberOf(operand));
    });
    for (Value result : op.getResults())
      made.results.push_back(numberOf(result));
    all.push_back(&op);
  }
  auto opsOf = [&](const std::vector<int> &group) {
    FusionGroup members;
    for (int op : group)
      members.push_back(all[op]);
    return members;
  };
  std::vector<FusionGroup> result;
  for (const std::vector<int> &group : planning::formFusionGroups(
           ops, options,
           [&](int user, int last) { return mayDelay(all[user], all[last]); },
           [&](const std::vector<int> &group) { return mayBe(opsOf(group)); }))
    result.push_back(opsOf(group));
  return result;
}

} // namespace merak::lowering
