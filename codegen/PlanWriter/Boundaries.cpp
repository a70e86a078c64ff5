#include "codegen/PlanWriter/Boundaries.h"

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

uint32_t Boundaries::channelOf(const std::string &name, int64_t from,
                               int64_t to) {
  auto [it, fresh] = index_.try_emplace(name, channels_.size());
  if (fresh)
    channels_.emplace_back().set_name(name);
  planpb::RankPair *pair = channels_[it->second].add_pairs();
  pair->set_from(static_cast<uint32_t>(from));
  pair->set_to(static_cast<uint32_t>(to));
  return it->second + 1;
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
  if (!cluster_) {
    Result<costmodel::Cluster> read =
        machineOf(program->getParentOfType<ModuleOp>());
    if (!read.ok())
      return send.emitOpError(read.status().str());
    cluster_ = std::move(*read);
  }
  auto view = cast<plan::ViewAttr>(send.getInputs()[0]);
  auto buffer = SymbolTable::lookupNearestSymbolFrom<plan::BufferOp>(
      program, view.getBuffer());
  const int64_t bytes = plan::elementBytes(
      cast<RankedTensorType>(buffer.getType()).getElementType());
  // Many values lie alike.
  auto [known, fresh] =
      reshardings_.try_emplace(std::tuple(from->str(), to->str(), bytes));
  if (fresh) {
    resharding::ReshardOptions options;
    options.strategy = resharding::Strategy::SendRecv;
    options.apart = true;
    Result<resharding::Resharding> found =
        resharding::reshard(*from, *to, bytes, *cluster_, options);
    if (!found.ok())
      return send.emitOpError(found.status().str());
    known->second = std::move(*found);
  }
  const resharding::Resharding &found = known->second;
  // How many messages of this value a rank has sent and received: ranks with
  // the same boxes run the same program, whoever their peers are.
  std::map<int64_t, int> sent, received;
  for (const resharding::Leg &leg : found.legs)
    for (const resharding::Transfer &message : leg.transfers) {
      const int64_t sender = message.participants.front(),
                    receiver = message.participants.back();
      const resharding::UnitTask &task = leg.tasks[size_t(message.task)];
      for (const resharding::SharedBox &box : task.boxes()) {
        const std::string name = fmt::format(
            "{}.{}.{}", transfer, sent[sender]++, received[receiver]++);
        const uint32_t index = channelOf(name, sender, receiver);
        parts_[{transfer, true, sender}].push_back(
            {name, index, box.source, box.extent});
        parts_[{transfer, false, receiver}].push_back(
            {name, index, box.target, box.extent});
      }
    }
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

const std::vector<Boundaries::Part> &
Boundaries::partsOf(StringRef transfer, bool sends, int64_t rank) const {
  static const std::vector<Part> none;
  auto it = parts_.find({transfer.str(), sends, rank});
  return it == parts_.end() ? none : it->second;
}

} // namespace merak
