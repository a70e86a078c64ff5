#include "onnx/Import/InlineFunctions.h"

#include <map>
#include <set>

using namespace merak;

namespace {
using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Key = std::pair<std::string, std::string>; // domain, name

constexpr int64_t kMaxNodes = 1'000'000;

// What a body's names and attribute references stand for at one call.
struct Scope {
  std::string prefix;
  std::map<std::string, std::string> names;
  std::map<std::string, const onnx::AttributeProto *> attributes;

  std::string rename(const std::string &name) const {
    auto it = names.find(name);
    return name.empty() ? name : it != names.end() ? it->second : prefix + name;
  }
};

class Inliner {
public:
  Inliner(onnx::ModelProto &model, std::vector<std::string> &errors)
      : model(model), errors(errors) {
    for (const onnx::FunctionProto &function : model.functions())
      functions[{function.domain(), function.name()}] = &function;
    for (const auto &entry : model.opset_import())
      opsets[domainOf(entry.domain())] = entry.version();
  }

  void run() { graph(*model.mutable_graph()); }

private:
  static std::string domainOf(const std::string &domain) {
    return domain == "ai.onnx" ? "" : domain;
  }
  void fail(const std::string &name, const std::string &text) {
    if (reported.insert(name).second)
      errors.push_back("function '" + name + "': " + text);
  }

  void graph(onnx::GraphProto &graph) {
    Nodes out;
    nodes(graph.node(), nullptr, out);
    graph.mutable_node()->Swap(&out);
  }

  // Appends what `list` becomes; `scope` is null outside of a body.
  void nodes(const Nodes &list, const Scope *scope, Nodes &out) {
    for (const onnx::NodeProto &node : list) {
      if (++made > kMaxNodes)
        return fail(node.op_type(), "expected at most a million nodes");
      onnx::NodeProto copy = node;
      if (scope)
        bind(copy, *scope);
      auto found = functions.find({domainOf(copy.domain()), copy.op_type()});
      if (found == functions.end())
        found = functions.find({copy.domain(), copy.op_type()});
      if (found != functions.end()) {
        call(copy, *found->second, out);
        continue;
      }
      for (onnx::AttributeProto &attribute : *copy.mutable_attribute())
        if (attribute.has_g() && !scope)
          graph(*attribute.mutable_g());
      *out.Add() = std::move(copy);
    }
  }

  // The node with the names and attributes of the call; a referenced attribute
  // that the call does not give is left out.
  void bind(onnx::NodeProto &node, const Scope &scope) {
    if (!node.name().empty())
      node.set_name(scope.prefix + node.name());
    for (std::string &name : *node.mutable_input())
      name = scope.rename(name);
    for (std::string &name : *node.mutable_output())
      name = scope.rename(name);
    google::protobuf::RepeatedPtrField<onnx::AttributeProto> kept;
    for (const onnx::AttributeProto &attribute : node.attribute()) {
      onnx::AttributeProto bound = attribute;
      if (!attribute.ref_attr_name().empty()) {
        auto it = scope.attributes.find(attribute.ref_attr_name());
        if (it == scope.attributes.end())
          continue;
        bound = *it->second;
        bound.set_name(attribute.name());
      }
      if (bound.has_g())
        branch(*bound.mutable_g(), scope);
      *kept.Add() = std::move(bound);
    }
    node.mutable_attribute()->Swap(&kept);
  }

  // A subgraph of a body: its own names move along.
  void branch(onnx::GraphProto &graph, const Scope &scope) {
    Nodes out;
    nodes(graph.node(), &scope, out);
    graph.mutable_node()->Swap(&out);
    for (onnx::ValueInfoProto &output : *graph.mutable_output())
      output.set_name(scope.rename(output.name()));
    for (onnx::TensorProto &tensor : *graph.mutable_initializer())
      tensor.set_name(scope.rename(tensor.name()));
  }

  void call(const onnx::NodeProto &node, const onnx::FunctionProto &function,
            Nodes &out) {
    if (!active.insert(&function).second)
      return fail(function.name(), "expected no recursion");
    for (const auto &entry : function.opset_import()) {
      auto it = opsets.find(domainOf(entry.domain()));
      if (it != opsets.end() && it->second != entry.version())
        fail(function.name(), "expected opset " + std::to_string(it->second) +
                                  " of the model, found " +
                                  std::to_string(entry.version()));
    }
    Scope scope;
    scope.prefix = (node.name().empty() && node.output_size() ? node.output(0)
                                                              : node.name()) +
                   "/";
    for (int i = 0; i < function.input_size(); ++i)
      scope.names[function.input(i)] =
          i < node.input_size() ? node.input(i) : std::string();
    for (int i = 0; i < function.output_size(); ++i)
      if (i < node.output_size() && !node.output(i).empty())
        scope.names[function.output(i)] = node.output(i);
    for (const onnx::AttributeProto &attribute : node.attribute())
      scope.attributes[attribute.name()] = &attribute;
    nodes(function.node(), &scope, out);
    active.erase(&function);
  }

  onnx::ModelProto &model;
  std::vector<std::string> &errors;
  std::map<Key, const onnx::FunctionProto *> functions;
  std::map<std::string, int64_t> opsets;
  std::set<const onnx::FunctionProto *> active;
  std::set<std::string> reported;
  int64_t made = 0;
};
} // namespace

void merak::inlineFunctions(onnx::ModelProto &model,
                            std::vector<std::string> &errors) {
  if (model.functions_size())
    Inliner(model, errors).run();
}
