#include "passes/Sharding/FillGaps.h"

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Planning/FillIdle.h"
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
    SmallVector<Operation *> movable;
    for (Operation *op : opsOf(recompute))
      if (!isa<LoadOp, StoreOp, ConstantOp>(op))
        movable.push_back(op);
    const planning::LateWork work = lateWork(movable);
    const Places place = placesOf(
        planning::fillLate(work, waits, before,
                           [&](const planning::Filling &moves) {
                             return secondsWith(placesOf(moves, movable));
                           }),
        movable);
    if (!place.empty())
      moveRecompute(recompute, place);
    return static_cast<int64_t>(place.size());
  }

  // From the gradients of weights: each with all that only it needs.
  int64_t takeWeights(ActionOp weight) {
    measure();
    SmallVector<SmallVector<Operation *>> slices = slicesOf(weight);
    std::vector<planning::EarlySlice> work;
    for (ArrayRef<Operation *> slice : slices)
      work.push_back(earlySlice(slice));
    const auto placesOf = [&](const planning::Filling &moves) {
      Places place;
      for (auto [slice, at] : llvm::zip(slices, moves.place))
        if (at != planning::kStays)
          for (Operation *op : slice)
            place[op] = at;
      return place;
    };
    const Places place = placesOf(planning::fillEarly(
        work, waits, before, [&](const planning::Filling &moves) {
          return secondsWith(placesOf(moves));
        }));
    if (place.empty())
      return 0;
    cloneAll(place, [](OpBuilder &, Operation *, Operation *) {});
    eraseAll(weight, place);
    dropUnread();
    return static_cast<int64_t>(place.size());
  }

private:
  // By op: the position in B in front of which it goes.
  using Places = llvm::MapVector<Operation *, int64_t>;

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

  static Places placesOf(const planning::Filling &moves,
                         ArrayRef<Operation *> ops) {
    Places place;
    for (auto [op, at] : llvm::zip(ops, moves.place))
      if (at != planning::kStays)
        place[op] = at;
    return place;
  }

  // What only W reads may wait until the end of B.
  int firstReader(Operation *op) {
    int64_t first = static_cast<int64_t>(ops.size()) - 1;
    for (StoreOp store : storesOf(op))
      for (LoadOp load : loadsOf(store.getValue(), backward))
        for (Operation *reader : load->getUsers())
          first = std::min(first, position.lookup(reader));
    return static_cast<int>(first);
  }

  planning::LateWork lateWork(ArrayRef<Operation *> movable) {
    planning::LateWork work;
    llvm::DenseMap<Value, int> valueOf;
    for (Operation *op : movable) {
      planning::LateTask task{costOf(op), firstReader(op), {}, {}};
      for (Value operand : op->getOperands())
        if (auto made = valueOf.find(operand); made != valueOf.end())
          task.reads.push_back(made->second);
      for (Value result : op->getResults()) {
        valueOf[result] = static_cast<int>(work.values.size());
        task.makes.push_back(valueOf[result]);
        work.values.push_back(lateValue(result));
      }
      work.tasks.push_back(std::move(task));
    }
    return work;
  }
  planning::LateValue lateValue(Value value) {
    planning::LateValue late{bytesOf(value), false, false};
    for (StoreOp store : storesOf(value.getDefiningOp()))
      if (store.getOperand() == value) {
        late.kept = true;
        late.onlyForB |= isOnlyForB(store.getValue());
      }
    return late;
  }

  // The sums of W that may move, each with all that only it needs, in order.
  SmallVector<SmallVector<Operation *>> slicesOf(ActionOp weight) {
    SmallVector<Operation *> movable;
    std::vector<planning::EarlyTask> tasks;
    llvm::DenseMap<Operation *, int> taskOf;
    for (Operation *op : opsOf(weight)) {
      if (isa<LoadOp, ConstantOp>(op))
        continue;
      auto store = dyn_cast<StoreOp>(op);
      planning::EarlyTask task{
          {}, isCollective(op), store && store.getAccumulate()};
      for (Value operand : op->getOperands()) {
        Operation *from = operand.getDefiningOp();
        if (auto load = dyn_cast<LoadOp>(from))
          task.fixed |= comesFromW(load.getValue());
        else if (!isa<ConstantOp>(from))
          task.needs.push_back(taskOf.lookup(from));
      }
      taskOf[op] = static_cast<int>(movable.size());
      movable.push_back(op);
      tasks.push_back(std::move(task));
    }
    SmallVector<SmallVector<Operation *>> slices;
    for (const std::vector<int> &members : planning::slicesOf(tasks)) {
      SmallVector<Operation *> &slice = slices.emplace_back();
      for (int member : members)
        slice.push_back(movable[member]);
    }
    return slices;
  }

  planning::EarlySlice earlySlice(ArrayRef<Operation *> slice) {
    planning::EarlySlice early;
    for (Operation *op : slice) {
      early.seconds += costOf(op);
      for (Value operand : op->getOperands())
        if (auto load = operand.getDefiningOp<LoadOp>())
          if (Value here = storedHere(load.getValue()))
            early.after = std::max(
                early.after,
                static_cast<int>(position.lookup(here.getDefiningOp())) + 1);
    }
    return early;
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
  std::vector<SmallVector<Operation *>> byPlace(const Places &place) {
    std::vector<SmallVector<Operation *>> at(ops.size());
    for (auto [op, index] : place)
      at[index].push_back(op);
    for (SmallVector<Operation *> &list : at)
      llvm::sort(list, [](Operation *a, Operation *b) {
        return a->isBeforeInBlock(b);
      });
    return at;
  }

  // Of B, in the order that it has with these ops.
  double secondsWith(const Places &place) {
    auto at = byPlace(place);
    SmallVector<Operation *> all;
    for (auto [index, op] : llvm::enumerate(ops)) {
      all.append(at[index].begin(), at[index].end());
      all.push_back(op);
    }
    planning::Chain chain = chains.chainOf(all);
    return planning::simulateStreams(
        chain, planning::orderSubmicrobatches(chain, level));
  }

  // Whether no action but B reads the value.
  bool isOnlyForB(StringRef value) {
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
  template <typename Done> void cloneAll(const Places &place, Done done) {
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

  static void eraseAll(ActionOp from, const Places &place) {
    SmallVector<Operation *> all = opsOf(from);
    for (Operation *op : llvm::reverse(all))
      if (place.contains(op) ||
          (isa<LoadOp, ConstantOp>(op) && op->use_empty()))
        op->erase();
  }

  void moveRecompute(ActionOp recompute, const Places &place) {
    cloneAll(place, [&](OpBuilder &b, Operation *op, Operation *clone) {
      for (StoreOp store : storesOf(op)) {
        std::string name = store.getValue().str();
        Value here = clone->getResult(
            cast<OpResult>(store.getOperand()).getResultNumber());
        for (LoadOp load : loadsOf(name, backward)) {
          load.getResult().replaceAllUsesWith(here);
          load.erase();
        }
        if (isOnlyForB(name)) {
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
      if (store.getAccumulate() || sent.contains(name) || !isOnlyForB(name) ||
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
