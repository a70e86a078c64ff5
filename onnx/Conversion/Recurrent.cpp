// ONNX recurrent networks, written out step by step: the length of a sequence
// is known when compiling.
#include "onnx/Conversion/Conversion.h"

#include <cmath>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
constexpr int64_t kMaxSteps = 1024;

// One direction of a layer. Weights are [gates * hidden, width].
struct Cell {
  GraphBuilder &b;
  StringRef type;
  int64_t hidden;
  Value w, r, wBias, rBias, peephole;
  SmallVector<StringRef> activations;
  double clip = 0;        // bound of what activations see; 0: none
  bool resetLast = false; // GRU: linear_before_reset
  bool coupled = false;   // LSTM: input_forget

  Value activate(size_t index, Value x) {
    StringRef name = activations[index];
    if (clip > 0)
      x = b.binary<MinOp>(b.binary<MaxOp>(x, -clip), clip);
    if (name == "sigmoid")
      return b.unary<SigmoidOp>(x);
    return name == "relu" ? b.unary<ReluOp>(x) : b.unary<TanhOp>(x);
  }
  Value gate(Value x, int64_t i) {
    return b.sliceDim(x, rankOf(x) - 1, i * hidden, hidden);
  }
  Value product(Value x, Value weight, Value bias) {
    Value y = b.einsum("nk,mk->nm", x, weight);
    return bias ? b.binary<AddOp>(y, bias) : y;
  }
  Value peep(Value gates, int64_t i, Value state) {
    if (!peephole)
      return gates;
    return b.binary<AddOp>(gates, b.binary<MulOp>(gate(peephole, i), state));
  }
  Value oneMinus(Value x) { return b.binary<SubOp>(b.scalarLike(1, x), x); }

  void rnn(Value x, Value &h) {
    h = activate(0,
                 b.binary<AddOp>(product(x, w, wBias), product(h, r, rBias)));
  }
  void gru(Value x, Value &h) {
    Value fromX = product(x, w, wBias), fromH = product(h, r, rBias);
    auto sum = [&](int64_t i) {
      return b.binary<AddOp>(gate(fromX, i), gate(fromH, i));
    };
    Value z = activate(0, sum(0)), reset = activate(0, sum(1));
    Value inner;
    if (resetLast) {
      inner = b.binary<MulOp>(reset, gate(fromH, 2));
    } else {
      Value rows = b.sliceDim(r, 0, 2 * hidden, hidden);
      inner = product(b.binary<MulOp>(reset, h), rows,
                      rBias ? gate(rBias, 2) : Value());
    }
    Value fresh = activate(1, b.binary<AddOp>(gate(fromX, 2), inner));
    h = b.binary<AddOp>(b.binary<MulOp>(oneMinus(z), fresh),
                        b.binary<MulOp>(z, h));
  }
  void lstm(Value x, Value &h, Value &c) {
    Value all = b.binary<AddOp>(product(x, w, wBias), product(h, r, rBias));
    Value in = activate(0, peep(gate(all, 0), 0, c));
    Value forget =
        coupled ? oneMinus(in) : activate(0, peep(gate(all, 2), 2, c));
    Value fresh = activate(1, gate(all, 3));
    c = b.binary<AddOp>(b.binary<MulOp>(forget, c), b.binary<MulOp>(in, fresh));
    Value out = activate(0, peep(gate(all, 1), 1, c));
    h = b.binary<MulOp>(out, activate(2, c));
  }
};
} // namespace

// The part of direction `d` without its first dimension.
static Value direction(GraphBuilder &b, Value x, int64_t d) {
  return x ? b.reshape(b.sliceDim(x, 0, d, 1), shapeOf(x).drop_front()) : x;
}

static LogicalResult parseActivations(const OnnxNode &node, GraphBuilder &b,
                                      size_t each, int64_t d, Cell &cell) {
  static constexpr StringRef kLstm[] = {"sigmoid", "tanh", "tanh"};
  static constexpr StringRef kGru[] = {"sigmoid", "tanh"};
  static constexpr StringRef kRnn[] = {"tanh"};
  ArrayRef<StringRef> standard = each == 3   ? ArrayRef<StringRef>(kLstm)
                                 : each == 2 ? ArrayRef<StringRef>(kGru)
                                             : ArrayRef<StringRef>(kRnn);
  cell.activations.assign(standard.begin(), standard.end());
  auto names = node.attributes.getAs<ArrayAttr>("activations");
  for (size_t i = 0; names && i < each && d * each + i < names.size(); ++i) {
    StringRef name = cast<StringAttr>(names[d * each + i]).getValue();
    cell.activations[i] = name.equals_insensitive("sigmoid") ? "sigmoid"
                          : name.equals_insensitive("tanh")  ? "tanh"
                          : name.equals_insensitive("relu")  ? "relu"
                                                             : "";
    if (cell.activations[i].empty()) {
      b.fail("unsupported activation '" + name +
             "', expected Sigmoid, Tanh or Relu");
      return failure();
    }
  }
  return success();
}

CONVERT(convertRecurrent) {
  if (failed(needsFloat(node, b, 3)) || failed(needsRank(node, b, 3, 3)))
    return failure();
  bool batchFirst = node.integer("layout", 0);
  Value x = node.in(0);
  if (batchFirst)
    x = b.transpose(x, {1, 0, 2});
  StringRef turn = node.string("direction", "forward");
  bool isLstm = node.type == "LSTM", isGru = node.type == "GRU";
  int64_t gates = isLstm ? 4 : isGru ? 3 : 1;
  int64_t directions = turn == "bidirectional" ? 2 : 1;
  Value w = node.in(1), r = node.in(2), bias = node.in(3);
  int64_t steps = shapeOf(x)[0], batch = shapeOf(x)[1];
  int64_t hidden = rankOf(r) == 3 ? shapeOf(r)[2] : 0;
  if (rankOf(w) != 3 || hidden < 1 || shapeOf(w)[0] != directions ||
      shapeOf(w)[1] != gates * hidden || shapeOf(w)[2] != shapeOf(x)[2] ||
      shapeOf(r)[0] != directions || shapeOf(r)[1] != gates * hidden ||
      (bias &&
       tensorType(bias).getNumElements() != directions * 2 * gates * hidden)) {
    b.fail("expected weights for " + llvm::Twine(gates) + " gates and " +
           llvm::Twine(directions) + " directions, found " +
           describeType(w.getType()) + " and " + describeType(r.getType()));
    return failure();
  }
  if (steps < 1 || steps > kMaxSteps) {
    b.fail("expected 1 to " + llvm::Twine(kMaxSteps) + " steps, found " +
           llvm::Twine(steps));
    return failure();
  }
  Value lengths = node.in(4); // of each sample
  if (lengths && (rankOf(lengths) != 1 || shapeOf(lengths)[0] != batch)) {
    b.fail("expected a length for each of " + llvm::Twine(batch) +
           " samples, found " + describeType(lengths.getType()));
    return failure();
  }
  // Behind its end a sample keeps its state, and its output is zero.
  auto isLive = [&](int64_t t) {
    return b.reshape(b.compare(ComparePredicate::gt, lengths,
                               b.scalarLike(double(t), lengths)),
                     {batch, 1});
  };
  Type element = tensorType(x).getElementType();
  // States of all directions, [directions, batch, hidden].
  auto initial = [&](Value given, int64_t d) -> Value {
    if (!given)
      return b.expand(b.scalar(0, element), {batch, hidden});
    return direction(b, batchFirst ? b.transpose(given, {1, 0, 2}) : given, d);
  };
  SmallVector<Value> all, lastH, lastC;
  for (int64_t d = 0; d < directions; ++d) {
    Cell cell{b,
              node.type,
              hidden,
              direction(b, w, d),
              direction(b, r, d),
              {},
              {},
              direction(b, node.in(7), d),
              {}};
    if (failed(parseActivations(node, b, isLstm ? 3 : isGru ? 2 : 1, d, cell)))
      return failure();
    cell.clip = node.real("clip", 0);
    cell.resetLast = node.integer("linear_before_reset", 0);
    cell.coupled = node.integer("input_forget", 0);
    if (bias) {
      Value both = direction(b, bias, d);
      cell.wBias = b.sliceDim(both, 0, 0, gates * hidden);
      cell.rBias = b.sliceDim(both, 0, gates * hidden, gates * hidden);
    }
    Value h = initial(node.in(5), d);
    Value c = isLstm ? initial(node.in(6), d) : Value();
    bool back = turn == "reverse" || d == 1;
    SmallVector<Value> outputs(steps);
    for (int64_t i = 0; i < steps; ++i) {
      int64_t t = back ? steps - 1 - i : i;
      Value now = b.reshape(b.sliceDim(x, 0, t, 1), {batch, shapeOf(x)[2]});
      Value oldH = h, oldC = c, out;
      if (isLstm)
        cell.lstm(now, h, c);
      else if (isGru)
        cell.gru(now, h);
      else
        cell.rnn(now, h);
      if (!h)
        return failure();
      out = h;
      if (lengths) {
        Value live = isLive(t);
        out = b.select(live, h, b.scalarLike(0, h));
        h = b.select(live, h, oldH);
        c = c ? b.select(live, c, oldC) : c;
      }
      outputs[t] = b.reshape(out, {1, 1, batch, hidden});
    }
    all.push_back(b.concat(outputs, 0));
    lastH.push_back(b.reshape(h, {1, batch, hidden}));
    if (c)
      lastC.push_back(b.reshape(c, {1, batch, hidden}));
  }
  // [steps, directions, batch, hidden], or batch, steps, directions, hidden.
  auto state = [&](ArrayRef<Value> parts) {
    Value joined = b.concat(parts, 0);
    return batchFirst && joined ? b.transpose(joined, {1, 0, 2}) : joined;
  };
  if (results.size() > 1)
    results[1] = state(lastH);
  if (results.size() > 2 && isLstm)
    results[2] = state(lastC);
  Value y = b.concat(all, 1);
  return give(results, batchFirst && y ? b.transpose(y, {2, 0, 1, 3}) : y);
}

//===----------------------------------------------------------------------===//
// LinearAttention
//===----------------------------------------------------------------------===//

// A state [n, heads, d_k, d_v] that each token changes and reads, written out
// token by token.
CONVERT(convertLinearAttention) {
  if (failed(needsFloat(node, b, 3)) || failed(needsRank(node, b, 3, 3)))
    return failure();
  Value q = node.in(0), k = node.in(1), v = node.in(2), decay = node.in(4),
        beta = node.in(5);
  int64_t heads = node.integer("q_num_heads", 0);
  int64_t shared = node.integer("kv_num_heads", 0);
  StringRef rule = node.string("update_rule", "gated_delta");
  bool isGated = rule.starts_with("gated"), isDelta = rule.ends_with("delta");
  auto refuse = [&](const llvm::Twine &expected) {
    b.fail("expected " + expected + ", found " + describeType(q.getType()) +
           ", " + describeType(k.getType()) + " and " +
           describeType(v.getType()));
    return failure();
  };
  if (rankOf(q) != 3 || rankOf(k) != 3 || rankOf(v) != 3 || shared < 1 ||
      heads < 1 || heads % shared || shapeOf(q)[2] % heads ||
      shapeOf(k)[2] % shared || shapeOf(v)[2] % shared ||
      shapeOf(q)[2] / heads != shapeOf(k)[2] / shared ||
      shapeOf(q).take_front(2) != shapeOf(k).take_front(2) ||
      shapeOf(k).take_front(2) != shapeOf(v).take_front(2))
    return refuse("query, key and value [n, t, heads * width] that fit");
  if (!isGated && !isDelta && rule != "linear")
    return refuse("update_rule linear, gated, delta or gated_delta");
  if ((isGated && !decay) || (isDelta && !beta))
    return refuse("a decay for gated rules and a beta for delta rules");
  int64_t n = shapeOf(q)[0], steps = shapeOf(q)[1];
  int64_t dk = shapeOf(k)[2] / shared, dv = shapeOf(v)[2] / shared;
  if (steps < 1 || steps > kMaxSteps)
    return refuse("1 to " + llvm::Twine(kMaxSteps) + " tokens");
  Type element = tensorType(q).getElementType();
  Type wide = element.isF64() ? element : Type(b.builder.getF32Type());
  auto token = [&](Value x, int64_t t, ArrayRef<int64_t> shape) {
    return b.reshape(b.cast(b.sliceDim(x, 1, t, 1), wide), shape);
  };
  // A number for each head, or each element of its key.
  auto perHead = [&](Value x, int64_t t) -> Value {
    int64_t width = shapeOf(x)[2];
    if (rankOf(x) == 3 && (width == shared || width == 1))
      return token(x, t, {n, width, 1, 1});
    if (rankOf(x) == 3 && width == shared * dk)
      return token(x, t, {n, shared, dk, 1});
    return b.fail("expected one number a head, or one an element of the key, "
                  "found " +
                  describeType(x.getType()));
  };
  double scale = node.real("scale", 0);
  if (scale == 0)
    scale = 1 / std::sqrt(double(dk));
  Shape stateShape{n, shared, dk, dv};
  Value state = node.has(3) ? b.cast(node.in(3), wide)
                            : b.expand(b.scalar(0, wide), stateShape);
  if (!state || shapeOf(state) != ArrayRef<int64_t>(stateShape))
    return refuse("a state of " + describeShape(stateShape));
  SmallVector<Value> outputs;
  for (int64_t t = 0; t < steps; ++t) {
    Value key = token(k, t, {n, shared, dk}),
          value = token(v, t, {n, shared, dv});
    if (isGated)
      state = b.binary<MulOp>(b.unary<ExpOp>(perHead(decay, t)), state);
    if (isDelta)
      value = b.binary<SubOp>(value, b.einsum("nhkv,nhk->nhv", state, key));
    Value added = b.einsum("nhk,nhv->nhkv", key, value);
    if (isDelta)
      added = b.binary<MulOp>(perHead(beta, t), added);
    state = b.binary<AddOp>(state, added);
    Value query = b.reshape(b.binary<MulOp>(token(q, t, {n, heads, dk}), scale),
                            {n, shared, heads / shared, dk});
    Value out = b.einsum("nhgk,nhkv->nhgv", query, state);
    if (!out)
      return failure();
    outputs.push_back(b.reshape(b.cast(out, element), {n, 1, heads * dv}));
  }
  if (results.size() > 1)
    results[1] = b.cast(state, element);
  return give(results, b.concat(outputs, 1));
}

void merak::addRecurrentConversions(OnnxTable &table) {
  table.add("LinearAttention", 27, convertLinearAttention);
  for (const char *type : {"RNN", "GRU", "LSTM"})
    table.add(type, 7, convertRecurrent);
}
