// Verifiers of programs, of what they hold and of instructions: what an op says
// of itself. Streams, buffers and events that it names are for verify-plan.
#include "dialects/Plan/PlanDialect.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak;
using namespace merak::plan;

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

using EmitError = llvm::function_ref<InFlightDiagnostic()>;

static bool isNegative(int64_t number) { return number < 0; }

LogicalResult ViewAttr::verify(EmitError emitError, FlatSymbolRefAttr buffer,
                               int64_t offset, ArrayRef<int64_t> shape,
                               ArrayRef<int64_t> strides) {
  if (strides.size() != shape.size())
    return emitError() << "expected one stride per dimension, got "
                       << strides.size() << " for " << shape.size();
  if (isNegative(offset) || llvm::any_of(shape, isNegative) ||
      llvm::any_of(strides, isNegative))
    return emitError() << "expected no negative offset, size or stride in the "
                          "view of "
                       << buffer;
  return success();
}

LogicalResult ScalarAttr::verify(EmitError emitError, Attribute value,
                                 int64_t scale) {
  if (!isa<IntegerAttr, FloatAttr, StringAttr>(value))
    return emitError() << "expected an integer, a float or a name as scalar, "
                          "found "
                       << value;
  if (scale && !isa<StringAttr>(value))
    return emitError() << "expected a mesh axis before the scale " << scale
                       << ", found " << value;
  return success();
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

static LogicalResult verifyGroup(ProgramOp op, ArrayAttr group) {
  llvm::StringSet<> seen;
  for (auto axis : group.getAsRange<StringAttr>())
    if (!seen.insert(axis.getValue()).second)
      return op.emitOpError("expected each axis of a group once, found ")
             << group;
  if (group.empty())
    return op.emitOpError("expected at least one axis of a group");
  return success();
}

LogicalResult ProgramOp::verify() {
  if (getStreams().empty())
    return emitOpError("expected at least one stream");
  for (auto group : getGroups().getAsRange<ArrayAttr>())
    if (failed(verifyGroup(*this, group)))
      return failure();
  for (Operation &op : getBody().front())
    if (!isa<BufferOp, ProcedureOp, CallOp, OutputOp>(op))
      return emitOpError("expected buffers, procedures, calls and outputs, "
                         "found '")
             << op.getName() << "'";
  return success();
}

static LogicalResult verifySlots(BufferOp op) {
  auto slots = static_cast<int64_t>(op.getSlots());
  auto stride = static_cast<int64_t>(op.getSlotStride());
  if (slots == 1)
    return success();
  if (op.isTransient())
    return op.emitOpError("is live in one procedure only, but has ")
           << slots << " slots";
  if (static_cast<int64_t>(op.getSlotClass()) < 0)
    return op.emitOpError("expected a class of its ") << slots << " slots";
  if (stride && stride < op.getBytes())
    return op.emitOpError("expected slots at least ")
           << op.getBytes() << " bytes apart, found " << stride;
  return success();
}

LogicalResult BufferOp::verify() {
  if (failed(verifySlots(*this)))
    return failure();
  return dist::verifyLayout(*this, cast<ShapedType>(getType()),
                            getLayoutAttr());
}

LogicalResult ProcedureOp::verify() {
  for (Operation &op : getBody().front())
    if (!isa<InstructionOpInterface>(op))
      return emitOpError("expected instructions, found '")
             << op.getName() << "'";
  return success();
}

LogicalResult CallOp::verify() {
  if (getWaits().size() % 3)
    return emitOpError("expected triples (stream, on, call) as waits, got ")
           << getWaits().size() << " numbers";
  if (llvm::any_of(getWaits(), isNegative) ||
      llvm::any_of(getSlots(), isNegative))
    return emitOpError("expected slots and waits that are not negative, found ")
           << getSlotsAttr() << " and " << getWaitsAttr();
  return success();
}

LogicalResult OutputOp::verify() {
  if (!getLayout())
    return success();
  std::vector<int64_t> shape = getLayout()->getLayout().globalShape();
  if (getShape() != ArrayRef<int64_t>(shape))
    return emitOpError("expected the shape of ")
           << getLayoutAttr() << ", found " << getShapeAttr();
  return success();
}

//===----------------------------------------------------------------------===//
// Instructions
//===----------------------------------------------------------------------===//

// How many views an instruction reads or writes.
namespace {
struct Bounds {
  size_t least = 0, most = SIZE_MAX;
  bool has(ArrayAttr views) const {
    return views.size() >= least && views.size() <= most;
  }
};
constexpr Bounds kNone{0, 0}, kAny, kSome{1}, kOne{1, 1};
} // namespace

static LogicalResult verifyOperands(InstructionOpInterface op, Bounds inputs,
                                    Bounds outputs, StringRef wanted) {
  if (inputs.has(op.getInputs()) && outputs.has(op.getOutputs()))
    return success();
  return op->emitOpError("expected ")
         << wanted << ", got " << op.getInputs().size() << " inputs and "
         << op.getOutputs().size() << " outputs";
}

static LogicalResult verifyNamed(Operation *op, StringRef what,
                                 StringRef name) {
  if (name.empty())
    return op->emitOpError("expected the name of ") << what;
  return success();
}

LogicalResult KernelOp::verify() {
  return verifyOperands(*this, kAny, kSome, "at least one output");
}

LogicalResult LibraryOp::verify() {
  for (NamedAttribute attr : getAttrs())
    if (!isa<StringAttr>(attr.getValue()))
      return emitOpError("expected a string as attribute ")
             << attr.getName() << ", found " << attr.getValue();
  if (failed(verifyNamed(*this, "a kernel", getOp())))
    return failure();
  return verifyOperands(*this, kAny, kSome, "at least one output");
}

LogicalResult RecordOp::verify() {
  return verifyOperands(*this, kNone, kNone, "no operands");
}
LogicalResult WaitOp::verify() {
  return verifyOperands(*this, kNone, kNone, "no operands");
}

LogicalResult LoadInputOp::verify() {
  if (failed(verifyNamed(*this, "a model input", getInput())))
    return failure();
  return verifyOperands(*this, kNone, kOne, "one output and no input");
}

//===----------------------------------------------------------------------===//
// Transfers
//===----------------------------------------------------------------------===//

// The channel and the coordinates of the other end.
template <typename OpTy> static LogicalResult verifyEnd(OpTy op) {
  if (failed(verifyNamed(op, "a channel", op.getChannel())))
    return failure();
  for (NamedAttribute coordinate : op.getPeer()) {
    auto number = dyn_cast<IntegerAttr>(coordinate.getValue());
    if (!number || !number.getType().isInteger(64) || number.getInt() < 0)
      return op.emitOpError("expected a coordinate of the peer on ")
             << coordinate.getName() << ", found " << coordinate.getValue();
  }
  return success();
}

LogicalResult SendOp::verify() {
  if (failed(verifyEnd(*this)))
    return failure();
  return verifyOperands(*this, kSome, kNone, "inputs and no output");
}
LogicalResult RecvOp::verify() {
  if (failed(verifyEnd(*this)))
    return failure();
  return verifyOperands(*this, kNone, kSome, "outputs and no input");
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

static LogicalResult verifyReduction(CollectiveOp op) {
  bool reduces = op.getOp() == Collective::all_reduce ||
                 op.getOp() == Collective::reduce_scatter;
  if (reduces && !op.getReduction())
    return op.emitOpError("expected a reduction of ")
           << stringifyCollective(op.getOp());
  if (!reduces && op.getReduction())
    return op.emitOpError("expected no reduction of ")
           << stringifyCollective(op.getOp()) << ", got "
           << stringifyReduction(*op.getReduction());
  return success();
}

// The dimensions that a collective divides among the members and that it makes
// of all their parts; -1: none.
static std::pair<int64_t, int64_t> dimensionsOf(CollectiveOp op) {
  auto dim = static_cast<int64_t>(op.getDim());
  auto dim2 = static_cast<int64_t>(op.getDim2());
  switch (op.getOp()) {
  case Collective::all_gather:
    return {-1, dim};
  case Collective::reduce_scatter:
    return {dim, -1};
  case Collective::all_to_all:
    return {dim, dim2};
  default:
    return {-1, -1};
  }
}

// A dimension that means nothing to the collective is not given.
static LogicalResult verifyDimensions(CollectiveOp op) {
  auto [divided, joined] = dimensionsOf(op);
  bool hasDim = divided >= 0 || joined >= 0,
       hasDim2 = op.getOp() == Collective::all_to_all;
  if ((op.getDim() && !hasDim) || (op.getDim2() && !hasDim2))
    return op.emitOpError("expected no such dimension of ")
           << stringifyCollective(op.getOp()) << ", got dim " << op.getDim()
           << " and dim2 " << op.getDim2();
  return success();
}

// How often a part goes into a whole; 0: not at all.
static int64_t ratio(int64_t whole, int64_t part) {
  return part > 0 && whole % part == 0 ? whole / part : 0;
}

// Whether some number of members makes `out` of `in`. [8, 4] to [4, 8], dim 0
// divided and dim 1 joined, are 2.
static bool fits(ArrayRef<int64_t> in, ArrayRef<int64_t> out, int64_t divided,
                 int64_t joined) {
  auto rank = static_cast<int64_t>(in.size());
  if (in.size() != out.size() || divided >= rank || joined >= rank)
    return false;
  int64_t members = divided >= 0  ? ratio(in[divided], out[divided])
                    : joined >= 0 ? ratio(out[joined], in[joined])
                                  : 1;
  SmallVector<int64_t> made(in);
  if (divided >= 0)
    made[divided] = out[divided];
  if (joined >= 0)
    made[joined] *= members;
  return members > 0 && ArrayRef<int64_t>(made) == out;
}

static LogicalResult verifyShapes(CollectiveOp op) {
  auto [divided, joined] = dimensionsOf(op);
  for (auto [in, out] : llvm::zip(op.getInputs().getAsRange<ViewAttr>(),
                                  op.getOutputs().getAsRange<ViewAttr>()))
    if (!fits(in.getShape(), out.getShape(), divided, joined))
      return op.emitOpError("expected the shape that ")
             << stringifyCollective(op.getOp()) << " makes of ["
             << in.getShape() << "], got [" << out.getShape() << "]";
  return success();
}

LogicalResult CollectiveOp::verify() {
  if (failed(verifyReduction(*this)) || failed(verifyDimensions(*this)))
    return failure();
  size_t count = getInputs().size();
  if (failed(verifyOperands(*this, kSome, {count, count},
                            "as many outputs as inputs, at least one")))
    return failure();
  return verifyShapes(*this);
}
