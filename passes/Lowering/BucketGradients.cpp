// Joins the reductions of several gradients into one. A ring over n ranks costs
// 2 (n - 1) latencies, however little it carries: a hundred gradients one by
// one cost a hundred times that. The members of a bucket that are reduced in
// place are neighbours in the arena (AssignMemory), so that nothing is copied
// for it; those of which each rank keeps a part are operands of one collective.
//
// What is scattered in every microbatch, on a stream of its own, is added to
// its accumulators where the next bucket is ready: until then the links have
// carried it beside the computation.
#include "mlir/IR/Remarks.h"
#include "passes/Lowering/Buckets.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"
#include "passes/Planning/OpenBuckets.h"
#include "runtime/plan/Entries.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_BUCKETGRADIENTS
#include "passes/Lowering/Passes.h.inc"

namespace {

using lowering::Touched;
using plan::ViewAttr;

class GradientBuckets {
public:
  GradientBuckets(plan::ProgramOp program, int64_t limit)
      : program_(program), builder_(program.getContext()), limit_(limit) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
  }

  int64_t buckets = 0, joined = 0;

  void run(plan::ProcedureOp procedure) {
    ops_.assign(procedure.getOps<plan::InstructionOpInterface>().begin(),
                procedure.getOps<plan::InstructionOpInterface>().end());
    touched_.clear();
    for (plan::InstructionOpInterface op : ops_)
      touched_.emplace_back(op);
    std::vector<Bucket> all = fill(findReductions());
    for (Bucket &bucket : all) {
      if (bucket.members.size() < 2)
        continue;
      write(procedure, bucket);
      remark::passed(procedure.getLoc(),
                     remark::RemarkOpts::name("Joined").category("bucket"))
          << (std::to_string(bucket.members.size()) + " gradients, " +
              std::to_string(bucket.bytes) + " bytes, in " +
              procedure.getSymName().str());
      ++buckets;
      joined += static_cast<int64_t>(bucket.members.size());
    }
    delayAdditions(procedure, all);
    // Only now: places are counted in the instructions that were there.
    for (const Bucket &bucket : all)
      if (bucket.members.size() > 1)
        for (plan::CollectiveOp member : bucket.members)
          member.erase();
  }

private:
  // A reduction may stand in front of instructions [first, last] of the
  // procedure, and so may the additions of its result, which follow it.
  struct Reduction {
    plan::CollectiveOp op;
    int64_t at, bytes, first, last;
    SmallVector<size_t> additions; // instructions
  };
  struct Bucket {
    SmallVector<plan::CollectiveOp> members;
    SmallVector<size_t> additions;
    int64_t bytes = 0, first = 0, last = INT64_MAX;
    // The one collective, in front of which instruction it stands.
    plan::CollectiveOp made;
    int64_t at = 0;

    bool takes(const Reduction &next, int64_t limit) const {
      return bytes + next.bytes <= limit && next.first <= last;
    }
    void add(const Reduction &next) {
      made = next.op;
      at = members.empty() ? next.at : std::max(first, next.first);
      members.push_back(next.op);
      additions.append(next.additions);
      bytes += next.bytes;
      first = std::max(first, next.first);
      last = std::min(last, next.last);
    }
  };

  SmallVector<Reduction> findReductions() {
    SmallVector<Reduction> reductions;
    for (size_t i = 0; i < ops_.size(); ++i)
      if (auto op = dyn_cast<plan::CollectiveOp>(*ops_[i]);
          op && op.getInputs().size() == 1 &&
          (!lowering::isOverStages(program_, op) ||
           lowering::isOverHolders(program_, op))) {
        if (isInPlace(op) || isOfAccumulator(op))
          reductions.push_back(placesOf(op, i, {}));
        else if (isScatteredBeside(op))
          if (SmallVector<size_t> additions =
                  lowering::additionsOf(ops_, i, buffers_);
              !additions.empty())
            reductions.push_back(placesOf(op, i, std::move(additions)));
      }
    // In the order in which they are ready; only like ones share a bucket.
    llvm::stable_sort(reductions, [](const Reduction &a, const Reduction &b) {
      return a.first < b.first;
    });
    return reductions;
  }

  std::vector<Bucket> fill(ArrayRef<Reduction> reductions) {
    std::vector<Bucket> all;
    // What is added to accumulators is apart.
    planning::OpenBuckets<std::pair<lowering::BucketKind, bool>> open;
    for (const Reduction &reduction : reductions) {
      plan::CollectiveOp op = reduction.op;
      const bool fills = op.getOp() == plan::Collective::all_reduce &&
                         reduction.bytes >= limit_;
      const size_t bucket = open.place(
          {lowering::bucketKind(op, buffers_), reduction.additions.empty()},
          fills, all.size(),
          [&](size_t b) { return all[b].takes(reduction, limit_); });
      if (bucket == all.size())
        all.emplace_back();
      all[bucket].add(reduction);
    }
    return all;
  }

  plan::BufferOp bufferOf(ArrayAttr views) {
    return buffers_.lookup(cast<ViewAttr>(views[0]).getBuffer().getAttr());
  }
  // The collective reduces an accumulator in place and as a whole: one array
  // with others.
  bool isInPlace(plan::CollectiveOp op) {
    if (op.getOp() != plan::Collective::all_reduce ||
        op.getInputs() != op.getOutputs())
      return false;
    auto view = cast<ViewAttr>(op.getInputs()[0]);
    plan::BufferOp buffer = bufferOf(op.getInputs());
    return view.getOffset() == 0 && view.isDense() &&
           view.getNumElements() > 0 &&
           view.getNumElements() ==
               cast<RankedTensorType>(buffer.getType()).getNumElements() &&
           (lowering::isAccumulator(buffer) || isLeft(buffer));
  }
  // What the step before left.
  static bool isLeft(plan::BufferOp buffer) {
    return !buffer.isTransient() && buffer.getSlots() == 1 &&
           buffer.getCategory() == plan::Category::optimizer &&
           !buffer.getTensor();
  }
  // Each rank keeps a part of an accumulator.
  bool isOfAccumulator(plan::CollectiveOp op) {
    return op.getOp() == plan::Collective::reduce_scatter &&
           lowering::isAccumulator(bufferOf(op.getInputs()));
  }
  bool isScatteredBeside(plan::CollectiveOp op) {
    return op.getOp() == plan::Collective::reduce_scatter &&
           op.getStream() > plan::kCollectiveStream;
  }

  Reduction placesOf(plan::CollectiveOp op, size_t at,
                     SmallVector<size_t> additions) {
    int64_t first = 0, last = static_cast<int64_t>(ops_.size());
    for (size_t i = at; i-- > 0;)
      if (touched_[i].conflicts(touched_[at])) {
        first = static_cast<int64_t>(i) + 1;
        break;
      }
    auto conflicts = [&](size_t i) {
      return touched_[i].conflicts(touched_[at]) ||
             llvm::any_of(additions, [&](size_t addition) {
               return i > addition && touched_[i].conflicts(touched_[addition]);
             });
    };
    for (size_t i = at + 1; i < ops_.size(); ++i)
      if (!llvm::is_contained(additions, i) && conflicts(i)) {
        last = static_cast<int64_t>(i);
        break;
      }
    return {op,
            static_cast<int64_t>(at),
            lowering::messageBytes(op, buffers_),
            first,
            last,
            std::move(additions)};
  }

  // Additions of a bucket go in front of the next one, or to the end; behind
  // their own where something else comes before.
  void delayAdditions(plan::ProcedureOp procedure,
                      const std::vector<Bucket> &all) {
    SmallVector<const Bucket *> beside;
    for (const Bucket &bucket : all)
      if (!bucket.additions.empty())
        beside.push_back(&bucket);
    llvm::stable_sort(beside, [](const Bucket *a, const Bucket *b) {
      return a->made->isBeforeInBlock(b->made);
    });
    Block &body = procedure.getBody().front();
    const auto end = static_cast<int64_t>(ops_.size());
    for (auto [index, bucket] : llvm::enumerate(beside)) {
      const Bucket *next =
          index + 1 < beside.size() ? beside[index + 1] : nullptr;
      const bool waits = bucket->last >= (next ? next->at : end);
      Operation *behind = bucket->made;
      SmallVector<size_t> additions(bucket->additions);
      llvm::sort(additions); // sums keep their order
      for (size_t addition : additions) {
        Operation *op = ops_[addition];
        if (!waits)
          op->moveAfter(behind);
        else if (next)
          op->moveBefore(next->made);
        else
          op->moveBefore(&body, body.end());
        behind = op;
      }
    }
  }

  // One collective in place of the members, where the last of them is ready.
  void write(plan::ProcedureOp procedure, Bucket &bucket) {
    SmallVector<Attribute> inputs, outputs;
    SmallVector<Location> locations;
    for (plan::CollectiveOp member : bucket.members) {
      inputs.push_back(member.getInputs()[0]);
      outputs.push_back(member.getOutputs()[0]);
      locations.push_back(member.getLoc());
    }
    if (bucket.first < static_cast<int64_t>(ops_.size()))
      builder_.setInsertionPoint(ops_[bucket.first]);
    else
      builder_.setInsertionPointToEnd(&procedure.getBody().front());
    auto made = cast<plan::CollectiveOp>(builder_.clone(*bucket.made));
    bucket.made = made;
    made->setLoc(builder_.getFusedLoc(locations));
    made.setInputsAttr(builder_.getArrayAttr(inputs));
    made.setOutputsAttr(builder_.getArrayAttr(outputs));
    if (inputs == outputs)
      made->setAttr(plan::kJoinedAttr, builder_.getUnitAttr());
  }

  plan::ProgramOp program_;
  OpBuilder builder_;
  int64_t limit_; // bytes
  lowering::Buffers buffers_;
  SmallVector<plan::InstructionOpInterface> ops_;
  std::vector<Touched> touched_;
};

struct BucketGradientsPass : impl::BucketGradientsBase<BucketGradientsPass> {
  using BucketGradientsBase::BucketGradientsBase;

  void runOnOperation() override {
    const int64_t limit =
        bytes < 0 ? lowering::notedBucket(getOperation()) : bytes;
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      GradientBuckets gradients(program, limit);
      for (auto procedure : program.getOps<plan::ProcedureOp>())
        if (!isEntry(procedure.getSymName()))
          gradients.run(procedure);
      buckets += gradients.buckets;
      joined += gradients.joined;
    }
  }
};

} // namespace
} // namespace merak
