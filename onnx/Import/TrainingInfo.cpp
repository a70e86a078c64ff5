// Reads the algorithm graph as a loss and an optimizer, or says what does not
// fit.
#include "onnx/Import/TrainingInfo.h"

#include "onnx/Conversion/OnnxNode.h"
#include "onnx/Import/Attributes.h"
#include "onnx/Import/OnnxFile.h"
#include "onnx/Import/TrainingRate.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

#include <map>
#include <tuple>

using namespace merak;
using llvm::StringRef;

namespace {

double real(const onnx::NodeProto &node, StringRef name, double fallback) {
  const onnx::AttributeProto *attribute = findAttribute(node, name);
  return attribute ? attribute->f() : fallback;
}

std::vector<std::string> texts(const onnx::NodeProto &node, StringRef name) {
  const onnx::AttributeProto *attribute = findAttribute(node, name);
  return attribute ? std::vector<std::string>(attribute->strings().begin(),
                                              attribute->strings().end())
                   : std::vector<std::string>();
}

// States beside each tensor; 0: no optimizer.
int statesOf(const onnx::NodeProto &node) {
  if (node.domain() != kTrainingDomain)
    return 0;
  return node.op_type() == "Adam"                                      ? 2
         : node.op_type() == "Adagrad" || node.op_type() == "Momentum" ? 1
                                                                       : 0;
}

class Reader : TrainingGraph {
public:
  Reader(OnnxFile &file, const onnx::TrainingInfoProto &info)
      : TrainingGraph(file), graph(file.model().graph()), info(info) {
    for (const onnx::NodeProto &node : graph.node())
      for (const std::string &output : node.output())
        producers[output] = &node;
    for (const OnnxTensor &tensor : file.initializers())
      initializers[tensor.name] = &tensor;
    for (const onnx::StringStringEntryProto &entry : info.update_binding())
      if (!updates.try_emplace(entry.key(), entry.value()).second)
        problem("two updates of '" + entry.key() + "'");
  }

  ModelTraining run() {
    for (const onnx::NodeProto &node : graph.node()) {
      if (statesOf(node))
        readOptimizer(node);
      else if (node.domain() == kTrainingDomain && node.op_type() == "Gradient")
        gradients.push_back(&node);
    }
    if (t.optimizer.empty())
      problem("expected nodes Adam, Adagrad or Momentum, found none");
    readGradient();
    readOtherUpdates();
    return std::move(t);
  }

private:
  void problem(const std::string &message) {
    if (!llvm::is_contained(t.updateProblems, message))
      t.updateProblems.push_back(message);
  }

  // The count of updates in the first step; it must go up by one a step.
  std::optional<int64_t> readCount(const std::string &name) {
    const std::string above = counted(name);
    const std::string &counter = above.empty() ? name : above;
    auto bound = updates.find(counter);
    std::optional<Number> start = number(counter);
    if (bound == updates.end() || !start || counted(bound->second) != counter)
      return std::nullopt;
    known.insert(counter);
    return static_cast<int64_t>(start->value) + !above.empty();
  }

  void readOptimizer(const onnx::NodeProto &node) {
    ModelTraining own;
    own.optimizer = node.op_type();
    own.alpha = real(node, "alpha", own.optimizer == "Adam" ? 0.9f : 0);
    own.beta = real(node, "beta", own.optimizer == "Adam" ? 0.999f : 1);
    own.epsilon = real(node, "epsilon", 1e-6f);
    own.norm = real(node, "norm_coefficient", 0);
    own.normPost = real(node, "norm_coefficient_post", 0);
    own.decay = real(node, "decay_factor", 0);
    const onnx::AttributeProto *mode = findAttribute(node, "mode");
    own.nesterov = mode && mode->s() == "nesterov";
    const size_t states = statesOf(node), each = 2 + states;
    const size_t inputs = node.input_size();
    const size_t count = inputs < 2 ? 0 : (inputs - 2) / each;
    if (!count || inputs != 2 + count * each ||
        static_cast<size_t>(node.output_size()) != count * (each - 1))
      return problem(describe(node) + ": expected a rate, a count and " +
                     std::to_string(each) + " inputs a tensor");
    readScalars(node, own);
    if (t.optimizer.empty())
      takeSettings(own);
    auto settings = [](const ModelTraining &m) {
      return std::tie(m.rate, m.alpha, m.beta, m.epsilon, m.norm, m.normPost,
                      m.decay, m.nesterov, m.firstCount, m.rateProgram);
    };
    if (own.optimizer != t.optimizer)
      problem("expected one kind of optimizer, found " + t.optimizer + " and " +
              own.optimizer);
    else if (settings(own) != settings(t))
      problem(describe(node) +
              ": expected the rate, count and attributes of the other " +
              t.optimizer + " nodes");
    for (size_t i = 0; i < count; ++i)
      for (size_t k = 0; k < each; ++k)
        if (k != 1)
          readTensor(node, node.input(2 + k * count + i),
                     node.output((k ? k - 1 : 0) * count + i), k > 1);
    for (size_t i = 0; i < count; ++i)
      for (size_t k = 0; k < states; ++k)
        readState(node, node.input(2 + i), node.input(2 + (k + 2) * count + i),
                  k);
    for (size_t i = 0; i < count; ++i)
      gradientOf.push_back({node.input(2 + i), node.input(2 + count + i)});
  }

  void takeSettings(const ModelTraining &own) {
    ModelTraining next = own;
    next.trained = std::move(t.trained);
    next.states = std::move(t.states);
    next.lossProblems = std::move(t.lossProblems);
    next.updateProblems = std::move(t.updateProblems);
    t = std::move(next);
  }

  void readScalars(const onnx::NodeProto &node, ModelTraining &own) {
    TrainingRate rate = readRate(*this, node.input(0));
    if (!rate.problem.empty())
      problem("expected a rate made of numbers and counts of steps, found " +
              rate.problem + "; use --optimizer with a schedule");
    own.rate = rate.first;
    own.rateProgram = rate.program;
    for (const std::string &state : rate.states)
      known.insert(state);
    const bool counts = own.optimizer == "Adam" ||
                        (own.optimizer == "Adagrad" && own.decay != 0) ||
                        (own.optimizer == "Momentum" && own.beta != 1);
    std::optional<int64_t> count = readCount(node.input(1));
    if (count && *count >= 0)
      own.firstCount = *count;
    else if (counts)
      problem("expected a count of updates that begins at a number and goes up "
              "by one a step, found '" +
              node.input(1) + "'");
    // Without momentum there is nothing to dampen.
    if (own.optimizer == "Momentum" && own.beta != 1 && own.alpha == 0)
      problem("expected Momentum's beta to be 1, or alpha not 0, found a beta "
              "of " +
              std::to_string(own.beta) + " and an alpha of 0");
  }

  // A parameter or a state, and what replaces it.
  void readTensor(const onnx::NodeProto &node, const std::string &name,
                  const std::string &fresh, bool isState) {
    auto tensor = initializers.find(name);
    auto bound = updates.find(name);
    const std::string what = (isState ? "state '" : "parameter '") + name + "'";
    if (tensor == initializers.end())
      return problem(describe(node) + ": expected " + what +
                     " to be an initializer");
    if (bound == updates.end() || behind(bound->second) != behind(fresh))
      problem(describe(node) + ": expected its result to update " + what);
    known.insert(name);
    if (isState)
      return;
    if (llvm::is_contained(t.trained, name))
      problem("expected one update of " + what + ", found two");
    t.trained.push_back(name);
  }

  // A state that does not begin with zeros goes into the plan.
  void readState(const onnx::NodeProto &node, const std::string &parameter,
                 const std::string &name, size_t which) {
    auto of = initializers.find(parameter), state = initializers.find(name);
    if (of == initializers.end() || state == initializers.end())
      return; // reported
    if (of->second->dims != state->second->dims ||
        of->second->dataType != state->second->dataType)
      return problem(describe(node) + ": expected state '" + name +
                     "' to have the type and shape of '" + parameter + "'");
    std::optional<StringRef> bytes = file.bytes(*state->second);
    if (!bytes && state->second->path.empty())
      return problem(describe(node) + ": expected state '" + name +
                     "' to have values");
    if (bytes &&
        bytes->find_if([](char c) { return c != 0; }) == StringRef::npos)
      return;
    const bool isAdam = node.op_type() == "Adam";
    t.states[parameter].emplace_back(
        !isAdam ? (node.op_type() == "Adagrad" ? "sum" : "momentum")
                : (which == 0 ? "exp_avg" : "exp_avg_sq"),
        name);
  }

  void readGradient() {
    auto lossProblem = [&](const std::string &message) {
      t.lossProblems.push_back(message);
    };
    if (gradients.size() != 1)
      return lossProblem("expected one node Gradient, found " +
                         std::to_string(gradients.size()));
    const onnx::NodeProto &node = *gradients[0];
    const onnx::AttributeProto *y = findAttribute(node, "y");
    t.loss = y ? y->s() : "";
    if (!producers.count(t.loss))
      lossProblem(describe(node) +
                  ": expected y to name a value of the graph, "
                  "found '" +
                  t.loss + "'");
    std::vector<std::string> names = texts(node, "xs"), xs = names;
    llvm::append_range(names, texts(node, "zs"));
    names.push_back(t.loss);
    if (!std::equal(names.begin(), names.end(), node.input().begin(),
                    node.input().end()))
      lossProblem(describe(node) + ": expected the tensors that xs and zs name "
                                   "as inputs");
    for (const auto &[parameter, gradient] : gradientOf) {
      const std::string source = behind(gradient);
      auto made = producers.find(source);
      if (made == producers.end() || made->second != &node)
        problem(
            "expected the gradient of '" + parameter +
            "' to come from Gradient, found '" + gradient + "'" +
            (made == producers.end() ? "" : " of " + describe(*made->second)));
      else if (auto at =
                   llvm::find(node.output(), source) - node.output().begin();
               static_cast<size_t>(at) >= xs.size() || xs[at] != parameter)
        problem("expected the gradient of '" + parameter +
                "' to update it, "
                "found '" +
                gradient + "'");
    }
  }

  // Batch norm's statistics are state in any case.
  bool isStatistic(const std::string &name, const std::string &value) {
    auto it = producers.find(behind(value));
    if (it == producers.end() || it->second->op_type() != "BatchNormalization")
      return false;
    const onnx::NodeProto &node = *it->second;
    for (int i : {1, 2})
      if (node.input_size() > 4 && node.output_size() > i &&
          node.output(i) == behind(value) && node.input(i + 2) == name)
        return true;
    return false;
  }

  void readOtherUpdates() {
    for (const onnx::StringStringEntryProto &entry : info.update_binding())
      if (!known.contains(entry.key()) &&
          !isStatistic(entry.key(), entry.value()))
        problem("expected updates by optimizers, found one of '" + entry.key() +
                "' by '" + entry.value() + "'");
  }

  const onnx::GraphProto &graph;
  const onnx::TrainingInfoProto &info;
  ModelTraining t;
  llvm::StringSet<> known; // of the updates, those understood
  std::vector<const onnx::NodeProto *> gradients;
  std::vector<std::pair<std::string, std::string>> gradientOf; // a parameter
};

} // namespace

std::optional<ModelTraining> merak::readTraining(OnnxFile &file) {
  std::optional<ModelTraining> training;
  int found = 0;
  for (const onnx::TrainingInfoProto &info : file.model().training_info())
    if ((info.update_binding_size() || info.algorithm().node_size()) &&
        ++found == 1)
      training = Reader(file, info).run();
  if (found > 1)
    training->lossProblems.push_back("expected one training algorithm, found " +
                                     std::to_string(found));
  return training;
}
