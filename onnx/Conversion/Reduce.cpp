// ONNX reductions and matrix products.
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/HostTensor.h"

#include <map>
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
// An order-reversing map that is its own inverse: -x, or ~x of integers.
static Value negate(GraphBuilder &b, Value x) {
  if (!x || isFloat(x))
    return b.unary<NegOp>(x);
  return b.binary<SubOp>(b.scalarLike(-1, x), x);
}

template <Prepare around> CONVERT(reduceMax) {
  Reduction r;
  if (failed(parse(node, b, r)))
    return failure();
  // Bits have no order in kernels.
  Type element = tensorType(node.in(0)).getElementType();
  if (element.isInteger(1)) {
    Value wide = around(b, b.cast(node.in(0), b.builder.getI32Type()));
    Value max = b.reduce<ReduceMaxOp>(wide, r.axes, r.keep);
    max = around(b, max);
    // Over nothing it is the smallest number, which is not true.
    return give(results,
                max ? b.compare(ComparePredicate::gt, max, b.scalarLike(0, max))
                    : max);
  }
  Value max = b.reduce<ReduceMaxOp>(around(b, node.in(0)), r.axes, r.keep);
  return give(results, around(b, max));
}

// Neighbours are multiplied until one element is left: log2(n) products.
static Value product(GraphBuilder &b, Value x, int64_t axis) {
  while (x && shapeOf(x)[axis] > 1) {
    int64_t count = shapeOf(x)[axis], half = count / 2;
    Value joined = b.binary<MulOp>(b.sliceDim(x, axis, 0, half),
                                   b.sliceDim(x, axis, half, half));
    x = count % 2 ? b.concat({joined, b.sliceDim(x, axis, count - 1, 1)}, axis)
                  : joined;
  }
  if (!x || shapeOf(x)[axis] == 1)
    return x;
  Shape shape(shapeOf(x));
  shape[axis] = 1;
  return b.expand(b.scalarLike(1, x), shape);
}

CONVERT(reduceProd) {
  Reduction r;
  if (failed(parse(node, b, r)))
    return failure();
  Value x = node.in(0);
  for (int64_t axis : r.axes)
    x = product(b, x, axis);
  if (x && !r.keep) {
    Shape shape;
    for (auto [i, dim] : llvm::enumerate(shapeOf(x)))
      if (!llvm::is_contained(r.axes, static_cast<int64_t>(i)))
        shape.push_back(dim);
    x = b.reshape(x, shape);
  }
  return give(results, x);
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

namespace {
// An operand of an equation with one letter a dimension.
struct Term {
  std::string letters;
  Value value;
};
} // namespace

// x_aa -> x_a: what lies off the diagonal is zero, then one of the two is
// summed away.
static Value diagonal(GraphBuilder &b, Value x, int64_t first, int64_t second) {
  int64_t size = shapeOf(x)[first];
  if (size != shapeOf(x)[second] || size * size > kMaxEvaluated)
    return b.fail("expected a diagonal of " + describeType(x.getType()));
  SmallVector<bool> bits(size * size);
  for (int64_t i = 0; i < size; ++i)
    bits[i * size + i] = true;
  Shape shape(rankOf(x), 1);
  shape[first] = shape[second] = size;
  Value mask = b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getI1Type()), bits));
  return b.reduce<ReduceSumOp>(b.select(mask, x, b.scalarLike(0, x)), {second},
                               false);
}

// Splits the equation into terms with distinct letters; "..." becomes capital
// letters, last dimension first. Empty after a report.
static SmallVector<Term> termsOf(const OnnxNode &node, GraphBuilder &b,
                                 std::string &out) {
  std::string equation;
  for (char c : node.string("equation", ""))
    if (c != ' ')
      equation += c;
  auto refuse = [&]() -> SmallVector<Term> {
    b.fail("expected an equation of letters, one operand a term, found \"" +
           equation + "\"");
    return {};
  };
  auto [inputs, result] = StringRef(equation).split("->");
  SmallVector<StringRef> parts;
  inputs.split(parts, ',');
  if (parts.size() != node.inputs.size())
    return refuse();
  SmallVector<Term> terms;
  std::map<char, int> seen;
  size_t widest = 0;
  auto ellipsis = [](size_t count) {
    std::string text;
    for (size_t i = count; i-- > 0;)
      text += static_cast<char>('Z' - i);
    return text;
  };
  for (auto [part, value] : llvm::zip(parts, node.inputs)) {
    auto [front, back] = part.split("...");
    size_t rank = rankOf(value);
    std::string letters = front.str();
    if (part.contains("...")) {
      if (front.size() + back.size() > rank || rank > 20)
        return refuse();
      size_t count = rank - front.size() - back.size();
      widest = std::max(widest, count);
      letters += ellipsis(count) + back.str();
    }
    if (letters.size() != rank)
      return refuse();
    for (char c : letters)
      if (!isalpha(c))
        return refuse();
      else
        ++seen[c];
    terms.push_back({letters, value});
  }
  if (StringRef(equation).contains("->")) {
    auto [front, back] = result.split("...");
    out = front.str();
    if (result.contains("..."))
      out += ellipsis(widest) + back.str();
  } else {
    out = ellipsis(widest);
    for (auto [c, count] : seen)
      if (count == 1 && out.find(c) == std::string::npos)
        out += c;
  }
  for (size_t i = 0; i < out.size(); ++i)
    if (!seen.count(out[i]) || out.find(out[i], i + 1) != std::string::npos)
      return refuse();
  // Repeated letters, and broadcast dimensions of size 1.
  std::map<char, int64_t> sizes;
  for (Term &term : terms)
    for (auto [c, dim] : llvm::zip(term.letters, shapeOf(term.value)))
      sizes[c] = std::max(sizes[c], dim);
  for (Term &term : terms) {
    for (size_t i = 0; term.value && i < term.letters.size(); ++i) {
      size_t again = term.letters.find(term.letters[i], i + 1);
      if (again != std::string::npos) {
        term.value = diagonal(b, term.value, i, again);
        term.letters.erase(again, 1);
        --i;
      } else if (shapeOf(term.value)[i] == 1 && sizes[term.letters[i]] > 1) {
        Shape shape(shapeOf(term.value));
        shape.erase(shape.begin() + i);
        term.value = b.reshape(term.value, shape);
        term.letters.erase(i, 1);
        --i;
      }
    }
    if (!term.value)
      return {};
  }
  return terms;
}

// Sums the letters that `kept` has not.
static Term summed(GraphBuilder &b, Term term, StringRef kept) {
  Shape axes;
  std::string left;
  for (auto [i, c] : llvm::enumerate(term.letters))
    if (kept.contains(c))
      left += c;
    else
      axes.push_back(static_cast<int64_t>(i));
  return {left, b.reduce<ReduceSumOp>(term.value, axes, false)};
}

CONVERT(convertEinsum) {
  if (failed(needsFloat(node, b, std::max<size_t>(node.inputs.size(), 1))))
    return failure();
  std::string out;
  SmallVector<Term> terms = termsOf(node, b, out);
  if (terms.empty())
    return failure();
  // Pairwise from the left: a letter is summed when nobody needs it any more.
  Term all = terms[0];
  for (size_t i = 1; i < terms.size() && all.value; ++i) {
    std::string later = out;
    for (size_t k = i + 1; k < terms.size(); ++k)
      later += terms[k].letters;
    std::string kept;
    for (char c : all.letters + terms[i].letters)
      if (later.find(c) != std::string::npos &&
          kept.find(c) == std::string::npos)
        kept += c;
    all.value = b.einsum(all.letters + "," + terms[i].letters + "->" + kept,
                         all.value, terms[i].value);
    all.letters = kept;
  }
  if (!all.value)
    return failure();
  all = summed(b, all, out);
  Shape perm;
  for (char c : out)
    perm.push_back(static_cast<int64_t>(all.letters.find(c)));
  return give(results, b.transpose(all.value, perm));
}

void merak::addReductionConversions(OnnxTable &table) {
  table.add("ReduceSum", 1, reduceSum<asIs, asIs>);
  table.add("ReduceSumSquare", 1, reduceSum<square, asIs>);
  table.add("ReduceL1", 1, reduceSum<absolute, asIs>);
  table.add("ReduceL2", 1, reduceSum<square, root>);
  table.add("ReduceLogSum", 1, reduceSum<asIs, logarithm>);
  table.add("ReduceLogSumExp", 1, reduceLogSumExp);
  table.add("ReduceMean", 1, reduceMean);
  table.add("ReduceMax", 1, reduceMax<asIs>);
  table.add("ReduceMin", 1, reduceMax<negate>);
  table.add("ReduceProd", 1, reduceProd);
  table.add("MatMul", 1, convertMatMul);
  table.add("Gemm", 1, convertGemm);
  table.add("Einsum", 12, convertEinsum);
}
