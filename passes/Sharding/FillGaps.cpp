#include "passes/Sharding/FillGaps.h"

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Planning/IdleSlots.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

SmallVector<Operation *> opsOf(ActionOp action) {
  SmallVector<Operation *> ops;
  for (Operation &op : action.getBody().front())
    ops.push_back(&op);
  return ops;
}

double bytesOf(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  return double(type.getNumElements()) *
         std::max(8u, type.getElementType().getIntOrFloatBitWidth()) / 8;
}

class GapFiller {
public:
  GapFiller(StageOp stage, ActionOp backward, const SubmicrobatchChain &chains,
            int level)
      : stage(stage), backward(backward), chains(chains), level(level) {}

  // From the recomputation: late ops of it, as late as they may run.
  int64_t takeRecompute(ActionOp recompute) {
    measure();
    // By op: the position in B in front of which it goes.
    llvm::MapVector<Operation *, int64_t> place;
    SmallVector<Operation *> all = opsOf(recompute);
    for (Operation *op : llvm::reverse(all))
      if (!isa<LoadOp, StoreOp, ConstantOp>(op))
        if (auto at = lateGap(op, place))
          place[op] = *at;
    if (place.empty() || !pays(place) || newBytes(place) > freedBytes(place))
      return 0;
    moveRecompute(recompute, place);
    return static_cast<int64_t>(place.size());
  }

  // From the gradients of weights: each with all that only it needs.
  int64_t takeWeights(ActionOp weight) {
    measure();
    llvm::MapVector<Operation *, int64_t> place;
    for (StoreOp store : weight.getOps<StoreOp>())
      if (store.getAccumulate())
        earlyGap(store, place);
    if (place.empty() || !pays(place))
      return 0;
    cloneAll(place, [](OpBuilder &, Operation *, Operation *) {});
    eraseAll(weight, place);
    dropUnread();
    return static_cast<int64_t>(place.size());
  }

private:
  // The order of B as it is, and where it waits.
  void measure() {
    ops = opsOf(backward);
    position.clear();
    for (auto [index, op] : llvm::enumerate(ops))
      position[op] = static_cast<int64_t>(index);
    planning::Chain chain = chains.chainOf(ops);
    std::vector<planning::Issue> order =
        planning::orderSubmicrobatches(chain, level);
    std::vector<double> idle = planning::idleBefore(chain, order);
    std::vector<double> gap(ops.size(), 0);
    for (size_t i = 0; i < order.size(); ++i)
      gap[order[i].task] += idle[i];
    waits = planning::IdleSlots(gap);
    before = planning::simulateStreams(chain, order);
  }

  // Of both submicrobatches.
  double costOf(Operation *op) {
    bool once = chains.byAxis() && isOfBothSubmicrobatches(op);
    return (once ? 1 : 2) * chains.secondsOf(op);
  }

  static SmallVector<StoreOp> storesOf(Operation *op) {
    SmallVector<StoreOp> stores;
    for (Operation *user : op->getUsers())
      if (auto store = dyn_cast<StoreOp>(user))
        stores.push_back(store);
    return stores;
  }
  SmallVector<LoadOp> loadsOf(StringRef value, ActionOp action) {
    SmallVector<LoadOp> loads;
    for (LoadOp load : action.getOps<LoadOp>())
      if (load.getValue() == value)
        loads.push_back(load);
    return loads;
  }

  //===--------------------------------------------------------------------===//
  // Choice
  //===--------------------------------------------------------------------===//

  // The last gap in front of the first use in B; none if a user stays behind.
  // What only W reads may wait until the end of B.
  std::optional<int64_t>
  lateGap(Operation *op, const llvm::MapVector<Operation *, int64_t> &place) {
    int64_t latest = static_cast<int64_t>(ops.size()) - 1;
    for (Operation *user : op->getUsers()) {
      if (auto store = dyn_cast<StoreOp>(user)) {
        for (LoadOp load : loadsOf(store.getValue(), backward))
          for (Operation *reader : load->getUsers())
            latest = std::min(latest, position.lookup(reader));
        continue;
      }
      auto moved = place.find(user);
      if (moved == place.end())
        return std::nullopt;
      latest = std::min(latest, moved->second);
    }
    double cost = costOf(op);
    if (cost == 0)
      return latest;
    if (std::optional<int> at = waits.takeLast(static_cast<int>(latest), cost))
      return *at;
    return std::nullopt;
  }

  // The first gap behind its operands, for a sum with all that leads to it.
  void earlyGap(StoreOp store, llvm::MapVector<Operation *, int64_t> &place) {
    llvm::SetVector<Operation *> slice;
    slice.insert(store);
    int64_t earliest = 0;
    double cost = 0;
    for (size_t i = 0; i < slice.size(); ++i) {
      Operation *op = slice[i];
      if (auto load = dyn_cast<LoadOp>(op)) {
        if (comesFromW(load.getValue()))
          return;
        for (StoreOp kept : backward.getOps<StoreOp>())
          if (kept.getValue() == load.getValue())
            earliest = std::max(
                earliest,
                position.lookup(kept.getOperand().getDefiningOp()) + 1);
        continue;
      }
      if (isa<ConstantOp>(op))
        continue;
      cost += costOf(op);
      for (Value operand : op->getOperands())
        slice.insert(operand.getDefiningOp());
    }
    // Work that another gradient shares stays where both are.
    SmallVector<Operation *> moved;
    for (Operation *op : slice) {
      if (isa<LoadOp, ConstantOp>(op))
        continue;
      if (isCollective(op) ||
          llvm::any_of(op->getUsers(),
                       [&](Operation *user) { return !slice.contains(user); }))
        return;
      moved.push_back(op);
    }
    if (std::optional<int> at =
            waits.takeFirst(static_cast<int>(earliest), cost)) {
      llvm::sort(moved, [](Operation *a, Operation *b) {
        return a->isBeforeInBlock(b);
      });
      for (Operation *op : moved)
        place[op] = *at;
    }
  }

  // Whether W of another stage sends the value: B must not wait for that.
  bool comesFromW(StringRef value) {
    return llvm::any_of(stage->getParentOfType<ModuleOp>().getOps<TransferOp>(),
                        [&](TransferOp transfer) {
                          return transfer.getKind() == pipe::Action::W &&
                                 transfer.getTarget().getRootReference() ==
                                     stage.getSymNameAttr() &&
                                 transfer.getTarget().getLeafReference() ==
                                     value;
                        });
  }

  // B with the ops in their places, in the order of their own action.
  std::vector<SmallVector<Operation *>>
  byPlace(const llvm::MapVector<Operation *, int64_t> &place) {
    std::vector<SmallVector<Operation *>> at(ops.size());
    for (auto [op, index] : place)
      at[index].push_back(op);
    for (SmallVector<Operation *> &list : at)
      llvm::sort(list, [](Operation *a, Operation *b) {
        return a->isBeforeInBlock(b);
      });
    return at;
  }

  bool pays(const llvm::MapVector<Operation *, int64_t> &place) {
    auto at = byPlace(place);
    SmallVector<Operation *> all;
    double apart = before;
    for (auto [index, op] : llvm::enumerate(ops)) {
      all.append(at[index].begin(), at[index].end());
      all.push_back(op);
    }
    for (auto [op, index] : place)
      apart += costOf(op);
    planning::Chain chain = chains.chainOf(all);
    double together = planning::simulateStreams(
        chain, planning::orderSubmicrobatches(chain, level));
    return planning::paysToMove(together, apart);
  }

  // Bytes of values that have to be kept because their user moves away.
  double newBytes(const llvm::MapVector<Operation *, int64_t> &place) {
    llvm::SetVector<Value> crossing;
    for (auto [op, index] : place)
      for (Value operand : op->getOperands()) {
        Operation *from = operand.getDefiningOp();
        if (!isa<LoadOp, ConstantOp>(from) && !place.contains(from) &&
            storesOf(from).empty())
          crossing.insert(operand);
      }
    double bytes = 0;
    for (Value value : crossing)
      bytes += bytesOf(value);
    return bytes;
  }
  // Bytes of values that need not be kept any more.
  double freedBytes(const llvm::MapVector<Operation *, int64_t> &place) {
    double bytes = 0;
    for (auto [op, index] : place)
      for (StoreOp store : storesOf(op))
        if (isOnlyFor(store.getValue()))
          bytes += bytesOf(store.getOperand());
    return bytes;
  }
  // Whether no action but B reads the value.
  bool isOnlyFor(StringRef value) {
    for (ActionOp action : stage.getOps<ActionOp>())
      if (action != backward && !loadsOf(value, action).empty())
        return false;
    return true;
  }

  //===--------------------------------------------------------------------===//
  // Moves
  //===--------------------------------------------------------------------===//

  ValueOp keep(Value value) {
    for (StoreOp store : storesOf(value.getDefiningOp()))
      if (store.getOperand() == value && !store.getAccumulate())
        return stage.lookupSymbol<ValueOp>(store.getValue());
    Operation *from = value.getDefiningOp();
    std::string name;
    for (int n = 0; name.empty() || stage.lookupSymbol(name); ++n)
      name = "kept" + std::to_string(n);
    auto layouts = from->getAttrOfType<ArrayAttr>(kLayoutsAttr);
    unsigned index = cast<OpResult>(value).getResultNumber();
    OpBuilder b = OpBuilder::atBlockBegin(&stage.getBody().front());
    auto kept = ValueOp::create(
        b, value.getLoc(), b.getStringAttr(name),
        TypeAttr::get(value.getType()),
        ValueKindAttr::get(b.getContext(), ValueKind::activation),
        layouts ? cast<LayoutAttr>(layouts[index]) : LayoutAttr(),
        StringAttr());
    b.setInsertionPointAfter(from);
    StoreOp::create(b, value.getLoc(), value,
                    FlatSymbolRefAttr::get(kept.getSymNameAttr()), UnitAttr());
    return kept;
  }

  // The operands of a moved op inside B.
  void bring(OpBuilder &b, Operation *op, IRMapping &mapping) {
    for (Value operand : op->getOperands()) {
      if (mapping.contains(operand))
        continue;
      Operation *from = operand.getDefiningOp();
      if (auto load = dyn_cast<LoadOp>(from))
        if (Value here = storedHere(load.getValue())) {
          mapping.map(operand, here);
          continue;
        }
      if (isa<LoadOp, ConstantOp>(from)) {
        // One for each place: it costs nothing.
        IRMapping none;
        mapping.map(operand, b.clone(*from, none)->getResult(0));
        cloned.push_back(operand);
        continue;
      }
      Value loaded = LoadOp::create(
          b, operand.getLoc(), operand.getType(),
          FlatSymbolRefAttr::get(keep(operand).getSymNameAttr()));
      mapping.map(operand, loaded);
      cloned.push_back(operand);
    }
  }
  Value storedHere(StringRef value) {
    for (StoreOp store : backward.getOps<StoreOp>())
      if (store.getValue() == value && !store.getAccumulate())
        return store.getOperand();
    return {};
  }

  // Clones the ops into B; `done` gets each op and its clone.
  template <typename Done>
  void cloneAll(const llvm::MapVector<Operation *, int64_t> &place, Done done) {
    IRMapping mapping;
    auto at = byPlace(place);
    for (auto [index, list] : llvm::enumerate(at)) {
      if (list.empty())
        continue;
      OpBuilder b(ops[index]);
      for (Operation *op : list) {
        bring(b, op, mapping);
        done(b, op, b.clone(*op, mapping));
      }
      // Values brought here may not be there at another place.
      for (Value value : cloned)
        mapping.erase(value);
      cloned.clear();
    }
  }

  static void eraseAll(ActionOp from,
                       const llvm::MapVector<Operation *, int64_t> &place) {
    SmallVector<Operation *> all = opsOf(from);
    for (Operation *op : llvm::reverse(all))
      if (place.contains(op) ||
          (isa<LoadOp, ConstantOp>(op) && op->use_empty()))
        op->erase();
  }

  void moveRecompute(ActionOp recompute,
                     const llvm::MapVector<Operation *, int64_t> &place) {
    cloneAll(place, [&](OpBuilder &b, Operation *op, Operation *clone) {
      for (StoreOp store : storesOf(op)) {
        std::string name = store.getValue().str();
        Value here = clone->getResult(
            cast<OpResult>(store.getOperand()).getResultNumber());
        for (LoadOp load : loadsOf(name, backward)) {
          load.getResult().replaceAllUsesWith(here);
          load.erase();
        }
        if (isOnlyFor(name)) {
          stage.lookupSymbol(name)->erase();
        } else {
          IRMapping one;
          one.map(store.getOperand(), here);
          b.clone(*store, one);
        }
        store.erase();
      }
    });
    eraseAll(recompute, place);
  }

  // What B kept for W alone.
  void dropUnread() {
    llvm::DenseSet<StringAttr> sent;
    for (TransferOp transfer :
         stage->getParentOfType<ModuleOp>().getOps<TransferOp>())
      if (transfer.getSource().getRootReference() == stage.getSymNameAttr())
        sent.insert(transfer.getSource().getLeafReference());
    for (StoreOp store :
         llvm::make_early_inc_range(backward.getOps<StoreOp>())) {
      StringAttr name = store.getValueAttr().getAttr();
      if (store.getAccumulate() || sent.contains(name) || !isOnlyFor(name) ||
          !loadsOf(name, backward).empty())
        continue;
      stage.lookupSymbol(name)->erase();
      store.erase();
    }
  }

  StageOp stage;
  ActionOp backward;
  const SubmicrobatchChain &chains;
  int level;
  SmallVector<Operation *> ops; // of B
  llvm::DenseMap<Operation *, int64_t> position;
  planning::IdleSlots waits; // in front of the ops, both submicrobatches
  double before = 0;         // seconds of B
  SmallVector<Value> cloned;
};

} // namespace

int64_t merak::fillGaps(StageOp stage, const SubmicrobatchChain &chains,
                        int level) {
  auto find = [&](pipe::Action kind, uint64_t chunk) {
    for (ActionOp action : stage.getOps<ActionOp>())
      if (action.getKind() == kind && action.getChunk() == chunk)
        return action;
    return ActionOp();
  };
  int64_t moved = 0;
  for (ActionOp backward : stage.getOps<ActionOp>()) {
    if (backward.getKind() != pipe::Action::B ||
        llvm::none_of(opsOf(backward), isCollective))
      continue;
    GapFiller filler(stage, backward, chains, level);
    if (ActionOp recompute = find(pipe::Action::R, backward.getChunk()))
      moved += filler.takeRecompute(recompute);
    if (ActionOp weight = find(pipe::Action::W, backward.getChunk()))
      moved += filler.takeWeights(weight);
  }
  return moved;
}
