#include "passes/Staging/Places.h"

#include "passes/Staging/ApplyLayouts.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

LayoutAttr merak::layoutOf(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return cast<func::FuncOp>(argument.getOwner()->getParentOp())
        .getArgAttrOfType<LayoutAttr>(argument.getArgNumber(), kLayoutAttr);
  auto result = cast<OpResult>(value);
  auto layouts = value.getDefiningOp()->getAttrOfType<ArrayAttr>(kLayoutsAttr);
  return layouts ? cast<LayoutAttr>(layouts[result.getResultNumber()])
                 : LayoutAttr();
}
bool merak::isOnce(Operation *op) { return op->hasAttr(kLateAttr); }
static bool hasLife(Operation *op, StringRef life) {
  auto attribute = op->getAttrOfType<StringAttr>(kLifeAttr);
  return attribute && attribute.getValue() == life;
}
bool merak::isGatheredOnce(Operation *op) { return hasLife(op, kLifeStep); }

Places::Places(func::FuncOp step, const OutlineOptions &options,
               size_t pipeline)
    : block(step.getBody().front()), module(step->getParentOfType<ModuleOp>()),
      options(options), pipeline(pipeline), span(options.pipelines[pipeline]) {
  findRematerializable();
  findRecomputed();
  findHomes();
}

// Cheap ops that hang on data and constants alone run wherever they are
// needed instead of being kept or sent. So does what only changes the form of a
// parameter that is gathered at each use; what is computed of it does not: it
// would gather the parameter again.
void Places::findRematerializable() {
  llvm::SmallDenseSet<Operation *> gathered; // parameters, in any form
  for (Operation &op : block.without_terminator()) {
    if (!isPure(&op) || op.getNumOperands() == 0 ||
        op.hasTrait<Contraction>() ||
        // Conversions between submicrobatches of the tokens stay on the
        // device; what is gathered at each use is not to be kept.
        (isa<DistDialect>(op.getDialect()) && !isOverSubmicrobatches(&op) &&
         !hasLife(&op, kLifeUse)) ||
        roleOf(&op) == kUpdate)
      continue;
    const bool isForm = op.hasTrait<ViewLike>() || isa<CastOp>(op) ||
                        isa<DistDialect>(op.getDialect());
    bool ofGathered = hasLife(&op, kLifeUse);
    bool cheap = llvm::all_of(op.getOperands(), [&](Value operand) {
      Operation *producer = operand.getDefiningOp();
      ofGathered |= gathered.contains(producer);
      // A parameter in another type costs less to make than to keep.
      return !producer || isa<ConstantOp>(producer) ||
             (rematerializable.contains(producer) &&
              (isForm || !gathered.contains(producer))) ||
             ((isa<CastOp>(op) || hasLife(&op, kLifeUse)) &&
              isa<ReadOp>(producer));
    });
    if (cheap)
      rematerializable.insert(&op);
    if (cheap && ofGathered)
      gathered.insert(&op);
  }
}
// What R computes again: marked ops whose results the backward pass of their
// part reads, and the marked ops these results come from. All else that R
// reads is kept by F; collectives are never marked.
void Places::findRecomputed() {
  SmallVector<Operation *> work;
  auto visit = [&](Operation *reader) {
    for (Value operand : reader->getOperands()) {
      Operation *op = operand.getDefiningOp();
      // Taken again of what it is a view of.
      while (op && op->hasAttr(kViewAttr) && partOf(op) == partOf(reader))
        op = op->getOperand(0).getDefiningOp();
      if (op && isMarked(op) && roleOf(op) == kForward && !isEverywhere(op) &&
          partOf(op) == partOf(reader) && recomputed.insert(op).second)
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
bool Places::isEverywhere(Operation *op) const {
  return isa<ReadOp, ConstantOp>(op) || rematerializable.contains(op);
}
// In this pipeline.
std::optional<int64_t> Places::numberOf(Operation *op, StringRef name) const {
  if (auto one = op->getAttrOfType<IntegerAttr>(name))
    return one.getInt();
  auto all = op->getAttrOfType<DenseI64ArrayAttr>(name);
  if (!all || all[pipeline] == kNoStage)
    return {};
  return all[pipeline];
}
int64_t Places::placeOf(int64_t part) const {
  return part / span.stages * options.stages + span.firstStage +
         part % span.stages;
}
int64_t Places::partOf(Operation *op) const {
  return placeOf(numberOf(op, kStageAttr).value_or(0));
}
std::optional<int64_t> Places::exchangeOf(Operation *op) const {
  const std::optional<int64_t> part = numberOf(op, kHomeAttr);
  return part ? std::optional(placeOf(*part) % options.stages) : std::nullopt;
}
bool Places::isMarked(Operation *op) const {
  Attribute again = op->getAttr(kRecomputeAttr);
  auto of = dyn_cast_or_null<DenseI64ArrayAttr>(again);
  return of ? llvm::is_contained(of.asArrayRef(),
                                 static_cast<int64_t>(pipeline))
            : again != nullptr;
}
Place Places::homeOf(Operation *op) const {
  StringRef role = roleOf(op);
  pipe::Action action = role == kForward          ? pipe::Action::F
                        : role == kBackwardInput  ? pipe::Action::B
                        : role == kBackwardWeight ? pipe::Action::W
                                                  : pipe::Action::U;
  // Passes after the forward pass are chunks of P behind those before it: with
  // 2 stages and one prologue pass, an op of stage 1 with join 1 is at part 1 +
  // (1 + 1 - 1) * 2 = 3, chunk 1 of P on stage 1.
  if (auto join = op->getAttrOfType<IntegerAttr>(kJoinAttr))
    return {partOf(op) % options.stages +
                (prologues + join.getInt() - 1) * options.stages,
            pipe::Action::P};
  return {partOf(op), action};
}
bool Places::mayLoad(Operation *op, Place place) const {
  if (place.second != pipe::Action::P)
    return true;
  pipe::Action home = homeOf(op).second;
  return chunkOf(place) >= prologues &&
         (home == pipe::Action::F || home == pipe::Action::P);
}

bool Places::isOfMicrobatch(Value value) const {
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
void Places::findHomes() {
  for (auto sum : block.getOps<AccumulateOp>())
    if (!sum->hasAttr(kJoinAttr) && roleOf(sum) != kUpdate)
      prologues = std::max(prologues, levelOf(sum));
  for (auto read : block.getOps<ReadOp>())
    addReaders(read, readers[read.getParameter()]);
}
void Places::addReaders(Operation *op, std::set<int64_t> &stagesOf) {
  for (Operation *user : op->getUsers()) {
    if (isOnce(user) || roleOf(user) == kUpdate)
      continue;
    if (isEverywhere(user) || isGatheredOnce(user))
      addReaders(user, stagesOf);
    else
      stagesOf.insert(partOf(user) % options.stages);
  }
}
HomeStages Places::homesOf(Value value) {
  Operation *op = value.getDefiningOp();
  if (!op)
    return {};
  if (auto read = dyn_cast<ReadOp>(op)) {
    const std::set<int64_t> &of = readers[read.getParameter()];
    return of.empty() ? HomeStages() : HomeStages(of);
  }
  if (isa<AccumulateOp>(op)) {
    Operation *maker = op->getOperand(0).getDefiningOp();
    if (!maker || isEverywhere(maker))
      return {};
    return HomeStages({partOf(maker) % options.stages});
  }
  auto [it, isNew] = homes.try_emplace(op);
  if (!isNew)
    return it->second;
  HomeStages common;
  for (Value operand : op->getOperands()) {
    HomeStages of = homesOf(operand);
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

int64_t Places::levelOf(Value value) {
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

int64_t Places::partBehind(Value value) const {
  Operation *op = value.getDefiningOp();
  if (!op || isEverywhere(op))
    return placeOf(span.stages * span.chunks - 1);
  if (roleOf(op) == kUpdate || isa<AccumulateOp>(op))
    return partBehind(op->getOperand(0));
  return partOf(op);
}

bool Places::isSummed(Value value) const {
  Operation *op = value.getDefiningOp();
  return op && (isa<AccumulateOp>(op) ||
                (roleOf(op) == kUpdate &&
                 llvm::any_of(op->getOperands(),
                              [&](Value v) { return isSummed(v); })));
}
