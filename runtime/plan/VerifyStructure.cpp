// Checks that need no more than the manifest, one program, or one instruction.
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Dependences.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/Joined.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/SourceType.h"
#include "runtime/plan/Trim.h"
#include "runtime/plan/Verify.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>

using namespace merak::planpb;

namespace merak {
namespace {

constexpr uint64_t kAlignment = 64;

constexpr uint64_t kMaxDevices = int64_t{1} << 24;
constexpr uint64_t kPlacesPerRank = 64;
constexpr uint64_t kTooMany = UINT64_MAX;

// Sums and products of numbers read from a file: those that do not fit become
// kTooMany, which fails every comparison with a size.
uint64_t times(uint64_t a, uint64_t b) {
  uint64_t result;
  return __builtin_mul_overflow(a, b, &result) ? kTooMany : result;
}
uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t result;
  return __builtin_add_overflow(a, b, &result) ? kTooMany : result;
}

uint64_t byteCount(const google::protobuf::RepeatedField<int64_t> &shape,
                   DType dtype) {
  uint64_t count = dtypeSize(dtype);
  for (int64_t size : shape)
    count = times(count, static_cast<uint64_t>(std::max<int64_t>(0, size)));
  return count;
}

// The first name that stands twice in a list, or an empty one.
template <typename List> std::string repeated(const List &names) {
  std::set<std::string> seen;
  for (const std::string &name : names)
    if (!seen.insert(name).second)
      return name;
  return "";
}

bool sameShape(const google::protobuf::RepeatedField<int64_t> &a,
               const google::protobuf::RepeatedField<int64_t> &b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

bool sameShape(const std::vector<int64_t> &a,
               const google::protobuf::RepeatedField<int64_t> &b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

class ManifestCheck {
public:
  explicit ManifestCheck(const LoadedPlan &plan)
      : plan_(plan), file_(plan.file), problems_("manifest") {}

  Status run() {
    checkMesh();
    checkDevices();
    checkGroups();
    checkChannels();
    checkTensors();
    if (file_.mode() != "train" && file_.mode() != "infer")
      problems_.add(
          fmt::format("mode is \"{}\", expected train or infer", file_.mode()));
    if (file_.submicrobatches() < 0 || file_.submicrobatches() > kMaxSubBatches)
      problems_.add(fmt::format("splits a microbatch into {} parts, expected "
                                "at most {}",
                                file_.submicrobatches(), kMaxSubBatches));
    return problems_.take();
  }

private:
  using Sizes = std::map<std::string, int64_t>;

  // " 2" of several.
  std::string numberOf(uint32_t mesh) const {
    return file_.meshes_size() == 0 ? "" : fmt::format(" {}", mesh);
  }

  Sizes checkAxes(const google::protobuf::RepeatedPtrField<Axis> &axes,
                  uint32_t number, uint64_t &places) {
    Sizes mesh;
    uint64_t devices = 1;
    for (const Axis &axis : axes) {
      if (!mesh.emplace(axis.name(), axis.size()).second)
        problems_.add(fmt::format("mesh{} axis \"{}\" is there twice",
                                  numberOf(number), axis.name()));
      devices = times(devices, static_cast<uint64_t>(axis.size()));
    }
    if (mesh.count("mb"))
      problems_.add("mesh axis \"mb\" is that of microbatches");
    places = plus(places, devices);
    return mesh;
  }

  void checkMesh() {
    std::vector<Sizes> meshes;
    uint64_t places = 0;
    if (file_.meshes_size() == 0)
      meshes.push_back(checkAxes(file_.mesh(), 0, places));
    else if (file_.mesh_size() > 0)
      problems_.add("has one mesh and several");
    for (int m = 0; m < file_.meshes_size(); ++m) {
      const auto &axes = file_.meshes(m).axes(), &first = axesOf(file_, 0);
      meshes.push_back(checkAxes(axes, static_cast<uint32_t>(m), places));
      if (!std::equal(axes.begin(), axes.end(), first.begin(), first.end(),
                      [](const Axis &a, const Axis &b) {
                        return a.name() == b.name();
                      }))
        problems_.add(
            fmt::format("mesh {} has other axes than that of rank 0", m));
    }
    // Groups are found by walking places, taken or not.
    if (places > std::min<uint64_t>(kMaxDevices,
                                    times(kPlacesPerRank, file_.ranks_size())))
      problems_.add(fmt::format("the mesh has {} places for {} ranks", places,
                                file_.ranks_size()));
    std::map<std::pair<uint32_t, Sizes>, int> taken;
    std::map<uint32_t, uint32_t> meshOf; // by program
    for (int rank = 0; rank < file_.ranks_size(); ++rank) {
      const uint32_t number = file_.ranks(rank).mesh();
      if (number >= meshes.size()) {
        problems_.add(fmt::format("rank {} is of mesh {}, but there are {}",
                                  rank, number, meshes.size()));
        continue;
      }
      const Sizes &mesh = meshes[number];
      Sizes coords;
      for (const Axis &coord : file_.ranks(rank).coords()) {
        coords[coord.name()] = coord.size();
        auto axis = mesh.find(coord.name());
        if (axis == mesh.end())
          problems_.add(fmt::format("rank {} has a coordinate on \"{}\", which "
                                    "is no mesh axis",
                                    rank, coord.name()));
        else if (coord.size() < 0 || coord.size() >= axis->second)
          problems_.add(fmt::format("rank {} has {}={}, outside the mesh of "
                                    "size {}",
                                    rank, coord.name(), coord.size(),
                                    axis->second));
      }
      for (const auto &[name, size] : mesh)
        if (!coords.count(name))
          problems_.add(
              fmt::format("rank {} has no coordinate on \"{}\"", rank, name));
      auto [it, fresh] = taken.emplace(std::pair(number, coords), rank);
      if (!fresh)
        problems_.add(fmt::format("ranks {} and {} have the same coordinates",
                                  it->second, rank));
      const uint32_t program = file_.ranks(rank).program();
      if (program >= plan_.programs.size())
        problems_.add(fmt::format("rank {} runs program {}, but there are {}",
                                  rank, program, plan_.programs.size()));
      if (meshOf.emplace(program, number).first->second != number)
        problems_.add(fmt::format("program {} runs on meshes {} and {}",
                                  program, meshOf[program], number));
    }
  }

  // Devices of ranks: as many, ascending, none of them far away.
  void checkDevices() {
    const auto &devices = file_.devices();
    if (devices.empty())
      return;
    if (devices.size() != file_.ranks_size() ||
        !std::is_sorted(devices.begin(), devices.end(),
                        std::less_equal<uint32_t>()) ||
        uint64_t(*devices.rbegin()) >= kMaxDevices)
      problems_.add(fmt::format("its {} ranks are on {} devices, which must be "
                                "as many, ascending, each of one rank",
                                file_.ranks_size(), devices.size()));
  }

  bool isRank(uint32_t rank) const {
    return rank < static_cast<uint32_t>(file_.ranks_size());
  }

  void checkGroups() {
    std::set<std::string> names;
    for (const NamedGroup &group : file_.groups()) {
      if (group.name().empty() || !names.insert(group.name()).second)
        problems_.add(
            fmt::format("group \"{}\" has no name of its own", group.name()));
      std::set<uint32_t> members;
      for (const RankList &list : group.lists())
        for (uint32_t rank : list.ranks())
          if (!isRank(rank) || !members.insert(rank).second)
            problems_.add(fmt::format(
                "group \"{}\": rank {} {}", group.name(), rank,
                isRank(rank) ? "is there twice" : "does not exist"));
    }
  }

  void checkChannels() {
    for (const Channel &channel : file_.channels()) {
      auto problem = [&](const std::string &text) {
        problems_.add(fmt::format("channel \"{}\": {}", channel.name(), text));
      };
      std::set<uint32_t> senders, receivers;
      for (const RankPair &pair : channel.pairs()) {
        if (!isRank(pair.from()) || !isRank(pair.to()) ||
            pair.from() == pair.to())
          problem(fmt::format("from rank {} to {} of {}", pair.from(),
                              pair.to(), file_.ranks_size()));
        if (!senders.insert(pair.from()).second)
          problem(fmt::format("rank {} sends twice", pair.from()));
        if (!receivers.insert(pair.to()).second)
          problem(fmt::format("rank {} receives twice", pair.to()));
      }
    }
  }

  void checkTensors() {
    std::set<std::string> names;
    std::map<std::string, uint64_t> files;
    for (const FileCheck &check : file_.files())
      files[check.name()] = check.bytes();
    for (const Tensor &tensor : file_.tensors()) {
      auto problem = [&](const std::string &text) {
        problems_.add(fmt::format("tensor \"{}\": {}", tensor.name(), text));
      };
      if (!names.insert(tensor.name()).second)
        problem("is there twice");
      if (!dtypeSize(tensor.dtype()))
        problem("has no element type");
      uint64_t bytes = byteCount(tensor.shape(), sourceType(tensor));
      const Source &source = tensor.source();
      if ((source.kind() == Source::FILE ||
           source.kind() == Source::CONSTANTS) &&
          source.length() != bytes)
        problem(fmt::format("its source has {} bytes, expected {} for {}",
                            source.length(), bytes,
                            describe(sourceType(tensor), tensor.shape())));
      if (source.kind() == Source::CONSTANTS &&
          plus(source.offset(), source.length()) > files[file_.constants()])
        problem(fmt::format("lies at bytes [{}, {}) of the constants, which "
                            "have {}",
                            source.offset(),
                            plus(source.offset(), source.length()),
                            files[file_.constants()]));
    }
    for (const Input &input : file_.inputs()) {
      if (!names.insert(input.name()).second)
        problems_.add(
            fmt::format("input \"{}\": its name is taken", input.name()));
      if (!dtypeSize(input.dtype()))
        problems_.add(
            fmt::format("input \"{}\": has no element type", input.name()));
    }
  }

  const LoadedPlan &plan_;
  const PlanFile &file_;
  Problems problems_;
};

class ProgramCheck {
public:
  ProgramCheck(const LoadedPlan &plan, int index)
      : file_(plan.file), program_(plan.programs[index]),
        mesh_(layoutMesh(plan.file, rankOf(plan.file, index))), index_(index),
        problems_(fmt::format("program {}", index)) {
    for (const Tensor &tensor : file_.tensors())
      tensors_[tensor.name()] = {tensor.dtype(), &tensor.shape()};
    for (const Input &input : file_.inputs())
      inputs_[input.name()] = {input.dtype(), &input.shape()};
    if (static_cast<int>(program_.index()) != index)
      problems_.add(fmt::format("carries the index {}", program_.index()));
  }

  Status run() {
    if (program_.streams_size() == 0)
      problems_.add("has no streams");
    for (int g = 0; g < program_.groups_size(); ++g) {
      if (std::string axis = repeated(program_.groups(g).axes()); !axis.empty())
        problems_.add(fmt::format("group {} names \"{}\" twice", g, axis));
      checkNamed(g);
      for (const std::string &axis : program_.groups(g).axes())
        if (!mesh_.count(axis) || axis == "mb")
          problems_.add(fmt::format("group {} spans \"{}\", which is no mesh "
                                    "axis",
                                    g, axis));
    }
    for (int s = 0; s < program_.schedule_size(); ++s)
      checkAction(program_.schedule(s).action(), [&](const std::string &text) {
        problems_.add(fmt::format("place {} of its schedule: {}", s, text));
      });
    for (int b = 0; b < program_.buffers_size(); ++b)
      checkBuffer(b);
    for (int p = 0; p < program_.procedures_size(); ++p)
      checkProcedure(p);
    for (int c = 0; c < program_.calls_size(); ++c)
      checkCall(c);
    std::map<std::string, int64_t> parts;
    for (const Output &output : program_.outputs()) {
      if (output.buffer() >= static_cast<uint32_t>(program_.buffers_size()))
        problems_.add(fmt::format("output \"{}\": buffer {} of {}",
                                  output.name(), output.buffer(),
                                  program_.buffers_size()));
      parts[output.name()] += output.per_microbatch();
    }
    for (const auto &[name, count] : parts)
      if (count != 0 && count != submicrobatches(file_))
        problems_.add(fmt::format("output \"{}\" of every microbatch: {} "
                                  "parts of {}",
                                  name, count, submicrobatches(file_)));
    return problems_.take();
  }

private:
  struct Declared {
    DType dtype = DTYPE_INVALID;
    const google::protobuf::RepeatedField<int64_t> *shape = nullptr;
  };

  // Every rank that runs the program must find itself, among as many.
  void checkNamed(int g) {
    const Group &group = program_.groups(g);
    if (group.named().empty())
      return;
    std::map<uint32_t, int> sizes; // by rank
    for (const NamedGroup &entry : file_.groups())
      if (entry.name() == group.named())
        for (const RankList &list : entry.lists())
          for (uint32_t rank : list.ranks())
            sizes.emplace(rank, list.ranks_size());
    for (int rank = 0; rank < file_.ranks_size(); ++rank) {
      if (static_cast<int>(file_.ranks(rank).program()) != index_)
        continue;
      const auto found = sizes.find(static_cast<uint32_t>(rank));
      const int size = found == sizes.end() ? 0 : found->second;
      if (size == 0)
        problems_.add(fmt::format("group {} is \"{}\", which rank {} is not in",
                                  g, group.named(), rank));
      else if (namedSize_.emplace(g, size).first->second != size)
        problems_.add(fmt::format("group {} is \"{}\", which has {} ranks and "
                                  "{}",
                                  g, group.named(), namedSize_[g], size));
    }
    if (group.axes_size() > 0)
      problems_.add(fmt::format("group {} has a name and axes", g));
  }

  void checkBuffer(int index) {
    const Buffer &buffer = program_.buffers(index);
    auto problem = [&](const std::string &text) {
      problems_.add(
          fmt::format("buffer {} \"{}\": {}", index, buffer.name(), text));
    };
    if (buffer.name().empty())
      problem("has no name");
    if (!dtypeSize(buffer.dtype()))
      problem("has no element type");
    if (!Buffer::Category_IsValid(buffer.category()))
      problem(fmt::format("there is no category {}", int(buffer.category())));
    for (int64_t size : buffer.shape())
      if (size < 0)
        problem(fmt::format("has a dimension of size {}", size));
    uint64_t need = byteCount(buffer.shape(), buffer.dtype());
    if (buffer.bytes() < need)
      problem(fmt::format("has {} bytes, but {} needs {}", buffer.bytes(),
                          describe(buffer.dtype(), buffer.shape()), need));
    if (buffer.offset() % kAlignment)
      problem(fmt::format("offset {} is not a multiple of {}", buffer.offset(),
                          kAlignment));
    uint64_t slots = std::max(1u, buffer.slots());
    if (slots > 1) {
      if (buffer.slot_class() < 0)
        problem(fmt::format("has {} slots but no slot class", slots));
      if (buffer.slot_stride() < buffer.bytes())
        problem(fmt::format("slots of {} bytes are {} bytes apart",
                            buffer.bytes(), buffer.slot_stride()));
      if (buffer.slot_stride() % kAlignment)
        problem(fmt::format("slot stride {} is not a multiple of {}",
                            buffer.slot_stride(), kAlignment));
    }
    uint64_t end = plus(plus(buffer.offset(), buffer.bytes()),
                        times(slots - 1, buffer.slot_stride()));
    if (end > program_.arena_bytes())
      problem(fmt::format("ends at byte {} of an arena of {}", end,
                          program_.arena_bytes()));
    if (!buffer.tensor().empty())
      checkLayout(buffer, problem);
  }

  // "w" for "grad:w", what buffers of gradients hold; else empty.
  static std::string gradientOf(const std::string &tensor) {
    return tensor.rfind("grad:", 0) == 0 ? tensor.substr(5) : std::string();
  }

  template <typename Problem>
  void checkLayout(const Buffer &buffer, Problem problem) {
    Declared declared;
    bool persistent = false;
    if (auto it = tensors_.find(buffer.tensor()); it != tensors_.end()) {
      declared = it->second;
      persistent = buffer.category() == Buffer::PARAMETERS ||
                   buffer.category() == Buffer::OPTIMIZER;
    } else if (auto in = inputs_.find(buffer.tensor()); in != inputs_.end()) {
      declared = in->second;
    } else if (auto of = tensors_.find(gradientOf(buffer.tensor()));
               of != tensors_.end()) {
      declared = of->second;
    } else {
      problem(fmt::format("holds \"{}\", which the plan does not declare",
                          buffer.tensor()));
      return;
    }
    if (persistent && declared.dtype != buffer.dtype())
      problem(fmt::format("is {}, but tensor \"{}\" is {}",
                          dtypeName(buffer.dtype()), buffer.tensor(),
                          dtypeName(declared.dtype)));
    layout::Layout layout = fromProto(buffer.layout());
    std::vector<std::string> used;
    for (const layout::DimLayout &dim : layout.dims) {
      for (const layout::Factor &factor : dim.factors) {
        uint64_t parts = 1;
        for (const std::string &axis : factor.axes) {
          if (!mesh_.count(axis)) {
            problem(fmt::format("layout {} names \"{}\", which is no mesh axis",
                                layout.str(), axis));
            return;
          }
          parts = times(parts, std::max<int64_t>(0, mesh_.at(axis)));
          used.push_back(axis);
          if (std::string twice = repeated(used); !twice.empty()) {
            problem(fmt::format("layout {} names \"{}\" twice", layout.str(),
                                twice));
            return;
          }
        }
        if (factor.size < 0 || parts == 0 ||
            static_cast<uint64_t>(factor.size) % parts) {
          problem(fmt::format("layout {} splits {} into {} parts", layout.str(),
                              factor.size, parts));
          return;
        }
      }
    }
    if (!sameShape(layout.globalShape(), *declared.shape))
      problem(fmt::format("layout {} is of shape [{}], but \"{}\" is {}",
                          layout.str(), fmt::join(layout.globalShape(), ","),
                          buffer.tensor(),
                          describe(declared.dtype, *declared.shape)));
    else if (!sameShape(layout.localShape(mesh_), buffer.shape()))
      problem(fmt::format("layout {} leaves [{}] to a rank, but its shape is "
                          "[{}]",
                          layout.str(),
                          fmt::join(layout.localShape(mesh_), ","),
                          fmt::join(buffer.shape(), ",")));
  }

  template <typename Problem>
  static void checkAction(ScheduleStep::Action action, Problem problem) {
    if (!actionOf(action))
      problem(fmt::format("there is no action {}", int(action)));
  }

  void checkProcedure(int index) {
    const Procedure &procedure = program_.procedures(index);
    checkAction(procedure.action(), [&](const std::string &text) {
      problems_.add(fmt::format("procedure {} \"{}\": {}", index,
                                procedure.name(), text));
    });
    std::map<uint32_t, int> records;
    for (int i = 0; i < procedure.instructions_size(); ++i) {
      const Instruction &instruction = procedure.instructions(i);
      auto problem = [&](const std::string &text) {
        problems_.add(describe(program_, index, i) + ": " + text);
      };
      if (instruction.stream() >=
          static_cast<uint32_t>(program_.streams_size()))
        problem(fmt::format("stream {} of {}", instruction.stream(),
                            program_.streams_size()));
      if (isEntry(procedure.name()) &&
          (instruction.stream() != 0 ||
           (instruction.kind() != Instruction::LIBRARY &&
            instruction.kind() != Instruction::COLLECTIVE)))
        problem("expected library kernels and collectives on stream 0 in what "
                "is run between steps");
      if (instruction.submicrobatch() < 0 ||
          instruction.submicrobatch() >= submicrobatches(file_))
        problem(fmt::format("part {} of a microbatch of {}",
                            instruction.submicrobatch(),
                            submicrobatches(file_)));
      bool operands = true;
      for (int k = 0; k < instruction.inputs_size(); ++k)
        operands &= checkOperand(instruction.inputs(k),
                                 fmt::format("input {}", k), false, problem);
      for (int k = 0; k < instruction.outputs_size(); ++k)
        operands &= checkOperand(instruction.outputs(k),
                                 fmt::format("output {}", k), true, problem);
      for (const Scalar &scalar : instruction.scalars())
        checkScalar(scalar, problem);
      if (instruction.kind() == Instruction::RECORD ||
          instruction.kind() == Instruction::WAIT)
        checkEvent(instruction, i, records, problem);
      else if (operands)
        checkKind(instruction, problem);
    }
  }

  template <typename Problem>
  bool checkOperand(const Operand &operand, const std::string &name,
                    bool written, Problem problem) {
    if (operand.buffer() >= static_cast<uint32_t>(program_.buffers_size())) {
      problem(fmt::format("{} is buffer {} of {}", name, operand.buffer(),
                          program_.buffers_size()));
      return false;
    }
    const Buffer &buffer = program_.buffers(operand.buffer());
    if (operand.shape_size() != operand.strides_size()) {
      problem(fmt::format("{} has {} dimensions and {} strides", name,
                          operand.shape_size(), operand.strides_size()));
      return false;
    }
    uint64_t last = std::max<int64_t>(0, operand.offset());
    bool negative = operand.offset() < 0, empty = false;
    std::vector<std::pair<int64_t, int64_t>> steps; // stride, size
    for (int d = 0; d < operand.shape_size(); ++d) {
      int64_t extent = operand.shape(d), stride = operand.strides(d);
      negative |= extent < 0 || stride < 0;
      empty |= extent == 0;
      if (extent > 1 && stride >= 0)
        last = plus(last, times(extent - 1, stride));
      if (extent > 1)
        steps.emplace_back(stride, extent);
    }
    if (negative) {
      problem(fmt::format("{} has a negative offset, size or stride", name));
      return false;
    }
    uint64_t reached = times(plus(last, 1), dtypeSize(buffer.dtype()));
    if (!empty && reached > buffer.bytes()) {
      problem(fmt::format("{} reaches byte {} of buffer \"{}\", which has {}",
                          name, reached, buffer.name(), buffer.bytes()));
      return false;
    }
    if (written && !empty) {
      // Each stride must step over everything the smaller ones reach.
      std::sort(steps.begin(), steps.end());
      int64_t reach = 0;
      for (auto [stride, extent] : steps) {
        if (stride <= reach) {
          problem(fmt::format("{} writes elements of buffer \"{}\" more than "
                              "once: shape [{}], strides [{}]",
                              name, buffer.name(),
                              fmt::join(operand.shape(), ","),
                              fmt::join(operand.strides(), ",")));
          break;
        }
        reach += stride * (extent - 1);
      }
    }
    return true;
  }

  template <typename Problem>
  void checkScalar(const Scalar &scalar, Problem problem) {
    static const std::set<std::string> kRuntime{
        "lr", "step", "lr_before", "step_before", "seed", kGradScale};
    if (scalar.value_case() == Scalar::kRuntime &&
        !kRuntime.count(scalar.runtime()))
      problem(fmt::format("asks for the run-time scalar \"{}\", which nobody "
                          "provides",
                          scalar.runtime()));
    if (scalar.value_case() == Scalar::kCoordinate &&
        !mesh_.count(scalar.coordinate()))
      problem(fmt::format("asks for the coordinate on \"{}\", which is no mesh "
                          "axis",
                          scalar.coordinate()));
    if (scalar.value_case() == Scalar::VALUE_NOT_SET)
      problem("has a scalar without value");
  }

  template <typename Problem>
  void checkEvent(const Instruction &instruction, int index,
                  std::map<uint32_t, int> &records, Problem problem) {
    if (instruction.event() >= program_.events())
      problem(fmt::format("event {} of {}", instruction.event(),
                          program_.events()));
    if (instruction.kind() == Instruction::RECORD) {
      auto [it, fresh] = records.emplace(instruction.event(), index);
      if (!fresh)
        problem(fmt::format("event {} was recorded by instruction {} already",
                            instruction.event(), it->second));
    } else if (!records.count(instruction.event())) {
      problem(fmt::format("no record of event {} comes before it in the "
                          "procedure",
                          instruction.event()));
    }
  }

  template <typename Problem>
  void checkKind(const Instruction &instruction, Problem problem) {
    int ins = instruction.inputs_size(), outs = instruction.outputs_size();
    const Status independence = checkIndependence(instruction);
    for (const std::string &text : independence.messages())
      problem(text);
    switch (instruction.kind()) {
    case Instruction::KERNEL:
      if (file_.kernels().empty())
        problem("is a generated kernel, but the plan has none");
      [[fallthrough]];
    case Instruction::LIBRARY:
      if (instruction.op().empty())
        problem("names no kernel");
      break;
    case Instruction::SEND:
    case Instruction::RECV:
      if (instruction.kind() == Instruction::SEND ? ins == 0 || outs != 0
                                                  : outs == 0 || ins != 0)
        problem(fmt::format("has {} inputs and {} outputs", ins, outs));
      if (instruction.channel().empty())
        problem("names no channel");
      if (const uint32_t entry = instruction.channel_index()) {
        if (entry > static_cast<uint32_t>(file_.channels_size()))
          problem(fmt::format("channel {} of {}", entry - 1,
                              file_.channels_size()));
        else if (file_.channels(static_cast<int>(entry) - 1).name() !=
                 instruction.channel())
          problem(
              fmt::format("channel {} is \"{}\", not \"{}\"", entry - 1,
                          file_.channels(static_cast<int>(entry) - 1).name(),
                          instruction.channel()));
      }
      for (const Axis &axis : instruction.peer()) {
        auto size = mesh_.find(axis.name());
        if (size == mesh_.end() || axis.name() == "mb")
          problem(fmt::format("its peer is given on \"{}\", which is no mesh "
                              "axis",
                              axis.name()));
        else if (axis.size() < 0 || axis.size() >= size->second)
          problem(fmt::format("its peer {}={} is outside the mesh of size {}",
                              axis.name(), axis.size(), size->second));
      }
      break;
    case Instruction::COLLECTIVE:
      checkCollective(instruction, problem);
      break;
    case Instruction::LOAD_INPUT:
      checkLoad(instruction, problem);
      break;
    case Instruction::NOP:
      break;
    default:
      problem(fmt::format("is of the unknown kind {}",
                          static_cast<int>(instruction.kind())));
    }
  }

  template <typename Problem>
  void checkCollective(const Instruction &instruction, Problem problem) {
    const Instruction::Collective op = instruction.collective();
    if (!Instruction::Collective_IsValid(op) ||
        op == Instruction::COLLECTIVE_INVALID)
      problem(fmt::format("there is no collective {}", int(op)));
    if (instruction.group() >= static_cast<uint32_t>(program_.groups_size())) {
      problem(fmt::format("group {} of {}", instruction.group(),
                          program_.groups_size()));
      return;
    }
    bool reduces =
        op == Instruction::ALL_REDUCE || op == Instruction::REDUCE_SCATTER;
    if (isTrimmed(instruction)) {
      if (op != Instruction::ALL_GATHER && op != Instruction::ALL_TO_ALL)
        problem("leaves out zeros at the end, expected a gather or an "
                "all-to-all");
      if (const double share = sentShare(instruction);
          !(share > 0 && share <= 1))
        problem(fmt::format("is expected to send {} of its operand", share));
    }
    if (reduces && instruction.reduction() != Instruction::SUM &&
        instruction.reduction() != Instruction::MAX)
      problem(fmt::format("there is no reduction {}",
                          int(instruction.reduction())));
    if (instruction.inputs_size() != instruction.outputs_size() ||
        instruction.inputs_size() == 0) {
      problem(fmt::format("has {} inputs and {} outputs",
                          instruction.inputs_size(),
                          instruction.outputs_size()));
      return;
    }
    int64_t members = 1;
    if (auto named = namedSize_.find(static_cast<int>(instruction.group()));
        named != namedSize_.end())
      members = named->second;
    for (const std::string &axis : program_.groups(instruction.group()).axes())
      members *= mesh_.count(axis) ? mesh_.at(axis) : 1;
    for (int k = 0; k < instruction.inputs_size(); ++k) {
      const Operand &in = instruction.inputs(k), &out = instruction.outputs(k);
      DType inType = program_.buffers(in.buffer()).dtype();
      DType outType = program_.buffers(out.buffer()).dtype();
      // Shape of the result by the op's definition.
      google::protobuf::RepeatedField<int64_t> want = in.shape();
      auto scale = [&](int64_t dim, bool grow) {
        if (dim < 0 || dim >= want.size()) {
          problem(fmt::format("dimension {} of {}", dim, want.size()));
          return false;
        }
        if (grow && want[dim] > INT64_MAX / members) {
          problem(fmt::format("dimension {} of size {}", dim, want[dim]));
          return false;
        }
        if (!grow && want[dim] % members) {
          problem(fmt::format("dimension {} of size {} does not divide among "
                              "{} members",
                              dim, want[dim], members));
          return false;
        }
        want[dim] = grow ? want[dim] * members : want[dim] / members;
        return true;
      };
      bool fine = true;
      if (op == Instruction::ALL_GATHER)
        fine = scale(instruction.dim(), true);
      else if (op == Instruction::REDUCE_SCATTER)
        fine = scale(instruction.dim(), false);
      else if (op == Instruction::ALL_TO_ALL)
        fine =
            scale(instruction.dim(), false) && scale(instruction.dim2(), true);
      if (fine && (inType != outType || !sameShape(want, out.shape())))
        problem(fmt::format("makes {} of {} over {} members, expected {}",
                            describe(outType, out.shape()),
                            describe(inType, in.shape()), members,
                            describe(inType, want)));
    }
    if (isJoined(instruction))
      if (Result<int64_t> elements = joinedElements(program_, instruction);
          !elements.ok())
        problem(elements.status().messages().front());
  }

  template <typename Problem>
  void checkLoad(const Instruction &instruction, Problem problem) {
    auto input = inputs_.find(instruction.op());
    if (input == inputs_.end()) {
      problem("the plan declares no such input");
      return;
    }
    if (instruction.outputs_size() != 1 || instruction.inputs_size() != 0) {
      problem(fmt::format("has {} inputs and {} outputs",
                          instruction.inputs_size(),
                          instruction.outputs_size()));
      return;
    }
    if (const int64_t ahead = stepsAhead(instruction);
        instruction.attrs().count(kAheadAttr) &&
        (ahead < 1 || ahead > kMostAhead))
      problem(fmt::format("is of {} steps later, expected 1 to {}",
                          instruction.attrs().at(kAheadAttr), kMostAhead));
    const Buffer &buffer = program_.buffers(instruction.outputs(0).buffer());
    if (buffer.tensor() != instruction.op())
      problem(fmt::format("loads into buffer \"{}\", which holds \"{}\"",
                          buffer.name(), buffer.tensor()));
    if (buffer.dtype() != input->second.dtype)
      problem(fmt::format("loads {} into buffer \"{}\" of {}",
                          dtypeName(input->second.dtype), buffer.name(),
                          dtypeName(buffer.dtype())));
  }

  void checkCall(int index) {
    const Call &call = program_.calls(index);
    auto problem = [&](const std::string &text) {
      problems_.add(fmt::format("call {}: {}", index, text));
    };
    if (call.procedure() >= static_cast<uint32_t>(program_.procedures_size())) {
      problem(fmt::format("procedure {} of {}", call.procedure(),
                          program_.procedures_size()));
      return;
    }
    if (call.microbatch() < -1 ||
        call.microbatch() >= std::max<int64_t>(1, file_.microbatches()))
      problem(fmt::format("microbatch {} of {}", call.microbatch(),
                          file_.microbatches()));
    for (const CallWait &wait : call.waits()) {
      if (wait.stream() >= static_cast<uint32_t>(program_.streams_size()) ||
          wait.on() >= static_cast<uint32_t>(program_.streams_size()))
        problem(fmt::format("stream {} waits on stream {}, of {}",
                            wait.stream(), wait.on(), program_.streams_size()));
      if (wait.call() >= static_cast<uint32_t>(index))
        problem(fmt::format("waits for call {}, which does not come before it",
                            wait.call()));
    }
    std::set<uint32_t> used;
    for (const Instruction &instruction :
         program_.procedures(call.procedure()).instructions())
      for (const auto *operands :
           {&instruction.inputs(), &instruction.outputs()})
        for (const Operand &operand : *operands)
          used.insert(operand.buffer());
    for (uint32_t b : used) {
      if (b >= static_cast<uint32_t>(program_.buffers_size()))
        continue;
      const Buffer &buffer = program_.buffers(b);
      const uint32_t slots = std::max(1u, buffer.slots());
      if (slots > 1 && buffer.slot_class() >= call.slots_size())
        problem(fmt::format("gives no slot of class {}, which buffer \"{}\" "
                            "needs",
                            buffer.slot_class(), buffer.name()));
      else if (slotOf(buffer, call) >= slots)
        problem(fmt::format("slot {} of buffer \"{}\", which has {}",
                            slotOf(buffer, call), buffer.name(), slots));
    }
  }

  const PlanFile &file_;
  const Program &program_;
  layout::AxisMap mesh_;
  std::map<std::string, Declared> tensors_, inputs_;
  std::map<int, int> namedSize_; // ranks, by group
  int index_;
  Problems problems_;
};

} // namespace

Status verifyStructure(const LoadedPlan &plan) {
  // Everything else multiplies them.
  MERAK_RETURN_IF_ERROR(verifyNumbers(plan));
  Status status = ManifestCheck(plan).run();
  for (size_t i = 0; i < plan.programs.size(); ++i)
    status.merge(ProgramCheck(plan, static_cast<int>(i)).run());
  if (status.ok())
    status.merge(verifyExtents(plan));
  return status;
}

} // namespace merak
