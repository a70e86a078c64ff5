// FlexAttention of ai.onnx.preview: attention with subgraphs for scores and
// probabilities, written out with the standard operators.
#include "onnx/Import/Attributes.h"
#include "onnx/Import/GraphImporter.h"

#include <cmath>

using namespace mlir;
using namespace merak;

namespace {
onnx::AttributeProto *attribute(onnx::NodeProto &node, const char *name,
                                onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto *made = node.add_attribute();
  made->set_name(name);
  made->set_type(type);
  return made;
}
} // namespace

bool GraphImporter::importFlexAttention(const onnx::NodeProto &node,
                                        Location loc, int index) {
  if (node.op_type() != "FlexAttention" || node.domain() != "ai.onnx.preview" ||
      node.input_size() != 3 || node.output_size() != 1)
    return false;
  RankedTensorType types[3];
  std::string names[3];
  for (int i = 0; i < 3; ++i) {
    Value value = operand(node.input(i), loc, node, i);
    types[i] = value ? dyn_cast<RankedTensorType>(value.getType())
                     : RankedTensorType();
    if (!types[i])
      return false; // what made it is reported
    names[i] = node.input(i);
  }
  auto dim = [&](int i, int at) { return types[i].getDimSize(at); };
  auto fits = [&] {
    for (const RankedTensorType &type : types)
      if (type.getRank() != 4 || !isa<FloatType>(type.getElementType()) ||
          llvm::is_contained(type.getShape(), 0))
        return false;
    return dim(0, 0) == dim(1, 0) && dim(0, 0) == dim(2, 0) &&
           dim(1, 1) == dim(2, 1) && dim(0, 1) % dim(1, 1) == 0 &&
           dim(0, 3) == dim(1, 3) && dim(1, 2) == dim(2, 2);
  };
  if (!fits())
    return refuse(node, loc,
                  "expected float queries [b,h,l,d], keys [b,k,s,d] and values "
                  "[b,k,s,e] of as many or fewer heads");
  // Nodes of the decomposition, by their last result.
  int number = 0;
  auto add = [&](StringRef type, std::vector<std::string> inputs) {
    onnx::NodeProto made;
    made.set_op_type(type.str());
    made.set_name(node.name());
    for (const std::string &input : inputs)
      made.add_input(input);
    made.add_output(node.output(0) + "#" + std::to_string(number++));
    return made;
  };
  auto import = [&](onnx::NodeProto made) {
    importMade(made, index);
    return made.output(0);
  };
  auto reshape = [&](const std::string &x, ArrayRef<int64_t> shape) {
    std::string name = node.output(0) + "#" + std::to_string(number++);
    values[name] =
        constant(DenseElementsAttr::get(
                     RankedTensorType::get({4}, builder.getI64Type()), shape),
                 loc);
    return import(add("Reshape", {x, name}));
  };
  auto cast = [&](const std::string &x, int64_t to) {
    onnx::NodeProto made = add("Cast", {x});
    attribute(made, "to", onnx::AttributeProto::INT)->set_i(to);
    return import(made);
  };
  // The subgraph's result in place of `x`; empty after an error.
  auto modify = [&](const char *name, const std::string &x) -> std::string {
    const onnx::AttributeProto *body = findAttribute(node, name);
    if (!body || !ok)
      return x;
    if (!body->has_g() || body->g().input_size() != 1 ||
        body->g().output_size() != 1) {
      refuse(node, loc,
             "expected a subgraph " + Twine(name) +
                 " with one input and one output");
      return "";
    }
    std::vector<Value> results =
        iterate(body->g(), node, {values.lookup(x)}, loc, index);
    if (results.empty() || !results[0])
      return "";
    if (results[0].getType() != values.lookup(x).getType()) {
      refuse(node, loc,
             "expected a result of the subgraph " + Twine(name) +
                 " of the type of its input");
      return "";
    }
    std::string made = node.output(0) + "#" + std::to_string(number++);
    values[made] = results[0];
    return made;
  };

  Type element = types[0].getElementType();
  const int64_t own = element.isF64()   ? onnx::TensorProto::DOUBLE
                      : element.isF32() ? onnx::TensorProto::FLOAT
                      : element.isF16() ? onnx::TensorProto::FLOAT16
                                        : onnx::TensorProto::BFLOAT16;
  const onnx::AttributeProto *precision =
      findAttribute(node, "softmax_precision");
  int64_t inner =
      element.isF64() ? onnx::TensorProto::DOUBLE : onnx::TensorProto::FLOAT;
  if (precision)
    inner = precision->i();
  if (inner != own)
    for (std::string &name : names)
      name = cast(name, inner);
  // The heads that share keys stand below each other.
  const int64_t b = dim(0, 0), heads = dim(0, 1), length = dim(0, 2);
  const int64_t keyHeads = dim(1, 1), keys = dim(1, 2);
  const int64_t rows = heads / keyHeads * length;
  const bool isGrouped = heads != keyHeads;
  if (isGrouped)
    names[0] = reshape(names[0], {b, keyHeads, rows, dim(0, 3)});
  onnx::NodeProto turned = add("Transpose", {names[1]});
  onnx::AttributeProto *perm =
      attribute(turned, "perm", onnx::AttributeProto::INTS);
  for (int64_t axis : {0, 1, 3, 2})
    perm->add_ints(axis);
  std::string scores = import(add("MatMul", {names[0], import(turned)}));
  const onnx::AttributeProto *given = findAttribute(node, "scale");
  const double scale =
      given ? given->f() : 1 / std::sqrt(static_cast<double>(dim(0, 3)));
  Value made = values.lookup(scores);
  auto type =
      made ? dyn_cast<RankedTensorType>(made.getType()) : RankedTensorType();
  if (!ok || !type)
    return true; // reported
  const std::string factor = node.output(0) + "#scale";
  values[factor] = constant(
      DenseElementsAttr::get(
          RankedTensorType::get({}, type.getElementType()),
          Attribute(builder.getFloatAttr(type.getElementType(), scale))),
      loc);
  scores = import(add("Mul", {scores, factor}));
  if (isGrouped)
    scores = reshape(scores, {b, heads, length, keys});
  scores = modify("score_mod", scores);
  if (!ok)
    return true;
  onnx::NodeProto softmax = add("Softmax", {scores});
  attribute(softmax, "axis", onnx::AttributeProto::INT)->set_i(-1);
  std::string weights = modify("prob_mod", import(softmax));
  if (!ok)
    return true;
  if (isGrouped)
    weights = reshape(weights, {b, keyHeads, rows, keys});
  std::string y = import(add("MatMul", {weights, names[2]}));
  if (isGrouped)
    y = reshape(y, {b, heads, length, dim(2, 3)});
  if (inner != own)
    y = cast(y, own);
  if (Value result = values.lookup(y))
    values[node.output(0)] = result;
  return true;
}
