#include "onnx/Import/FoldedFunctions.h"

#include "onnx/Import/ExportedProgram.h"

#include <cmath>

using namespace merak;
using llvm::StringRef;

// Another form of one operand: the same elements.
static bool isForm(StringRef function) {
  static const llvm::StringSet<> kForms = {
      "_reshape_alias",  "_to_copy",   "_unsafe_view", "alias",
      "clone",           "contiguous", "flatten",      "getitem",
      "lift_fresh_copy", "mT",         "movedim",      "numpy_T",
      "permute",         "reshape",    "squeeze",      "swapaxes",
      "swapdims",        "t",          "to",           "transpose",
      "unflatten",       "unsqueeze",  "view",         "view_as"};
  return kForms.contains(function);
}
static bool isSlice(StringRef function) {
  static const llvm::StringSet<> kSlices = {
      "chunk", "narrow",           "select", "slice",
      "split", "split_with_sizes", "unbind"};
  return kSlices.contains(function);
}

bool merak::isView(StringRef function) {
  // In inference, and between values of one type, these do nothing.
  static const llvm::StringSet<> kNothing = {"dropout", "native_dropout",
                                             "type_as"};
  return isForm(function) || isSlice(function) || repeatsElements(function) ||
         kNothing.contains(function);
}
// What else one finds among the origins of a folded weight is arithmetic,
// unless it belongs to an index.
bool merak::movesElements(StringRef function) {
  static const llvm::StringSet<> kJoins = {"cat", "concat", "stack"};
  return isForm(function) || kJoins.contains(function);
}
bool merak::takesPart(StringRef function) {
  static const llvm::StringSet<> kLookups = {"embedding", "index_select"};
  return isSlice(function) || kLookups.contains(function);
}
bool merak::repeatsElements(StringRef function) {
  static const llvm::StringSet<> kRepeats = {"broadcast_to", "expand",
                                             "expand_as", "repeat", "tile"};
  return kRepeats.contains(function);
}
bool merak::makesIndices(StringRef function) {
  return function == "arange" || function == "sym_size" ||
         function == "sym_size_int";
}
bool merak::takesWeightsAsTheyAre(StringRef function) {
  static const llvm::StringSet<> kCalls = {"_prelu_kernel",
                                           "batch_norm",
                                           "bilinear",
                                           "conv1d",
                                           "conv2d",
                                           "conv3d",
                                           "convolution",
                                           "conv_transpose1d",
                                           "conv_transpose2d",
                                           "conv_transpose3d",
                                           "group_norm",
                                           "gru",
                                           "instance_norm",
                                           "layer_norm",
                                           "linear",
                                           "lstm",
                                           "matmul",
                                           "mm",
                                           "module",
                                           "native_group_norm",
                                           "native_layer_norm",
                                           "prelu",
                                           "repeat",
                                           "rnn_relu",
                                           "rnn_tanh",
                                           "embedding"};
  return kCalls.contains(function);
}

bool merak::isInternal(StringRef value) {
  return functionOf(value) == "val" || value == "val";
}

bool merak::movesAxes(StringRef function) {
  static const llvm::StringSet<> kMoves = {
      "_to_copy", "alias",   "clone",   "contiguous", "lift_fresh_copy",
      "mT",       "movedim", "numpy_T", "permute",    "swapaxes",
      "swapdims", "t",       "to",      "transpose"};
  return kMoves.contains(function);
}

bool merak::makesZeros(StringRef function) {
  return function == "zeros" || function == "new_zeros" ||
         function == "zeros_like";
}

const Invertible *merak::invertible(StringRef function) {
  static const Invertible kFunctions[] = {
      {"exp", "Exp", [](double x) { return std::exp(x); },
       [](double y) { return std::log(y); }},
      {"log", "Log", [](double x) { return std::log(x); },
       [](double y) { return std::exp(y); }},
      {"neg", "Neg", [](double x) { return -x; }, [](double y) { return -y; }},
      {"sigmoid", "Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); },
       [](double y) { return std::log(y / (1 - y)); }},
      {"softplus", "Softplus",
       [](double x) { return x > 30 ? x : std::log1p(std::exp(x)); },
       [](double y) { return y > 30 ? y : std::log(std::expm1(y)); }},
      {"tanh", "Tanh", [](double x) { return std::tanh(x); },
       [](double y) { return std::atanh(y); }}};
  for (const Invertible &entry : kFunctions)
    if (function == entry.function)
      return &entry;
  return nullptr;
}
