// Gathers of stored parameters, ahead of their uses. A gather and what makes
// its operand (the parameter in another type) depend on the parameter alone:
// they may stand anywhere in front of the first use. In the order of their
// uses gathers are filled into buckets, each one collective; a bucket is issued
// where the one in front of it is used first, on a stream beside the
// computation. So the links carry the next parameters while the present ones
// are computed with, and two buckets are there at a time.
//
// What is gathered once a step (action G) is issued by the first call that
// needs some of it, in the same way.
#include "passes/Lowering/Buckets.h"
#include "passes/Lowering/CopyProcedure.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"

#include "mlir/IR/Remarks.h"

#include <map>

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_PREFETCHPARAMETERS
#include "passes/Lowering/Passes.h.inc"

namespace {

using lowering::forBuffers;
using lowering::Touched;
using Instruction = plan::InstructionOpInterface;

// The gathers of one procedure.
class Prefetch {
public:
  Prefetch(plan::ProgramOp program, plan::ProcedureOp procedure, int64_t limit)
      : program_(program), procedure_(procedure), limit_(limit),
        builder_(program.getContext()),
        ops_(procedure.getOps<Instruction>().begin(),
             procedure.getOps<Instruction>().end()) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
    for (auto [index, op] : llvm::enumerate(ops_)) {
      touched_.emplace_back(op);
      for (StringAttr name : touched_.back().writes)
        writers_[name].push_back(static_cast<int64_t>(index));
    }
  }

  int64_t gathers = 0, buckets = 0;

  // `stream`: gives the number of the stream of parameters.
  void run(function_ref<uint64_t()> stream) {
    findGathers();
    if (gathers_.empty())
      return;
    for (Gather &gather : gathers_)
      gather.op.setStream(stream());
    fill();
    for (const Bucket &bucket : all_)
      issue(bucket);
    for (plan::CollectiveOp op : dead_)
      op.erase();
    gathers = static_cast<int64_t>(gathers_.size());
  }

private:
  // A gather, and what makes its operand of parameters, in order.
  struct Gather {
    plan::CollectiveOp op;
    SmallVector<int64_t> makers;
    int64_t at, use;          // instructions: its own, the first that needs it
    int64_t bytes, begin = 0; // of all gathers in front of it
    bool plain = true;        // no maker communicates
  };
  struct Bucket {
    SmallVector<size_t> members; // gathers
    int64_t begin = 0;
  };

  bool isParameter(StringAttr name) {
    return buffers_.lookup(name).getCategory() == plan::Category::parameters &&
           !writers_.contains(name);
  }

  // Whether the instruction depends on parameters alone; adds it, behind those
  // that it needs.
  bool addMaker(int64_t at, SmallVectorImpl<int64_t> &makers) {
    if (llvm::is_contained(makers, at))
      return true;
    Operation *op = ops_[at];
    auto collective = dyn_cast<plan::CollectiveOp>(op);
    if (!isa<plan::KernelOp, plan::LibraryOp>(op) &&
        !(collective && collective.getOp() == plan::Collective::all_gather))
      return false;
    for (StringAttr name : touched_[at].writes)
      if (writers_.lookup(name).size() != 1 ||
          buffers_.lookup(name).getSlots() != 1)
        return false;
    for (StringAttr name : touched_[at].reads) {
      if (isParameter(name))
        continue;
      auto writers = writers_.find(name);
      if (writers == writers_.end() || writers->second.size() != 1 ||
          writers->second[0] >= at || !addMaker(writers->second[0], makers))
        return false;
    }
    makers.push_back(at);
    return true;
  }

  void findGathers() {
    llvm::DenseSet<int64_t> inner; // that make the operands of others
    for (size_t i = ops_.size(); i-- > 0;) {
      auto op = dyn_cast<plan::CollectiveOp>(*ops_[i]);
      const auto at = static_cast<int64_t>(i);
      if (!op || op.getOp() != plan::Collective::all_gather ||
          inner.contains(at) || op.getInputs().size() != 1 ||
          lowering::isOverStages(program_, op))
        continue;
      Gather gather{
          op, {}, at, useOf(at), lowering::messageBytes(op, buffers_)};
      if (gather.use < 0 || !addMaker(at, gather.makers))
        continue;
      gather.makers.pop_back(); // itself
      for (int64_t maker : gather.makers) {
        inner.insert(maker);
        gather.plain &= !isa<plan::CollectiveOp>(*ops_[maker]);
      }
      gathers_.push_back(std::move(gather));
    }
    // Where something else needs a part of the way, all stays.
    llvm::erase_if(gathers_, [&](const Gather &gather) {
      return inner.contains(gather.use);
    });
    llvm::stable_sort(gathers_, [](const Gather &a, const Gather &b) {
      return std::pair(a.use, a.at) < std::pair(b.use, b.at);
    });
  }

  // The end where later calls use it; -1: nobody does.
  int64_t useOf(int64_t at) const {
    for (size_t i = static_cast<size_t>(at) + 1; i < ops_.size(); ++i)
      if (touched_[i].conflicts(touched_[at]))
        return static_cast<int64_t>(i);
    return llvm::any_of(touched_[at].writes,
                        [&](StringAttr name) {
                          return buffers_.lookup(name).isTransient();
                        })
               ? -1
               : static_cast<int64_t>(ops_.size());
  }

  void fill() {
    std::map<lowering::BucketKind, size_t> open;
    int64_t sum = 0;
    for (auto [index, gather] : llvm::enumerate(gathers_)) {
      gather.begin = sum;
      sum += gather.bytes;
      const lowering::BucketKind kind =
          lowering::bucketKind(gather.op, buffers_);
      auto it = open.find(kind);
      if (it == open.end() || !gather.plain ||
          sum - all_[it->second].begin > limit_) {
        all_.push_back({{}, gather.begin});
        it = open.insert_or_assign(kind, all_.size() - 1).first;
      }
      all_[it->second].members.push_back(index);
      if (!gather.plain)
        open.erase(it);
    }
  }

  // In front of the first use of what the links carried before: of a bucket's
  // worth, or of the one gather that is larger. Null: at the end.
  Operation *placeOf(const Bucket &bucket) {
    const size_t first = bucket.members.front();
    if (first == 0) {
      auto place =
          llvm::find_if(ops_, [&](Instruction op) { return stays(op); });
      return place == ops_.end() ? nullptr : place->getOperation();
    }
    size_t before = 0;
    while (before + 1 < first && gathers_[before].begin < bucket.begin - limit_)
      ++before;
    const int64_t use = gathers_[before].use;
    return use < static_cast<int64_t>(ops_.size()) ? ops_[use].getOperation()
                                                   : nullptr;
  }
  void moveTo(Operation *place, Operation *op) {
    Block &body = procedure_.getBody().front();
    if (place)
      op->moveBefore(place);
    else
      op->moveBefore(&body, body.end());
  }

  bool stays(Operation *op) const {
    return llvm::none_of(gathers_, [&](const Gather &gather) {
      return gather.op == op || llvm::any_of(gather.makers, [&](int64_t maker) {
               return ops_[maker] == op;
             });
    });
  }

  void issue(const Bucket &bucket) {
    Operation *place = placeOf(bucket);
    SmallVector<Attribute> inputs, outputs;
    SmallVector<Location> locations;
    for (size_t member : bucket.members)
      for (int64_t maker : gathers_[member].makers)
        if (moved_.insert(maker).second)
          moveTo(place, ops_[maker]);
    for (size_t member : bucket.members) {
      plan::CollectiveOp op = gathers_[member].op;
      inputs.push_back(op.getInputs()[0]);
      outputs.push_back(op.getOutputs()[0]);
      locations.push_back(op.getLoc());
    }
    plan::CollectiveOp like = gathers_[bucket.members.front()].op;
    moveTo(place, like);
    if (bucket.members.size() == 1)
      return;
    like->setLoc(builder_.getFusedLoc(locations));
    like.setInputsAttr(builder_.getArrayAttr(inputs));
    like.setOutputsAttr(builder_.getArrayAttr(outputs));
    for (size_t member : llvm::drop_begin(bucket.members))
      dead_.push_back(gathers_[member].op);
    ++buckets;
    remark::passed(procedure_.getLoc(),
                   remark::RemarkOpts::name("Joined").category("bucket"))
        << (std::to_string(bucket.members.size()) + " gathers of parameters, " +
            std::to_string(lowering::messageBytes(like, buffers_)) +
            " bytes, in " + procedure_.getSymName().str());
  }

  plan::ProgramOp program_;
  plan::ProcedureOp procedure_;
  int64_t limit_; // bytes
  OpBuilder builder_;
  SmallVector<Instruction> ops_;
  std::vector<Touched> touched_;
  lowering::Buffers buffers_;
  llvm::DenseMap<StringAttr, SmallVector<int64_t>> writers_;
  SmallVector<Gather> gathers_;
  std::vector<Bucket> all_;
  llvm::DenseSet<int64_t> moved_;
  SmallVector<plan::CollectiveOp> dead_;
};

// What G gathers goes to the begin of the first call that needs some of it.
void advanceGathers(plan::ProgramOp program, plan::CallOp gather) {
  auto from = program.lookupSymbol<plan::ProcedureOp>(gather.getProcedure());
  // What only converts parameters has nothing to hide.
  if (from.getOps<plan::CollectiveOp>().empty())
    return;
  lowering::BufferNames made;
  for (auto op : from.getOps<Instruction>())
    forBuffers(op.getOutputs(), [&](StringAttr name) { made.insert(name); });
  auto needs = [&](plan::CallOp call) {
    auto procedure =
        program.lookupSymbol<plan::ProcedureOp>(call.getProcedure());
    return llvm::any_of(procedure.getOps<Instruction>(), [&](Instruction op) {
      return llvm::any_of(Touched(op).reads,
                          [&](StringAttr name) { return made.contains(name); });
    });
  };
  Operation *next = gather->getNextNode();
  while (next && !(isa<plan::CallOp>(next) && needs(cast<plan::CallOp>(next))))
    next = next->getNextNode();
  // Beside nothing but a microbatch.
  auto call = dyn_cast_or_null<plan::CallOp>(next);
  if (!call || static_cast<int64_t>(call.getMicrobatch()) < 0)
    return;
  plan::ProcedureOp to = lowering::ownProcedure(program, call, ".first");
  for (plan::BufferOp buffer : lowering::transientsOf(program, from))
    buffer.setProcedureAttr(FlatSymbolRefAttr::get(to.getSymNameAttr()));
  Block &body = to.getBody().front();
  body.getOperations().splice(body.begin(),
                              from.getBody().front().getOperations());
  gather.erase();
  from.erase();
}

uint64_t addStream(plan::ProgramOp program, StringRef name) {
  SmallVector<Attribute> streams(program.getStreams().getValue());
  streams.push_back(StringAttr::get(program.getContext(), name));
  program.setStreamsAttr(ArrayAttr::get(program.getContext(), streams));
  return streams.size() - 1;
}

struct PrefetchParametersPass
    : impl::PrefetchParametersBase<PrefetchParametersPass> {
  using PrefetchParametersBase::PrefetchParametersBase;

  void runOnOperation() override {
    const int64_t limit =
        bytes < 0 ? lowering::notedBucket(getOperation()) : bytes;
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      for (auto call :
           llvm::make_early_inc_range(program.getOps<plan::CallOp>()))
        if (auto of =
                program.lookupSymbol<plan::ProcedureOp>(call.getProcedure());
            of.getAction() == Action::G)
          advanceGathers(program, call);
      std::optional<uint64_t> stream;
      for (auto procedure : program.getOps<plan::ProcedureOp>()) {
        Prefetch prefetch(program, procedure, limit);
        prefetch.run([&] {
          if (!stream)
            stream = addStream(program, "parameters");
          return *stream;
        });
        gathers += prefetch.gathers;
        buckets += prefetch.buckets;
      }
    }
  }
};

} // namespace
} // namespace merak
