// Orders streams. Time is a position (call, instruction); every stream knows,
// for each other stream, up to which position that one has finished for sure.
// A conflict with something it does not know about yet asks for a wait.
#include "passes/Lowering/Passes.h"

#include "llvm/ADT/MapVector.h"

#include <algorithm>
#include <map>
#include <set>

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_INSERTEVENTS
#include "passes/Lowering/Passes.h.inc"

namespace {

using Clock = SmallVector<int64_t, 8>; // by stream: last known position

void join(Clock &clock, const Clock &other) {
  for (auto [mine, theirs] : llvm::zip(clock, other))
    mine = std::max(mine, theirs);
}

// Bytes of the arena, [begin, end).
struct Range {
  int64_t begin, end;
};

// A set of ranges, sorted and merged, padding between neighbours included.
class RangeSet {
public:
  void add(Range range) { ranges_.push_back(range); }
  void finish() {
    llvm::sort(ranges_, [](Range a, Range b) { return a.begin < b.begin; });
    size_t count = 0;
    for (Range range : ranges_) {
      if (count && range.begin <= (ranges_[count - 1].end + 63) / 64 * 64)
        ranges_[count - 1].end = std::max(ranges_[count - 1].end, range.end);
      else
        ranges_[count++] = range;
    }
    ranges_.resize(count);
  }
  bool meets(const RangeSet &other) const {
    size_t i = 0, j = 0;
    while (i < ranges_.size() && j < other.ranges_.size()) {
      if (ranges_[i].end <= other.ranges_[j].begin)
        ++i;
      else if (other.ranges_[j].end <= ranges_[i].begin)
        ++j;
      else
        return true;
    }
    return false;
  }
  bool empty() const { return ranges_.empty(); }

private:
  std::vector<Range> ranges_;
};

struct Access {
  plan::BufferOp buffer;
  Range range; // in slot 0
  bool write;
};

class EventInserter {
public:
  explicit EventInserter(plan::ProgramOp program)
      : program_(program), builder_(program.getContext()),
        streams_(program.getStreams().size()) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
  }

  void run() {
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      orderProcedure(procedure);
    program_.setEvents(maxEvents_);
    orderCalls();
  }

  int64_t events = 0, callWaits = 0;

private:
  // ------------------------------------------------------------ one call

  SmallVector<Access> accessesOf(plan::InstructionOpInterface op) {
    SmallVector<Access> list;
    auto add = [&](ArrayAttr views, bool write) {
      for (Attribute attr : views) {
        auto view = cast<plan::ViewAttr>(attr);
        if (view.getNumElements() == 0)
          continue;
        plan::BufferOp buffer = buffers_.lookup(view.getBuffer().getAttr());
        int64_t size = plan::elementBytes(
            cast<RankedTensorType>(buffer.getType()).getElementType());
        int64_t last = view.getOffset();
        for (auto [extent, stride] :
             llvm::zip(view.getShape(), view.getStrides()))
          last += (extent - 1) * stride;
        int64_t base = static_cast<int64_t>(*buffer.getOffset());
        list.push_back(
            {buffer,
             {base + view.getOffset() * size, base + (last + 1) * size},
             write});
      }
    };
    add(op.getInputs(), false);
    add(op.getOutputs(), true);
    return list;
  }

  static bool conflict(const Access &a, const Access &b) {
    return (a.write || b.write) && a.range.begin < b.range.end &&
           b.range.begin < a.range.end;
  }

  void orderProcedure(plan::ProcedureOp procedure) {
    SmallVector<plan::InstructionOpInterface> ops(
        procedure.getOps<plan::InstructionOpInterface>());
    struct Done {
      int64_t position;
      SmallVector<Access> accesses;
    };
    std::vector<std::vector<Done>> history(streams_);
    std::vector<Clock> clocks(streams_, Clock(streams_, -1));
    std::vector<Clock> clockAt(ops.size());
    llvm::DenseMap<int64_t, int64_t> eventAt; // by recorded position
    int64_t count = 0;
    for (auto [index, op] : llvm::enumerate(ops)) {
      int64_t position = static_cast<int64_t>(index);
      uint64_t stream = op.getStream();
      SmallVector<Access> accesses = accessesOf(op);
      // The latest conflicting instruction of each other stream.
      for (uint64_t other = 0; other < streams_; ++other) {
        if (other == stream)
          continue;
        int64_t needed = -1;
        for (const Done &done : llvm::reverse(history[other])) {
          if (done.position <= clocks[stream][other])
            break;
          bool hit = llvm::any_of(done.accesses, [&](const Access &a) {
            return llvm::any_of(
                accesses, [&](const Access &b) { return conflict(a, b); });
          });
          if (hit) {
            needed = done.position;
            break;
          }
        }
        if (op->hasAttr(plan::kAfterPreviousAttr) && index > 0 &&
            ops[index - 1].getStream() == other &&
            position - 1 > clocks[stream][other])
          needed = position - 1;
        if (op->hasAttr(plan::kAfterAllAttr) && !history[other].empty() &&
            history[other].back().position > clocks[stream][other])
          needed = history[other].back().position;
        if (needed < 0)
          continue;
        auto [it, fresh] = eventAt.try_emplace(needed, count);
        if (fresh) {
          ++count;
          builder_.setInsertionPointAfter(ops[needed]);
          createEvent<plan::RecordOp>(ops[needed], it->second, other);
        }
        builder_.setInsertionPoint(op);
        createEvent<plan::WaitOp>(op, it->second, stream);
        join(clocks[stream], clockAt[needed]);
      }
      clocks[stream][stream] = position;
      clockAt[index] = clocks[stream];
      history[stream].push_back({position, std::move(accesses)});
    }
    events += count;
    maxEvents_ = std::max(maxEvents_, count);
  }

  template <typename Op>
  void createEvent(Operation *at, int64_t event, uint64_t stream) {
    Op::create(builder_, at->getLoc(), builder_.getI64IntegerAttr(event),
               builder_.getArrayAttr({}), builder_.getArrayAttr({}),
               builder_.getI64IntegerAttr(stream), builder_.getF64FloatAttr(0),
               builder_.getF64FloatAttr(0));
  }

  // ------------------------------------------------------------ calls

  // What a stream touches in one call.
  struct CallSets {
    RangeSet reads, writes;
    bool empty() const { return reads.empty() && writes.empty(); }
  };

  std::vector<CallSets> setsOf(plan::CallOp call) {
    std::vector<CallSets> sets(streams_);
    auto procedure = procedures_.lookup(call.getProcedureAttr().getAttr());
    for (auto &[access, stream] : footprint(procedure)) {
      plan::BufferOp buffer = access.buffer;
      int64_t shift = 0;
      if (buffer.getSlots() > 1)
        shift = call.getSlots()[buffer.getSlotClass()] *
                static_cast<int64_t>(buffer.getSlotStride());
      Range range{access.range.begin + shift, access.range.end + shift};
      (access.write ? sets[stream].writes : sets[stream].reads).add(range);
    }
    for (CallSets &set : sets) {
      set.reads.finish();
      set.writes.finish();
    }
    return sets;
  }

  using StreamAccess = std::pair<Access, uint64_t>;
  const std::vector<StreamAccess> &footprint(plan::ProcedureOp procedure) {
    auto [it, fresh] = footprints_.try_emplace(procedure);
    if (fresh)
      for (auto op : procedure.getOps<plan::InstructionOpInterface>())
        for (const Access &access : accessesOf(op))
          it->second.emplace_back(access, op.getStream());
    return it->second;
  }

  static bool conflict(const CallSets &a, const CallSets &b) {
    return a.writes.meets(b.writes) || a.writes.meets(b.reads) ||
           a.reads.meets(b.writes);
  }

  // Clocks hold the last call whose part on a stream is known to be finished.
  // What a stream learns inside a call counts from the call's end on.
  void orderCalls() {
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      procedures_[procedure.getSymNameAttr()] = procedure;
    SmallVector<plan::CallOp> calls(program_.getOps<plan::CallOp>());
    std::vector<std::vector<CallSets>> sets;
    std::vector<Clock> clocks(streams_, Clock(streams_, -1));
    std::vector<std::vector<Clock>> finished; // by call, stream
    for (auto [index, call] : llvm::enumerate(calls)) {
      sets.push_back(setsOf(call));
      const std::vector<CallSets> &mine = sets.back();
      SmallVector<int64_t> waits;
      std::vector<Clock> entry = clocks;
      for (uint64_t stream = 0; stream < streams_; ++stream) {
        if (mine[stream].empty())
          continue;
        for (uint64_t other = 0; other < streams_; ++other) {
          if (other == stream)
            continue;
          for (int64_t c = static_cast<int64_t>(index) - 1;
               c > entry[stream][other]; --c) {
            if (!conflict(mine[stream], sets[c][other]))
              continue;
            waits.append(
                {static_cast<int64_t>(stream), static_cast<int64_t>(other), c});
            join(entry[stream], finished[c][other]);
            entry[stream][other] = std::max(entry[stream][other], c);
            break;
          }
          int64_t previous = static_cast<int64_t>(index) - 1;
          if (call->hasAttr(plan::kAfterPreviousAttr) &&
              entry[stream][other] < previous &&
              !sets[previous][other].empty()) {
            waits.append({static_cast<int64_t>(stream),
                          static_cast<int64_t>(other), previous});
            join(entry[stream], finished[previous][other]);
            entry[stream][other] = previous;
          }
        }
      }
      call.setWaits(waits);
      callWaits += static_cast<int64_t>(waits.size()) / 3;
      clocks = runCall(call, entry, static_cast<int64_t>(index));
      finished.push_back(clocks);
    }
  }

  // Clocks after the call, given those at its start.
  std::vector<Clock> runCall(plan::CallOp call, std::vector<Clock> clocks,
                             int64_t index) {
    auto procedure = procedures_.lookup(call.getProcedureAttr().getAttr());
    const Summary &summary = summaryOf(procedure);
    std::vector<Clock> after = clocks;
    for (uint64_t stream = 0; stream < streams_; ++stream) {
      for (uint64_t other = 0; other < streams_; ++other) {
        if (!summary.heard[stream][other])
          continue;
        join(after[stream], clocks[other]);
        // Waiting for the last instruction of a stream finishes its part.
        if (summary.all[stream][other])
          after[stream][other] = std::max(after[stream][other], index);
      }
      after[stream][stream] = index;
    }
    return after;
  }

  // What streams know of each other at the end of a procedure: whether anything
  // of the other's start, and whether all of the other's instructions.
  struct Summary {
    std::vector<std::vector<bool>> heard, all;
  };
  const Summary &summaryOf(plan::ProcedureOp procedure) {
    auto [it, fresh] = summaries_.try_emplace(procedure);
    if (!fresh)
      return it->second;
    std::vector<Clock> clocks(streams_, Clock(streams_, -1));
    std::map<uint64_t, Clock> events;
    Clock last(streams_, -1);
    int64_t position = 0;
    for (auto op : procedure.getOps<plan::InstructionOpInterface>()) {
      uint64_t stream = op.getStream();
      if (auto record = dyn_cast<plan::RecordOp>(*op)) {
        events[record.getEvent()] = clocks[stream];
      } else if (auto wait = dyn_cast<plan::WaitOp>(*op)) {
        join(clocks[stream], events[wait.getEvent()]);
      } else {
        clocks[stream][stream] = last[stream] = position;
      }
      ++position;
    }
    Summary &summary = it->second;
    summary.heard.assign(streams_, std::vector<bool>(streams_));
    summary.all = summary.heard;
    for (uint64_t stream = 0; stream < streams_; ++stream)
      for (uint64_t other = 0; other < streams_; ++other) {
        summary.heard[stream][other] =
            stream == other || clocks[stream][other] >= 0;
        summary.all[stream][other] =
            clocks[stream][other] >= 0 && clocks[stream][other] == last[other];
      }
    return summary;
  }

  plan::ProgramOp program_;
  OpBuilder builder_;
  uint64_t streams_;
  int64_t maxEvents_ = 0;
  llvm::DenseMap<StringAttr, plan::BufferOp> buffers_;
  llvm::DenseMap<StringAttr, plan::ProcedureOp> procedures_;
  std::map<Operation *, std::vector<StreamAccess>> footprints_;
  std::map<Operation *, Summary> summaries_;
};

struct InsertEventsPass : impl::InsertEventsBase<InsertEventsPass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      EventInserter inserter(program);
      inserter.run();
      events += inserter.events;
      callWaits += inserter.callWaits;
    }
  }
};

} // namespace

void buildPlanPipeline(OpPassManager &manager) {
  // Needs offsets: buffers that share bytes conflict.
  manager.addPass(createInsertEvents());
  manager.addPass(createVerifyPlan());
}

} // namespace merak
