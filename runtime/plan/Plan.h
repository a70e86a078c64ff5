// Reading and writing plan directories, and the small questions that everybody
// who holds a plan asks: sizes of types, coordinates, peers, groups, addresses.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/layout/Layout.h"
#include "runtime/plan/Actions.h"
#include "runtime/plan/plan.pb.h"

#include <unordered_map>

namespace merak {

// The newest plan version that this build writes and reads, and the oldest one
// it reads. Version 2 has enums for actions, collectives and reductions, which
// were strings; version 3 has several meshes, and plans of one mesh are still
// written as 2.
inline constexpr uint32_t kPlanVersion = 3, kOneMeshVersion = 2;
// What a plan with these ranks is written as.
uint32_t versionOf(const planpb::PlanFile &file);
inline constexpr int64_t kMaxSubBatches = 64;

// ------------------------------------------------------------ files

struct LoadedPlan {
  std::string dir;
  planpb::PlanFile file;
  std::vector<planpb::Program> programs; // by index; ranks share them

  const planpb::Program &programOf(int rank) const {
    return programs[file.ranks(rank).program()];
  }
};

// A file to be put into the plan directory: kernels.so, constants.bin.
struct PlanExtra {
  std::string name;     // inside the plan
  std::string copyFrom; // a file to copy; empty: `contents` is written
  std::string contents;
};

// Reads and checks all files of the plan against the manifest's checksums.
// Ranks, program indices and file names are in range afterwards; what the
// programs do is checked by verifyPlan (Verify.h).
Result<LoadedPlan> loadPlan(const std::string &dir);

// Writes a plan directory: first under a temporary name beside it, then
// renamed, so that `dir` is the old plan, the new one, or absent, never a part.
// Fills version, programs and checksums of the manifest. Refuses to replace
// anything that is not a plan.
Status savePlan(const std::string &dir, planpb::PlanFile file,
                std::vector<planpb::Program> programs,
                const std::vector<PlanExtra> &extras = {});

// The checksum of plan files: 64 bits, depends on every byte and on the length.
uint64_t planChecksum(const void *data, size_t bytes);

// ------------------------------------------------------------ types, layouts

int64_t dtypeSize(planpb::DType dtype);     // bytes; 0 for an invalid one
const char *dtypeName(planpb::DType dtype); // "f32"
const char *categoryName(planpb::Buffer::Category category); // "activations"
const char *kindName(planpb::Instruction::Kind kind);        // "send"
std::string
collectiveName(planpb::Instruction::Collective kind);           // "all_reduce"
std::string reductionName(planpb::Instruction::Reduction kind); // "sum"
// The name of a kernel, collective or input; empty: of none of them.
std::string opName(const planpb::Instruction &instruction);

// Actions and schedules of the plan as everybody has them.
planpb::ScheduleStep::Action toProto(Action action);
planpb::ScheduleStep toProto(const Step &step);
// Nothing where a file holds none, which verifyPlan refuses.
std::optional<Action> actionOf(planpb::ScheduleStep::Action action);
std::string actionName(const planpb::Procedure &procedure); // "F", else "?"
// The places that hold an action.
std::vector<Step> scheduleOf(const planpb::Program &program);

// "dp,tp", or the name of the group.
std::string groupStr(const planpb::Group &group);

layout::Layout fromProto(const planpb::Layout &proto);
planpb::Layout toProto(const layout::Layout &layout);

// ------------------------------------------------------------ ranks

// The axes of a rank: of its own mesh, where the plan has several.
const google::protobuf::RepeatedPtrField<planpb::Axis> &
axesOf(const planpb::PlanFile &file, int rank);
layout::AxisMap meshOf(const planpb::PlanFile &file, int rank = 0);
// The mesh and "mb" with the number of (parts of) microbatches: what layouts
// of this rank's buffers refer to.
layout::AxisMap layoutMesh(const planpb::PlanFile &file, int rank = 0);
// A rank that runs the program; ranks of one program are of one mesh. 0 if
// nobody runs it.
int rankOf(const planpb::PlanFile &file, int program);
// Parts of a microbatch that have instructions of their own, at least 1.
int64_t submicrobatches(const planpb::PlanFile &file);
layout::AxisMap coordsOf(const planpb::PlanFile &file, int rank);

// Looks ranks up by coordinates, and by the lists and pairs of a plan of
// several meshes; built once, then each answer costs O(axes). Coordinates are
// those of Rank.coords; a mesh need not be full.
class RankMap {
public:
  explicit RankMap(const planpb::PlanFile &file);

  int size() const { return static_cast<int>(coords_.size()); }
  // The other end of a SEND or RECV of the rank; -1: nobody.
  int peer(int rank, const planpb::Instruction &transfer) const;
  int peer(int rank, bool sends, uint32_t channelIndex,
           const google::protobuf::RepeatedPtrField<planpb::Axis> &axes) const;
  // The group of the rank, in order; `rank` is among them, or there is none.
  std::vector<int> members(int rank, const planpb::Group &group) const;
  // The rank at the coordinates of `rank` with some replaced; -1: none there.
  int neighbour(
      int rank,
      const google::protobuf::RepeatedPtrField<planpb::Axis> &replaced) const;
  // Ranks that differ from `rank` only on `axes`, row major by those axes;
  // `rank` is among them.
  std::vector<int>
  members(int rank,
          const google::protobuf::RepeatedPtrField<std::string> &axes) const;
  int64_t coordinate(int rank, int axis) const { return coords_[rank][axis]; }
  int axisIndex(const std::string &name) const; // -1: no such axis
  int64_t axisSize(int axis, int rank = 0) const {
    return meshes_[meshOf(rank)][axis];
  }
  const std::vector<std::string> &axes() const { return axes_; }
  // Which mesh a rank is of; 0 where the plan has one.
  int meshOf(int rank) const { return mesh_.empty() ? 0 : mesh_[rank]; }
  int meshes() const { return static_cast<int>(meshes_.size()); }

private:
  int64_t key(int mesh, const std::vector<int64_t> &coords) const;
  std::vector<std::string> axes_;
  std::vector<std::vector<int64_t>> meshes_; // sizes, by mesh, then axis
  std::vector<int> mesh_;                    // by rank
  std::vector<std::vector<int64_t>> coords_; // by rank, then axis
  std::vector<std::unordered_map<int64_t, int>> byKey_; // by mesh
  // Of each entry of PlanFile.channels, by rank.
  struct Ends {
    std::unordered_map<int, int> to, from;
  };
  std::vector<Ends> channels_;
  // Of each entry of PlanFile.groups, with the list of each rank.
  struct Lists {
    std::vector<std::vector<int>> lists;
    std::unordered_map<int, int> listOf;
  };
  std::unordered_map<std::string, Lists> groups_;
};

// ------------------------------------------------------------ addresses

// Which copy of a buffer a call uses.
uint32_t slotOf(const planpb::Buffer &buffer, const planpb::Call &call);
// Arena offset of the buffer in a call.
uint64_t bufferAddress(const planpb::Buffer &buffer, const planpb::Call &call);
int64_t elementCount(const planpb::Operand &operand);

} // namespace merak
