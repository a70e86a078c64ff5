// Values between stages on meshes of their own: which boxes each rank sends and
// receives, and the channels of the plan that they go over.
#pragma once

#include "passes/Resharding/Resharding.h"
#include "runtime/plan/Plan.h"

#include "mlir/IR/BuiltinOps.h"

#include <map>
#include <optional>
#include <set>

namespace merak {

class Boundaries {
public:
  // A box of the local value, sent or received as one message.
  struct Part {
    std::string channel;
    uint32_t channelIndex; // as in the instructions
    std::vector<int64_t> origin, extent;
  };

  // Of all sends of the module's programs that have layouts; none where all
  // stages share a mesh. The messages of one value have one order, of which the
  // instructions of every rank are a part. Emits errors.
  static mlir::FailureOr<Boundaries> of(mlir::ModuleOp module);

  bool empty() const { return channels_.empty(); }
  const std::vector<planpb::Channel> &channels() const { return channels_; }
  // In their order; none where the rank has none of the value's boxes to send.
  const std::vector<Part> &partsOf(llvm::StringRef transfer, bool sends,
                                   int64_t rank) const;

private:
  mlir::LogicalResult add(mlir::Operation *send, mlir::Operation *target);
  uint32_t channelOf(const std::string &name, int64_t from, int64_t to);

  std::vector<planpb::Channel> channels_;
  std::map<std::string, uint32_t> index_;
  std::map<std::tuple<std::string, bool, int64_t>, std::vector<Part>> parts_;
  std::set<std::string> known_;               // transfers
  std::optional<costmodel::Cluster> cluster_; // of the module
  // By placements of both ends and bytes of an element.
  std::map<std::tuple<std::string, std::string, int64_t>,
           resharding::Resharding>
      reshardings_;
};

} // namespace merak
