// What a stage needs to leave values to its next step: how passes that delay
// rows or gradients declare, read and write them, and the action that runs
// before the first microbatch. All ops that do what the step before left carry
// train.delayed: lowering does the same between steps.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/SparseAttributes.h"

#include <optional>

namespace merak {

class CarriedValues {
public:
  // `update`: the stage's action U.
  CarriedValues(pipe::StageOp stage, pipe::ActionOp update)
      : builder(stage.getContext()), stage(stage), action(update) {}

  // The action G, made if there is none.
  pipe::ActionOp gatherAction();
  // At the front of the stage, by that name or one like it.
  pipe::ValueOp declare(mlir::Location loc, const std::string &name,
                        mlir::Type type, pipe::ValueKind kind);
  // A number for all elements before the first step.
  pipe::ValueOp declareCarried(mlir::Location loc, const std::string &name,
                               mlir::Type type, mlir::TypedAttr initial);
  mlir::Value load(mlir::Location loc, pipe::ValueOp value);
  void save(mlir::Location loc, mlir::Value operand, pipe::ValueOp value,
            mlir::UnitAttr accumulate = {});

  static void mark(mlir::Operation *op) {
    op->setAttr(train::kDelayedAttr, mlir::UnitAttr::get(op->getContext()));
  }

  mlir::OpBuilder builder;

private:
  std::string freeName(std::string name);

  pipe::StageOp stage;
  pipe::ActionOp action;
};

} // namespace merak
