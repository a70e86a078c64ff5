// Result types and folders of train ops.
#include "dialects/Train/Verifiers.h"

using namespace mlir;
using namespace merak::train;

static RankedTensorType tensorType(Value value) {
  return cast<RankedTensorType>(value.getType());
}

//===----------------------------------------------------------------------===//
// Result types
//===----------------------------------------------------------------------===//

LogicalResult merak::train::inferBroadcast(std::optional<Location> location,
                                           ValueRange operands, Type element,
                                           SmallVectorImpl<Type> &types) {
  SmallVector<int64_t> shape;
  for (Value operand : operands) {
    ArrayRef<int64_t> dims = tensorType(operand).getShape();
    if (dims.size() > shape.size())
      shape.insert(shape.begin(), dims.size() - shape.size(), 1);
    for (size_t i = 0; i < dims.size(); ++i) {
      int64_t &dim = shape[shape.size() - dims.size() + i];
      if (dims[i] != 1 && dim != 1 && dims[i] != dim)
        return emitOptionalError(
            location, "shapes do not broadcast: ", operands[0].getType(),
            " and ", operand.getType());
      if (dim == 1)
        dim = dims[i];
    }
  }
  if (!element)
    element = tensorType(operands[0]).getElementType();
  types.push_back(RankedTensorType::get(shape, element));
  return success();
}

// Signature of every inferReturnTypes below.
#define INFER(OpName)                                                          \
  LogicalResult OpName::inferReturnTypes(                                      \
      MLIRContext *context, std::optional<Location> location,                  \
      ValueRange operands, DictionaryAttr attributes,                          \
      OpaqueProperties properties, RegionRange regions,                        \
      SmallVectorImpl<Type> &types)

INFER(TransposeOp) {
  Adaptor op(operands, attributes, properties, regions);
  auto x = tensorType(op.getX());
  if (static_cast<int64_t>(op.getPerm().size()) != x.getRank())
    return emitOptionalError(location, "expected ", x.getRank(),
                             " permutation entries, found ",
                             op.getPerm().size());
  SmallVector<int64_t> shape;
  for (int64_t dim : op.getPerm()) {
    if (dim < 0 || dim >= x.getRank() || llvm::count(op.getPerm(), dim) != 1)
      return emitOptionalError(location, "expected each of 0 to ",
                               x.getRank() - 1,
                               " once in the permutation, found ", dim);
    shape.push_back(x.getDimSize(dim));
  }
  types.push_back(RankedTensorType::get(shape, x.getElementType()));
  return success();
}

INFER(SliceOp) {
  Adaptor op(operands, attributes, properties, regions);
  types.push_back(RankedTensorType::get(
      op.getSizes(), tensorType(op.getX()).getElementType()));
  return success();
}

INFER(PadOp) {
  Adaptor op(operands, attributes, properties, regions);
  auto x = tensorType(op.getX());
  size_t rank = x.getRank();
  if (op.getLow().size() != rank || op.getHigh().size() != rank ||
      op.getInterior().size() != rank)
    return emitOptionalError(location, "expected ", rank,
                             " entries in low, high and interior, found ",
                             op.getLow().size(), ", ", op.getHigh().size(),
                             " and ", op.getInterior().size());
  SmallVector<int64_t> shape;
  for (size_t i = 0; i < rank; ++i)
    shape.push_back(op.getLow()[i] + op.getHigh()[i] + x.getDimSize(i) +
                    op.getInterior()[i] *
                        std::max<int64_t>(0, x.getDimSize(i) - 1));
  types.push_back(RankedTensorType::get(shape, x.getElementType()));
  return success();
}

INFER(ConcatOp) {
  Adaptor op(operands, attributes, properties, regions);
  if (operands.empty())
    return emitOptionalError(location, "expected at least one operand");
  auto first = tensorType(operands[0]);
  int64_t axis = op.getAxis();
  if (axis < 0 || axis >= first.getRank())
    return emitOptionalError(location, "axis ", axis, " is out of range of ",
                             first);
  SmallVector<int64_t> shape(first.getShape());
  shape[axis] = 0;
  for (Value input : operands) {
    auto type = tensorType(input);
    if (type.getRank() != first.getRank())
      return emitOptionalError(location, "ranks differ: ", first, " and ",
                               type);
    for (int64_t i = 0; i < type.getRank(); ++i)
      if (i != axis && type.getDimSize(i) != shape[i])
        return emitOptionalError(location, "dimension ", i, " differs: ", first,
                                 " and ", type);
    shape[axis] += type.getDimSize(axis);
  }
  types.push_back(RankedTensorType::get(shape, first.getElementType()));
  return success();
}

INFER(GatherOp) {
  Adaptor op(operands, attributes, properties, regions);
  auto table = tensorType(op.getTable());
  // While an op is parsed, defaults are not there yet, and what its attribute
  // dictionary says is no property yet.
  IntegerAttr batch = op.getProperties().batch;
  if (!batch && attributes)
    batch = attributes.getAs<IntegerAttr>("batch");
  FailureOr<Dims> shape = rowsShape(location, table, tensorType(op.getIds()),
                                    op.getAxis(), batch ? batch.getInt() : 0);
  if (failed(shape))
    return failure();
  types.push_back(RankedTensorType::get(*shape, table.getElementType()));
  return success();
}

static LogicalResult inferReduce(std::optional<Location> location, Value x,
                                 ArrayRef<int64_t> axes, bool keepdims,
                                 SmallVectorImpl<Type> &types) {
  auto type = tensorType(x);
  SmallVector<int64_t> shape;
  if (axes.empty())
    return emitOptionalError(location, "expected at least one axis");
  for (int64_t axis : axes)
    if (axis < 0 || axis >= type.getRank() || llvm::count(axes, axis) != 1)
      return emitOptionalError(location, "expected axes of ", type,
                               ", each once, found ", axis);
  for (int64_t i = 0; i < type.getRank(); ++i) {
    if (!llvm::is_contained(axes, i))
      shape.push_back(type.getDimSize(i));
    else if (keepdims)
      shape.push_back(1);
  }
  types.push_back(RankedTensorType::get(shape, type.getElementType()));
  return success();
}
INFER(ReduceSumOp) {
  Adaptor op(operands, attributes, properties, regions);
  return inferReduce(location, op.getX(), op.getAxes(), op.getKeepdims(),
                     types);
}
INFER(ReduceMaxOp) {
  Adaptor op(operands, attributes, properties, regions);
  return inferReduce(location, op.getX(), op.getAxes(), op.getKeepdims(),
                     types);
}

static EinsumOp::Letters splitEquation(StringRef equation) {
  auto [inputs, out] = equation.split("->");
  auto [lhs, rhs] = inputs.split(',');
  return {lhs.str(), rhs.str(), out.str()};
}
EinsumOp::Letters EinsumOp::getLetters() {
  return splitEquation(getEquation());
}

INFER(EinsumOp) {
  Adaptor op(operands, attributes, properties, regions);
  EinsumOp::Letters letters = splitEquation(op.getEquation());
  llvm::SmallDenseMap<char, int64_t> sizes;
  auto bind = [&](const std::string &text, Value value) -> LogicalResult {
    auto type = tensorType(value);
    if (static_cast<int64_t>(text.size()) != type.getRank())
      return emitOptionalError(location, "equation \"", op.getEquation(),
                               "\" does not fit operand of type ", type);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text.find(text[i], i + 1) != std::string::npos)
        return emitOptionalError(location, "letter '", text[i],
                                 "' is a duplicate in one operand");
      auto [it, isNew] = sizes.try_emplace(text[i], type.getDimSize(i));
      if (!isNew && it->second != type.getDimSize(i))
        return emitOptionalError(location, "letter '", text[i], "' has sizes ",
                                 it->second, " and ", type.getDimSize(i));
    }
    return success();
  };
  if (failed(bind(letters.lhs, op.getLhs())) ||
      failed(bind(letters.rhs, op.getRhs())))
    return failure();
  SmallVector<int64_t> shape;
  for (char letter : letters.out) {
    if (llvm::count(letters.out, letter) != 1)
      return emitOptionalError(location, "letter '", letter,
                               "' is a duplicate in the result");
    auto it = sizes.find(letter);
    if (it == sizes.end())
      return emitOptionalError(location, "output letter '", letter,
                               "' is in no operand");
    shape.push_back(it->second);
  }
  types.push_back(
      RankedTensorType::get(shape, tensorType(op.getLhs()).getElementType()));
  return success();
}
#undef INFER

//===----------------------------------------------------------------------===//
// Folders
//===----------------------------------------------------------------------===//

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }

OpFoldResult ReshapeOp::fold(FoldAdaptor) {
  if (getX().getType() == getY().getType())
    return getX();
  if (auto producer = getX().getDefiningOp<ReshapeOp>()) {
    setOperand(producer.getX());
    return getY();
  }
  return {};
}

OpFoldResult TransposeOp::fold(FoldAdaptor) {
  SmallVector<int64_t> perm(getPerm());
  bool changed = false;
  if (auto producer = getX().getDefiningOp<TransposeOp>()) {
    for (int64_t &dim : perm)
      dim = producer.getPerm()[dim];
    setOperand(producer.getX());
    setPerm(perm);
    changed = true;
  }
  for (size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i))
      return changed ? OpFoldResult(getY()) : OpFoldResult();
  return getX();
}
