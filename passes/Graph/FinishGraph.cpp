#include "passes/Graph/CanonicalizeGraph.h"
#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/DenseSet.h"

namespace merak {
#define GEN_PASS_DEF_FINISHGRAPH
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

// What train.constant may hold, as its description says.
static constexpr int64_t kMaxConstant = 1024;

// `value` with size 1 in every dimension along which it repeats; null if there
// is none.
static DenseElementsAttr withoutRepeats(DenseElementsAttr value) {
  std::optional<HostTensor> host;
  if (!value.isSplat() && value.getNumElements() <= kMaxEvaluated)
    host = toHost(value);
  if (!host)
    return {};
  bool changed = false;
  Shape shape(host->type.getShape());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 2)
      continue;
    int64_t inner = 1;
    for (size_t i = d + 1; i < shape.size(); ++i)
      inner *= shape[i];
    int64_t block = inner * shape[d], total = host->size();
    auto at = [&](int64_t i) {
      return host->isFloat() ? host->reals[i] : double(host->integers[i]);
    };
    bool repeats = true;
    for (int64_t i = 0; repeats && i < total; ++i)
      repeats = i % block < inner || at(i) == at(i - inner);
    if (!repeats)
      continue;
    HostTensor narrow{{}, {}, {}};
    for (int64_t i = 0; i < total; ++i)
      if (i % block < inner) {
        if (host->isFloat())
          narrow.reals.push_back(host->reals[i]);
        else
          narrow.integers.push_back(host->integers[i]);
      }
    shape[d] = 1;
    narrow.type = RankedTensorType::get(shape, host->type.getElementType());
    host = std::move(narrow);
    changed = true;
  }
  return changed ? toAttribute(*host) : DenseElementsAttr();
}

namespace {
struct FinishGraphPass : merak::impl::FinishGraphBase<FinishGraphPass> {
  void runOnOperation() override {
    getOperation().walk([&](func::FuncOp function) { keepOneCopy(function); });
    RewritePatternSet patterns(&getContext());
    addArithmeticPatterns(patterns);
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
    SymbolTable symbols(getOperation());
    getOperation().walk([&](func::FuncOp function) {
      computeOutputs(function);
      splitSamples(function);
      outlineTables(function, symbols);
      splitReads(function);
    });
    dropUnread(symbols);
  }

  void keepOneCopy(func::FuncOp function) {
    SmallVector<ConstantOp> constants;
    function.walk([&](ConstantOp op) { constants.push_back(op); });
    for (ConstantOp op : constants) {
      auto value = dyn_cast<DenseElementsAttr>(op.getValue());
      DenseElementsAttr narrow =
          value ? withoutRepeats(value) : DenseElementsAttr();
      if (!narrow)
        continue;
      OpBuilder builder(op);
      GraphBuilder b(builder, op.getLoc());
      op.replaceAllUsesWith(
          b.expand(b.constant(narrow), value.getType().getShape()));
      op.erase();
    }
  }

  // After the patterns, which would compute the table again.
  void splitSamples(func::FuncOp function) {
    SmallVector<ConstantOp> constants;
    function.walk([&](ConstantOp op) { constants.push_back(op); });
    for (ConstantOp op : constants) {
      auto value = dyn_cast<DenseElementsAttr>(op.getValue());
      if (!value)
        continue;
      OpBuilder builder(op);
      GraphBuilder b(builder, op.getLoc());
      Value copies = onePerSample(value, b);
      if (!copies)
        continue;
      op.replaceAllUsesWith(copies);
      op.erase();
    }
  }

  // A first dimension of samples times something, made while tracing (the
  // windows of all images): one sample's part, repeated.
  Value onePerSample(DenseElementsAttr value, GraphBuilder &b) {
    const int64_t batch = ConfigAttr::of(getOperation()).getGlobalBatch();
    ArrayRef<int64_t> whole = value.getType().getShape();
    if (batch < 2 || whole.empty() || value.getNumElements() == 0 ||
        whole[0] % batch || whole[0] == batch)
      return {};
    Shape apart = {batch, whole[0] / batch};
    apart.append(whole.begin() + 1, whole.end());
    DenseElementsAttr narrow = withoutRepeats(
        value.reshape(RankedTensorType::get(apart, value.getElementType())));
    if (!narrow || narrow.getType().getShape()[0] != 1)
      return {};
    return b.reshape(b.expand(b.constant(narrow), apart), Shape(whole));
  }

  // Large constants become frozen parameters; equal ones share a symbol.
  void outlineTables(func::FuncOp function, SymbolTable &symbols) {
    llvm::DenseMap<Attribute, StringAttr> names;
    SmallVector<ConstantOp> constants;
    function.walk([&](ConstantOp op) {
      auto value = dyn_cast<DenseElementsAttr>(op.getValue());
      if (value && !value.isSplat() && value.getNumElements() > kMaxConstant)
        constants.push_back(op);
    });
    for (ConstantOp op : constants) {
      StringAttr &name = names[op.getValue()];
      if (!name) {
        std::string wanted = "table";
        if (auto loc = dyn_cast<NameLoc>(op.getLoc()))
          wanted = loc.getName().str();
        OpBuilder outside(function);
        auto parameter = ParameterOp::create(outside, op.getLoc(), wanted,
                                             op.getType(), /*trainable=*/false,
                                             SourceAttr(), op.getValue());
        name = symbols.insert(parameter);
      }
      OpBuilder builder(op);
      op.replaceAllUsesWith(ReadOp::create(builder, op.getLoc(), op.getType(),
                                           FlatSymbolRefAttr::get(name))
                                .getResult());
      op.erase();
    }
  }

  // An output that nothing computes (an input, a constant, a weight, or a part
  // of one) is copied, so that a stage has something to give.
  void computeOutputs(func::FuncOp function) {
    Operation *end = function.getBody().front().getTerminator();
    for (OpOperand &use : end->getOpOperands()) {
      Operation *maker = use.get().getDefiningOp();
      if (maker && !isa<ConstantOp, ReadOp>(maker) &&
          !maker->hasTrait<ViewLike>())
        continue;
      OpBuilder builder(end);
      use.set(CastOp::create(builder, use.get().getLoc(), use.get().getType(),
                             use.get())
                  .getResult());
    }
  }

  // Stages and gradients want to see each use of a parameter by itself.
  void splitReads(func::FuncOp function) {
    SmallVector<ReadOp> reads;
    function.walk([&](ReadOp op) { reads.push_back(op); });
    for (ReadOp op : reads) {
      for (OpOperand &use : llvm::make_early_inc_range(op->getUses())) {
        OpBuilder builder(use.getOwner());
        use.set(builder.clone(*op)->getResult(0));
      }
      op.erase();
    }
  }

  void dropUnread(SymbolTable &symbols) {
    llvm::DenseSet<StringAttr> read;
    getOperation().walk(
        [&](ReadOp op) { read.insert(op.getParameterAttr().getAttr()); });
    for (ParameterOp op : llvm::make_early_inc_range(
             getOperation().getBody()->getOps<ParameterOp>()))
      if (!read.contains(op.getSymNameAttr()))
        symbols.erase(op);
  }
};
} // namespace
