// How the engine gets from the layout in which a tensor lies to the one in
// which an op wants it.
#include "passes/Planning/PartitionEngine.h"

#include <fmt/format.h>
#include <utility>

namespace merak::planning {

// Finds or adds the variant one step on; returns its index.
int PartitionEngine::step(int tensor, int from, Variant next, int op,
                          Phase phase) {
  std::vector<Variant> &variants = tensors[tensor].variants;
  next.prologue |= variants[from].prologue;
  // What is made of a stored parameter in front of its uses.
  if (stored[tensor] && phase != Phase::Update)
    next.life = stored[tensor]->life;
  next.joined |= variants[from].joined;
  // Each pass has its own.
  const bool ofPass =
      next.life == GatherLife::Use ||
      (next.kind == ConversionKind::AllGather &&
       regathered[size_t(classes.tensors[tensor].atoms[size_t(next.atom)])]);
  for (size_t v = 1; v < variants.size(); ++v) {
    const Variant &known = variants[v];
    if (known.parent == from && known.kind == next.kind &&
        known.axes == next.axes && known.atom == next.atom &&
        known.toAtom == next.toAtom && known.prologue == next.prologue &&
        known.joined == next.joined &&
        (known.phase != Phase::Update || phase == Phase::Update) &&
        (!ofPass || known.phase == phase))
      return int(v);
  }
  next.parent = from;
  next.op = op;
  next.phase = phase;
  const Variant &parent = variants[from];
  // Once the microbatches are summed, what follows happens once a step.
  bool once = phase == Phase::Update || next.prologue || next.joined ||
              next.life == GatherLife::Step ||
              next.kind == ConversionKind::Accumulate;
  next.times = once ? 1 : microbatches;
  double n = double(sizeOf(next.axes)), share = (n - 1) / n;
  switch (next.kind) {
  case ConversionKind::AllReduceSum:
  case ConversionKind::AllReduceMax:
    next.bytes = 2 * share * localBytes(tensor, next.masks);
    break;
  case ConversionKind::AllGather:
    next.bytes = share * localBytes(tensor, next.masks);
    break;
  case ConversionKind::ReduceScatter:
  case ConversionKind::AllToAll:
    next.bytes = share * localBytes(tensor, parent.masks);
    break;
  case ConversionKind::Slice:
  case ConversionKind::Place:
  case ConversionKind::Accumulate:
    break;
  }
  if (next.axes == halfBit) // on one device
    next.bytes = 0;
  cost.communicatedBytes += next.bytes * double(next.times);
  variants.push_back(std::move(next));
  return int(variants.size()) - 1;
}

// The axes that stay where a factor goes from one split to another: those
// before the first, major to minor, that only one of the two has. Blocks over
// (tp, dp) become blocks over tp by gathering dp, and blocks over dp by
// gathering both and taking parts again.
AxisMask PartitionEngine::keptPrefix(int cls, AxisMask from,
                                     AxisMask to) const {
  AxisMask prefix = 0;
  for (int axis : orderOf(cls)) {
    const AxisMask bit = AxisMask(1) << axis;
    if ((from ^ to) & bit)
      break;
    prefix |= from & bit;
  }
  return prefix;
}

// The axes in stretches, major to minor, in each of which they have the order
// of the mesh: that is how the ranks of a group are numbered, and so the order
// of the parts in a collective over several axes.
std::vector<AxisMask> PartitionEngine::runsOf(int cls, AxisMask axes) const {
  std::vector<AxisMask> runs;
  int last = -1;
  for (int axis : orderOf(cls)) {
    if (!(axes >> axis & 1))
      continue;
    if (runs.empty() || axis < last)
      runs.push_back(0);
    runs.back() |= AxisMask(1) << axis;
    last = axis;
  }
  return runs;
}

// The walk of one operand.
class PartitionEngine::Conversions {
public:
  Conversions(PartitionEngine &engine, int op, int tensor,
              const std::vector<AxisMask> &required, AxisMask resolve,
              Phase phase)
      : engine(engine), op(op), tensor(tensor), required(required),
        phase(phase), resolve(resolve & current().partial) {}

  // -1 ends the run.
  int walk() {
    if (scattersEach())
      scatter(Phase::Backward);
    accumulate();
    scatter(phase);
    reduce();
    for (size_t i = 0; i < required.size(); ++i)
      if (!gather(i))
        return failed ? -1 : at;
    for (size_t i = 0; i < required.size(); ++i)
      for (AxisMask run : runs(i, required[i] & ~current().masks[i])) {
        Variant cut = next(ConversionKind::Slice, run);
        cut.atom = int(i);
        cut.masks[i] |= run;
        add(std::move(cut), phase);
      }
    return at;
  }

private:
  const Variant &current() const { return engine.tensors[tensor].variants[at]; }
  int classOf(size_t atom) const {
    return engine.classes.tensors[tensor].atoms[atom];
  }
  std::vector<AxisMask> runs(size_t atom, AxisMask axes) const {
    return engine.runsOf(classOf(atom), axes);
  }
  AxisMask kept(size_t atom) const {
    return engine.keptPrefix(classOf(atom), current().masks[atom],
                             required[atom]);
  }
  Variant next(ConversionKind kind, AxisMask axes) const {
    Variant variant;
    variant.kind = kind;
    variant.axes = axes;
    variant.partial = current().partial;
    variant.masks = current().masks;
    return variant;
  }
  void add(Variant variant, Phase when) {
    at = engine.step(tensor, at, std::move(variant), op, when);
  }

  // Whether the operand is a gradient that is summed over replicas in every
  // microbatch.
  bool scattersEach() const {
    if (phase != Phase::Update || op < 0)
      return false;
    const GraphOp &user = engine.graph.ops[size_t(op)];
    const int of = user.isUpdate() ? user.operands[0] : user.results[0];
    const auto &how = engine.stored[size_t(of)];
    return how && how->scatterEach && tensor != of;
  }

  // Submicrobatches are summed with the microbatches.
  void accumulate() {
    AxisMask overTime = resolve & engine.microbatchBit;
    if (overTime || phase == Phase::Update)
      overTime |= current().partial & engine.halfBit;
    if (!overTime)
      return;
    Variant sum = next(ConversionKind::Accumulate, overTime);
    sum.partial &= ~overTime;
    bool early = phase != Phase::Update;
    for (const Variant &known : engine.tensors[tensor].variants)
      early |= known.prologue;
    sum.joined = early && engine.dependsOnParameter[tensor];
    sum.prologue = early && !sum.joined;
    if (sum.prologue)
      engine.markPrologue(tensor);
    add(std::move(sum), phase);
    resolve &= ~overTime;
  }

  // A sum that is wanted split is scattered while it is reduced.
  void scatter(Phase when) {
    for (size_t i = 0; resolve && i < required.size(); ++i) {
      const AxisMask parts =
          required[i] & ~current().masks[i] & ~engine.halfBit;
      const bool extends = kept(i) == current().masks[i] &&
                           (parts & ~resolve) == 0 &&
                           (current().masks[i] | parts) == required[i];
      if (!parts || !extends)
        continue;
      for (AxisMask run : runs(i, parts)) {
        Variant reduced = next(ConversionKind::ReduceScatter, run);
        reduced.atom = int(i);
        reduced.partial &= ~run;
        reduced.masks[i] |= run;
        add(std::move(reduced), when);
      }
      resolve &= ~parts;
    }
  }

  void reduce() {
    for (AxisMask axes :
         {resolve & ~engine.halfBit, resolve & engine.halfBit}) {
      if (!axes)
        continue;
      Variant reduced = next(ConversionKind::AllReduceSum, axes);
      reduced.partial &= ~axes;
      add(std::move(reduced), phase);
    }
  }

  // Another factor of which the same axes are wanted, as its innermost: an
  // exchange takes them there.
  int targetOf(size_t from, AxisMask axes) const {
    int to = -1;
    for (size_t j = 0; j < required.size() && axes != engine.halfBit; ++j)
      if (j != from && kept(j) == current().masks[j] &&
          (required[j] & ~current().masks[j]) == axes &&
          runs(j, axes).size() == 1)
        to = int(j);
    return to;
  }

  // False: the walk ends here.
  bool gather(size_t i) {
    if (current().masks[i] == 0)
      return true;
    AxisMask axes = current().masks[i] & ~kept(i);
    const bool stacks = axes & engine.microbatchBit;
    if (stacks && !isOfSamples())
      return refuseWhole();
    // What the ranks have of a microbatch comes together in it.
    const Phase when =
        axes & engine.batchMask && isOfSamples() ? Phase::Backward : phase;
    axes &= ~engine.microbatchBit;
    const std::vector<AxisMask> each = runs(i, axes);
    for (size_t run = each.size(); run-- > 0;) { // the minor ones first
      const int to = each.size() == 1 ? targetOf(i, axes) : -1;
      Variant moved =
          next(to >= 0 ? ConversionKind::AllToAll : ConversionKind::AllGather,
               each[run]);
      moved.atom = int(i);
      moved.toAtom = to;
      moved.masks[i] &= ~each[run];
      if (to >= 0)
        moved.masks[size_t(to)] |= axes;
      add(std::move(moved), when);
    }
    if (stacks)
      stack(i);
    return true;
  }

  // Whether a microbatch makes the tensor, and the update alone reads it, with
  // the samples of all.
  bool isOfSamples() const {
    const int maker = engine.producer[size_t(tensor)];
    return phase == Phase::Update && op >= 0 &&
           engine.graph.ops[size_t(op)].phase == Phase::Update &&
           !engine.graph.ops[size_t(op)].isUpdate() &&
           (maker < 0 ||
            engine.graph.ops[size_t(maker)].phase != Phase::Update);
  }

  // The parts of all microbatches side by side, as a sum of parts among zeros.
  void stack(size_t i) {
    const AxisMask time = engine.microbatchBit;
    Variant part = next(ConversionKind::Place, time);
    part.atom = int(i);
    part.masks[i] &= ~time;
    part.partial |= time;
    add(std::move(part), Phase::Backward);
    Variant sum = next(ConversionKind::Accumulate, time);
    sum.partial &= ~time;
    add(std::move(sum), Phase::Update);
  }

  bool refuseWhole() {
    // One sentence for all of them: the remedy is the same.
    if (engine.collect && std::exchange(engine.saidWhole, true))
      return false;
    failed = !engine.fail(fmt::format(
        "{} needs the whole batch of '{}', which is split over microbatches; "
        "use one microbatch (--microbatch=all samples of a replica)",
        engine.opName(op), engine.graph.tensors[tensor].name));
    return false;
  }

  PartitionEngine &engine;
  const int op, tensor;
  const std::vector<AxisMask> &required;
  const Phase phase;
  int at = 0;
  AxisMask resolve;
  bool failed = false;
};

int PartitionEngine::convert(int op, int tensor,
                             const std::vector<AxisMask> &required,
                             AxisMask resolve, Phase phase) {
  return Conversions(*this, op, tensor, required, resolve, phase).walk();
}

} // namespace merak::planning
