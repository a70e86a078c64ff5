#include "passes/Sharding/Localize.h"

#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/Builders.h"
#include "passes/Sharding/Passes.h"
#include "runtime/layout/GlobalIndex.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

class Localizer {
public:
  explicit Localizer(ModuleOp module)
      : module(module), mesh(module->getAttrOfType<MeshAttr>(kMeshAttr)) {}

  LogicalResult run() {
    if (!mesh)
      return module.emitError("expected the attribute 'dist.mesh'");
    LogicalResult result = success();
    for (StageOp stage : module.getOps<StageOp>()) {
      mesh = meshOf(stage);
      valueOf.clear();
      globalType.clear();
      layoutOf.clear();
      for (ValueOp value : stage.getOps<ValueOp>()) {
        valueOf[value.getSymName()] = value;
        if (!value.getLayout()) {
          result = value.emitOpError("expected a layout");
          continue;
        }
        value.setType(local(cast<RankedTensorType>(value.getType()),
                            value.getLayoutAttr()));
      }
      if (failed(result))
        return failure();
      for (ActionOp action : stage.getOps<ActionOp>())
        for (Operation &op :
             llvm::make_early_inc_range(action.getBody().front()))
          if (failed(visit(stage, &op)))
            result = failure();
    }
    return result;
  }

private:
  RankedTensorType local(RankedTensorType type, LayoutAttr layout) {
    return RankedTensorType::get(layout.getLocalShape(mesh),
                                 type.getElementType());
  }

  LogicalResult visit(StageOp stage, Operation *op) {
    if (auto load = dyn_cast<LoadOp>(op)) {
      ValueOp value = valueOf.lookup(load.getValue());
      if (!value)
        return op->emitOpError("expected a value of the stage, found ")
               << load.getValueAttr();
      note(load.getResult(), load.getResult().getType(), value.getLayoutAttr());
      load.getResult().setType(cast<RankedTensorType>(value.getType()));
      return success();
    }
    if (auto constant = dyn_cast<ConstantOp>(op))
      return visitConstant(stage, constant);
    if (auto update = dyn_cast<pipe::UpdateOp>(op); update && update.getIds())
      return setSplitAxis(
          op, valueOf.lookup(update.getParameter()).getLayoutAttr(), 0);
    SmallVector<Type> globalOperands, globalResults(op->getResultTypes());
    for (Value operand : op->getOperands())
      globalOperands.push_back(globalType.lookup(operand));
    auto layouts = op->getAttrOfType<ArrayAttr>(kLayoutsAttr);
    if (op->getNumResults() &&
        (!layouts || layouts.size() != op->getNumResults()))
      return op->emitOpError("expected a layout for each result");
    for (OpResult result : op->getResults()) {
      auto layout = cast<LayoutAttr>(layouts[result.getResultNumber()]);
      note(result, result.getType(), layout);
      result.setType(local(cast<RankedTensorType>(result.getType()), layout));
    }
    if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op)) {
      ruled.localize(globalOperands, globalResults);
      if (failed(setSplitAxis(op)))
        return failure();
      if (auto attention = dyn_cast<AttentionOp>(op))
        setPart(attention, globalOperands);
      else if (auto grad = dyn_cast<AttentionGradOp>(op))
        setPart(grad, globalOperands);
      if (auto dropout = dyn_cast<DropoutOp>(op))
        setBox(dropout);
    }
    localizeExtents(op);
    return success();
  }

  void note(Value value, Type global, LayoutAttr layout) {
    globalType[value] = global;
    layoutOf[value] = layout;
  }

  // A splat has any shape; other constants that are split become frozen tables
  // of which each rank reads its boxes.
  LogicalResult visitConstant(StageOp stage, ConstantOp op) {
    auto layouts = op->getAttrOfType<ArrayAttr>(kLayoutsAttr);
    LayoutAttr layout = layouts ? cast<LayoutAttr>(layouts[0]) : LayoutAttr();
    RankedTensorType type = tensorTypeOf(op.getResult());
    if (!layout)
      layout = LayoutAttr::get(
          op.getContext(), layout::Layout::replicated({type.getShape().begin(),
                                                       type.getShape().end()}));
    RankedTensorType localType = local(type, layout);
    note(op.getResult(), type, layout);
    if (localType == type)
      return success();
    if (auto splat = dyn_cast<SplatElementsAttr>(op.getValue())) {
      op.setValueAttr(splat.resizeSplat(localType));
      op.getResult().setType(localType);
      return success();
    }
    for (const layout::DimLayout &dim : layout.getLayout().dims)
      for (const layout::Factor &factor : dim.factors)
        if (llvm::is_contained(factor.axes, kMicrobatchAxis))
          return op.emitError("a constant of type ")
                 << type << " differs between samples; feed it as an input";
    std::string name;
    do
      name = ("constant" + Twine(tables++)).str();
    while (module.lookupSymbol(name));
    OpBuilder b(stage);
    ParameterOp::create(b, op.getLoc(), b.getStringAttr(name),
                        TypeAttr::get(type), UnitAttr(), SourceAttr(),
                        op.getValue());
    b.setInsertionPointToStart(&stage.getBody().front());
    ValueOp value = ValueOp::create(
        b, op.getLoc(), b.getStringAttr(name), TypeAttr::get(localType),
        ValueKindAttr::get(op.getContext(), ValueKind::constant), layout,
        b.getStringAttr(name));
    b.setInsertionPoint(op);
    Value loaded =
        LoadOp::create(b, op.getLoc(), localType,
                       FlatSymbolRefAttr::get(value.getSymNameAttr()));
    note(loaded, type, layout);
    op.getResult().replaceAllUsesWith(loaded);
    op.erase();
    return success();
  }

  // Ops that look into a table by position must know where their part begins:
  // the axis over which the table's rows or columns are split.
  LogicalResult setSplitAxis(Operation *op) {
    Value table;
    int64_t dim = 0;
    if (auto gather = dyn_cast<GatherOp>(op)) {
      table = gather.getTable();
      dim = gather.getAxis();
    } else if (auto scatter = dyn_cast<ScatterAddOp>(op)) {
      table = scatter.getTable();
      dim = scatter.getAxis();
    } else if (auto grad = dyn_cast<SoftmaxCrossEntropyGradOp>(op)) {
      table = grad.getDlogits();
    } else if (auto pick = dyn_cast<PickOp>(op)) {
      table = pick.getX();
    } else if (auto grad = dyn_cast<PickGradOp>(op)) {
      table = grad.getDx();
    } else {
      return success();
    }
    if (!isa<GatherOp, ScatterAddOp>(op))
      dim = tensorTypeOf(table).getRank() - 1;
    return setSplitAxis(op, layoutOf.lookup(table), dim);
  }
  LogicalResult setSplitAxis(Operation *op, LayoutAttr of, int64_t dim) {
    layout::Layout layout = of.getLayout();
    const auto &factors = layout.dims[dim].factors;
    for (auto [index, factor] : llvm::enumerate(factors)) {
      if (factor.axes.empty())
        continue;
      if (index != 0 || factor.axes.size() != 1)
        return op->emitOpError("cannot look into dimension ")
               << dim << " split as " << layout.str();
      op->setAttr("split_axis",
                  StringAttr::get(op->getContext(), factor.axes[0]));
    }
    return success();
  }

  // Which queries are here says which keys they see.
  template <typename Op> void setPart(Op op, ArrayRef<Type> globalOperands) {
    layout::Layout layout = layoutOf.lookup(op.getQ()).getLayout();
    const auto &factors = layout.dims[1].factors;
    if (!op.getCausal() || factors.empty() || factors.front().axes.empty())
      return;
    op.setQueries(cast<RankedTensorType>(globalOperands[0]).getDimSize(1));
    op.setSplitAxis(factors.front().axes.front());
  }

  // A mask is drawn by the index of an element in the global tensor.
  void setBox(DropoutOp op) {
    layout::Layout layout = layoutOf.lookup(op.getY()).getLayout();
    layout::AxisMap sizes;
    for (auto [axis, size] : llvm::zip(mesh.getAxes(), mesh.getSizes()))
      sizes[axis.getValue().str()] = size;
    layout::GlobalIndex index = layout::globalIndex(layout, sizes);
    op.setExtents(index.extents);
    op.setStrides(index.strides);
    SmallVector<Attribute> axes;
    SmallVector<int64_t> scales;
    Builder b(op.getContext());
    for (const auto &[axis, scale] : index.offsets) {
      axes.push_back(b.getStringAttr(axis));
      scales.push_back(scale);
    }
    if (!axes.empty()) {
      op.setAxesAttr(b.getArrayAttr(axes));
      op.setScales(scales);
    }
  }

  // Extents around a gathered or sliced factor, in local sizes of the operand.
  void localizeExtents(Operation *op) {
    auto set = [&](LayoutAttr layoutAttr, StringRef dimName,
                   StringRef factorName, StringRef majorName,
                   StringRef minorName) {
      auto dim = op->getAttrOfType<IntegerAttr>(dimName);
      auto index = op->getAttrOfType<IntegerAttr>(factorName);
      if (!dim || !index)
        return;
      layout::Layout layout = layoutAttr.getLayout();
      int64_t major = 1, minor = 1;
      const auto &factors = layout.dims[dim.getInt()].factors;
      for (auto [i, factor] : llvm::enumerate(factors)) {
        int64_t size = factor.size;
        for (const std::string &axis : factor.axes)
          size /= mesh.getSize(axis);
        if (static_cast<int64_t>(i) < index.getInt())
          major *= size;
        else if (static_cast<int64_t>(i) > index.getInt())
          minor *= size;
      }
      Builder b(op->getContext());
      op->setAttr(majorName, b.getI64IntegerAttr(major));
      op->setAttr(minorName, b.getI64IntegerAttr(minor));
    };
    if (!op->hasTrait<dist::Conversion>())
      return;
    auto from = op->getAttrOfType<LayoutAttr>("dist.from");
    LayoutAttr to = layoutOf.lookup(op->getResult(0));
    set(isa<AllGatherOp, AllToAllOp>(op) && from ? from : to, "dim",
        "dist.factor", "major", "minor");
    set(to, "to_dim", "dist.to_factor", "to_major", "to_minor");
  }

  ModuleOp module;
  MeshAttr mesh;
  llvm::StringMap<ValueOp> valueOf;
  llvm::DenseMap<Value, Type> globalType;
  llvm::DenseMap<Value, LayoutAttr> layoutOf;
  int tables = 0;
};

} // namespace

LogicalResult merak::localize(ModuleOp module) {
  return Localizer(module).run();
}

namespace merak {
#define GEN_PASS_DEF_LOCALIZE
#include "passes/Sharding/Passes.h.inc"
} // namespace merak

namespace {
struct LocalizePass : merak::impl::LocalizeBase<LocalizePass> {
  void runOnOperation() override {
    if (failed(localize(getOperation())))
      signalPassFailure();
  }
};
} // namespace
