#include "passes/Staging/ApplyLayouts.h"

#include "dialects/Dist/DistDialect.h"
#include "dialects/Dist/Regather.h"
#include "passes/Planning/KeptViews.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::train;

namespace {

class LayoutApplier {
public:
  LayoutApplier(func::FuncOp step, Decision &decision)
      : step(step), decision(decision), context(step.getContext()),
        outcome(decision.outcome) {}

  void run() {
    converted.resize(outcome.conversions.size());
    layout::AxisMap mesh = decision.assignment.axisMap();
    mesh.erase(kSubmicrobatchAxis);
    views = planning::viewsTakenAgain(decision.step.graph, outcome, mesh);
    markLeaves();
    for (auto [index, op] : llvm::enumerate(decision.step.ops))
      applyToOp(static_cast<int>(index), op);
    Operation *terminator = step.getBody().front().getTerminator();
    llvm::DenseMap<int, const planning::OutputUse *> outputs;
    for (const planning::OutputUse &use : outcome.outputs)
      outputs[use.tensor] = &use;
    for (OpOperand &operand : terminator->getOpOperands()) {
      int tensor = decision.step.tensorOf.lookup(operand.get());
      if (const planning::OutputUse *use = outputs.lookup(tensor)) {
        operand.set(convert(stored(operand.get()), use->conversions));
        if (!decision.pipelines.empty() && sumsMicrobatches(*use))
          noteCompletion(use->conversions);
      }
    }
    assignRoles();
    if (decision.pipelines.empty()) {
      assignStages(decision.stageOfOp);
      completeAtHome();
    } else {
      assignByPipeline();
    }
    markSlices();
  }

private:
  // With several pipelines every op has its stage in each of them.
  void assignByPipeline() {
    llvm::DenseMap<Operation *, SmallVector<int64_t>> stages, homes;
    auto take = [](Operation &op, StringRef name, auto &of, size_t pipeline) {
      auto attribute = op.getAttrOfType<IntegerAttr>(name);
      if (!attribute)
        return;
      of[&op].resize(pipeline, kNoStage);
      of[&op].push_back(attribute.getInt());
      op.removeAttr(name);
    };
    for (auto [pipeline, one] : llvm::enumerate(decision.pipelines)) {
      assignStages(one.stageOfOp);
      completeAtHome();
      for (Operation &op : step.getBody().front()) {
        take(op, kStageAttr, stages, pipeline);
        take(op, kHomeAttr, homes, pipeline);
      }
    }
    auto give = [&](StringRef name, auto &of) {
      for (auto &[op, numbers] : of) {
        numbers.resize(decision.pipelines.size(), kNoStage);
        op->setAttr(name, DenseI64ArrayAttr::get(context, numbers));
      }
    };
    give(kStageAttr, stages);
    give(kHomeAttr, homes);
  }

  // Of several pipelines: those that compute the op again.
  Attribute recomputed(size_t index) const {
    auto isIn = [&](const std::vector<char> &recompute) {
      return index < recompute.size() && recompute[index];
    };
    if (decision.pipelines.empty())
      return isIn(decision.recompute) ? Attribute(UnitAttr::get(context))
                                      : Attribute();
    SmallVector<int64_t> of;
    for (auto [pipeline, one] : llvm::enumerate(decision.pipelines))
      if (isIn(one.recompute))
        of.push_back(static_cast<int64_t>(pipeline));
    return of.empty() ? Attribute()
                      : Attribute(DenseI64ArrayAttr::get(context, of));
  }

  LayoutAttr attribute(const layout::Layout &layout) {
    return LayoutAttr::get(context, layout);
  }
  void setLayouts(Operation *op, ArrayRef<layout::Layout> layouts) {
    SmallVector<Attribute> attributes;
    for (const layout::Layout &layout : layouts)
      attributes.push_back(attribute(layout));
    op->setAttr(kLayoutsAttr, ArrayAttr::get(context, attributes));
  }

  // Arguments, parameters, constants lie as planned.
  void markLeaves() {
    for (BlockArgument argument : step.getArguments())
      step.setArgAttr(argument.getArgNumber(), kLayoutAttr,
                      attribute(layoutOf(argument)));
    step.walk([&](Operation *op) {
      if (isa<ReadOp, ConstantOp>(op))
        setLayouts(op, {layoutOf(op->getResult(0))});
    });
  }
  const layout::Layout &layoutOf(Value value) {
    return outcome.tensors[decision.step.tensorOf.lookup(value)];
  }

  // The value after the conversions that follow its producer.
  Value stored(Value value) {
    auto it = storedValue.find(value);
    return it == storedValue.end() ? value : it->second;
  }

  // Else it is kept of each, where it is made.
  bool sumsMicrobatches(const planning::OutputUse &use) const {
    return llvm::any_of(use.conversions, [&](int id) {
      return outcome.conversions[id].kind ==
             planning::ConversionKind::Accumulate;
    });
  }

  // Applies conversions in order; each one is built once.
  Value convert(Value value, const std::vector<int> &conversions) {
    for (int id : conversions) {
      if (!converted[id])
        converted[id] = build(outcome.conversions[id], value);
      value = converted[id];
    }
    return value;
  }

  Value build(const planning::Conversion &conversion, Value value) {
    OpBuilder b(context);
    b.setInsertionPointAfterValue(value);
    Location loc = value.getLoc();
    SmallVector<StringRef> names(conversion.axes.begin(),
                                 conversion.axes.end());
    ArrayAttr axes = b.getStrArrayAttr(names);
    auto extents = [&](const layout::Layout &layout, int dim, int factor) {
      std::pair<int64_t, int64_t> around{1, 1};
      const auto &factors = layout.dims[dim].factors;
      for (int i = 0; i < static_cast<int>(factors.size()); ++i)
        (i < factor ? around.first : around.second) *=
            i == factor ? 1 : factors[i].size;
      return around;
    };
    using Kind = planning::ConversionKind;
    Operation *op = nullptr;
    switch (conversion.kind) {
    case Kind::AllReduceSum:
      op = AllReduceOp::create(b, loc, value.getType(), value, axes,
                               Reduction::sum);
      break;
    case Kind::AllReduceMax:
      op = AllReduceOp::create(b, loc, value.getType(), value, axes,
                               Reduction::max);
      break;
    case Kind::AllGather: {
      auto [major, minor] =
          extents(conversion.from, conversion.dim, conversion.factor);
      op = AllGatherOp::create(b, loc, value.getType(), value, axes,
                               conversion.dim, major, minor);
      break;
    }
    case Kind::Slice: {
      auto [major, minor] =
          extents(conversion.to, conversion.dim, conversion.factor);
      op = ShardSliceOp::create(b, loc, value.getType(), value, axes,
                                conversion.dim, major, minor);
      break;
    }
    case Kind::Place: {
      auto [major, minor] =
          extents(conversion.from, conversion.dim, conversion.factor);
      op = PlaceOp::create(b, loc, value.getType(), value, axes, conversion.dim,
                           major, minor);
      break;
    }
    case Kind::ReduceScatter: {
      auto [major, minor] =
          extents(conversion.to, conversion.dim, conversion.factor);
      op = ReduceScatterOp::create(b, loc, value.getType(), value, axes,
                                   conversion.dim, major, minor);
      break;
    }
    case Kind::AllToAll: {
      auto [major, minor] =
          extents(conversion.from, conversion.dim, conversion.factor);
      auto [toMajor, toMinor] =
          extents(conversion.to, conversion.toDim, conversion.toFactor);
      op = AllToAllOp::create(b, loc, value.getType(), value, axes,
                              conversion.dim, major, minor, conversion.toDim,
                              toMajor, toMinor);
      break;
    }
    case Kind::Accumulate:
      op = AccumulateOp::create(b, loc, value.getType(), value);
      if (conversion.joined)
        op->setAttr(kJoinAttr, b.getI64IntegerAttr(0));
      break;
    }
    setLayouts(op, {conversion.to});
    if (conversion.life)
      op->setAttr(kLifeAttr,
                  b.getStringAttr(*conversion.life == planning::GatherLife::Use
                                      ? kLifeUse
                                      : kLifeStep));
    if (isRegathered(conversion, value))
      op->setAttr(kRegatherAttr, b.getUnitAttr());
    // Where only the factor's index is needed later, keep it beside the op.
    op->setAttr("dist.from", attribute(conversion.from));
    if (conversion.factor >= 0)
      op->setAttr("dist.factor", b.getI64IntegerAttr(conversion.factor));
    if (conversion.toFactor >= 0)
      op->setAttr("dist.to_factor", b.getI64IntegerAttr(conversion.toFactor));
    inserted.push_back(op);
    if (planning::isStacked(decision.step.graph, conversion))
      stacked.insert(op);
    else if (planning::isOfEach(decision.step.graph, conversion))
      scatteredEach.insert(op);
    return op->getResult(0);
  }

  bool isRegathered(const planning::Conversion &conversion, Value value) const {
    Operation *maker = value.getDefiningOp();
    return !decision.assignment.regathered.empty() &&
           conversion.kind == planning::ConversionKind::AllGather &&
           conversion.phase == planning::Phase::Backward && maker &&
           roleOf(maker) == kForward;
  }

  void applyToOp(int index, Operation *op) {
    const planning::OpOutcome &result = outcome.ops[index];
    if (Attribute again = recomputed(size_t(index)))
      op->setAttr(kRecomputeAttr, again);
    if (views[size_t(index)])
      op->setAttr(kViewAttr, UnitAttr::get(context));
    if (result.late) {
      op->setAttr(kRoleAttr, StringAttr::get(context, kUpdate));
      op->setAttr(kLateAttr, UnitAttr::get(context));
      op->removeAttr(kRecomputeAttr);
    }
    if (result.join || result.afterJoin) {
      op->setAttr(kRoleAttr, StringAttr::get(context, kBackwardInput));
      op->removeAttr(kRecomputeAttr);
    }
    if (result.join)
      op->setAttr(kJoinAttr,
                  IntegerAttr::get(IntegerType::get(context, 64), result.join));
    const std::set<planning::TensorUse> &crossing =
        decision.assignment.complete;
    for (auto [operand, use] :
         llvm::zip_equal(op->getOpOperands(), result.operands)) {
      operand.set(convert(stored(operand.get()), use.conversions));
      if (crossing.count({index, static_cast<int>(operand.getOperandNumber())}))
        noteCompletion(use.conversions);
    }
    if (op->getNumResults())
      setLayouts(op, result.produced);
    for (auto [value, after] : llvm::zip(op->getResults(), result.after))
      if (!after.empty())
        storedValue[value] = convert(value, after);
  }

  // A conversion belongs to the earliest action that needs it.
  void assignRoles() {
    auto rank = [](StringRef role) {
      return role == kForward          ? 0
             : role == kBackwardInput  ? 1
             : role == kBackwardWeight ? 2
                                       : 3;
    };
    constexpr StringLiteral names[] = {kForward, kBackwardInput,
                                       kBackwardWeight, kUpdate};
    lastFirst = inserted;
    llvm::sort(lastFirst, [](Operation *a, Operation *b) {
      return b->isBeforeInBlock(a);
    });
    for (Operation *op : lastFirst) {
      int best = 3;
      for (Operation *user : op->getUsers())
        if (!user->hasTrait<OpTrait::IsTerminator>())
          best = std::min(best, rank(roleOf(user)));
      if (Operation *of = op->getOperand(0).getDefiningOp();
          of && scatteredEach.contains(op))
        best = rank(scatteredEach.contains(of) ? StringRef(kBackwardWeight)
                                               : roleOf(of));
      if (stacked.contains(op))
        best = rank(kBackwardWeight);
      op->setAttr(kRoleAttr, StringAttr::get(context, names[best]));
      Operation *source = op->getOperand(0).getDefiningOp();
      while (source && llvm::is_contained(inserted, source) &&
             !isa<AccumulateOp>(source))
        source = source->getOperand(0).getDefiningOp();
      if (best == 3 && source && source->hasAttr(kLateAttr))
        op->setAttr(kLateAttr, UnitAttr::get(context));
    }
  }

  // Taking one's part of a value and joining submicrobatches costs no
  // communication: as its producer. Collectives are not marked, so that
  // recomputation issues none.
  void markSlices() {
    auto isLocal = [](Operation *op) {
      auto axes = op->getAttrOfType<ArrayAttr>("axes");
      return isa<ShardSliceOp>(op) ||
             (isa<AllReduceOp, AllGatherOp>(op) && axes.size() == 1 &&
              cast<StringAttr>(axes[0]).getValue() == kSubmicrobatchAxis);
    };
    for (Operation *op : inserted)
      if (isLocal(op))
        if (Operation *producer = op->getOperand(0).getDefiningOp();
            producer && producer->hasAttr(kRecomputeAttr))
          op->setAttr(kRecomputeAttr, producer->getAttr(kRecomputeAttr));
  }

  void setStage(Operation *op, int64_t stage) {
    op->setAttr(kStageAttr,
                IntegerAttr::get(IntegerType::get(context, 64), stage));
  }

  void assignStages(const std::vector<int> &stageOfOp) {
    std::map<int64_t, int64_t> stageOfId;
    for (auto [index, op] : llvm::enumerate(decision.step.ops))
      if (int stage = stageOfOp[index]; stage >= 0) {
        setStage(op, stage);
        if (auto id = op->getAttrOfType<IntegerAttr>(kIdAttr))
          stageOfId.try_emplace(id.getInt(), stage);
      }
    Block &block = step.getBody().front();
    // Parameters are converted wherever they are used, so that their gradients
    // are converted where the product is: none of them is sent.
    llvm::SmallDenseSet<int64_t> conversions;
    for (auto cast : block.getOps<CastOp>())
      if (auto id = cast->getAttrOfType<IntegerAttr>(kIdAttr);
          id && cast.getX().getDefiningOp<ReadOp>())
        conversions.insert(id.getInt());
    for (Operation &op : block)
      if (auto of = op.getAttrOfType<IntegerAttr>(kOfAttr)) {
        if (isa<CastOp>(op) && conversions.contains(of.getInt()))
          op.removeAttr(kStageAttr);
        else if (auto it = stageOfId.find(of.getInt()); it != stageOfId.end())
          setStage(&op, it->second);
      }
    auto stageOf = [](Operation *op) {
      return op ? op->getAttrOfType<IntegerAttr>(kStageAttr) : IntegerAttr();
    };
    // The stage that comes to one of the users first: the forward pass goes
    // from the first stage to the last one, the backward pass back.
    auto firstUse = [&](Operation *op) {
      IntegerAttr first;
      bool forward = roleOf(op) == kForward;
      for (Operation *user : op->getUsers())
        if (IntegerAttr of = stageOf(user);
            of && (!first || (forward ? of.getInt() < first.getInt()
                                      : of.getInt() > first.getInt())))
          first = of;
      return first;
    };
    // Conversions for gradients of parameters, those of forward values for
    // gradients and those of what is on every stage: with the first user, so
    // that no W waits for that of another stage, and no F or B for one that it
    // comes before.
    llvm::SmallDenseSet<Operation *> isInserted(inserted.begin(),
                                                inserted.end());
    // Parts are put side by side where the sum of them is read.
    auto isStack = [&](Operation *op) {
      return isa<AccumulateOp>(op) &&
             stacked.contains(op->getOperand(0).getDefiningOp());
    };
    for (Operation *op : lastFirst) {
      Operation *source = op;
      while (source && isInserted.contains(source))
        source = source->getOperand(0).getDefiningOp();
      StringRef role = roleOf(op);
      bool ofForward = !source || roleOf(source) == kForward;
      auto cast = dyn_cast_or_null<CastOp>(source);
      bool everywhere = !source || isa<ReadOp, ConstantOp>(source) ||
                        (cast && cast.getX().getDefiningOp<ReadOp>());
      if (role == kBackwardWeight || isStack(op) ||
          (role == kBackwardInput && ofForward) || everywhere)
        if (IntegerAttr first = firstUse(op))
          op->setAttr(kStageAttr, first);
    }
    // The rest (the loss's own gradient, conversions): with the producer, or
    // with the first user where the operand is on every stage.
    bool changed = true;
    while (changed) {
      changed = false;
      for (Operation &op : block) {
        if (stageOf(&op) || isa<ReadOp, ConstantOp>(op) ||
            op.hasTrait<OpTrait::IsTerminator>() || roleOf(&op) == kUpdate)
          continue;
        IntegerAttr stage;
        for (Value operand : op.getOperands())
          if (IntegerAttr of = stageOf(operand.getDefiningOp()); of && !stage)
            stage = of;
        if (!stage)
          stage = firstUse(&op);
        if (stage) {
          op.setAttr(kStageAttr, stage);
          changed = true;
        }
      }
    }
  }

  // Those up to the last sum over devices.
  void noteCompletion(const std::vector<int> &conversions) {
    size_t end = 0;
    for (auto [index, id] : llvm::enumerate(conversions))
      if (isa<AllReduceOp, ReduceScatterOp>(converted[id].getDefiningOp()))
        end = index + 1;
    for (int id : ArrayRef<int>(conversions).take_front(end))
      completed.insert(converted[id].getDefiningOp());
  }

  // What is sent to a stage on another mesh is complete where and when it is
  // made: later actions there may wait for those that need it. Sums of the
  // update are made in the exchange.
  void completeAtHome() {
    const llvm::SmallDenseSet<Operation *> isInserted(inserted.begin(),
                                                      inserted.end());
    for (Operation *op : inserted) {
      if (!completed.contains(op) || isa<AccumulateOp>(op))
        continue;
      Operation *source = op;
      bool summed = false; // over microbatches: when that is complete
      while (source && isInserted.contains(source)) {
        summed |= isa<AccumulateOp>(source);
        source = source->getOperand(0).getDefiningOp();
      }
      auto stage = source ? source->getAttrOfType<IntegerAttr>(kStageAttr)
                          : IntegerAttr();
      // What is made everywhere is summed on one stage of each pipeline.
      if (!stage && roleOf(op) == kUpdate && !decision.pipelines.empty())
        stage = IntegerAttr::get(IntegerType::get(context, 64), 0);
      if (!stage)
        continue;
      if (roleOf(op) == kUpdate) {
        op->setAttr(kHomeAttr, stage);
        continue;
      }
      op->setAttr(kStageAttr, stage);
      if (!summed)
        op->setAttr(kRoleAttr, StringAttr::get(context, roleOf(source)));
    }
  }

  func::FuncOp step;
  Decision &decision;
  MLIRContext *context;
  const planning::Outcome &outcome;
  std::vector<Value> converted;
  std::vector<char> views; // by op
  llvm::DenseMap<Value, Value> storedValue;
  SmallVector<Operation *> inserted, lastFirst;
  llvm::SmallDenseSet<Operation *> scatteredEach, stacked;
  llvm::SmallDenseSet<Operation *> completed; // conversions of crossing uses
};

} // namespace

LogicalResult merak::applyLayouts(func::FuncOp step, Decision &decision) {
  LayoutApplier(step, decision).run();
  return success();
}
