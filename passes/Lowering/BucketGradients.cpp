// Joins the reductions of several gradients into one. A ring over n ranks costs
// 2 (n - 1) latencies, however little it carries: a hundred gradients one by
// one cost a hundred times that. The members of a bucket are neighbours in the
// arena (AssignMemory), so that nothing is copied for it.
#include "dialects/Pipe/PipeDialect.h"
#include "mlir/IR/Remarks.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"

#include <map>
#include <tuple>

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
    SmallVector<Reduction> reductions;
    for (size_t i = 0; i < ops_.size(); ++i)
      if (auto op = dyn_cast<plan::CollectiveOp>(*ops_[i]))
        if (plan::BufferOp gradient = gradientOf(op))
          reductions.push_back(placesOf(op, gradient, i));
    // In the order in which they are ready; only like ones share a bucket.
    llvm::stable_sort(reductions, [](const Reduction &a, const Reduction &b) {
      return a.first < b.first;
    });
    std::vector<Bucket> all;
    std::map<Kind, size_t> open; // the bucket being filled
    for (const Reduction &reduction : reductions) {
      Kind kind = kindOf(reduction.op);
      auto it = open.find(kind);
      if (it == open.end() || !all[it->second].takes(reduction, limit_)) {
        it = open.insert_or_assign(kind, all.size()).first;
        all.emplace_back();
      }
      all[it->second].add(reduction);
    }
    for (const Bucket &bucket : all) {
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
    // Only now: places are counted in the instructions that were there.
    for (const Bucket &bucket : all)
      if (bucket.members.size() > 1)
        for (plan::CollectiveOp member : bucket.members)
          member.erase();
  }

private:
  // A reduction may stand in front of instructions [first, last] of the
  // procedure.
  struct Reduction {
    plan::CollectiveOp op;
    int64_t bytes, first, last;
  };
  struct Bucket {
    SmallVector<plan::CollectiveOp> members;
    int64_t bytes = 0, first = 0, last = INT64_MAX;

    bool takes(const Reduction &next, int64_t limit) const {
      return bytes + next.bytes <= limit && next.first <= last;
    }
    void add(const Reduction &next) {
      members.push_back(next.op);
      bytes += next.bytes;
      first = std::max(first, next.first);
      last = std::min(last, next.last);
    }
  };
  // Stream, group, reduction, type of the elements.
  using Kind = std::tuple<uint64_t, uint64_t, std::optional<plan::Reduction>,
                          const void *>;
  Kind kindOf(plan::CollectiveOp op) {
    auto type = cast<RankedTensorType>(bufferOf(op).getType());
    return {op.getStream(), op.getGroup(), op.getReduction(),
            type.getElementType().getAsOpaquePointer()};
  }
  plan::BufferOp bufferOf(plan::CollectiveOp op) {
    return buffers_.lookup(
        cast<ViewAttr>(op.getInputs()[0]).getBuffer().getAttr());
  }

  // The accumulator that the collective reduces in place and as a whole; null
  // if it does anything else, or together with ranks that run other programs.
  plan::BufferOp gradientOf(plan::CollectiveOp op) {
    if (op.getOp() != plan::Collective::all_reduce ||
        op.getInputs().size() != 1 || op.getInputs() != op.getOutputs())
      return {};
    auto axes = cast<ArrayAttr>(program_.getGroups()[op.getGroup()]);
    if (llvm::is_contained(axes, builder_.getStringAttr("pp")))
      return {};
    auto view = cast<ViewAttr>(op.getInputs()[0]);
    plan::BufferOp buffer = bufferOf(op);
    bool whole = view.getOffset() == 0 && view.isDense() &&
                 view.getNumElements() > 0 &&
                 view.getNumElements() ==
                     cast<RankedTensorType>(buffer.getType()).getNumElements();
    return whole && !buffer.isTransient() && buffer.getSlots() == 1 &&
                   buffer.getCategory() == plan::Category::gradients
               ? buffer
               : plan::BufferOp();
  }

  Reduction placesOf(plan::CollectiveOp op, plan::BufferOp gradient,
                     size_t at) {
    int64_t first = 0, last = static_cast<int64_t>(ops_.size());
    for (size_t i = at; i-- > 0;)
      if (touched_[i].conflicts(touched_[at])) {
        first = static_cast<int64_t>(i) + 1;
        break;
      }
    for (size_t i = at + 1; i < ops_.size(); ++i)
      if (touched_[i].conflicts(touched_[at])) {
        last = static_cast<int64_t>(i);
        break;
      }
    return {op, gradient.getBytes(), first, last};
  }

  // One collective in place of the members, where the last of them is ready.
  void write(plan::ProcedureOp procedure, const Bucket &bucket) {
    SmallVector<Attribute> views;
    SmallVector<Location> locations;
    for (plan::CollectiveOp member : bucket.members) {
      views.push_back(member.getInputs()[0]);
      locations.push_back(member.getLoc());
    }
    if (bucket.first < static_cast<int64_t>(ops_.size()))
      builder_.setInsertionPoint(ops_[bucket.first]);
    else
      builder_.setInsertionPointToEnd(&procedure.getBody().front());
    plan::CollectiveOp like = bucket.members.back();
    auto made = cast<plan::CollectiveOp>(builder_.clone(*like));
    made->setLoc(builder_.getFusedLoc(locations));
    made.setInputsAttr(builder_.getArrayAttr(views));
    made.setOutputsAttr(made.getInputs());
    made->setAttr(plan::kJoinedAttr, builder_.getUnitAttr());
  }

  plan::ProgramOp program_;
  OpBuilder builder_;
  int64_t limit_; // bytes
  llvm::DenseMap<StringAttr, plan::BufferOp> buffers_;
  SmallVector<plan::InstructionOpInterface> ops_;
  std::vector<Touched> touched_;
};

// What the stage phase decided.
int64_t noted(ModuleOp module) {
  auto decision =
      module->getAttrOfType<pipe::DecisionAttr>(pipe::kDecisionAttr);
  return decision ? decision.getGradientBucket() : 0;
}

struct BucketGradientsPass : impl::BucketGradientsBase<BucketGradientsPass> {
  using BucketGradientsBase::BucketGradientsBase;

  void runOnOperation() override {
    const int64_t limit = bytes < 0 ? noted(getOperation()) : bytes;
    if (limit == 0)
      return;
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      GradientBuckets gradients(program, limit);
      for (auto procedure : program.getOps<plan::ProcedureOp>())
        gradients.run(procedure);
      buckets += gradients.buckets;
      joined += gradients.joined;
    }
  }
};

} // namespace
} // namespace merak
