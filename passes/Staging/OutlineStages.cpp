#include "passes/Staging/OutlineStages.h"

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Staging/ApplyLayouts.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"
#include <set>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

// Where an op runs: an action of a part of the model. What a stage does once a
// step, or for all its parts (P, S, U), is an action of its first part.
using Place = std::pair<int64_t, pipe::Action>;

class Outliner {
public:
  Outliner(func::FuncOp step, const OutlineOptions &options)
      : step(step), block(step.getBody().front()),
        module(step->getParentOfType<ModuleOp>()), options(options),
        context(step.getContext()), b(context) {}

  LogicalResult run() {
    b.setInsertionPoint(step);
    for (int64_t s = 0; s < options.stages; ++s) {
      auto stage =
          StageOp::create(b, step.getLoc(), "stage" + std::to_string(s), s,
                          pipe::ScheduleAttr());
      stage.getBody().emplaceBlock();
      stages.push_back(stage);
      inStage.emplace_back();
    }
    findRematerializable();
    findRecomputed();
    findHomes();
    SmallVector<train::UpdateOp> updates;
    SmallVector<Operation *> forward, backward;
    for (Operation &op : block.without_terminator()) {
      if (auto update = dyn_cast<train::UpdateOp>(op))
        updates.push_back(update);
      if (isEverywhere(&op) || roleOf(&op) == kUpdate || isa<AccumulateOp>(op))
        continue;
      (roleOf(&op) == kForward ? forward : backward).push_back(&op);
    }
    for (Operation *op : forward)
      cloneInto(op, homeOf(op));
    // In the order of F, so that both compute the same in the same way.
    for (Operation *op : forward)
      if (recomputed.contains(op))
        cloneInto(op, {partOf(op), pipe::Action::R});
    for (Operation *op : backward)
      cloneInto(op, homeOf(op));
    if (failed(emitOutputs()) || failed(emitUpdates(updates)))
      return failure();
    averageTracked();
    orderActions();
    step.erase();
    return success();
  }

private:
  //===--------------------------------------------------------------------===//
  // Places
  //===--------------------------------------------------------------------===//

  // Cheap ops that hang on data and constants alone run wherever they are
  // needed instead of being kept or sent.
  void findRematerializable() {
    for (Operation &op : block.without_terminator()) {
      if (!isPure(&op) || op.getNumOperands() == 0 ||
          op.hasTrait<Contraction>() ||
          // Conversions between submicrobatches of the tokens stay on the
          // device.
          (isa<DistDialect>(op.getDialect()) && !isOverSubmicrobatches(&op)) ||
          roleOf(&op) == kUpdate)
        continue;
      bool cheap = llvm::all_of(op.getOperands(), [&](Value operand) {
        Operation *producer = operand.getDefiningOp();
        // A parameter in another type costs less to make than to keep.
        return !producer || isa<ConstantOp>(producer) ||
               rematerializable.contains(producer) ||
               (isa<CastOp>(op) && isa<ReadOp>(producer));
      });
      if (cheap)
        rematerializable.insert(&op);
    }
  }
  // What R computes again: marked ops whose results the backward pass of their
  // part reads, and the marked ops these results come from. All else that R
  // reads is kept by F; collectives are never marked.
  void findRecomputed() {
    SmallVector<Operation *> work;
    auto visit = [&](Operation *reader) {
      for (Value operand : reader->getOperands()) {
        Operation *op = operand.getDefiningOp();
        if (op && op->hasAttr(kRecomputeAttr) && roleOf(op) == kForward &&
            !isEverywhere(op) && partOf(op) == partOf(reader) &&
            recomputed.insert(op).second)
          work.push_back(op);
      }
    };
    for (Operation &op : block.without_terminator())
      if (StringRef role = roleOf(&op);
          role == kBackwardInput || role == kBackwardWeight)
        visit(&op);
    while (!work.empty())
      visit(work.pop_back_val());
  }
  bool isEverywhere(Operation *op) {
    return isa<ReadOp, ConstantOp>(op) || rematerializable.contains(op);
  }
  int64_t partOf(Operation *op) {
    auto part = op->getAttrOfType<IntegerAttr>(kStageAttr);
    return part ? part.getInt() : 0;
  }
  int64_t stageOf(Place place) { return place.first % options.stages; }
  int64_t chunkOf(Place place) { return place.first / options.stages; }
  Place onStage(Place place, pipe::Action action) {
    return {stageOf(place), action};
  }
  Place homeOf(Operation *op) {
    StringRef role = roleOf(op);
    pipe::Action action = role == kForward          ? pipe::Action::F
                          : role == kBackwardInput  ? pipe::Action::B
                          : role == kBackwardWeight ? pipe::Action::W
                                                    : pipe::Action::U;
    if (auto join = op->getAttrOfType<IntegerAttr>(kJoinAttr))
      return {partOf(op) % options.stages +
                  (prologues + join.getInt() - 1) * options.stages,
              pipe::Action::P};
    return {partOf(op), action};
  }
  // The prologue before the forward pass has nothing of other actions, the
  // passes after it have what forwards and passes before them left.
  bool mayLoad(Operation *op, Place place) {
    if (place.second != pipe::Action::P)
      return true;
    pipe::Action home = homeOf(op).second;
    return chunkOf(place) >= prologues &&
           (home == pipe::Action::F || home == pipe::Action::P);
  }

  static constexpr StringLiteral kActionNames[] = {
      "prologue", "forward", "recompute", "backward",
      "weight",   "update",  "exchange"};
  static std::string actionName(int action, int64_t chunk) {
    std::string name = kActionNames[action].str();
    return chunk ? name + "." + std::to_string(chunk) : name;
  }
  // Values and actions are symbols of one table, and a user may call an input
  // "weight".
  static bool isActionName(StringRef name) {
    auto [word, chunk] = name.split('.');
    return llvm::is_contained(kActionNames, word) &&
           llvm::all_of(chunk, llvm::isDigit);
  }

  // The body of an action, made at its first use.
  Block *bodyOf(Place place) {
    Block *&body = bodies[place];
    if (!body) {
      OpBuilder builder =
          OpBuilder::atBlockEnd(&stages[stageOf(place)].getBody().front());
      auto action = ActionOp::create(
          builder, step.getLoc(),
          actionName(static_cast<int>(place.second), chunkOf(place)),
          place.second, chunkOf(place));
      body = &action.getBody().emplaceBlock();
    }
    return body;
  }

  //===--------------------------------------------------------------------===//
  // Named values
  //===--------------------------------------------------------------------===//

  ValueOp declare(int64_t stage, StringRef wish, Type type, ValueKind kind,
                  LayoutAttr layout, StringRef tensor,
                  std::optional<Location> from = {}) {
    std::string name = wish.str();
    for (int n = 1; isActionName(name) || !names[stage].insert(name).second;
         ++n)
      name = (wish + "_" + Twine(n)).str();
    // Declarations stand before the actions, in the order they were made.
    OpBuilder builder(context);
    Block &body = stages[stage].getBody().front();
    if (inStage[stage].lastValue)
      builder.setInsertionPointAfter(inStage[stage].lastValue);
    else
      builder.setInsertionPointToStart(&body);
    auto value = ValueOp::create(
        builder, from.value_or(step.getLoc()), builder.getStringAttr(name),
        TypeAttr::get(type), ValueKindAttr::get(context, kind), layout,
        tensor.empty() ? StringAttr() : builder.getStringAttr(tensor));
    inStage[stage].lastValue = value;
    return value;
  }
  // A value that has one declaration per stage, by a key.
  ValueOp declareOnce(int64_t stage, StringRef key, Type type, ValueKind kind,
                      LayoutAttr layout, StringRef tensor) {
    ValueOp &value = inStage[stage].byKey[key.str()];
    if (!value)
      value = declare(stage, key, type, kind, layout, tensor);
    return value;
  }

  LayoutAttr layoutOf(Value value) {
    if (auto argument = dyn_cast<BlockArgument>(value))
      return step.getArgAttrOfType<LayoutAttr>(argument.getArgNumber(),
                                               kLayoutAttr);
    auto result = cast<OpResult>(value);
    auto layouts =
        value.getDefiningOp()->getAttrOfType<ArrayAttr>(kLayoutsAttr);
    return layouts ? cast<LayoutAttr>(layouts[result.getResultNumber()])
                   : LayoutAttr();
  }
  // The layout without partial sums over microbatches: what a store that
  // accumulates leaves.
  LayoutAttr accumulatedLayout(Value value) {
    layout::Layout layout = layoutOf(value).getLayout();
    llvm::erase(layout.partial, kMicrobatchAxis);
    llvm::erase(layout.partial, kSubmicrobatchAxis);
    return LayoutAttr::get(context, layout);
  }

  Value load(Place place, ValueOp value, Location loc) {
    OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
    return LoadOp::create(builder, loc, value.getType(),
                          FlatSymbolRefAttr::get(value.getSymNameAttr()));
  }
  void storeAfter(Value inner, Place place, ValueOp value, bool accumulate) {
    OpBuilder builder(context);
    if (inner.getDefiningOp()->getBlock() == bodyOf(place))
      builder.setInsertionPointAfterValue(inner);
    else
      builder.setInsertionPointToEnd(bodyOf(place));
    StoreOp::create(builder, inner.getLoc(), inner,
                    FlatSymbolRefAttr::get(value.getSymNameAttr()),
                    accumulate ? builder.getUnitAttr() : UnitAttr());
  }

  //===--------------------------------------------------------------------===//
  // Emission
  //===--------------------------------------------------------------------===//

  Operation *cloneInto(Operation *op, Place place) {
    IRMapping mapping;
    for (Value operand : op->getOperands())
      mapping.map(operand, materialize(operand, place));
    OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
    Operation *clone = builder.clone(*op, mapping);
    clone->removeAttr(kStageAttr);
    clone->removeAttr(kRecomputeAttr);
    for (auto [outer, inner] : llvm::zip(op->getResults(), clone->getResults()))
      local[{place, outer}] = inner;
    if (auto track = dyn_cast<TrackOp>(op))
      storeTracked(track, cast<TrackOp>(clone), place);
    return clone;
  }

  // A running statistic is written where the forward pass computes it.
  void storeTracked(TrackOp outer, TrackOp inner, Place place) {
    auto read = outer.getRunning().getDefiningOp<ReadOp>();
    module.lookupSymbol<ParameterOp>(read.getParameterAttr())
        ->setAttr(kStatisticAttr, UnitAttr::get(context));
    ValueOp value = declareParameter(stageOf(place), read);
    storeAfter(inner.getUpdated(), place, value, false);
    tracked[stageOf(place)].insert(value);
  }

  // The value inside an action, loaded, received or recomputed as needed.
  Value materialize(Value value, Place place) {
    Value &known = local[{place, value}];
    if (known)
      return known;
    Value made = make(value, place);
    local[{place, value}] = made;
    return made;
  }

  Value make(Value value, Place place) {
    Operation *op = value.getDefiningOp();
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto name =
          step.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kNameAttr);
      ValueOp input =
          declareOnce(stageOf(place), name.getValue(), value.getType(),
                      ValueKind::input, layoutOf(value), name.getValue());
      return load(place, input, step.getLoc());
    }
    if (auto read = dyn_cast<ReadOp>(op)) {
      // What runs once a step has no copies of parameters of its own.
      Stages stages = homesOf(value);
      if (isPerStep(place) && stages && !stages->count(stageOf(place)))
        return makeOnce(value, place);
      return load(place, declareParameter(stageOf(place), read), op->getLoc());
    }
    if (isEverywhere(op))
      return cloneInto(op, place)->getResult(
          cast<OpResult>(value).getResultNumber());
    if (auto accumulate = dyn_cast<AccumulateOp>(op))
      return makeAccumulated(accumulate, place);
    if (isOnce(op))
      return makeOnce(value, place);
    if (roleOf(op) == kUpdate || !mayLoad(op, place))
      return cloneInto(op, place)->getResult(
          cast<OpResult>(value).getResultNumber());
    if (isPerStep(place))
      return isOfMicrobatch(value) ? loadGradient(value, place)
                                   : makeOnce(value, place);
    Place home = homeOf(op);
    if (home.first == place.first && recomputed.contains(op) &&
        place.second != pipe::Action::P)
      home.second = pipe::Action::R;
    ValueOp kept = keep(value, home);
    if (stageOf(home) == stageOf(place))
      return load(place, kept, value.getLoc());
    return load(place, receive(kept, value, home, stageOf(place)),
                value.getLoc());
  }

  ValueOp declareParameter(int64_t stage, ReadOp read) {
    auto parameter = module.lookupSymbol<ParameterOp>(read.getParameterAttr());
    return declareOnce(stage, read.getParameter(), read.getResult().getType(),
                       parameter.getTrainable() && options.train
                           ? ValueKind::parameter
                           : ValueKind::constant,
                       layoutOf(read.getResult()), read.getParameter());
  }

  // Keeps a value of one action for later ones of the same microbatch.
  ValueOp keep(Value value, Place home) {
    ValueOp &kept = activation[{value, static_cast<int>(home.second)}];
    if (!kept) {
      kept =
          declare(stageOf(home), "act" + std::to_string(activation.size() - 1),
                  value.getType(), ValueKind::activation, layoutOf(value), "",
                  value.getLoc());
      storeAfter(local.at({home, value}), home, kept, false);
    }
    return kept;
  }

  ValueOp receive(ValueOp source, Value value, Place home, int64_t stage) {
    ValueOp &target = received[{value, stage}];
    if (!target) {
      target = declare(
          stage,
          ("from" + Twine(stageOf(home)) + "_" + source.getSymName()).str(),
          value.getType(), ValueKind::activation, layoutOf(value), "",
          value.getLoc());
      transfer(source, home, target, stage);
    }
    return target;
  }
  void transfer(ValueOp source, Place from, ValueOp target, int64_t to) {
    OpBuilder builder(step);
    auto path = [&](int64_t stage, ValueOp value) {
      return SymbolRefAttr::get(
          context, stages[stage].getSymName(),
          {FlatSymbolRefAttr::get(value.getSymNameAttr())});
    };
    TransferOp::create(builder, source.getLoc(),
                       "t" + std::to_string(transfers++),
                       path(stageOf(from), source), path(to, target),
                       from.second, chunkOf(from));
  }

  //===--------------------------------------------------------------------===//
  // Once a step
  //===--------------------------------------------------------------------===//

  static bool isPerStep(Place place) {
    return place.second == pipe::Action::U || place.second == pipe::Action::S;
  }
  static bool isOnce(Operation *op) { return op->hasAttr(kLateAttr); }
  // Whether each microbatch has its own value. With one, a value that the
  // update reads comes out of its buffer.
  bool isOfMicrobatch(Value value) {
    auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr);
    LayoutAttr attribute = layoutOf(value);
    if (!mesh || mesh.getSize(kMicrobatchAxis) == 1 || !attribute)
      return true;
    const layout::Layout &layout = attribute.getLayout();
    bool found = llvm::is_contained(layout.partial, kMicrobatchAxis);
    for (const layout::DimLayout &dim : layout.dims)
      for (const layout::Factor &factor : dim.factors)
        found |= llvm::is_contained(factor.axes, kMicrobatchAxis);
    return found;
  }

  // Stages that read each parameter for a microbatch.
  void findHomes() {
    for (auto sum : block.getOps<AccumulateOp>())
      if (!sum->hasAttr(kJoinAttr) && roleOf(sum) != kUpdate)
        prologues = std::max(prologues, levelOf(sum));
    for (auto read : block.getOps<ReadOp>())
      addReaders(read, readers[read.getParameter()]);
  }
  void addReaders(Operation *op, std::set<int64_t> &stagesOf) {
    for (Operation *user : op->getUsers()) {
      if (isOnce(user) || roleOf(user) == kUpdate)
        continue;
      if (isEverywhere(user))
        addReaders(user, stagesOf);
      else
        stagesOf.insert(partOf(user) % options.stages);
    }
  }
  // Stages that have all an op of the update is made of: none, if it is made
  // of parts of several, no set if that is everywhere.
  using Stages = std::optional<std::set<int64_t>>;
  Stages homesOf(Value value) {
    Operation *op = value.getDefiningOp();
    if (!op)
      return {};
    if (auto read = dyn_cast<ReadOp>(op)) {
      const std::set<int64_t> &of = readers[read.getParameter()];
      return of.empty() ? Stages() : Stages(of);
    }
    if (isa<AccumulateOp>(op)) {
      Operation *maker = op->getOperand(0).getDefiningOp();
      if (!maker || isEverywhere(maker))
        return {};
      return Stages({partOf(maker) % options.stages});
    }
    auto [it, isNew] = homes.try_emplace(op);
    if (!isNew)
      return it->second;
    Stages common;
    for (Value operand : op->getOperands()) {
      Stages of = homesOf(operand);
      if (!of)
        continue;
      if (!common) {
        common = of;
        continue;
      }
      std::set<int64_t> both;
      for (int64_t stage : *of)
        if (common->count(stage))
          both.insert(stage);
      common = both;
    }
    return homes[op] = common;
  }

  // What is the same for all microbatches is made where its parameters are and
  // sent in the exchange; of parts from several stages, where it is needed.
  Value makeOnce(Value value, Place place) {
    Operation *op = value.getDefiningOp();
    Stages stages = homesOf(value);
    if (!stages || stages->empty() || stages->count(stageOf(place)))
      return cloneInto(op, place)->getResult(
          cast<OpResult>(value).getResultNumber());
    Place exchange{*stages->begin(), pipe::Action::S};
    return load(place, exchangeOf(value, exchange, place), value.getLoc());
  }

  // A value of a stage's exchange as another stage's update has it.
  ValueOp exchangeOf(Value value, Place exchange, Place place,
                     ValueOp sum = {}) {
    if (ValueOp known = exchanged.lookup({value, stageOf(place)}))
      return known;
    ValueOp copy = sending.lookup({value, stageOf(exchange)});
    LayoutAttr layout = accumulatedLayout(value);
    if (!copy) {
      Value inner = sum ? load(exchange, sum, value.getLoc())
                        : materialize(value, exchange);
      std::string name = sum ? ("send_" + sum.getSymName()).str() : "send_once";
      copy = declare(stageOf(exchange), name, value.getType(),
                     ValueKind::activation, layout, "");
      sending[{value, stageOf(exchange)}] = copy;
      storeAfter(inner, exchange, copy, false);
    }
    ValueOp target =
        declare(stageOf(place),
                ("from" + Twine(stageOf(exchange)) + "_" +
                 (sum ? sum.getSymName() : copy.getSymName()))
                    .str(),
                value.getType(), ValueKind::activation, layout, "");
    exchanged[{value, stageOf(place)}] = target;
    transfer(copy, exchange, target, stageOf(place));
    return target;
  }

  // A sum over microbatches. Before the update it comes out of the prologue,
  // which depends on data only and so runs on every stage that needs it.
  Value makeAccumulated(AccumulateOp op, Place place) {
    if (isPerStep(place))
      return loadGradient(op.getX(), place);
    if (op->hasAttr(kJoinAttr))
      return makeJoined(op, place);
    Place prologue{stageOf(place) + levelOf(op.getX()) * options.stages,
                   pipe::Action::P};
    std::string key = "step" + std::to_string(indexOf(op));
    ValueOp &sum = inStage[stageOf(place)].byKey[key];
    if (!sum) {
      sum = declare(stageOf(place), key, op.getType(), ValueKind::step,
                    accumulatedLayout(op.getX()), "");
      storeAfter(materialize(op.getX(), prologue), prologue, sum, true);
    }
    return load(place, sum, op.getLoc());
  }
  // A sum that depends on parameters is stored where its summands are made; on
  // another stage, by the forward action that receives them. A sum of gradients
  // goes back whole.
  Value makeJoined(AccumulateOp op, Place place) {
    Operation *maker = op.getX().getDefiningOp();
    Place made = homeOf(maker);
    if (made.second != pipe::Action::F && stageOf(made) != stageOf(place)) {
      Place back{partOf(maker), pipe::Action::B};
      materialize(op.getY(), back);
      ValueOp kept = keep(op.getY(), back);
      return load(place, receive(kept, op.getY(), back, stageOf(place)),
                  op.getLoc());
    }
    std::string key = "join" + std::to_string(indexOf(op));
    ValueOp &sum = inStage[stageOf(place)].byKey[key];
    if (!sum) {
      sum = declare(stageOf(place), key, op.getType(), ValueKind::step,
                    accumulatedLayout(op.getX()), "");
      Place home = homeOf(op.getX().getDefiningOp());
      if (stageOf(home) != stageOf(place))
        home = {place.second == pipe::Action::P ? stageOf(place) : place.first,
                pipe::Action::F};
      storeAfter(materialize(op.getX(), home), home, sum, true);
    }
    return load(place, sum, op.getLoc());
  }

  // The prologue goes over the microbatches as often as sums are made of sums:
  // how many such sums stand behind a value.
  int64_t levelOf(Value value) {
    Operation *op = value.getDefiningOp();
    if (!op)
      return 0;
    auto [it, isNew] = levels.try_emplace(op, 0);
    if (!isNew)
      return it->second;
    int64_t level = 0;
    for (Value operand : op->getOperands())
      level = std::max(level, levelOf(operand));
    return levels[op] = level + isa<AccumulateOp>(op);
  }
  size_t indexOf(Operation *op) {
    return accumulates.try_emplace(op, accumulates.size()).first->second;
  }

  // A per-microbatch value as the update sees it: summed in a buffer of its
  // stage; another stage gets it in the exchange.
  Value loadGradient(Value value, Place place) {
    Operation *op = value.getDefiningOp();
    Place home = op && !isEverywhere(op) ? homeOf(op)
                                         : Place{place.first, pipe::Action::F};
    ValueOp &sum = accumulated[value];
    if (!sum) {
      sum = declare(
          stageOf(home), "sum" + std::to_string(accumulated.size() - 1),
          value.getType(),
          tensorTypeOf(value).getRank() ? ValueKind::gradient : ValueKind::step,
          accumulatedLayout(value), "", value.getLoc());
      storeAfter(materialize(value, home), home, sum, true);
    }
    if (stageOf(home) == stageOf(place))
      return load(place, sum, value.getLoc());
    Place exchange = onStage(home, pipe::Action::S);
    return load(place, exchangeOf(value, exchange, place, sum), value.getLoc());
  }

  //===--------------------------------------------------------------------===//
  // Results and updates
  //===--------------------------------------------------------------------===//

  void storeResult(Value inner, Place place, StringRef name,
                   LayoutAttr layout) {
    ValueOp result = declare(stageOf(place), name, inner.getType(),
                             ValueKind::result, layout, name);
    OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
    StoreOp::create(builder, inner.getLoc(), inner,
                    FlatSymbolRefAttr::get(result.getSymNameAttr()),
                    UnitAttr());
  }

  // The part that computes a value, looking through ops of the update.
  int64_t partBehind(Value value) {
    Operation *op = value.getDefiningOp();
    if (!op || isEverywhere(op))
      return options.stages * options.chunks - 1;
    if (roleOf(op) == kUpdate || isa<AccumulateOp>(op))
      return partBehind(op->getOperand(0));
    return partOf(op);
  }

  // Whether a value is made of sums over microbatches.
  bool isSummed(Value value) {
    Operation *op = value.getDefiningOp();
    return op && (isa<AccumulateOp>(op) ||
                  (roleOf(op) == kUpdate &&
                   llvm::any_of(op->getOperands(),
                                [&](Value v) { return isSummed(v); })));
  }

  LogicalResult emitOutputs() {
    Operation *terminator = block.getTerminator();
    for (auto [index, value] : llvm::enumerate(terminator->getOperands())) {
      auto name = step.getResultAttrOfType<StringAttr>(index, kNameAttr);
      // Sums over microbatches are complete after the last one; without
      // training all other outputs are kept for each.
      Place place{partBehind(value), pipe::Action::F};
      if (options.train || isSummed(value))
        place = onStage(place, pipe::Action::U);
      storeResult(materialize(value, place), place,
                  name ? name.getValue() : "output", layoutOf(value));
    }
    return success();
  }

  // Stages that hold a copy of each parameter.
  std::map<StringRef, std::set<int64_t>> findHolders() {
    std::map<StringRef, std::set<int64_t>> holders;
    for (auto [index, stage] : llvm::enumerate(inStage))
      for (auto &[key, value] : stage.byKey)
        if (value.getKind() == ValueKind::parameter)
          holders[value.getTensorAttr().getValue()].insert(index);
    return holders;
  }

  LogicalResult emitUpdates(ArrayRef<train::UpdateOp> updates) {
    auto holders = findHolders();
    // Per stage: parameter and reduced gradient.
    std::vector<SmallVector<std::pair<train::UpdateOp, Value>>> work(
        options.stages);
    for (train::UpdateOp update : updates)
      for (int64_t stage : holders[update.getParameter()]) {
        Place place{stage, pipe::Action::U};
        work[stage].push_back(
            {update, materialize(update.getGradient(), place)});
      }
    if (updates.empty())
      return success();
    std::map<StringRef, size_t> position;
    for (size_t i = 0; i < updates.size(); ++i) {
      train::UpdateOp update = updates[i];
      position[update.getParameter()] = i;
    }
    for (int64_t stage = 0; stage < options.stages; ++stage) {
      Value clip = emitNorm(stage, work[stage], position, holders);
      for (auto &[update, gradient] : work[stage])
        emitUpdate({stage, pipe::Action::U}, update, gradient, clip);
    }
    return success();
  }

  // The axes over which ranks hold different parts of a parameter, in one
  // order.
  SmallVector<StringRef> splitOver(train::UpdateOp update) {
    layout::Layout parameter = layoutOf(update.getParameterValue()).getLayout();
    std::set<std::string> axes;
    for (const layout::DimLayout &dim : parameter.dims)
      for (const layout::Factor &factor : dim.factors)
        axes.insert(factor.axes.begin(), factor.axes.end());
    SmallVector<StringRef> ranks;
    for (auto [axis, size] :
         {std::pair<StringRef, int64_t>(kDataAxis, options.dp),
          {kTensorAxis, options.tp}})
      if (size > 1 && axes.count(axis.str()))
        ranks.push_back(axis);
    return ranks;
  }

  // The norm of all gradients. Each parameter has one place in a vector, so
  // that the sum over stages adds zeros and its order is the same for every
  // cut.
  Value emitNorm(int64_t stage,
                 ArrayRef<std::pair<train::UpdateOp, Value>> work,
                 const std::map<StringRef, size_t> &position,
                 std::map<StringRef, std::set<int64_t>> &holders) {
    OpBuilder builder = OpBuilder::atBlockEnd(bodyOf({stage, pipe::Action::U}));
    Location loc = step.getLoc();
    auto one = RankedTensorType::get({1}, builder.getF32Type());
    auto replicated = LayoutAttr::get(context, layout::Layout{{{}}, {}});
    auto setLayout = [&](Value value, LayoutAttr layout) {
      value.getDefiningOp()->setAttr(kLayoutsAttr,
                                     builder.getArrayAttr({layout}));
      return value;
    };
    Value zero = setLayout(zerosLike(builder, loc, one), replicated);
    // By the axes over which parameters are split: each rank has a part of
    // their squares.
    const SmallVector<Value> zeros(position.size(), zero);
    std::map<SmallVector<StringRef>, SmallVector<Value>> squaresOf;
    squaresOf[{}] = zeros;
    for (auto [constUpdate, gradient] : work) {
      train::UpdateOp update = constUpdate;
      if (*holders[update.getParameter()].begin() != stage)
        continue;
      SmallVector<Value> &squares =
          squaresOf.try_emplace(splitOver(update), zeros).first->second;
      squares[position.at(update.getParameter())] = setLayout(
          SquareSumOp::create(builder, loc, one, gradient), replicated);
    }
    layout::Layout vector;
    vector.dims.push_back({});
    if (position.size() > 1)
      vector.dims[0].factors.push_back(
          {static_cast<int64_t>(position.size()), {}});
    LayoutAttr vectorLayout = LayoutAttr::get(context, vector);
    auto concat = [&](ArrayRef<Value> parts) {
      return setLayout(ConcatOp::create(builder, loc, ValueRange(parts), 0),
                       vectorLayout);
    };
    auto reduce = [&](Value value, ArrayRef<StringRef> axes) {
      return setLayout(AllReduceOp::create(builder, loc, value.getType(), value,
                                           builder.getStrArrayAttr(axes),
                                           Reduction::sum),
                       vectorLayout);
    };
    Value squares;
    for (auto &[axes, parts] : squaresOf) { // that of no axes first
      Value sum = concat(parts);
      squares = squares ? setLayout(AddOp::create(builder, loc, squares,
                                                  reduce(sum, axes)),
                                    vectorLayout)
                        : sum;
    }
    if (options.stages > 1)
      squares = reduce(squares, {kPipelineAxis});
    auto scalar = RankedTensorType::get({}, builder.getF32Type());
    auto factor = ClipFactorOp::create(
        builder, loc, TypeRange{scalar, scalar}, squares,
        builder.getF64FloatAttr(options.gradClip > 0 ? options.gradClip
                                                     : 1e30));
    auto none = LayoutAttr::get(context, layout::Layout{});
    factor->setAttr(kLayoutsAttr, builder.getArrayAttr({none, none}));
    if (stage == options.stages - 1)
      storeResult(factor.getNorm(), {stage, pipe::Action::U}, "grad_norm",
                  none);
    return options.gradClip > 0 || options.skipNonFinite ? factor.getFactor()
                                                         : Value();
  }

  void emitUpdate(Place place, train::UpdateOp update, Value gradient,
                  Value clip) {
    ValueOp parameter = inStage[place.first].byKey[update.getParameter().str()];
    SmallVector<Attribute> states;
    for (StringRef suffix : options.optimizer.states()) {
      std::string name = (update.getParameter() + "." + suffix).str();
      ValueOp state =
          declareOnce(place.first, name, parameter.getType(), ValueKind::state,
                      parameter.getLayoutAttr(), name);
      states.push_back(FlatSymbolRefAttr::get(state.getSymNameAttr()));
    }
    // The gradient's buffer carries the parameter's name, for --save-grads.
    nameGradient(gradient, update.getParameter());
    OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
    pipe::UpdateOp::create(
        builder, update.getLoc(), gradient, clip,
        FlatSymbolRefAttr::get(parameter.getSymNameAttr()),
        builder.getArrayAttr(states),
        train::OptimizerAttr::get(context, options.optimizer));
  }
  // Each replica tracked its own samples: all go on with the mean.
  void averageTracked() {
    for (auto &[stage, values] : tracked)
      for (ValueOp value : values) {
        if (options.dp == 1)
          continue;
        Place place{stage, pipe::Action::U};
        OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
        auto add = [&](Value made, LayoutAttr layout) {
          made.getDefiningOp()->setAttr(kLayoutsAttr,
                                        builder.getArrayAttr({layout}));
          return made;
        };
        Location loc = value.getLoc();
        Value own = load(place, value, loc);
        Value sum = add(AllReduceOp::create(builder, loc, own.getType(), own,
                                            builder.getStrArrayAttr(
                                                ArrayRef<StringRef>(kDataAxis)),
                                            Reduction::sum),
                        value.getLayoutAttr());
        Value part =
            add(scalarConstant(builder, loc, tensorTypeOf(own).getElementType(),
                               1.0 / static_cast<double>(options.dp)),
                LayoutAttr::get(context, layout::Layout{}));
        Value mean =
            add(MulOp::create(builder, loc, sum, part), value.getLayoutAttr());
        StoreOp::create(builder, loc, mean,
                        FlatSymbolRefAttr::get(value.getSymNameAttr()),
                        UnitAttr());
      }
  }
  void nameGradient(Value gradient, StringRef parameter) {
    if (Operation *op = gradient.getDefiningOp())
      op->setAttr("train.gradient_of", StringAttr::get(context, parameter));
  }

  // Actions in the order P F R B W S U.
  void orderActions() {
    static constexpr int order[] = {0, 1, 2, 3, 4, 6, 5};
    for (StageOp stage : stages) {
      SmallVector<ActionOp> actions(stage.getOps<ActionOp>());
      auto position = [](ActionOp a) {
        return std::make_pair(order[static_cast<int>(a.getKind())],
                              static_cast<int64_t>(a.getChunk()));
      };
      llvm::sort(actions, [&](ActionOp a, ActionOp b) {
        return position(a) < position(b);
      });
      for (ActionOp action : actions)
        action->moveBefore(&stage.getBody().front(),
                           stage.getBody().front().end());
    }
  }

  struct StageState {
    Operation *lastValue = nullptr;
    std::map<std::string, ValueOp, std::less<>> byKey;
  };

  func::FuncOp step;
  Block &block;
  ModuleOp module;
  const OutlineOptions &options;
  MLIRContext *context;
  OpBuilder b;
  std::vector<StageOp> stages;
  std::vector<StageState> inStage;
  std::map<int64_t, std::set<std::string>> names;
  std::map<int64_t, llvm::SetVector<ValueOp>> tracked; // by stage
  llvm::DenseSet<Operation *> rematerializable, recomputed;
  std::map<Place, Block *> bodies;
  struct LocalKey {
    Place place;
    Value value;
    LocalKey(Place place, Value value) : place(place), value(value) {}
    bool operator<(const LocalKey &other) const {
      return std::make_pair(place, value.getAsOpaquePointer()) <
             std::make_pair(other.place, other.value.getAsOpaquePointer());
    }
  };
  std::map<LocalKey, Value> local;
  llvm::DenseMap<Value, ValueOp> accumulated;
  llvm::DenseMap<std::pair<Value, int>, ValueOp> activation; // with its action
  // On other stages: each microbatch, and sums in the exchange.
  llvm::DenseMap<std::pair<Value, int64_t>, ValueOp> received, exchanged;
  llvm::DenseMap<std::pair<Value, int64_t>, ValueOp> sending; // from a stage
  llvm::DenseMap<Operation *, size_t> accumulates;
  llvm::DenseMap<Operation *, int64_t> levels;
  int64_t prologues = 0; // passes over the microbatches before the first F
  llvm::DenseMap<Operation *, Stages> homes;
  llvm::StringMap<std::set<int64_t>> readers;
  int transfers = 0;
};

} // namespace

LogicalResult merak::outlineStages(func::FuncOp step,
                                   const OutlineOptions &options) {
  return Outliner(step, options).run();
}
