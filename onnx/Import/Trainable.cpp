#include "onnx/Import/Trainable.h"

#include "onnx/Conversion/OnnxNode.h"
#include "onnx/Import/Attributes.h"

#include <algorithm>
#include <cmath>

using namespace merak;
using llvm::StringRef;

//===----------------------------------------------------------------------===//
// Reachability
//===----------------------------------------------------------------------===//

// Whether a gradient of the node's results goes on to input `index`.
static bool passesGradient(const onnx::NodeProto &node, int index,
                           bool settings) {
  for (const auto &attr : node.attribute())
    if (attr.name() == kStopGradient && attr.i())
      return false;
  if (node.op_type() == "Cast")
    for (const auto &attr : node.attribute())
      if (attr.name() == "to")
        return attr.i() == onnx::TensorProto::FLOAT ||
               attr.i() == onnx::TensorProto::DOUBLE ||
               attr.i() == onnx::TensorProto::FLOAT16 ||
               attr.i() == onnx::TensorProto::BFLOAT16;
  return onnxGradient(node.domain(), node.op_type()).passes(index, settings);
}

// Names that the subgraphs of a node take from around it (or make themselves).
static void captured(const onnx::NodeProto &node,
                     std::vector<std::string> &names) {
  for (const onnx::AttributeProto &attribute : node.attribute()) {
    for (const onnx::NodeProto &inner : attribute.g().node()) {
      names.insert(names.end(), inner.input().begin(), inner.input().end());
      captured(inner, names);
    }
    for (const onnx::ValueInfoProto &output : attribute.g().output())
      names.push_back(output.name());
  }
}

llvm::StringSet<>
merak::gradientReaches(const onnx::GraphProto &graph,
                       const std::vector<std::string> &outputs, bool settings) {
  llvm::StringSet<> reached;
  for (const std::string &output : outputs)
    reached.insert(output);
  for (int i = graph.node_size() - 1; i >= 0; --i) {
    const onnx::NodeProto &node = graph.node(i);
    bool any = std::any_of(
        node.output().begin(), node.output().end(),
        [&](const std::string &name) { return reached.contains(name); });
    for (int k = 0; any && k < node.input_size(); ++k)
      if (passesGradient(node, k, settings))
        reached.insert(node.input(k));
    std::vector<std::string> inner;
    captured(node, inner);
    for (size_t k = 0; any && k < inner.size(); ++k)
      reached.insert(inner[k]);
  }
  return reached;
}

std::vector<bool> merak::nodesFeeding(const onnx::GraphProto &graph,
                                      const std::vector<std::string> &outputs) {
  llvm::StringSet<> needed;
  for (const std::string &output : outputs)
    needed.insert(output);
  std::vector<bool> feeds(graph.node_size());
  for (int i = graph.node_size() - 1; i >= 0; --i) {
    const onnx::NodeProto &node = graph.node(i);
    for (const std::string &output : node.output())
      feeds[i] = feeds[i] || (!output.empty() && needed.contains(output));
    std::vector<std::string> inputs(node.input().begin(), node.input().end());
    captured(node, inputs);
    if (feeds[i])
      for (const std::string &input : inputs)
        needed.insert(input);
  }
  return feeds;
}

//===----------------------------------------------------------------------===//
// Tables told by their values
//===----------------------------------------------------------------------===//

namespace {
// A float32 tensor as rows of its last dimension.
struct Rows {
  const float *data;
  int64_t rows, width;
  float at(int64_t r, int64_t c) const { return data[r * width + c]; }
};
} // namespace

static bool near(double a, double b) { return std::fabs(a - b) < 1e-3; }

// Added to scores: 0 keeps, a huge negative number removes.
static bool isAdditiveMask(const Rows &t) {
  bool removes = false;
  for (int64_t i = 0; i < t.rows * t.width; ++i) {
    if (t.data[i] != 0 && !(t.data[i] <= -1e4f))
      return false;
    removes |= t.data[i] != 0;
  }
  return removes;
}

// Sines and cosines of positions: sin^2 + cos^2 pair up to width / 2 in every
// row, which no drawn numbers do. A class token may have a row of zeros.
static bool isSinusoidal(const Rows &t) {
  if (t.width < 4 || t.rows < 2)
    return false;
  int64_t sinusoidal = 0;
  for (int64_t r = 0; r < t.rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < t.width; ++c) {
      if (!(std::fabs(t.at(r, c)) <= 1.0001f))
        return false;
      sum += double(t.at(r, c)) * t.at(r, c);
    }
    if (near(sum / t.width, 0.5))
      ++sinusoidal;
    else if (sum != 0 || r != 0)
      return false;
  }
  return sinusoidal >= 2;
}

// cos or sin of position * frequency: the first row is all 1 or all 0, and from
// there x[p+1] = 2 cos(frequency) x[p] - x[p-1] in every column. Weights may
// begin at 0 or 1 everywhere, so that some column must turn, and rows that
// follow small ones must be as near to that as they are small.
static bool isRotaryTable(const Rows &t) {
  constexpr int64_t kRows = 64; // later ones are less exact
  if (t.rows < 3 || t.width < 2)
    return false;
  const bool isCos = t.at(0, 0) == 1;
  bool turns = false;
  for (int64_t c = 0; c < t.width; ++c) {
    const double first = isCos ? 1 : 0, one = t.at(1, c);
    const double cosine = isCos ? one : one != 0 ? t.at(2, c) / (2 * one) : 1;
    if (t.at(0, c) != first || !(std::fabs(one) <= 1.0001) ||
        (!isCos && !near(one * one + cosine * cosine, 1)))
      return false;
    turns |= one != first;
    for (int64_t r = 2; r < std::min(t.rows, kRows); ++r) {
      double expected = 2 * cosine * t.at(r - 1, c) - t.at(r - 2, c);
      if (!(std::fabs(t.at(r, c) - expected) <=
            3e-5 + 1e-3 * std::fabs(t.at(r, c))))
        return false;
    }
  }
  return turns;
}

// 1, r, r^2 ... with r < 1.
static bool isInverseFrequency(const Rows &t) {
  int64_t count = t.rows * t.width;
  if (count < 3 || t.data[0] != 1 || !(t.data[1] > 0 && t.data[1] < 1))
    return false;
  double ratio = t.data[1];
  for (int64_t i = 1; i < count; ++i)
    if (std::fabs(t.data[i] / t.data[i - 1] - ratio) > 1e-3 * ratio)
      return false;
  return true;
}

// 0, 1, 2 ...
static bool isCount(const Rows &t) {
  int64_t count = t.rows * t.width;
  for (int64_t i = 0; i < count; ++i)
    if (t.data[i] != static_cast<float>(i))
      return false;
  return count > 2;
}

static std::string tableKind(OnnxFile &file, const OnnxTensor &tensor) {
  constexpr uint64_t kMaxLooked = uint64_t(64) << 20;
  if (tensor.length > kMaxLooked || tensor.length < 4)
    return "";
  std::optional<StringRef> bytes = file.bytes(tensor);
  if (!bytes)
    return "";
  std::vector<float> values = floatsOf(tensor.dataType, *bytes);
  int64_t width =
      tensor.dims.empty() ? 1 : std::max<int64_t>(tensor.dims.back(), 1);
  Rows rows{values.data(), static_cast<int64_t>(values.size()) / width, width};
  if (isAdditiveMask(rows))
    return "an attention mask (0 or very negative)";
  if (isInverseFrequency(rows))
    return "rotary frequencies (a falling geometric series)";
  if (isRotaryTable(rows))
    return "a rotary table (cosines or sines of positions)";
  if (isSinusoidal(rows))
    return "a sinusoidal position table (sin^2 + cos^2 = 1)";
  if (isCount(rows))
    return "position numbers (0, 1, 2 ...)";
  return "";
}

//===----------------------------------------------------------------------===//
// The decision
//===----------------------------------------------------------------------===//

bool merak::isExporterName(StringRef name) {
  return name.contains("::") || name.contains('/') ||
         name.ends_with("_output_0");
}

// What torch.zeros and its like leave when the exporter evaluates them.
static bool isFilledByName(StringRef name) {
  StringRef stem = name.rtrim("0123456789").rtrim('_');
  stem.consume_back("_like");
  return stem == "zeros" || stem == "ones" || stem == "full";
}

bool merak::isModuleParameter(StringRef name) {
  StringRef leaf = name.contains('.') ? name.rsplit('.').second : name;
  return name.contains('.') &&
         (leaf.contains("weight") || leaf.contains("bias") || leaf == "gamma" ||
          leaf == "beta" || leaf == "scale");
}

static bool matchesAny(const std::vector<std::string> &patterns,
                       StringRef name) {
  return std::any_of(
      patterns.begin(), patterns.end(),
      [&](const std::string &p) { return matchesGlob(p, name); });
}

TrainableDecision merak::decideTrainable(OnnxFile &file,
                                         const OnnxTensor &tensor,
                                         const llvm::StringSet<> &reached,
                                         const ImportOptions &options,
                                         const ProgramWeights *program) {
  StringRef name = tensor.name;
  bool isFloat = tensor.dataType == onnx::TensorProto::FLOAT ||
                 tensor.dataType == onnx::TensorProto::DOUBLE ||
                 tensor.dataType == onnx::TensorProto::FLOAT16 ||
                 tensor.dataType == onnx::TensorProto::BFLOAT16;
  if (!isFloat)
    return {false, true, "not a float tensor"};
  if (matchesAny(options.freeze, name))
    return {false, false, "by --freeze"};
  if (!reached.contains(name))
    return {false, true, "no gradient reaches it"};
  if (options.updated)
    return llvm::is_contained(*options.updated, name)
               ? TrainableDecision{true, false, ""}
               : TrainableDecision{false, false,
                                   "not updated by the training algorithm"};
  if (!options.trainable.empty())
    return options.train && matchesAny(options.trainable, name)
               ? TrainableDecision{true, false, ""}
               : TrainableDecision{false, false, "not among what is trained"};
  if (program && !program->trained.count(tensor.name))
    return {false, true,
            program->buffers.count(tensor.name)
                ? "a buffer of the exported program"
                : "a constant of the exported program"};
  bool isNamed = name.ends_with(".weight") || name.ends_with(".bias");
  if (!isNamed && !program) {
    if (tensor.elements() == 1 && isExporterName(name))
      return {false, true, "a number written by the exporter"};
    if (name.ends_with("_output_0") || isFilledByName(name))
      return {false, true, "a constant folded by the exporter"};
    if (std::string kind = tableKind(file, tensor); !kind.empty())
      return {false, true, kind};
    for (const char *word :
         {"running_mean", "running_var", "inv_freq", "cos_cached", "sin_cached",
          "position_ids", "final_logits_bias"})
      if (name.contains(word))
        return {false, true, std::string("named as a table (") + word + ")"};
  }
  if (!options.train)
    return {false, false, "not training"};
  return {true, false, ""};
}
