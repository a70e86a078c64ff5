// Attention and rotary embedding as one ONNX op each (opset 23 on).
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/HostTensor.h"

#include <cmath>

using namespace mlir;
using namespace merak;
using namespace merak::train;

// [b, h, t, d] or [b, t, h*d] to [b, t, h, d].
static Value headsInner(GraphBuilder &b, Value x, int64_t heads) {
  if (rankOf(x) == 4)
    return b.transpose(x, {0, 2, 1, 3});
  if (rankOf(x) != 3 || heads < 1 || shapeOf(x)[2] % heads)
    return b.fail("expected rank 4, or rank 3 with a number of heads that "
                  "divides the last dimension, found " +
                  describeType(x.getType()));
  return b.reshape(
      x, {shapeOf(x)[0], shapeOf(x)[1], heads, shapeOf(x)[2] / heads});
}

static Value headsOuter(GraphBuilder &b, Value x, Value like) {
  if (!x || rankOf(like) == 4)
    return x ? b.transpose(x, {0, 2, 1, 3}) : x;
  return b.reshape(
      x, {shapeOf(x)[0], shapeOf(x)[1], shapeOf(x)[2] * shapeOf(x)[3]});
}

// [b, h, t, d], from the same or from [b, t, h*d].
static Value headsSecond(GraphBuilder &b, Value x, int64_t heads) {
  if (rankOf(x) == 4)
    return x;
  Value inner = headsInner(b, x, heads);
  return inner ? b.transpose(inner, {0, 2, 1, 3}) : inner;
}

// positions[i] = first + i along dimension `dim` of [b, h, t, s].
static Value positions(GraphBuilder &b, int64_t dim, int64_t count,
                       int64_t first) {
  SmallVector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i)
    numbers.push_back(first + i);
  Shape shape(4, 1);
  shape[dim] = count;
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getI64Type()),
      ArrayRef<int64_t>(numbers)));
}

namespace {
// What a query may see: a mask (true attends) and numbers to add; null: all.
struct Visible {
  Value mask, bias;

  void allow(GraphBuilder &b, Value more) {
    mask = mask ? b.binary<AndOp>(mask, more) : more;
  }
};
} // namespace

// The given mask, padded to all keys; causality and windows by position; and
// the count of keys that are not padding.
static Visible visibleKeys(const OnnxNode &node, GraphBuilder &b,
                           int64_t queries, int64_t keys, int64_t past) {
  Visible visible;
  if (Value mask = node.in(3)) {
    int64_t missing = keys - shapeOf(mask).back();
    bool isBool = tensorType(mask).getElementType().isInteger(1);
    if (missing > 0) {
      Shape low(rankOf(mask), 0), high(rankOf(mask), 0);
      high.back() = missing;
      Value wide = isBool ? b.cast(mask, b.builder.getI32Type()) : mask;
      wide = PadOp::create(b.builder, b.loc, wide, low, high,
                           Shape(rankOf(mask), 0),
                           llvm::APFloat(isBool ? 0.0 : -INFINITY));
      mask = b.cast(wide, tensorType(mask).getElementType());
    }
    (isBool ? visible.mask : visible.bias) = mask;
  }
  Value counted = node.in(6), key = positions(b, 3, keys, 0);
  // Where the queries stand among the keys.
  Value query = positions(b, 2, queries, past);
  if (counted) {
    counted = b.reshape(b.cast(counted, b.builder.getI64Type()),
                        {tensorType(counted).getNumElements(), 1, 1, 1});
    if (past == 0)
      query = b.binary<AddOp>(
          query,
          b.binary<SubOp>(counted, b.scalarLike(double(queries), counted)));
    visible.allow(b, b.compare(ComparePredicate::lt, key, counted));
  }
  auto compare = [&](ComparePredicate predicate, double offset) {
    visible.allow(
        b, b.compare(predicate, key,
                     b.binary<AddOp>(query, b.scalarLike(offset, query))));
  };
  int64_t left = node.integer("left_window_size", -1);
  int64_t right = node.integer("right_window_size", -1);
  if (node.integer("is_causal", 0))
    compare(ComparePredicate::le, 0);
  if (left >= 0)
    compare(ComparePredicate::ge, -double(left));
  if (right >= 0)
    compare(ComparePredicate::le, double(right));
  return visible;
}

// All that the operator can be asked for, in f32: caches, masks, windows,
// limits of scores, scores as a result. Rows that see nothing give zeros.
static LogicalResult attentionInParts(const OnnxNode &node, GraphBuilder &b,
                                      Results &results, double scale) {
  Type element = tensorType(node.in(0)).getElementType();
  Value q = headsSecond(b, node.in(0), node.integer("q_num_heads", 0));
  Value k = headsSecond(b, node.in(1), node.integer("kv_num_heads", 0));
  Value v = headsSecond(b, node.in(2), node.integer("kv_num_heads", 0));
  if (!q || !k || !v)
    return failure();
  int64_t past = 0;
  if (Value cache = node.in(4)) {
    past = rankOf(cache) == 4 ? shapeOf(cache)[2] : 0;
    k = b.concat({cache, k}, 2);
  }
  if (Value cache = node.in(5))
    v = b.concat({cache, v}, 2);
  if (!k || !v)
    return failure();
  if (results.size() > 1)
    results[1] = k;
  if (results.size() > 2)
    results[2] = v;
  ArrayRef<int64_t> qs = shapeOf(q), ks = shapeOf(k), vs = shapeOf(v);
  if (qs[0] != ks[0] || qs[3] != ks[3] ||
      ks.take_front(3) != vs.take_front(3) || ks[1] == 0 || qs[1] % ks[1]) {
    b.fail("expected query, key and value that fit, found " +
           describeType(node.in(0).getType()) + ", " +
           describeType(node.in(1).getType()) + " and " +
           describeType(node.in(2).getType()));
    return failure();
  }
  Type wide = b.builder.getF32Type();
  int64_t keyHeads = ks[1], share = qs[1] / ks[1];
  // Each key head serves `share` neighbouring query heads.
  Value grouped = b.reshape(b.binary<MulOp>(b.cast(q, wide), scale),
                            {qs[0], keyHeads, share, qs[2], qs[3]});
  Value scores =
      b.reshape(b.einsum("bkgtd,bksd->bkgts", grouped, b.cast(k, wide)),
                {qs[0], qs[1], qs[2], ks[2]});
  double cap = node.real("softcap", 0);
  if (cap > 0)
    scores =
        b.binary<MulOp>(b.unary<TanhOp>(b.binary<MulOp>(scores, 1 / cap)), cap);
  int64_t mode = node.integer("qk_matmul_output_mode", 0);
  Value shown = scores;
  Visible visible = visibleKeys(node, b, qs[2], ks[2], past);
  if (visible.bias)
    scores = b.binary<AddOp>(scores, b.cast(visible.bias, wide));
  if (visible.mask)
    scores = b.select(visible.mask, scores, b.scalar(-INFINITY, wide));
  if (mode == 2)
    shown = scores;
  if (!scores)
    return failure();
  Value blind;
  if (visible.bias || visible.mask) {
    Value max = b.reduce<ReduceMaxOp>(scores, {3}, true);
    blind = b.compare(ComparePredicate::eq, max, b.scalar(-INFINITY, wide));
    scores = b.select(blind, b.scalar(0, wide), scores);
  }
  Value weights =
      SoftmaxOp::create(b.builder, b.loc, scores.getType(), scores, 3);
  if (blind)
    weights = b.select(blind, b.scalar(0, wide), weights);
  if (mode == 3)
    shown = weights;
  if (results.size() > 3 && node.usedOutputs[3])
    results[3] = b.cast(shown, element);
  Value out =
      b.einsum("bkgts,bksd->bkgtd",
               b.reshape(weights, {qs[0], keyHeads, share, qs[2], ks[2]}),
               b.cast(v, wide));
  out = b.cast(b.reshape(out, {qs[0], qs[1], qs[2], vs[3]}), element);
  if (rankOf(node.in(0)) == 3 && out)
    out = b.reshape(b.transpose(out, {0, 2, 1, 3}),
                    {qs[0], qs[2], qs[1] * vs[3]});
  return give(results, out);
}

CONVERT(convertAttention) {
  if (failed(needsFloat(node, b, 3)))
    return failure();
  int64_t heads = node.integer("q_num_heads", 0);
  int64_t width = shapeOf(node.in(0)).back();
  if (rankOf(node.in(0)) == 3 && heads > 0)
    width /= heads;
  double scale = node.real("scale", 1.0 / std::sqrt(double(width)));
  bool inParts = node.real("softcap", 0) > 0 ||
                 node.integer("left_window_size", -1) >= 0 ||
                 node.integer("right_window_size", -1) >= 0 ||
                 !tensorType(node.in(0)).getElementType().isF32();
  for (size_t i = 4; i < node.inputs.size(); ++i)
    inParts |= node.has(i);
  for (size_t i = 1; i < results.size(); ++i)
    inParts |= node.usedOutputs[i];
  if (inParts)
    return attentionInParts(node, b, results, scale);
  Value q = headsInner(b, node.in(0), heads);
  Value k = headsInner(b, node.in(1), node.integer("kv_num_heads", 0));
  Value v = headsInner(b, node.in(2), node.integer("kv_num_heads", 0));
  if (!q || !k || !v)
    return failure();
  ArrayRef<int64_t> qs = shapeOf(q), ks = shapeOf(k), vs = shapeOf(v);
  bool causal = node.integer("is_causal", 0);
  Value mask = node.in(3);
  bool fits = qs[0] == ks[0] && qs[3] == ks[3] &&
              ks.take_front(3) == vs.take_front(3) && ks[2] != 0 &&
              qs[2] % ks[2] == 0 && vs[3] == qs[3];
  // The kernel aligns the last query with the last key, ONNX the first ones.
  if (!fits || (causal && qs[1] != ks[1]) ||
      (mask && shapeOf(mask).back() != ks[1]))
    return attentionInParts(node, b, results, scale);
  auto lse =
      RankedTensorType::get({qs[0], qs[2], qs[1]}, b.builder.getF32Type());
  auto op = AttentionOp::create(b.builder, b.loc, TypeRange{q.getType(), lse},
                                q, k, v, mask, b.builder.getF64FloatAttr(scale),
                                causal ? b.builder.getUnitAttr() : UnitAttr(),
                                IntegerAttr(), StringAttr());
  return give(results, headsOuter(b, op.getOut(), node.in(0)));
}

CONVERT(convertRotary) {
  if (failed(needsFloat(node, b, 3)))
    return failure();
  Value x = headsInner(b, node.in(0), node.integer("num_heads", 0));
  Value cos = node.in(1), sin = node.in(2);
  if (!x)
    return failure();
  if (Value positions = node.in(3)) {
    cos = b.gather(cos, positions, 0);
    sin = b.gather(sin, positions, 0);
  }
  int64_t rotated = node.integer("rotary_embedding_dim", 0);
  int64_t width = shapeOf(x)[3];
  rotated = rotated ? rotated : width;
  Shape table{shapeOf(x)[0], shapeOf(x)[1], 1, rotated / 2};
  if (!cos || !sin || rotated > width || rotated % 2 ||
      tensorType(cos).getNumElements() != table[0] * table[1] * table[3] ||
      cos.getType() != sin.getType()) {
    b.fail("expected cos and sin tables for the positions of " +
           describeType(node.in(0).getType()));
    return failure();
  }
  Value head = b.sliceDim(x, 3, 0, rotated);
  Value turned = RotaryOp::create(b.builder, b.loc, head.getType(), head,
                                  b.reshape(cos, table), b.reshape(sin, table),
                                  node.integer("interleaved", 0) != 0, false);
  if (rotated < width)
    turned = b.concat({turned, b.sliceDim(x, 3, rotated, width - rotated)}, 3);
  return give(results, headsOuter(b, turned, node.in(0)));
}

void merak::addAttentionConversions(OnnxTable &table) {
  table.add("Attention", 23, convertAttention);
  table.add("RotaryEmbedding", 23, convertRotary);
}
