// The optimizer as options, as the model's own algorithm and as attributes.
#include "compiler/Pipeline/Phases.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace merak;

// What the model's own training algorithm says, in the terms of --optimizer.
OptimizerOptions merak::optimizerOf(const ModelTraining &training) {
  OptimizerOptions o;
  o.lr = training.rate;
  o.weightDecay = training.norm;
  o.eps = training.epsilon;
  o.firstCount = training.firstCount;
  o.rate = training.rateProgram;
  if (training.optimizer == "Adam") {
    o.kind = "adam";
    o.beta1 = training.alpha;
    o.beta2 = training.beta;
    o.plainRoot = true;
    o.postDecay = training.normPost;
  } else if (training.optimizer == "Adagrad") {
    o.kind = "adagrad";
    o.lrDecay = training.decay;
  } else {
    o.kind = "sgd";
    o.momentum = training.alpha;
    o.dampening = 1 - training.beta;
    o.nesterov = training.nesterov;
  }
  return o;
}

DictionaryAttr merak::optimizerConstants(const OptimizerOptions &o,
                                         MLIRContext *context) {
  Builder b(context);
  SmallVector<NamedAttribute> entries;
  auto number = [&](StringRef name, double value) {
    entries.push_back(b.getNamedAttr(name, b.getF64FloatAttr(value)));
  };
  number("weight_decay", o.kind == "adam" ? 0 : o.weightDecay);
  if (!o.rate.empty())
    entries.push_back(b.getNamedAttr("rate", b.getStringAttr(o.rate)));
  if (o.firstCount)
    entries.push_back(
        b.getNamedAttr("first_count", b.getI64IntegerAttr(*o.firstCount)));
  if (o.kind == "adagrad") {
    number("lr_decay", o.lrDecay);
    number("eps", o.eps);
  } else if (o.kind == "sgd") {
    number("momentum", o.momentum);
    number("dampening", o.dampening);
    entries.push_back(b.getNamedAttr("nesterov", b.getBoolAttr(o.nesterov)));
  } else {
    number("beta1", o.beta1);
    number("beta2", o.beta2);
    number("eps", o.eps);
    if (o.kind == "adam")
      number("l2", o.weightDecay);
    if (o.plainRoot) {
      entries.push_back(b.getNamedAttr("plain_root", b.getBoolAttr(true)));
      number("post_decay", o.postDecay);
    }
  }
  return b.getDictionaryAttr(entries);
}

SmallVector<NamedAttribute> merak::toAttributes(const OptimizerOptions &o,
                                                MLIRContext *context) {
  Builder b(context);
  return {b.getNamedAttr("optimizer", b.getStringAttr(o.kind)),
          b.getNamedAttr("constants", optimizerConstants(o, context)),
          b.getNamedAttr("lr", b.getF64FloatAttr(o.lr)),
          b.getNamedAttr("lr_schedule", b.getStringAttr(o.schedule)),
          b.getNamedAttr("warmup", b.getI64IntegerAttr(o.warmup)),
          b.getNamedAttr("total", b.getI64IntegerAttr(o.total)),
          b.getNamedAttr("min_factor", b.getF64FloatAttr(o.minFactor))};
}

OptimizerOptions merak::optimizerFrom(DictionaryAttr attributes) {
  OptimizerOptions o;
  DictionaryAttr from = attributes;
  auto text = [&](StringRef name, std::string &out) {
    if (auto value = from.getAs<StringAttr>(name))
      out = value.str();
  };
  auto number = [&](StringRef name, double &out) {
    if (auto value = from.getAs<FloatAttr>(name))
      out = value.getValueAsDouble();
  };
  auto count = [&](StringRef name, int64_t &out) {
    if (auto value = from.getAs<IntegerAttr>(name))
      out = value.getInt();
  };
  auto flag = [&](StringRef name, bool &out) {
    if (auto value = from.getAs<BoolAttr>(name))
      out = value.getValue();
  };
  text("optimizer", o.kind);
  number("lr", o.lr);
  text("lr_schedule", o.schedule);
  count("warmup", o.warmup);
  count("total", o.total);
  number("min_factor", o.minFactor);
  if (auto constants = attributes.getAs<DictionaryAttr>("constants"))
    from = constants;
  number(o.kind == "adam" ? "l2" : "weight_decay", o.weightDecay);
  text("rate", o.rate);
  if (auto first = from.getAs<IntegerAttr>("first_count"))
    o.firstCount = first.getInt();
  number("lr_decay", o.lrDecay);
  number("eps", o.eps);
  number("momentum", o.momentum);
  number("dampening", o.dampening);
  flag("nesterov", o.nesterov);
  number("beta1", o.beta1);
  number("beta2", o.beta2);
  flag("plain_root", o.plainRoot);
  number("post_decay", o.postDecay);
  return o;
}
