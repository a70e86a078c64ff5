// ONNX softmax and normalisations.
#include "onnx/Conversion/Conversion.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

Value merak::logSoftmax(GraphBuilder &b, Value x, int64_t axis) {
  Value shifted =
      b.binary<SubOp>(x, b.reduce<ReduceMaxOp>(x, {axis}, /*keep=*/true));
  Value sum = b.reduce<ReduceSumOp>(b.unary<ExpOp>(shifted), {axis}, true);
  return b.binary<SubOp>(shifted, b.unary<LogOp>(sum));
}

// Of halves in f32: their sums would lose what the exponentials have.
static Value softmax(GraphBuilder &b, Value x, int64_t axis) {
  if (!x)
    return x;
  Type element = tensorType(x).getElementType();
  Value wide = element.getIntOrFloatBitWidth() < 32
                   ? b.cast(x, b.builder.getF32Type())
                   : x;
  return b.cast(SoftmaxOp::create(b.builder, b.loc, wide.getType(), wide, axis),
                element);
}

using AlongAxis = Value (*)(GraphBuilder &, Value, int64_t);

template <AlongAxis f> CONVERT(alongAxis) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", -1), std::max<int64_t>(rankOf(x), 1), b);
  if (!axis)
    return failure();
  if (rankOf(x) == 0)
    return give(results, b.reshape(f(b, b.reshape(x, {1}), 0), {}));
  return give(results, f(b, x, *axis));
}

// Before opset 13 the dimensions from `axis` on count as one.
template <AlongAxis f> CONVERT(alongFlattened) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", 1), std::max<int64_t>(rankOf(x), 1), b);
  if (!axis)
    return failure();
  if (*axis == rankOf(x) - 1)
    return give(results, f(b, x, *axis));
  Shape shape(shapeOf(x).take_front(*axis));
  int64_t joined = 1;
  for (int64_t dim : shapeOf(x).drop_front(*axis))
    joined *= dim;
  shape.push_back(joined);
  return give(results, b.reshape(f(b, b.reshape(x, shape), *axis), shapeOf(x)));
}

// y * scale + bias, leaving out what does nothing.
static Value affine(GraphBuilder &b, Value y, Value scale, Value bias) {
  if (scale && splatOf(scale) != 1.0)
    y = b.binary<MulOp>(y, scale);
  if (bias && splatOf(bias) != 0.0)
    y = b.binary<AddOp>(y, bias);
  return y;
}

// A per-channel vector [c] as [c, 1, ...], to meet [n, c, ...].
static Value perChannel(GraphBuilder &b, Value vector, int64_t rank) {
  if (!vector)
    return vector;
  Shape shape(std::max<int64_t>(rank - 1, 1), 1);
  shape[0] = tensorType(vector).getNumElements();
  return b.reshape(vector, shape);
}

// Result, mean and 1/deviation, each of shape x[:axis] but the first.
static LayerNormOp layerNorm(GraphBuilder &b, Value x, Value scale, Value bias,
                             int64_t axis, double epsilon) {
  auto row = RankedTensorType::get(shapeOf(x).take_front(axis),
                                   b.builder.getF32Type());
  return LayerNormOp::create(b.builder, b.loc, TypeRange{x.getType(), row, row},
                             x, scale, bias, b.builder.getI64IntegerAttr(axis),
                             b.builder.getF64FloatAttr(epsilon));
}

static Shape keptShape(Value x, int64_t axis) {
  Shape kept(shapeOf(x));
  for (size_t i = axis; i < kept.size(); ++i)
    kept[i] = 1;
  return kept;
}

CONVERT(convertLayerNorm) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0), scale = node.in(1), bias = node.in(2);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", -1), rankOf(x), b);
  if (!axis)
    return failure();
  // A scale that broadcasts within the normalised dimensions stays outside.
  ArrayRef<int64_t> normalised = shapeOf(x).drop_front(*axis);
  bool inside = (!scale || shapeOf(scale) == normalised) &&
                (!bias || shapeOf(bias) == normalised);
  LayerNormOp op =
      layerNorm(b, x, inside ? scale : Value(), inside ? bias : Value(), *axis,
                node.real("epsilon", 1e-5));
  Shape kept = keptShape(x, *axis);
  if (results.size() > 1 && node.usedOutputs[1])
    results[1] = b.reshape(op.getMean(), kept);
  if (results.size() > 2 && node.usedOutputs[2])
    results[2] = b.reshape(op.getRstd(), kept);
  return give(results, inside ? op.getY() : affine(b, op.getY(), scale, bias));
}

CONVERT(convertRmsNorm) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0), scale = node.in(1);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", -1), rankOf(x), b);
  if (!axis)
    return failure();
  bool inside = !scale || shapeOf(scale) == shapeOf(x).drop_front(*axis);
  auto row = RankedTensorType::get(shapeOf(x).take_front(*axis),
                                   b.builder.getF32Type());
  auto op = RmsNormOp::create(
      b.builder, b.loc, TypeRange{x.getType(), row}, x,
      inside ? scale : Value(), b.builder.getI64IntegerAttr(*axis),
      b.builder.getF64FloatAttr(node.real("epsilon", 1e-5)));
  return give(results,
              inside ? op.getY() : affine(b, op.getY(), scale, Value()));
}

// Statistics over the spatial dimensions of each sample and channel.
CONVERT(convertInstanceNorm) {
  if (failed(needsRank(node, b, 3, 3)))
    return failure();
  Value x = node.in(0);
  LayerNormOp op =
      layerNorm(b, x, Value(), Value(), 2, node.real("epsilon", 1e-5));
  return give(results,
              affine(b, op.getY(), perChannel(b, node.in(1), rankOf(x)),
                     perChannel(b, node.in(2), rankOf(x))));
}

// The same over groups of channels; scale and bias are per channel (opset 21)
// or per group (18).
CONVERT(convertGroupNorm) {
  if (failed(needsRank(node, b, 3, 3)))
    return failure();
  Value x = node.in(0), scale = node.in(1), bias = node.in(2);
  int64_t groups = node.integer("num_groups", 1);
  int64_t channels = shapeOf(x)[1];
  if (groups < 1 || channels % groups) {
    b.fail("expected num_groups that divides " + llvm::Twine(channels) +
           " channels, found " + llvm::Twine(groups));
    return failure();
  }
  Shape grouped(shapeOf(x));
  grouped[1] = groups;
  grouped.insert(grouped.begin() + 2, channels / groups);
  LayerNormOp op = layerNorm(b, b.reshape(x, grouped), Value(), Value(), 2,
                             node.real("epsilon", 1e-5));
  bool perGroup = node.opset < 21;
  int64_t rank = perGroup ? grouped.size() : rankOf(x);
  scale = perChannel(b, scale, rank);
  bias = perChannel(b, bias, rank);
  if (perGroup)
    return give(results,
                b.reshape(affine(b, op.getY(), scale, bias), shapeOf(x)));
  return give(results,
              affine(b, b.reshape(op.getY(), shapeOf(x)), scale, bias));
}

// The operator's own outputs: running statistics after the global batch.
static LogicalResult runningOutputs(const OnnxNode &node, GraphBuilder &b,
                                    Results &results) {
  Value x = node.in(0);
  Shape axes = dimsFrom(0, rankOf(x));
  axes.erase(axes.begin() + 1);
  Value mean = b.mean(x, axes, /*keep=*/true);
  Value centered = b.binary<SubOp>(x, mean);
  Value batch[] = {mean,
                   b.mean(b.binary<MulOp>(centered, centered), axes, true)};
  double momentum = node.real("momentum", 0.9);
  for (size_t i = 0; i < 2; ++i)
    if (results.size() > i + 1 && node.usedOutputs[i + 1])
      results[i + 1] = b.binary<AddOp>(
          b.binary<MulOp>(node.in(3 + i), momentum),
          b.binary<MulOp>(b.reshape(batch[i], shapeOf(node.in(3 + i))),
                          1 - momentum));
  return success();
}

// The mean over the samples of a microbatch and all positions, as [n, c].
static Value batchMean(GraphBuilder &b, Value x) {
  Value mean = b.mean(x, dimsFrom(2, rankOf(x)), /*keep=*/false);
  return b.unary<BatchMeanOp>(mean);
}

// Training mode: statistics of each microbatch of a replica, and the running
// ones as state of the model where they are weights of it.
static LogicalResult batchStatistics(const OnnxNode &node, GraphBuilder &b,
                                     Results &results) {
  Value x = node.in(0);
  int64_t rank = rankOf(x);
  Shape aside(rank, 1);
  std::copy_n(shapeOf(x).begin(), 2, aside.begin());
  Value mean = batchMean(b, x);
  Value centered = b.binary<SubOp>(x, b.reshape(mean, aside));
  Value variance = batchMean(b, b.binary<MulOp>(centered, centered));
  Value rstd = b.unary<ReciprocalOp>(
      b.unary<SqrtOp>(b.binary<AddOp>(variance, node.real("epsilon", 1e-5))));
  if (!rstd)
    return failure();
  double keep = node.real("momentum", 0.9);
  int64_t each = 1;
  for (int64_t size : shapeOf(x).drop_front(2))
    each *= size;
  Value batch[] = {mean, variance};
  for (size_t i = 0; i < 2; ++i) {
    auto running = node.in(3 + i).getDefiningOp<ReadOp>();
    if (!running || !node.train)
      continue;
    Value statistic =
        b.cast(batch[i], tensorType(node.in(3 + i)).getElementType());
    TrackOp::create(b.builder, b.loc, running.getType(), statistic, running,
                    b.builder.getF64FloatAttr(keep),
                    b.builder.getI64IntegerAttr(each),
                    i == 1 ? b.builder.getUnitAttr() : UnitAttr());
  }
  if (failed(runningOutputs(node, b, results)))
    return failure();
  return give(results,
              affine(b, b.binary<MulOp>(centered, b.reshape(rstd, aside)),
                     perChannel(b, node.in(1), rank),
                     perChannel(b, node.in(2), rank)));
}

CONVERT(convertBatchNorm) {
  if (failed(needsRank(node, b, 5, 2)))
    return failure();
  // Before opset 7 an attribute told training, before 9 `spatial` whether the
  // positions of a channel share their statistics.
  if ((node.opset < 7 && !node.integer("is_test", 0)) ||
      (node.opset < 9 && !node.integer("spatial", 1))) {
    b.fail("unsupported form, expected is_test and spatial statistics");
    return failure();
  }
  bool training = node.opset >= 14 && node.integer("training_mode", 0);
  bool updates = false;
  for (size_t i = 1; i < results.size(); ++i)
    updates |= node.usedOutputs[i];
  for (size_t i = 1; i < 5; ++i)
    if (shapeOf(node.in(i)) != shapeOf(node.in(0)).slice(1, 1)) {
      b.fail("expected scale, bias and statistics of " +
             describeShape(shapeOf(node.in(0)).slice(1, 1)) + ", found " +
             describeShape(shapeOf(node.in(i))));
      return failure();
    }
  // Evaluated with its running statistics, unless the new ones are asked for.
  if (training && (node.train || updates))
    return batchStatistics(node, b, results);
  for (size_t i = 1; i < results.size(); ++i)
    if (node.usedOutputs[i]) {
      b.fail("unsupported use of saved statistics, expected the result alone");
      return failure();
    }
  // Frozen statistics: an affine map per channel.
  Value x = node.in(0), scale = node.in(1), bias = node.in(2);
  Value deviation =
      b.unary<SqrtOp>(b.binary<AddOp>(node.in(4), node.real("epsilon", 1e-5)));
  Value factor = b.binary<DivOp>(scale, deviation);
  Value offset = b.binary<SubOp>(bias, b.binary<MulOp>(node.in(3), factor));
  return give(results, affine(b, x, perChannel(b, factor, rankOf(x)),
                              perChannel(b, offset, rankOf(x))));
}

// (x - mean) / (deviation + 1e-9) over some dimensions.
CONVERT(convertMeanVarianceNorm) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Shape axes = node.integers("axes").value_or(Shape{0, 2, 3});
  if (failed(wrapAxes(axes, rankOf(x), b)))
    return failure();
  Value centered = b.binary<SubOp>(x, b.mean(x, axes, /*keep=*/true));
  Value variance = b.mean(b.binary<MulOp>(centered, centered), axes, true);
  return give(results,
              b.binary<DivOp>(
                  centered, b.binary<AddOp>(b.unary<SqrtOp>(variance), 1e-9)));
}

CONVERT(convertLpNorm) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", -1), rankOf(x), b);
  if (!axis)
    return failure();
  bool isL1 = node.integer("p", 2) == 1;
  Value power = isL1 ? b.unary<AbsOp>(x) : b.binary<MulOp>(x, x);
  Value sum = b.reduce<ReduceSumOp>(power, {*axis}, true);
  // A vector of zeros stays one.
  Value isZero = b.compare(ComparePredicate::eq, sum, b.scalarLike(0, sum));
  sum = b.select(isZero, b.scalarLike(1, sum), sum);
  return give(results, b.binary<DivOp>(x, isL1 ? sum : b.unary<SqrtOp>(sum)));
}

void merak::addNetworkConversions(OnnxTable &table) {
  table.add("Softmax", 1, alongFlattened<softmax>, 12);
  table.add("Softmax", 13, alongAxis<softmax>);
  table.add("LogSoftmax", 1, alongFlattened<logSoftmax>, 12);
  table.add("LogSoftmax", 13, alongAxis<logSoftmax>);
  table.add("LayerNormalization", 1, convertLayerNorm);
  table.add("RMSNormalization", 23, convertRmsNorm);
  table.add("SimplifiedLayerNormalization", 1, convertRmsNorm);
  table.add("InstanceNormalization", 6, convertInstanceNorm);
  table.add("GroupNormalization", 18, convertGroupNorm);
  table.add("BatchNormalization", 1, convertBatchNorm);
  table.add("LpNormalization", 1, convertLpNorm);
  table.add("MeanVarianceNormalization", 9, convertMeanVarianceNorm);
}
