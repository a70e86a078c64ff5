#include "passes/Memory/ArenaPlan.h"
#include "passes/Memory/BufferLives.h"
#include "passes/Memory/Passes.h"

#include "mlir/IR/Builders.h"

#include "mlir/IR/Remarks.h"
#include <fmt/format.h>

#include <utility>

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_ASSIGNMEMORY
#include "passes/Memory/Passes.h.inc"

namespace {

using memory::alignUp;

class Assigner {
public:
  explicit Assigner(plan::ProgramOp program) : program_(program) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
    program.walk([&](plan::CollectiveOp op) {
      if (!op->hasAttr(plan::kJoinedAttr))
        return;
      joined_.emplace_back();
      for (Attribute view : op.getInputs()) {
        StringAttr name = cast<plan::ViewAttr>(view).getBuffer().getAttr();
        joined_.back().push_back(name);
        joinedIn_[name] = joined_.size() - 1;
      }
    });
  }

  void run() {
    placeForTheStep();
    base_ = end_;
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      placeTransients(procedure);
    program_.setArenaBytes(end_);
    Builder builder(program_.getContext());
    bytes_[plan::Category::workspace] += end_ - base_;
    SmallVector<NamedAttribute> row;
    for (auto [category, bytes] : bytes_)
      row.push_back(builder.getNamedAttr(plan::stringifyCategory(category),
                                         builder.getI64IntegerAttr(bytes)));
    program_->setAttr("plan.memory", builder.getDictionaryAttr(row));
  }

  int64_t bytes() const { return end_; }
  int64_t lowerBound() const { return base_ + transientBound_; }

  // The largest buffers that live where most memory does.
  std::vector<std::pair<int64_t, std::string>> largest(size_t count) {
    std::vector<std::pair<int64_t, std::string>> list;
    for (auto &[name, buffer] : buffers_) {
      if (buffer.isTransient() && !atPeak_.contains(name))
        continue;
      int64_t slots = buffer.getSlots();
      std::string text = fmt::format(
          "{} \"{}\"", plan::stringifyCategory(buffer.getCategory()).str(),
          name.str());
      if (slots > 1)
        text += fmt::format(" in {} slots", slots);
      if (auto node = buffer.getLoc()->findInstanceOf<NameLoc>();
          node && !buffer.getTensor())
        text += fmt::format(", of '{}'", node.getName().str());
      list.emplace_back(buffer.getBytes() * slots, text);
    }
    std::stable_sort(list.begin(), list.end(),
                     [](auto &a, auto &b) { return a.first > b.first; });
    list.resize(std::min(list.size(), count));
    return list;
  }

private:
  void place(plan::BufferOp buffer, int64_t offset) {
    buffer.setOffset(offset);
  }

  void placeForTheStep() {
    // By category, so that each is one stretch of memory.
    for (plan::Category category :
         {plan::Category::parameters, plan::Category::gradients,
          plan::Category::optimizer, plan::Category::workspace,
          plan::Category::activations, plan::Category::communication}) {
      int64_t begin = end_;
      for (auto &[name, buffer] : buffers_) {
        if (buffer.isTransient() || buffer.getCategory() != category)
          continue;
        // The first of several that one collective takes as an array brings
        // the others along, in its order.
        if (auto it = joinedIn_.find(name); it == joinedIn_.end())
          append(buffer);
        else
          for (StringAttr member : std::exchange(joined_[it->second], {}))
            append(buffers_.lookup(member));
      }
      bytes_[category] += end_ - begin;
    }
  }

  void append(plan::BufferOp buffer) {
    int64_t stride = alignUp(buffer.getBytes());
    place(buffer, end_);
    buffer.setSlotStride(buffer.getSlots() > 1 ? stride : 0);
    end_ += stride * buffer.getSlots();
  }

  void placeTransients(plan::ProcedureOp procedure) {
    std::vector<memory::LiveRange> ranges;
    std::vector<plan::BufferOp> owners;
    for (auto &[name, life] : memory::bufferLives(procedure)) {
      plan::BufferOp buffer = buffers_.lookup(name);
      if (!buffer || !buffer.isTransient())
        continue;
      ranges.push_back({buffer.getBytes(), life.first, life.last});
      owners.push_back(buffer);
    }
    memory::ArenaPlan plan = memory::planArena(ranges);
    for (auto [buffer, offset] : llvm::zip(owners, plan.offsets))
      place(buffer, base_ + offset);
    if (base_ + plan.bytes > end_) {
      end_ = base_ + plan.bytes;
      atPeak_.clear();
      for (size_t index : memory::liveAtPeak(ranges))
        atPeak_.insert(owners[index].getSymNameAttr());
    }
    transientBound_ = std::max(transientBound_, plan.lowerBound);
  }

  plan::ProgramOp program_;
  llvm::MapVector<StringAttr, plan::BufferOp> buffers_;
  std::map<plan::Category, int64_t> bytes_;
  llvm::DenseSet<StringAttr> atPeak_; // transient buffers
  // Operands of joined collectives, and the collective of each.
  std::vector<SmallVector<StringAttr>> joined_;
  llvm::DenseMap<StringAttr, size_t> joinedIn_;
  int64_t base_ = 0, end_ = 0, transientBound_ = 0;
};

struct AssignMemoryPass : impl::AssignMemoryBase<AssignMemoryPass> {
  using AssignMemoryBase::AssignMemoryBase;

  // As asked for, or what the stage phase noted of a device.
  int64_t limitOf(ModuleOp module) {
    if (memoryLimit > 0)
      return memoryLimit;
    return dist::ClusterAttr::of(module).getMemoryBytes();
  }

  void runOnOperation() override {
    const int64_t limit = limitOf(getOperation());
    int64_t most = 0;
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      eraseUnused(program);
      Assigner assigner(program);
      assigner.run();
      remark::analysis(program.getLoc(),
                       remark::RemarkOpts::name("Arena").category("memory"))
          << fmt::format("{} bytes for {}, at least {} live at a time",
                         assigner.bytes(), program.getSymName().str(),
                         assigner.lowerBound());
      if (assigner.bytes() >= most) {
        most = assigner.bytes();
        arenaBytes = most;
        lowerBoundBytes = assigner.lowerBound();
      }
      if (limit > 0 && assigner.bytes() > limit) {
        refuse(program, assigner, limit);
        signalPassFailure();
      }
    }
  }

  // Buffers that nothing touches, such as a scratch result nobody asked for.
  static void eraseUnused(plan::ProgramOp program) {
    llvm::DenseSet<StringAttr> used;
    program.walk([&](plan::InstructionOpInterface op) {
      for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
        for (Attribute view : views)
          used.insert(cast<plan::ViewAttr>(view).getBuffer().getAttr());
    });
    for (auto buffer :
         llvm::make_early_inc_range(program.getOps<plan::BufferOp>()))
      if (buffer.isTransient() && !used.contains(buffer.getSymNameAttr()))
        buffer.erase();
  }

  static void refuse(plan::ProgramOp program, Assigner &assigner,
                     int64_t limit) {
    std::string text = fmt::format(
        "needs {:.1f} MiB on each of its devices, which have {:.1f} MiB; the "
        "largest buffers:",
        assigner.bytes() / 1048576.0, limit / 1048576.0);
    for (auto &[bytes, name] : assigner.largest(8))
      text += fmt::format("\n  {:10.1f} MiB {}", bytes / 1048576.0, name);
    program.emitError("program '") << program.getSymName() << "' " << text;
  }
};

} // namespace
} // namespace merak
