#include "dialects/Dist/StageMesh.h"
#include "dialects/Dist/Trim.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/SparseAttributes.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Graph/TouchedAttribute.h"
#include "passes/Sharding/CarriedValues.h"
#include "passes/Sharding/Passes.h"
#include "passes/Sharding/SliceExchange.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Pass/Pass.h"

#include <cmath>
#include <fmt/format.h>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_DELAYROWS
#include "passes/Sharding/Passes.h.inc"
} // namespace merak

namespace {

RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

RankedTensorType withSamples(RankedTensorType type, int64_t samples) {
  SmallVector<int64_t> shape(type.getShape());
  shape.front() = samples;
  return type.clone(shape);
}

// What is expected of a step's rows: how many of a replica's slices are of
// different rows, and which part of these the next step looks up.
struct Expected {
  double different, named;

  // `all`: ids of a step; `own`: of one replica.
  Expected(CoalesceOp update, double all, double own) {
    const auto size = static_cast<double>(update.getSize());
    const auto known = touchedRows(update);
    // Not known: as if all rows had equal chances.
    const planning::TouchedRows touched =
        known ? *known
              : planning::TouchedRows(
                    {{all, std::min(all, size * -std::expm1(-all / size))}},
                    size);
    const double rows = touched.different(own);
    different = rows / own;
    // Of a replica's rows those are not in the next step by which both together
    // name more rows than the step alone.
    named = std::clamp(
        (rows + touched.different(all) - touched.different(own + all)) / rows,
        0.0, 1.0);
  }
};

// One table of a stage.
class Delay {
public:
  Delay(StageOp stage, ActionOp action, CoalesceOp update)
      : stage(stage), update(update), carried(stage, action),
        builder(carried.builder) {}

  // Nothing: rows are delayed from now on; else why not.
  std::string rewrite() {
    std::string why = find();
    if (!why.empty())
      return why;
    keepSlices();
    declareCarried();
    exchangeDelayed();
    splitStep();
    return {};
  }

private:
  std::string find() {
    for (Operation *user : update->getUsers()) {
      auto found = dyn_cast<pipe::UpdateOp>(user);
      if (found && step && found != step)
        return "it has several updates";
      if (found)
        step = found;
    }
    if (!step || !step.getClip())
      return "nothing says whether its gradients are finite";
    store = onlyStoreTo(stage, update.getDy());
    exchange = store ? sliceExchangeOf(store.getOperand()) : nullptr;
    if (!exchange || exchange->getBlock() != store->getBlock())
      return "its slices are not exchanged over replicas";
    const RankedTensorType own = typeOf(exchange->getOperand(0)),
                           whole = typeOf(exchange->getResult(0)),
                           ids = typeOf(update.getIds());
    if (!own.getElementType().isF32())
      return "sums of 16 bits would be rounded once more";
    microbatches =
        typeOf(store.getOperand()).getDimSize(0) / whole.getDimSize(0);
    replicas = whole.getDimSize(0) / own.getDimSize(0);
    samples = own.getDimSize(0);
    if (own.getRank() <= ids.getRank() ||
        own.getShape().slice(1, ids.getRank() - 1) !=
            ids.getShape().drop_front() ||
        ids.getDimSize(0) != microbatches * replicas * samples)
      return "its slices are split by more than samples";
    return {};
  }

  ValueOp declare(const std::string &name, RankedTensorType type,
                  ValueKind kind) {
    return carried.declare(update.getLoc(), name, type, kind);
  }
  ValueOp declareCarried(StringRef suffix, RankedTensorType type,
                         int64_t initial) {
    return carried.declareCarried(update.getLoc(), named(suffix), type,
                                  builder.getI64IntegerAttr(initial));
  }
  std::string named(StringRef suffix) {
    return (step.getParameter() + "." + suffix).str();
  }
  Value load(ValueOp value) { return carried.load(update.getLoc(), value); }
  void save(Value operand, ValueOp value, UnitAttr accumulate = {}) {
    carried.save(update.getLoc(), operand, value, accumulate);
  }

  // The action that made slices and sent them keeps them.
  void keepSlices() {
    builder.setInsertionPoint(store);
    Value own = exchange->getOperand(0);
    ownType = withSamples(typeOf(own), microbatches * samples);
    slices = declare(named("slices"), ownType, ValueKind::gradient);
    if (auto place = store.getOperand().getDefiningOp<PlaceOp>())
      own = PlaceOp::create(builder, place.getLoc(), ownType, own,
                            place.getAxes(), 0, 1, 1);
    save(own, slices, builder.getUnitAttr());
    before = stage.lookupSymbol<ValueOp>(
        update.getDy().getDefiningOp<LoadOp>().getValue());
    Operation *placed = store.getOperand().getDefiningOp<PlaceOp>();
    store.erase();
    if (placed)
      placed->erase();
    exchange->remove(); // a pattern for the others
  }

  void declareCarried() {
    const auto size = static_cast<int64_t>(update.getSize());
    rows = declareCarried("delayed.rows", ownType, 0);
    ids = declareCarried("delayed.ids", typeOf(update.getIds()), size);
    factor = declareCarried("delayed.factor", typeOf(step.getClip()), 1);
    arrived = declare(named("delayed.arrived"), typeOf(update.getDy()),
                      ValueKind::step);
  }

  // Of sums at the front, `share` of which are expected to be some.
  Value exchanged(Value sums, double share) {
    IRMapping mapping;
    mapping.map(exchange->getOperand(0), sums);
    Operation *clone = builder.clone(*exchange, mapping);
    clone->getResult(0).setType(typeOf(update.getDy()));
    clone->removeAttr("dist.from"); // it was of a microbatch
    if (LayoutAttr layout = before.getLayoutAttr())
      clone->setAttr(kLayoutsAttr, builder.getArrayAttr({layout}));
    const auto places = static_cast<double>(block());
    clone->setAttr(kTrimAttr,
                   builder.getF64FloatAttr(std::clamp(share, 1 / places, 1.0)));
    return clone->getResult(0);
  }
  int64_t block() {
    return typeOf(update.getIds()).getNumElements() / replicas;
  }
  Expected expected() {
    return Expected(update, double(typeOf(update.getIds()).getNumElements()),
                    double(block()));
  }

  // At the begin of a step, what the one before left.
  void exchangeDelayed() {
    const Expected of = expected();
    builder.setInsertionPointToEnd(&carried.gatherAction().getBody().front());
    Value left = load(rows);
    CarriedValues::mark(left.getDefiningOp());
    Value all = exchanged(left, of.different * (1 - of.named));
    CarriedValues::mark(all.getDefiningOp());
    save(all, arrived);
    CarriedValues::mark(&builder.getInsertionBlock()->back());
  }

  CoalesceOp coalesce(Value from, Value of) {
    return CoalesceOp::create(builder, update.getLoc(),
                              TypeRange{from.getType(), of.getType()}, from, of,
                              update.getSize());
  }

  // Beside this step's exchange.
  void updateDelayed(Operation *behind) {
    builder.setInsertionPointAfter(behind);
    Operation *end = behind->getNextNode();
    Value from = load(arrived), of = load(ids), clip = load(factor);
    CoalesceOp sums = coalesce(from, of);
    sums->setAttr(kBlockAttr, builder.getI64IntegerAttr(block()));
    IRMapping mapping;
    mapping.map(step.getGradient(), sums.getRows());
    mapping.map(step.getIds(), sums.getUnique());
    mapping.map(step.getClip(), clip);
    builder.clone(*step, mapping);
    for (Operation *op = behind->getNextNode(); op != end;
         op = op->getNextNode())
      CarriedValues::mark(op);
  }

  // All of an input of the next step; tables share it.
  ValueOp nextOf(StringAttr input, RankedTensorType type) {
    for (auto value : stage.getOps<ValueOp>())
      if (value->hasAttr(pipe::kAheadAttr) && value.getTensorAttr() == input)
        return value;
    ValueOp value = declare(input.str() + ".next", type, ValueKind::input);
    value.setTensorAttr(input);
    value.setLayoutAttr(
        LayoutAttr::get(builder.getContext(),
                        layout::Layout::replicated(type.getShape().vec())));
    value->setAttr(pipe::kAheadAttr, builder.getI64IntegerAttr(1));
    return value;
  }

  // Ids of the next step's lookups, of all ranks.
  Value next() {
    auto inputs = update->getAttrOfType<DictionaryAttr>(kDelayedAttr);
    Type element = typeOf(update.getIds()).getElementType();
    SmallVector<Value> all;
    for (NamedAttribute input : inputs) {
      auto type =
          cast<RankedTensorType>(cast<TypeAttr>(input.getValue()).getValue());
      Value loaded = load(nextOf(input.getName(), type));
      auto flat =
          RankedTensorType::get({type.getNumElements()}, type.getElementType());
      if (inputs.size() > 1)
        loaded = ReshapeOp::create(builder, update.getLoc(), flat, loaded);
      if (type.getElementType() != element)
        loaded = CastOp::create(builder, update.getLoc(),
                                typeOf(loaded).clone(element), loaded);
      all.push_back(loaded);
    }
    return all.size() == 1
               ? all.front()
               : Value(ConcatOp::create(builder, update.getLoc(), all, 0));
  }

  // Ids of the step, those of one replica one behind the other.
  Value byReplica(Value all) {
    const RankedTensorType type = typeOf(all);
    if (microbatches == 1)
      return all;
    SmallVector<int64_t> shape{microbatches, replicas, samples}, perm{1, 0, 2};
    for (auto [d, size] : llvm::enumerate(type.getShape().drop_front())) {
      shape.push_back(size);
      perm.push_back(static_cast<int64_t>(d) + 3);
    }
    Location loc = update.getLoc();
    Value cut = ReshapeOp::create(builder, loc, type.clone(shape), all);
    Value turned = TransposeOp::create(builder, loc, cut, perm);
    return ReshapeOp::create(builder, loc, type, turned);
  }
  // The block of this replica.
  Value own(Value all) {
    const RankedTensorType type = typeOf(all);
    return ShardSliceOp::create(
        builder, update.getLoc(),
        withSamples(type, type.getDimSize(0) / replicas), all,
        exchange->getAttrOfType<ArrayAttr>("axes"), 0, 1, 1);
  }

  void splitStep() {
    const Expected of = expected();
    builder.setInsertionPoint(update);
    Value blocks = byReplica(update.getIds());
    auto split = SplitIdsOp::create(
        builder, update.getLoc(), TypeRange{blocks.getType(), blocks.getType()},
        blocks, next(), update.getSize());
    Value mine = load(slices);
    CoalesceOp now = coalesce(mine, own(split.getPrior()));
    Value all = exchanged(now.getRows(), of.different * of.named);
    updateDelayed(all.getDefiningOp());
    builder.setInsertionPoint(update);
    CoalesceOp later = coalesce(mine, own(split.getDelayed()));
    for (CoalesceOp sums : {now, later})
      sums->setAttr(kCompactAttr, builder.getUnitAttr());
    save(later.getRows(), rows);
    save(split.getDelayed(), ids);
    auto gone = update.getDy().getDefiningOp<LoadOp>();
    update.getDyMutable().assign(all);
    update.getIdsMutable().assign(split.getPrior());
    update->removeAttr(kDelayedAttr);
    update->removeAttr(kTouchedAttr); // its exchange is none of a microbatch
    update->setAttr(kBlockAttr, builder.getI64IntegerAttr(block()));
    gone.erase();
    before.erase();
    countSquares(later.getRows());
    exchange->destroy();
    builder.setInsertionPoint(step);
    save(step.getClip(), factor);
  }

  // Each replica's, before any of the rows is updated; sums over replicas are
  // made while the prior rows are under way.
  void countSquares(Value delayed) {
    SmallVector<SquareSumOp> norms;
    for (Operation *user : update.getRows().getUsers())
      if (auto norm = dyn_cast<SquareSumOp>(user))
        norms.push_back(norm);
    for (SquareSumOp norm : norms) {
      builder.setInsertionPointAfter(delayed.getDefiningOp());
      Location loc = norm.getLoc();
      Value more = SquareSumOp::create(builder, loc, norm.getResult().getType(),
                                       delayed);
      // Where columns are split, squares are summed over replicas anyway.
      if (isa<AllGatherOp>(exchange))
        more = AllReduceOp::create(builder, loc, more.getType(), more,
                                   exchange->getAttrOfType<ArrayAttr>("axes"),
                                   Reduction::sum);
      builder.setInsertionPointAfter(norm);
      auto both = AddOp::create(builder, loc, norm.getResult(), more);
      norm.getResult().replaceAllUsesExcept(both, both);
    }
  }

  StageOp stage;
  CoalesceOp update;
  CarriedValues carried;
  OpBuilder &builder;
  pipe::UpdateOp step;
  StoreOp store;
  Operation *exchange = nullptr;
  int64_t microbatches = 1, replicas = 1, samples = 1; // of a microbatch
  RankedTensorType ownType;
  ValueOp slices, before, rows, ids, factor, arrived;
};

struct DelayRowsPass : merak::impl::DelayRowsBase<DelayRowsPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    ClusterAttr cluster = ClusterAttr::of(module);
    std::string none;
    if (module->hasAttr(pipe::kOverlapAttr))
      none = "halves of a microbatch have slices of their own";
    else if (cluster && cluster.isCuda())
      none = "transports of GPUs send all of a message";
    for (auto stage : module.getOps<StageOp>())
      for (auto action : llvm::to_vector(stage.getOps<ActionOp>())) {
        if (action.getKind() != pipe::Action::U)
          continue;
        SmallVector<CoalesceOp> updates(
            action.getBody().front().getOps<CoalesceOp>());
        for (CoalesceOp update : updates)
          if (update->hasAttr(kDelayedAttr))
            visit(stage, action, update, none);
      }
  }

  void visit(StageOp stage, ActionOp action, CoalesceOp update,
             std::string why) {
    StringRef table;
    for (Operation *user : update->getUsers())
      if (auto step = dyn_cast<pipe::UpdateOp>(user))
        table = step.getParameter();
    if (why.empty() && (stage->hasAttr(dist::kDevicesAttr) ||
                        stage->hasAttr(dist::kPipelineAttr)))
      why = "its stage has a mesh or a pipeline of its own";
    if (why.empty())
      why = Delay(stage, action, update).rewrite();
    auto opts = remark::RemarkOpts::name("Delayed").category("sparse");
    if (why.empty()) {
      ++tables;
      remark::passed(update.getLoc(), opts) << fmt::format(
          "'{}': rows that no lookup of the next step needs are updated beside "
          "it",
          table.str());
      return;
    }
    update->removeAttr(kDelayedAttr);
    remark::missed(update.getLoc(), opts)
        << fmt::format("'{}': no rows are delayed", table.str())
        << remark::reason("{0}", why);
  }
};

} // namespace
