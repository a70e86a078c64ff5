// ONNX losses. A mean is written as a sum over rows divided by a count of
// labels, so that it stays the mean over the global batch when rows are split
// over microbatches and replicas.
#include "onnx/Conversion/Conversion.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

// The class weight of each label, 0 where it is ignored; null without weights.
static Value labelWeights(const OnnxNode &node, GraphBuilder &b, Value labels,
                          std::optional<int64_t> ignore) {
  Value weights = node.in(2);
  if (!weights)
    return {};
  if (!ignore)
    return b.gather(weights, labels, 0);
  // An ignored label need not be a class.
  Value kept = b.compare(ComparePredicate::ne, labels,
                         b.scalarLike(static_cast<double>(*ignore), labels));
  Value safe = b.select(kept, labels, b.scalarLike(0, labels));
  return b.select(kept, b.gather(weights, safe, 0), b.scalarLike(0, weights));
}

// reduction(rows), rows [n, d...] with ignored rows already 0 and class weights
// already in.
static Value reduceRows(const OnnxNode &node, GraphBuilder &b, Value rows,
                        Value labels, Value weights,
                        std::optional<int64_t> ignore) {
  StringRef reduction = node.string("reduction", "mean");
  if (reduction == "none" || !rows)
    return rows;
  Value sum = b.reduce<ReduceSumOp>(rows, dimsFrom(0, rankOf(rows)), false);
  if (reduction == "sum")
    return sum;
  if (reduction != "mean")
    return b.fail("expected reduction none, sum or mean, found '" + reduction +
                  "'");
  int64_t count = tensorType(rows).getNumElements();
  if (weights)
    return b.binary<DivOp>(
        sum, b.reduce<ReduceSumOp>(weights, dimsFrom(0, rankOf(rows)), false));
  if (!ignore)
    return b.binary<MulOp>(sum, 1.0 / std::max<int64_t>(count, 1));
  Value kept = b.compare(ComparePredicate::ne, labels,
                         b.scalarLike(static_cast<double>(*ignore), labels));
  Value counted =
      b.reduce<ReduceSumOp>(b.cast(kept, tensorType(rows).getElementType()),
                            dimsFrom(0, rankOf(rows)), false);
  return b.binary<DivOp>(sum, counted);
}

static Value weigh(GraphBuilder &b, Value rows, Value weights) {
  return weights ? b.binary<MulOp>(rows, weights) : rows;
}

// The loss against equal chances of all classes, sum over c of -w[c] log p[c],
// of each row: what label smoothing mixes in. `scores` [n, d..., c].
static Value uniformRows(const OnnxNode &node, GraphBuilder &b, Value scores,
                         Value labels, std::optional<int64_t> ignore) {
  const int64_t axis = rankOf(scores) - 1;
  Value centered =
      b.binary<SubOp>(scores, b.unary<StopGradientOp>(b.reduce<ReduceMaxOp>(
                                  scores, {axis}, /*keep=*/true)));
  Value sum = b.reduce<ReduceSumOp>(b.unary<ExpOp>(centered), {axis}, true);
  Value negative = b.binary<SubOp>(b.unary<LogOp>(sum), centered);
  if (Value weights = node.in(2))
    negative = b.binary<MulOp>(negative, weights);
  Value rows = b.reduce<ReduceSumOp>(negative, {axis}, false);
  if (!ignore || !rows)
    return rows;
  Value kept = b.compare(ComparePredicate::ne, labels,
                         b.scalarLike(static_cast<double>(*ignore), labels));
  return b.select(kept, rows, b.scalarLike(0, rows));
}

// [n, c, d...] -> [n, d..., c].
static Value classLast(GraphBuilder &b, Value scores) {
  Shape perm = dimsFrom(0, rankOf(scores));
  perm.erase(perm.begin() + 1);
  perm.push_back(1);
  return b.transpose(scores, perm);
}

// Labels that are chances of the classes, as PyTorch's exporters write them for
// targets that are floats: the operator's text knows only integers, but nothing
// else can be meant.
static bool hasSoftLabels(const OnnxNode &node) {
  Value scores = node.in(0), labels = node.in(1);
  return scores && labels && isFloat(labels) && rankOf(scores) >= 2 &&
         labels.getType() == scores.getType();
}

static LogicalResult checkLoss(const OnnxNode &node, GraphBuilder &b) {
  if (failed(needsFloat(node, b, 2)) || failed(needsRank(node, b, 2, 2)))
    return failure();
  Value scores = node.in(0), labels = node.in(1);
  if (Value weights = node.in(2);
      weights &&
      (rankOf(weights) != 1 || shapeOf(weights)[0] != shapeOf(scores)[1] ||
       tensorType(weights).getElementType() !=
           tensorType(scores).getElementType())) {
    b.fail("expected a weight for each class of " +
           describeType(scores.getType()) + ", found " +
           describeType(weights.getType()));
    return failure();
  }
  if (hasSoftLabels(node))
    return success();
  Shape expected(shapeOf(scores));
  expected.erase(expected.begin() + 1);
  if (shapeOf(labels) != ArrayRef<int64_t>(expected) ||
      !isa<IntegerType>(tensorType(labels).getElementType())) {
    b.fail("expected integer labels of shape " + describeShape(expected) +
           " or chances of the classes of the shape of the scores " +
           describeType(scores.getType()) + ", found " +
           describeType(labels.getType()));
    return failure();
  }
  return success();
}

static std::optional<int64_t> ignoredLabel(const OnnxNode &node) {
  if (!node.hasAttribute("ignore_index"))
    return std::nullopt;
  return node.integer("ignore_index", 0);
}

static IntegerAttr ignoreAttr(GraphBuilder &b, std::optional<int64_t> ignore) {
  return ignore ? b.builder.getI64IntegerAttr(*ignore) : IntegerAttr();
}

// The mean over samples and places of -sum(w * chances * log p) over classes.
static LogicalResult softCrossEntropy(const OnnxNode &node, GraphBuilder &b,
                                      Value logChances, Results &results) {
  Value scores = node.in(0);
  Value chances = node.in(1);
  if (double smoothing = node.real(kLabelSmoothing, 0); smoothing > 0)
    chances =
        b.binary<AddOp>(b.binary<MulOp>(chances, 1 - smoothing),
                        b.scalarLike(smoothing / shapeOf(scores)[1], chances));
  Value rows = b.binary<MulOp>(logChances, chances);
  Shape ofClass(rankOf(scores), 1);
  ofClass[1] = shapeOf(scores)[1];
  if (Value weights = node.in(2))
    rows = b.binary<MulOp>(rows, b.reshape(weights, ofClass));
  rows = b.unary<NegOp>(b.reduce<ReduceSumOp>(rows, {1}, false));
  return give(results, reduceRows(node, b, rows, {}, {}, std::nullopt));
}

CONVERT(convertCrossEntropy) {
  if (failed(checkLoss(node, b)))
    return failure();
  if (hasSoftLabels(node)) {
    Value logChances = logSoftmax(b, node.in(0), 1);
    if (results.size() > 1 && node.usedOutputs[1])
      results[1] = logChances;
    return softCrossEntropy(node, b, logChances, results);
  }
  Value scores = node.in(0), labels = node.in(1);
  std::optional<int64_t> ignore = ignoredLabel(node);
  auto row = RankedTensorType::get(shapeOf(labels),
                                   tensorType(scores).getElementType());
  auto op = SoftmaxCrossEntropyOp::create(b.builder, b.loc, TypeRange{row, row},
                                          classLast(b, scores), labels,
                                          ignoreAttr(b, ignore));
  if (results.size() > 1 && node.usedOutputs[1]) {
    Shape shape(shapeOf(scores));
    shape[1] = 1;
    results[1] = b.binary<SubOp>(scores, b.reshape(op.getLse(), shape));
  }
  Value weights = labelWeights(node, b, labels, ignore);
  Value rows = weigh(b, op.getLoss(), weights);
  // (1 - s) of the loss, s of the loss against equal chances, as PyTorch's
  // cross_entropy has it.
  if (double smoothing = node.real(kLabelSmoothing, 0); smoothing > 0) {
    const double share = smoothing / shapeOf(scores)[1];
    Value uniform = uniformRows(node, b, classLast(b, scores), labels, ignore);
    rows = b.binary<AddOp>(b.binary<MulOp>(rows, 1 - smoothing),
                           b.binary<MulOp>(uniform, share));
  }
  return give(results, reduceRows(node, b, rows, labels, weights, ignore));
}

CONVERT(convertNll) {
  if (failed(checkLoss(node, b)))
    return failure();
  if (hasSoftLabels(node))
    return softCrossEntropy(node, b, node.in(0), results);
  Value scores = node.in(0), labels = node.in(1);
  std::optional<int64_t> ignore = ignoredLabel(node);
  auto row = RankedTensorType::get(shapeOf(labels),
                                   tensorType(scores).getElementType());
  Value picked = PickOp::create(b.builder, b.loc, row, classLast(b, scores),
                                labels, ignoreAttr(b, ignore), StringAttr());
  Value weights = labelWeights(node, b, labels, ignore);
  Value rows = weigh(b, b.unary<NegOp>(picked), weights);
  return give(results, reduceRows(node, b, rows, labels, weights, ignore));
}

void merak::addLossConversions(OnnxTable &table) {
  table.add("SoftmaxCrossEntropyLoss", 12, convertCrossEntropy);
  table.add("NegativeLogLikelihoodLoss", 12, convertNll);
}
