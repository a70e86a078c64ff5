#include "passes/Lowering/FusionGroups.h"

#include "passes/Lowering/Iteration.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Value.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SmallSet.h"

#include <algorithm>
#include <optional>

using namespace mlir;

namespace merak::lowering {

namespace {

constexpr int kUnknown = -2;

// A group under construction. Its domain is the iteration space of its first
// op without loops of size 1; every value knows the domain dimension of each
// of its own dimensions.
struct Group {
  SmallVector<int64_t> sizes;
  SmallVector<bool> reduced;
  SmallVector<Operation *, 4> ops;
  llvm::DenseMap<Value, DimLoops> dims; // results; kNoLoop: size 1
  bool alive = true;

  bool reduces() const { return llvm::is_contained(reduced, true); }
};

class Former {
public:
  Former(Block &block, const FusionOptions &options,
         llvm::function_ref<bool(Operation *, Operation *)> mayDelay,
         llvm::function_ref<bool(Operation *)> isBarrier,
         llvm::function_ref<bool(ArrayRef<Operation *>)> mayBe)
      : block(block), options(options), mayDelay(mayDelay),
        isBarrier(isBarrier), mayBe(mayBe) {}
  std::vector<FusionGroup> run();

private:
  using LoopDims = SmallVector<int, 4>; // domain dimension of each loop

  bool isWorthwhile(ArrayRef<int64_t> sizes, ArrayRef<bool> reduced) const;
  Group start(Operation *op, const Iteration &it) const;
  std::optional<LoopDims> place(const Group &group, Operation *op,
                                const Iteration &it) const;
  bool join(Group &group, Operation *op, const Iteration &it) const;
  std::optional<Group> merge(const Group &a, const Group &b, Operation *op,
                             const Iteration &it) const;
  bool canRunAt(const Group &group, Operation *last) const;
  bool isSmallEnough(const Group &group) const;
  static void addResults(Group &group, Operation *op, const Iteration &it,
                         const LoopDims &loops);

  Block &block;
  const FusionOptions &options;
  llvm::function_ref<bool(Operation *, Operation *)> mayDelay;
  llvm::function_ref<bool(Operation *)> isBarrier;
  llvm::function_ref<bool(ArrayRef<Operation *>)> mayBe;
  llvm::DenseMap<Operation *, int> position;
  SmallVector<int> barriersBefore; // by position
  std::vector<Group> groups;
  llvm::DenseMap<Operation *, size_t> groupOf;
};

} // namespace

// Whether a reduction has enough independent results to keep threads busy.
bool Former::isWorthwhile(ArrayRef<int64_t> sizes,
                          ArrayRef<bool> reduced) const {
  int64_t kept = 1, all = 1;
  int last = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    all *= sizes[i];
    kept *= reduced[i] ? 1 : sizes[i];
    if (sizes[i] > 1)
      last = static_cast<int>(i);
  }
  if (!llvm::is_contained(reduced, true) || all <= options.smallElements)
    return true;
  bool rows = last >= 0 && reduced[last];
  return kept >= (rows ? options.minRows : options.minColumns);
}

void Former::addResults(Group &group, Operation *op, const Iteration &it,
                        const LoopDims &loops) {
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    DimLoops dims;
    for (int loop : it.results[i])
      dims.push_back(loop == kNoLoop ? kNoLoop : loops[loop]);
    group.dims[result] = dims;
  }
  group.ops.push_back(op);
}

Group Former::start(Operation *op, const Iteration &it) const {
  Group group;
  LoopDims loops;
  for (size_t loop = 0; loop < it.sizes.size(); ++loop) {
    if (it.sizes[loop] == 1) {
      loops.push_back(kNoLoop);
      continue;
    }
    loops.push_back(static_cast<int>(group.sizes.size()));
    group.sizes.push_back(it.sizes[loop]);
    group.reduced.push_back(it.reduced[loop]);
  }
  addResults(group, op, it, loops);
  return group;
}

// The domain dimension of each loop of `op` if it can be computed in the
// group's domain: over all of it, or over the kept dimensions alone.
std::optional<Former::LoopDims> Former::place(const Group &group, Operation *op,
                                              const Iteration &it) const {
  LoopDims loops(it.sizes.size(), kUnknown);
  llvm::SmallSet<int, 8> used;
  for (size_t loop = 0; loop < loops.size(); ++loop)
    if (it.sizes[loop] == 1)
      loops[loop] = kNoLoop;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto known = group.dims.find(operand);
    if (known == group.dims.end())
      continue;
    for (auto [loop, dim] : llvm::zip(it.operands[i], known->second)) {
      if (loop == kNoLoop || it.sizes[loop] == 1)
        continue;
      if (loops[loop] != kUnknown && loops[loop] != dim)
        return std::nullopt;
      loops[loop] = dim;
    }
  }
  for (int dim : loops)
    if (dim >= 0 && !used.insert(dim).second)
      return std::nullopt;
  // Loops that no value of the group walks take free dimensions of their size.
  for (size_t loop = 0; loop < loops.size(); ++loop) {
    if (loops[loop] != kUnknown)
      continue;
    for (int dim = 0; dim < static_cast<int>(group.sizes.size()); ++dim)
      if (group.sizes[dim] == it.sizes[loop] && used.insert(dim).second) {
        loops[loop] = dim;
        break;
      }
    if (loops[loop] == kUnknown)
      return std::nullopt;
  }
  // All dimensions, or exactly those that are kept.
  bool all = used.size() == group.sizes.size();
  bool keptOnly = group.reduces();
  for (int dim = 0; dim < static_cast<int>(group.sizes.size()); ++dim)
    keptOnly &= static_cast<bool>(used.count(dim)) != group.reduced[dim];
  if (!all && !keptOnly)
    return std::nullopt;
  return loops;
}

bool Former::join(Group &group, Operation *op, const Iteration &it) const {
  std::optional<LoopDims> loops = place(group, op, it);
  if (!loops)
    return false;
  SmallVector<bool> reduced(group.sizes.size(), false);
  bool reduces = false;
  for (size_t loop = 0; loop < loops->size(); ++loop)
    if (it.reduced[loop] && (*loops)[loop] >= 0)
      reduced[(*loops)[loop]] = reduces = true;
  if (reduces) {
    if (group.reduces() && reduced != group.reduced)
      return false;
    if (!isWorthwhile(group.sizes, reduced))
      return false;
    group.reduced = reduced;
  }
  addResults(group, op, it, *loops);
  return true;
}

// The union of two groups that `op` would join: its loops say which of their
// dimensions are the same.
std::optional<Group> Former::merge(const Group &a, const Group &b,
                                   Operation *op, const Iteration &it) const {
  std::optional<LoopDims> inA = place(a, op, it), inB = place(b, op, it);
  if (!inA || !inB || a.sizes.size() != b.sizes.size())
    return std::nullopt;
  SmallVector<int> toA(b.sizes.size(), kUnknown);
  for (auto [da, db] : llvm::zip(*inA, *inB))
    if (db >= 0)
      toA[db] = da;
  // Dimensions that `op` does not walk correspond if their order does.
  if (llvm::is_contained(toA, kUnknown)) {
    if (a.sizes != b.sizes || a.reduced != b.reduced)
      return std::nullopt;
    for (int dim = 0; dim < static_cast<int>(toA.size()); ++dim) {
      if (toA[dim] != kUnknown && toA[dim] != dim)
        return std::nullopt;
      toA[dim] = dim;
    }
  }
  Group merged = a;
  for (size_t dim = 0; dim < toA.size(); ++dim)
    if (b.sizes[dim] != a.sizes[toA[dim]])
      return std::nullopt;
  if (b.reduces()) {
    SmallVector<bool> reduced(a.sizes.size(), false);
    for (size_t dim = 0; dim < toA.size(); ++dim)
      reduced[toA[dim]] = b.reduced[dim];
    if (a.reduces() && a.reduced != reduced)
      return std::nullopt;
    if (!isWorthwhile(a.sizes, reduced))
      return std::nullopt;
    merged.reduced = reduced;
  }
  for (const auto &[value, dims] : b.dims) {
    DimLoops mapped;
    for (int dim : dims)
      mapped.push_back(dim == kNoLoop ? kNoLoop : toA[dim]);
    merged.dims[value] = mapped;
  }
  merged.ops.append(b.ops.begin(), b.ops.end());
  llvm::sort(merged.ops, [&](Operation *x, Operation *y) {
    return position.lookup(x) < position.lookup(y);
  });
  return merged;
}

// Whether nobody outside needs a result of the group before `last`.
bool Former::canRunAt(const Group &group, Operation *last) const {
  llvm::SmallDenseSet<Operation *> members(group.ops.begin(), group.ops.end());
  int at = position.lookup(last);
  if (barriersBefore[position.lookup(group.ops.front())] != barriersBefore[at])
    return false;
  for (Operation *op : group.ops)
    for (Operation *user : op->getUsers()) {
      Operation *here = block.findAncestorOpInBlock(*user);
      if (here && !members.contains(here) && position.lookup(here) < at &&
          !mayDelay(here, last))
        return false;
    }
  return true;
}

bool Former::isSmallEnough(const Group &group) const {
  llvm::SmallDenseSet<Value> inputs, outputs;
  llvm::SmallDenseSet<Operation *> members(group.ops.begin(), group.ops.end());
  for (Operation *op : group.ops) {
    for (Value operand : op->getOperands())
      if (!members.contains(operand.getDefiningOp()))
        inputs.insert(operand);
    for (Value result : op->getResults())
      if (llvm::any_of(result.getUsers(), [&](Operation *user) {
            return !members.contains(user);
          }))
        outputs.insert(result);
  }
  return group.ops.size() <= options.maxOps &&
         inputs.size() + outputs.size() <= options.maxValues;
}

std::vector<FusionGroup> Former::run() {
  int barriers = 0;
  for (Operation &op : block) {
    position[&op] = static_cast<int>(barriersBefore.size());
    barriersBefore.push_back(barriers);
    barriers += isBarrier(&op);
  }
  for (Operation &op : block) {
    std::optional<Iteration> it = iterationOf(&op);
    if (!it || !isWorthwhile(it->sizes, it->reduced))
      continue;
    // The best union of producers' groups that the op can join: largest first.
    SmallVector<size_t> candidates;
    for (Value operand : op.getOperands())
      if (auto known = groupOf.find(operand.getDefiningOp());
          known != groupOf.end() && groups[known->second].alive &&
          groups[known->second].ops.size() < options.maxOps &&
          !llvm::is_contained(candidates, known->second))
        candidates.push_back(known->second);
    llvm::stable_sort(candidates, [&](size_t a, size_t b) {
      return groups[a].ops.size() > groups[b].ops.size();
    });
    std::optional<Group> base; // without `op`
    SmallVector<size_t> taken;
    for (size_t candidate : candidates) {
      if (!options.fuse)
        break;
      std::optional<Group> wider =
          base ? merge(*base, groups[candidate], &op, *it)
               : std::optional<Group>(groups[candidate]);
      if (!wider)
        continue;
      Group joined = *wider;
      if (!join(joined, &op, *it) || !canRunAt(joined, &op) ||
          !isSmallEnough(joined) || !mayBe(joined.ops))
        continue;
      base = std::move(wider);
      taken.push_back(candidate);
    }
    size_t number = groups.size();
    if (base) {
      join(*base, &op, *it);
      for (size_t old : taken)
        groups[old].alive = false;
      for (Operation *member : base->ops)
        groupOf[member] = number;
      groups.push_back(std::move(*base));
    } else {
      groupOf[&op] = number;
      groups.push_back(start(&op, *it));
    }
  }
  std::vector<FusionGroup> result;
  for (Group &group : groups)
    if (group.alive)
      result.push_back(group.ops);
  std::sort(result.begin(), result.end(),
            [&](const FusionGroup &a, const FusionGroup &b) {
              return position[a.back()] < position[b.back()];
            });
  return result;
}

std::vector<FusionGroup>
formFusionGroups(Block &block, const FusionOptions &options,
                 llvm::function_ref<bool(Operation *, Operation *)> mayDelay,
                 llvm::function_ref<bool(Operation *)> isBarrier,
                 llvm::function_ref<bool(ArrayRef<Operation *>)> mayBe) {
  return Former(block, options, mayDelay, isBarrier, mayBe).run();
}

} // namespace merak::lowering
