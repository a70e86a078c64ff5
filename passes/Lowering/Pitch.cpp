#include "passes/Lowering/Pitch.h"
#include "runtime/layout/Strides.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

constexpr int64_t kPiece = 16, kLine = 128; // bytes
constexpr int64_t kLeastRow = 512;          // what is worth a longer row

RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

bool sameRows(Value a, Value b) {
  ArrayRef<int64_t> x = typeOf(a).getShape(), y = typeOf(b).getShape();
  return !x.empty() && !y.empty() && x.back() == y.back();
}

// What ops do with rows that lie apart.
struct Rows {
  bool multiplied = false; // by a product, or made by one
  bool apart = true;       // allowed
};

void look(Value value, Rows &rows) {
  for (Operation *user : value.getUsers()) {
    if (isa<EinsumOp>(user)) {
      rows.multiplied = true;
    } else if (auto reshape = dyn_cast<ReshapeOp>(user)) {
      if (!sameRows(value, reshape.getY()))
        rows.apart = false;
      else
        look(reshape.getY(), rows);
    } else if (isa<dist::DistDialect>(user->getDialect()) ||
               isa<ConcatOp, TransposeOp>(user)) {
      rows.apart = false;
    }
  }
}

void lookBack(Value value, Rows &rows) {
  Operation *op = value.getDefiningOp();
  if (!op)
    return;
  if (isa<EinsumOp>(op)) {
    rows.multiplied = true;
  } else if (auto reshape = dyn_cast<ReshapeOp>(op)) {
    if (sameRows(value, reshape.getX()))
      lookBack(reshape.getX(), rows);
    else
      rows.apart = false;
  } else if (isa<dist::DistDialect>(op->getDialect()) ||
             isa<ConcatOp, TransposeOp>(op)) {
    rows.apart = false;
  }
}

} // namespace

RankedTensorType withPitch(RankedTensorType type) {
  Type element = type.getElementType();
  if (type.getRank() < 2 || !isa<BFloat16Type, Float16Type>(element))
    return type;
  const int64_t bytes = 2, row = type.getShape().back() * bytes;
  if (row < kLeastRow || row % kPiece == 0)
    return type;
  SmallVector<int64_t> shape(type.getShape());
  shape.back() = (row + kLine - 1) / kLine * kLine / bytes;
  return RankedTensorType::get(shape, element);
}

bool wantsPitch(Value value) {
  if (withPitch(typeOf(value)) == typeOf(value) ||
      value.getDefiningOp()->hasAttr("train.gradient_of"))
    return false;
  Rows rows;
  look(value, rows);
  lookBack(value, rows);
  return rows.multiplied && rows.apart;
}

bool wantsPitch(pipe::StageOp stage, pipe::ValueOp value) {
  auto type = cast<RankedTensorType>(value.getType());
  if ((value.getKind() != pipe::ValueKind::activation &&
       value.getKind() != pipe::ValueKind::step) ||
      withPitch(type) == type)
    return false;
  Rows rows;
  for (auto action : stage.getOps<pipe::ActionOp>())
    for (Operation &op : action.getBody().front()) {
      if (auto load = dyn_cast<pipe::LoadOp>(op);
          load && load.getValue() == value.getSymName())
        look(load.getResult(), rows);
      else if (auto store = dyn_cast<pipe::StoreOp>(op);
               store && store.getValue() == value.getSymName()) {
        look(store.getOperand(), rows);
        lookBack(store.getOperand(), rows);
      }
    }
  return rows.multiplied && rows.apart;
}

View viewIn(plan::BufferOp buffer, ArrayRef<int64_t> shape) {
  ArrayRef<int64_t> whole = cast<RankedTensorType>(buffer.getType()).getShape();
  View view = View::dense(buffer.getSymNameAttr(), shape);
  if (whole.size() == shape.size() && !shape.empty() &&
      whole.drop_back() == shape.drop_back() && whole.back() > shape.back())
    view.strides = llvm::to_vector(layout::denseStrides(whole));
  return view;
}

} // namespace merak::lowering
