#include "passes/Staging/PlanningGraph.h"

#include "passes/Graph/TouchedAttribute.h"
#include "passes/Planning/ReplayedTables.h"

#include "passes/Lowering/FusionGroups.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

std::string merak::nodeName(Operation *op) {
  std::string name;
  op->getLoc()->walk([&](Location location) {
    if (auto named = dyn_cast<NameLoc>(location)) {
      name = named.getName().str();
      return WalkResult::interrupt();
    }
    return WalkResult::advance();
  });
  return name.empty() ? op->getName().getStringRef().str() : name;
}

StringRef merak::roleOf(Operation *op) {
  auto role = op->getAttrOfType<StringAttr>(kRoleAttr);
  return role ? role.getValue() : StringRef(kForward);
}

// How lowering will write the op.
static void describeLowering(Operation *op, planning::GraphOp &out) {
  using planning::Moves;
  if (isa<ReshapeOp>(op))
    out.moves = Moves::Reshape;
  else if (auto transpose = dyn_cast<TransposeOp>(op)) {
    out.moves = Moves::Transpose;
    out.perm.assign(transpose.getPerm().begin(), transpose.getPerm().end());
  } else if (auto slice = dyn_cast<SliceOp>(op)) {
    out.moves = Moves::Slice;
    out.steps.assign(slice.getSteps().begin(), slice.getSteps().end());
  } else if (isa<ExpandOp>(op))
    out.moves = Moves::Expand;
  else if (isa<PadOp>(op))
    out.moves = Moves::Pad;
  else if (auto concat = dyn_cast<ConcatOp>(op)) {
    out.moves = Moves::Concat;
    out.axis = concat.getAxis();
  }
  out.loops = lowering::loopsOf(op);
  if (auto epilogue = dyn_cast<EpilogueOpInterface>(op))
    out.epilogue = epilogue.getEpilogue();
  out.widensResult = op->hasTrait<WidensResult>();
  if (auto product = dyn_cast<EinsumOp>(op)) {
    out.equation = product.getEquation().str();
    out.rounds = product.getRounds().has_value();
  }
  out.addsInPlace = op->hasTrait<Pointwise>() || op->hasTrait<AddsInPlace>();
  out.kernel = op->getName().stripDialect().str();
  if (auto attention = dyn_cast<AttentionOp>(op);
      attention && attention.getCausal())
    out.kernel += ":causal";
  if (auto attention = dyn_cast<AttentionGradOp>(op);
      attention && attention.getCausal())
    out.kernel += ":causal";
  if (auto sums = dyn_cast<CoalesceOp>(op))
    out.touched = touchedRows(sums);
  if (op->hasAttr(kReplayedAttr))
    out.kernel = planning::kReplayedUpdate;
}

PlanningGraph merak::buildPlanningGraph(func::FuncOp step) {
  PlanningGraph out;
  Block &block = step.getBody().front();
  llvm::StringMap<int> parameters;
  SymbolTableCollection symbols;
  llvm::DenseMap<int64_t, int> opOfId; // forward ops
  auto addTensor = [&](Value value, std::string name) {
    auto type = cast<RankedTensorType>(value.getType());
    planning::GraphTensor tensor;
    tensor.name = std::move(name);
    tensor.shape.assign(type.getShape().begin(), type.getShape().end());
    tensor.elementBytes = std::max<int>(1, type.getElementTypeBitWidth() / 8);
    tensor.isFloat = isa<FloatType>(type.getElementType());
    return out.tensorOf[value] = out.graph.addTensor(std::move(tensor));
  };
  for (BlockArgument argument : block.getArguments()) {
    unsigned index = argument.getArgNumber();
    auto name = step.getArgAttrOfType<StringAttr>(index, kNameAttr);
    int id = addTensor(argument, name ? name.str() : "input");
    out.graph.tensors[id].input = true;
    // First axes that are the global batch count samples.
    const int64_t batch = ConfigAttr::of(step->getParentOp()).getGlobalBatch();
    ArrayRef<int64_t> shape =
        cast<RankedTensorType>(argument.getType()).getShape();
    if (step.getArgAttr(index, kBatchedAttr) ||
        (batch > 0 && !shape.empty() && shape[0] == batch))
      out.batched.push_back(id);
  }
  for (Operation &op : block) {
    if (op.hasTrait<OpTrait::IsTerminator>()) {
      for (Value operand : op.getOperands())
        out.graph.tensors[out.tensorOf[operand]].output = true;
      continue;
    }
    if (auto read = dyn_cast<ReadOp>(op)) {
      auto [it, isNew] = parameters.try_emplace(read.getParameter(), 0);
      if (isNew) {
        it->second = addTensor(read.getResult(), read.getParameter().str());
        out.graph.tensors[it->second].parameter = true;
        auto parameter = symbols.lookupNearestSymbolFrom<ParameterOp>(
            step, read.getParameterAttr());
        if (parameter && parameter.getTrainable())
          if (auto dims =
                  parameter->getAttrOfType<DenseI64ArrayAttr>(kRepeatsAttr))
            for (int64_t dim : dims.asArrayRef())
              out.repeated.push_back({it->second, int(dim)});
      }
      out.tensorOf[read.getResult()] = it->second;
      continue;
    }
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      int id = addTensor(constant.getResult(), nodeName(&op));
      out.graph.tensors[id].constant = true;
      out.graph.tensors[id].splat = isa<SplatElementsAttr>(constant.getValue());
      continue;
    }
    auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
    if (!ruled)
      continue;
    planning::GraphOp graphOp;
    graphOp.name = nodeName(&op);
    graphOp.rule = ruled.getShardingRule();
    for (Value operand : op.getOperands())
      graphOp.operands.push_back(out.tensorOf[operand]);
    for (auto [index, result] : llvm::enumerate(op.getResults()))
      graphOp.results.push_back(addTensor(
          result, graphOp.name + (index ? "#" + std::to_string(index) : "")));
    graphOp.flops = ruled.getFlops();
    for (Value value : llvm::concat<Value>(SmallVector<Value>(op.getOperands()),
                                           SmallVector<Value>(op.getResults())))
      graphOp.bytes += out.graph.tensors[out.tensorOf[value]].bytes();
    graphOp.contraction = op.hasTrait<Contraction>();
    graphOp.product = isa<EinsumOp>(op);
    graphOp.pointwise = op.hasTrait<Pointwise>();
    graphOp.viewLike = op.hasTrait<ViewLike>();
    StringRef role = roleOf(&op);
    graphOp.phase = role == kForward  ? planning::Phase::Forward
                    : role == kUpdate ? planning::Phase::Update
                                      : planning::Phase::Backward;
    graphOp.weightGradient = role == kBackwardWeight;
    graphOp.sumOfUses = op.hasAttr(kSumAttr);
    graphOp.view = isa<ReshapeOp>(op);
    graphOp.looksUp = isa<GatherOp>(op);
    describeLowering(&op, graphOp);
    auto id = op.getAttrOfType<IntegerAttr>(kIdAttr);
    if (id && graphOp.phase == planning::Phase::Forward) {
      graphOp.piece = id.getInt();
      opOfId.try_emplace(graphOp.piece, static_cast<int>(out.ops.size()));
    }
    if (auto of = op.getAttrOfType<IntegerAttr>(kOfAttr))
      if (auto it = opOfId.find(of.getInt()); it != opOfId.end())
        graphOp.gradientOf = it->second;
    out.opOf[&op] = out.graph.addOp(std::move(graphOp));
    out.ops.push_back(&op);
  }
  return out;
}
