#include "passes/Graph/GraphBuilder.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace merak;

std::string merak::describeShape(ArrayRef<int64_t> shape) {
  std::string text = "[";
  for (auto [i, dim] : llvm::enumerate(shape))
    text += (i ? "," : "") + std::to_string(dim);
  return text + "]";
}

std::string merak::describeType(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  std::string text;
  llvm::raw_string_ostream out(text);
  if (!tensor) {
    out << type;
    return text;
  }
  if (tensor.getElementType().isInteger(1))
    out << "bool";
  else
    out << tensor.getElementType();
  out << describeShape(tensor.getShape());
  return text;
}

bool merak::isSaneShape(ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && count > (int64_t(1) << 48) / dim))
      return false;
    count *= std::max<int64_t>(dim, 1);
  }
  return true;
}

DenseElementsAttr merak::constantOf(Value value) {
  auto op = value ? value.getDefiningOp<train::ConstantOp>() : nullptr;
  return op ? dyn_cast<DenseElementsAttr>(op.getValue()) : DenseElementsAttr();
}

std::optional<double> merak::splatOf(Value value) {
  DenseElementsAttr attr = constantOf(value);
  if (!attr || !attr.isSplat() || !isa<FloatType>(attr.getElementType()))
    return std::nullopt;
  return attr.getSplatValue<APFloat>().convertToDouble();
}

Value GraphBuilder::fail(const llvm::Twine &message) {
  emitError(loc) << prefix << message;
  return {};
}

Value GraphBuilder::constant(DenseElementsAttr value) {
  return train::ConstantOp::create(builder, loc, value.getType(),
                                   llvm::cast<ElementsAttr>(value));
}

Value GraphBuilder::scalar(double number, Type element) {
  auto type = RankedTensorType::get({}, element);
  if (auto real = dyn_cast<FloatType>(element)) {
    APFloat value(number);
    bool loses;
    value.convert(real.getFloatSemantics(), APFloat::rmNearestTiesToEven,
                  &loses);
    return constant(DenseElementsAttr::get(type, value));
  }
  unsigned width = element.getIntOrFloatBitWidth();
  return constant(DenseElementsAttr::get(
      type, APInt(width, static_cast<int64_t>(number), /*isSigned=*/true,
                  /*implicitTrunc=*/true)));
}

Value GraphBuilder::scalarLike(double number, Value like) {
  return like ? scalar(number, tensorType(like).getElementType()) : Value();
}

bool GraphBuilder::broadcasts(ValueRange operands, bool skipFirstElement) {
  for (Value operand : operands)
    if (!operand)
      return false;
  Type element =
      tensorType(operands[skipFirstElement ? 1 : 0]).getElementType();
  Shape shape;
  for (auto [index, operand] : llvm::enumerate(operands)) {
    if (!(skipFirstElement && index == 0) &&
        tensorType(operand).getElementType() != element) {
      fail("expected operands of one element type, found " +
           describeType(operands[skipFirstElement ? 1 : 0].getType()) +
           " and " + describeType(operand.getType()));
      return false;
    }
    ArrayRef<int64_t> dims = shapeOf(operand);
    if (dims.size() > shape.size())
      shape.insert(shape.begin(), dims.size() - shape.size(), 1);
    for (size_t i = 0; i < dims.size(); ++i) {
      int64_t &dim = shape[shape.size() - dims.size() + i];
      if (dims[i] != 1 && dim != 1 && dims[i] != dim) {
        fail("expected shapes that broadcast, found " +
             describeType(operands[0].getType()) + " and " +
             describeType(operand.getType()));
        return false;
      }
      if (dim == 1)
        dim = dims[i];
    }
  }
  if (isSaneShape(shape))
    return true;
  fail("result " + describeShape(shape) + " is too large");
  return false;
}

Value GraphBuilder::compare(train::ComparePredicate predicate, Value l,
                            Value r) {
  if (!broadcasts({l, r}))
    return {};
  return train::CompareOp::create(builder, loc, predicate, l, r);
}

Value GraphBuilder::select(Value condition, Value l, Value r) {
  if (!broadcasts({condition, l, r}, /*skipFirstElement=*/true))
    return {};
  if (!tensorType(condition).getElementType().isInteger(1))
    return fail("expected a bool condition, found " +
                describeType(condition.getType()));
  return train::SelectOp::create(builder, loc, condition, l, r);
}

Value GraphBuilder::cast(Value x, Type element) {
  if (!x || tensorType(x).getElementType() == element)
    return x;
  return train::CastOp::create(builder, loc,
                               RankedTensorType::get(shapeOf(x), element), x);
}

Value GraphBuilder::reshape(Value x, ArrayRef<int64_t> shape) {
  if (!x || shapeOf(x) == shape)
    return x;
  if (!isSaneShape(shape))
    return fail("expected sizes in a shape, found " + describeShape(shape));
  auto type = RankedTensorType::get(shape, tensorType(x).getElementType());
  if (type.getNumElements() != tensorType(x).getNumElements())
    return fail("expected a shape of " +
                std::to_string(tensorType(x).getNumElements()) +
                " elements for " + describeType(x.getType()) + ", found " +
                describeShape(shape));
  return train::ReshapeOp::create(builder, loc, type, x);
}

Value GraphBuilder::transpose(Value x, ArrayRef<int64_t> perm) {
  if (!x)
    return x;
  Shape seen(perm);
  llvm::sort(seen);
  bool isPermutation = static_cast<int64_t>(perm.size()) == rankOf(x);
  for (size_t i = 0; isPermutation && i < seen.size(); ++i)
    isPermutation = seen[i] == static_cast<int64_t>(i);
  if (!isPermutation)
    return fail("expected a permutation of the dimensions of " +
                describeType(x.getType()) + ", found " + describeShape(perm));
  if (llvm::is_sorted(perm))
    return x;
  return train::TransposeOp::create(builder, loc, x, perm);
}

Value GraphBuilder::expand(Value x, ArrayRef<int64_t> shape) {
  if (!x || shapeOf(x) == shape)
    return x;
  ArrayRef<int64_t> from = shapeOf(x);
  bool fits = from.size() <= shape.size() && isSaneShape(shape);
  for (size_t i = 0; fits && i < from.size(); ++i)
    fits = from[i] == 1 || from[i] == shape[shape.size() - from.size() + i];
  if (!fits)
    return fail("expected a shape that " + describeType(x.getType()) +
                " broadcasts to, found " + describeShape(shape));
  return train::ExpandOp::create(
      builder, loc,
      RankedTensorType::get(shape, tensorType(x).getElementType()), x);
}

Value GraphBuilder::slice(Value x, ArrayRef<int64_t> starts,
                          ArrayRef<int64_t> sizes, ArrayRef<int64_t> steps) {
  if (!x)
    return x;
  ArrayRef<int64_t> dims = shapeOf(x);
  bool whole = true;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (starts[i] < 0 || sizes[i] < 0 || steps[i] < 1 ||
        (sizes[i] > 0 && starts[i] + (sizes[i] - 1) * steps[i] >= dims[i]))
      return fail("slice leaves dimension " + std::to_string(i) + " of " +
                  describeType(x.getType()));
    whole &= sizes[i] == dims[i];
  }
  if (whole)
    return x;
  return train::SliceOp::create(builder, loc, x, starts, sizes, steps);
}

Value GraphBuilder::sliceDim(Value x, int64_t dim, int64_t start,
                             int64_t size) {
  if (!x)
    return x;
  Shape starts(rankOf(x), 0), sizes(shapeOf(x)), steps(rankOf(x), 1);
  starts[dim] = start;
  sizes[dim] = size;
  return slice(x, starts, sizes, steps);
}

Value GraphBuilder::concat(ValueRange inputs, int64_t axis) {
  if (inputs.empty())
    return fail("expected at least one input");
  for (Value input : inputs)
    if (!input)
      return {};
  if (axis < 0 || axis >= rankOf(inputs[0]))
    return fail("axis " + std::to_string(axis) + " is not a dimension of " +
                describeType(inputs[0].getType()));
  for (Value input : inputs) {
    Shape shape(shapeOf(input));
    bool fits = static_cast<int64_t>(shape.size()) == rankOf(inputs[0]);
    if (fits)
      shape[axis] = shapeOf(inputs[0])[axis];
    if (!fits || ArrayRef<int64_t>(shape) != shapeOf(inputs[0]) ||
        tensorType(input).getElementType() !=
            tensorType(inputs[0]).getElementType())
      return fail("expected inputs that differ in dimension " +
                  std::to_string(axis) + " only, found " +
                  describeType(inputs[0].getType()) + " and " +
                  describeType(input.getType()));
  }
  if (inputs.size() == 1)
    return inputs[0];
  // What checks plans compares the parts of one tensor with each other: very
  // many are joined in groups.
  constexpr size_t kMost = 256;
  SmallVector<Value> parts(inputs);
  while (parts.size() > kMost) {
    SmallVector<Value> joined;
    for (size_t i = 0; i < parts.size(); i += kMost) {
      ArrayRef<Value> group =
          ArrayRef(parts).slice(i, std::min(kMost, parts.size() - i));
      joined.push_back(
          group.size() == 1
              ? group[0]
              : train::ConcatOp::create(builder, loc, group, axis).getResult());
    }
    parts = std::move(joined);
  }
  return train::ConcatOp::create(builder, loc, parts, axis);
}

Value GraphBuilder::gather(Value table, Value ids, int64_t axis,
                           int64_t batch) {
  if (!table || !ids)
    return {};
  if (axis < 0 || axis >= rankOf(table))
    return fail("axis " + std::to_string(axis) + " is not a dimension of " +
                describeType(table.getType()));
  if (!isa<IntegerType>(tensorType(ids).getElementType()))
    return fail("expected integer indices, found " +
                describeType(ids.getType()));
  if (batch > axis || batch > rankOf(ids) ||
      shapeOf(table).take_front(batch) != shapeOf(ids).take_front(batch))
    return fail("expected indices into " + describeType(table.getType()) +
                ", found " + describeType(ids.getType()));
  Shape result(shapeOf(table).take_front(axis));
  llvm::append_range(result, shapeOf(ids).drop_front(batch));
  llvm::append_range(result, shapeOf(table).drop_front(axis + 1));
  if (!isSaneShape(result))
    return fail("result " + describeShape(result) + " is too large");
  return train::GatherOp::create(builder, loc, table, ids, axis, IntegerAttr(),
                                 StringAttr(), batch);
}

bool GraphBuilder::axesFit(Value x, ArrayRef<int64_t> axes) {
  Shape sorted(axes);
  llvm::sort(sorted);
  for (auto [i, axis] : llvm::enumerate(sorted))
    if (axis < 0 || axis >= rankOf(x) || (i && sorted[i - 1] == axis)) {
      fail("expected distinct dimensions of " + describeType(x.getType()) +
           ", found " + describeShape(axes));
      return false;
    }
  return true;
}

Value GraphBuilder::mean(Value x, ArrayRef<int64_t> axes, bool keep) {
  if (!x)
    return x;
  if (!isa<FloatType>(tensorType(x).getElementType()))
    return fail("expected a float tensor, found " + describeType(x.getType()));
  Value sum = reduce<train::ReduceSumOp>(x, axes, keep);
  if (!sum || axes.empty())
    return sum;
  int64_t count = 1;
  for (int64_t axis : axes)
    count *= shapeOf(x)[axis];
  if (count == 0)
    return fail("expected at least one element to average");
  return binary<train::MulOp>(sum, 1.0 / static_cast<double>(count));
}

Value GraphBuilder::einsum(StringRef equation, Value l, Value r) {
  if (!l || !r)
    return {};
  if (tensorType(l).getElementType() != tensorType(r).getElementType() ||
      !isa<FloatType>(tensorType(l).getElementType()))
    return fail("expected float operands of one element type, found " +
                describeType(l.getType()) + " and " +
                describeType(r.getType()));
  auto [inputs, out] = equation.split("->");
  auto [left, right] = inputs.split(',');
  llvm::SmallDenseMap<char, int64_t> sizes;
  for (auto [letters, value] : {std::pair(left, l), std::pair(right, r)})
    for (auto [i, letter] : llvm::enumerate(letters)) {
      auto [it, isNew] = sizes.try_emplace(letter, shapeOf(value)[i]);
      if (!isNew && it->second != shapeOf(value)[i])
        return fail("expected equal inner and batch dimensions, found " +
                    describeType(l.getType()) + " and " +
                    describeType(r.getType()));
    }
  Shape result;
  for (char letter : out)
    result.push_back(sizes.lookup(letter));
  if (!isSaneShape(result))
    return fail("result " + describeShape(result) + " is too large");
  // Products of halves are summed in f32.
  Type element = tensorType(l).getElementType();
  if (element.isBF16() || element.isF16())
    return cast(train::EinsumOp::create(
                    builder, loc, equation, cast(l, builder.getF32Type()),
                    cast(r, builder.getF32Type()), ArrayAttr()),
                element);
  return train::EinsumOp::create(builder, loc, equation, l, r, ArrayAttr());
}
