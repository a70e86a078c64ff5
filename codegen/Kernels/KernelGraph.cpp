#include "codegen/Kernels/KernelGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "runtime/layout/Strides.h"

#include <functional>

using namespace mlir;

namespace merak::codegen {

bool KernelGraph::hasReduction() const {
  for (const Dimension &dim : dims)
    if (dim.reduced)
      return true;
  return false;
}
bool KernelGraph::isReduction(OpResult value) const {
  return reductions.lookup(value);
}
bool KernelGraph::variesInReduction(Value value) const {
  auto generic = value.getDefiningOp<linalg::GenericOp>();
  if (!generic || reductions.lookup(value))
    return false;
  for (int dim : loops.find(generic)->second)
    if (dim >= 0 && dims[dim].reduced)
      return true;
  return false;
}
int KernelGraph::knownIn(Value value) const { return known.lookup(value); }
int KernelGraph::passOf(OpResult reduction) const {
  return known.lookup(reduction) - 1;
}

// Builds a KernelGraph: collects operands, unifies loops, orders dimensions.
class GraphBuilder {
public:
  explicit GraphBuilder(func::FuncOp function) { graph.function = function; }
  LogicalResult run();
  KernelGraph graph;

private:
  // Loops of all generics are numbered; `parent` is a union-find forest.
  int find(int loop) const {
    while (parent[loop] != loop)
      loop = parent[loop];
    return loop;
  }
  int loopOf(linalg::GenericOp generic, unsigned index) const {
    return firstLoop.find(generic)->second + index;
  }
  bool isDistinct() const;
  LogicalResult collectOperands();
  LogicalResult collectGenerics();
  LogicalResult checkMaps(linalg::GenericOp generic);
  void unifyIntermediates();
  void unifyArguments();
  void unifyShapes();
  LogicalResult orderDimensions();
  LogicalResult classify();
  void computeAccesses();
  unsigned addAccess(unsigned operand, linalg::GenericOp generic,
                     AffineMap map);

  llvm::SmallVector<linalg::GenericOp> generics;
  llvm::DenseMap<Operation *, int> firstLoop;
  llvm::SmallVector<int> parent;
  llvm::SmallVector<int64_t> sizeOf;
};

static LogicalResult readLayout(func::FuncOp function, DictionaryAttr attrs,
                                Type type, const Twine &what,
                                KernelOperand &operand) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape())
    return function.emitError()
           << "kernel " << what << " must be a tensor of static shape, found "
           << type;
  operand.element = tensor.getElementType();
  operand.shape.assign(tensor.getShape().begin(), tensor.getShape().end());
  operand.strides = llvm::to_vector(layout::denseStrides(tensor.getShape()));
  if (!attrs)
    return success();
  operand.accumulate = attrs.contains(kAccumulateAttr);
  if (auto strides = attrs.getAs<DenseI64ArrayAttr>(kStridesAttr)) {
    if (static_cast<int64_t>(strides.size()) != tensor.getRank())
      return function.emitError()
             << "kernel " << what << " has " << strides.size()
             << " strides for rank " << tensor.getRank();
    operand.strides.assign(strides.asArrayRef().begin(),
                           strides.asArrayRef().end());
  }
  return success();
}

LogicalResult GraphBuilder::collectOperands() {
  func::FuncOp function = graph.function;
  if (function.isExternal() || !function.getBody().hasOneBlock())
    return function.emitError() << "a kernel must have a body of one block";
  for (BlockArgument arg : function.getArguments()) {
    unsigned i = arg.getArgNumber();
    if (isa<FloatType, IntegerType>(arg.getType())) {
      graph.scalars.push_back(arg);
      continue;
    }
    KernelOperand operand;
    operand.value = arg;
    if (failed(readLayout(function, function.getArgAttrDict(i), arg.getType(),
                          "argument " + Twine(i), operand)))
      return failure();
    graph.operands.push_back(operand);
  }
  graph.firstOutput = graph.operands.size();
  Operation *terminator = function.getBody().front().getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    KernelOperand operand;
    operand.value = value;
    operand.isOutput = true;
    if (failed(readLayout(function, function.getResultAttrDict(i),
                          value.getType(), "result " + Twine(i), operand)))
      return failure();
    bool isEmpty = llvm::is_contained(operand.shape, 0);
    for (auto [size, stride] : llvm::zip(operand.shape, operand.strides))
      if (size > 1 && stride == 0 && !isEmpty)
        return function.emitError()
               << "kernel result " << i
               << " has stride 0: two elements share memory";
    if (!value.getDefiningOp<linalg::GenericOp>())
      return function.emitError()
             << "kernel result " << i << " must come from linalg.generic";
    graph.operands.push_back(operand);
  }
  return success();
}

LogicalResult GraphBuilder::checkMaps(linalg::GenericOp generic) {
  if (generic.hasDynamicShape())
    return generic.emitError() << "kernel ops must have static shapes";
  if (!generic.getRegion().hasOneBlock())
    return generic.emitError() << "expected a body of one block";
  for (OpOperand &operand : generic->getOpOperands()) {
    AffineMap map = generic.getMatchingIndexingMap(&operand);
    auto type = dyn_cast<RankedTensorType>(operand.get().getType());
    llvm::SmallDenseSet<unsigned> seen;
    for (auto [i, expr] : llvm::enumerate(map.getResults())) {
      if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
        if (!seen.insert(dim.getPosition()).second && type.getDimSize(i) != 1)
          return generic.emitError() << "operand " << operand.getOperandNumber()
                                     << " uses a loop twice";
      } else if (auto zero = dyn_cast<AffineConstantExpr>(expr);
                 !zero || zero.getValue() != 0 || type.getDimSize(i) != 1) {
        return generic.emitError()
               << "operand " << operand.getOperandNumber()
               << " must be indexed by loops, or by 0 where its size is 1";
      }
    }
  }
  return success();
}

LogicalResult GraphBuilder::collectGenerics() {
  LogicalResult result = success();
  for (Operation &op : graph.function.getBody().front().without_terminator()) {
    if (auto generic = dyn_cast<linalg::GenericOp>(op)) {
      if (failed(checkMaps(generic))) {
        result = failure();
        continue;
      }
      firstLoop[generic] = parent.size();
      generics.push_back(generic);
      for (int64_t size : generic.getStaticLoopRanges()) {
        parent.push_back(parent.size());
        sizeOf.push_back(size);
      }
      continue;
    }
    bool scalarOp =
        llvm::all_of(op.getResultTypes(),
                     [](Type t) { return t.isIntOrFloat(); }) &&
        isa<arith::ArithDialect, math::MathDialect>(op.getDialect());
    if (scalarOp || isa<tensor::EmptyOp, linalg::FillOp, arith::ConstantOp>(op))
      continue;
    op.emitError() << "'" << op.getName()
                   << "' is not allowed in a kernel; expected linalg.generic, "
                      "linalg.fill, tensor.empty or scalar arithmetic";
    result = failure();
  }
  return result;
}

// No generic may have two of its loops (above size 1) in one class.
bool GraphBuilder::isDistinct() const {
  for (linalg::GenericOp generic : generics) {
    llvm::SmallDenseSet<int> seen;
    for (unsigned i = 0, n = generic.getNumLoops(); i < n; ++i) {
      int loop = loopOf(generic, i);
      if (sizeOf[loop] != 1 && !seen.insert(find(loop)).second)
        return false;
    }
  }
  return true;
}

static linalg::GenericOp producer(Value value) {
  return value.getDefiningOp<linalg::GenericOp>();
}

// The map with which `value`, a result of `generic`, is written.
static AffineMap resultMap(linalg::GenericOp generic, Value value) {
  return generic.getIndexingMapMatchingResult(cast<OpResult>(value));
}

// A loop that reads a value along a dimension is the loop that wrote it.
void GraphBuilder::unifyIntermediates() {
  for (linalg::GenericOp generic : generics)
    for (OpOperand &operand : generic->getOpOperands()) {
      linalg::GenericOp from = producer(operand.get());
      if (!from)
        continue;
      AffineMap read = generic.getMatchingIndexingMap(&operand);
      AffineMap written = resultMap(from, operand.get());
      for (auto [r, w] : llvm::zip(read.getResults(), written.getResults())) {
        auto reader = dyn_cast<AffineDimExpr>(r);
        auto writer = dyn_cast<AffineDimExpr>(w);
        if (reader && writer)
          parent[find(loopOf(generic, reader.getPosition()))] =
              find(loopOf(from, writer.getPosition()));
      }
    }
}

// Two ops that read an argument are taken to walk it together, unless that
// would make one op walk a diagonal (x + transpose of x, b[i] + b[j]).
void GraphBuilder::unifyArguments() {
  llvm::DenseMap<Value, std::pair<linalg::GenericOp, AffineMap>> first;
  for (linalg::GenericOp generic : generics)
    for (OpOperand &operand : generic->getOpOperands()) {
      if (!isa<BlockArgument>(operand.get()) ||
          !isa<RankedTensorType>(operand.get().getType()))
        continue;
      AffineMap map = generic.getMatchingIndexingMap(&operand);
      auto [entry, isNew] = first.try_emplace(operand.get(), generic, map);
      if (isNew)
        continue;
      auto [other, otherMap] = entry->second;
      for (auto [r, w] : llvm::zip(map.getResults(), otherMap.getResults())) {
        auto reader = dyn_cast<AffineDimExpr>(r);
        auto writer = dyn_cast<AffineDimExpr>(w);
        if (!reader || !writer)
          continue;
        int a = find(loopOf(generic, reader.getPosition()));
        int b = find(loopOf(other, writer.getPosition()));
        if (a == b || sizeOf[a] != sizeOf[b])
          continue;
        parent[a] = b;
        if (!isDistinct())
          parent[a] = a;
      }
    }
}

// Ops that share no value (two sums over tensors of one shape) walk the domain
// together if their loops have the sizes of the op with most loops.
void GraphBuilder::unifyShapes() {
  auto loopsOf = [&](linalg::GenericOp generic) {
    SmallVector<int> loops;
    for (unsigned i = 0, n = generic.getNumLoops(); i < n; ++i)
      if (sizeOf[loopOf(generic, i)] != 1)
        loops.push_back(loopOf(generic, i));
    return loops;
  };
  SmallVector<int> widest;
  for (linalg::GenericOp generic : generics)
    if (SmallVector<int> loops = loopsOf(generic); loops.size() > widest.size())
      widest = loops;
  for (linalg::GenericOp generic : generics) {
    SmallVector<int> loops = loopsOf(generic);
    if (loops.size() != widest.size())
      continue;
    for (auto [mine, theirs] : llvm::zip(loops, widest)) {
      int a = find(mine), b = find(theirs);
      if (a == b || sizeOf[a] != sizeOf[b])
        continue;
      parent[a] = b;
      if (!isDistinct())
        parent[a] = a;
    }
  }
}

// The domain's order is the loop order of the op with most loops, which must
// have all dimensions.
LogicalResult GraphBuilder::orderDimensions() {
  llvm::SmallDenseSet<int> all;
  linalg::GenericOp widest;
  unsigned most = 0;
  for (linalg::GenericOp generic : generics) {
    unsigned count = 0;
    for (unsigned i = 0, n = generic.getNumLoops(); i < n; ++i) {
      int loop = loopOf(generic, i);
      if (sizeOf[loop] == 1)
        continue;
      ++count;
      all.insert(find(loop));
    }
    if (!widest || count > most) {
      widest = generic;
      most = count;
    }
  }
  if (all.size() != most)
    return graph.function.emitError()
           << "kernel has " << all.size()
           << " distinct dimensions, but no op of it has more than " << most
           << "; expected one common iteration domain";
  llvm::DenseMap<int, int> dimOf;
  if (widest)
    for (unsigned i = 0, n = widest.getNumLoops(); i < n; ++i) {
      int loop = loopOf(widest, i);
      if (sizeOf[loop] == 1)
        continue;
      dimOf[find(loop)] = graph.dims.size();
      graph.dims.push_back({sizeOf[loop]});
    }
  for (linalg::GenericOp generic : generics) {
    llvm::SmallVector<int> &dims = graph.loops[generic];
    for (unsigned i = 0, n = generic.getNumLoops(); i < n; ++i) {
      int loop = loopOf(generic, i);
      dims.push_back(sizeOf[loop] == 1 ? -1 : dimOf.lookup(find(loop)));
    }
  }
  return success();
}

// Finds the reductions and the pass in which each value is known.
LogicalResult GraphBuilder::classify() {
  llvm::SmallDenseSet<int> reduced;
  linalg::GenericOp firstReduction;
  auto isKnown = [&](Value value) { return graph.known.lookup(value); };
  for (linalg::GenericOp generic : generics) {
    int level = 0;
    for (Value operand : generic->getOperands())
      level = std::max(level, isKnown(operand));
    for (OpResult result : generic->getResults()) {
      AffineMap map = resultMap(generic, result);
      llvm::SmallDenseSet<int> mine;
      for (auto [i, dim] : llvm::enumerate(graph.loops[generic]))
        if (dim >= 0 && !map.isFunctionOfDim(i))
          mine.insert(dim);
      graph.known[result] = level + !mine.empty();
      graph.reductions[result] = !mine.empty();
      if (mine.empty())
        continue;
      if (firstReduction && mine != reduced)
        return generic.emitError()
               << "a kernel reduces one set of dimensions, but this op and "
                  "another one reduce different ones";
      firstReduction = generic;
      reduced = mine;
    }
  }
  for (int dim : reduced)
    graph.dims[dim].reduced = true;
  return success();
}

unsigned GraphBuilder::addAccess(unsigned operand, linalg::GenericOp generic,
                                 AffineMap map) {
  Access access{operand, llvm::SmallVector<int64_t>(graph.dims.size(), 0)};
  for (auto [i, expr] : llvm::enumerate(map.getResults()))
    if (auto dim = dyn_cast<AffineDimExpr>(expr))
      if (int d = graph.loops[generic][dim.getPosition()]; d >= 0)
        access.strides[d] += graph.operands[operand].strides[i];
  for (auto [i, other] : llvm::enumerate(graph.accesses))
    if (other.operand == operand && other.strides == access.strides)
      return i;
  graph.accesses.push_back(access);
  return graph.accesses.size() - 1;
}

void GraphBuilder::computeAccesses() {
  llvm::DenseMap<Value, unsigned> operandOf;
  for (unsigned i = 0; i < graph.firstOutput; ++i)
    operandOf[graph.operands[i].value] = i;
  for (linalg::GenericOp generic : generics)
    for (OpOperand &operand : generic->getOpOperands())
      if (auto it = operandOf.find(operand.get()); it != operandOf.end())
        graph.readAccess[&operand] = addAccess(
            it->second, generic, generic.getMatchingIndexingMap(&operand));
  for (unsigned i = graph.firstOutput; i < graph.operands.size(); ++i) {
    Value value = graph.operands[i].value;
    linalg::GenericOp generic = producer(value);
    graph.outputAccess.push_back(
        addAccess(i, generic, resultMap(generic, value)));
  }
}

LogicalResult GraphBuilder::run() {
  // All problems of the function at once, as far as they can be told apart.
  bool bad = failed(collectOperands());
  bad |= failed(collectGenerics());
  if (bad)
    return failure();
  unifyIntermediates();
  if (!isDistinct())
    return graph.function.emitError()
           << "an op of the kernel uses one dimension in two of its loops";
  unifyArguments();
  unifyShapes();
  if (failed(orderDimensions()) || failed(classify()))
    return failure();
  computeAccesses();
  return success();
}

FailureOr<KernelGraph> KernelGraph::build(func::FuncOp function) {
  GraphBuilder builder(function);
  if (failed(builder.run()))
    return failure();
  return std::move(builder.graph);
}

} // namespace merak::codegen
