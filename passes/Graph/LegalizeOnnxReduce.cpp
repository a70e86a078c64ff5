// ONNX reductions and matrix products.
#include "passes/Graph/HostTensor.h"
#include "passes/Graph/OnnxConversion.h"

#include <string>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
struct Reduction {
  Shape axes;
  bool keep;
};
} // namespace

// Axes: an attribute first, an input from opset 13 (ReduceSum) or 18 on.
static LogicalResult parse(const OnnxNode &node, GraphBuilder &b,
                           Reduction &reduction) {
  std::optional<Shape> axes;
  if (failed(needs(node, b, 1)) || failed(node.integersAt(1, "axes", b, axes)))
    return failure();
  reduction.keep = node.integer("keepdims", 1);
  int64_t rank = rankOf(node.in(0));
  if (axes && !axes->empty())
    reduction.axes = *axes;
  else if (!node.integer("noop_with_empty_axes", 0))
    reduction.axes = dimsFrom(0, rank);
  if (failed(wrapAxes(reduction.axes, rank, b)))
    return failure();
  llvm::sort(reduction.axes);
  return success();
}

using Prepare = Value (*)(GraphBuilder &, Value);
static Value asIs(GraphBuilder &, Value x) { return x; }
static Value square(GraphBuilder &b, Value x) { return b.binary<MulOp>(x, x); }
static Value absolute(GraphBuilder &b, Value x) { return b.unary<AbsOp>(x); }

// after(sum(before(x))).
template <Prepare before, Prepare after> CONVERT(reduceSum) {
  Reduction r;
  if (failed(parse(node, b, r)))
    return failure();
  Value sum = b.reduce<ReduceSumOp>(before(b, node.in(0)), r.axes, r.keep);
  return give(results, after(b, sum));
}

static Value logarithm(GraphBuilder &b, Value x) { return b.unary<LogOp>(x); }
static Value root(GraphBuilder &b, Value x) { return b.unary<SqrtOp>(x); }
static Value negate(GraphBuilder &b, Value x) { return b.unary<NegOp>(x); }

template <Prepare around> CONVERT(reduceMax) {
  Reduction r;
  if (failed(parse(node, b, r)))
    return failure();
  Value max = b.reduce<ReduceMaxOp>(around(b, node.in(0)), r.axes, r.keep);
  return give(results, around(b, max));
}

CONVERT(reduceMean) {
  Reduction r;
  if (failed(parse(node, b, r)))
    return failure();
  return give(results, b.mean(node.in(0), r.axes, r.keep));
}

CONVERT(reduceLogSumExp) {
  Reduction r;
  if (failed(parse(node, b, r)))
    return failure();
  Value x = node.in(0);
  Value max = b.reduce<ReduceMaxOp>(x, r.axes, true);
  Value sum = b.reduce<ReduceSumOp>(b.unary<ExpOp>(b.binary<SubOp>(x, max)),
                                    r.axes, true);
  Value result = b.binary<AddOp>(b.unary<LogOp>(sum), max);
  if (!r.keep && result) {
    Shape shape;
    for (auto [i, dim] : llvm::enumerate(shapeOf(x)))
      if (!llvm::is_contained(r.axes, static_cast<int64_t>(i)))
        shape.push_back(dim);
    result = b.reshape(result, shape);
  }
  return give(results, result);
}

// Letters for batch, row, inner and column dimensions of a product. Batch
// dimensions of size 1 that meet a larger one are dropped first, since an
// equation has no broadcasting.
CONVERT(convertMatMul) {
  if (failed(needsRank(node, b, 2, 1)))
    return failure();
  Value l = node.in(0), r = node.in(1);
  if (rankOf(r) < 1) {
    b.fail("expected matrices, found " + describeType(r.getType()));
    return failure();
  }
  bool vectorL = rankOf(l) == 1, vectorR = rankOf(r) == 1;
  int64_t batchL = vectorL ? 0 : rankOf(l) - 2;
  int64_t batchR = vectorR ? 0 : rankOf(r) - 2;
  int64_t batch = std::max(batchL, batchR);
  if (batch > 20) {
    b.fail("expected at most 20 batch dimensions");
    return failure();
  }
  std::string left, right, out;
  Shape shapeL, shapeR, shapeOut;
  for (int64_t i = 0; i < batch; ++i) {
    int64_t atL = i - (batch - batchL), atR = i - (batch - batchR);
    int64_t dimL = atL >= 0 ? shapeOf(l)[atL] : 1;
    int64_t dimR = atR >= 0 ? shapeOf(r)[atR] : 1;
    char letter = static_cast<char>('a' + i);
    bool inL = atL >= 0 && (dimL != 1 || dimR == 1 || atR < 0);
    bool inR = atR >= 0 && (dimR != 1 || dimL == 1 || atL < 0);
    if (inL) {
      left += letter;
      shapeL.push_back(dimL);
    }
    if (inR) {
      right += letter;
      shapeR.push_back(dimR);
    }
    out += letter;
  }
  // Inner letter x, row letter y, column letter z.
  if (!vectorL) {
    left += 'y';
    shapeL.push_back(shapeOf(l)[rankOf(l) - 2]);
    out += 'y';
  }
  left += 'x';
  shapeL.push_back(shapeOf(l).back());
  right += 'x';
  shapeR.push_back(shapeOf(r)[vectorR ? 0 : rankOf(r) - 2]);
  if (!vectorR) {
    right += 'z';
    shapeR.push_back(shapeOf(r).back());
    out += 'z';
  }
  return give(results, b.einsum(left + "," + right + "->" + out,
                                b.reshape(l, shapeL), b.reshape(r, shapeR)));
}

CONVERT(convertGemm) {
  if (failed(needsRank(node, b, 2, 2)))
    return failure();
  Value l = node.in(0), r = node.in(1);
  if (rankOf(l) != 2 || rankOf(r) != 2) {
    b.fail("expected two matrices, found " + describeType(l.getType()) +
           " and " + describeType(r.getType()));
    return failure();
  }
  std::string equation = node.integer("transA", 0) ? "xy," : "yx,";
  equation += node.integer("transB", 0) ? "zx->yz" : "xz->yz";
  Value y = b.einsum(equation, l, r);
  double alpha = node.real("alpha", 1), beta = node.real("beta", 1);
  if (alpha != 1)
    y = b.binary<MulOp>(y, alpha);
  if (Value c = node.in(2); c && beta != 0) {
    if (beta != 1)
      c = b.binary<MulOp>(c, beta);
    y = b.binary<AddOp>(y, c);
  }
  return give(results, y);
}

CONVERT(convertEinsum) {
  if (failed(needs(node, b, 2)))
    return failure();
  std::string equation;
  for (char c : node.string("equation", ""))
    if (c != ' ')
      equation += c;
  StringRef text(equation);
  auto [inputs, out] = text.split("->");
  auto [left, right] = inputs.split(',');
  auto plain = [](StringRef letters, int64_t rank) {
    if (rank >= 0 && static_cast<int64_t>(letters.size()) != rank)
      return false;
    for (auto [i, c] : llvm::enumerate(letters))
      if (!isalpha(c) || letters.find(c, i + 1) != StringRef::npos)
        return false;
    return true;
  };
  bool known = llvm::all_of(out, [&](char c) { return inputs.contains(c); });
  if (node.inputs.size() != 2 || !text.contains("->") || !known ||
      !plain(out, -1) || !plain(left, rankOf(node.in(0))) ||
      !plain(right, rankOf(node.in(1)))) {
    b.fail("unsupported equation \"" + equation +
           "\", expected two operands, every letter once an operand, an "
           "explicit output");
    return failure();
  }
  return give(results, b.einsum(equation, node.in(0), node.in(1)));
}

void merak::addReductionConversions(SmallVectorImpl<OnnxEntry> &table) {
  auto add = [&](const char *type, int64_t since, OnnxConversionFn convert) {
    table.push_back({type, since, kNewestOpset, convert});
  };
  add("ReduceSum", 1, reduceSum<asIs, asIs>);
  add("ReduceSumSquare", 1, reduceSum<square, asIs>);
  add("ReduceL1", 1, reduceSum<absolute, asIs>);
  add("ReduceL2", 1, reduceSum<square, root>);
  add("ReduceLogSum", 1, reduceSum<asIs, logarithm>);
  add("ReduceLogSumExp", 1, reduceLogSumExp);
  add("ReduceMean", 1, reduceMean);
  add("ReduceMax", 1, reduceMax<asIs>);
  add("ReduceMin", 1, reduceMax<negate>);
  add("MatMul", 1, convertMatMul);
  add("Gemm", 7, convertGemm);
  add("Einsum", 12, convertEinsum);
}
