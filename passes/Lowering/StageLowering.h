// What the lowering of one stage knows while its actions become procedures:
// named values and their buffers, fresh buffers, groups, streams, kernels.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Plan/PlanDialect.h"
#include "passes/Lowering/KernelCalls.h"
#include "passes/Lowering/ReplayedTables.h"
#include "passes/Lowering/Views.h"
#include "passes/Memory/SlotPlan.h"
#include "passes/Planning/TransferPlaces.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <map>
#include <optional>
#include <set>

namespace merak::lowering {

// Discardable attribute of sends and receives between stages on meshes of their
// own: an array of the layouts of the value that is sent and of the one that
// arrives.
inline constexpr llvm::StringLiteral kTransferLayoutsAttr = "plan.layouts";

// A value of the stage that outlives an action.
struct NamedValue {
  pipe::ValueOp op;
  plan::BufferOp buffer;       // null for inputs: each action reads its own
  std::set<ActionId> actions;  // those that touch it
  bool received = false;       // a transfer writes it
  std::vector<int> arrivals;   // of that transfer (planning::TransferRoom)
  bool sent = false;           // a transfer reads it
  std::vector<int> departures; // the latest of these transfers
  bool accumulates = false;    // some store adds to it
  // The action whose next store overwrites.
  std::optional<ActionId> overwriteIn;
  bool overwrites = false; // the first store of a step overwrites
};

// The name a user knows an op by: ONNX node names of its location.
std::string nameOf(mlir::Location location);
ActionId idOf(pipe::ActionOp action);

// A pipe.transfer with what both of its stages must know.
struct Transfer {
  mlir::StringAttr channel;
  mlir::Location location;
  std::string sourceStage, sourceValue, targetStage, targetValue;
  int64_t sourceIndex = -1, targetIndex = -1; // coordinates on "pp"
  dist::LayoutAttr sourceLayout, targetLayout;
  ActionId sent;     // action of the source stage
  ActionId received; // first action of the target stage that reads it
  // Where its target needs room for it, and until where it lies with its
  // source; empty: not per microbatch.
  planning::TransferRoom room;
};
// When a value of a microbatch goes to another stage.
enum class Sends {
  Early, // as soon as it is made, beside what is computed behind it
  // When all of the forward, or of the backward with the gradients of weights
  // if these come right behind it, is done.
  Late,
  Blocking // so, and the stage computes nothing until it has left
};
// All transfers of the module, checked; emits errors.
mlir::FailureOr<std::vector<Transfer>> collectTransfers(mlir::ModuleOp module,
                                                        Sends sends);

class StageLowering {
public:
  StageLowering(pipe::StageOp stage, mlir::ModuleOp module,
                KernelFactory &kernels, llvm::ArrayRef<Transfer> transfers,
                Sends sends);

  // Replaces the stage by a plan.program behind it; emits errors.
  mlir::LogicalResult run();

  // ---- for ActionLowering
  mlir::OpBuilder &builder() { return builder_; }
  mlir::MLIRContext *context() { return builder_.getContext(); }
  plan::ProgramOp program() { return program_; }
  KernelFactory &kernels() { return kernels_; }
  // Whether the plan is for GPUs.
  bool isForGpu() const;
  int64_t axisSize(llvm::StringRef axis) const { return mesh_.getSize(axis); }
  NamedValue *find(llvm::StringRef name);
  // A buffer named after `wish`. `procedure` null: it lives for the step.
  plan::BufferOp createBuffer(const llvm::Twine &wish, plan::Category category,
                              mlir::RankedTensorType type,
                              plan::ProcedureOp procedure,
                              mlir::Location location);
  plan::BufferOp bufferOf(const View &view) {
    return buffers_.lookup(view.buffer);
  }
  // Null: the rows of the parameter are owed nothing.
  const ReplayedTable *replayed(llvm::StringRef parameter);
  // The table and its states, in the order of updates.
  llvm::SmallVector<View> tensorsOf(pipe::UpdateOp update);
  // The persistent buffer of a constant; its bytes go to a train.parameter.
  plan::BufferOp constantBuffer(mlir::ElementsAttr value,
                                mlir::Location location);
  // Number of the group of ranks that differ on `axes` only.
  int64_t groupOf(llvm::ArrayRef<llvm::StringRef> axes);

private:
  void collectValues();
  void markTransfers();
  void findFirstWrites();
  void createBuffers();
  void createSlots();
  mlir::LogicalResult createProcedures();
  void createReceives(plan::ProcedureOp procedure, ActionId action);
  void createSends(plan::ProcedureOp procedure, ActionId action);
  void createZeroing();
  // An instruction that sets all of a buffer to a scalar.
  void fill(mlir::Location location, plan::BufferOp buffer,
            mlir::Attribute scalar);
  void createCalls();
  void createOutputs();
  void createReplayed();
  mlir::LogicalResult createEntries();
  mlir::LogicalResult createFlush(plan::ProcedureOp procedure);
  void makeCopies();
  void setCarried();
  uint64_t streamOf(const Transfer &transfer, bool send);
  void noteLayouts(plan::ProcedureOp procedure, const Transfer &transfer);
  std::string uniqueName(const llvm::Twine &wish);
  int64_t countCalls(ActionId action) const;
  bool hasLateRecompute(int64_t chunk) const;

  pipe::StageOp stage_;
  mlir::ModuleOp module_;
  mlir::OpBuilder builder_;
  dist::MeshAttr mesh_;
  plan::ProgramOp program_;
  mlir::Block *body_ = nullptr;
  std::vector<Step> schedule_;
  llvm::MapVector<mlir::StringAttr, NamedValue> values_;
  KernelFactory &kernels_;
  llvm::ArrayRef<Transfer> transfers_;
  Sends sends_;
  llvm::MapVector<mlir::StringAttr, ReplayedTable> replayed_; // by parameter
  llvm::StringMap<int> names_;
  llvm::SmallVector<mlir::Attribute> groups_;
  llvm::SmallVector<mlir::Attribute> streams_;
  llvm::StringMap<uint64_t> channelStreams_;
  llvm::DenseMap<mlir::Attribute, plan::BufferOp> constants_;
  std::map<ActionId, plan::ProcedureOp> procedures_;
  // Receives of B, apart from it where an R waits for them.
  std::map<ActionId, plan::ProcedureOp> receives_;
  plan::ProcedureOp zeroing_;
  std::vector<memory::SlotPlan> slotClasses_;
  mlir::Operation *lastBuffer_ = nullptr;
  llvm::DenseMap<mlir::StringAttr, plan::BufferOp> buffers_;
};

} // namespace merak::lowering
