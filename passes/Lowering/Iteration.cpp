#include "passes/Lowering/Iteration.h"

#include "dialects/Train/TrainDialect.h"
#include "passes/Lowering/KernelCalls.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

bool hasKernelElements(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type || !type.hasStaticShape())
    return false;
  Type element = type.getElementType();
  return element.isF32() || element.isF64() || element.isBF16() ||
         element.isF16() || isa<IntegerType>(element);
}

class Maker {
public:
  explicit Maker(ArrayRef<int64_t> sizes) {
    it.sizes.assign(sizes.begin(), sizes.end());
    it.reduced.assign(sizes.size(), false);
  }
  int rank() const { return static_cast<int>(it.sizes.size()); }

  // Loops [begin, end).
  DimLoops range(int begin, int end) const {
    DimLoops loops;
    for (int loop = begin; loop < end; ++loop)
      loops.push_back(loop);
    return loops;
  }
  DimLoops full() const { return range(0, rank()); }
  DimLoops without(int loop) const {
    DimLoops loops = full();
    loops.erase(loops.begin() + loop);
    return loops;
  }
  // A tensor aligned at the end, as NumPy broadcasts.
  DimLoops broadcast(Value value) const {
    ArrayRef<int64_t> shape = shapeOf(value);
    DimLoops loops;
    int lead = rank() - static_cast<int>(shape.size());
    for (int d = 0; d < static_cast<int>(shape.size()); ++d)
      loops.push_back(shape[d] == it.sizes[lead + d] ? lead + d : kNoLoop);
    return loops;
  }
  Maker &reduce(int begin, int end) {
    for (int loop = begin; loop < end; ++loop)
      it.reduced[loop] = true;
    return *this;
  }
  Maker &operand(const DimLoops &loops) {
    it.operands.push_back(loops);
    return *this;
  }
  Maker &result(const DimLoops &loops) {
    it.results.push_back(loops);
    return *this;
  }
  Iteration it;
};

Iteration elementwise(Operation *op) {
  Maker maker(shapeOf(op->getResult(0)));
  for (Value operand : op->getOperands())
    maker.operand(maker.broadcast(operand));
  return maker.result(maker.full()).it;
}

template <typename Reduce> Iteration reduction(Reduce op) {
  Maker maker(shapeOf(op.getX()));
  DimLoops result;
  for (int64_t axis : op.getAxes())
    maker.it.reduced[axis < 0 ? axis + maker.rank() : axis] = true;
  for (int loop = 0; loop < maker.rank(); ++loop)
    if (!maker.it.reduced[loop])
      result.push_back(loop);
    else if (op.getKeepdims())
      result.push_back(kNoLoop);
  return maker.operand(maker.full()).result(result).it;
}

// The operands of a normalization: those of x's shape, those of the shape
// before the axis (statistics) and the optional rest of the shape behind it.
Iteration normalization(Operation *op, Value x, int64_t axis, int fullOperands,
                        int statistics) {
  Maker maker(shapeOf(x));
  int n = maker.rank(), split = static_cast<int>(axis < 0 ? axis + n : axis);
  for (int i = 0; i < static_cast<int>(op->getNumOperands()); ++i)
    maker.operand(i < fullOperands                ? maker.full()
                  : i < fullOperands + statistics ? maker.range(0, split)
                                                  : maker.range(split, n));
  maker.reduce(split, n);
  return maker.it;
}

} // namespace

std::optional<Iteration> iterationOf(Operation *op) {
  if (!llvm::all_of(op->getOperands(), hasKernelElements) ||
      !llvm::all_of(op->getResults(), hasKernelElements))
    return std::nullopt;
  using Maybe = std::optional<Iteration>;
  auto axisOf = [](auto op, Value x) {
    int n = static_cast<int>(shapeOf(x).size());
    int axis = static_cast<int>(op.getAxis());
    return axis < 0 ? axis + n : axis;
  };
  return llvm::TypeSwitch<Operation *, Maybe>(op)
      .Case<ReduceSumOp, ReduceMaxOp>([&](auto op) { return reduction(op); })
      .Case([&](SoftmaxOp op) -> Maybe {
        Maker maker(shapeOf(op.getX()));
        int axis = axisOf(op, op.getX());
        return maker.reduce(axis, axis + 1)
            .operand(maker.full())
            .result(maker.full())
            .it;
      })
      .Case([&](SoftmaxGradOp op) -> Maybe {
        Maker maker(shapeOf(op.getY()));
        int axis = axisOf(op, op.getY());
        return maker.reduce(axis, axis + 1)
            .operand(maker.full())
            .operand(maker.full())
            .result(maker.full())
            .it;
      })
      .Case([&](LayerNormOp op) -> Maybe {
        Iteration it = normalization(op, op.getX(), op.getAxis(), 1, 0);
        Maker maker(it.sizes);
        DimLoops rows = maker.range(0, axisOf(op, op.getX()));
        it.results = {maker.full(), rows, rows};
        return it;
      })
      .Case([&](RmsNormOp op) -> Maybe {
        Iteration it = normalization(op, op.getX(), op.getAxis(), 1, 0);
        Maker maker(it.sizes);
        it.results = {maker.full(), maker.range(0, axisOf(op, op.getX()))};
        return it;
      })
      .Case([&](LayerNormGradOp op) -> Maybe {
        Iteration it = normalization(op, op.getX(), op.getAxis(), 2, 2);
        it.results = {Maker(it.sizes).full()};
        return it;
      })
      .Case([&](RmsNormGradOp op) -> Maybe {
        Iteration it = normalization(op, op.getX(), op.getAxis(), 2, 1);
        it.results = {Maker(it.sizes).full()};
        return it;
      })
      .Case<LayerNormParamGradOp, RmsNormParamGradOp>([&](auto op) -> Maybe {
        Iteration it = normalization(op, op.getX(), op.getAxis(), 2, 2);
        // The rows are summed, not the normalized dimensions.
        for (size_t loop = 0; loop < it.reduced.size(); ++loop)
          it.reduced[loop] = !it.reduced[loop];
        Maker maker(it.sizes);
        DimLoops columns = maker.range(axisOf(op, op.getX()), maker.rank());
        it.results.assign(op->getNumResults(), columns);
        return it;
      })
      .Case([&](SoftmaxCrossEntropyOp op) -> Maybe {
        Maker maker(shapeOf(op.getLogits()));
        int last = maker.rank() - 1;
        DimLoops rows = maker.range(0, last);
        return maker.reduce(last, last + 1)
            .operand(maker.full())
            .operand(rows)
            .result(rows)
            .result(rows)
            .it;
      })
      .Case([&](SoftmaxCrossEntropyGradOp op) -> Maybe {
        if (op.getSplitAxis()) // needs the rank's first column
          return std::nullopt;
        Maker maker(shapeOf(op.getLogits()));
        DimLoops rows = maker.range(0, maker.rank() - 1);
        return maker.operand(maker.full())
            .operand(rows)
            .operand(rows)
            .operand(rows)
            .result(maker.full())
            .it;
      })
      .Default([&](Operation *other) -> Maybe {
        if (!other->hasTrait<Pointwise>())
          return std::nullopt;
        return elementwise(other);
      });
}

} // namespace merak::lowering
