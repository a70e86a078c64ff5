// The optimizer that a model brings.
#include "compiler/Pipeline/Phases.h"

using namespace merak;

Optimizer merak::optimizerOf(const ModelTraining &training) {
  Optimizer o;
  o.lr = training.rate;
  o.weightDecay = training.norm;
  o.eps = training.epsilon;
  o.firstCount = training.firstCount;
  o.rate = training.rateProgram;
  if (training.optimizer == "Adam") {
    o.kind = OptimizerKind::Adam;
    o.beta1 = training.alpha;
    o.beta2 = training.beta;
    o.plainRoot = true;
    o.postDecay = training.normPost;
  } else if (training.optimizer == "Adagrad") {
    o.kind = OptimizerKind::Adagrad;
    o.lrDecay = training.decay;
  } else {
    o.kind = OptimizerKind::Sgd;
    o.momentum = training.alpha;
    o.dampening = 1 - training.beta;
    o.nesterov = training.nesterov;
  }
  return o;
}
