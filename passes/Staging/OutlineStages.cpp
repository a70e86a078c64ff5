#include "passes/Staging/OutlineStages.h"

#include "dialects/Dist/Regather.h"
#include "dialects/Train/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Staging/ApplyLayouts.h"
#include "passes/Staging/StageUpdates.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

// The sum over microbatches that a value is in another layout; null: it is
// none.
AccumulateOp accumulationBehind(Operation *op) {
  while (op && isa<DistDialect>(op->getDialect()) && !isa<AccumulateOp>(op))
    op = op->getOperand(0).getDefiningOp();
  return dyn_cast_or_null<AccumulateOp>(op);
}

// A sum over microbatches that is complete over devices. What is made of
// parameters alone is summed over devices too, but is the same in all
// pipelines.
bool isCompleteSum(Operation *op) {
  return op && (isa<AccumulateOp>(op) || op->hasAttr(kHomeAttr)) &&
         accumulationBehind(op);
}

// Makes the stage programs of one pipeline op by op: a value that an action
// needs is loaded, received, made again or summed there, by where it is at
// home.
class PipelineOutliner {
public:
  // What all pipelines of a plan have in common.
  struct Plan {
    func::FuncOp step;
    const OutlineOptions &options;
    StageBuilder &program;
    std::vector<std::unique_ptr<PipelineOutliner>> &pipelines;
  };

  PipelineOutliner(const Plan &plan, const Places &places)
      : step(plan.step), block(step.getBody().front()),
        module(step->getParentOfType<ModuleOp>()), options(plan.options),
        places(places), program(plan.program), pipelines(plan.pipelines) {}

  bool has(int64_t stage) const { return places.has(stage); }

  // The stage that sums a value over the microbatches of this pipeline, if that
  // is the only one that has it.
  std::optional<int64_t> sumsOn(AccumulateOp op) const {
    Operation *maker = op.getX().getDefiningOp();
    if (!maker || places.isEverywhere(maker))
      return {};
    return places.stageOf(places.homeOf(maker));
  }
  // A sum that one stage of each pipeline makes and all these reduce in one
  // collective: in the update, or in the exchange where others need it too.
  struct HeldSum {
    std::vector<int64_t> stages; // by pipeline
    bool isSent = false;
  };
  void reduceTogether(Value value, const HeldSum &sum) {
    together[value] = sum;
  }
  // Of such a sum each pipeline has zeros but for its own microbatches.
  bool isSideBySide(Value sum) const { return ownRange(sum).has_value(); }

  // What runs for every microbatch.
  void outline() {
    SmallVector<Operation *> forward, backward;
    for (Operation &op : block.without_terminator()) {
      if (isa<train::UpdateOp>(op) || places.isEverywhere(&op) ||
          roleOf(&op) == kUpdate || isa<AccumulateOp>(op) ||
          isGatheredOnce(&op) || op.hasAttr(kRegatherAttr))
        continue;
      (roleOf(&op) == kForward ? forward : backward).push_back(&op);
    }
    for (Operation *op : forward)
      cloneInto(op, places.homeOf(op));
    // In the order of F, so that both compute the same in the same way.
    for (Operation *op : forward)
      if (places.isRecomputed(op))
        cloneInto(op, {places.partOf(op), pipe::Action::R});
    for (Operation *op : backward)
      cloneInto(op, places.homeOf(op));
  }

  // Of several pipelines each has what is kept of its own microbatches, one of
  // them the sums over all.
  void storeOutputs(bool hasSums) {
    Operation *terminator = block.getTerminator();
    for (auto [index, value] : llvm::enumerate(terminator->getOperands())) {
      auto name = step.getResultAttrOfType<StringAttr>(index, kNameAttr);
      // Sums over microbatches are complete after the last one; without
      // training all other outputs are kept for each.
      Place place{places.partBehind(value), pipe::Action::F};
      const bool isOfStep = options.train || places.isSummed(value);
      if (isOfStep && !hasSums)
        continue;
      if (isOfStep)
        place = places.onStage(place, pipe::Action::U);
      program.storeResult(materialize(value, place), place,
                          name ? name.getValue() : "output", layoutOf(value));
    }
  }

  // The value inside an action, loaded, received or recomputed as needed.
  Value materialize(Value value, Place place) {
    Value &known = local[{place, value}];
    if (known)
      return known;
    Value made = isOverPipelines(value, place) ? sumOverPipelines(value, place)
                                               : make(value, place);
    local[{place, value}] = made;
    return made;
  }

  Tracked tracked;

private:
  // Of a dimension.
  struct Range {
    int64_t dim, begin, size;
  };

  //===--------------------------------------------------------------------===//
  // Emission
  //===--------------------------------------------------------------------===//

  Operation *cloneInto(Operation *op, Place place) {
    IRMapping mapping;
    for (Value operand : op->getOperands())
      mapping.map(operand, materialize(operand, place));
    OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
    Operation *clone = builder.clone(*op, mapping);
    clone->removeAttr(kStageAttr);
    clone->removeAttr(kRecomputeAttr);
    clone->removeAttr(kViewAttr);
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
        ->setAttr(kStatisticAttr, UnitAttr::get(module.getContext()));
    ValueOp value = declareParameter(places.stageOf(place), read);
    program.storeAfter(inner.getUpdated(), place, value, false);
    tracked[places.stageOf(place)].try_emplace(value, 1.0).first->second *=
        outer.getKeep().convertToDouble();
  }

  Value make(Value value, Place place) {
    Operation *op = value.getDefiningOp();
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto name =
          step.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kNameAttr);
      ValueOp input = program.declareOnce(
          places.stageOf(place), name.getValue(), value.getType(),
          ValueKind::input, layoutOf(value), name.getValue());
      return program.load(place, input, step.getLoc());
    }
    if (auto read = dyn_cast<ReadOp>(op)) {
      // What runs once a step has no copies of parameters of its own.
      HomeStages stages = places.homesOf(value);
      if (isPerStep(place) && stages && !stages->count(places.stageOf(place)))
        return makeOnce(value, place);
      return program.load(place, declareParameter(places.stageOf(place), read),
                          op->getLoc());
    }
    if (isConvertedOnce(op, place))
      return makeConverted(cast<CastOp>(op), place);
    if (places.isEverywhere(op))
      return cloneInto(op, place)->getResult(
          cast<OpResult>(value).getResultNumber());
    if (auto accumulate = dyn_cast<AccumulateOp>(op))
      return makeAccumulated(accumulate, place);
    if (isGatheredOnce(op))
      return makeGathered(op, place);
    if (std::optional<int64_t> home = places.exchangeOf(op))
      return makeAtHome(value, {*home, pipe::Action::S}, place);
    if (isOnce(op))
      return makeOnce(value, place);
    if (roleOf(op) == kUpdate || !places.mayLoad(op, place))
      return cloneInto(op, place)->getResult(
          cast<OpResult>(value).getResultNumber());
    if (isPerStep(place))
      return places.isOfMicrobatch(value) ? loadGradient(value, place)
                                          : makeOnce(value, place);
    Place home = places.homeOf(op);
    // What it is a view of is kept, in place of it.
    if (op->hasAttr(kViewAttr) && places.stageOf(home) == places.stageOf(place))
      return cloneInto(op, place)->getResult(0);
    if (op->hasAttr(kRegatherAttr)) {
      if (home == place)
        return cloneInto(op, place)->getResult(0);
      materialize(value, home);
    }
    if (home.first == place.first && places.isRecomputed(op) &&
        place.second != pipe::Action::P)
      home.second = pipe::Action::R;
    ValueOp kept = keep(value, home);
    if (places.stageOf(home) == places.stageOf(place))
      return program.load(place, kept, value.getLoc());
    return program.load(place,
                        receive(kept, value, home, places.stageOf(place)),
                        value.getLoc());
  }

  ValueOp declareParameter(int64_t stage, ReadOp read) {
    auto parameter = module.lookupSymbol<ParameterOp>(read.getParameterAttr());
    return program.declareOnce(
        stage, read.getParameter(), read.getResult().getType(),
        parameter.getTrainable() && options.train ? ValueKind::parameter
                                                  : ValueKind::constant,
        layoutOf(read.getResult()), read.getParameter());
  }

  // What is gathered of a stored parameter, from the begin of the step: after
  // the update it would be missing in a step that a checkpoint begins.
  Value makeGathered(Operation *op, Place place) {
    const Place gather = places.onStage(place, pipe::Action::G);
    if (place == gather)
      return cloneInto(op, place)->getResult(0);
    Value value = op->getResult(0);
    std::string key = "gathered" + std::to_string(indexOf(op));
    ValueOp &whole = program.declared(places.stageOf(place), key);
    if (!whole) {
      whole = program.declare(places.stageOf(place), key, value.getType(),
                              ValueKind::step, layoutOf(value), "");
      program.storeAfter(materialize(value, gather), gather, whole, false);
    }
    return program.load(place, whole, op->getLoc());
  }

  // A parameter in another, smaller type: no microbatch changes it. What is
  // gathered of it is gathered where that is used.
  bool isConvertedOnce(Operation *op, Place place) const {
    auto cast = dyn_cast<CastOp>(op);
    const bool ofMicrobatch =
        place.second == pipe::Action::F || place.second == pipe::Action::R ||
        place.second == pipe::Action::B || place.second == pipe::Action::W;
    if (!cast || !ofMicrobatch || !options.convertsOnce ||
        !cast.getX().getDefiningOp<ReadOp>() || roleOf(op) == kUpdate)
      return false;
    auto bits = [](Value value) {
      return getElementTypeOrSelf(value.getType()).getIntOrFloatBitWidth();
    };
    return bits(cast.getY()) < bits(cast.getX()) &&
           llvm::none_of(op->getUsers(), [](Operation *user) {
             return isa<DistDialect>(user->getDialect());
           });
  }

  // Uses of one parameter in one type and layout share it.
  Value makeConverted(CastOp cast, Place place) {
    const int64_t stage = places.stageOf(place);
    auto read = cast.getX().getDefiningOp<ReadOp>();
    ValueOp &kept = converted[{read.getParameterAttr().getAttr(),
                               layoutOf(cast.getY()), cast.getType(), stage}];
    if (!kept) {
      kept = program.declare(stage, (read.getParameter() + ".as_used").str(),
                             cast.getType(), ValueKind::step,
                             layoutOf(cast.getY()), "", cast.getLoc());
      const Place once = places.onStage(place, pipe::Action::G);
      program.storeAfter(materialize(cast.getY(), once), once, kept, false);
    }
    return program.load(place, kept, cast.getLoc());
  }

  // Keeps a value of one action for later ones of the same microbatch.
  ValueOp keep(Value value, Place home) {
    ValueOp &kept = activation[{value, static_cast<int>(home.second)}];
    if (!kept) {
      kept = program.declare(places.stageOf(home),
                             "act" + std::to_string(activation.size() - 1),
                             value.getType(), ValueKind::activation,
                             layoutOf(value), "", value.getLoc());
      program.storeAfter(local.at({home, value}), home, kept, false);
    }
    return kept;
  }

  ValueOp receive(ValueOp source, Value value, Place home, int64_t stage) {
    ValueOp &target = received[{value, stage}];
    if (!target) {
      target = program.declare(
          stage,
          ("from" + Twine(places.stageOf(home)) + "_" + source.getSymName())
              .str(),
          value.getType(), ValueKind::activation, layoutOf(value), "",
          value.getLoc());
      program.transfer(source, home, target, stage);
    }
    return target;
  }
  //===--------------------------------------------------------------------===//
  // Once a step
  //===--------------------------------------------------------------------===//

  // What is the same for all microbatches is made where its parameters are and
  // sent in the exchange; of parts from several stages, where it is needed.
  Value makeOnce(Value value, Place place) {
    Operation *op = value.getDefiningOp();
    HomeStages stages = places.homesOf(value);
    // A sum over several pipelines is complete in U, not in the exchange.
    const bool isOverAll = pipelines.size() > 1 && places.isSummed(value);
    // Summands stay on their mesh: what they are summands of is sent.
    const bool staysThere = !options.meshes.empty() && isSummand(value);
    if (isOverAll || staysThere || !stages || stages->empty() ||
        stages->count(places.stageOf(place)))
      return cloneInto(op, place)->getResult(
          cast<OpResult>(value).getResultNumber());
    Place exchange{*stages->begin(), pipe::Action::S};
    return program.load(place, exchangeOf(value, exchange, place),
                        value.getLoc());
  }

  // Of a sum over devices that is not taken yet.
  static bool isSummand(Value value) {
    const LayoutAttr layout = layoutOf(value);
    return layout && llvm::any_of(layout.getLayout().partial,
                                  [](const std::string &axis) {
                                    return axis != kMicrobatchAxis &&
                                           axis != kSubmicrobatchAxis;
                                  });
  }

  // A sum over the devices of one stage, for the updates of stages on several
  // meshes.
  Value makeAtHome(Value value, Place exchange, Place place) {
    if (place == exchange)
      return cloneInto(value.getDefiningOp(), place)->getResult(0);
    return program.load(place,
                        places.stageOf(place) == places.stageOf(exchange)
                            ? sentOf(value, exchange)
                            : exchangeOf(value, exchange, place),
                        value.getLoc());
  }

  // A value of a stage's exchange that another stage gets.
  ValueOp sentOf(Value value, Place exchange, ValueOp sum = {},
                 std::optional<Range> range = {}) {
    ValueOp copy = sending.lookup({value, places.stageOf(exchange)});
    if (!copy) {
      LayoutAttr layout = program.accumulatedLayout(value);
      Value inner = sum ? program.load(exchange, sum, value.getLoc())
                        : materialize(value, exchange);
      if (range) {
        inner = sliceOf(inner, layout, *range, exchange);
        layout = layoutOf(inner);
      }
      std::string name = sum ? ("send_" + sum.getSymName()).str() : "send_once";
      copy = program.declare(places.stageOf(exchange), name, inner.getType(),
                             ValueKind::activation, layout, "");
      sending[{value, places.stageOf(exchange)}] = copy;
      program.storeAfter(inner, exchange, copy, false);
    }
    return copy;
  }

  // The same as another stage's update has it.
  ValueOp exchangeOf(Value value, Place exchange, Place place, ValueOp sum = {},
                     std::optional<Range> range = {}) {
    if (ValueOp known = exchanged.lookup({value, places.stageOf(place)}))
      return known;
    ValueOp copy = sentOf(value, exchange, sum, range);
    ValueOp target = program.declare(
        places.stageOf(place),
        ("from" + Twine(places.stageOf(exchange)) + "_" +
         (sum ? sum.getSymName() : copy.getSymName()))
            .str(),
        copy.getType(), ValueKind::activation, copy.getLayoutAttr(), "");
    exchanged[{value, places.stageOf(place)}] = target;
    program.transfer(copy, exchange, target, places.stageOf(place));
    return target;
  }

  // A sum over microbatches. Before the update it comes out of the prologue,
  // which depends on data only and so runs on every stage that needs it.
  Value makeAccumulated(AccumulateOp op, Place place) {
    if (isPerStep(place))
      return loadGradient(op.getX(), place);
    if (op->hasAttr(kJoinAttr))
      return makeJoined(op, place);
    Place prologue{places.stageOf(place) +
                       places.levelOf(op.getX()) * options.stages,
                   pipe::Action::P};
    std::string key = "step" + std::to_string(indexOf(op));
    ValueOp &sum = program.declared(places.stageOf(place), key);
    if (!sum) {
      sum = program.declare(places.stageOf(place), key, op.getType(),
                            ValueKind::step,
                            program.accumulatedLayout(op.getX()), "");
      program.storeAfter(materialize(op.getX(), prologue), prologue, sum, true);
    }
    return program.load(place, sum, op.getLoc());
  }
  // A sum that depends on parameters is stored where its summands are made; on
  // another stage, by the forward action that receives them. A sum of gradients
  // goes back whole.
  Value makeJoined(AccumulateOp op, Place place) {
    Operation *maker = op.getX().getDefiningOp();
    Place made = places.homeOf(maker);
    if (made.second != pipe::Action::F &&
        places.stageOf(made) != places.stageOf(place)) {
      Place back{places.partOf(maker), pipe::Action::B};
      materialize(op.getY(), back);
      ValueOp kept = keep(op.getY(), back);
      return program.load(place,
                          receive(kept, op.getY(), back, places.stageOf(place)),
                          op.getLoc());
    }
    std::string key = "join" + std::to_string(indexOf(op));
    ValueOp &sum = program.declared(places.stageOf(place), key);
    if (!sum) {
      sum = program.declare(places.stageOf(place), key, op.getType(),
                            ValueKind::step,
                            program.accumulatedLayout(op.getX()), "");
      Place home = places.homeOf(op.getX().getDefiningOp());
      if (places.stageOf(home) != places.stageOf(place))
        home = {place.second == pipe::Action::P ? places.stageOf(place)
                                                : place.first,
                pipe::Action::F};
      program.storeAfter(materialize(op.getX(), home), home, sum, true);
    }
    return program.load(place, sum, op.getLoc());
  }

  size_t indexOf(Operation *op) {
    return accumulates.try_emplace(op, accumulates.size()).first->second;
  }

  // A per-microbatch value as the update sees it: summed in a buffer of its
  // stage; another stage gets it in the exchange. Of one that lies side by side
  // with other microbatches' the range, if there is one.
  Value loadGradient(Value value, Place place,
                     std::optional<Range> range = {}) {
    Operation *op = value.getDefiningOp();
    Place home{place.first, pipe::Action::F};
    if (op && !places.isEverywhere(op))
      home = places.homeOf(op);
    else if (pipelines.size() > 1) // once in each pipeline
      home.first = op ? places.partOf(op) : places.firstPart();
    ValueOp &sum = accumulated[{value, places.stageOf(home)}];
    if (!sum) {
      sum = program.declare(
          places.stageOf(home), "sum" + std::to_string(accumulated.size() - 1),
          value.getType(),
          tensorTypeOf(value).getRank() &&
                  isa<FloatType>(tensorTypeOf(value).getElementType())
              ? ValueKind::gradient
              : ValueKind::step,
          program.accumulatedLayout(value), "", value.getLoc());
      program.storeAfter(materialize(value, home), home, sum, true);
    }
    if (places.stageOf(home) == places.stageOf(place)) {
      Value own = program.load(place, sum, value.getLoc());
      return range
                 ? sliceOf(own, program.accumulatedLayout(value), *range, place)
                 : own;
    }
    Place exchange = places.onStage(home, pipe::Action::S);
    return program.load(place, exchangeOf(value, exchange, place, sum, range),
                        value.getLoc());
  }

  // Part of a dimension that no devices split.
  Value sliceOf(Value whole, LayoutAttr layout, const Range &range,
                Place place) {
    const int64_t rank = tensorTypeOf(whole).getRank();
    SmallVector<int64_t> begins(rank, 0), steps(rank, 1),
        sizes(tensorTypeOf(whole).getShape());
    begins[range.dim] = range.begin;
    sizes[range.dim] = range.size;
    layout::Layout part = layout.getLayout();
    part.dims[range.dim] = {{{range.size, {}}}};
    OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
    Value slice = train::SliceOp::create(builder, whole.getLoc(), whole, begins,
                                         sizes, steps);
    slice.getDefiningOp()->setAttr(
        kLayoutsAttr,
        builder.getArrayAttr({LayoutAttr::get(builder.getContext(), part)}));
    return slice;
  }

  // Where this pipeline's microbatches lie in a sum that has those of all
  // microbatches side by side in one dimension; none: in another sum.
  std::optional<Range> ownRange(Value sum) const {
    auto accumulate = sum.getDefiningOp<AccumulateOp>();
    auto place =
        accumulate ? accumulate.getX().getDefiningOp<PlaceOp>() : PlaceOp();
    if (!place || place.getMajor() != 1 || place.getAxes().size() != 1 ||
        cast<StringAttr>(place.getAxes()[0]).getValue() != kMicrobatchAxis)
      return {};
    const auto dim = static_cast<int64_t>(place.getDim());
    const layout::Layout layout =
        program.accumulatedLayout(accumulate.getX()).getLayout();
    if (llvm::any_of(layout.dims[dim].factors,
                     [](const auto &factor) { return !factor.axes.empty(); }))
      return {};
    int64_t all = 0;
    for (const PipelineSpan &of : options.pipelines)
      all += of.microbatches;
    const int64_t each = tensorTypeOf(sum).getDimSize(dim) / all;
    const PipelineSpan &own = places.trained();
    return Range{dim, own.firstMicrobatch * each, own.microbatches * each};
  }

  // Each pipeline has the part of its microbatches, which follow each other,
  // among zeros: that alone is sent.
  Value joinPipelines(Value value, Place place) {
    SmallVector<Value> parts;
    int64_t dim = 0;
    for (const auto &pipeline : pipelines) {
      const Range range = *pipeline->ownRange(value);
      dim = range.dim;
      parts.push_back(pipeline->loadGradient(
          value.getDefiningOp<AccumulateOp>().getX(), place, range));
    }
    OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
    Value whole =
        ConcatOp::create(builder, value.getLoc(), value.getType(), parts, dim);
    whole.getDefiningOp()->setAttr(
        kLayoutsAttr, builder.getArrayAttr({program.accumulatedLayout(value)}));
    return whole;
  }

  // A sum over microbatches that is complete over the devices of each pipeline.
  bool isOverPipelines(Value value, Place place) const {
    Operation *op = value.getDefiningOp();
    if (pipelines.size() == 1 || !isCompleteSum(op))
      return false;
    auto known = together.find(value);
    return place.second == pipe::Action::U ||
           (place.second == pipe::Action::S && known != together.end() &&
            known->second.isSent);
  }
  // In the order of the pipelines, wherever that is done.
  Value sumOverPipelines(Value value, Place place) {
    if (auto known = together.find(value); known != together.end()) {
      const HeldSum &held = known->second;
      const int64_t home = *llvm::find_if(
          held.stages, [&](int64_t stage) { return places.has(stage); });
      const Place exchange{home, pipe::Action::S};
      const bool isHome = places.stageOf(place) == home;
      if (held.isSent ? place == exchange : isHome)
        return reduceOverHolders(value, held.stages, place);
      if (held.isSent)
        return program.load(place,
                            isHome ? sentOf(value, exchange)
                                   : exchangeOf(value, exchange, place),
                            value.getLoc());
    }
    if (ownRange(value))
      return joinPipelines(value, place);
    Value sum;
    for (const auto &pipeline : pipelines) {
      Value part = pipeline->make(value, place);
      if (sum) {
        OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
        sum = AddOp::create(builder, value.getLoc(), sum, part);
        sum.getDefiningOp()->setAttr(
            kLayoutsAttr,
            builder.getArrayAttr({program.accumulatedLayout(value)}));
      } else {
        sum = part;
      }
    }
    return sum;
  }

  // Over the replicas of each pipeline too.
  Value reduceOverHolders(Value value, ArrayRef<int64_t> stages, Place place) {
    Value part = make(accumulationBehind(value.getDefiningOp()).getY(), place);
    OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
    auto sum = AllReduceOp::create(
        builder, value.getLoc(), value.getType(), part,
        builder.getStrArrayAttr({program.holdersOf(stages)}), Reduction::sum);
    sum->setAttr(kLayoutsAttr,
                 builder.getArrayAttr({program.accumulatedLayout(value)}));
    return sum;
  }

  func::FuncOp step;
  Block &block;
  ModuleOp module;
  const OutlineOptions &options;
  Places places;
  StageBuilder &program;
  const std::vector<std::unique_ptr<PipelineOutliner>> &pipelines;
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
  llvm::DenseMap<std::pair<Value, int64_t>, ValueOp> accumulated; // by stage
  llvm::DenseMap<std::pair<Value, int>, ValueOp> activation; // with its action
  // On other stages: each microbatch, and sums in the exchange.
  llvm::DenseMap<std::pair<Value, int64_t>, ValueOp> received, exchanged;
  llvm::DenseMap<std::pair<Value, int64_t>, ValueOp> sending; // from a stage
  llvm::DenseMap<Operation *, size_t> accumulates;
  llvm::DenseMap<Value, HeldSum> together;
  // Parameters as they are used: by name, layout, type and stage.
  llvm::DenseMap<std::tuple<StringAttr, LayoutAttr, Type, int64_t>, ValueOp>
      converted;
};

// The sums over microbatches and devices that a gradient is made of.
void findSums(Value gradient, llvm::SetVector<Value> &sums) {
  Operation *op = gradient.getDefiningOp();
  if (!op)
    return;
  if (isCompleteSum(op)) {
    sums.insert(gradient);
    return;
  }
  if (roleOf(op) == kUpdate && !isOnce(op))
    for (Value operand : op->getOperands())
      findSums(operand, sums);
}

// The sum over microbatches behind what is complete over devices; null where
// that is not over replicas alone.
AccumulateOp accumulationOf(Value sum) {
  Operation *op = sum.getDefiningOp();
  while (auto reduce = dyn_cast<AllReduceOp>(op)) {
    for (Attribute axis : reduce.getAxes())
      if (!isOn(cast<StringAttr>(axis).getValue().str(), kDataAxis))
        return {};
    op = op->getOperand(0).getDefiningOp();
  }
  return dyn_cast<AccumulateOp>(op);
}

using Pipelines = ArrayRef<std::unique_ptr<PipelineOutliner>>;

PipelineOutliner &pipelineOf(Pipelines pipelines, int64_t stage) {
  return **llvm::find_if(pipelines,
                         [&](const auto &one) { return one->has(stage); });
}

// What each pipeline sums on one stage, all these splitting it alike, is summed
// over replicas and pipelines in one collective. Of anything else each holder
// gets the parts of the others.
class HeldSums {
public:
  HeldSums(StageBuilder &program, Pipelines pipelines)
      : program(program), pipelines(pipelines) {}

  void find(train::UpdateOp update, const std::set<int64_t> &holders) {
    llvm::SetVector<Value> sums;
    findSums(update.getGradient(), sums);
    for (Value sum : sums)
      if (std::optional<std::vector<int64_t>> stages = stagesOf(sum)) {
        const std::set<int64_t> homes(stages->begin(), stages->end());
        Group &group = groups[*stages];
        group.elements += tensorTypeOf(sum).getNumElements();
        group.sums.push_back({sum, homes != holders});
        for (const auto &pipeline : pipelines)
          pipeline->reduceTogether(sum, {*stages, homes != holders});
      }
  }

  // All ranks have one order, whatever the cuts: first the groups with the
  // most, which hardly share a rank. In the order of layers a stage would wait
  // for the one before it.
  void reduce() {
    std::vector<std::pair<std::vector<int64_t>, Group>> all(groups.begin(),
                                                            groups.end());
    llvm::stable_sort(all, [](const auto &a, const auto &b) {
      return a.second.elements > b.second.elements;
    });
    for (const auto &[stages, group] : all)
      for (const auto &[sum, isSent] : group.sums)
        for (int64_t stage : stages)
          pipelineOf(pipelines, stage)
              .materialize(sum,
                           {stage, isSent ? pipe::Action::S : pipe::Action::U});
  }

private:
  struct Group {
    int64_t elements = 0;
    std::vector<std::pair<Value, bool>> sums;
  };

  std::optional<std::vector<int64_t>> stagesOf(Value sum) const {
    AccumulateOp accumulate = accumulationOf(sum);
    if (!accumulate || pipelines.front()->isSideBySide(sum))
      return {};
    // What each microbatch has summed over replicas already is not summed so
    // again: all of them have it.
    const bool isOfReplica = llvm::any_of(
        layoutOf(accumulate.getY()).getLayout().partial,
        [](const std::string &axis) { return isOn(axis, kDataAxis); });
    std::vector<int64_t> stages;
    std::set<int64_t> degrees;
    for (const auto &pipeline : pipelines) {
      const std::optional<int64_t> stage = pipeline->sumsOn(accumulate);
      if (!stage ||
          (!isOfReplica && program.mesh(*stage).getSize(kDataAxis) > 1))
        return {};
      stages.push_back(*stage);
      degrees.insert(program.mesh(*stage).getSize(kTensorAxis));
    }
    return degrees.size() == 1 ? std::optional(stages) : std::nullopt;
  }

  StageBuilder &program;
  Pipelines pipelines;
  std::map<std::vector<int64_t>, Group> groups; // by stages
};

// The updates of all stages: of a parameter that several have by one and the
// same gradient.
void updateParameters(StageBuilder &program, func::FuncOp step,
                      const OutlineOptions &options,
                      ArrayRef<std::unique_ptr<PipelineOutliner>> pipelines) {
  SmallVector<train::UpdateOp> updates(
      step.getBody().front().getOps<train::UpdateOp>());
  Holders holders = program.findHolders();
  std::vector<StageGradients> gradients(options.stages);
  if (pipelines.size() > 1) {
    HeldSums sums(program, pipelines);
    for (train::UpdateOp update : updates)
      sums.find(update, holders[update.getParameter()]);
    sums.reduce();
  }
  for (train::UpdateOp update : updates)
    for (int64_t stage : holders[update.getParameter()]) {
      const Place place{stage, pipe::Action::U};
      PipelineOutliner &of = pipelineOf(pipelines, stage);
      Value gradient = of.materialize(update.getGradient(), place);
      gradients[stage].push_back(
          {update, gradient,
           update.getIds() ? of.materialize(update.getIds(), place) : Value()});
    }
  emitUpdates(program, options, updates, gradients, holders);
}

} // namespace

LogicalResult merak::outlineStages(func::FuncOp step,
                                   const OutlineOptions &options) {
  std::vector<Places> places;
  for (size_t pipeline = 0; pipeline < options.pipelines.size(); ++pipeline)
    places.emplace_back(step, options, pipeline);
  StageBuilder program(step, options, places.front());
  std::vector<std::unique_ptr<PipelineOutliner>> pipelines;
  for (const Places &of : places)
    pipelines.push_back(std::make_unique<PipelineOutliner>(
        PipelineOutliner::Plan{step, options, program, pipelines}, of));
  for (const auto &pipeline : pipelines)
    pipeline->outline();
  for (const auto &pipeline : pipelines)
    pipeline->storeOutputs(/*hasSums=*/pipeline == pipelines.front());
  updateParameters(program, step, options, pipelines);
  if (pipelines.size() == 1) {
    averageTracked(program, options, pipelines.front()->tracked);
  } else {
    std::vector<Tracked> tracked;
    for (const auto &pipeline : pipelines)
      tracked.push_back(pipeline->tracked);
    if (failed(joinTracked(program, options, tracked)))
      return failure();
  }
  program.orderActions();
  step.erase();
  return success();
}
