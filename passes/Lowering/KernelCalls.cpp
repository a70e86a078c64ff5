#include "passes/Lowering/KernelCalls.h"

#include "dialects/Pipe/PipeDialect.h"
#include "passes/Lowering/ElementwiseToLinalg.h"
#include "passes/Lowering/FusionGroups.h"
#include "passes/Lowering/Passes.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

// The named value that an op of an action reads or writes.
static StringRef namedValueOf(Operation *op) {
  if (auto load = dyn_cast<pipe::LoadOp>(op))
    return load.getValue();
  if (auto store = dyn_cast<pipe::StoreOp>(op))
    return store.getValue();
  return {};
}

// Layouts of the named values of an action's stage.
using NamedLayouts = llvm::StringMap<dist::LayoutAttr>;

static NamedLayouts namedLayouts(Block &body) {
  NamedLayouts layouts;
  if (auto stage = body.getParentOp()->getParentOfType<pipe::StageOp>())
    for (auto value : stage.getOps<pipe::ValueOp>())
      layouts[value.getSymName()] = value.getLayoutAttr();
  return layouts;
}

// The axes of the mesh over which ranks hold other elements or other summands
// of a value; none if it has no layout.
static std::optional<llvm::StringSet<>> axesOf(Value value,
                                               const NamedLayouts &named) {
  Operation *op = value.getDefiningOp();
  dist::LayoutAttr layout;
  if (auto load = dyn_cast_if_present<pipe::LoadOp>(op)) {
    layout = named.lookup(load.getValue());
  } else if (auto layouts =
                 op ? op->getAttrOfType<ArrayAttr>(dist::kLayoutsAttr)
                    : ArrayAttr()) {
    layout = cast<dist::LayoutAttr>(
        layouts[cast<OpResult>(value).getResultNumber()]);
  }
  if (!layout)
    return std::nullopt;
  llvm::StringSet<> axes;
  layout::Layout parts = layout.getLayout();
  axes.insert(parts.partial.begin(), parts.partial.end());
  for (const layout::DimLayout &dim : parts.dims)
    for (const layout::Factor &factor : dim.factors)
      axes.insert(factor.axes.begin(), factor.axes.end());
  axes.erase(kMicrobatchAxis);
  axes.erase(kSubmicrobatchAxis);
  return axes;
}

// Whether every output differs over all axes over which an input does: what is
// equal on all ranks does not wait, in one kernel, for what is not.
static bool areAlike(ArrayRef<Operation *> group, const NamedLayouts &named) {
  llvm::SmallDenseSet<Operation *> members(group.begin(), group.end());
  llvm::StringSet<> read;
  for (Operation *op : group)
    for (Value operand : op->getOperands())
      if (!members.contains(operand.getDefiningOp()))
        if (auto axes = axesOf(operand, named))
          for (const auto &axis : *axes)
            read.insert(axis.getKey());
  if (read.empty())
    return true;
  return llvm::all_of(group, [&](Operation *op) {
    return llvm::all_of(op->getResults(), [&](Value result) {
      if (llvm::all_of(result.getUsers(),
                       [&](Operation *user) { return members.contains(user); }))
        return true;
      auto axes = axesOf(result, named);
      return !axes || llvm::all_of(read.keys(), [&](StringRef axis) {
        return axes->contains(axis);
      });
    });
  });
}

std::vector<KernelGroup> formKernelGroups(Block &body, bool forGpu) {
  // By named value, the positions of its ops in order; and who is read.
  llvm::StringMap<SmallVector<int, 2>> uses;
  llvm::StringSet<> read;
  llvm::DenseMap<Operation *, int> position;
  for (auto [i, op] : llvm::enumerate(body)) {
    position[&op] = static_cast<int>(i);
    if (StringRef name = namedValueOf(&op); !name.empty()) {
      uses[name].push_back(static_cast<int>(i));
      if (isa<pipe::LoadOp>(op))
        read.insert(name);
    }
  }
  // A store may stand anywhere between its operand and the next op on its named
  // value.
  auto mayDelay = [&](Operation *op, Operation *until) {
    if (!isa<pipe::StoreOp>(op))
      return false;
    ArrayRef<int> all = uses[namedValueOf(op)];
    const int *next = llvm::upper_bound(all, position.lookup(op));
    return next == all.end() || *next > position.lookup(until);
  };
  auto changesReads = [&](Operation *op) {
    return isa<pipe::UpdateOp>(op) ||
           (isa<pipe::StoreOp>(op) && read.contains(namedValueOf(op)));
  };
  const FusionOptions options = planning::fusionFor(forGpu);
  // What the update makes of the parts of a gradient is reduced later.
  auto action = dyn_cast<pipe::ActionOp>(body.getParentOp());
  bool isUpdate = action && action.getKind() == pipe::Action::U;
  const NamedLayouts named = namedLayouts(body);
  std::vector<KernelGroup> groups = formFusionGroups(
      body, options, mayDelay, changesReads, [&](ArrayRef<Operation *> group) {
        return isUpdate || areAlike(group, named);
      });
  for (const KernelGroup &group : groups) {
    Operation *end = group.back();
    for (Operation *op : group)
      for (Operation *user : llvm::make_early_inc_range(op->getUsers()))
        if (isa<pipe::StoreOp>(user) &&
            position[user] < position[group.back()]) {
          user->moveAfter(end);
          end = user;
        }
  }
  return groups;
}

// Splats are immediate values inside a kernel.
static ConstantOp splatOf(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  return constant && isa<SplatElementsAttr>(constant.getValue()) ? constant
                                                                 : ConstantOp();
}

bool constantNeedsMemory(ConstantOp constant) {
  return !isa<SplatElementsAttr>(constant.getValue()) ||
         llvm::any_of(constant->getUsers(), [](Operation *user) {
           return !user->hasTrait<Pointwise>() && !isa<ConcatOp>(user);
         });
}

KernelOperands kernelOperandsOf(ArrayRef<Operation *> group,
                                llvm::function_ref<bool(Value)> wanted) {
  llvm::SmallDenseSet<Operation *> members(group.begin(), group.end());
  llvm::SmallSetVector<Value, 8> inputs;
  KernelOperands operands;
  for (Operation *op : group) {
    for (Value operand : op->getOperands())
      if (!members.contains(operand.getDefiningOp()) && !splatOf(operand))
        inputs.insert(operand);
    for (Value result : op->getResults())
      if (wanted(result) || op == group.back() ||
          op->hasAttr("train.gradient_of") ||
          llvm::any_of(result.getUsers(), [&](Operation *user) {
            return !members.contains(user);
          }))
        operands.outputs.push_back(result);
  }
  operands.inputs.assign(inputs.begin(), inputs.end());
  return operands;
}

static DictionaryAttr layoutAttrs(MLIRContext *context, const View &view,
                                  bool accumulate) {
  SmallVector<NamedAttribute> attrs{
      {StringAttr::get(context, "merak.strides"),
       DenseI64ArrayAttr::get(context, view.strides)}};
  if (accumulate)
    attrs.push_back(
        {StringAttr::get(context, "merak.accumulate"), UnitAttr::get(context)});
  return DictionaryAttr::get(context, attrs);
}

FailureOr<func::FuncOp> KernelFactory::get(ArrayRef<Operation *> group,
                                           const KernelOperands &operands,
                                           ArrayRef<View> inputs,
                                           ArrayRef<View> outputs,
                                           bool accumulate) {
  MLIRContext *context = module_.getContext();
  OpBuilder builder = OpBuilder::atBlockEnd(module_.getBody());
  SmallVector<Location> locations;
  for (Operation *op : group)
    locations.push_back(op->getLoc());
  SmallVector<Type> argumentTypes, resultTypes;
  SmallVector<DictionaryAttr> argumentAttrs, resultAttrs;
  for (auto [value, view] : llvm::zip(operands.inputs, inputs)) {
    argumentTypes.push_back(signlessType(value.getType()));
    argumentAttrs.push_back(layoutAttrs(context, view, false));
  }
  for (auto [value, view] : llvm::zip(operands.outputs, outputs)) {
    resultTypes.push_back(signlessType(value.getType()));
    resultAttrs.push_back(layoutAttrs(context, view, accumulate));
  }
  // Locations would make equal kernels different.
  Location loc = UnknownLoc::get(context);
  auto function =
      func::FuncOp::create(builder, loc, "kernel",
                           builder.getFunctionType(argumentTypes, resultTypes));
  function->setAttr(plan::kKernelAttr, builder.getUnitAttr());
  function.setAllArgAttrs(argumentAttrs);
  function.setAllResultAttrs(resultAttrs);
  Block *body = function.addEntryBlock();
  builder.setInsertionPointToEnd(body);
  IRMapping mapping;
  for (auto [value, argument] :
       llvm::zip(operands.inputs, body->getArguments()))
    mapping.map(value, argument);
  for (Operation *op : group)
    writeLinalg(builder, op, mapping);
  SmallVector<Value> results;
  for (Value value : operands.outputs)
    results.push_back(mapping.lookup(value));
  func::ReturnOp::create(builder, loc, results);

  std::string structure;
  llvm::raw_string_ostream stream(structure);
  // On its own: without the flags every print would verify and number the
  // whole module. Where an op came from is no part of it, whatever a tool
  // prints by default.
  OpPrintingFlags flags;
  flags.useLocalScope().assumeVerified().enableDebugInfo(false);
  function->print(stream, flags);
  auto [it, fresh] = known_.try_emplace(structure);
  if (!fresh) {
    function.erase();
    return it->second;
  }
  function.setSymName("kernel" + std::to_string(known_.size() - 1));
  it->second = function;
  return function;
}

} // namespace merak::lowering
