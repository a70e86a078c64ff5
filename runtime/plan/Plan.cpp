#include "runtime/plan/Plan.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace merak::planpb;

namespace merak {

int64_t dtypeSize(DType dtype) {
  switch (dtype) {
  case F32:
  case I32:
  case U32:
    return 4;
  case I64:
  case F64:
  case U64:
    return 8;
  case BF16:
  case F16:
  case I16:
  case U16:
    return 2;
  case BOOL:
  case U8:
  case I8:
    return 1;
  default:
    return 0;
  }
}

const char *dtypeName(DType dtype) {
  switch (dtype) {
  case F32:
    return "f32";
  case I64:
    return "i64";
  case I32:
    return "i32";
  case BOOL:
    return "bool";
  case BF16:
    return "bf16";
  case F16:
    return "f16";
  case F64:
    return "f64";
  case U8:
    return "u8";
  case I8:
    return "i8";
  case I16:
    return "i16";
  case U16:
    return "u16";
  case U32:
    return "u32";
  case U64:
    return "u64";
  default:
    return "invalid";
  }
}

const char *categoryName(Buffer::Category category) {
  switch (category) {
  case Buffer::PARAMETERS:
    return "parameters";
  case Buffer::GRADIENTS:
    return "gradients";
  case Buffer::OPTIMIZER:
    return "optimizer";
  case Buffer::ACTIVATIONS:
    return "activations";
  case Buffer::COMMUNICATION:
    return "communication";
  case Buffer::WORKSPACE:
    return "workspace";
  default:
    return "invalid";
  }
}

const char *kindName(Instruction::Kind kind) {
  switch (kind) {
  case Instruction::NOP:
    return "nop";
  case Instruction::KERNEL:
    return "kernel";
  case Instruction::LIBRARY:
    return "library";
  case Instruction::COLLECTIVE:
    return "collective";
  case Instruction::SEND:
    return "send";
  case Instruction::RECV:
    return "recv";
  case Instruction::RECORD:
    return "record";
  case Instruction::WAIT:
    return "wait";
  case Instruction::LOAD_INPUT:
    return "load_input";
  default:
    return "invalid";
  }
}

std::string groupStr(const Group &group) {
  return group.named().empty() ? fmt::format("{}", fmt::join(group.axes(), ","))
                               : group.named();
}

layout::Layout fromProto(const planpb::Layout &proto) {
  layout::Layout result;
  for (const DimLayout &dim : proto.dims()) {
    result.dims.emplace_back();
    for (const Factor &factor : dim.factors())
      result.dims.back().factors.push_back(
          {factor.size(), {factor.axes().begin(), factor.axes().end()}});
  }
  result.partial.assign(proto.partial().begin(), proto.partial().end());
  return result;
}

planpb::Layout toProto(const layout::Layout &layout) {
  planpb::Layout proto;
  for (const layout::DimLayout &dim : layout.dims) {
    DimLayout *dimProto = proto.add_dims();
    for (const layout::Factor &factor : dim.factors) {
      Factor *factorProto = dimProto->add_factors();
      factorProto->set_size(factor.size);
      for (const std::string &axis : factor.axes)
        factorProto->add_axes(axis);
    }
  }
  for (const std::string &axis : layout.partial)
    proto.add_partial(axis);
  return proto;
}

uint32_t versionOf(const PlanFile &file) {
  return file.meshes_size() > 0 ? kPlanVersion : kOneMeshVersion;
}

const google::protobuf::RepeatedPtrField<Axis> &axesOf(const PlanFile &file,
                                                       int rank) {
  const uint32_t mesh = rank < file.ranks_size() ? file.ranks(rank).mesh() : 0;
  return mesh < static_cast<uint32_t>(file.meshes_size())
             ? file.meshes(static_cast<int>(mesh)).axes()
             : file.mesh();
}

layout::AxisMap meshOf(const PlanFile &file, int rank) {
  layout::AxisMap mesh;
  for (const Axis &axis : axesOf(file, rank))
    mesh[axis.name()] = axis.size();
  return mesh;
}

layout::AxisMap layoutMesh(const PlanFile &file, int rank) {
  layout::AxisMap mesh = meshOf(file, rank);
  // Plans come from files: what does not fit matches no layout.
  if (__builtin_mul_overflow(file.microbatches(), submicrobatches(file),
                             &mesh["mb"]))
    mesh["mb"] = 0;
  return mesh;
}

int rankOf(const PlanFile &file, int program) {
  for (int rank = 0; rank < file.ranks_size(); ++rank)
    if (file.ranks(rank).program() == static_cast<uint32_t>(program))
      return rank;
  return 0;
}

int64_t submicrobatches(const PlanFile &file) {
  return std::clamp<int64_t>(file.submicrobatches(), 1, kMaxSubBatches);
}

layout::AxisMap coordsOf(const PlanFile &file, int rank) {
  layout::AxisMap coords;
  for (const Axis &axis : file.ranks(rank).coords())
    coords[axis.name()] = axis.size();
  return coords;
}

RankMap::RankMap(const PlanFile &file) {
  for (const Axis &axis : axesOf(file, 0))
    axes_.push_back(axis.name());
  auto addMesh = [&](const google::protobuf::RepeatedPtrField<Axis> &axes) {
    std::vector<int64_t> &sizes = meshes_.emplace_back(axes_.size(), 1);
    for (const Axis &axis : axes)
      if (int index = axisIndex(axis.name()); index >= 0)
        sizes[index] = axis.size();
  };
  if (file.meshes_size() == 0)
    addMesh(file.mesh());
  for (const Mesh &mesh : file.meshes())
    addMesh(mesh.axes());
  byKey_.resize(meshes_.size());
  coords_.reserve(file.ranks_size());
  for (int rank = 0; rank < file.ranks_size(); ++rank) {
    coords_.emplace_back(axes_.size(), 0);
    for (const Axis &coord : file.ranks(rank).coords())
      if (int axis = axisIndex(coord.name()); axis >= 0)
        coords_.back()[axis] = coord.size();
    mesh_.push_back(std::min<int>(static_cast<int>(file.ranks(rank).mesh()),
                                  static_cast<int>(meshes_.size()) - 1));
    byKey_[mesh_.back()].emplace(key(mesh_.back(), coords_.back()), rank);
  }
  for (const Channel &channel : file.channels()) {
    Ends &ends = channels_.emplace_back();
    for (const RankPair &pair : channel.pairs()) {
      ends.to.emplace(pair.from(), pair.to());
      ends.from.emplace(pair.to(), pair.from());
    }
  }
  for (const NamedGroup &group : file.groups()) {
    Lists &lists = groups_[group.name()];
    for (const RankList &list : group.lists()) {
      for (uint32_t rank : list.ranks())
        lists.listOf.emplace(rank, lists.lists.size());
      lists.lists.emplace_back(list.ranks().begin(), list.ranks().end());
    }
  }
}

int RankMap::axisIndex(const std::string &name) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i] == name)
      return static_cast<int>(i);
  return -1;
}

int64_t RankMap::key(int mesh, const std::vector<int64_t> &coords) const {
  int64_t result = 0;
  for (size_t i = 0; i < coords.size(); ++i)
    result = result * meshes_[mesh][i] + coords[i];
  return result;
}

int RankMap::neighbour(
    int rank, const google::protobuf::RepeatedPtrField<Axis> &replaced) const {
  const int mesh = mesh_[rank];
  std::vector<int64_t> coords = coords_[rank];
  for (const Axis &axis : replaced) {
    int index = axisIndex(axis.name());
    if (index < 0 || axis.size() < 0 || axis.size() >= meshes_[mesh][index])
      return -1;
    coords[index] = axis.size();
  }
  auto it = byKey_[mesh].find(key(mesh, coords));
  return it == byKey_[mesh].end() ? -1 : it->second;
}

int RankMap::peer(int rank, const Instruction &transfer) const {
  return peer(rank, transfer.kind() == Instruction::SEND,
              transfer.channel_index(), transfer.peer());
}

int RankMap::peer(int rank, bool sends, uint32_t channelIndex,
                  const google::protobuf::RepeatedPtrField<Axis> &axes) const {
  if (channelIndex == 0)
    return neighbour(rank, axes);
  if (channelIndex > channels_.size())
    return -1;
  const Ends &ends = channels_[channelIndex - 1];
  const auto &other = sends ? ends.to : ends.from;
  auto it = other.find(rank);
  return it == other.end() ? -1 : it->second;
}

std::vector<int> RankMap::members(int rank, const Group &group) const {
  if (group.named().empty())
    return members(rank, group.axes());
  auto entry = groups_.find(group.named());
  if (entry == groups_.end())
    return {};
  auto list = entry->second.listOf.find(rank);
  return list == entry->second.listOf.end() ? std::vector<int>()
                                            : entry->second.lists[list->second];
}

std::vector<int> RankMap::members(
    int rank,
    const google::protobuf::RepeatedPtrField<std::string> &axes) const {
  std::vector<int> result;
  std::vector<int> varying;
  const int mesh = mesh_[rank];
  std::vector<int64_t> coords = coords_[rank];
  for (const std::string &name : axes) {
    if (int index = axisIndex(name); index >= 0) {
      varying.push_back(index);
      coords[index] = 0;
    }
  }
  while (true) {
    if (auto it = byKey_[mesh].find(key(mesh, coords));
        it != byKey_[mesh].end())
      result.push_back(it->second);
    int i = static_cast<int>(varying.size()) - 1;
    for (; i >= 0; --i) {
      if (++coords[varying[i]] < meshes_[mesh][varying[i]])
        break;
      coords[varying[i]] = 0;
    }
    if (i < 0)
      return result;
  }
}

uint32_t slotOf(const Buffer &buffer, const Call &call) {
  return buffer.slot_class() >= 0 && buffer.slot_class() < call.slots_size()
             ? call.slots(buffer.slot_class())
             : 0;
}

uint64_t bufferAddress(const Buffer &buffer, const Call &call) {
  return buffer.offset() + slotOf(buffer, call) * buffer.slot_stride();
}

int64_t elementCount(const Operand &operand) {
  int64_t count = 1;
  for (int64_t size : operand.shape())
    count *= size;
  return count;
}

} // namespace merak
