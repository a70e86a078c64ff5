// Domain ai.onnx.preview.training: Gradient differentiates the ops before it,
// the optimizers are what they compute. Inputs of the latter: rate, count of
// updates, all tensors, all gradients, then the states in turn; outputs: all
// new tensors, then the new states.
#include "dialects/Train/Builders.h"
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/ReverseMode.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// The operands of one tensor.
struct TrainedStep {
  Value rate, count; // count as a float
  Value x, gradient, first, second;
};
using Update = SmallVector<Value> (*)(const OnnxNode &, GraphBuilder &,
                                      const TrainedStep &);
} // namespace

// `a` where count > 0, else `b`.
static Value afterFirst(GraphBuilder &b, const TrainedStep &s, Value after,
                        Value first) {
  return b.select(
      b.compare(ComparePredicate::gt, s.count, b.scalarLike(0, s.count)), after,
      first);
}

// norm_coefficient * x + gradient
static Value regularized(const OnnxNode &node, GraphBuilder &b,
                         const TrainedStep &s) {
  double norm = node.real("norm_coefficient", 0);
  return norm == 0 ? s.gradient
                   : b.binary<AddOp>(b.binary<MulOp>(s.x, norm), s.gradient);
}

// keep * old + (1 - keep) * fresh
static Value average(GraphBuilder &b, Value old, Value fresh, double keep) {
  return b.binary<AddOp>(b.binary<MulOp>(old, keep),
                         b.binary<MulOp>(fresh, 1 - keep));
}

static SmallVector<Value> adam(const OnnxNode &node, GraphBuilder &b,
                               const TrainedStep &s) {
  double alpha = node.real("alpha", 0.9f), beta = node.real("beta", 0.999f);
  Value g = regularized(node, b, s);
  Value v = average(b, s.first, g, alpha);
  Value h = average(b, s.second, b.binary<MulOp>(g, g), beta);
  auto rest = [&](double base) {
    return b.binary<SubOp>(
        b.scalarLike(1, s.count),
        b.binary<PowOp>(b.scalarLike(base, s.count), s.count));
  };
  Value corrected = b.binary<DivOp>(
      b.binary<MulOp>(s.rate, b.unary<SqrtOp>(rest(beta))), rest(alpha));
  Value rate = afterFirst(b, s, corrected, s.rate);
  Value root = b.binary<AddOp>(b.unary<SqrtOp>(h), node.real("epsilon", 1e-6f));
  Value x =
      b.binary<SubOp>(s.x, b.binary<DivOp>(b.binary<MulOp>(rate, v), root));
  double post = node.real("norm_coefficient_post", 0);
  return {post == 0 ? x : b.binary<MulOp>(x, 1 - post), v, h};
}

static SmallVector<Value> adagrad(const OnnxNode &node, GraphBuilder &b,
                                  const TrainedStep &s) {
  Value g = regularized(node, b, s);
  Value h = b.binary<AddOp>(s.first, b.binary<MulOp>(g, g));
  Value decay = b.binary<AddOp>(
      b.binary<MulOp>(s.count, node.real("decay_factor", 0)), 1.0);
  Value rate = b.binary<DivOp>(s.rate, decay);
  Value root = b.binary<AddOp>(b.unary<SqrtOp>(h), node.real("epsilon", 1e-6f));
  Value x =
      b.binary<SubOp>(s.x, b.binary<DivOp>(b.binary<MulOp>(rate, g), root));
  return {x, h};
}

static SmallVector<Value> momentum(const OnnxNode &node, GraphBuilder &b,
                                   const TrainedStep &s) {
  double alpha = node.real("alpha", 0);
  Value g = regularized(node, b, s);
  Value beta = afterFirst(b, s, b.scalarLike(node.real("beta", 1), s.count),
                          b.scalarLike(1, s.count));
  Value v = b.binary<AddOp>(b.binary<MulOp>(s.first, alpha),
                            b.binary<MulOp>(g, beta));
  bool nesterov = node.string("mode", "standard") == "nesterov";
  Value step = nesterov ? b.binary<AddOp>(g, b.binary<MulOp>(v, alpha)) : v;
  return {b.binary<SubOp>(s.x, b.binary<MulOp>(s.rate, step)), v};
}

template <Update update, size_t states> CONVERT(optimizer) {
  size_t each = states + 2;
  if (failed(needsFloat(node, b, 2)) ||
      failed(needs(node, b, node.inputs.size())))
    return failure();
  size_t count = (node.inputs.size() - 2) / each;
  if (count == 0 || node.inputs.size() != 2 + count * each ||
      results.size() != count * (each - 1)) {
    b.fail("expected rate, count and " + llvm::Twine(each) +
           " inputs a tensor, found " + llvm::Twine(node.inputs.size()));
    return failure();
  }
  for (size_t i = 0; i < count; ++i) {
    auto part = [&](size_t k) { return node.in(2 + k * count + i); };
    Type element = tensorType(part(0)).getElementType();
    TrainedStep step{b.reshape(b.cast(node.in(0), element), {}),
                     b.reshape(b.cast(node.in(1), element), {}),
                     part(0),
                     part(1),
                     part(2),
                     states > 1 ? part(3) : Value()};
    SmallVector<Value> fresh = update(node, b, step);
    for (size_t k = 0; k < fresh.size(); ++k) {
      if (!fresh[k])
        return failure();
      results[k * count + i] = fresh[k];
    }
  }
  return success();
}

// The operands are the tensors of xs, of zs, and y. What xs and zs name is
// where y is a function of: nothing goes on behind them.
CONVERT(convertGradient) {
  auto xs = dyn_cast_or_null<ArrayAttr>(node.attributes.get("xs"));
  size_t count = xs ? xs.size() : 0, inputs = node.inputs.size();
  if (failed(needs(node, b, count + 1)))
    return failure();
  Value y = node.in(inputs - 1);
  if (count == 0 || results.size() > count || !y || !isFloat(y)) {
    b.fail("expected tensors in xs, and y of floats");
    return failure();
  }
  // Each use of a parameter is a value of its own.
  llvm::DenseSet<Value> ends, needed;
  llvm::StringMap<SmallVector<Value>> reads;
  SmallVector<Operation *> forward;
  for (Operation &op : llvm::make_range(b.builder.getInsertionBlock()->begin(),
                                        b.builder.getInsertionPoint()))
    if (auto read = dyn_cast<ReadOp>(op))
      reads[read.getParameter()].push_back(read.getResult());
  auto usesOf = [&](Value x) {
    auto read = x.getDefiningOp<ReadOp>();
    return read ? reads[read.getParameter()] : SmallVector<Value>{x};
  };
  for (size_t i = 0; i + 1 < inputs; ++i)
    for (Value use : usesOf(node.inputs[i])) {
      ends.insert(use);
      if (i < count)
        needed.insert(use);
    }
  for (Operation &op : llvm::make_range(b.builder.getInsertionBlock()->begin(),
                                        b.builder.getInsertionPoint())) {
    // Carriers have been replaced, and are gone at the end of the pass.
    if (isa<OnnxNodeOp>(op) || llvm::any_of(op.getResults(), [&](Value result) {
          return ends.contains(result);
        }))
      continue;
    forward.push_back(&op);
    bool depends = llvm::any_of(
        op.getOperands(), [&](Value value) { return needed.contains(value); });
    for (Value result : op.getResults())
      if (depends && isFloatTensor(result))
        needed.insert(result);
  }
  ReverseMode reverse(needed);
  if (failed(reverse.run(b.builder, forward, y)))
    return failure();
  for (size_t i = 0; i < results.size(); ++i) {
    if (!node.usedOutputs[i])
      continue;
    Value sum;
    for (Value use : usesOf(node.inputs[i]))
      if (Value part = reverse.gradient.lookup(use))
        sum = sum ? b.binary<AddOp>(sum, part) : part;
    results[i] =
        sum ? sum : zerosLike(b.builder, b.loc, tensorType(node.inputs[i]));
  }
  return success();
}

void merak::addTrainingConversions(OnnxTable &table) {
  table.add("Adam", 1, optimizer<adam, 2>);
  table.add("Adagrad", 1, optimizer<adagrad, 1>);
  table.add("Gradient", 1, convertGradient);
  table.add("Momentum", 1, optimizer<momentum, 1>);
}
