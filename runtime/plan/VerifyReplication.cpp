// Which values differ between ranks, along which mesh axes.
//
// A value differs along an axis if it was computed from something that does:
// an input or parameter that is split over it, or the rank's own coordinate.
// Reductions and gathers over the axis make it equal again. What several ranks
// hold as copies of one tensor must not differ along the axes that tell these
// ranks apart, else they drift: that is how a forgotten all-reduce shows even
// if every rank forgot it. Of an instruction that does several things at once
// each output has the origin of what it is made from (Dependences.h).
//
// Stages: an axis on which all ranks of a program agree ("pp") counts as one
// along which everything differs that is made from parameters of this stage
// alone, or received; only tied parameters have to be free of it. Their
// gradients are summed from parts that the stages exchange outside of any
// microbatch: values that hold the same stages' parts on every holder are equal
// (one stage's part alone where the others' uses have no gradient).
//
// Where stages lie on meshes of their own, "program" means all programs of one
// mesh: they differ in the boxes that they send and receive only. What arrives
// there in boxes differs along an axis if two ranks that differ on it get other
// boxes, or the same ones of ranks whose values differ. Who passes a box on
// adds nothing to it (Arrivals.h).
//
// Where pipelines train microbatches of their own, what a stage reads of the
// batch for these differs from what the others' stages do; each has a part of
// every sum.
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Arrivals.h"
#include "runtime/plan/Copies.h"
#include "runtime/plan/Dependences.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/LibraryKernels.h"
#include "runtime/plan/Regions.h"
#include "runtime/plan/Shares.h"
#include "runtime/plan/Verify.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>
#include <unordered_map>

using namespace merak::planpb;

namespace merak {
namespace {

using AxisMask = uint64_t;
// Stages whose parts a value holds: what one made in a microbatch or from its
// own parameters; from the 64th on they share a bit.
using PartMask = uint64_t;

// What a value is made from.
struct Origin {
  AxisMask mask = 0;
  PartMask parts = 0;

  void join(const Origin &other) {
    mask |= other.mask;
    parts |= other.parts;
  }
  bool operator==(const Origin &) const = default;
};

// What was written to a part of a buffer, last.
struct Written {
  const Region *region;
  Origin origin;
  int call, instruction; // -1: before the step
};

// What ranks hold as one value though they may have made it differently.
struct Difference {
  std::string what;
  int program;
  size_t holders; // stages that must have it
  AxisMask wrong;
  PartMask parts;
  int call, instruction;
};

class ReplicationCheck {
public:
  explicit ReplicationCheck(const LoadedPlan &plan)
      : plan_(plan), map_(plan), arrivals_(map_), hasShares_(hasShares(plan)) {
    size_t programs = plan.programs.size();
    sent_.resize(programs);
    for (size_t p = 0; p < programs; ++p) {
      tables_.push_back(accessTable(plan.programs[p]));
      sent_[p].resize(map_.program(static_cast<int>(p)).transfers.size());
      std::vector<Region> &wholes = wholes_.emplace_back();
      for (const Buffer &buffer : plan.programs[p].buffers())
        wholes.push_back(wholeRegion(buffer));
      left_.emplace_back(wholes.size());
    }
    collectRanks();
    collectHolders();
  }

  Status run() {
    // What is received depends on what is sent elsewhere: sweep back and forth
    // over the stages until nothing changes. Masks only grow.
    int n = static_cast<int>(plan_.programs.size());
    for (changed_ = true; changed_;) {
      changed_ = false;
      for (int p = 0; p < n; ++p)
        walk(p);
      for (int p = n - 2; changed_ && p >= 0; --p)
        walk(p);
    }
    for (int p = 0; p < n; ++p) {
      walk(p);
      check(p);
    }
    checkParts();
    return problems_.take();
  }

private:
  // The stage of a program: its mesh, or the program itself where all have one.
  int stageOf(int program) const {
    return map_.ranks().meshes() > 1 && !ranksOf_[program].empty()
               ? map_.ranks().meshOf(ranksOf_[program].front())
               : program;
  }
  PartMask partOf(int program) const {
    return PartMask{1} << std::min(stageOf(program), 63);
  }

  // Axes that may tell stages apart: of several meshes none that is inside one.
  AxisMask stageAxes() const {
    AxisMask axes = (AxisMask{1} << axisCount()) - 1;
    if (map_.ranks().meshes() > 1)
      for (AxisMask inside : varying_)
        axes &= ~inside;
    return axes;
  }
  // Axes that a layout of the program may split over: on a mesh of its own an
  // axis may be of size 1.
  AxisMask ownAxes(int p) const {
    return map_.ranks().meshes() > 1 ? varying_[p] : ~AxisMask{0};
  }

  int axisCount() const { return static_cast<int>(map_.ranks().axes().size()); }

  AxisMask axisBit(const std::string &name) const {
    int axis = map_.ranks().axisIndex(name);
    return axis < 0 ? 0 : AxisMask{1} << axis;
  }

  template <typename List> AxisMask axisBits(const List &names) const {
    AxisMask mask = 0;
    for (const std::string &name : names)
      mask |= axisBit(name);
    return mask;
  }

  // Axes on which the ranks of a list do not all agree.
  AxisMask differing(const std::vector<int> &ranks) const {
    AxisMask mask = 0;
    for (int axis = 0; axis < axisCount(); ++axis)
      for (int rank : ranks)
        if (map_.ranks().coordinate(rank, axis) !=
            map_.ranks().coordinate(ranks.front(), axis))
          mask |= AxisMask{1} << axis;
    return mask;
  }

  void collectRanks() {
    ranksOf_.resize(plan_.programs.size());
    for (int rank = 0; rank < map_.ranks().size(); ++rank)
      ranksOf_[plan_.file.ranks(rank).program()].push_back(rank);
    std::vector<int> all(map_.ranks().size());
    std::iota(all.begin(), all.end(), 0);
    apart_ = all.empty() ? 0 : differing(all);
    for (int p = 0; p < static_cast<int>(ranksOf_.size()); ++p)
      onStage_[stageOf(p)].insert(onStage_[stageOf(p)].end(),
                                  ranksOf_[p].begin(), ranksOf_[p].end());
    for (int p = 0; p < static_cast<int>(ranksOf_.size()); ++p)
      varying_.push_back(ranksOf_[p].empty() ? 0
                                             : differing(onStage_[stageOf(p)]));
  }

  static bool persistent(const Buffer &buffer) {
    return !buffer.tensor().empty() &&
           (buffer.category() == Buffer::PARAMETERS ||
            buffer.category() == Buffer::OPTIMIZER);
  }

  // For each tensor the axes that tell its holders apart.
  void collectHolders() {
    std::map<std::string, std::set<int>> programs;
    for (size_t p = 0; p < plan_.programs.size(); ++p)
      for (const Buffer &buffer : plan_.programs[p].buffers())
        if (!buffer.tensor().empty() && persistent(buffer))
          programs[buffer.tensor()].insert(static_cast<int>(p));
    for (const auto &[tensor, holders] : programs) {
      std::vector<int> ranks;
      for (int p : holders)
        ranks.insert(ranks.end(), ranksOf_[p].begin(), ranksOf_[p].end());
      std::set<int> stages;
      for (int p : holders)
        stages.insert(stageOf(p));
      holders_[tensor] = ranks.empty() ? 0 : differing(ranks);
      holderCount_[tensor] = stages.size();
    }
  }

  AxisMask layoutBits(const planpb::Layout &layout) const {
    AxisMask mask = axisBits(layout.partial());
    for (const DimLayout &dim : layout.dims())
      for (const Factor &factor : dim.factors())
        mask |= axisBits(factor.axes());
    return mask;
  }

  // ------------------------------------------------------------ one program

  void walk(int p) {
    const Program &program = plan_.programs[p];
    state_.assign(program.buffers_size(), {});
    arrivedAt_.clear();
    // Axes on which this program's ranks are all alike.
    AxisMask fixed = stageAxes() & ~varying_[p];
    for (int b = 0; b < program.buffers_size(); ++b) {
      const Buffer &buffer = program.buffers(b);
      if (isLeftToNextStep(buffer))
        state_[b][0].emplace(0, Written{&wholes_[p][b], left_[p][b], -1, -1});
      if (!persistent(buffer))
        continue;
      AxisMask mask = layoutBits(buffer.layout()) & varying_[p];
      mask |= fixed & ~holders_[buffer.tensor()];
      PartMask parts = mask & fixed & apart_ ? partOf(p) : 0;
      state_[b][0].emplace(0, Written{&wholes_[p][b], {mask, parts}, -1, -1});
    }
    for (const auto &[copy, source] : keptCopies(program)) {
      Origin origin;
      for (const auto &[begin, part] : state_[source][0])
        origin.join(part.origin);
      state_[copy][0].emplace(0, Written{&wholes_[p][copy], origin, -1, -1});
    }
    for (int c = 0; c < program.calls_size(); ++c) {
      int procedure = program.calls(c).procedure();
      for (int i = 0; i < program.procedures(procedure).instructions_size();
           ++i)
        execute(p, c, i);
    }
    for (int b = 0; b < program.buffers_size(); ++b)
      if (isLeftToNextStep(program.buffers(b))) {
        Origin origin = left_[p][b];
        for (const auto &[begin, part] : state_[b][0])
          origin.join(part.origin);
        changed_ |= !(origin == left_[p][b]);
        left_[p][b] = origin;
      }
  }

  void execute(int p, int c, int i) {
    const Program &program = plan_.programs[p];
    const Call &call = program.calls(c);
    const Instruction &inst =
        program.procedures(call.procedure()).instructions(i);
    const std::vector<Access> &list = tables_[p][call.procedure()][i];
    if (list.empty())
      return;
    if (inst.kind() == Instruction::COLLECTIVE)
      return exchange(p, c, i);
    // Of all outputs; what the update makes has the parts of its inputs.
    Origin all{0, call.microbatch() < 0 ? 0 : partOf(p)};
    int sequence = map_.program(p).sequenceOf[call.procedure()][i];
    switch (inst.kind()) {
    case Instruction::LOAD_INPUT:
      all.mask =
          layoutBits(program.buffers(list[0].buffer).layout()) & ownAxes(p);
      if (hasShares_ && program.procedures(call.procedure()).action() !=
                            ScheduleStep::PROLOGUE)
        all.mask |= stageAxes() & ~varying_[p] & apart_;
      break;
    case Instruction::SEND:
      return send(p, sequence, list, call);
    case Instruction::RECV:
      all.join(map_.program(p).transfers[sequence].channelIndex > 0
                   ? arrived(p, list[0].buffer)
                   : received(p, sequence));
      // What is received within a microbatch becomes part of what is made here.
      if (call.microbatch() >= 0)
        all.parts = partOf(p);
      break;
    default:
      return compute(p, c, i, all);
    }
    for (const Access &access : list)
      write(access, p, c, i, all);
  }

  void send(int p, int sequence, const std::vector<Access> &list,
            const Call &call) {
    Origin origin = sent_[p][sequence];
    for (const Access &access : list)
      origin.join(read(access, call, p));
    changed_ |= !(origin == sent_[p][sequence]);
    sent_[p][sequence] = origin;
  }

  void compute(int p, int c, int i, Origin all) {
    const Program &program = plan_.programs[p];
    const Call &call = program.calls(c);
    const Instruction &inst =
        program.procedures(call.procedure()).instructions(i);
    // Rows take steps that were theirs already: which ones have is each rank's
    // own matter, and a table means the same before and after.
    if (const LibraryKernel *kernel = findLibraryKernel(inst.op());
        kernel && kernel->touches == Touches::Behind)
      return;
    const std::vector<Access> &list = tables_[p][call.procedure()][i];
    std::vector<Origin> origins(list.size()); // of what is there before
    for (size_t k = 0; k < list.size(); ++k) {
      const Access &access = list[k];
      // Optimizers read what they update; what is copied over it is all there
      // is.
      bool updated = access.write && inst.op() != "copy" &&
                     persistent(program.buffers(access.buffer));
      if (access.read || updated)
        origins[k] = read(access, call, p);
      if (updated)
        all.join(origins[k]);
    }
    for (const Scalar &scalar : inst.scalars())
      if (scalar.value_case() == Scalar::kCoordinate)
        all.mask |= axisBit(scalar.coordinate()) & ownAxes(p);
    for (size_t k = 0; k < list.size(); ++k) {
      if (!list[k].write)
        continue;
      Origin origin = all;
      origin.join(origins[k]); // what it is added to
      for (size_t j = 0; j < list.size(); ++j)
        if (!list[j].write && dependsOn(inst, list[k].index, list[j].index))
          origin.join(origins[j]);
      write(list[k], p, c, i, origin);
    }
  }

  // Operands of a collective have nothing to do with each other: a gradient
  // that is split over tp and one that is not share a bucket.
  void exchange(int p, int c, int i) {
    const Program &program = plan_.programs[p];
    const Call &call = program.calls(c);
    const Instruction &inst =
        program.procedures(call.procedure()).instructions(i);
    const std::vector<Access> &list = tables_[p][call.procedure()][i];
    const Group &named = program.groups(int(inst.group()));
    AxisMask group = axisBits(named.axes());
    PartMask joins = 0; // of the stages of a list of some ranks
    if (!named.named().empty() && !ranksOf_[p].empty()) {
      const std::vector<int> members =
          map_.ranks().members(ranksOf_[p].front(), named);
      if (static_cast<int>(members.size()) == map_.ranks().size()) {
        group = (AxisMask{1} << axisCount()) - 1;
      } else {
        group = axesInside(p, members);
        for (int member : members)
          joins |= partOf(int(plan_.file.ranks(member).program()));
      }
    }
    const bool scattered = inst.collective() == Instruction::REDUCE_SCATTER ||
                           inst.collective() == Instruction::ALL_TO_ALL;
    // Inputs, then outputs, without empty ones: of both or of neither.
    const size_t operands = list.size() / 2;
    for (size_t k = 0; k < operands; ++k) {
      const Access &in = list[k], &out = list[operands + k];
      Origin origin = read(in, call, p);
      if (out.read)
        origin.join(read(out, call, p));
      origin.mask = scattered ? origin.mask | group : origin.mask & ~group;
      // Who has this list has the parts of all that are in it.
      if (origin.parts != 0 && joins != 0)
        origin.parts |= joins;
      // Joined over the stages: of none of them alone.
      if (group & ~varying_[p] & apart_)
        origin.parts = 0;
      write(out, p, c, i, origin);
    }
  }

  // The axes along which a list has all ranks of the program's mesh that differ
  // in nothing else.
  AxisMask axesInside(int p, const std::vector<int> &members) const {
    AxisMask inside = 0;
    for (const std::string &axis : map_.ranks().axes()) {
      Group alone;
      alone.add_axes(axis);
      const std::vector<int> along =
          map_.ranks().members(ranksOf_[p].front(), alone);
      if (varying_[p] & axisBit(axis) &&
          std::all_of(along.begin(), along.end(), [&](int rank) {
            return std::find(members.begin(), members.end(), rank) !=
                   members.end();
          }))
        inside |= axisBit(axis);
    }
    return inside;
  }

  Origin received(int p, int sequence) {
    const TransferSequence &transfer = map_.program(p).transfers[sequence];
    if (ranksOf_[p].empty())
      return {};
    int rank = ranksOf_[p].front(), peer = map_.peer(rank, sequence);
    if (peer < 0)
      return {};
    Origin origin;
    const std::vector<TransferSequence> &others = map_.ofRank(peer).transfers;
    for (size_t i = 0; i < others.size(); ++i)
      if (others[i].send && others[i].channel == transfer.channel &&
          map_.peer(peer, static_cast<int>(i)) == rank)
        origin.join(sent_[plan_.file.ranks(peer).program()][i]);
    for (const Axis &axis : transfer.peer) {
      // One sender for all along this axis; from another stage it differs.
      AxisMask bit = axisBit(axis.name());
      origin.mask = varying_[p] & bit ? origin.mask & ~bit : origin.mask | bit;
    }
    return origin;
  }

  // What comes into a buffer from a stage on another mesh, in boxes.
  Origin arrived(int p, uint32_t buffer) {
    // What others send does not change while one program is walked.
    auto [known, fresh] = arrivedAt_.try_emplace(buffer);
    if (!fresh)
      return known->second;
    Origin origin;
    const std::vector<int> &ranks = onStage_[stageOf(p)];
    AxisMask apart = 0; // axes on which the senders are elsewhere
    for (int rank : ranks)
      for (const Arrival &one : arrivals_.of(rank, buffer)) {
        origin.parts |= sentBy(one).parts;
        apart |= differing({rank, one.sender});
      }
    origin.mask = apart & stageAxes() & ~varying_[p];
    for (int axis = 0; axis < axisCount(); ++axis)
      if (varying_[p] >> axis & 1 && differsAlong(ranks, axis, buffer))
        origin.mask |= AxisMask{1} << axis;
    return arrivedAt_[buffer] = origin;
  }

  const Origin &sentBy(const Arrival &one) const {
    return sent_[plan_.file.ranks(one.sender).program()][one.sequence];
  }

  // Whether ranks that differ on the axis alone may have got other values.
  bool differsAlong(const std::vector<int> &ranks, int axis, uint32_t buffer) {
    std::map<std::vector<int64_t>, int> first; // by the other coordinates
    for (int rank : ranks) {
      std::vector<int64_t> others;
      for (int a = 0; a < axisCount(); ++a)
        others.push_back(a == axis ? 0 : map_.ranks().coordinate(rank, a));
      const int like = first.emplace(others, rank).first->second;
      if (rank != like &&
          !bringTheSame(arrivals_.of(rank, buffer), arrivals_.of(like, buffer),
                        [&](const Arrival &a, const Arrival &b) {
                          return !(differing({a.sender, b.sender}) &
                                   (sentBy(a).mask | sentBy(b).mask));
                        }))
        return true;
    }
    return false;
  }

  Origin read(const Access &access, const Call &call, int p) {
    const Buffer &buffer = plan_.programs[p].buffers(access.buffer);
    Origin origin;
    for (const auto &[begin, part] :
         state_[access.buffer][slotOf(buffer, call)])
      if (overlap(*part.region, access.region))
        origin.join(part.origin);
    return origin;
  }

  void write(const Access &access, int p, int c, int i, const Origin &origin) {
    const Region &region = access.region;
    const Call &call = plan_.programs[p].calls(c);
    const Buffer &buffer = plan_.programs[p].buffers(access.buffer);
    PartMap<Written> &parts = state_[access.buffer][slotOf(buffer, call)];
    auto [it, end] = endedBy(parts, region);
    while (it != end) {
      const Region &old = *it->second.region;
      bool isOver = region.dense
                        ? old.begin >= region.begin && old.end <= region.end
                        : old.operand && sameView(old, 0, region, 0);
      it = isOver ? parts.erase(it) : std::next(it);
    }
    parts.emplace(region.begin, Written{&region, origin, c, i});
  }

  bool overlap(const Region &a, const Region &b) {
    if (a.dense && b.dense)
      return a.begin < b.end && b.begin < a.end;
    auto [it, fresh] = overlaps_.try_emplace(std::pair(&a, &b), false);
    if (fresh)
      it->second = regionsOverlap(a, 0, b, 0);
    return it->second;
  }

  // ------------------------------------------------------------ after the step

  void check(int p) {
    const Program &program = plan_.programs[p];
    for (int b = 0; b < program.buffers_size(); ++b) {
      const Buffer &buffer = program.buffers(b);
      bool gradient =
          buffer.category() == Buffer::GRADIENTS && !buffer.tensor().empty();
      if (!persistent(buffer) && !gradient)
        continue;
      const char *what = gradient ? "gradient of" : "tensor";
      std::string name = buffer.tensor();
      if (gradient && name.rfind("grad:", 0) == 0)
        name = name.substr(5);
      expectEqual(p, b, holders_[name], layoutBits(buffer.layout()),
                  gradient ? 0 : holderCount_[name],
                  fmt::format("{} \"{}\"", what, name));
    }
    for (const Output &output : program.outputs())
      expectEqual(p, static_cast<int>(output.buffer()), varying_[p],
                  layoutBits(output.layout()), 0,
                  fmt::format("output \"{}\"", output.name()));
  }

  // `holders`: axes that tell apart who has the value; `count`: how many
  // programs must have it (0: this one knows of it alone).
  void expectEqual(int p, int b, AxisMask holders, AxisMask split, size_t count,
                   const std::string &what) {
    for (const auto &[slot, parts] : state_[b])
      for (const auto &[begin, part] : parts)
        if (AxisMask wrong = part.origin.mask & holders & ~split)
          differences_.push_back({what, p, count, wrong, part.origin.parts,
                                  part.call, part.instruction});
  }

  // What differs along an axis of stages is equal all the same if it holds the
  // same parts on each of them.
  void checkParts() {
    for (const Difference &difference : differences_) {
      std::set<int> programs;
      bool alike = difference.parts != 0;
      for (const Difference &other : differences_)
        if (other.what == difference.what) {
          programs.insert(stageOf(other.program));
          alike &= other.parts == difference.parts;
        }
      alike &= programs.size() >= difference.holders;
      AxisMask counted = alike ? varying_[difference.program] : ~AxisMask{0};
      if (AxisMask wrong = difference.wrong & counted)
        report(difference, wrong);
    }
  }

  void report(const Difference &difference, AxisMask wrong) {
    std::vector<std::string> names;
    for (int axis = 0; axis < axisCount(); ++axis)
      if (wrong >> axis & 1)
        names.push_back(map_.ranks().axes()[axis]);
    problems_.addOnce(
        fmt::format("{} {}", difference.program, difference.what),
        fmt::format("program {} · {} should be equal on all ranks along "
                    "{}, but {} makes it from values that differ there and "
                    "were not reduced",
                    difference.program, difference.what, fmt::join(names, ","),
                    describeAt(plan_.programs[difference.program],
                               difference.call, difference.instruction)));
  }

  struct PairHash {
    size_t
    operator()(const std::pair<const Region *, const Region *> &p) const {
      return std::hash<const void *>()(p.first) * 31 +
             std::hash<const void *>()(p.second);
    }
  };

  const LoadedPlan &plan_;
  CommunicationMap map_;
  Problems problems_;
  std::vector<AccessTable> tables_;
  std::vector<std::vector<Region>> wholes_;
  std::vector<std::vector<int>> ranksOf_;   // by program
  std::map<int, std::vector<int>> onStage_; // ranks, by stage
  std::vector<AxisMask> varying_; // by program: the ranks of its stage differ
  Arrivals arrivals_;
  std::map<uint32_t, Origin> arrivedAt_; // of the program that is walked
  const bool hasShares_;
  AxisMask apart_ = 0; // axes of more than one coordinate
  std::map<std::string, AxisMask> holders_;
  std::map<std::string, size_t> holderCount_; // stages
  std::vector<Difference> differences_;
  std::vector<std::vector<Origin>> sent_; // by program, transfer sequence
  // By program and buffer: of what steps leave for the next ones.
  std::vector<std::vector<Origin>> left_;
  // Of the program that is walked: by buffer, then slot.
  std::vector<std::map<uint32_t, PartMap<Written>>> state_;
  std::unordered_map<std::pair<const Region *, const Region *>, bool, PairHash>
      overlaps_;
  bool changed_ = false;
};

} // namespace

Status verifyReplication(const LoadedPlan &plan) {
  return ReplicationCheck(plan).run();
}

} // namespace merak
