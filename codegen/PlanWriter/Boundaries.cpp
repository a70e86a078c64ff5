#include "codegen/PlanWriter/Boundaries.h"

#include "codegen/PlanWriter/ProgramWriter.h"
#include "dialects/Dist/StageMesh.h"
#include "dialects/Plan/PlanDialect.h"
#include "passes/Lowering/StageLowering.h"

#include <fmt/format.h>

using namespace mlir;

namespace merak {

namespace {

// The layout of one microbatch, whose axis is the major one of a factor.
FailureOr<layout::Layout> ofMicrobatch(Operation *op, dist::LayoutAttr layout,
                                       dist::MeshAttr mesh) {
  layout::Layout result = layout.getLayout();
  for (layout::DimLayout &dim : result.dims)
    for (layout::Factor &factor : dim.factors) {
      auto found = llvm::find(factor.axes, kMicrobatchAxis);
      if (found == factor.axes.end())
        continue;
      if (found != factor.axes.begin())
        return op->emitOpError("cannot send a value that lies as ")
               << layout.getLayout().str();
      factor.axes.erase(found);
      factor.size /= mesh.getSize(kMicrobatchAxis);
    }
  llvm::erase(result.partial, kMicrobatchAxis);
  return result;
}

FailureOr<resharding::Placement> placementOf(Operation *op, Operation *program,
                                             dist::LayoutAttr layout) {
  const dist::MeshAttr mesh = dist::meshOf(program);
  FailureOr<layout::Layout> lies = ofMicrobatch(op, layout, mesh);
  if (failed(lies))
    return failure();
  resharding::Placement placement;
  placement.layout = std::move(*lies);
  for (const char *axis : {kDataAxis, kTensorAxis})
    placement.axes.push_back({axis, mesh.getSize(axis)});
  auto devices = program->getAttrOfType<DenseI64ArrayAttr>(dist::kDevicesAttr);
  placement.devices.assign(devices.asArrayRef().begin(),
                           devices.asArrayRef().end());
  return placement;
}

Result<costmodel::Cluster> machineOf(ModuleOp module) {
  if (auto noted = module->getAttrOfType<dist::ClusterAttr>(dist::kClusterAttr))
    if (!noted.getDocument().empty())
      return costmodel::parseCluster(noted.getDocument().str(), "cluster");
  int64_t ranks = 0;
  for (auto program : module.getOps<plan::ProgramOp>())
    if (auto own =
            program->getAttrOfType<DenseI64ArrayAttr>(dist::kDevicesAttr))
      ranks += own.size();
  return costmodel::defaultCluster(ranks);
}

} // namespace

FailureOr<const Boundaries::Messages *>
Boundaries::messagesOf(Operation *send, const resharding::Placement &from,
                       const resharding::Placement &to, int64_t elementBytes) {
  auto [known, fresh] =
      messages_.try_emplace(std::tuple(from.str(), to.str(), elementBytes));
  if (!fresh)
    return &known->second;
  auto module = send->getParentOfType<ModuleOp>();
  if (!cluster_) {
    Result<costmodel::Cluster> read = machineOf(module);
    if (!read.ok())
      return send->emitOpError(read.status().str());
    cluster_ = std::move(*read);
  }
  if (auto asked = module->getAttrOfType<StringAttr>(dist::kReshardAttr))
    strategy_ = asked.str();
  Result<resharding::ReshardOptions> options =
      resharding::optionsOfPlan(strategy_);
  if (!options.ok())
    return send->emitOpError(options.status().str());
  Result<resharding::Resharding> found =
      resharding::reshard(from, to, elementBytes, *cluster_, *options);
  if (!found.ok())
    return send->emitOpError(found.status().str());
  Result<Messages> messages = resharding::messagesOf(*found);
  if (!messages.ok())
    return send->emitOpError(messages.status().str());
  known->second = std::move(*messages);
  return &known->second;
}

std::string Boundaries::description() const {
  return boundaries_.empty() ? "" : resharding::toJson(boundaries_, strategy_);
}

LogicalResult Boundaries::add(Operation *op, Operation *target) {
  auto send = cast<plan::SendOp>(op);
  const std::string transfer = send.getChannel().str();
  if (!known_.insert(transfer).second)
    return success();
  auto layouts = send->getAttrOfType<ArrayAttr>(lowering::kTransferLayoutsAttr);
  auto program = send->getParentOfType<plan::ProgramOp>();
  FailureOr<resharding::Placement> from =
      placementOf(send, program, cast<dist::LayoutAttr>(layouts[0]));
  FailureOr<resharding::Placement> to =
      placementOf(send, target, cast<dist::LayoutAttr>(layouts[1]));
  if (failed(from) || failed(to))
    return failure();
  auto view = cast<plan::ViewAttr>(send.getInputs()[0]);
  auto buffer = SymbolTable::lookupNearestSymbolFrom<plan::BufferOp>(
      program, view.getBuffer());
  const Type element =
      cast<RankedTensorType>(buffer.getType()).getElementType();
  FailureOr<const Messages *> messages =
      messagesOf(send, *from, *to, plan::elementBytes(element));
  if (failed(messages))
    return failure();
  parts_.add(transfer, **messages);
  boundaries_.push_back(
      {fmt::format("stage {} to {}, {}", program.getIndex(),
                   cast<plan::ProgramOp>(target).getIndex(), transfer),
       dtypeName(dtypeOf(element)), plan::elementBytes(element), *from, *to});
  return success();
}

FailureOr<Boundaries> Boundaries::of(ModuleOp module) {
  Boundaries result;
  std::map<int64_t, plan::ProgramOp> stages;
  for (auto program : module.getOps<plan::ProgramOp>())
    stages[static_cast<int64_t>(program.getIndex())] = program;
  WalkResult walked = module.walk([&](plan::SendOp send) {
    if (!send->hasAttr(lowering::kTransferLayoutsAttr))
      return WalkResult::advance();
    auto stage = send.getPeer().getAs<IntegerAttr>(kPipelineAxis);
    if (!stage || !stages.count(stage.getInt())) {
      send.emitOpError("sends to a stage that there is not");
      return WalkResult::interrupt();
    }
    return failed(result.add(send, stages.at(stage.getInt())))
               ? WalkResult::interrupt()
               : WalkResult::advance();
  });
  if (walked.wasInterrupted())
    return failure();
  return result;
}

} // namespace merak
