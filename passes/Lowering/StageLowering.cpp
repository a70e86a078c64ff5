#include "passes/Lowering/StageLowering.h"

#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/Copies.h"
#include "dialects/Pipe/FirstReaders.h"
#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/ActionLowering.h"
#include "passes/Lowering/Pitch.h"
#include "runtime/plan/Entries.h"

#include "mlir/IR/IRMapping.h"

#include <set>

using namespace mlir;

namespace merak::lowering {

namespace {

void collectNames(Location location, SmallVectorImpl<std::string> &names) {
  if (auto named = dyn_cast<NameLoc>(location)) {
    std::string name = named.getName().str();
    if (!llvm::is_contained(names, name))
      names.push_back(name);
  } else if (auto fused = dyn_cast<FusedLoc>(location)) {
    for (Location part : fused.getLocations())
      collectNames(part, names);
  } else if (auto call = dyn_cast<CallSiteLoc>(location)) {
    collectNames(call.getCallee(), names);
  }
}

} // namespace

std::string nameOf(Location location) {
  SmallVector<std::string> names;
  collectNames(location, names);
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > kShown)
    text += ", and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

ActionId idOf(pipe::ActionOp action) {
  return {action.getKind(), static_cast<int>(action.getChunk())};
}

StageLowering::StageLowering(pipe::StageOp stage, ModuleOp module,
                             KernelFactory &kernels,
                             ArrayRef<Transfer> transfers, Sends sends)
    : stage_(stage), module_(module), builder_(module.getContext()),
      mesh_(dist::meshOf(stage)), kernels_(kernels), transfers_(transfers),
      sends_(sends) {}

bool StageLowering::isForGpu() const {
  return dist::ClusterAttr::of(module_).isCuda();
}

LogicalResult StageLowering::run() {
  pipe::ScheduleAttr schedule = stage_.getScheduleAttr();
  if (!schedule)
    return stage_.emitOpError("has no schedule; the schedule phase sets it");
  schedule_ = schedule.getSteps().vec();
  collectValues();
  markTransfers();

  builder_.setInsertionPointAfter(stage_);
  program_ = plan::ProgramOp::create(
      builder_, stage_.getLoc(), stage_.getSymName(), stage_.getIndex(),
      builder_.getStrArrayAttr({}), builder_.getArrayAttr({}), schedule, 0, 0);
  for (StringRef own : {dist::kMeshAttr, dist::kDevicesAttr})
    if (Attribute attribute = stage_->getAttr(own))
      program_->setAttr(own, attribute);
  stage_.setSymName((stage_.getSymName() + ".lowered").str());
  body_ = &program_.getBody().emplaceBlock();
  builder_.setInsertionPointToEnd(body_);
  streams_ = {builder_.getStringAttr("compute"),
              builder_.getStringAttr("collectives")};

  for (StringRef entry : {kBeginEntry, kFlushEntry})
    names_[entry] = 1; // values of these names get others
  findFirstWrites();
  createBuffers();
  createReplayed();
  createSlots();
  if (failed(createProcedures()))
    return failure();
  createZeroing();
  createCalls();
  if (failed(createEntries()))
    return failure();
  createOutputs();
  program_.setStreamsAttr(builder_.getArrayAttr(streams_));
  program_.setGroupsAttr(builder_.getArrayAttr(groups_));
  stage_.erase();
  return success();
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

NamedValue *StageLowering::find(StringRef name) {
  auto it = values_.find(builder_.getStringAttr(name));
  return it == values_.end() ? nullptr : &it->second;
}

void StageLowering::collectValues() {
  for (auto value : stage_.getOps<pipe::ValueOp>())
    values_[value.getSymNameAttr()].op = value;
  for (auto action : stage_.getOps<pipe::ActionOp>()) {
    auto touch = [&](StringRef name) -> NamedValue & {
      NamedValue &value = *find(name);
      value.actions.insert(idOf(action));
      return value;
    };
    for (Operation &op : action.getBody().front()) {
      if (auto load = dyn_cast<pipe::LoadOp>(op)) {
        touch(load.getValue());
      } else if (auto store = dyn_cast<pipe::StoreOp>(op)) {
        touch(store.getValue()).accumulates |= store.getAccumulate();
      } else if (auto update = dyn_cast<pipe::UpdateOp>(op)) {
        touch(update.getParameter());
        for (auto state : update.getStates().getAsRange<FlatSymbolRefAttr>())
          touch(state.getValue());
        if (auto copy =
                update->getAttrOfType<FlatSymbolRefAttr>(pipe::kCopyAttr))
          touch(copy.getValue());
      }
    }
  }
  // A constant that only its copy is made of has a place, too.
  for (auto &[name, value] : values_)
    if (auto of = value.op->getAttrOfType<FlatSymbolRefAttr>(pipe::kCopyOfAttr))
      find(of.getValue())
          ->actions.insert(value.actions.begin(), value.actions.end());
}

void StageLowering::markTransfers() {
  for (const Transfer &transfer : transfers_) {
    if (transfer.sourceStage == stage_.getSymName()) {
      NamedValue &value = *find(transfer.sourceValue);
      value.sent = true;
      value.actions.insert(transfer.sent);
      const std::vector<int> &more = transfer.room.departures;
      value.departures.resize(std::max(value.departures.size(), more.size()));
      for (auto [mine, other] : llvm::zip(value.departures, more))
        mine = std::max(mine, other);
    }
    if (transfer.targetStage != stage_.getSymName())
      continue;
    NamedValue &value = *find(transfer.targetValue);
    value.received = true;
    value.arrivals = transfer.room.arrivals;
    // It is there while R runs, if R waits for it.
    if (transfer.received.action == Action::B &&
        hasLateRecompute(transfer.received.chunk))
      value.actions.insert({Action::R, transfer.received.chunk});
  }
}

// Buffers that are added to hold zeros first, or their first store of the step
// overwrites: possible where that store runs once a step.
void StageLowering::findFirstWrites() {
  llvm::DenseMap<StringAttr, std::set<ActionId>> writers;
  for (auto action : stage_.getOps<pipe::ActionOp>())
    for (auto store : action.getOps<pipe::StoreOp>())
      if (store.getAccumulate())
        writers[store.getValueAttr().getAttr()].insert(idOf(action));
  for (auto &[name, ids] : writers)
    for (const Step &step : schedule_)
      if (ids.count(step.id())) {
        if (countCalls(step.id()) == 1)
          values_[name].overwriteIn = step.id();
        values_[name].overwrites = values_[name].overwriteIn.has_value();
        break;
      }
}

int64_t StageLowering::countCalls(ActionId action) const {
  return llvm::count_if(schedule_,
                        [&](const Step &step) { return step.id() == action; });
}

bool StageLowering::hasLateRecompute(int64_t chunk) const {
  return llvm::any_of(schedule_, [&](const Step &step) {
    return step.isLate() && step.chunk == chunk;
  });
}

plan::BufferOp StageLowering::createBuffer(const Twine &wish,
                                           plan::Category category,
                                           RankedTensorType type,
                                           plan::ProcedureOp procedure,
                                           Location location) {
  OpBuilder::InsertionGuard guard(builder_);
  if (lastBuffer_)
    builder_.setInsertionPointAfter(lastBuffer_);
  else
    builder_.setInsertionPointToStart(body_);
  auto buffer = plan::BufferOp::create(
      builder_, location, uniqueName(wish), category, type,
      procedure ? FlatSymbolRefAttr::get(procedure.getSymNameAttr())
                : FlatSymbolRefAttr(),
      IntegerAttr(), 1, 0, -1, StringAttr(), dist::LayoutAttr());
  lastBuffer_ = buffer;
  buffers_[buffer.getSymNameAttr()] = buffer;
  return buffer;
}

std::string StageLowering::uniqueName(const Twine &wish) {
  std::string name = wish.str();
  while (!name.empty() && name.back() == ':')
    name.pop_back();
  int &count = names_[name];
  ++count;
  if (count == 1)
    return name;
  std::string numbered = name + "#" + std::to_string(count);
  names_[numbered] = 1;
  return numbered;
}

plan::BufferOp StageLowering::constantBuffer(ElementsAttr value,
                                             Location location) {
  plan::BufferOp &buffer = constants_[value];
  if (buffer)
    return buffer;
  // The same constant may serve several stages.
  auto type = cast<RankedTensorType>(value.getShapedType());
  StringAttr name;
  for (auto parameter : module_.getOps<train::ParameterOp>())
    if (parameter.getValueAttr() == value)
      name = parameter.getSymNameAttr();
  if (!name) {
    OpBuilder atStart = OpBuilder::atBlockBegin(module_.getBody());
    std::string wish;
    int number = 0;
    do
      wish = "constant." + std::to_string(number++);
    while (module_.lookupSymbol(wish));
    auto parameter = train::ParameterOp::create(atStart, location, wish, type,
                                                /*trainable=*/false,
                                                train::SourceAttr(), value);
    name = parameter.getSymNameAttr();
  }
  buffer = createBuffer(name.getValue(), plan::Category::parameters, type,
                        nullptr, location);
  buffer.setTensorAttr(name);
  buffer.setLayoutAttr(dist::LayoutAttr::get(
      context(), layout::Layout::replicated(type.getShape().vec())));
  return buffer;
}

void StageLowering::createBuffers() {
  using pipe::ValueKind;
  for (auto &[name, value] : values_) {
    pipe::ValueOp op = value.op;
    ValueKind kind = op.getKind();
    if (kind == ValueKind::input || value.actions.empty())
      continue;
    plan::Category category = plan::Category::activations;
    const bool isCopy = op->hasAttr(pipe::kCopyOfAttr);
    if (kind == ValueKind::parameter || kind == ValueKind::constant || isCopy)
      category = plan::Category::parameters;
    else if (kind == ValueKind::state || kind == ValueKind::carried)
      category = plan::Category::optimizer;
    else if (kind == ValueKind::gradient)
      category = plan::Category::gradients;
    else if (kind == ValueKind::step || kind == ValueKind::result)
      category = plan::Category::workspace;
    else if (value.received || (value.sent && value.actions.size() == 1))
      category = plan::Category::communication;
    auto type = cast<RankedTensorType>(op.getType());
    if (isForGpu() && !value.received && !value.sent && !isCopy &&
        wantsPitch(stage_, op))
      type = withPitch(type);
    value.buffer =
        createBuffer(name.getValue(), category, type, nullptr, op.getLoc());
    if (kind == ValueKind::parameter || kind == ValueKind::constant ||
        kind == ValueKind::state) {
      value.buffer.setTensorAttr(op.getTensorAttr());
      value.buffer.setLayoutAttr(op.getLayoutAttr());
    }
  }
}

// Beside tables whose rows may be behind. Only this program knows of them: a
// checkpoint is of rows that have all taken every step.
void StageLowering::createReplayed() {
  for (auto action : stage_.getOps<pipe::ActionOp>())
    for (auto update : action.getOps<pipe::UpdateOp>()) {
      if (!update->hasAttr(train::kReplayedAttr))
        continue;
      ReplayedTable table{update,
                          !isOnlyLookedUp(stage_, update.getParameter())};
      auto make = [&](StringRef name, RankedTensorType type) {
        return createBuffer(update.getParameter() + "." + name,
                            plan::Category::optimizer, type, nullptr,
                            update.getLoc());
      };
      auto type =
          cast<RankedTensorType>(find(update.getParameter())->op.getType());
      table.reached = make("reached", reachedType(type));
      table.history = make("history", historyType(context()));
      replayed_[update.getParameterAttr().getAttr()] = table;
    }
}

const ReplayedTable *StageLowering::replayed(StringRef parameter) {
  auto it = replayed_.find(builder_.getStringAttr(parameter));
  return it == replayed_.end() ? nullptr : &it->second;
}

SmallVector<View> StageLowering::tensorsOf(pipe::UpdateOp update) {
  SmallVector<View> views{wholeOf(find(update.getParameter())->buffer)};
  for (auto state : update.getStates().getAsRange<FlatSymbolRefAttr>())
    views.push_back(wholeOf(find(state.getValue())->buffer));
  return views;
}

// Values of a microbatch that live from and to the same actions share their
// slot numbers.
void StageLowering::createSlots() {
  using Key = std::tuple<std::set<ActionId>, int64_t, int64_t, std::vector<int>,
                         std::vector<int>, bool>;
  std::map<Key, int64_t> classes;
  for (auto &[name, value] : values_) {
    if (!value.buffer)
      continue;
    bool perMicrobatch = llvm::none_of(
        value.actions, [](ActionId id) { return isOncePerStep(id.action); });
    pipe::ValueKind kind = value.op.getKind();
    bool result = kind == pipe::ValueKind::result;
    if (!perMicrobatch || (kind != pipe::ValueKind::activation && !result))
      continue;
    // A transfer runs beside the computation: it may begin while the previous
    // microbatch still computes, or end while the next one already does.
    int64_t before = value.received ? 1 : 0, after = value.sent ? 1 : 0;
    auto [it, fresh] =
        classes.emplace(Key{value.actions, before, after, value.arrivals,
                            value.departures, result},
                        slotClasses_.size());
    if (fresh) {
      slotClasses_.push_back(
          result ? memory::slotForEach(schedule_, value.actions)
                 : memory::planSlots(schedule_, value.actions, before, after,
                                     value.arrivals, value.departures));
    }
    value.buffer.setSlots(std::max<int64_t>(1, slotClasses_[it->second].slots));
    value.buffer.setSlotClass(it->second);
  }
}

//===----------------------------------------------------------------------===//
// Procedures
//===----------------------------------------------------------------------===//

LogicalResult StageLowering::createProcedures() {
  // Lowered in the order in which they first run, so that the first write to
  // an accumulator is known.
  std::map<ActionId, pipe::ActionOp> actions;
  for (auto action : stage_.getOps<pipe::ActionOp>())
    actions[idOf(action)] = action;
  LogicalResult result = success();
  std::set<ActionId> done;
  for (const Step &step : schedule_) {
    if (!done.insert(step.id()).second)
      continue;
    auto it = actions.find(step.id());
    if (it == actions.end()) {
      result = stage_.emitOpError("schedules action ")
               << letter(step.action) << ", which it does not have";
      continue;
    }
    pipe::ActionOp action = it->second;
    builder_.setInsertionPointToEnd(body_);
    auto procedure = plan::ProcedureOp::create(
        builder_, action.getLoc(),
        uniqueName(program_.getSymName() + "." + action.getSymName()),
        step.action);
    procedure.getBody().emplaceBlock();
    procedures_[step.id()] = procedure;
    if (step.action == Action::B && hasLateRecompute(step.chunk)) {
      auto receives = plan::ProcedureOp::create(
          builder_, action.getLoc(),
          uniqueName(procedure.getSymName() + ".receive"), Action::B);
      receives.getBody().emplaceBlock();
      createReceives(receives, step.id());
      if (receives.getBody().front().empty())
        receives.erase();
      else
        receives_[step.id()] = receives;
    } else {
      createReceives(procedure, step.id());
    }
    if (failed(ActionLowering(*this, action, procedure).run()))
      result = failure();
    createSends(procedure, step.id());
  }
  for (auto &[id, action] : actions)
    if (!done.count(id))
      result = action.emitOpError("is not scheduled");
  return result;
}

// Each channel has its own stream, and the transfers of a stream run in the
// same order at both ends: those of one pair of actions.
uint64_t StageLowering::streamOf(const Transfer &transfer, bool send) {
  int64_t peer = send ? transfer.targetIndex : transfer.sourceIndex;
  std::string name = std::string(send ? "send to" : "receive from") +
                     " pp=" + std::to_string(peer) + " " + str(transfer.sent) +
                     "-" + str(transfer.received);
  auto [it, fresh] = channelStreams_.try_emplace(name, streams_.size());
  if (fresh)
    streams_.push_back(builder_.getStringAttr(name));
  return it->second;
}

// Between stages of unlike meshes the value goes in the boxes that two ranks
// share, which its layouts say.
void StageLowering::noteLayouts(plan::ProcedureOp procedure,
                                const Transfer &transfer) {
  if (program_->hasAttr(dist::kDevicesAttr))
    procedure.getBody().front().back().setAttr(
        kTransferLayoutsAttr,
        builder_.getArrayAttr({transfer.sourceLayout, transfer.targetLayout}));
}

void StageLowering::createReceives(plan::ProcedureOp procedure,
                                   ActionId action) {
  builder_.setInsertionPointToEnd(&procedure.getBody().front());
  for (const Transfer &transfer : transfers_) {
    if (transfer.targetStage != program_.getSymName() ||
        transfer.received != action)
      continue;
    NamedValue &value = *find(transfer.targetValue);
    View view =
        View::dense(value.buffer.getSymNameAttr(),
                    cast<RankedTensorType>(value.buffer.getType()).getShape());
    plan::RecvOp::create(
        builder_, transfer.location, transfer.channel,
        builder_.getDictionaryAttr(builder_.getNamedAttr(
            "pp", builder_.getI64IntegerAttr(transfer.sourceIndex))),
        builder_.getArrayAttr({}), builder_.getArrayAttr({view.toAttr()}),
        builder_.getI64IntegerAttr(streamOf(transfer, false)),
        builder_.getF64FloatAttr(0), builder_.getF64FloatAttr(0));
    noteLayouts(procedure, transfer);
  }
}

void StageLowering::createSends(plan::ProcedureOp procedure, ActionId action) {
  builder_.setInsertionPointToEnd(&procedure.getBody().front());
  for (const Transfer &transfer : transfers_) {
    if (transfer.sourceStage != program_.getSymName() ||
        transfer.sent != action)
      continue;
    NamedValue &value = *find(transfer.sourceValue);
    View view =
        View::dense(value.buffer.getSymNameAttr(),
                    cast<RankedTensorType>(value.buffer.getType()).getShape());
    // An exchange of gradients is what its action is for.
    const bool early =
        sends_ == Sends::Early || isOncePerStep(transfer.sent.action);
    const uint64_t stream = !early && sends_ == Sends::Blocking
                                ? plan::kComputeStream
                                : streamOf(transfer, true);
    auto send = plan::SendOp::create(
        builder_, transfer.location, transfer.channel,
        builder_.getDictionaryAttr(builder_.getNamedAttr(
            "pp", builder_.getI64IntegerAttr(transfer.targetIndex))),
        builder_.getArrayAttr({view.toAttr()}), builder_.getArrayAttr({}),
        builder_.getI64IntegerAttr(stream), builder_.getF64FloatAttr(0),
        builder_.getF64FloatAttr(0));
    if (!early)
      send->setAttr(plan::kAfterAllAttr, builder_.getUnitAttr());
    noteLayouts(procedure, transfer);
  }
}

// Accumulators whose first store does not overwrite are cleared at the start
// of the step; those that the step before left behind the step by them.
void StageLowering::createZeroing() {
  for (auto &[name, value] : values_) {
    bool cleared = value.accumulates && value.buffer && !value.overwrites;
    if (!cleared)
      continue;
    const bool isLeft = value.op.getKind() == pipe::ValueKind::carried;
    if (!isLeft && !zeroing_) {
      builder_.setInsertionPointToEnd(body_);
      zeroing_ = plan::ProcedureOp::create(
          builder_, stage_.getLoc(),
          uniqueName(program_.getSymName() + ".clear"), Action::P);
      zeroing_.getBody().emplaceBlock();
    }
    plan::ProcedureOp at = isLeft ? procedures_.at({Action::G, 0}) : zeroing_;
    builder_.setInsertionPointToEnd(&at.getBody().front());
    auto type = cast<RankedTensorType>(value.buffer.getType());
    fill(value.op.getLoc(), value.buffer,
         isa<FloatType>(type.getElementType()) ? realScalar(context(), 0)
                                               : integerScalar(context(), 0));
  }
}

void StageLowering::fill(Location location, plan::BufferOp buffer,
                         Attribute scalar) {
  plan::LibraryOp::create(
      builder_, location, builder_.getStringAttr("fill"),
      builder_.getDictionaryAttr({}), builder_.getArrayAttr({scalar}),
      UnitAttr(), builder_.getArrayAttr({}),
      builder_.getArrayAttr({wholeOf(buffer).toAttr()}),
      builder_.getI64IntegerAttr(0), builder_.getF64FloatAttr(0),
      builder_.getF64FloatAttr(0));
}

void StageLowering::createCalls() {
  builder_.setInsertionPointToEnd(body_);
  SmallVector<int64_t> slots(slotClasses_.size(), 0);
  auto call = [&](plan::ProcedureOp procedure, int64_t microbatch) {
    for (auto [slot, plan] : llvm::zip(slots, slotClasses_))
      slot = microbatch >= 0 &&
                     microbatch < static_cast<int64_t>(plan.slotOf.size())
                 ? plan.slotOf[microbatch]
                 : 0;
    return plan::CallOp::create(
        builder_, procedure.getLoc(),
        FlatSymbolRefAttr::get(procedure.getSymNameAttr()),
        builder_.getI64IntegerAttr(microbatch),
        builder_.getDenseI64ArrayAttr(slots),
        builder_.getDenseI64ArrayAttr({}));
  };
  if (zeroing_)
    call(zeroing_, -1);
  std::set<std::pair<int64_t, int64_t>> received; // microbatch, chunk
  for (const Step &step : schedule_) {
    auto receives = receives_.find({Action::B, step.chunk});
    bool waits = step.isLate() && receives != receives_.end();
    if ((waits || step.action == Action::B) && receives != receives_.end() &&
        received.insert({step.microbatch, step.chunk}).second)
      call(receives->second, step.microbatch);
    plan::CallOp made = call(procedures_.at(step.id()),
                             isOncePerStep(step.action) ? -1 : step.microbatch);
    if (waits)
      made->setAttr(plan::kAfterPreviousAttr, builder_.getUnitAttr());
  }
}

// What the run calls between steps (runtime/plan/Entries.h).
LogicalResult StageLowering::createEntries() {
  const bool carries = llvm::any_of(values_, [](auto &value) {
    return value.second.op.getKind() == pipe::ValueKind::carried;
  });
  const bool flushes = !replayed_.empty() || carries;
  if (!flushes && llvm::none_of(values_, [](auto &value) {
        return value.second.op->hasAttr(pipe::kCopyOfAttr);
      }))
    return success();
  auto entry = [&](StringRef name) {
    builder_.setInsertionPointToEnd(body_);
    auto procedure =
        plan::ProcedureOp::create(builder_, stage_.getLoc(), name, Action::U);
    builder_.setInsertionPointToEnd(&procedure.getBody().emplaceBlock());
    return procedure;
  };
  entry(kBeginEntry);
  for (auto &[name, table] : replayed_)
    fill(table.update.getLoc(), table.reached, namedScalar(context(), "step"));
  setCarried();
  makeCopies();
  if (!flushes)
    return success();
  plan::ProcedureOp flush = entry(kFlushEntry);
  for (auto &[name, table] : replayed_)
    createReplay(builder_, table.update.getLoc(), table,
                 tensorsOf(table.update), {});
  return carries ? createFlush(flush) : success();
}

// What the next step would do for what this one left.
LogicalResult StageLowering::createFlush(plan::ProcedureOp procedure) {
  builder_.setInsertionPointToEnd(&stage_.getBody().front());
  auto action = pipe::ActionOp::create(builder_, stage_.getLoc(),
                                       builder_.getStringAttr("flush"),
                                       Action::U, uint64_t{0});
  OpBuilder inside = OpBuilder::atBlockEnd(&action.getBody().emplaceBlock());
  for (Action kind : {Action::G, Action::U})
    for (auto other : stage_.getOps<pipe::ActionOp>()) {
      if (other == action || other.getKind() != kind)
        continue;
      IRMapping mapping;
      for (Operation &op : other.getBody().front())
        if (op.hasAttr(train::kDelayedAttr))
          inside.clone(op, mapping);
    }
  if (failed(ActionLowering(*this, action, procedure).run()))
    return failure();
  for (auto op : procedure.getOps<plan::CollectiveOp>())
    op.setStream(plan::kComputeStream);
  builder_.setInsertionPointToEnd(&procedure.getBody().front());
  setCarried();
  return success();
}

// Of the parameters that were loaded; from then on updates write them.
void StageLowering::makeCopies() {
  for (auto &[name, value] : values_)
    if (auto of = value.op->getAttrOfType<FlatSymbolRefAttr>(pipe::kCopyOfAttr);
        of && value.buffer)
      plan::LibraryOp::create(
          builder_, value.op.getLoc(), builder_.getStringAttr("copy"),
          builder_.getDictionaryAttr({}), builder_.getArrayAttr({}), UnitAttr(),
          builder_.getArrayAttr(
              {wholeOf(find(of.getValue())->buffer).toAttr()}),
          builder_.getArrayAttr({wholeOf(value.buffer).toAttr()}),
          builder_.getI64IntegerAttr(0), builder_.getF64FloatAttr(0),
          builder_.getF64FloatAttr(0));
}

void StageLowering::setCarried() {
  for (auto &[name, value] : values_) {
    if (value.op.getKind() != pipe::ValueKind::carried)
      continue;
    Attribute initial = value.op->getAttr(pipe::kInitialAttr);
    auto real = dyn_cast_or_null<FloatAttr>(initial);
    auto integer = dyn_cast_or_null<IntegerAttr>(initial);
    if (!real && !integer)
      continue;
    auto type = cast<RankedTensorType>(value.buffer.getType());
    fill(value.op.getLoc(), value.buffer,
         isa<FloatType>(type.getElementType())
             ? realScalar(context(),
                          real ? real.getValueAsDouble()
                               : static_cast<double>(integer.getInt()))
             : integerScalar(context(), integer.getInt()));
  }
}

// Results of the step, under the names that the user knows.
void StageLowering::createOutputs() {
  builder_.setInsertionPointToEnd(body_);
  for (auto &[name, value] : values_) {
    if (value.op.getKind() != pipe::ValueKind::result || !value.buffer)
      continue;
    auto type = cast<RankedTensorType>(value.op.getType());
    SmallVector<int64_t> shape(type.getShape());
    if (auto layout = value.op.getLayoutAttr()) {
      std::vector<int64_t> global = layout.getLayout().globalShape();
      shape.assign(global.begin(), global.end());
    }
    plan::OutputOp::create(
        builder_, value.op.getLoc(),
        value.op.getTensorAttr() ? value.op.getTensorAttr() : name,
        FlatSymbolRefAttr::get(value.buffer.getSymNameAttr()),
        builder_.getDenseI64ArrayAttr(shape), value.op.getLayoutAttr(),
        static_cast<int64_t>(value.buffer.getSlotClass()) >= 0
            ? builder_.getUnitAttr()
            : UnitAttr());
  }
}

int64_t StageLowering::groupOf(ArrayRef<StringRef> axes) {
  ArrayAttr group = builder_.getStrArrayAttr(axes);
  auto it = llvm::find(groups_, group);
  if (it == groups_.end()) {
    groups_.push_back(group);
    return static_cast<int64_t>(groups_.size()) - 1;
  }
  return it - groups_.begin();
}

//===----------------------------------------------------------------------===//
// Transfers of the module
//===----------------------------------------------------------------------===//

namespace {

// The lists of all stages, place by place as the stages have them; nothing if
// one has none, which its own lowering reports.
std::optional<planning::Schedule> scheduleOf(ModuleOp module) {
  planning::Schedule schedule;
  SmallVector<pipe::StageOp> stages(module.getOps<pipe::StageOp>());
  schedule.stages = static_cast<int>(stages.size());
  schedule.order.resize(stages.size());
  for (pipe::StageOp stage : stages) {
    pipe::ScheduleAttr list = stage.getScheduleAttr();
    if (!list || stage.getIndex() >= schedule.order.size())
      return std::nullopt;
    for (const Step &step : list.getSteps()) {
      schedule.microbatches =
          std::max(schedule.microbatches, step.microbatch + 1);
      schedule.chunks = std::max(schedule.chunks, step.chunk + 1);
    }
    schedule.order[stage.getIndex()] = list.getSteps().vec();
  }
  return schedule;
}

// Whether every W of the chunk stands right behind its B.
bool weightsFollow(pipe::StageOp stage, int chunk) {
  pipe::ScheduleAttr schedule = stage.getScheduleAttr();
  if (!schedule)
    return false;
  bool some = false;
  const Step *before = nullptr;
  for (const Step &step : schedule.getSteps()) {
    if (step.action == Action::W && step.chunk == chunk) {
      some = true;
      if (!before || before->action != Action::B || before->chunk != chunk ||
          before->microbatch != step.microbatch)
        return false;
    }
    before = &step;
  }
  return some;
}

void setRooms(ModuleOp module, std::vector<Transfer> &transfers, Sends sends) {
  std::optional<planning::Schedule> schedule = scheduleOf(module);
  if (!schedule)
    return;
  std::vector<planning::Transfer> known;
  std::vector<Transfer *> of;
  for (Transfer &transfer : transfers) {
    const ActionId &from = transfer.sent, &to = transfer.received;
    // The exchange of shared gradients.
    if (isOncePerStep(from.action) || isOncePerStep(to.action))
      continue;
    known.push_back({static_cast<int>(transfer.sourceIndex),
                     static_cast<int>(transfer.targetIndex), from.action,
                     to.action, from.chunk, to.chunk});
    of.push_back(&transfer);
    schedule->chunks = std::max({schedule->chunks, known.back().fromChunk + 1,
                                 known.back().toChunk + 1});
  }
  std::vector<planning::TransferRoom> rooms =
      planning::roomsOf(*schedule, known, sends == Sends::Blocking);
  for (auto [transfer, room] : llvm::zip(of, rooms))
    transfer->room = std::move(room);
}

} // namespace

FailureOr<std::vector<Transfer>> collectTransfers(ModuleOp module,
                                                  Sends sends) {
  std::vector<Transfer> transfers;
  LogicalResult result = success();
  SymbolTableCollection symbols;
  llvm::DenseMap<Operation *, llvm::StringMap<pipe::ActionOp>> readers;
  for (auto stage : module.getOps<pipe::StageOp>())
    readers[stage] = pipe::firstReaders(stage);
  for (auto op : module.getOps<pipe::TransferOp>()) {
    Transfer transfer{op.getSymNameAttr(), op.getLoc()};
    transfer.sent = {op.getKind(), static_cast<int>(op.getChunk())};
    auto stageOf = [&](SymbolRefAttr path, std::string &stageName,
                       std::string &valueName, int64_t &index,
                       dist::LayoutAttr &layout) {
      stageName = path.getRootReference().str();
      valueName = path.getLeafReference().str();
      auto stage = symbols.lookupSymbolIn<pipe::StageOp>(
          module, path.getRootReference());
      index = static_cast<int64_t>(stage.getIndex());
      if (auto value = symbols.lookupSymbolIn<pipe::ValueOp>(
              stage, path.getLeafReference()))
        layout = value.getLayoutAttr();
      return stage;
    };
    auto source =
        stageOf(op.getSource(), transfer.sourceStage, transfer.sourceValue,
                transfer.sourceIndex, transfer.sourceLayout);
    if (sends != Sends::Early && transfer.sent.action == Action::B &&
        weightsFollow(source, transfer.sent.chunk))
      transfer.sent.action = Action::W;
    auto target =
        stageOf(op.getTarget(), transfer.targetStage, transfer.targetValue,
                transfer.targetIndex, transfer.targetLayout);
    pipe::ActionOp reader = readers[target].lookup(transfer.targetValue);
    if (!reader) {
      result = op.emitOpError("brings a value that no action of '")
               << transfer.targetStage << "' loads";
      continue;
    }
    transfer.received = idOf(reader);
    transfers.push_back(transfer);
  }
  if (failed(result))
    return failure();
  setRooms(module, transfers, sends);
  return transfers;
}

} // namespace merak::lowering
