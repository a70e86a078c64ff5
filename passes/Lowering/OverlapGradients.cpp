// Takes the reductions of gradients out of the update. A gradient is final
// after the last call that touches its buffer; that call gets a procedure of
// its own, in which the reduction stands right behind the last instruction of
// the buffer, on a stream beside the computation. Where no other stage waits
// for the B in front of that W, the two become one, layer by layer, so that
// the first gradients are final long before the end. What the update adds up
// before it reduces, the gradients of several uses of a weight, moves along.
// Gradients of which each replica keeps a part are scattered as they are
// reduced: from then on the part has memory of its own.
//
// Sums of the forward pass over ranks (losses, counts of tokens) are final
// before the last backward pass begins. They go in front of the first
// reductions of gradients, and into a bucket with them: in the update each
// would keep all ranks waiting for a latency of its own.
//
// Sums over the pipelines that hold a parameter are of programs that differ. A
// stage that shares some parameters with one stage of another pipeline and some
// with the next sums over several sets of holders, in one order on all ranks.
// Those sums move that are the first ones of every program which has a part in
// them, and are ready in the same order in all: what moves is still in front of
// all others, so the order stays one. With equal cuts these are all sums.
#include "dialects/Dist/Regather.h"
#include "passes/Lowering/Buckets.h"
#include "passes/Lowering/CopyProcedure.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

#include <functional>
#include <memory>

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_OVERLAPGRADIENTS
#include "passes/Lowering/Passes.h.inc"

namespace {

using plan::ViewAttr;
using Names = lowering::BufferNames;
using lowering::forBuffers;
using lowering::Touched;

// Where a later instruction may stand at the earliest: a place is the number of
// an instruction that it stands in front of, behind others of that place.
class Order {
public:
  void add(const Touched &own, int64_t place) {
    for (StringAttr name : own.reads)
      touched_[name] = std::max(touched_[name], place);
    for (StringAttr name : own.writes)
      addWrite(name, place);
  }
  void addWrite(StringAttr name, int64_t place) {
    touched_[name] = std::max(touched_[name], place);
    written_[name] = std::max(written_[name], place);
  }
  int64_t earliest(const Touched &own) const {
    int64_t place = 0;
    for (StringAttr name : own.reads)
      place = std::max(place, written_.lookup(name));
    for (StringAttr name : own.writes)
      place = std::max(place, touched_.lookup(name));
    return place;
  }

private:
  llvm::DenseMap<StringAttr, int64_t> touched_, written_;
};

class GradientOverlap {
public:
  explicit GradientOverlap(plan::ProgramOp program)
      : program_(program), builder_(program.getContext()) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
    for (auto procedure : program.getOps<plan::ProcedureOp>()) {
      procedures_[procedure.getSymNameAttr()] = procedure;
      Names &touched = touched_[procedure];
      for (auto op : procedure.getOps<plan::InstructionOpInterface>())
        for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
          forBuffers(views, [&](StringAttr name) { touched.insert(name); });
    }
    calls_.assign(program.getOps<plan::CallOp>().begin(),
                  program.getOps<plan::CallOp>().end());
  }

  // Joins the backward passes that reductions are to stand in.
  void prepare() {
    for (plan::CallOp call : calls_)
      if (plan::ProcedureOp update = procedureOf(call);
          update.getAction() == Action::U)
        reduceInPlace(update);
    SmallVector<int64_t> last;
    for (auto &[call, reductions] : findReductions())
      last.push_back(call);
    // From the end, so that the numbers of calls in front stay.
    llvm::sort(last, std::greater<>());
    for (int64_t call : last)
      if (call > 0 && mayJoin(calls_[call - 1], calls_[call]))
        joinBackward(call);
  }

  // The holders that the program sums over, in its order.
  llvm::SetVector<StringRef> heldOver() {
    llvm::SetVector<StringRef> all;
    for (plan::CallOp call : calls_)
      for (auto op : procedureOf(call).getOps<plan::CollectiveOp>())
        if (StringRef of = lowering::holdersOf(program_, op); !of.empty())
          all.insert(of);
    return all;
  }
  // Sums over these move too; none if empty, as it is at first.
  void moveHolders(StringRef of) { moved_ = of.str(); }

  // When the sums over holders that move are ready: their numbers in the update
  // in that order, and which of them are ready after a later call or
  // instruction than the one before. Programs that agree in this agree in what
  // shares a bucket and in the order of buckets.
  struct Ready {
    int64_t number;
    bool laterCall, later;
    bool operator==(const Ready &) const = default;
  };
  SmallVector<Ready> heldSums() {
    llvm::DenseMap<Operation *, int64_t> numbers;
    for (plan::CallOp call : calls_)
      if (procedureOf(call).getAction() == Action::U)
        for (auto op : procedureOf(call).getOps<plan::CollectiveOp>())
          if (isOfMoved(op))
            numbers.try_emplace(op, numbers.size());
    SmallVector<std::tuple<int64_t, int64_t, int64_t>> order;
    for (auto &[call, reductions] : findReductions()) {
      SmallVector<Touched> touched;
      for (auto op :
           procedureOf(calls_[call]).getOps<plan::InstructionOpInterface>())
        touched.emplace_back(op);
      for (const Reduction &reduction : reductions)
        if (auto number = numbers.find(reduction.op); number != numbers.end())
          order.emplace_back(call, placeOf(reduction, touched), number->second);
    }
    llvm::sort(order);
    SmallVector<Ready> ready;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto &[call, place, number] = order[i];
      const bool laterCall = i == 0 || call != std::get<0>(order[i - 1]);
      ready.push_back(
          {number, laterCall, laterCall || place != std::get<1>(order[i - 1])});
    }
    return ready;
  }
  int64_t move() {
    int64_t moved = 0;
    for (auto &[call, reductions] : findReductions()) {
      plan::ProcedureOp procedure = ownProcedure(call);
      for (Reduction &reduction : reductions) {
        for (plan::InstructionOpInterface sum : reduction.sums)
          place(sum, procedure);
        keepResult(reduction.op);
        reduction.op.setStream(stream());
        place(reduction.op, procedure);
      }
      moved += static_cast<int64_t>(reductions.size());
    }
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      if (procedure.getAction() != Action::U)
        scatterBeside(procedure);
    return moved;
  }

private:
  plan::ProcedureOp procedureOf(plan::CallOp call) {
    return procedures_.lookup(call.getProcedureAttr().getAttr());
  }

  bool isOfMoved(plan::CollectiveOp op) {
    return !moved_.empty() && lowering::holdersOf(program_, op) == moved_;
  }

  // An accumulator, of one slot for the whole step.
  bool isOfStep(StringAttr name) {
    plan::BufferOp buffer = buffers_.lookup(name);
    return buffer && !buffer.isTransient() && buffer.getSlots() == 1;
  }
  static StringAttr bufferOf(ArrayAttr views) {
    return views.size() == 1 ? cast<ViewAttr>(views[0]).getBuffer().getAttr()
                             : StringAttr();
  }
  // What is summed over ranks: in place, or each rank's part of it into another
  // buffer.
  StringAttr reducedBy(plan::CollectiveOp op) {
    StringAttr from = bufferOf(op.getInputs()), to = bufferOf(op.getOutputs());
    if (op.getOp() == plan::Collective::all_reduce)
      return op.getInputs() == op.getOutputs() ? from : StringAttr();
    return op.getOp() == plan::Collective::reduce_scatter && from != to
               ? from
               : StringAttr();
  }
  // A part that is made before the update is there when the update reads it.
  void keepResult(plan::CollectiveOp op) {
    if (op.getOp() != plan::Collective::reduce_scatter)
      return;
    plan::BufferOp part = buffers_.lookup(bufferOf(op.getOutputs()));
    part.removeProcedureAttr();
    part.setCategory(plan::Category::gradients);
  }

  // The buffers between which the update reduces a sum of a step that nothing
  // but this reads; null: there are no such.
  std::pair<plan::BufferOp, plan::BufferOp>
  reducedApart(plan::CollectiveOp op) {
    if (op.getOp() != plan::Collective::all_reduce)
      return {};
    StringAttr from = bufferOf(op.getInputs()), to = bufferOf(op.getOutputs());
    if (!from || !to || from == to || !isOfStep(from))
      return {};
    plan::BufferOp sum = buffers_.lookup(from), result = buffers_.lookup(to);
    if (result.getSlots() != 1 || result.getType() != sum.getType() ||
        !lowering::isWhole(cast<ViewAttr>(op.getInputs()[0]), sum) ||
        !lowering::isWhole(cast<ViewAttr>(op.getOutputs()[0]), result))
      return {};
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      for (auto other : procedure.getOps<plan::InstructionOpInterface>()) {
        if (other == op)
          continue;
        const Touched own(other);
        const bool later =
            procedure == op->getParentOp() && op->isBeforeInBlock(other);
        if (own.writes.contains(to) || (own.has(to) && !later) ||
            (own.has(from) && procedure == op->getParentOp()))
          return {};
      }
    return {sum, result};
  }
  // What such a sum is reduced to takes its place.
  void reduceInPlace(plan::ProcedureOp update) {
    for (auto op : update.getOps<plan::CollectiveOp>()) {
      auto [sum, result] = reducedApart(op);
      if (!sum)
        continue;
      const StringAttr from = sum.getSymNameAttr(),
                       to = result.getSymNameAttr();
      (void)SymbolTable::replaceAllSymbolUses(to, from, program_);
      for (auto &[procedure, names] : touched_)
        if (names.erase(to))
          names.insert(from);
      sum.setCategory(plan::Category::gradients);
      buffers_.erase(to);
      result.erase();
    }
  }

  // A reduction of the update, and the sums that make what it reduces.
  struct Reduction {
    plan::CollectiveOp op;
    SmallVector<plan::InstructionOpInterface> sums;
  };
  // By the call after which their buffers are final.
  using Reductions = llvm::MapVector<int64_t, SmallVector<Reduction>>;
  Reductions findReductions() {
    Reductions ready;
    for (auto [index, call] : llvm::enumerate(calls_))
      if (plan::ProcedureOp update = procedureOf(call);
          update.getAction() == Action::U)
        findReductions(update, static_cast<int64_t>(index), ready);
    return withGradients(ready);
  }
  bool isBackward(int64_t call) {
    const Action action = procedureOf(calls_[call]).getAction();
    return action == Action::B || action == Action::W;
  }
  // What is final before the backward pass goes along with its first
  // reductions; a procedure of its own is not worth while.
  Reductions withGradients(Reductions &ready) {
    Reductions moved;
    int64_t first = -1;
    for (auto &[call, reductions] : ready)
      if (isBackward(call) && (first < 0 || call < first))
        first = call;
    if (first < 0)
      return moved;
    for (auto &[call, reductions] : ready)
      if (!isBackward(call) && call < first)
        llvm::append_range(moved[first], reductions);
    for (auto &[call, reductions] : ready)
      if (isBackward(call))
        llvm::append_range(moved[call], reductions);
    return moved;
  }
  void findReductions(plan::ProcedureOp update, int64_t at, Reductions &ready) {
    Names before; // what the update itself has touched, and what has moved
    llvm::DenseMap<StringAttr, SmallVector<plan::InstructionOpInterface>> sums;
    llvm::DenseMap<StringAttr, int64_t> scattered; // parts, by their calls
    for (auto op : update.getOps<plan::InstructionOpInterface>()) {
      Touched own(op);
      auto collective = dyn_cast<plan::CollectiveOp>(*op);
      StringAttr name =
          collective && (!lowering::isOverHolders(program_, collective) ||
                         isOfMoved(collective))
              ? reducedBy(collective)
              : StringAttr();
      if (name && !before.contains(name) &&
          (isOfStep(name) || scattered.contains(name))) {
        Reduction reduction{collective, sums.lookup(name)};
        for (plan::InstructionOpInterface sum : reduction.sums)
          forBuffers(sum.getInputs(),
                     [&](StringAttr n) { own.reads.insert(n); });
        const int64_t last = lastCall(own, before, at, scattered);
        if (last >= 0) {
          ready[last].push_back(std::move(reduction));
          before.insert(own.reads.begin(), own.reads.end());
          if (StringAttr part = bufferOf(collective.getOutputs()); part != name)
            scattered[part] = last;
          continue;
        }
      } else if (StringAttr sum = sumOfGradients(op, own, before)) {
        SmallVector<plan::InstructionOpInterface> all;
        for (StringAttr part : own.reads)
          llvm::append_range(all, sums.lookup(part));
        all.push_back(op);
        sums[sum] = std::move(all);
        continue;
      }
      // Whoever comes after these no longer finds what backward left.
      before.insert(own.reads.begin(), own.reads.end());
      before.insert(own.writes.begin(), own.writes.end());
    }
  }

  // The call of a microbatch after which nothing touches what a reduction of
  // the update needs; -1: the update itself does, or there is none.
  int64_t lastCall(const Touched &own, const Names &before, int64_t update,
                   const llvm::DenseMap<StringAttr, int64_t> &scattered) {
    int64_t last = update - 1;
    for (StringAttr name : own.writes)
      if (before.contains(name))
        return -1;
    for (StringAttr name : own.reads) {
      if (before.contains(name))
        return -1;
      if (auto part = scattered.find(name); part != scattered.end())
        return part->second;
    }
    while (last >= 0 && !touchesAny(procedureOf(calls_[last]), own))
      --last;
    // A call outside of the microbatches runs once, beside nothing.
    return last >= 0 && static_cast<int64_t>(calls_[last].getMicrobatch()) >= 0
               ? last
               : -1;
  }

  bool touchesAny(plan::ProcedureOp procedure, const Touched &own) {
    return llvm::any_of(touched_[procedure],
                        [&](StringAttr name) { return own.has(name); });
  }

  // The accumulator into which the instruction adds others, all as backward
  // left them.
  StringAttr sumOfGradients(plan::InstructionOpInterface op, const Touched &own,
                            const Names &before) {
    if (!isa<plan::KernelOp, plan::LibraryOp>(*op) || own.writes.size() != 1 ||
        own.reads.size() < 2 || !own.reads.contains(*own.writes.begin()))
      return {};
    for (StringAttr name : own.reads) {
      plan::BufferOp buffer = buffers_.lookup(name);
      if (before.contains(name) || buffer.isTransient() ||
          buffer.getSlots() != 1 ||
          buffer.getCategory() != plan::Category::gradients)
        return {};
    }
    return *own.writes.begin();
  }

  // A procedure that only this call runs.
  plan::ProcedureOp ownProcedure(int64_t index) {
    plan::ProcedureOp procedure = procedureOf(calls_[index]);
    plan::ProcedureOp own =
        lowering::ownProcedure(program_, calls_[index], ".last");
    if (own != procedure) {
      procedures_[own.getSymNameAttr()] = own;
      touched_[own] = touched_[procedure];
      for (plan::BufferOp buffer : lowering::transientsOf(program_, own))
        buffers_[buffer.getSymNameAttr()] = buffer;
    }
    return own;
  }

  // Two submicrobatches, each of which hides the collectives of the other.
  bool hidesCollectives(plan::ProcedureOp b) {
    auto ops = b.getOps<plan::InstructionOpInterface>();
    return !b.getOps<plan::CollectiveOp>().empty() &&
           llvm::any_of(ops, [](plan::InstructionOpInterface op) {
             return op->hasAttr(plan::kSubmicrobatchAttr);
           });
  }

  // B and W of one microbatch, nobody waits for what they send, and B has waits
  // to spare: W would only hold up submicrobatches that hide each other's
  // collectives.
  bool mayJoin(plan::CallOp backward, plan::CallOp weight) {
    plan::ProcedureOp b = procedureOf(backward);
    return b.getAction() == Action::B &&
           procedureOf(weight).getAction() == Action::W &&
           backward.getMicrobatch() == weight.getMicrobatch() &&
           backward.getSlots() == weight.getSlots() &&
           b.getOps<plan::SendOp>().empty() &&
           llvm::none_of(procedureOf(weight).getOps<plan::SendOp>(),
                         [](plan::SendOp send) {
                           return send->hasAttr(plan::kAfterAllAttr);
                         }) &&
           !hidesCollectives(b);
  }

  // Every instruction of W goes in front of the first one of B, behind all that
  // it depends on, that waits for a collective: there the computation would
  // stand still, while no collective of B starts later than it could. What W
  // reads of a collective is there when B has waited for it. What W gathers
  // again goes to the wait before that of its first reader: it is there in time
  // and does not lie ready for long.
  void joinBackward(int64_t weight) {
    plan::ProcedureOp b = ownProcedure(weight - 1), w = ownProcedure(weight);
    SmallVector<plan::InstructionOpInterface> places(
        b.getOps<plan::InstructionOpInterface>());
    Order order;
    llvm::BitVector waits(places.size());
    Names pending; // what collectives make and nobody has used yet
    for (auto [index, op] : llvm::enumerate(places)) {
      Touched own(op);
      order.add(own, static_cast<int64_t>(index) + 1);
      SmallVector<StringAttr> used;
      llvm::copy_if(pending, std::back_inserter(used),
                    [&](StringAttr name) { return own.has(name); });
      waits[index] = !used.empty() && !isa<plan::CollectiveOp>(*op);
      for (StringAttr name : used) {
        pending.erase(name);
        order.addWrite(name, static_cast<int64_t>(index) + 1);
      }
      if (isa<plan::CollectiveOp>(*op))
        pending.insert(own.writes.begin(), own.writes.end());
    }
    for (StringAttr name : pending)
      order.addWrite(name, static_cast<int64_t>(places.size()));
    for (plan::BufferOp buffer : lowering::transientsOf(program_, w))
      buffer.setProcedureAttr(FlatSymbolRefAttr::get(b.getSymNameAttr()));
    auto put = [&](plan::InstructionOpInterface op, const Touched &own,
                   int64_t at) {
      order.add(own, at);
      if (at < static_cast<int64_t>(places.size()))
        op->moveBefore(places[at]);
      else
        op->moveBefore(&b.getBody().front(), b.getBody().front().end());
    };
    SmallVector<plan::InstructionOpInterface> again; // gathers, not yet placed
    std::function<void(const Touched &, int64_t)> putAgain =
        [&](const Touched &reader, int64_t at) {
          for (auto op : SmallVector<plan::InstructionOpInterface>(again)) {
            Touched own(op);
            if (!llvm::is_contained(again, op) || !own.conflicts(reader))
              continue;
            llvm::erase(again, op);
            const int64_t wait = std::max(0, waits.find_prev(at));
            putAgain(own, wait);
            put(op, own, std::max(order.earliest(own), wait));
          }
        };
    for (auto op :
         llvm::make_early_inc_range(w.getOps<plan::InstructionOpInterface>())) {
      if (op->hasAttr(dist::kRegatherAttr)) {
        again.push_back(op);
        continue;
      }
      Touched own(op);
      int64_t at = order.earliest(own);
      if (int wait = at == 0 ? waits.find_first() : waits.find_next(at - 1);
          wait >= 0)
        at = wait;
      putAgain(own, at);
      put(op, own, at);
    }
    for (plan::InstructionOpInterface op : again)
      put(op, Touched(op), order.earliest(Touched(op)));
    touched_[b].insert(touched_[w].begin(), touched_[w].end());
    calls_[weight].erase();
    calls_.erase(calls_.begin() + weight);
    procedures_.erase(w.getSymNameAttr());
    w.erase();
  }

  // What is scattered in every microbatch, to be added to accumulators.
  void scatterBeside(plan::ProcedureOp procedure) {
    SmallVector<plan::InstructionOpInterface> ops(
        procedure.getOps<plan::InstructionOpInterface>());
    for (auto [index, op] : llvm::enumerate(ops))
      if (auto scatter = dyn_cast<plan::CollectiveOp>(*op);
          scatter && scatter.getOp() == plan::Collective::reduce_scatter &&
          !lowering::isOverStages(program_, scatter) &&
          !lowering::additionsOf(ops, index, buffers_).empty())
        scatter.setStream(stream());
  }

  // Behind how many of these instructions it is ready.
  static int64_t placeOf(const Reduction &reduction,
                         ArrayRef<Touched> instructions) {
    SmallVector<Touched> own{Touched(reduction.op)};
    for (plan::InstructionOpInterface sum : reduction.sums)
      own.emplace_back(sum);
    auto place = static_cast<int64_t>(instructions.size());
    while (place > 0 && llvm::none_of(own, [&](const Touched &of) {
             return of.conflicts(instructions[size_t(place) - 1]);
           }))
      --place;
    return place;
  }

  // Behind the last instruction of its buffers, in front of all if there is
  // none, in the order of the update where several follow the same one.
  void place(plan::InstructionOpInterface moved, plan::ProcedureOp procedure) {
    Touched own(moved);
    Operation *after = nullptr;
    for (auto op : procedure.getOps<plan::InstructionOpInterface>())
      if (Touched(op).conflicts(own))
        after = op;
    Block &body = procedure.getBody().front();
    Operation *next = after ? after->getNextNode() : &body.front();
    while (next && placed_.contains(next))
      next = next->getNextNode();
    moved->moveBefore(&body, next ? Block::iterator(next) : body.end());
    placed_.insert(moved);
  }

  // Apart from the other collectives, which must not queue behind it.
  uint64_t stream() {
    if (!stream_) {
      SmallVector<Attribute> streams(program_.getStreams().getValue());
      stream_ = streams.size();
      streams.push_back(builder_.getStringAttr("gradients"));
      program_.setStreamsAttr(builder_.getArrayAttr(streams));
    }
    return stream_;
  }

  plan::ProgramOp program_;
  OpBuilder builder_;
  lowering::Buffers buffers_;
  llvm::DenseMap<StringAttr, plan::ProcedureOp> procedures_;
  llvm::DenseMap<Operation *, Names> touched_; // by procedure
  SmallVector<plan::CallOp> calls_;
  llvm::DenseSet<Operation *> placed_;
  uint64_t stream_ = 0;
  std::string moved_;
};

struct OverlapGradientsPass : impl::OverlapGradientsBase<OverlapGradientsPass> {
  void runOnOperation() override {
    std::vector<std::unique_ptr<GradientOverlap>> all;
    // By holders: the programs that sum over these first, and whether there is
    // one that sums over others before.
    llvm::MapVector<StringRef, SmallVector<GradientOverlap *>> first;
    llvm::DenseSet<StringRef> later;
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      all.push_back(std::make_unique<GradientOverlap>(program));
      all.back()->prepare();
      const llvm::SetVector<StringRef> holders = all.back()->heldOver();
      if (holders.empty())
        continue;
      first[holders.front()].push_back(all.back().get());
      for (StringRef other : llvm::drop_begin(holders))
        later.insert(other);
    }
    for (const auto &[holders, programs] : first)
      if (!later.contains(holders))
        moveTogether(programs, holders);
    for (const std::unique_ptr<GradientOverlap> &one : all)
      reductions += one->move();
  }

  static void moveTogether(ArrayRef<GradientOverlap *> programs,
                           StringRef holders) {
    for (GradientOverlap *program : programs)
      program->moveHolders(holders);
    const auto ready = programs.front()->heldSums();
    if (llvm::any_of(llvm::drop_begin(programs), [&](GradientOverlap *other) {
          return other->heldSums() != ready;
        }))
      for (GradientOverlap *program : programs)
        program->moveHolders({});
  }
};

} // namespace
} // namespace merak
