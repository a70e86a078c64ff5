#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Support/RanksAxis.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Planning/DelayedGradients.h"
#include "passes/Sharding/CarriedValues.h"
#include "passes/Sharding/Machine.h"
#include "passes/Sharding/OwnSummand.h"
#include "passes/Sharding/Passes.h"
#include "passes/Sharding/SubmicrobatchChain.h"
#include "runtime/plan/Norms.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <array>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <numeric>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_DELAYGRADIENTS
#include "passes/Sharding/Passes.h.inc"
} // namespace merak

namespace {

RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

double bytesOf(Value value) {
  const RankedTensorType type = typeOf(value);
  return double(type.getNumElements()) *
         std::max(1U, type.getElementTypeBitWidth() / 8);
}

// A gradient that the update sums over replicas: the values in which a rank
// adds up its microbatches, its sum over ranks, and the step that is taken by
// it.
struct ReplicaSum {
  Operation *sum = nullptr; // of the action U
  SmallVector<ValueOp> own; // several of a parameter with several uses
  pipe::UpdateOp update;    // null: it stays in its step
  double bytes = 0;

  AllReduceOp reduce() const { return cast<AllReduceOp>(sum); }
};

// Seconds, and how many of them links carry something that is waited for: those
// inside of nodes, and those between.
struct Span {
  double seconds = 0;
  std::array<double, 2> busy{};

  void add(const Span &other) {
    seconds += other.seconds;
    for (size_t level = 0; level < busy.size(); ++level)
      busy[level] += other.busy[level];
  }
  // Of the links of a level.
  double idle(bool level) const { return seconds - busy[level]; }
};

// Of the actions of one microbatch.
struct ActionTimes {
  Span forward, recompute, backward, weight;
};

// Times of all parts of the model. The first microbatch reaches a part behind
// the forward passes of those in front of it, and the last one leaves a part
// before their backward passes.
class Times {
public:
  Times(ModuleOp module, const SubmicrobatchChain &chain) : chain_(chain) {
    for (auto stage : module.getOps<StageOp>())
      stages_ = std::max(stages_, static_cast<int64_t>(stage.getIndex()) + 1);
    for (auto stage : module.getOps<StageOp>())
      for (auto action : stage.getOps<ActionOp>()) {
        Span *of = slot(parts_[partOf(stage, action)], action.getKind());
        if (!of)
          continue;
        for (Operation &op : action.getBody().front()) {
          before_[&op] = *of;
          of->add(spanOf(&op));
        }
      }
    for (auto transfer : module.getOps<TransferOp>())
      if (transfer.getKind() == pipe::Action::B)
        sends_.insert(transfer.getSource().getRootReference());
  }

  int64_t partOf(StageOp stage, ActionOp action) const {
    return static_cast<int64_t>(action.getChunk()) * stages_ +
           static_cast<int64_t>(stage.getIndex());
  }
  // Since the begin of its action.
  Span before(Operation *op) const { return before_.lookup(op); }
  const ActionTimes &of(int64_t part) const { return parts_.at(part); }
  // W goes into the waits of B where nobody waits for what B sends
  // (passes/Lowering/OverlapGradients.cpp).
  bool joins(StageOp stage) const {
    return !sends_.contains(stage.getSymNameAttr());
  }
  // Forward passes of the parts in front of this one.
  double forwardBefore(int64_t part) const {
    double sum = 0;
    for (const auto &[other, times] : parts_)
      sum += other < part ? times.forward.seconds : 0;
    return sum;
  }
  // Their backward passes.
  double backwardBehind(int64_t part) const {
    double sum = 0;
    for (const auto &[other, times] : parts_)
      if (other < part)
        sum += times.recompute.seconds + times.backward.seconds +
               times.weight.seconds;
    return sum;
  }

private:
  Span spanOf(Operation *op) const {
    Span span{chain_.secondsOf(op), {}};
    if (isCollective(op))
      span.busy[chain_.leavesNode(op)] = span.seconds;
    return span;
  }
  static Span *slot(ActionTimes &times, pipe::Action kind) {
    switch (kind) {
    case pipe::Action::F:
      return &times.forward;
    case pipe::Action::R:
      return &times.recompute;
    case pipe::Action::B:
      return &times.backward;
    case pipe::Action::W:
      return &times.weight;
    default:
      return nullptr;
    }
  }

  const SubmicrobatchChain &chain_;
  int64_t stages_ = 1;
  std::map<int64_t, ActionTimes> parts_;
  llvm::DenseMap<Operation *, Span> before_;
  llvm::DenseSet<StringAttr> sends_;
};

// One stage.
class Delay {
public:
  Delay(StageOp stage, ActionOp action, const Times &times,
        const SubmicrobatchChain &chain, int64_t bucket, bool overlapped)
      : stage_(stage), action_(action), times_(times), chain_(chain),
        bucket_(bucket), overlapped_(overlapped), carried_(stage, action),
        builder_(carried_.builder) {}

  // How many gradients are delayed.
  int64_t run() {
    readStage();
    find();
    std::vector<planning::ReadyGradient> ready;
    for (const ReplicaSum &reduction : reductions_)
      ready.push_back(readyOf(reduction));
    const std::vector<char> chosen = planning::chooseDelayed(ready);
    const int64_t count = std::accumulate(chosen.begin(), chosen.end(), 0);
    tell(ready, chosen, count);
    if (count > 0)
      rewrite(ready, chosen);
    return count;
  }

private:
  //===--------------------------------------------------------------------===//
  // What there is
  //===--------------------------------------------------------------------===//

  void readStage() {
    for (auto action : stage_.getOps<ActionOp>())
      for (Operation &op : action.getBody().front())
        if (auto load = dyn_cast<LoadOp>(op))
          loads_[load.getValue()].push_back(load);
        else if (auto store = dyn_cast<StoreOp>(op))
          stores_[store.getValue()].push_back(store);
  }

  void find() {
    llvm::DenseMap<Operation *, pipe::UpdateOp> updates;
    for (auto update : action_.getOps<pipe::UpdateOp>())
      if (Operation *made = update.getGradient().getDefiningOp())
        updates[made] = update;
    for (Operation &op : action_.getBody().front()) {
      if (!isa<AllReduceOp, ReduceScatterOp>(op))
        continue;
      ReplicaSum reduction{
          &op, {}, updates.lookup(&op), bytesOf(op.getOperand(0))};
      if (!addOwn(op.getOperand(0), reduction.own))
        continue;
      if (!mayWait(reduction))
        reduction.update = {};
      reductions_.push_back(reduction);
    }
  }

  // The gradients that a value adds up; false: it is something else.
  bool addOwn(Value value, SmallVectorImpl<ValueOp> &own) {
    if (auto both = value.getDefiningOp<AddOp>())
      return addOwn(both.getOperand(0), own) && addOwn(both.getOperand(1), own);
    auto load = value.getDefiningOp<LoadOp>();
    auto of = load ? stage_.lookupSymbol<ValueOp>(load.getValue()) : ValueOp();
    if (!of || of.getKind() != ValueKind::gradient)
      return false;
    own.push_back(of);
    return true;
  }

  // A sum of what microbatches left, over replicas and nothing else, of which
  // only the norm and the step on its parameter know.
  bool mayWait(ReplicaSum reduction) {
    auto reduce = dyn_cast<AllReduceOp>(reduction.sum);
    pipe::UpdateOp update = reduction.update;
    if (!reduce || reduction.own.size() != 1 || !update || !update.getClip() ||
        update.getIds() || reduce.getReduction() != "sum" ||
        !typeOf(reduce.getX()).getElementType().isF32() ||
        update.getGradient() != reduce.getY() ||
        loads_[reduction.own.front().getSymName()].size() != 1 ||
        !reduce.getX().hasOneUse())
      return false;
    const MeshAttr mesh = meshOf(stage_);
    bool isSum = false;
    for (Attribute axis : reduce.getAxes()) {
      const StringRef name = cast<StringAttr>(axis).getValue();
      if (isAcrossStages(name.str()))
        return false;
      isSum |= mesh && mesh.getSize(name) > 1;
    }
    return isSum && isReadInMicrobatches(update.getParameter()) &&
           llvm::all_of(stores_[reduction.own.front().getSymName()],
                        [](StoreOp store) { return store.getAccumulate(); }) &&
           llvm::all_of(reduce.getY().getUsers(), [&](Operation *user) {
             return user == update || isa<SquareSumOp>(user);
           });
  }

  // Or by what is made once a step for them: the step by what was left is
  // taken in front of either.
  bool isReadInMicrobatches(StringRef parameter) {
    return llvm::all_of(loads_[parameter], [](LoadOp load) {
      const pipe::Action kind = load->getParentOfType<ActionOp>().getKind();
      return kind == pipe::Action::G ||
             (kind != pipe::Action::P && !isOncePerStep(kind));
    });
  }

  //===--------------------------------------------------------------------===//
  // When it is ready, and needed
  //===--------------------------------------------------------------------===//

  planning::ReadyGradient readyOf(ReplicaSum reduction) {
    planning::ReadyGradient ready;
    // Small ones share the latency of a bucket.
    const double together =
        std::max(reduction.bytes, static_cast<double>(bucket_));
    ready.seconds = chain_.collectiveSeconds(reduction.sum, together) *
                    reduction.bytes / together;
    ready.mayWait = static_cast<bool>(reduction.update);
    const bool level = chain_.leavesNode(reduction.sum);
    ready.left = overlapped_ ? std::numeric_limits<double>::infinity() : 0;
    for (ValueOp own : reduction.own)
      ready.left = std::min(ready.left, leftAfter(own, level));
    ready.needed =
        ready.mayWait ? untilRead(reduction.update.getParameter(), level) : 0;
    return ready;
  }

  // Of the last microbatch's backward pass, behind the last store to a sum.
  double leftAfter(ValueOp own, bool level) {
    double left = std::numeric_limits<double>::infinity();
    for (StoreOp store : stores_[own.getSymName()]) {
      auto action = store->getParentOfType<ActionOp>();
      const int64_t part = times_.partOf(stage_, action);
      const ActionTimes &of = times_.of(part);
      double ready = times_.before(store).idle(level);
      if (action.getKind() == pipe::Action::W)
        ready += times_.joins(stage_) ? madeInBackward(store, level)
                                      : of.backward.idle(level);
      left = std::min(left, of.backward.idle(level) + of.weight.idle(level) -
                                ready + times_.backwardBehind(part));
    }
    return stores_[own.getSymName()].empty() ? 0 : std::max(0.0, left);
  }

  // Of B until it has stored all that a store of W is made from.
  double madeInBackward(StoreOp store, bool level) {
    double seconds = 0;
    SmallVector<Operation *> open{store};
    llvm::SmallPtrSet<Operation *, 8> seen;
    while (!open.empty()) {
      Operation *op = open.pop_back_val();
      if (auto load = dyn_cast<LoadOp>(op))
        for (StoreOp made : stores_[load.getValue()])
          if (made->getParentOfType<ActionOp>().getKind() == pipe::Action::B)
            seconds = std::max(seconds, times_.before(made).idle(level));
      for (Value operand : op->getOperands())
        if (Operation *made = operand.getDefiningOp();
            made && seen.insert(made).second)
          open.push_back(made);
    }
    return seconds;
  }

  // Of the first microbatch's forward pass, before anything reads the parameter
  // or what is made of it once a step.
  double untilRead(StringRef parameter, bool level) {
    llvm::StringSet<> names;
    names.insert(parameter);
    for (LoadOp load : loads_[parameter])
      if (load->getParentOfType<ActionOp>().getKind() == pipe::Action::G)
        addMadeOf(load, names);
    double first = std::numeric_limits<double>::infinity(), whole = 0;
    for (auto action : stage_.getOps<ActionOp>()) {
      if (action.getKind() != pipe::Action::F)
        continue;
      const int64_t part = times_.partOf(stage_, action);
      const double begin = times_.forwardBefore(part);
      whole = std::max(whole, begin + times_.of(part).forward.idle(level));
      for (auto load : action.getOps<LoadOp>())
        if (names.contains(load.getValue()))
          first = std::min(first, begin + times_.before(load).idle(level));
    }
    return std::min(first, whole);
  }

  static void addMadeOf(Operation *op, llvm::StringSet<> &names) {
    for (Operation *user : op->getUsers())
      if (auto store = dyn_cast<StoreOp>(user))
        names.insert(store.getValue());
      else
        addMadeOf(user, names);
  }

  void tell(const std::vector<planning::ReadyGradient> &ready,
            const std::vector<char> &chosen, int64_t count) {
    const planning::GradientWaits none =
        planning::waitsOf(ready, std::vector<char>(ready.size(), 0));
    const planning::GradientWaits waits = planning::waitsOf(ready, chosen);
    double bytes = 0, all = 0;
    for (auto [reduction, isChosen] : llvm::zip(reductions_, chosen)) {
      all += reduction.bytes;
      bytes += isChosen ? reduction.bytes : 0;
    }
    auto opts = remark::RemarkOpts::name("Delayed").category("overlap");
    if (count > 0) {
      remark::passed(stage_.getLoc(), opts) << fmt::format(
          "{}: {} of {} gradients, {:.3g} of {:.3g} MB, are summed beside the "
          "next step's forward pass: of links {:.3f} ms are waited for behind "
          "the backward pass and {:.3f} ms in the forward pass, instead of "
          "{:.3f} ms",
          stage_.getSymName().str(), count, reductions_.size(), bytes / 1e6,
          all / 1e6, waits.behind * 1e3, waits.inside * 1e3, none.behind * 1e3);
      return;
    }
    const bool any =
        llvm::any_of(ready, [](const auto &g) { return g.mayWait; });
    remark::missed(stage_.getLoc(), opts)
        << fmt::format("{}: no gradients are delayed",
                       stage_.getSymName().str())
        << remark::reason(
               "{0}",
               !any ? std::string("none is a plain sum over replicas")
               : none.behind > 0
                   ? fmt::format("of the {:.3f} ms of sums behind the backward "
                                 "pass the forward pass would hide too little",
                                 none.behind * 1e3)
                   : std::string("the backward pass hides their sums"));
  }

  //===--------------------------------------------------------------------===//
  // The change
  //===--------------------------------------------------------------------===//

  void rewrite(const std::vector<planning::ReadyGradient> &ready,
               const std::vector<char> &chosen) {
    std::vector<size_t> order;
    for (size_t i = 0; i < chosen.size(); ++i)
      if (chosen[i])
        order.push_back(i);
    llvm::stable_sort(order, [&](size_t a, size_t b) {
      return ready[a].needed < ready[b].needed;
    });
    Value clip = reductions_[order.front()].update.getClip();
    const Location loc = clip.getLoc();
    // Not a number: before the first step nothing is left.
    const ValueOp factor = carried_.declareCarried(
        loc, "delayed.factor", clip.getType(),
        builder_.getF64FloatAttr(std::numeric_limits<double>::quiet_NaN()));
    std::vector<ReplicaSum> delayed;
    for (size_t i : order)
      delayed.push_back(reductions_[i]);
    countSquares(delayed);
    Block &gather = carried_.gatherAction().getBody().front();
    builder_.setInsertionPointToStart(&gather);
    for (ReplicaSum &reduction : delayed)
      leave(reduction, factor);
    for (ReplicaSum &reduction : delayed) {
      reduction.update.erase();
      Operation *load = reduction.sum->getOperand(0).getDefiningOp();
      reduction.sum->erase();
      if (load->use_empty())
        load->erase();
    }
    builder_.setInsertionPointToEnd(&action_.getBody().front());
    carried_.save(loc, clip, factor);
  }

  // The next step sums what this one has left and takes its step by it.
  void leave(ReplicaSum &reduction, ValueOp factor) {
    pipe::UpdateOp update = reduction.update;
    ValueOp own = reduction.own.front();
    const std::string name =
        (update.getParameter() + ".delayed.gradient").str();
    own.setKind(ValueKind::carried);
    own->setAttr(kInitialAttr, builder_.getI64IntegerAttr(0));
    if (!stage_.lookupSymbol(name)) {
      (void)SymbolTable::replaceAllSymbolUses(own, builder_.getStringAttr(name),
                                              stage_);
      own.setSymName(name);
    }
    const Location loc = update.getLoc();
    Value left = carried_.load(loc, own);
    CarriedValues::mark(left.getDefiningOp());
    Value clip = carried_.load(loc, factor);
    CarriedValues::mark(clip.getDefiningOp());
    IRMapping mapping;
    mapping.map(reduction.reduce().getX(), left);
    Operation *sum = builder_.clone(*reduction.sum, mapping);
    sum->removeAttr("train.gradient_of"); // of another step than others
    CarriedValues::mark(sum);
    mapping.map(update.getClip(), clip);
    CarriedValues::mark(builder_.clone(*update, mapping));
  }

  // The norm counts squares of each replica's own sums: whether all gradients
  // are finite is known in the step that has made them.
  void countSquares(ArrayRef<ReplicaSum> delayed) {
    llvm::MapVector<Attribute, SmallVector<SquareSumOp>> byAxes;
    for (const ReplicaSum &reduction : delayed)
      for (Operation *user : reduction.sum->getResult(0).getUsers())
        if (auto norm = dyn_cast<SquareSumOp>(user))
          byAxes[reduction.reduce().getAxes()].push_back(norm);
    for (auto &[axes, norms] : byAxes) {
      Operation *last = norms.front();
      for (SquareSumOp norm : norms)
        if (last->isBeforeInBlock(norm))
          last = norm;
      builder_.setInsertionPointAfter(last);
      const Location loc = last->getLoc();
      SmallVector<Value> own;
      for (SquareSumOp norm : norms) {
        Value sum = norm.getOperand().getDefiningOp<AllReduceOp>().getX();
        Operation *squares =
            SquareSumOp::create(builder_, loc, norm.getResult().getType(), sum);
        squares->setAttr(kOwnSummandAttr, builder_.getUnitAttr());
        own.push_back(squares->getResult(0));
      }
      Value all = own.size() == 1
                      ? own.front()
                      : Value(ConcatOp::create(builder_, loc, own, 0));
      all = AllReduceOp::create(builder_, loc, all.getType(), all,
                                cast<ArrayAttr>(axes), Reduction::sum);
      for (auto [index, norm] : llvm::enumerate(norms)) {
        Value one = all;
        if (norms.size() > 1)
          one = train::SliceOp::create(
              builder_, loc, all,
              ArrayRef<int64_t>{static_cast<int64_t>(index)},
              ArrayRef<int64_t>{1}, ArrayRef<int64_t>{1});
        norm.getResult().replaceAllUsesWith(one);
      }
      for (SquareSumOp norm : norms)
        norm.erase();
    }
  }

  StageOp stage_;
  ActionOp action_; // U
  const Times &times_;
  const SubmicrobatchChain &chain_;
  int64_t bucket_; // bytes
  bool overlapped_;
  CarriedValues carried_;
  OpBuilder &builder_;
  llvm::StringMap<SmallVector<LoadOp>> loads_;
  llvm::StringMap<SmallVector<StoreOp>> stores_;
  std::vector<ReplicaSum> reductions_;
};

struct DelayGradientsPass
    : merak::impl::DelayGradientsBase<DelayGradientsPass> {
  using DelayGradientsBase::DelayGradientsBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    Result<costmodel::Cluster> cluster = machineOf(module);
    if (!cluster.ok()) {
      module.emitError(cluster.status().str());
      return signalPassFailure();
    }
    auto decision = module->getAttrOfType<DecisionAttr>(kDecisionAttr);
    int64_t count = 0;
    for (auto stage : module.getOps<StageOp>()) {
      if (stage->hasAttr(kDevicesAttr) || stage->hasAttr(kPipelineAttr)) {
        remark::missed(stage.getLoc(),
                       remark::RemarkOpts::name("Delayed").category("overlap"))
            << fmt::format("{}: no gradients are delayed",
                           stage.getSymName().str())
            << remark::reason("{0}",
                              "the stage has a mesh or a pipeline of its own");
        continue;
      }
      const SubmicrobatchChain chain(meshOf(stage), *cluster);
      const Times times(module, chain);
      for (auto action : llvm::to_vector(stage.getOps<ActionOp>()))
        if (action.getKind() == pipe::Action::U)
          count +=
              Delay(stage, action, times, chain,
                    decision ? decision.getGradientBucket() : 0, overlapped)
                  .run();
    }
    gradients += count;
    if (count > 0)
      renameNorm(module);
  }

  // It is another number where replicas have not summed all gradients.
  static void renameNorm(ModuleOp module) {
    for (auto stage : module.getOps<StageOp>())
      for (auto value : stage.getOps<ValueOp>())
        if (value.getKind() == ValueKind::result && value.getTensor() &&
            value.getTensor()->str() == kGradNorm)
          value.setTensorAttr(
              StringAttr::get(module.getContext(), kReplicaNorm));
  }
};

} // namespace
