// 16 bits for the bulk of the computation, f32 where digits matter.
//
// --precision=bf16 and fp16 take all of the model; without them it says what is
// to be in bf16 (a bf16 export, casts of an autocast region). The rules are the
// same for all: an op decides by its kind (PrecisionRules.h) and by the types
// its operands have by then. With f16 the loss is scaled (Differentiate.cpp).
// Parameters and constants have no say: they are converted to what the other
// operands are. Parameters become f32 (the optimizer's copy), and so do the
// statistics of normalizations and their scales. f64 is computed in f32, and so
// is f16 that nobody asked for, which a warning says.
#include "dialects/Train/Builders.h"
#include "dialects/Train/FirstStates.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Pass/Pass.h"
#include "passes/Graph/HostTensor.h"
#include "passes/Graph/Passes.h"
#include "passes/Graph/PrecisionRules.h"

#include <cmath>
#include <limits>
#include <map>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_LOWERPRECISION
#include "passes/Graph/Passes.h.inc"
} // namespace merak

namespace {

using Kind = PrecisionKind;

Type elementOf(Value value) { return getElementTypeOrSelf(value.getType()); }
bool isFloat(Value value) { return isa<FloatType>(elementOf(value)); }

// The same values in another type; what is finite stays finite.
ElementsAttr withElement(ElementsAttr value, Type element) {
  std::optional<HostTensor> host = toHost(cast<DenseElementsAttr>(value));
  if (!host)
    return {};
  const double limit = std::numeric_limits<float>::max();
  for (double &real : host->reals)
    real = std::isfinite(real) ? std::clamp(real, -limit, limit) : real;
  host->type = host->type.clone(element);
  return toAttribute(*host);
}

class Lowering {
public:
  // `low`: of all of the model; null: bf16 where the model says so.
  Lowering(func::FuncOp model, Type low, bool train)
      : model(model), module(model->getParentOfType<ModuleOp>()),
        low(low ? low : BFloat16Type::get(model.getContext())),
        full(Float32Type::get(model.getContext())), requested(low),
        train(train) {}

  LogicalResult run() {
    Block &body = model.getBody().front();
    SmallVector<Operation *> ops;
    for (BlockArgument argument : body.getArguments())
      said[argument] = elementOf(argument);
    for (Operation &op : body.without_terminator()) {
      ops.push_back(&op);
      for (Value result : op.getResults())
        said[result] = elementOf(result);
      if (auto cast = dyn_cast<CastOp>(op);
          cast && elementOf(cast.getX()) == elementOf(cast.getY()))
        copies.insert(cast);
    }
    if (!requested && llvm::all_of(said, [&](auto &entry) {
          return !isa<FloatType>(entry.second) || entry.second == full;
        }))
      return success();
    for (Value result : body.getTerminator()->getOperands())
      outputs.push_back(result);
    for (Value result : outputs)
      outputTypes.push_back(elementOf(result));
    if (failed(retypeParameters()))
      return failure();
    findWithoutDouble(ops);
    for (Operation *op : ops)
      visit(op);
    finishOutputs(body.getTerminator());
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
      if (isa<CastOp, ConstantOp, ReadOp>(op) && op.use_empty())
        op.erase();
    splitReads(body);
    warn();
    return success();
  }
  int64_t lowered = 0;
  Type lowType() const { return low; }

private:
  //===--------------------------------------------------------------------===//
  // Parameters
  //===--------------------------------------------------------------------===//

  // Bytes of a file are converted when they are read.
  Attribute asFull(Attribute values) {
    return isa<SourceAttr>(values)
               ? values
               : withElement(cast<ElementsAttr>(values), full);
  }

  // Parameters of other types are kept and updated in f32; their values are
  // converted when they are read.
  LogicalResult retypeParameters() {
    for (auto parameter : module.getOps<ParameterOp>()) {
      auto type = cast<RankedTensorType>(parameter.getType());
      Type element = type.getElementType();
      // What no optimizer updates may have more digits.
      bool isTable = parameter.getValueAttr() && !parameter.getTrainable();
      if (!isa<FloatType>(element) || element == full ||
          (element.isF64() && !parameter.getTrainable()))
        continue;
      parameter.setType(type.clone(full));
      retyped[parameter.getSymNameAttr()] = element;
      if (!isTable)
        others[element].push_back(parameter.getSymName().str());
      if (!parameter.getValueAttr())
        parameter->setAttr(kSourceTypeAttr, TypeAttr::get(element));
      if (ElementsAttr value = parameter.getValueAttr()) {
        ElementsAttr made = withElement(value, full);
        if (!made)
          return parameter.emitError("expected values that can be read as f32");
        parameter.setValueAttr(made);
      }
      if (auto states = parameter->getAttrOfType<DictionaryAttr>(kStatesAttr)) {
        NamedAttrList list;
        for (NamedAttribute state : states)
          list.append(state.getName(), asFull(state.getValue()));
        parameter->setAttr(kStatesAttr, list.getDictionary(model.getContext()));
      }
    }
    return success();
  }

  // Values of f64 that become f32: what trained parameters of f64 reach, and
  // what no kernel computes in f64. Other values (positions, exact sums) stay.
  void findWithoutDouble(ArrayRef<Operation *> ops) {
    for (Operation *op : ops) {
      bool reached = llvm::any_of(op->getOperands(), [&](Value v) {
        return withoutDouble.contains(v);
      });
      if (auto read = dyn_cast<ReadOp>(op))
        reached = retyped.lookup(read.getParameterAttr().getAttr()) &&
                  said[read.getResult()].isF64();
      const bool computes =
          llvm::any_of(op->getResults(), [&](Value v) { return isFloat(v); });
      if (!reached && computes && op->hasTrait<LacksDouble>() &&
          saidBy(op).isF64()) {
        reached = true;
        inexact.push_back(nameOf(op));
      }
      for (Value result : op->getResults())
        if (reached && isFloat(result))
          withoutDouble.insert(result);
    }
  }

  //===--------------------------------------------------------------------===//
  // Conversions
  //===--------------------------------------------------------------------===//

  // Parameters, constants, and what is made of them alone.
  bool isWeak(Value value) { return weak.contains(value); }

  bool isOfWeak(Operation *op) {
    return llvm::all_of(op->getOperands(), [&](Value v) { return isWeak(v); });
  }

  // A value in 16 bits behind conversions to wider types.
  Value narrowOf(Value value) {
    auto cast = value.getDefiningOp<CastOp>();
    return cast && elementOf(cast.getX()) == low ? cast.getX() : value;
  }

  void convert(OpOperand &operand, Type element) {
    Value value = operand.get();
    if (element == low)
      value = narrowOf(value);
    if (!isFloat(value) || elementOf(value) == element)
      return operand.set(value);
    Value &made = converted[{value, element}];
    if (!made) {
      OpBuilder b(operand.getOwner());
      auto constant = value.getDefiningOp<ConstantOp>();
      auto type = cast<RankedTensorType>(value.getType()).clone(element);
      if (constant && elementOf(value).isF64() && element == full)
        made = ConstantOp::create(b, value.getLoc(), type,
                                  withElement(constant.getValue(), element));
      else
        made = CastOp::create(b, value.getLoc(), type, value);
      const Type before = said.lookup(value);
      said[made] = before;
    }
    operand.set(made);
  }

  void setElement(Value result, Type element) {
    result.setType(cast<RankedTensorType>(result.getType()).clone(element));
    lowered += element == low;
  }

  //===--------------------------------------------------------------------===//
  // Operations
  //===--------------------------------------------------------------------===//

  static std::string nameOf(Operation *op) {
    auto name = dyn_cast<NameLoc>(op->getLoc());
    return name ? name.getName().str() : op->getName().getStringRef().str();
  }

  // What the model computes it in; null: not in floating point.
  Type saidBy(Operation *op) {
    for (ValueRange values :
         {ValueRange(op->getResults()), ValueRange(op->getOperands())})
      for (Value value : values)
        if (isa<FloatType>(said[value]))
          return said[value];
    return {};
  }

  // In f32 by the conversion of an ONNX node alone: it reads 16 bits and its
  // result is rounded to them wherever it is used.
  bool onlyRounds(Operation *op) {
    bool anyLow = false;
    for (OpOperand &operand : op->getOpOperands()) {
      Value value = operand.get();
      if (!isFloat(value) || keepsPrecision(operand))
        continue;
      bool isLow = elementOf(narrowOf(value)) == low;
      if (!isLow && !(isWeak(value) && said[value] == low))
        return false;
      anyLow |= isLow;
    }
    return anyLow && !op->getResult(0).use_empty() &&
           llvm::all_of(op->getResult(0).getUsers(), [&](Operation *user) {
             return isa<CastOp>(user) && said[user->getResult(0)] == low;
           });
  }

  Kind kindOf(Operation *op, Type type) {
    Kind kind = precisionKindOf(op);
    if (type == low || requested || kind == Kind::Any || kind == Kind::Full)
      return kind;
    return type == full && onlyRounds(op) ? kind : Kind::Full;
  }

  void visit(Operation *op) {
    if (auto constant = dyn_cast<ConstantOp>(op))
      return visitConstant(constant);
    if (auto read = dyn_cast<ReadOp>(op)) {
      if (retyped.lookup(read.getParameterAttr().getAttr()))
        setElement(read.getResult(), full);
      weak.insert(read.getResult());
      return;
    }
    Type type = saidBy(op);
    if (!type) {
      if (precisionKindOf(op) == Kind::Follow && isOfWeak(op))
        weak.insert(op->result_begin(), op->result_end());
      return;
    }
    if (auto cast = dyn_cast<CastOp>(op); cast && isFloat(cast.getY()))
      return visitCast(cast);
    if (type.isF64() && llvm::none_of(op->getResults(), [&](Value result) {
          return withoutDouble.contains(result);
        }))
      if (isFloat(op->getResult(0)) ||
          llvm::all_of(op->getOperands(), [&](Value v) {
            return !isFloat(v) || elementOf(v) == type;
          }))
        return;
    compute(op, kindOf(op, type));
  }

  // A mask's -1e9 would be infinite in f16, and 0 times it not a number: such a
  // constant has a say.
  bool isInRange(ConstantOp op) const {
    if (!low.isF16() || !isFloat(op.getResult()))
      return true;
    constexpr double kMost = 65504;
    auto fits = [](const APFloat &value) {
      return !value.isFinite() || std::abs(value.convertToDouble()) <= kMost;
    };
    auto values = cast<DenseElementsAttr>(op.getValue());
    return values.isSplat() ? fits(values.getSplatValue<APFloat>())
                            : llvm::all_of(values.getValues<APFloat>(), fits);
  }

  void visitConstant(ConstantOp op) {
    if (isInRange(op))
      weak.insert(op.getResult());
    Type type = elementOf(op.getResult());
    if (!isa<FloatType>(type) || type == full || type.isF64())
      return;
    ElementsAttr value = withElement(op.getValue(), full);
    op.setValueAttr(value);
    op.getResult().setType(cast<RankedTensorType>(value.getType()));
  }

  // A conversion that the model asks for is a rounding. The other type of 16
  // bits is the exception where gradients would pass: those of f16 are below
  // its range, and who asks for f16 means it for all.
  void visitCast(CastOp op) {
    Value x = op.getX(), y = op.getY();
    Type target = said[y];
    if (isHalf(target) && target != low && train) {
      target = full;
      halves.push_back(nameOf(op));
    }
    if (target.isF64() && withoutDouble.contains(y))
      target = full;
    if (!isFloat(x)) {
      setElement(y, target.isF64() ? target : full);
      return;
    }
    if (copies.contains(op)) {
      setElement(y, elementOf(x));
      return;
    }
    if (requested && target == full && elementOf(x) == low && said[x] != low)
      target = low;
    if (target == low)
      x = narrowOf(x);
    if (elementOf(x) == target) {
      y.replaceAllUsesWith(x);
      return;
    }
    if (auto constant = x.getDefiningOp<ConstantOp>();
        constant && target == full) {
      OpOperand &operand = op->getOpOperand(0);
      convert(operand, full);
      weak.insert(operand.get());
      y.replaceAllUsesWith(operand.get());
      return;
    }
    op.getXMutable().assign(x);
    setElement(y, target);
  }

  void compute(Operation *op, Kind kind) {
    bool anyLow = false, anyStrong = false, allWeak = true;
    for (OpOperand &operand : op->getOpOperands())
      if (isFloat(operand.get()) && !keepsPrecision(operand)) {
        bool isLow = elementOf(narrowOf(operand.get())) == low;
        anyLow |= isLow;
        anyStrong |= !isLow && !isWeak(operand.get());
        allWeak &= isWeak(operand.get());
      }
    const bool follows = kind == Kind::Follow;
    if (kind == Kind::Any)
      for (OpOperand &operand : op->getOpOperands())
        operand.set(narrowOf(operand.get()));
    if (follows && allWeak && isOfWeak(op))
      weak.insert(op->result_begin(), op->result_end());
    if (follows)
      kind = anyLow && !anyStrong ? Kind::Low : Kind::Full;
    for (OpOperand &operand : op->getOpOperands())
      if (keepsPrecision(operand))
        convert(operand, keptType(operand));
      else
        convertFor(operand, kind);
    for (Value result : op->getResults())
      if (isFloat(result))
        setElement(result, full);
    if (!isFloat(op->getResult(0)))
      return;
    if (auto gather = dyn_cast<GatherOp>(op))
      setRows(gather, kind);
    else if (kind == Kind::Low)
      setElement(op->getResult(0), low);
  }

  void convertFor(OpOperand &operand, Kind kind) {
    if (kind == Kind::Low)
      convert(operand, low);
    else if (kind == Kind::Full)
      convert(operand, full);
    else if (elementOf(operand.get()) != low)
      convert(operand, full);
  }

  // Masks and activations in 16 bits stay what they are.
  Type keptType(OpOperand &operand) {
    const bool stays = isa<AttentionOp, GatherOp>(operand.getOwner()) &&
                       elementOf(operand.get()) == low;
    return stays ? low : full;
  }

  // Rows of an activation have its type; those of a parameter are read in f32
  // and converted once.
  void setRows(GatherOp op, Kind kind) {
    Value table = op.getTable(), result = op.getY();
    setElement(result, elementOf(table));
    if (kind != Kind::Low || !isWeak(table))
      return;
    OpBuilder b(op->getContext());
    b.setInsertionPointAfter(op);
    auto type = cast<RankedTensorType>(result.getType()).clone(low);
    auto cast = CastOp::create(b, op->getLoc(), type, result);
    said[cast.getY()] = low;
    result.replaceAllUsesExcept(cast.getY(), cast);
    ++lowered;
  }

  //===--------------------------------------------------------------------===//
  // Results and what is told
  //===--------------------------------------------------------------------===//

  // The loss is f32, other outputs have the model's types.
  void finishOutputs(Operation *end) {
    for (auto [result, before, type] :
         llvm::zip(end->getOpOperands(), outputs, outputTypes)) {
      if (isa<FloatType>(type))
        convert(result, train ? full : type);
      Operation *maker = result.get().getDefiningOp();
      const bool isComputed = maker && !isa<ConstantOp, ReadOp>(maker) &&
                              !maker->hasTrait<ViewLike>();
      if (isComputed || result.get() == before)
        continue;
      OpBuilder b(end); // a stage must have something to give
      result.set(CastOp::create(b, end->getLoc(), result.get().getType(),
                                result.get()));
    }
    model.setFunctionType(FunctionType::get(
        model.getContext(), model.getArgumentTypes(), end->getOperandTypes()));
  }

  // Every use of a parameter has its own read, and so has every use of a
  // converted one: stages and layouts take each by itself.
  void splitReads(Block &body) {
    SmallVector<CastOp> casts;
    SmallVector<ReadOp> reads;
    for (Operation &op : body)
      if (auto cast = dyn_cast<CastOp>(op);
          cast && cast.getX().getDefiningOp<ReadOp>())
        casts.push_back(cast);
    for (CastOp cast : casts)
      splitUses(cast);
    for (Operation &op : body)
      if (auto read = dyn_cast<ReadOp>(op))
        reads.push_back(read);
    for (ReadOp read : reads)
      splitUses(read);
  }
  static void splitUses(Operation *op) {
    if (op->hasOneUse())
      return;
    for (OpOperand &use : llvm::make_early_inc_range(op->getUses())) {
      OpBuilder b(use.getOwner());
      use.set(b.clone(*op)->getResult(0));
    }
    op->erase();
  }

  // "'a', 'b' and 3 more"
  static std::string list(const std::vector<std::string> &names) {
    constexpr size_t kShown = 2;
    std::string text;
    for (size_t i = 0; i < std::min(kShown, names.size()); ++i)
      text += (i ? ", '" : "'") + names[i] + "'";
    if (names.size() > kShown)
      text += " and " + std::to_string(names.size() - kShown) + " more";
    return text;
  }

  void warn() {
    Builder b(model.getContext());
    const std::string as = !requested ? "in f32"
                           : low.isF16()
                               ? "in f16 and f32, as --precision says"
                               : "in bf16 and f32, as --precision says";
    const std::string other = low.isF16() ? "bf16" : "f16";
    const std::string kept =
        "; parameters, checkpoints and states are f32, merak-plan export-onnx "
        "writes ";
    if (auto names = others.lookup(b.getF64Type()); !names.empty())
      module.emitWarning() << "the model is in f64 (" << list(names)
                           << ") and is computed " << as
                           << (requested ? "" : ", about 7 digits") << kept
                           << "f64 again";
    if (auto names = others.lookup(b.getF16Type());
        !names.empty() && !low.isF16())
      module.emitWarning()
          << "the model is in f16 (" << list(names) << ") and is computed "
          << as << kept << "f16 again"
          << (requested ? "" : "; --precision=fp16 has products in 16 bits");
    else if (!halves.empty())
      module.emitWarning() << "conversions to " << other << " (" << list(halves)
                           << ") round nothing: what follows is computed "
                           << as;
    if (!inexact.empty())
      module.emitWarning() << "f64 is computed in f32 where no kernel has f64: "
                           << list(inexact);
  }

  func::FuncOp model;
  ModuleOp module;
  Type low, full;
  bool requested, train;
  llvm::DenseMap<Value, Type> said;   // the model's own element types
  llvm::DenseSet<Operation *> copies; // casts to the type there is
  SmallVector<Value> outputs;         // before
  SmallVector<Type> outputTypes;
  llvm::DenseSet<Value> weak, withoutDouble;
  llvm::DenseMap<std::pair<Value, Type>, Value> converted;
  llvm::DenseMap<StringAttr, Type> retyped; // parameters and their first types
  llvm::MapVector<Type, std::vector<std::string>> others;
  std::vector<std::string> inexact, halves; // names of nodes
};

struct LowerPrecisionPass
    : merak::impl::LowerPrecisionBase<LowerPrecisionPass> {
  using LowerPrecisionBase::LowerPrecisionBase;

  void runOnOperation() override {
    auto model = getOperation().lookupSymbol<func::FuncOp>("model");
    if (!model) {
      getOperation().emitError("expected a function @model");
      return signalPassFailure();
    }
    MLIRContext *context = &getContext();
    const Type all = low == "bf16"  ? Type(BFloat16Type::get(context))
                     : low == "f16" ? Type(Float16Type::get(context))
                                    : Type();
    if (!all && low != "model") {
      getOperation().emitError("expected low=bf16, f16 or model, found '")
          << low << "'";
      return signalPassFailure();
    }
    Lowering lowering(model, all, train);
    if (failed(lowering.run()))
      return signalPassFailure();
    valuesLowered += lowering.lowered;
    if (lowering.lowered)
      getOperation()->setAttr(
          kConfigAttr,
          ConfigAttr::of(getOperation()).withLowPrecision(lowering.lowType()));
  }
};

} // namespace
