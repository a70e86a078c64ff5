// What the table of operators says beside the conversions: where gradients go,
// and which operators import computes away.
#include "onnx/Conversion/OnnxNode.h"

using namespace mlir;
using namespace merak;

namespace {

struct Fact {
  uint32_t inputs; // to which a gradient goes on
  const char *why; // not to the others
  std::initializer_list<const char *> types;
  uint32_t settings = 0; // OnnxGradient::settings
};

const Fact kFacts[] = {
    {0,
     "the result is a truth value",
     {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
      "LessOrEqual", "Not", "Or", "Xor"}},
    {0,
     "a step function: the derivative is zero wherever there is one",
     {"Ceil", "DynamicQuantizeLinear", "Floor", "Hardmax", "QLinearConv",
      "QLinearMatMul", "QuantizeLinear", "Round", "Sign"}},
    {0,
     "drawn, not computed",
     {"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform",
      "RandomUniformLike"}},
    {0, "the shape depends on data", {"NonMaxSuppression", "Unique"}},
    {0, "a rest: the quotient is rounded", {"Mod"}},
    {0, "the result is an index", {"ArgMax", "ArgMin"}},
    {0,
     "of integers",
     {"BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
      "ConvInteger", "MatMulInteger"}},
    {0, "the shape decides, not the values", {"EyeLike", "Shape", "Size"}},
    {0, "made of indices and two settings", {"OneHot"}},
    {0,
     "made ahead of time",
     {"BlackmanWindow", "Constant", "ConstantOfShape", "HammingWindow",
      "HannWindow", "MelWeightMatrix", "NonZero", "Range"}},
    {0,
     "an update of weights, not a part of a loss",
     {"Adagrad", "Adam", "Momentum"}},
    {1, "the exponent is a setting", {"Pow"}, 2},
    {1, "the bounds are settings", {"Clip"}, 6},
    {1,
     "labels are integers, class weights a setting",
     {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}},
    {1, "cosines and sines are tables", {"RotaryEmbedding"}},
    {1, "the ratio is a setting", {"Dropout"}},
    {1, "the condition decides a shape", {"Compress"}},
    {1, "the padding is a setting", {"Pad"}},
    {1, "scales and regions decide shapes", {"Resize", "Upsample"}},
    {1,
     "sizes, axes and indices are integers",
     {"Col2Im", "CumSum", "Expand", "Gather", "ReduceMax", "ReduceMean",
      "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Tile", "TopK",
      "Trilu", "Unsqueeze"}},
    {5, "indices are integers", {"Scatter", "ScatterElements", "ScatterND"}},
    {6, "the condition is a truth value", {"Where"}},
    {7, "running statistics are tracked, not trained", {"BatchNormalization"}},
};

// Operators without a conversion: import knows their results, or takes them
// apart.
constexpr const char *kAtImport[] = {"ConcatFromSequence",
                                     "Constant",
                                     "ConstantOfShape",
                                     "If",
                                     "Loop",
                                     "NonZero",
                                     "Optional",
                                     "OptionalGetElement",
                                     "OptionalHasElement",
                                     "Range",
                                     "Scan",
                                     "SequenceAt",
                                     "SequenceConstruct",
                                     "SequenceEmpty",
                                     "SequenceErase",
                                     "SequenceInsert",
                                     "SequenceLength",
                                     "SequenceMap",
                                     "Shape",
                                     "Size",
                                     "SplitToSequence"};

} // namespace

void merak::setOnnxGradients(OnnxTable &table) {
  for (const char *type : kAtImport)
    table.add(type, 1, nullptr);
  table.add("FlexAttention", 1, nullptr);
  table.entries.back().domain = "ai.onnx.preview";
  for (const Fact &fact : kFacts)
    for (const char *type : fact.types)
      for (OnnxEntry &entry : table.entries)
        if (StringRef(entry.type) == type)
          entry.gradient = {fact.inputs, fact.why, fact.settings};
}
