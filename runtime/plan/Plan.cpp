#include "runtime/plan/Plan.h"

#include <algorithm>
#include <fmt/format.h>

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

layout::AxisMap meshOf(const PlanFile &file) {
  layout::AxisMap mesh;
  for (const Axis &axis : file.mesh())
    mesh[axis.name()] = axis.size();
  return mesh;
}

layout::AxisMap layoutMesh(const PlanFile &file) {
  layout::AxisMap mesh = meshOf(file);
  // Plans come from files: what does not fit matches no layout.
  if (__builtin_mul_overflow(file.microbatches(), submicrobatches(file),
                             &mesh["mb"]))
    mesh["mb"] = 0;
  return mesh;
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
  for (const Axis &axis : file.mesh()) {
    axes_.push_back(axis.name());
    sizes_.push_back(axis.size());
  }
  coords_.reserve(file.ranks_size());
  for (int rank = 0; rank < file.ranks_size(); ++rank) {
    coords_.emplace_back(axes_.size(), 0);
    for (const Axis &coord : file.ranks(rank).coords())
      if (int axis = axisIndex(coord.name()); axis >= 0)
        coords_.back()[axis] = coord.size();
    byKey_.emplace(key(coords_.back()), rank);
  }
}

int RankMap::axisIndex(const std::string &name) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i] == name)
      return static_cast<int>(i);
  return -1;
}

int64_t RankMap::key(const std::vector<int64_t> &coords) const {
  int64_t result = 0;
  for (size_t i = 0; i < coords.size(); ++i)
    result = result * sizes_[i] + coords[i];
  return result;
}

int RankMap::neighbour(
    int rank, const google::protobuf::RepeatedPtrField<Axis> &replaced) const {
  std::vector<int64_t> coords = coords_[rank];
  for (const Axis &axis : replaced) {
    int index = axisIndex(axis.name());
    if (index < 0 || axis.size() < 0 || axis.size() >= sizes_[index])
      return -1;
    coords[index] = axis.size();
  }
  auto it = byKey_.find(key(coords));
  return it == byKey_.end() ? -1 : it->second;
}

std::vector<int> RankMap::members(
    int rank,
    const google::protobuf::RepeatedPtrField<std::string> &axes) const {
  std::vector<int> result;
  std::vector<int> varying;
  std::vector<int64_t> coords = coords_[rank];
  for (const std::string &name : axes) {
    if (int index = axisIndex(name); index >= 0) {
      varying.push_back(index);
      coords[index] = 0;
    }
  }
  while (true) {
    if (auto it = byKey_.find(key(coords)); it != byKey_.end())
      result.push_back(it->second);
    int i = static_cast<int>(varying.size()) - 1;
    for (; i >= 0; --i) {
      if (++coords[varying[i]] < sizes_[varying[i]])
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
