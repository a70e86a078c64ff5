#include "dialects/Train/Builders.h"
#include "dialects/Train/NameAttribute.h"
#include "dialects/Train/SparseAttributes.h"
#include "dialects/Train/TrainDialect.h"
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

  // Slices of several lookups are joined along their second dimension, behind
  // the samples.
  void checkShapes() {
    if (!dense.empty() || lookups.size() == 1)
      return;
    ArrayRef<int64_t> first = shapeOf(lookups[0].getIds());
    for (ScatterAddOp lookup : lookups) {
      ArrayRef<int64_t> ids = shapeOf(lookup.getIds());
      bool fits = first.size() >= 2 && ids.size() == first.size() &&
                  lookup.getIds().getType().getElementType() ==
                      lookups[0].getIds().getType().getElementType();
      for (size_t d = 0; fits && d < ids.size(); ++d)
        fits = d == 1 || ids[d] == first[d];
      if (!fits)
        dense = "its lookups have ids of different shapes";
    }
  }
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

  LogicalResult readTouched(ModuleOp module) {
    shares.clear();
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

  // Shares of the tables of which none was given, from the data.
  LogicalResult countTouched(ModuleOp module, func::FuncOp step,
                             ArrayRef<UpdateOp> updates) {
    planpb::PlanFile inputs;
    std::vector<report::TableIds> tables;
    for (UpdateOp update : updates) {
      const TableGradient gradient(update);
      const std::string name = update.getParameter().str();
      if (!gradient.dense.empty() || shares.contains(name))
        continue;
      report::TableIds table{name, shapeOf(update.getParameterValue())[0], {}};
      for (ScatterAddOp lookup : gradient.lookups)
        if (auto input = inputOf(lookup.getIds(), step, inputs))
          table.inputs.push_back(*input);
      if (table.inputs.size() == gradient.lookups.size())
        tables.push_back(std::move(table));
      else
        remark::missed(update.getLoc(),
                       remark::RemarkOpts::name("Touched").category("sparse"))
            << fmt::format("'{}': what a step looks up is not counted", name)
            << remark::reason("{0}", "its ids are computed from the inputs");
    }
    if (tables.empty())
      return success();
    auto counted = report::touchedShares(inputs, data, tables);
    if (!counted.ok())
      return module.emitError("--data: ") << counted.status().str();
    for (const auto &[name, share] : *counted)
      if (share > 0)
        shares[name] = share;
    return success();
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

  // The name of the input that ids are; it is added to `inputs`.
  static std::optional<std::string> inputOf(Value ids, func::FuncOp step,
                                            planpb::PlanFile &inputs) {
    BlockArgument argument = argumentOf(ids);
    if (!argument)
      return std::nullopt;
    ids = argument;
    auto type = cast<RankedTensorType>(ids.getType());
    auto name =
        step.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kNameAttr);
    const bool isLong = type.getElementType().isInteger(64);
    if (!name || type.getRank() == 0 ||
        !(isLong || type.getElementType().isInteger(32)))
      return std::nullopt;
    for (const planpb::Input &input : inputs.inputs())
      if (input.name() == name.str())
        return name.str();
    planpb::Input *input = inputs.add_inputs();
    input->set_name(name.str());
    input->set_dtype(isLong ? planpb::I64 : planpb::I32);
    for (int64_t size : type.getShape())
      input->add_shape(size);
    input->set_batched(true);
    inputs.set_global_batch(type.getShape()[0]);
    return name.str();
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
    update = rewrite(update, gradient);
    ++sparseTables;
    const auto share = shares.find(update.getParameter());
    remark::passed(update.getLoc(), opts("Sparse")) << fmt::format(
        "'{}' is updated by rows: at most {} of {}{}",
        update.getParameter().str(), std::min(all, gradient.ids), all,
        share == shares.end()
            ? ""
            : fmt::format(", {:.3g} % in a step", 100 * share->second));
  }

  // Which ids of a lookup are padding: slices of theirs are zeros whatever
  // comes back. No row is to be stepped on for them.
  static Value paddingOf(ScatterAddOp lookup) {
    auto select = lookup.getDy().getDefiningOp<SelectOp>();
    auto zero = select ? select.getOperand(1).getDefiningOp<ConstantOp>()
                       : ConstantOp();
    auto splat = zero ? dyn_cast<SplatElementsAttr>(zero.getValue())
                      : SplatElementsAttr();
    if (!splat || !isa<FloatType>(splat.getElementType()) ||
        !splat.getSplatValue<APFloat>().isZero())
      return {};
    Value padding = select.getOperand(0);
    while (auto reshape = padding.getDefiningOp<ReshapeOp>())
      padding = reshape.getX();
    return padding.getDefiningOp<CompareOp>() &&
                   shapeOf(padding) == shapeOf(lookup.getIds())
               ? padding
               : Value();
  }

  UpdateOp rewrite(UpdateOp update, const TableGradient &gradient) {
    ScatterAddOp first = gradient.lookups.front();
    OpBuilder b(update);
    auto withRole = [&](Value value, StringRef role) {
      Operation *op = value.getDefiningOp();
      op->setAttr(kRoleAttr, b.getStringAttr(role));
      if (auto of = first->getAttr(kOfAttr))
        op->setAttr(kOfAttr, of);
      return value;
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
      dy = withRole(ConcatOp::create(b, loc, slices, 1), kBackwardWeight);
      id = withRole(ConcatOp::create(b, loc, ids, 1), kBackwardWeight);
    }
    auto table = cast<RankedTensorType>(update.getParameterValue().getType());
    auto rows = RankedTensorType::get(shapeOf(dy), table.getElementType());
    auto coalesced =
        CoalesceOp::create(b, loc, TypeRange{rows, id.getType()}, dy, id, size);
    withRole(coalesced.getRows(), kUpdate);
    if (auto share = shares.find(update.getParameter()); share != shares.end())
      coalesced->setAttr(kTouchedAttr, b.getF64FloatAttr(share->second));
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
