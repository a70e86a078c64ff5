// Values between stages on meshes of their own: which boxes each rank sends,
// receives and passes on, and the channels of the plan that they go over.
#pragma once

#include "passes/Resharding/Description.h"
#include "passes/Resharding/PlanBoxes.h"

#include "mlir/IR/BuiltinOps.h"

#include <map>
#include <optional>
#include <set>

namespace merak {

class Boundaries {
public:
  // Of all sends of the module's programs that have layouts; none where all
  // stages share a mesh. The messages of one value have one order, of which the
  // instructions of every rank are a part. Emits errors.
  static mlir::FailureOr<Boundaries> of(mlir::ModuleOp module);

  const resharding::BoxParts &parts() const { return parts_; }
  // How each value goes, for reports: boundaries.json. Empty if none does.
  std::string description() const;

private:
  using Messages = std::vector<resharding::BoxMessage>;
  mlir::LogicalResult add(mlir::Operation *send, mlir::Operation *target);
  mlir::FailureOr<const Messages *>
  messagesOf(mlir::Operation *send, const resharding::Placement &from,
             const resharding::Placement &to, int64_t elementBytes);

  resharding::BoxParts parts_;
  std::vector<resharding::Boundary> boundaries_;
  std::string strategy_;                      // that was asked for
  std::set<std::string> known_;               // transfers
  std::optional<costmodel::Cluster> cluster_; // of the module
  // By placements of both ends and bytes of an element: many values lie alike.
  std::map<std::tuple<std::string, std::string, int64_t>, Messages> messages_;
};

} // namespace merak
