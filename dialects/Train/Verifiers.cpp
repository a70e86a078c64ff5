// Verifiers of model, element-wise, shape, table and reduction ops, and the
// checks that the others share.
#include "dialects/Train/Verifiers.h"

using namespace mlir;
using namespace merak::train;

static RankedTensorType tensorType(Value value) {
  return cast<RankedTensorType>(value.getType());
}

LogicalResult merak::train::verifyAxis(Operation *op, int64_t axis, Value x) {
  if (axis >= 0 && axis < tensorType(x).getRank())
    return success();
  return op->emitOpError("expected an axis of ")
         << x.getType() << ", found " << axis;
}

LogicalResult merak::train::verifyShape(Operation *op, StringRef name,
                                        Value value, ArrayRef<int64_t> shape) {
  if (!value || dimsOf(value) == shape)
    return success();
  InFlightDiagnostic error = op->emitOpError("expected '") << name << "' of [";
  llvm::interleaveComma(shape, error);
  return error << "], found " << value.getType();
}

LogicalResult merak::train::verifyOneElementType(Operation *op,
                                                 ValueRange values) {
  if (values.empty())
    return success();
  Type first = tensorType(values.front()).getElementType();
  for (Value value : values.drop_front())
    if (Type other = tensorType(value).getElementType(); other != first)
      return op->emitOpError("expected one element type, found ")
             << first << " and " << other;
  return success();
}

FailureOr<Dims> merak::train::rowsShape(std::optional<Location> location,
                                        RankedTensorType table,
                                        RankedTensorType ids, int64_t axis,
                                        int64_t batch) {
  if (axis < 0 || axis >= table.getRank())
    return emitOptionalError(location, "axis ", axis, " is out of range of ",
                             table);
  if (batch < 0 || batch > axis || batch > ids.getRank() ||
      table.getShape().take_front(batch) != ids.getShape().take_front(batch))
    return emitOptionalError(
        location, "expected a table and ids that agree in ", batch,
        " dimensions before axis ", axis, ", found ", table, " and ", ids);
  Dims shape(table.getShape().take_front(axis));
  llvm::append_range(shape, ids.getShape().drop_front(batch));
  llvm::append_range(shape, table.getShape().drop_front(axis + 1));
  return shape;
}

//===----------------------------------------------------------------------===//
// Model, parameters
//===----------------------------------------------------------------------===//

LogicalResult ParameterOp::verify() {
  if (getSource() && getValue())
    return emitOpError("expected a source or a value, found both");
  if (getValue() && getValue()->getType() != getType())
    return emitOpError("expected a value of type ")
           << getType() << ", found " << getValue()->getType();
  return success();
}

template <typename OpTy>
static LogicalResult verifySymbol(OpTy op, Type type,
                                  SymbolTableCollection &symbols) {
  auto parameter =
      symbols.lookupNearestSymbolFrom<ParameterOp>(op, op.getParameterAttr());
  if (!parameter)
    return op.emitOpError("expected a parameter, found no symbol ")
           << op.getParameterAttr();
  if (parameter.getType() != type)
    return op.emitOpError("expected type ")
           << parameter.getType() << " of the parameter, found " << type;
  return success();
}
LogicalResult ReadOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifySymbol(*this, getResult().getType(), symbols);
}
LogicalResult UpdateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifySymbol(*this, getParameterValue().getType(), symbols);
}

LogicalResult TrackOp::verify() {
  auto statistic = tensorType(getStatistic()),
       running = tensorType(getRunning());
  double keep = getKeep().convertToDouble();
  if (!(keep >= 0 && keep <= 1))
    return emitOpError("expected to keep a part in [0, 1], found ") << keep;
  if (static_cast<int64_t>(getEach()) < 1)
    return emitOpError("expected at least one number a sample, found ")
           << static_cast<int64_t>(getEach());
  if (statistic.getRank() == 0 ||
      statistic.getShape().drop_front() != running.getShape() ||
      statistic.getElementType() != running.getElementType())
    return emitOpError("expected a statistic of [samples] and ")
           << running << ", found " << statistic;
  return success();
}

//===----------------------------------------------------------------------===//
// Dropout: the ratio and the id, then the box of a local tensor
//===----------------------------------------------------------------------===//

static LogicalResult verifyBox(DropoutOp op) {
  auto sizeOf = [](auto list) -> size_t { return list ? list->size() : 0; };
  if (sizeOf(op.getStrides()) == sizeOf(op.getExtents()) &&
      sizeOf(op.getScales()) == sizeOf(op.getAxes()))
    return success();
  return op.emitOpError("expected a stride for each extent and a scale for "
                        "each axis, found ")
         << sizeOf(op.getStrides()) << " strides for "
         << sizeOf(op.getExtents()) << " extents and " << sizeOf(op.getScales())
         << " scales for " << sizeOf(op.getAxes()) << " axes";
}
LogicalResult DropoutOp::verify() {
  double ratio = getRatio().convertToDouble();
  if (!(ratio >= 0 && ratio < 1))
    return emitOpError("expected a ratio in [0, 1), found ") << ratio;
  if (getId() >> 32)
    return emitOpError("expected an id of 32 bits, found ") << getId();
  return verifyBox(*this);
}

//===----------------------------------------------------------------------===//
// Shape
//===----------------------------------------------------------------------===//

LogicalResult ReshapeOp::verify() {
  auto x = tensorType(getX()), y = tensorType(getY());
  if (x.getNumElements() != y.getNumElements() ||
      x.getElementType() != y.getElementType())
    return emitOpError("expected as many elements of one type, found ")
           << x << " and " << y;
  return success();
}

LogicalResult ExpandOp::verify() {
  auto x = tensorType(getX()), y = tensorType(getY());
  int64_t lead = y.getRank() - x.getRank();
  bool fits = lead >= 0 && x.getElementType() == y.getElementType();
  for (int64_t i = 0; fits && i < x.getRank(); ++i)
    fits = x.getDimSize(i) == 1 || x.getDimSize(i) == y.getDimSize(lead + i);
  if (!fits)
    return emitOpError("expected a broadcast, found ") << x << " to " << y;
  return success();
}

LogicalResult SliceOp::verify() {
  auto x = tensorType(getX());
  size_t rank = x.getRank();
  if (getStarts().size() != rank || getSizes().size() != rank ||
      getSteps().size() != rank)
    return emitOpError("expected ")
           << rank << " starts, sizes and steps, found " << getStarts().size()
           << ", " << getSizes().size() << " and " << getSteps().size();
  for (size_t i = 0; i < rank; ++i)
    if (getStarts()[i] < 0 || getSteps()[i] < 1 || getSizes()[i] < 0 ||
        (getSizes()[i] > 0 &&
         getStarts()[i] + (getSizes()[i] - 1) * getSteps()[i] >=
             x.getDimSize(i)))
      return emitOpError("expected a slice within dimension ")
             << i << " of size " << x.getDimSize(i) << ", found start "
             << getStarts()[i] << ", size " << getSizes()[i] << ", step "
             << getSteps()[i];
  return success();
}

LogicalResult PadOp::verify() {
  for (ArrayRef<int64_t> list : {getLow(), getHigh(), getInterior()})
    for (int64_t padding : list)
      if (padding < 0)
        return emitOpError("expected paddings that are not negative, found ")
               << padding;
  return success();
}

LogicalResult ConcatOp::verify() {
  return verifyOneElementType(*this, getInputs());
}

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

// `rows` counts those of all devices.
static LogicalResult verifyRows(Operation *op, Value table, int64_t axis,
                                std::optional<int64_t> rows) {
  if (!rows || *rows >= dimsOf(table)[axis])
    return success();
  return op->emitOpError("expected at least the ")
         << dimsOf(table)[axis] << " rows that are here, found " << *rows;
}

// Result types, which need the same of the axis, are inferred after this.
LogicalResult GatherOp::verify() {
  if (failed(rowsShape(getLoc(), tensorType(getTable()), tensorType(getIds()),
                       getAxis(), getBatch())))
    return failure();
  return verifyRows(*this, getTable(), getAxis(), getRows());
}

// Rows of the shape and element type that `ids` choose of `table`.
static LogicalResult verifyChosen(Operation *op, StringRef name, Value chosen,
                                  Value table, Value ids, int64_t axis,
                                  int64_t batch) {
  FailureOr<Dims> shape =
      rowsShape(op->getLoc(), tensorType(table), tensorType(ids), axis, batch);
  if (failed(shape) || failed(verifyShape(op, name, chosen, *shape)))
    return failure();
  return verifyOneElementType(op, {chosen, table});
}

LogicalResult ScatterAddOp::verify() {
  if (failed(verifyChosen(*this, "dy", getDy(), getTable(), getIds(), getAxis(),
                          getBatch())))
    return failure();
  return verifyRows(*this, getTable(), getAxis(), getRows());
}

LogicalResult UpdateOp::verify() {
  if (getIds())
    return verifyChosen(*this, "gradient", getGradient(), getParameterValue(),
                        getIds(), /*axis=*/0, /*batch=*/0);
  if (getGradient().getType() == getParameterValue().getType())
    return success();
  return emitOpError("expected a gradient of the parameter's type, ")
         << getParameterValue().getType() << ", found "
         << getGradient().getType();
}

LogicalResult CoalesceOp::verify() {
  ArrayRef<int64_t> dy = dimsOf(getDy()), ids = dimsOf(getIds());
  if (dy.size() <= ids.size() || dy.take_front(ids.size()) != ids)
    return emitOpError("expected slices for each of the ids, found ")
           << getDy().getType() << " and " << getIds().getType();
  if (static_cast<int64_t>(getSize()) < 1)
    return emitOpError("expected a table of at least one row, found ")
           << static_cast<int64_t>(getSize());
  return verifyShape(*this, "rows", getRows(), dy);
}

LogicalResult SplitIdsOp::verify() {
  if (static_cast<int64_t>(getSize()) < 1)
    return emitOpError("expected a table of at least one row, found ")
           << static_cast<int64_t>(getSize());
  return verifyOneElementType(*this, {getIds(), getNamed()});
}

LogicalResult ScatterReduceOp::verify() {
  return verifyChosen(*this, "updates", getUpdates(), getTable(), getIds(),
                      getBatch(), getBatch());
}

LogicalResult TopKOp::verify() {
  if (dimsOf(getX()).empty() || dimsOf(getValues()).empty())
    return emitOpError("expected a last dimension to choose along, found ")
           << getX().getType() << " and " << getValues().getType();
  Dims shape(dimsOf(getX()));
  shape.back() = std::min(shape.back(), dimsOf(getValues()).back());
  if (failed(verifyShape(*this, "values", getValues(), shape)) ||
      failed(verifyShape(*this, "indices", getIndices(), shape)))
    return failure();
  return verifyOneElementType(*this, {getX(), getValues()});
}

LogicalResult EinsumOp::verify() {
  if (ArrayAttr types = getRoundsAttr();
      types && (types.size() != 2 || !llvm::all_of(types, [](Attribute type) {
                  return isa<Float8E4M3FNType, Float8E5M2Type>(
                      cast<TypeAttr>(type).getValue());
                })))
    return emitOpError("rounds each operand to f8E4M3FN or f8E5M2, found ")
           << types;
  return verifyOneElementType(*this, getOperands());
}
