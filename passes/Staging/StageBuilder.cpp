#include "passes/Staging/StageBuilder.h"

#include "passes/Staging/ApplyLayouts.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

constexpr StringLiteral kActionNames[] = {"prologue", "forward", "recompute",
                                          "backward", "weight",  "update",
                                          "exchange", "gather"};
std::string actionName(int action, int64_t chunk) {
  std::string name = kActionNames[action].str();
  return chunk ? name + "." + std::to_string(chunk) : name;
}
// Values and actions are symbols of one table, and a user may call an input
// "weight".
bool isActionName(StringRef name) {
  auto [word, chunk] = name.split('.');
  return llvm::is_contained(kActionNames, word) &&
         llvm::all_of(chunk, llvm::isDigit);
}

// A symbol that no parameter has, which may be called anything.
std::string freeSymbol(ModuleOp module, std::string name) {
  while (module.lookupSymbol(name))
    name += "_";
  return name;
}

} // namespace

MeshAttr StageBuilder::mesh(int64_t stage) const {
  if (MeshAttr mesh = meshOf(stages[static_cast<size_t>(stage)]))
    return mesh;
  return MeshAttr::get(context, {}, {});
}

StageBuilder::StageBuilder(func::FuncOp step, const OutlineOptions &options,
                           const Places &places)
    : step(step), places(places), context(step.getContext()) {
  OpBuilder builder(step);
  for (int64_t s = 0; s < options.stages; ++s) {
    auto stage = StageOp::create(builder, step.getLoc(),
                                 freeSymbol(step->getParentOfType<ModuleOp>(),
                                            "stage" + std::to_string(s)),
                                 s, pipe::ScheduleAttr());
    stage.getBody().emplaceBlock();
    for (auto [number, span] : llvm::enumerate(options.pipelines))
      if (options.pipelines.size() > 1 && s >= span.firstStage &&
          s < span.firstStage + span.stages)
        stage->setAttr(kPipelineAttr,
                       builder.getDenseI64ArrayAttr(
                           {static_cast<int64_t>(number), span.firstMicrobatch,
                            span.microbatches}));
    if (!options.meshes.empty()) {
      const auto at = static_cast<size_t>(s);
      stage->setAttr(kMeshAttr, options.meshes[at]);
      stage->setAttr(kDevicesAttr,
                     builder.getDenseI64ArrayAttr(options.devices[at]));
    }
    stages.push_back(stage);
    inStage.emplace_back();
  }
}

Block *StageBuilder::bodyOf(Place place) {
  Block *&body = bodies[place];
  if (!body) {
    OpBuilder builder =
        OpBuilder::atBlockEnd(&stages[places.stageOf(place)].getBody().front());
    auto action = ActionOp::create(
        builder, step.getLoc(),
        actionName(static_cast<int>(place.second), places.chunkOf(place)),
        place.second, places.chunkOf(place));
    body = &action.getBody().emplaceBlock();
  }
  return body;
}

ValueOp StageBuilder::declare(int64_t stage, StringRef wish, Type type,
                              ValueKind kind, LayoutAttr layout,
                              StringRef tensor, std::optional<Location> from) {
  std::string name = wish.str();
  for (int n = 1; isActionName(name) || !names[stage].insert(name).second; ++n)
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
ValueOp StageBuilder::declareOnce(int64_t stage, StringRef key, Type type,
                                  ValueKind kind, LayoutAttr layout,
                                  StringRef tensor) {
  ValueOp &value = inStage[stage].byKey[key.str()];
  if (!value)
    value = declare(stage, key, type, kind, layout, tensor);
  return value;
}

LayoutAttr StageBuilder::accumulatedLayout(Value value) {
  layout::Layout layout = layoutOf(value).getLayout();
  llvm::erase(layout.partial, kMicrobatchAxis);
  llvm::erase(layout.partial, kSubmicrobatchAxis);
  return LayoutAttr::get(context, layout);
}

Value StageBuilder::load(Place place, ValueOp value, Location loc) {
  OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
  return LoadOp::create(builder, loc, value.getType(),
                        FlatSymbolRefAttr::get(value.getSymNameAttr()));
}
void StageBuilder::storeAfter(Value inner, Place place, ValueOp value,
                              bool accumulate) {
  OpBuilder builder(context);
  if (inner.getDefiningOp()->getBlock() == bodyOf(place))
    builder.setInsertionPointAfterValue(inner);
  else
    builder.setInsertionPointToEnd(bodyOf(place));
  StoreOp::create(builder, inner.getLoc(), inner,
                  FlatSymbolRefAttr::get(value.getSymNameAttr()),
                  accumulate ? builder.getUnitAttr() : UnitAttr());
}

std::map<StringRef, std::set<int64_t>> StageBuilder::findHolders() {
  std::map<StringRef, std::set<int64_t>> holders;
  for (auto [index, stage] : llvm::enumerate(inStage))
    for (auto &[key, value] : stage.byKey)
      if (value.getKind() == ValueKind::parameter)
        holders[value.getTensorAttr().getValue()].insert(index);
  return holders;
}

void StageBuilder::transfer(ValueOp source, Place from, ValueOp target,
                            int64_t to) {
  OpBuilder builder(step);
  auto path = [&](int64_t stage, ValueOp value) {
    return SymbolRefAttr::get(context, stages[stage].getSymName(),
                              {FlatSymbolRefAttr::get(value.getSymNameAttr())});
  };
  TransferOp::create(builder, source.getLoc(),
                     freeSymbol(step->getParentOfType<ModuleOp>(),
                                "t" + std::to_string(transfers++)),
                     path(places.stageOf(from), source), path(to, target),
                     from.second, places.chunkOf(from));
}

void StageBuilder::storeResult(Value inner, Place place, StringRef name,
                               LayoutAttr layout) {
  ValueOp result = declare(places.stageOf(place), name, inner.getType(),
                           ValueKind::result, layout, name);
  OpBuilder builder = OpBuilder::atBlockEnd(bodyOf(place));
  StoreOp::create(builder, inner.getLoc(), inner,
                  FlatSymbolRefAttr::get(result.getSymNameAttr()), UnitAttr());
}

StringRef StageBuilder::holdersOf(ArrayRef<int64_t> of) {
  auto [it, isNew] = holders.try_emplace(
      of.vec(), kHoldersAxis + std::to_string(holders.size()));
  const std::string &axis = it->second;
  if (!isNew)
    return axis;
  const int64_t tp = mesh(of.front()).getSize(kTensorAxis);
  std::vector<SmallVector<int64_t>> lists(static_cast<size_t>(tp));
  for (int64_t stage : of)
    for (auto [place, rank] :
         llvm::enumerate(stages[stage]
                             ->getAttrOfType<DenseI64ArrayAttr>(kDevicesAttr)
                             .asArrayRef()))
      lists[place % static_cast<size_t>(tp)].push_back(rank);
  Builder b(context);
  for (int64_t stage : of) {
    const MeshAttr own = mesh(stage);
    SmallVector<StringAttr> axes(own.getAxes());
    SmallVector<int64_t> sizes(own.getSizes());
    axes.push_back(b.getStringAttr(axis));
    sizes.push_back(static_cast<int64_t>(lists.front().size()));
    stages[stage]->setAttr(kMeshAttr, MeshAttr::get(context, axes, sizes));
  }
  auto module = step->getParentOfType<ModuleOp>();
  NamedAttrList all;
  if (auto known = module->getAttrOfType<DictionaryAttr>(kHoldersAttr))
    all = known;
  SmallVector<Attribute> ranks;
  for (const SmallVector<int64_t> &list : lists)
    ranks.push_back(b.getDenseI64ArrayAttr(list));
  all.set(axis, b.getArrayAttr(ranks));
  module->setAttr(kHoldersAttr, all.getDictionary(context));
  return axis;
}

void StageBuilder::orderActions() {
  static constexpr int order[] = {1, 2, 3, 4, 5, 7, 6, 0};
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
