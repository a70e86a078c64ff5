#include "dialects/Train/Builders.h"
#include "dialects/Train/NameAttribute.h"
#include "dialects/Train/SparseAttributes.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Graph/HostTensor.h"
#include "passes/Graph/Passes.h"
#include "runtime/report/TouchedRows.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Pass/Pass.h"
#include "llvm/ADT/StringMap.h"
#include <fmt/format.h>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_SPARSEUPDATES
#include "passes/Graph/Passes.h.inc"
} // namespace merak

namespace {

ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

// What a table's gradient is made of: lookups' slices, in the order of use.
struct TableGradient {
  SmallVector<ScatterAddOp> lookups;
  // Sums and conversions between them and the update, outermost first.
  SmallVector<Operation *> around;
  int64_t ids = 0;
  std::string dense; // why the table keeps its gradient; empty: it need not

  explicit TableGradient(UpdateOp update) {
    follow(update.getGradient());
    if (dense.empty() && shapeOf(update.getParameterValue()).size() < 2)
      dense = "its rows have one element";
    checkShapes();
  }

private:
  void follow(Value value) {
    Operation *op = value.getDefiningOp();
    if (op && !value.hasOneUse()) {
      dense = "its gradient is read twice";
    } else if (isa_and_nonnull<AddOp, CastOp>(op)) {
      around.push_back(op);
      for (Value operand : op->getOperands())
        follow(operand);
    } else if (auto lookup = dyn_cast_or_null<ScatterAddOp>(op);
               lookup && lookup.getAxis() == 0 && lookup.getBatch() == 0) {
      lookups.push_back(lookup);
      ids += cast<RankedTensorType>(lookup.getIds().getType()).getNumElements();
    } else {
      dense = "it is not only looked up by rows";
    }
  }

  // Slices of several lookups are joined, sample by sample.
  void checkShapes() {
    if (!dense.empty() || lookups.size() == 1)
      return;
    for (ScatterAddOp lookup : lookups) {
      ArrayRef<int64_t> ids = shapeOf(lookup.getIds());
      if (ids.empty() || ids[0] != shapeOf(lookups[0].getIds())[0])
        dense = "its lookups are of different numbers of samples";
    }
  }
};

// Which ids of a lookup are padding: slices of theirs are zeros whatever
// comes back. No row is to be stepped on for them.
Value paddingOf(ScatterAddOp lookup) {
  auto select = lookup.getDy().getDefiningOp<SelectOp>();
  auto zero =
      select ? select.getOperand(1).getDefiningOp<ConstantOp>() : ConstantOp();
  auto splat =
      zero ? dyn_cast<SplatElementsAttr>(zero.getValue()) : SplatElementsAttr();
  if (!splat || !isa<FloatType>(splat.getElementType()) ||
      !splat.getSplatValue<APFloat>().isZero())
    return {};
  Value padding = select.getOperand(0);
  while (auto reshape = padding.getDefiningOp<ReshapeOp>())
    padding = reshape.getX();
  return padding.getDefiningOp<CompareOp>() &&
                 cast<RankedTensorType>(padding.getType()).getNumElements() ==
                     cast<RankedTensorType>(lookup.getIds().getType())
                         .getNumElements()
             ? padding
             : Value();
}

// Ids of a step, computed from what the inputs hold.
class StepIds {
public:
  StepIds(ArrayRef<ScatterAddOp> lookups) {
    for (ScatterAddOp lookup : lookups) {
      ids.push_back(lookup.getIds());
      paddings.push_back(paddingOf(lookup));
    }
  }

  // Whether integers of samples are all that they are computed from; the inputs
  // are added to `inputs`.
  bool collect(func::FuncOp step, planpb::PlanFile &inputs) {
    planpb::PlanFile more;
    for (auto [of, padding] : llvm::zip(ids, paddings))
      if (!visit(of, step, more) || (padding && !visit(padding, step, more)))
        return false;
    if (!more.inputs_size() ||
        (inputs.inputs_size() && inputs.global_batch() != more.global_batch()))
      return false;
    for (const planpb::Input &input : more.inputs())
      if (llvm::none_of(inputs.inputs(), [&](const planpb::Input &other) {
            return other.name() == input.name();
          }))
        *inputs.add_inputs() = input;
    inputs.set_global_batch(more.global_batch());
    return true;
  }

  // Of each lookup; none: an op of them has no such meaning.
  report::IdsOfLookups compute(const report::StepInputs &values) const {
    llvm::DenseMap<Value, HostTensor> known;
    report::IdsOfLookups out;
    for (auto [of, padding] : llvm::zip(ids, paddings)) {
      const std::optional<HostTensor> found = evaluateOf(of, values, known);
      std::optional<HostTensor> none;
      if (padding)
        none = evaluateOf(padding, values, known);
      if (!found || (padding && !none))
        return {};
      std::vector<int64_t> &one = out.emplace_back();
      for (int64_t i = 0; i < found->size(); ++i)
        one.push_back(none && none->integer(i) ? report::kNoRow
                                               : found->integer(i));
    }
    return out;
  }

private:
  bool visit(Value value, func::FuncOp step, planpb::PlanFile &inputs) {
    if (Operation *op = value.getDefiningOp())
      return isa<ConstantOp>(op) ||
             (op->getNumOperands() > 0 &&
              llvm::all_of(op->getOperands(), [&](Value operand) {
                return visit(operand, step, inputs);
              }));
    auto argument = cast<BlockArgument>(value);
    auto type = cast<RankedTensorType>(value.getType());
    auto name =
        step.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kNameAttr);
    const bool isLong = type.getElementType().isInteger(64);
    if (!name || type.getRank() == 0 ||
        !(isLong || type.getElementType().isInteger(32)) ||
        (inputs.inputs_size() && inputs.global_batch() != type.getDimSize(0)))
      return false;
    names[value] = name.str();
    planpb::Input *input = inputs.add_inputs();
    input->set_name(name.str());
    input->set_dtype(isLong ? planpb::I64 : planpb::I32);
    for (int64_t size : type.getShape())
      input->add_shape(size);
    input->set_batched(true);
    inputs.set_global_batch(type.getDimSize(0));
    return true;
  }

  std::optional<HostTensor>
  evaluateOf(Value value, const report::StepInputs &values,
             llvm::DenseMap<Value, HostTensor> &known) const {
    if (auto found = known.find(value); found != known.end())
      return found->second;
    std::optional<HostTensor> result;
    if (Operation *op = value.getDefiningOp()) {
      SmallVector<HostTensor> operands;
      for (Value operand : op->getOperands()) {
        std::optional<HostTensor> one = evaluateOf(operand, values, known);
        if (!one)
          return {};
        operands.push_back(std::move(*one));
      }
      result = evaluateOnHost(op, operands);
    } else {
      result = HostTensor{cast<RankedTensorType>(value.getType()),
                          {},
                          values.at(names.at(value))};
    }
    if (result)
      known[value] = *result;
    return result;
  }

  SmallVector<Value> ids, paddings; // by lookup; null: it has no padding
  llvm::DenseMap<Value, std::string> names;
};

struct SparseUpdatesPass : merak::impl::SparseUpdatesBase<SparseUpdatesPass> {
  using SparseUpdatesBase::SparseUpdatesBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step) {
      module.emitError("expected a function @step");
      return signalPassFailure();
    }
    OptimizerAttr own = ConfigAttr::of(module).getOptimizer();
    replays =
        mode == "exact" &&
        !(own && !given ? own.getValue().restsWithoutGradient() : bool(rests));
    if (failed(readTouched(module)))
      return signalPassFailure();
    SmallVector<UpdateOp> updates(step.getBody().front().getOps<UpdateOp>());
    if (!data.empty() && failed(countTouched(module, step, updates)))
      return signalPassFailure();
    for (UpdateOp update : updates)
      visit(update);
  }

private:
  // Whether rows are owed the steps that they are left out of.
  bool replays = false;
  llvm::StringMap<double> shares; // `touched` by table
  // By table, ids and the different rows that they name, in `data`.
  llvm::StringMap<SmallVector<std::pair<double, double>>> counted;

  LogicalResult readTouched(ModuleOp module) {
    shares.clear();
    counted.clear();
    for (StringRef text : touched) {
      auto [name, share] = text.rsplit('=');
      double value = 0;
      if (share.getAsDouble(value) || !(value > 0 && value <= 1))
        return module.emitError("expected NAME=SHARE, found '") << text << "'";
      if (!module.lookupSymbol<ParameterOp>(name))
        return module.emitError("--touched: there is no table '")
               << name << "'";
      shares[name] = value;
    }
    return success();
  }

  // Rows of the tables of which no share was given, from the data.
  LogicalResult countTouched(ModuleOp module, func::FuncOp step,
                             ArrayRef<UpdateOp> updates) {
    planpb::PlanFile inputs;
    std::vector<report::TableIds> tables;
    SmallVector<std::pair<std::string, Location>> computed;
    for (UpdateOp update : updates) {
      const TableGradient gradient(update);
      const std::string name = update.getParameter().str();
      if (!gradient.dense.empty() || shares.contains(name))
        continue;
      StepIds ids(gradient.lookups);
      if (ids.collect(step, inputs)) {
        computed.push_back({name, update.getLoc()});
        tables.push_back({name, shapeOf(update.getParameterValue())[0],
                          [ids](const report::StepInputs &values) {
                            return ids.compute(values);
                          }});
      } else {
        notCounted(update.getLoc(), name);
      }
    }
    if (tables.empty())
      return success();
    auto found = report::countTouched(inputs, data, tables);
    if (!found.ok())
      return module.emitError("--data: ") << found.status().str();
    for (const auto &[name, where] : computed)
      if (!found->count(name))
        notCounted(where, name);
    for (const auto &[name, counts] : *found)
      for (const report::TouchedCount &count : counts)
        if (count.rows > 0)
          counted[name].push_back({double(count.ids), count.rows});
    return success();
  }

  static void notCounted(Location where, StringRef name) {
    remark::missed(where,
                   remark::RemarkOpts::name("Touched").category("sparse"))
        << fmt::format("'{}': what a step looks up is not counted", name)
        << remark::reason("{0}",
                          "its ids are not computed from integer inputs alone");
  }

  // The rows that a step and parts of it look up; none: nothing is known.
  SmallVector<double> touchedOf(UpdateOp update,
                                const TableGradient &gradient) const {
    SmallVector<double> out;
    if (auto share = shares.find(update.getParameter()); share != shares.end())
      out = {double(gradient.ids),
             share->second * double(shapeOf(update.getParameterValue())[0])};
    else if (auto found = counted.find(update.getParameter());
             found != counted.end())
      for (const auto &[ids, rows] : found->second)
        out.append({ids, rows});
    return out;
  }

  // What ids are, with another shape or type at most; null: they are computed.
  static BlockArgument argumentOf(Value ids) {
    while (Operation *op = ids.getDefiningOp()) {
      if (!isa<ReshapeOp, CastOp>(op))
        return {};
      ids = op->getOperand(0);
    }
    return cast<BlockArgument>(ids);
  }

  // By name, the types of the inputs that say what the next step looks up;
  // null: rows are not delayed, a remark says why.
  DictionaryAttr lookedUp(UpdateOp update, const TableGradient &gradient) {
    auto step = update->getParentOfType<func::FuncOp>();
    std::string why;
    NamedAttrList inputs;
    if (replays)
      why = "its rows are owed steps";
    for (ScatterAddOp lookup : gradient.lookups) {
      BlockArgument argument = argumentOf(lookup.getIds());
      auto name = argument ? step.getArgAttrOfType<StringAttr>(
                                 argument.getArgNumber(), kNameAttr)
                           : StringAttr();
      if (name)
        inputs.set(name, TypeAttr::get(argument.getType()));
      else if (why.empty())
        why = "its ids are computed from the inputs";
    }
    if (why.empty())
      return inputs.getDictionary(&getContext());
    remark::missed(update.getLoc(),
                   remark::RemarkOpts::name("Delayed").category("sparse"))
        << fmt::format("'{}': no rows are delayed", update.getParameter().str())
        << remark::reason("{0}", why);
    return {};
  }

  void visit(UpdateOp update) {
    TableGradient gradient(update);
    // Of other parameters nothing is said.
    if (!gradient.dense.empty() &&
        llvm::none_of(update.getParameterValue().getUsers(),
                      [](Operation *user) { return isa<GatherOp>(user); }))
      return;
    const int64_t all = shapeOf(update.getParameterValue())[0];
    if (gradient.dense.empty() && mode == "exact" && gradient.ids > all)
      gradient.dense = "a step has more ids than it has rows";
    const auto opts = [](StringRef name) {
      return remark::RemarkOpts::name(name).category("sparse");
    };
    if (!gradient.dense.empty()) {
      remark::missed(update.getLoc(), opts("Dense"))
          << fmt::format("'{}' keeps its gradient", update.getParameter().str())
          << remark::reason("{0}", gradient.dense);
      return;
    }
    const SmallVector<double> touched = touchedOf(update, gradient);
    update = rewrite(update, gradient, touched);
    ++sparseTables;
    std::string said;
    for (size_t i = 0; i < touched.size(); i += 2)
      if (touched[i] == double(gradient.ids))
        said = fmt::format(", {:.3g} % in a step",
                           100 * touched[i + 1] / double(all));
    remark::passed(update.getLoc(), opts("Sparse")) << fmt::format(
        "'{}' is updated by rows: at most {} of {}{}",
        update.getParameter().str(), std::min(all, gradient.ids), all, said);
  }

  // Ids or slices of a lookup, those of each sample in one dimension.
  Value bySamples(OpBuilder &b, ScatterAddOp lookup, Value value) {
    auto type = cast<RankedTensorType>(value.getType());
    ArrayRef<int64_t> ids = shapeOf(lookup.getIds());
    SmallVector<int64_t> shape{ids[0], 1};
    for (int64_t size : ids.drop_front())
      shape[1] *= size;
    llvm::append_range(shape, type.getShape().drop_front(ids.size()));
    if (type.getShape() == ArrayRef<int64_t>(shape))
      return value;
    return withRole(
        ReshapeOp::create(b, lookup.getLoc(), type.clone(shape), value), lookup,
        kBackwardWeight);
  }

  static Value withRole(Value value, ScatterAddOp of, StringRef role) {
    Operation *op = value.getDefiningOp();
    op->setAttr(kRoleAttr, StringAttr::get(op->getContext(), role));
    if (auto forward = of->getAttr(kOfAttr))
      op->setAttr(kOfAttr, forward);
    return value;
  }

  UpdateOp rewrite(UpdateOp update, const TableGradient &gradient,
                   ArrayRef<double> touched) {
    ScatterAddOp first = gradient.lookups.front();
    OpBuilder b(update);
    auto withRole = [&](Value value, StringRef role) {
      return this->withRole(value, first, role);
    };
    const Location loc = first.getLoc();
    const int64_t size = shapeOf(update.getParameterValue())[0];
    SmallVector<Value> slices, ids;
    Value dy, id; // of all lookups
    for (ScatterAddOp lookup : gradient.lookups) {
      slices.push_back(lookup.getDy());
      ids.push_back(lookup.getIds());
      if (Value padding = paddingOf(lookup)) {
        auto type = cast<RankedTensorType>(ids.back().getType());
        if (shapeOf(padding) != type.getShape())
          padding = withRole(
              ReshapeOp::create(b, loc, type.clone(b.getI1Type()), padding),
              kBackwardWeight);
        auto scalar = RankedTensorType::get({}, type.getElementType());
        Value none = withRole(
            ConstantOp::create(
                b, loc, scalar,
                cast<ElementsAttr>(DenseElementsAttr::get(
                    scalar, b.getIntegerAttr(type.getElementType(), size)))),
            kBackwardWeight);
        ids.back() =
            withRole(SelectOp::create(b, loc, type, padding, none, ids.back()),
                     kBackwardWeight);
      }
      dy = slices.back();
      id = ids.back();
    }
    if (slices.size() > 1) {
      const Type whole = b.getIntegerType(64);
      const bool isOfOneType = llvm::all_equal(llvm::map_range(
          ids, [](Value one) { return getElementTypeOrSelf(one); }));
      for (auto [k, lookup] : llvm::enumerate(gradient.lookups)) {
        slices[k] = bySamples(b, lookup, slices[k]);
        ids[k] = bySamples(b, lookup, ids[k]);
        auto type = cast<RankedTensorType>(ids[k].getType());
        if (!isOfOneType && type.getElementType() != whole)
          ids[k] = withRole(CastOp::create(b, loc, type.clone(whole), ids[k]),
                            kBackwardWeight);
      }
      dy = withRole(ConcatOp::create(b, loc, slices, 1), kBackwardWeight);
      id = withRole(ConcatOp::create(b, loc, ids, 1), kBackwardWeight);
    }
    auto table = cast<RankedTensorType>(update.getParameterValue().getType());
    auto rows = RankedTensorType::get(shapeOf(dy), table.getElementType());
    auto coalesced =
        CoalesceOp::create(b, loc, TypeRange{rows, id.getType()}, dy, id, size);
    withRole(coalesced.getRows(), kUpdate);
    if (!touched.empty())
      coalesced->setAttr(kTouchedAttr, b.getDenseF64ArrayAttr(touched));
    if (DictionaryAttr inputs =
            delayed ? lookedUp(update, gradient) : DictionaryAttr())
      coalesced->setAttr(kDelayedAttr, inputs);
    auto sparse = UpdateOp::create(
        b, update.getLoc(), update.getParameterValue(), coalesced.getRows(),
        coalesced.getUnique(), update.getParameterAttr());
    sparse->setAttr(kRoleAttr, b.getStringAttr(kUpdate));
    if (replays)
      sparse->setAttr(kReplayedAttr, b.getUnitAttr());
    update.erase();
    for (Operation *op : gradient.around)
      op->erase();
    for (ScatterAddOp lookup : gradient.lookups)
      lookup.erase();
    return sparse;
  }
};

} // namespace
