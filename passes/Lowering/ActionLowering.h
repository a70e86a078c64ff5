// Turns the body of one pipe.action into the instructions of a procedure.
//
// Ops that only move elements become views. A value that is stored or
// concatenated is written where it is going by the op that computes it, so that
// copies remain only where strides cannot express the result.
#pragma once

#include "passes/Lowering/Epilogues.h"
#include "passes/Lowering/LibraryCalls.h"
#include "passes/Lowering/StageLowering.h"

namespace merak::lowering {

class ActionLowering {
public:
  ActionLowering(StageLowering &stage, pipe::ActionOp action,
                 plan::ProcedureOp procedure);

  mlir::LogicalResult run();

private:
  // Where a value is to be written. With `sum` set it is added to that named
  // value.
  struct Destination {
    View view;
    NamedValue *sum = nullptr;
  };

  // ---- who writes where (ActionDestinations.cpp)
  void assignDestinations();
  void assignStore(pipe::StoreOp store);
  void assignConcat(train::ConcatOp concat);
  bool assign(mlir::Value value, const Destination &destination);

  // ---- instructions
  mlir::LogicalResult lower(mlir::Operation &op);
  void lowerLoad(pipe::LoadOp load);
  void lowerStore(pipe::StoreOp store);
  void lowerUpdate(pipe::UpdateOp update);
  void bringUpToDate(train::GatherOp lookup, const LibraryCall &call);
  void lowerReshape(train::ReshapeOp reshape);
  void lowerPad(train::PadOp pad);
  void lowerConcat(train::ConcatOp concat);
  void lowerConstant(train::ConstantOp constant);
  void lowerAllReduce(dist::AllReduceOp op);
  void lowerAllGather(dist::AllGatherOp op);
  void lowerReduceScatter(dist::ReduceScatterOp op);
  void lowerAllToAll(dist::AllToAllOp op);
  void lowerShardSlice(dist::ShardSliceOp op);
  void lowerPlace(dist::PlaceOp op);
  void lowerLibrary(mlir::Operation *op, const LibraryCall &call);
  void lowerProduct(const Epilogue &epilogue);
  mlir::LogicalResult lowerKernel(llvm::ArrayRef<mlir::Operation *> group);
  void setView(mlir::Value value, const View &view);
  void nameGradient(mlir::Operation &op);
  void markPart(mlir::Operation &op, mlir::Operation *first);
  void noteIdRange(mlir::Value ids, plan::BufferOp buffer);

  View viewOf(mlir::Value value);
  // The destination of a result, or a new transient buffer.
  View outputFor(mlir::Value result);
  View newBuffer(mlir::Type type, mlir::Location location,
                 plan::Category category = plan::Category::workspace);
  // Destinations of an instruction's results; `accumulate` says whether all of
  // them are sums that already hold something. Sums that cannot be formed in
  // place are added afterwards by `finishOutputs`.
  llvm::SmallVector<View> outputsFor(llvm::ArrayRef<mlir::Value> results,
                                     bool &accumulate);
  void finishOutputs(llvm::ArrayRef<mlir::Value> results,
                     llvm::ArrayRef<View> views);
  // Whether the next write to the value may overwrite; at most once true.
  bool takeOverwrite(NamedValue &value);

  plan::LibraryOp library(mlir::Location location, llvm::StringRef op,
                          llvm::ArrayRef<View> inputs,
                          llvm::ArrayRef<View> outputs,
                          llvm::ArrayRef<mlir::NamedAttribute> attrs = {},
                          llvm::ArrayRef<mlir::Attribute> scalars = {},
                          bool accumulate = false);
  void copy(mlir::Location location, const View &from, const View &to,
            bool accumulate = false);
  void collective(mlir::Operation *op, plan::Collective kind, const View &from,
                  const View &to, llvm::ArrayRef<llvm::StringRef> axes,
                  std::optional<plan::Reduction> reduction, int64_t dim = 0,
                  int64_t dim2 = 0);
  mlir::ArrayAttr viewArray(llvm::ArrayRef<View> views);
  llvm::SmallVector<llvm::StringRef> realAxes(mlir::ArrayAttr axes);

  StageLowering &stage_;
  pipe::ActionOp action_;
  plan::ProcedureOp procedure_;
  mlir::OpBuilder builder_;
  ActionId id_;
  llvm::DenseMap<mlir::Value, View> views_;
  llvm::DenseMap<mlir::Value, Destination> destinations_;
  llvm::DenseSet<mlir::Operation *> stored_; // stores done by the producer
  llvm::DenseMap<mlir::Operation *, View> concats_;
  llvm::StringMap<View> inputs_; // model inputs read by this action
  llvm::StringSet<> loaded_, overwritten_;
};

// Bytes that the views touch, each element once; for the simulator.
double bytesOf(plan::ProgramOp program, mlir::ArrayAttr views);

} // namespace merak::lowering
