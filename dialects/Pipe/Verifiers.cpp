// Verifiers of stages, actions and what they name. What holds only once a stage
// is complete, such as that each activation is stored, is for verify-stages.
#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/PipeDialect.h"

#include <set>

using namespace mlir;
using namespace merak;
using namespace merak::pipe;

//===----------------------------------------------------------------------===//
// Stages, values, actions
//===----------------------------------------------------------------------===//

LogicalResult StageOp::verify() {
  std::set<ActionId> seen;
  for (Operation &op : getBody().front()) {
    auto action = dyn_cast<ActionOp>(op);
    if (!action && !isa<ValueOp>(op))
      return emitOpError("expected values and actions, found '")
             << op.getName() << "'";
    if (!action)
      continue;
    ActionId id{action.getKind(), static_cast<int>(action.getChunk())};
    if (!seen.insert(id).second)
      return emitOpError("expected one action ") << str(id) << ", found two";
  }
  return success();
}

// Whether values of the kind are found by the name of a tensor.
static bool needsTensor(ValueKind kind) {
  return kind == ValueKind::input || kind == ValueKind::parameter ||
         kind == ValueKind::constant || kind == ValueKind::state;
}

LogicalResult ValueOp::verify() {
  if (needsTensor(getKind()) && !getTensor())
    return emitOpError("expected the name of a tensor for a value of kind ")
           << stringifyValueKind(getKind());
  if (getKind() == ValueKind::carried &&
      !isa_and_nonnull<IntegerAttr, FloatAttr>((*this)->getAttr(kInitialAttr)))
    return emitOpError("expected 'pipe.initial' for a carried value");
  return dist::verifyLayout(*this, getType(), getLayoutAttr());
}

LogicalResult ActionOp::verify() {
  if (isOncePerStep(getKind()) && getChunk() != 0)
    return emitOpError("expected no chunk of action ")
           << letter(getKind()) << ", which is for all parts of its stage, got "
           << getChunk();
  return success();
}

//===----------------------------------------------------------------------===//
// Named values
//===----------------------------------------------------------------------===//

// The value of the stage that an op of an action names.
static FailureOr<ValueOp> findValue(Operation *op, FlatSymbolRefAttr name,
                                    SymbolTableCollection &symbols) {
  if (auto value = symbols.lookupNearestSymbolFrom<ValueOp>(op, name))
    return value;
  return op->emitOpError("expected a value of the stage, found ") << name;
}
static FailureOr<ValueOp> findValue(Operation *op, FlatSymbolRefAttr name,
                                    Type type, SymbolTableCollection &symbols) {
  FailureOr<ValueOp> found = findValue(op, name, symbols);
  if (failed(found))
    return failure();
  ValueOp value = *found;
  if (value.getType() != type)
    return op->emitOpError("expected the type of ")
           << name << ", " << value.getType() << ", found " << type;
  return value;
}

LogicalResult LoadOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return findValue(*this, getValueAttr(), getType(), symbols);
}

LogicalResult StoreOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<ValueOp> value =
      findValue(*this, getValueAttr(), getOperand().getType(), symbols);
  if (failed(value))
    return failure();
  ValueKind kind = value->getKind();
  if (kind == ValueKind::input)
    return emitOpError("expected a value that can be written, found input ")
           << getValueAttr();
  if (getAccumulate() && kind != ValueKind::gradient &&
      kind != ValueKind::step && kind != ValueKind::carried)
    return emitOpError(
               "expected a gradient, step or carried value to add to, found ")
           << stringifyValueKind(kind) << " " << getValueAttr();
  return success();
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

LogicalResult pipe::UpdateOp::verify() {
  const size_t states = getOptimizer().getValue().states().size();
  if (getStates().size() != states)
    return emitOpError("expected as many states as ")
           << getOptimizer() << " has, which are " << states << ", found "
           << getStates().size();
  if (getClip() && cast<RankedTensorType>(getClip().getType()).getRank() != 0)
    return emitOpError("expected a scalar to clip by, found ")
           << getClip().getType();
  return success();
}

// A value of which a row-sparse gradient holds rows.
static FailureOr<ValueOp> findTable(pipe::UpdateOp op, FlatSymbolRefAttr name,
                                    SymbolTableCollection &symbols) {
  FailureOr<ValueOp> value = findValue(op, name, symbols);
  if (failed(value))
    return failure();
  auto rows = cast<RankedTensorType>(op.getGradient().getType()),
       ids = cast<RankedTensorType>(op.getIds().getType()),
       table = cast<RankedTensorType>(value->getType());
  SmallVector<int64_t> shape(ids.getShape());
  llvm::append_range(shape, table.getShape().drop_front(
                                std::min<int64_t>(1, table.getRank())));
  if (table.getRank() == 0 || rows != table.clone(shape))
    return op.emitOpError("expected rows of ")
           << name << ", " << table << ", for each of the ids, " << ids
           << ", found " << rows;
  return value;
}

static LogicalResult verifyUpdated(pipe::UpdateOp op, FlatSymbolRefAttr name,
                                   ValueKind kind,
                                   SymbolTableCollection &symbols) {
  FailureOr<ValueOp> value =
      op.getIds() ? findTable(op, name, symbols)
                  : findValue(op, name, op.getGradient().getType(), symbols);
  if (failed(value))
    return failure();
  if (value->getKind() != kind)
    return op.emitOpError("expected a value of kind ")
           << stringifyValueKind(kind) << ", found "
           << stringifyValueKind(value->getKind()) << " " << name;
  return success();
}

LogicalResult pipe::UpdateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (failed(verifyUpdated(*this, getParameterAttr(), ValueKind::parameter,
                           symbols)))
    return failure();
  Type parameter = findValue(*this, getParameterAttr(), symbols)->getType();
  for (auto state : getStates().getAsRange<FlatSymbolRefAttr>())
    if (failed(verifyUpdated(*this, state, ValueKind::state, symbols)) ||
        failed(findValue(*this, state, parameter, symbols)))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Transfers
//===----------------------------------------------------------------------===//

static FailureOr<ValueOp> findEnd(TransferOp op, SymbolRefAttr path,
                                  SymbolTableCollection &symbols) {
  if (auto value = symbols.lookupNearestSymbolFrom<ValueOp>(op, path))
    return value;
  return op.emitOpError("expected a value of a stage, found ") << path;
}

static bool hasAction(StageOp stage, ActionId id) {
  return llvm::any_of(stage.getOps<ActionOp>(), [&](ActionOp action) {
    return action.getKind() == id.action &&
           static_cast<int>(action.getChunk()) == id.chunk;
  });
}

// Between stages on meshes of their own local types differ, and the layouts say
// how. The summands of a sum are the devices of one mesh.
static LogicalResult verifyBetweenMeshes(TransferOp op, ValueOp source,
                                         ValueOp target) {
  auto elementOf = [](ValueOp value) {
    return cast<RankedTensorType>(value.getType()).getElementType();
  };
  auto layoutOf = [](ValueOp value) {
    return value.getLayout() ? value.getLayout()->getLayout()
                             : layout::Layout();
  };
  if (elementOf(source) != elementOf(target) ||
      layoutOf(source).globalShape() != layoutOf(target).globalShape())
    return op.emitOpError(
               "expected values of one element type and shape, found ")
           << source.getType() << " and " << target.getType();
  for (const std::string &axis : layoutOf(source).partial)
    if (axis != kMicrobatchAxis &&
        dist::meshOf(source->getParentOp()).getSize(axis) > 1)
      return op.emitOpError("sends a summand over '")
             << axis << "' to another mesh, " << op.getSource();
  return success();
}

LogicalResult TransferOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<ValueOp> source = findEnd(*this, getSource(), symbols);
  FailureOr<ValueOp> target = findEnd(*this, getTarget(), symbols);
  if (failed(source) || failed(target))
    return failure();
  auto from = cast<StageOp>((*source)->getParentOp());
  if (from->hasAttr(dist::kDevicesAttr)) {
    if (failed(verifyBetweenMeshes(*this, *source, *target)))
      return failure();
  } else if (source->getType() != target->getType())
    return emitOpError("expected values of one type, found ")
           << source->getType() << " and " << target->getType();
  if (from == (*target)->getParentOp())
    return emitOpError("expected values of two stages, found ")
           << getSource() << " and " << getTarget();
  ActionId id{getKind(), static_cast<int>(getChunk())};
  if (!hasAction(from, id))
    return emitOpError("expected an action of stage '")
           << from.getSymName() << "', found " << str(id);
  return success();
}
