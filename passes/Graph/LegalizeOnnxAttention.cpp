// Attention and rotary embedding as one ONNX op each (opset 23 on).
#include "passes/Graph/HostTensor.h"
#include "passes/Graph/OnnxConversion.h"

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

CONVERT(convertAttention) {
  if (failed(needsFloat(node, b, 3)))
    return failure();
  for (size_t i = 4; i < node.inputs.size(); ++i)
    if (node.has(i)) {
      b.fail("unsupported key and value cache, expected attention over the "
             "whole sequence");
      return failure();
    }
  for (size_t i = 1; i < results.size(); ++i)
    if (node.usedOutputs[i]) {
      b.fail("unsupported second output, expected the attention alone");
      return failure();
    }
  if (node.real("softcap", 0) != 0 ||
      node.integer("left_window_size", -1) >= 0 ||
      node.integer("right_window_size", -1) >= 0) {
    b.fail("unsupported softcap or window, expected plain attention");
    return failure();
  }
  Value q = headsInner(b, node.in(0), node.integer("q_num_heads", 0));
  Value k = headsInner(b, node.in(1), node.integer("kv_num_heads", 0));
  Value v = headsInner(b, node.in(2), node.integer("kv_num_heads", 0));
  if (!q || !k || !v)
    return failure();
  ArrayRef<int64_t> qs = shapeOf(q), ks = shapeOf(k), vs = shapeOf(v);
  if (qs[0] != ks[0] || qs[3] != ks[3] ||
      ks.take_front(3) != vs.take_front(3) || ks[2] == 0 || qs[2] % ks[2] ||
      vs[3] != qs[3]) {
    b.fail("expected query, key and value that fit, found " +
           describeType(node.in(0).getType()) + ", " +
           describeType(node.in(1).getType()) + " and " +
           describeType(node.in(2).getType()));
    return failure();
  }
  bool causal = node.integer("is_causal", 0);
  if (causal && qs[1] != ks[1]) {
    b.fail("unsupported causal attention of " + llvm::Twine(qs[1]) +
           " queries over " + llvm::Twine(ks[1]) + " keys");
    return failure();
  }
  Value mask = node.in(3);
  double scale = node.real("scale", 1.0 / std::sqrt(double(qs[3])));
  auto lse =
      RankedTensorType::get({qs[0], qs[2], qs[1]}, b.builder.getF32Type());
  auto op = AttentionOp::create(b.builder, b.loc, TypeRange{q.getType(), lse},
                                q, k, v, mask, b.builder.getF64FloatAttr(scale),
                                causal ? b.builder.getUnitAttr() : UnitAttr());
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

void merak::addAttentionConversions(SmallVectorImpl<OnnxEntry> &table) {
  table.push_back({"Attention", 23, kNewestOpset, convertAttention});
  table.push_back({"RotaryEmbedding", 23, kNewestOpset, convertRotary});
}
