#include "passes/Lowering/ActionLowering.h"
#include "dialects/Pipe/Copies.h"
#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/IdRange.h"
#include "passes/Lowering/JoinPads.h"
#include "passes/Lowering/KernelCalls.h"
#include "passes/Lowering/Overwrites.h"
#include "passes/Lowering/Pitch.h"
#include "passes/Planning/ReplayedTables.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

// The scalar that fills memory with a splat constant; null: no such constant.
static plan::ScalarAttr splatScalar(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  auto splat = constant ? dyn_cast<SplatElementsAttr>(constant.getValue())
                        : SplatElementsAttr();
  if (!splat)
    return {};
  MLIRContext *context = value.getContext();
  Type element = splat.getElementType();
  if (isa<FloatType>(element))
    return realScalar(context,
                      splat.getSplatValue<APFloat>().convertToDouble());
  APInt integer = splat.getSplatValue<APInt>();
  return integerScalar(context, element.isInteger(1) ? integer.getBoolValue()
                                                     : integer.getSExtValue());
}

ActionLowering::ActionLowering(StageLowering &stage, pipe::ActionOp action,
                               plan::ProcedureOp procedure)
    : stage_(stage), action_(action), procedure_(procedure),
      builder_(stage.context()), id_(idOf(action)) {
  builder_.setInsertionPointToEnd(&procedure.getBody().front());
}

LogicalResult ActionLowering::run() {
  Block &body = action_.getBody().front();
  if (stage_.isForGpu())
    joinPads(body);
  assignDestinations();
  // A fused group runs where its last op stood.
  llvm::DenseMap<Operation *, ArrayRef<Operation *>> groupAt;
  llvm::DenseSet<Operation *> inGroup;
  std::vector<KernelGroup> groups = formKernelGroups(body, stage_.isForGpu());
  llvm::DenseMap<Operation *, const Epilogue *> productAt;
  SmallVector<Operation *> unused;
  std::vector<Epilogue> products =
      takeEpilogues(body, groups, stage_.isForGpu(), unused);
  inGroup.insert(unused.begin(), unused.end());
  for (const Epilogue &product : products) {
    productAt[product.last] = &product;
    inGroup.insert(product.ops.begin(), product.ops.end());
    inGroup.insert(product.product);
  }
  for (const KernelGroup &group : groups) {
    groupAt[group.back()] = group;
    inGroup.insert(group.begin(), group.end());
  }
  LogicalResult result = success();
  Block &instructions = procedure_.getBody().front();
  for (Operation &op : body) {
    Operation *before = instructions.empty() ? nullptr : &instructions.back();
    if (auto group = groupAt.find(&op); group != groupAt.end()) {
      if (failed(lowerKernel(group->second)))
        result = failure();
      for (Operation *member : group->second)
        nameGradient(*member);
    } else if (auto product = productAt.find(&op); product != productAt.end()) {
      lowerProduct(*product->second);
      nameGradient(*product->second->product);
      for (Operation *member : product->second->ops)
        nameGradient(*member);
    } else if (!inGroup.contains(&op)) {
      if (failed(lower(op)))
        result = failure();
      nameGradient(op);
    }
    markPart(op, before                 ? before->getNextNode()
                 : instructions.empty() ? nullptr
                                        : &instructions.front());
  }
  return result;
}

// Instructions from `first` on were made from `op`, or from a group that ends
// there; they belong to its part of the microbatch.
void ActionLowering::markPart(Operation &op, Operation *first) {
  // Of samples; a submicrobatch of tokens is no position of "mb".
  if (stage_.axisSize(kSubmicrobatchAxis) > 1)
    return;
  if (auto part = op.getAttrOfType<IntegerAttr>(pipe::kSubmicrobatchAttr))
    for (; first; first = first->getNextNode())
      first->setAttr(plan::kSubmicrobatchAttr, part);
}

//===----------------------------------------------------------------------===//
// Views and outputs
//===----------------------------------------------------------------------===//

View ActionLowering::viewOf(Value value) { return views_.at(value); }

View ActionLowering::newBuffer(Type type, Location location,
                               plan::Category category) {
  auto tensor = cast<RankedTensorType>(type);
  plan::BufferOp buffer =
      stage_.createBuffer(procedure_.getSymName() + ":" + nameOf(location),
                          category, tensor, procedure_, location);
  return View::dense(buffer.getSymNameAttr(), tensor.getShape());
}

View ActionLowering::outputFor(Value result) {
  auto found = destinations_.find(result);
  if (found != destinations_.end() && !found->second.sum)
    return found->second.view;
  auto type = typeOf(result);
  if (!stage_.isForGpu() || !wantsPitch(result))
    return newBuffer(type, result.getLoc());
  View rows = newBuffer(withPitch(type), result.getLoc());
  return viewIn(stage_.bufferOf(rows), type.getShape());
}

SmallVector<View> ActionLowering::outputsFor(ArrayRef<Value> results,
                                             bool &accumulate) {
  // All results are sums, each one of its own (two submicrobatches may
  // add to one loss), and either all of them hold something already or none
  // does: the instruction writes them itself.
  llvm::SmallPtrSet<const NamedValue *, 4> sums;
  for (Value result : results)
    if (auto it = destinations_.find(result);
        it != destinations_.end() && it->second.sum)
      sums.insert(it->second.sum);
  accumulate = false;
  if (sums.size() == results.size() && !sums.empty()) {
    size_t fresh = 0;
    for (Value result : results)
      fresh += destinations_[result].sum->overwriteIn == id_;
    if (fresh == 0 || fresh == results.size()) {
      accumulate = fresh == 0;
      SmallVector<View> views;
      for (Value result : results) {
        Destination destination = destinations_[result];
        takeOverwrite(*destination.sum);
        destinations_.erase(result);
        views.push_back(destination.view);
      }
      return views;
    }
  }
  SmallVector<View> views;
  for (Value result : results)
    views.push_back(outputFor(result));
  return views;
}

void ActionLowering::finishOutputs(ArrayRef<Value> results,
                                   ArrayRef<View> views) {
  for (auto [result, view] : llvm::zip(results, views)) {
    views_[result] = view;
    auto found = destinations_.find(result);
    if (found == destinations_.end() || !found->second.sum)
      continue;
    // Could not be summed by its own instruction.
    copy(result.getLoc(), view, found->second.view,
         !takeOverwrite(*found->second.sum));
  }
}

bool ActionLowering::takeOverwrite(NamedValue &value) {
  if (value.overwriteIn != id_)
    return false;
  value.overwriteIn.reset();
  return true;
}

// A view of the operand stands for the result unless the result has a place of
// its own.
void ActionLowering::setView(Value value, const View &view) {
  auto found = destinations_.find(value);
  if (found == destinations_.end()) {
    views_[value] = view;
    return;
  }
  View target = found->second.view;
  copy(value.getLoc(), view, target);
  views_[value] = target;
}

// The gradient of a parameter stays readable after the step under its name.
void ActionLowering::nameGradient(Operation &op) {
  auto parameter = op.getAttrOfType<StringAttr>("train.gradient_of");
  if (!parameter || op.getNumResults() == 0)
    return;
  Value value = op.getResult(0);
  View view = viewOf(value);
  plan::BufferOp buffer = stage_.bufferOf(view);
  auto whole = View::dense(view.buffer,
                           cast<RankedTensorType>(buffer.getType()).getShape());
  bool own =
      buffer.isTransient() || buffer.getCategory() == plan::Category::gradients;
  if (!(view == whole) || buffer.getTensor() || !own) {
    View kept = newBuffer(value.getType(), op.getLoc());
    copy(op.getLoc(), view, kept);
    views_[value] = kept;
    buffer = stage_.bufferOf(kept);
  }
  buffer.removeProcedureAttr();
  buffer.setCategory(plan::Category::gradients);
  buffer.setTensorAttr(parameter);
  // A reduction may have left [1, n] where the parameter is [n].
  buffer.setTypeAttr(TypeAttr::get(value.getType()));
  auto layouts = op.getAttrOfType<ArrayAttr>(dist::kLayoutsAttr);
  if (layouts && !layouts.empty())
    buffer.setLayoutAttr(cast<dist::LayoutAttr>(layouts[0]));
  else if (auto load = dyn_cast<pipe::LoadOp>(op))
    buffer.setLayoutAttr(stage_.find(load.getValue())->op.getLayoutAttr());
}

ArrayAttr ActionLowering::viewArray(ArrayRef<View> views) {
  SmallVector<Attribute> attrs;
  for (const View &view : views)
    attrs.push_back(view.toAttr());
  return builder_.getArrayAttr(attrs);
}

//===----------------------------------------------------------------------===//
// Instructions
//===----------------------------------------------------------------------===//

plan::LibraryOp
ActionLowering::library(Location location, StringRef op, ArrayRef<View> inputs,
                        ArrayRef<View> outputs, ArrayRef<NamedAttribute> attrs,
                        ArrayRef<Attribute> scalars, bool accumulate) {
  auto instruction = plan::LibraryOp::create(
      builder_, location, builder_.getStringAttr(op),
      builder_.getDictionaryAttr(attrs), builder_.getArrayAttr(scalars),
      accumulate ? builder_.getUnitAttr() : UnitAttr(), viewArray(inputs),
      viewArray(outputs), builder_.getI64IntegerAttr(0),
      builder_.getF64FloatAttr(0), builder_.getF64FloatAttr(0));
  return instruction;
}

void ActionLowering::copy(Location location, const View &from, const View &to,
                          bool accumulate) {
  library(location, "copy", {from}, {to}, {}, {}, accumulate);
}

LogicalResult ActionLowering::lower(Operation &op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(&op)
      .Case([&](pipe::LoadOp load) { return lowerLoad(load), success(); })
      .Case([&](pipe::StoreOp store) { return lowerStore(store), success(); })
      .Case(
          [&](pipe::UpdateOp update) { return lowerUpdate(update), success(); })
      .Case([&](ConstantOp constant) {
        return lowerConstant(constant), success();
      })
      .Case([&](ReshapeOp reshape) { return lowerReshape(reshape), success(); })
      .Case([&](TransposeOp transpose) {
        setView(transpose.getY(),
                permuteView(viewOf(transpose.getX()), transpose.getPerm()));
        return success();
      })
      .Case([&](SliceOp slice) {
        setView(slice.getY(), sliceView(viewOf(slice.getX()), slice.getStarts(),
                                        slice.getSizes(), slice.getSteps()));
        return success();
      })
      .Case([&](ExpandOp expand) {
        setView(expand.getY(), expandView(viewOf(expand.getX()),
                                          typeOf(expand.getY()).getShape()));
        return success();
      })
      .Case([&](PadOp pad) { return lowerPad(pad), success(); })
      .Case([&](ConcatOp concat) { return lowerConcat(concat), success(); })
      .Case([&](dist::AllReduceOp o) { return lowerAllReduce(o), success(); })
      .Case([&](dist::AllGatherOp o) { return lowerAllGather(o), success(); })
      .Case([&](dist::ReduceScatterOp o) {
        return lowerReduceScatter(o), success();
      })
      .Case([&](dist::AllToAllOp o) { return lowerAllToAll(o), success(); })
      .Case([&](dist::ShardSliceOp o) { return lowerShardSlice(o), success(); })
      .Case([&](dist::PlaceOp o) { return lowerPlace(o), success(); })
      .Default([&](Operation *other) -> LogicalResult {
        std::optional<LibraryCall> call = libraryCallOf(other);
        if (!call)
          return other->emitOpError("has no kernel: expected an op of "
                                    "docs/Kernels.md in the memory phase");
        if (auto lookup = dyn_cast<GatherOp>(other))
          bringUpToDate(lookup, *call);
        lowerLibrary(other, *call);
        return success();
      });
}

void ActionLowering::lowerLoad(pipe::LoadOp load) {
  NamedValue *value = stage_.find(load.getValue());
  RankedTensorType type = typeOf(load.getResult());
  if (value->buffer) {
    setView(load.getResult(), viewIn(value->buffer, type.getShape()));
    return;
  }
  // A model input: every action that needs it reads its part of the data.
  auto part = load->getAttrOfType<IntegerAttr>(pipe::kSubmicrobatchAttr);
  auto [it, fresh] = inputs_.try_emplace(
      (load.getValue() + (part ? " " + Twine(part.getInt()) : "")).str());
  if (fresh) {
    plan::BufferOp buffer = stage_.createBuffer(
        procedure_.getSymName() + ":" + load.getValue(),
        plan::Category::activations, type, procedure_, load.getLoc());
    buffer.setTensorAttr(value->op.getTensorAttr());
    buffer.setLayoutAttr(value->op.getLayoutAttr());
    noteIdRange(load.getResult(), buffer);
    it->second = View::dense(buffer.getSymNameAttr(), type.getShape());
    auto read = plan::LoadInputOp::create(
        builder_, load.getLoc(), value->op.getTensorAttr(), viewArray({}),
        viewArray({it->second}), builder_.getI64IntegerAttr(0),
        builder_.getF64FloatAttr(0), builder_.getF64FloatAttr(0));
    if (Attribute ahead = value->op->getAttr(pipe::kAheadAttr))
      read->setAttr(plan::kAheadAttr, ahead);
  }
  setView(load.getResult(), it->second);
}

// What the runtime checks of the data before it uses it.
void ActionLowering::noteIdRange(Value ids, plan::BufferOp buffer) {
  std::optional<IdRange> range =
      idRangeOf(ids, [&](StringRef axis) { return stage_.axisSize(axis); });
  if (!range)
    return;
  buffer->setAttr(plan::kLimitAttr, builder_.getI64IntegerAttr(range->limit));
  if (range->allowed)
    buffer->setAttr(plan::kAllowedAttr,
                    builder_.getI64IntegerAttr(*range->allowed));
}

void ActionLowering::lowerStore(pipe::StoreOp store) {
  if (stored_.contains(store))
    return;
  NamedValue *value = stage_.find(store.getValue());
  View target = viewIn(value->buffer, typeOf(store.getOperand()).getShape());
  copy(store.getLoc(), viewOf(store.getOperand()), target,
       store.getAccumulate() && !takeOverwrite(*value));
}

// Rows that are looked up take the steps that they were left out of, if any.
void ActionLowering::bringUpToDate(GatherOp lookup, const LibraryCall &call) {
  auto load = lookup.getTable().getDefiningOp<pipe::LoadOp>();
  const ReplayedTable *table =
      load ? stage_.replayed(load.getValue()) : nullptr;
  if (!table || table->isWholeEachStep)
    return;
  const int64_t here = typeOf(lookup.getTable()).getDimSize(0);
  createReplay(builder_, lookup.getLoc(), *table,
               stage_.tensorsOf(table->update),
               {viewOf(lookup.getIds()), lookup.getRows().value_or(here),
                call.scalars.front()});
}

void ActionLowering::lowerUpdate(pipe::UpdateOp update) {
  const Optimizer &optimizer = update.getOptimizer().getValue();
  SmallVector<View> inputs{viewOf(update.getGradient())};
  if (Value clip = update.getClip())
    inputs.push_back(viewOf(clip));
  if (Value ids = update.getIds())
    inputs.push_back(viewOf(ids));
  const SmallVector<View> tensors = stage_.tensorsOf(update);
  SmallVector<View> outputs = tensors;
  if (optimizer.kind == OptimizerKind::Sgd)
    inputs.append(tensors.begin() + 1, tensors.end());
  if (auto copy = update->getAttrOfType<FlatSymbolRefAttr>(pipe::kCopyAttr))
    outputs.push_back(wholeOf(stage_.find(copy.getValue())->buffer));
  SmallVector<NamedAttribute> attrs;
  auto text = [&](StringRef name, const std::string &value) {
    attrs.push_back(builder_.getNamedAttr(name, builder_.getStringAttr(value)));
  };
  for (const auto &[name, value] : optimizer.constants())
    text(name, value);
  text("clip", update.getClip() ? "1" : "0");
  const bool isDelayed = update->hasAttr(kDelayedAttr);
  SmallVector<Attribute> scalars{
      namedScalar(stage_.context(), isDelayed ? "lr_before" : "lr"),
      namedScalar(stage_.context(), isDelayed ? "step_before" : "step")};
  if (update.getIds()) {
    const int64_t here = outputs.front().shape.front();
    scalars.push_back(
        update.getSplitAxis()
            ? offsetScalar(stage_.context(), *update.getSplitAxis(), here)
            : integerScalar(stage_.context(), 0));
  }
  const ReplayedTable *table = stage_.replayed(update.getParameter());
  if (table) {
    // Of rows that other ranks looked up nothing brought this copy up to date.
    createReplay(builder_, update.getLoc(), *table, tensors,
                 {viewOf(update.getIds()), std::nullopt, scalars.back()});
    addReached(builder_, *table, outputs, attrs);
  }
  plan::LibraryOp call =
      library(update.getLoc(),
              update.getIds() ? optimizer.rowsKernel()
                              : std::string(optimizer.kernel()),
              inputs, outputs, attrs, scalars);
  call->setAttr(plan::kUpdateAttr, builder_.getUnitAttr());
  if (isDelayed)
    call->setAttr(kDelayedAttr, builder_.getUnitAttr());
  if (!table)
    return;
  ReplayedRows stripe;
  stripe.stripes = table->isWholeEachStep ? 1 : planning::kReplaySteps;
  createReplay(builder_, update.getLoc(), *table, tensors, stripe);
}

void ActionLowering::lowerConstant(ConstantOp constant) {
  RankedTensorType type = typeOf(constant.getResult());
  // Kernels take splats as immediate values.
  if (!constantNeedsMemory(constant))
    return;
  auto splat = dyn_cast<SplatElementsAttr>(constant.getValue());
  if (!splat) {
    plan::BufferOp buffer =
        stage_.constantBuffer(constant.getValue(), constant.getLoc());
    views_[constant.getResult()] =
        View::dense(buffer.getSymNameAttr(), type.getShape());
    return;
  }
  // One element, seen with strides 0.
  View one = newBuffer(RankedTensorType::get({}, type.getElementType()),
                       constant.getLoc());
  library(constant.getLoc(), "fill", {}, {one}, {},
          {splatScalar(constant.getResult())});
  views_[constant.getResult()] = expandView(one, type.getShape());
}

void ActionLowering::lowerReshape(ReshapeOp reshape) {
  View from = viewOf(reshape.getX());
  auto shape = typeOf(reshape.getY()).getShape();
  if (auto view = reshapeView(from, shape))
    return setView(reshape.getY(), *view);
  // Strides cannot say it: bring the elements into row-major order, at once
  // where the result goes if possible.
  auto found = destinations_.find(reshape.getY());
  if (found != destinations_.end()) {
    if (auto target = reshapeView(found->second.view, from.shape)) {
      copy(reshape.getLoc(), from, *target);
      views_[reshape.getY()] = found->second.view;
      return;
    }
  }
  View dense = newBuffer(typeOf(reshape.getX()), reshape.getLoc());
  copy(reshape.getLoc(), from, dense);
  setView(reshape.getY(), *reshapeView(dense, shape));
}

void ActionLowering::lowerPad(PadOp pad) {
  View whole = outputFor(pad.getY());
  Type element = typeOf(pad.getY()).getElementType();
  double value = pad.getValue().convertToDouble();
  Attribute scalar =
      isa<FloatType>(element)
          ? realScalar(stage_.context(), value)
          : integerScalar(stage_.context(), static_cast<int64_t>(value));
  library(pad.getLoc(), "fill", {}, {whole}, {}, {scalar});
  SmallVector<int64_t> steps;
  for (int64_t interior : pad.getInterior())
    steps.push_back(interior + 1);
  View inner =
      sliceView(whole, pad.getLow(), typeOf(pad.getX()).getShape(), steps);
  if (inner.toAttr().getNumElements())
    copy(pad.getLoc(), viewOf(pad.getX()), inner);
  views_[pad.getY()] = whole;
}

// Parts that their producers could not write in place are copied; neighbours
// that are one splat are filled at once.
void ActionLowering::lowerConcat(ConcatOp concat) {
  View whole = concats_.at(concat);
  int64_t axis = concat.getAxis();
  SmallVector<int64_t> starts(whole.shape.size(), 0);
  SmallVector<int64_t> steps(whole.shape.size(), 1);
  Attribute filling; // the scalar of the run that ends at `starts`
  View run;
  auto finishRun = [&] {
    if (filling)
      library(concat.getLoc(), "fill", {}, {run}, {}, {filling});
    filling = {};
  };
  for (Value input : concat.getInputs()) {
    auto shape = typeOf(input).getShape();
    View part = sliceView(whole, starts, shape, steps);
    starts[axis] += shape[axis];
    if (Attribute scalar = splatScalar(input)) {
      if (filling == scalar) {
        run.shape[axis] += shape[axis];
      } else {
        finishRun();
        run = part;
        filling = scalar;
      }
      continue;
    }
    finishRun();
    View from = viewOf(input);
    if (!(from == part))
      copy(concat.getLoc(), from, part);
  }
  finishRun();
  views_[concat.getResult()] = whole;
}

void ActionLowering::lowerLibrary(Operation *op, const LibraryCall &call) {
  SmallVector<View> inputs;
  for (Value input : call.inputs)
    inputs.push_back(viewOf(input));
  bool accumulate = false;
  SmallVector<View> outputs = outputsFor(call.outputs, accumulate);
  plan::LibraryOp instruction = library(op->getLoc(), call.op, inputs, outputs,
                                        call.attrs, call.scalars, accumulate);
  if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
    instruction.setFlopsAttr(builder_.getF64FloatAttr(ruled.getFlops()));
  finishOutputs(call.outputs, outputs);
}

// The product and what it does with its result: one instruction.
void ActionLowering::lowerProduct(const Epilogue &epilogue) {
  Operation *product = epilogue.product;
  LibraryCall call = *libraryCallOf(product);
  SmallVector<Location> locations{product->getLoc()};
  double flops = cast<ShardingRuleOpInterface>(product).getFlops();
  for (Operation *op : epilogue.ops) {
    locations.push_back(op->getLoc());
    if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
      flops += ruled.getFlops();
  }
  auto attribute = [&](StringRef name, StringRef value) {
    call.attrs.push_back(
        builder_.getNamedAttr(name, builder_.getStringAttr(value)));
  };
  call.outputs = {epilogue.result};
  if (epilogue.source)
    call.inputs = {epilogue.source};
  if (epilogue.sums) {
    call.outputs.push_back(epilogue.sums);
    attribute("sum", std::to_string(epilogue.summed));
  }
  if (epilogue.bias) {
    call.inputs.push_back(epilogue.bias);
    attribute("bias", "1");
  }
  if (epilogue.gelu == Epilogue::Gelu::Gradient) {
    call.inputs.push_back(epilogue.argument);
    attribute("gelu", "gradient");
  } else if (epilogue.gelu == Epilogue::Gelu::Forward) {
    attribute("gelu", epilogue.argument ? "keep" : "forward");
    if (epilogue.argument)
      call.outputs.push_back(epilogue.argument);
  }
  SmallVector<View> inputs;
  for (Value input : call.inputs)
    inputs.push_back(viewOf(input));
  bool accumulate = false;
  SmallVector<View> outputs = outputsFor(call.outputs, accumulate);
  plan::LibraryOp instruction =
      library(FusedLoc::get(stage_.context(), locations), call.op, inputs,
              outputs, call.attrs, call.scalars, accumulate);
  instruction.setFlopsAttr(builder_.getF64FloatAttr(flops));
  finishOutputs(call.outputs, outputs);
}

//===----------------------------------------------------------------------===//
// Generated kernels
//===----------------------------------------------------------------------===//

LogicalResult ActionLowering::lowerKernel(ArrayRef<Operation *> group) {
  KernelOperands operands = kernelOperandsOf(
      group, [&](Value value) { return destinations_.contains(value); });
  SmallVector<View> inputs;
  for (Value input : operands.inputs)
    inputs.push_back(viewOf(input));
  bool accumulate = false;
  SmallVector<View> outputs = outputsFor(operands.outputs, accumulate);
  FailureOr<func::FuncOp> kernel =
      stage_.kernels().get(group, operands, inputs, outputs, accumulate);
  if (failed(kernel))
    return failure();
  SmallVector<Location> locations;
  double flops = 0;
  for (Operation *op : group) {
    locations.push_back(op->getLoc());
    if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
      flops += ruled.getFlops();
  }
  auto instruction = plan::KernelOp::create(
      builder_, FusedLoc::get(stage_.context(), locations),
      FlatSymbolRefAttr::get(kernel->getSymNameAttr()),
      builder_.getI64IntegerAttr(0), builder_.getArrayAttr({}),
      accumulate ? builder_.getUnitAttr() : UnitAttr(), viewArray(inputs),
      viewArray(outputs), builder_.getI64IntegerAttr(0),
      builder_.getF64FloatAttr(flops), builder_.getF64FloatAttr(0));
  // Reads and writes each element once, so an output may be an input.
  auto isLossGradient = [](Operation *op) {
    return isa<SoftmaxCrossEntropyGradOp>(op);
  };
  if (llvm::all_of(group, [&](Operation *op) {
        return op->hasTrait<Pointwise>() || isLossGradient(op);
      })) {
    instruction->setAttr("in_place", builder_.getUnitAttr());
    // What planning counts on, which knows no other kernels of this kind.
    if (group.size() == 1 && isLossGradient(group.front()))
      instruction->setAttr(kOverKeptAttr, builder_.getUnitAttr());
  }
  finishOutputs(operands.outputs, outputs);
  return success();
}

} // namespace merak::lowering
