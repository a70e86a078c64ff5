#include "passes/Planning/PartitionEngine.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <map>

namespace merak::planning {

PartitionEngine::PartitionEngine(const Graph &graph, const Classes &classes)
    : graph(graph), classes(classes) {
  size_t count = graph.tensors.size();
  for (size_t c = 0; c < classes.classes.size(); ++c)
    hasTwins |= classes.classes[c].root != int(c);
  producer.assign(count, -1);
  trained.assign(count, 0);
  byRows.assign(count, 0);
  dependsOnParameter.assign(count, 0);
  for (size_t t = 0; t < count; ++t)
    dependsOnParameter[t] = graph.tensors[t].parameter;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const GraphOp &op = graph.ops[i];
    char depends = 0;
    for (int id : op.operands)
      depends |= dependsOnParameter[id];
    if (op.phase == Phase::Update)
      for (int id : op.operands)
        trained[id] = graph.tensors[id].parameter;
    if (op.isUpdate() && op.operands.size() > 2)
      byRows[op.operands[0]] = 1;
    for (int id : op.results) {
      producer[id] = int(i);
      dependsOnParameter[id] |= depends;
    }
  }
  // A tensor with several uses of which one can never run on summands is
  // reduced for that one; the others take the reduced copy.
  std::vector<int> uses(count, 0);
  reducedAnyway.assign(count, 0);
  for (const GraphOp &op : graph.ops)
    for (size_t i = 0; i < op.operands.size(); ++i) {
      ++uses[op.operands[i]];
      bool linear = op.phase == Phase::Update;
      for (const std::vector<int> &group : op.rule.linear)
        linear |= std::find(group.begin(), group.end(), int(i)) != group.end();
      if (!linear)
        reducedAnyway[op.operands[i]] = 1;
    }
  for (size_t t = 0; t < count; ++t)
    reducedAnyway[t] &= uses[t] > 1;
}

void PartitionEngine::setAssignment(const Assignment &assignment) {
  mesh = assignment.mesh;
  axisSizes.clear();
  microbatchBit = halfBit = batchMask = 0;
  microbatches = 1;
  for (size_t a = 0; a < mesh.size(); ++a) {
    axisSizes.push_back(mesh[a].size);
    if (mesh[a].name == kMicrobatchAxis && mesh[a].size > 1) {
      microbatchBit = AxisMask(1) << a;
      microbatches = mesh[a].size;
    }
    if (mesh[a].name == kMicrobatchAxis || isOn(mesh[a].name, kDataAxis))
      batchMask |= AxisMask(1) << a;
    if (mesh[a].name == kSubmicrobatchAxis && mesh[a].size > 1)
      halfBit = AxisMask(1) << a;
  }
  markStored(assignment);
  complete = assignment.complete;
  ofSamples.assign(classes.classes.size(), 0);
  for (int cls : assignment.samples)
    ofSamples[size_t(cls)] = 1;
  axesOf.assign(classes.classes.size(), {});
  classMask.assign(classes.classes.size(), 0);
  for (const auto &[cls, names] : assignment.axes)
    for (const std::string &name : names)
      for (size_t a = 0; a < mesh.size(); ++a)
        if (mesh[a].name == name && mesh[a].size > 1) {
          axesOf[cls].push_back(int(a));
          classMask[cls] |= AxisMask(1) << a;
        }
  orderAxes();
}

// One order of the axes of a class and its twins in which all of their lists
// are ordered: an axis comes when all that stand before it in some list have
// come.
void PartitionEngine::orderAxes() {
  unordered.clear();
  if (!hasTwins) {
    orders = axesOf;
    return;
  }
  const size_t count = classes.classes.size();
  orders.assign(count, {});
  std::vector<AxisMask> used(count, 0);
  std::vector<std::map<int, AxisMask>> before(count); // by root, then axis
  for (size_t cls = 0; cls < count; ++cls) {
    const auto root = size_t(classes.classes[cls].root);
    for (size_t i = 0; i < axesOf[cls].size(); ++i) {
      used[root] |= AxisMask(1) << axesOf[cls][i];
      for (size_t j = 0; j < i; ++j)
        before[root][axesOf[cls][i]] |= AxisMask(1) << axesOf[cls][j];
    }
  }
  for (size_t root = 0; root < count; ++root)
    for (AxisMask left = used[root]; left;) {
      int next = -1;
      for (int axis = int(mesh.size()); axis-- > 0;)
        if (left >> axis & 1 && !(before[root][axis] & left))
          next = axis;
      if (next < 0) {
        unordered = fmt::format("a dimension of size {} is split over {} in "
                                "different orders on the "
                                "two sides of a seam; both need one order",
                                classes.classes[root].size, axesStr(left));
        break;
      }
      orders[root].push_back(next);
      left &= ~(AxisMask(1) << next);
    }
}

std::string PartitionEngine::axesStr(AxisMask mask) const {
  std::string text;
  for (size_t a = 0; a < mesh.size(); ++a)
    if (mask >> a & 1)
      text += (text.empty() ? "" : " and ") + mesh[a].name;
  return text;
}

// Stored parameters, their copies in another type, sums of their gradients'
// parts.
void PartitionEngine::markStored(const Assignment &assignment) {
  stored.assign(graph.tensors.size(), std::nullopt);
  Seams seams;
  for (const auto &[tensor, how] : assignment.stored) {
    stored[tensor] = how;
    seams.stored.push_back(tensor);
    if (how.scatterEach)
      seams.scattered.push_back(tensor);
  }
  if (!seams.stored.empty()) {
    const std::vector<int> sides = storedSides(graph, seams);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (sides[i] >= 0)
        for (int id : graph.ops[i].results)
          stored[id] = assignment.stored.at(sides[i]);
  }
  regathered.assign(classes.classes.size(), 0);
  for (int cls : assignment.regathered)
    regathered[size_t(cls)] = 1;
}

int64_t PartitionEngine::sizeOf(AxisMask mask) const {
  int64_t product = 1;
  for (size_t a = 0; a < axisSizes.size(); ++a)
    if (mask >> a & 1)
      product *= axisSizes[a];
  return product;
}

double PartitionEngine::localBytes(int tensor,
                                   const std::vector<AxisMask> &masks) const {
  double bytes = double(graph.tensors[tensor].bytes());
  for (AxisMask mask : masks)
    if (mask)
      bytes /= double(sizeOf(mask));
  return bytes;
}

double PartitionEngine::bytesAfterOp(int tensor, AxisMask axes) const {
  double n = double(sizeOf(axes));
  return 2 * localBytes(tensor, tensors[tensor].variants[0].masks) * (n - 1) /
         n;
}

// The longest prefix of a class's axes that none of `used` is in.
static AxisMask freePrefix(const std::vector<int> &axes, AxisMask used) {
  AxisMask mask = 0;
  for (int axis : axes) {
    if (used >> axis & 1)
      break;
    mask |= AxisMask(1) << axis;
  }
  return mask;
}

std::vector<AxisMask> PartitionEngine::canonicalMasks(int tensor) const {
  std::vector<AxisMask> masks;
  masks.reserve(classes.tensors[tensor].atoms.size());
  AxisMask used = 0;
  for (int cls : classes.tensors[tensor].atoms) {
    masks.push_back(freePrefix(axesOf[cls], used));
    used |= masks.back();
  }
  return masks;
}

std::string PartitionEngine::opName(int op) const {
  return op < 0 ? "output of the step"
                : fmt::format("op '{}'", graph.ops[op].name);
}

bool PartitionEngine::fail(const std::string &message) {
  cost.feasible = false;
  if (collect)
    status.merge(Status::error(message));
  return collect;
}

// A parameter with the batch in a dimension is one for each sample. Replicas
// may have their parts of a table or of a width, but none that they would train
// apart.
bool PartitionEngine::checkSource(int id, const Variant &stored) {
  const GraphTensor &tensor = graph.tensors[id];
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    AxisMask found = 0;
    const TensorClasses &of = classes.tensors[id];
    for (int i = of.dimBegin[d]; i < of.dimBegin[d + 1]; ++i) {
      const auto root = size_t(classes.classes[of.atoms[i]].root);
      const bool apart = trained[id] && !this->stored[id] && ofSamples[root];
      found |= stored.masks[i] & (apart ? batchMask : microbatchBit);
    }
    if (!found)
      continue;
    return fail(fmt::format(
        "initializer '{}' of shape {}, read by node '{}', has the batch in "
        "dimension {}, which cannot be split over {}; if the exporter expanded "
        "it, export with optimize=False or with a dynamic batch, else use {}",
        tensor.name, shapeStr(tensor), readerOf(graph, id), d,
        found & microbatchBit ? "microbatches" : "replicas",
        found & microbatchBit ? "one microbatch" : "dp=1"));
  }
  return checkRows(id, stored);
}

// An update of single rows counts them from the first one that a rank has,
// which is one coordinate of the rank.
bool PartitionEngine::checkRows(int id, const Variant &stored) {
  if (!byRows[id] || this->stored[id])
    return true;
  const TensorClasses &of = classes.tensors[id];
  AxisMask rows = 0;
  for (int i = of.dimBegin[0]; i < of.dimBegin[1]; ++i)
    rows |= stored.masks[i];
  return std::popcount(rows) < 2 ||
         fail(fmt::format("rows of the table '{}', which is updated by rows, "
                          "are split over several axes",
                          graph.tensors[id].name));
}

// Inputs, parameters and constants lie as their classes say.
bool PartitionEngine::placeSources() {
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (producer[t] >= 0)
      continue;
    const GraphTensor &tensor = graph.tensors[t];
    Variant stored;
    stored.masks = canonicalMasks(int(t));
    for (AxisMask &mask : stored.masks)
      mask &= ~halfBit;
    if (tensor.parameter) {
      cost.parameterBytes += localBytes(int(t), stored.masks);
      if (!checkSource(int(t), stored))
        return false;
    }
    tensors[t].variants.push_back(std::move(stored));
  }
  return true;
}

bool PartitionEngine::run(const Assignment &assignment, bool wantErrors) {
  setAssignment(assignment);
  cost = PartitionCost();
  joins.clear();
  status = Status();
  saidWhole = false;
  collect = wantErrors;
  tensors.assign(graph.tensors.size(), {});
  ops.assign(graph.ops.size(), {});
  outputVariant.assign(graph.tensors.size(), -1);
  if (!unordered.empty() && !fail(unordered))
    return false;
  if (!placeSources())
    return false;
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (!runOp(int(i)))
      return false;
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].output) {
      // Outputs stay split over devices but carry no open sums.
      const Variant &stored = tensors[t].variants[0];
      std::vector<AxisMask> masks = stored.masks;
      for (AxisMask &mask : masks)
        mask &= ~halfBit;
      outputVariant[t] =
          convert(-1, int(t), masks, stored.partial, Phase::Update);
    }
  return findLate() && cost.feasible;
}

// Whether some operand or result of an op that was run is another one for each
// microbatch.
bool PartitionEngine::isTimely(int index) const {
  const OpState &state = ops[index];
  AxisMask any = 0;
  for (AxisMask mask : state.kept)
    any |= mask;
  for (size_t i = 0; i < state.operandVariant.size(); ++i) {
    const Variant &variant =
        tensors[graph.ops[index].operands[i]].variants[state.operandVariant[i]];
    any |= variant.partial;
    for (AxisMask mask : variant.masks)
      any |= mask;
  }
  return any & microbatchBit;
}

// What is the same for all microbatches and read by no microbatch (a sum of a
// mean over the batch and a penalty on weights, the gradient of the penalty)
// runs once, with the update.
bool PartitionEngine::findLate() {
  if (!microbatchBit)
    return true;
  std::vector<char> needed(graph.tensors.size(), 0);
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const GraphOp &op = graph.ops[i];
    OpState &state = ops[i];
    if (op.phase == Phase::Update)
      continue;
    state.timely = isTimely(int(i));
    state.late = !state.timely && !state.prologue;
    for (int id : op.results)
      state.late &= !needed[id];
    if (!state.late)
      for (int id : op.operands)
        needed[id] = 1;
  }
  return findJoins();
}

// Sums over microbatches that depend on parameters and are read before the
// update. Passes over the microbatches, one after the other, make them: the
// forward pass is number 0, the last one is the backward pass.
bool PartitionEngine::findJoins() {
  std::vector<char> joined(graph.tensors.size(), 0), feeds = joined;
  bool hasBackward = false;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const GraphOp &op = graph.ops[i];
    hasBackward |= op.phase == Phase::Backward;
    for (size_t o = 0; o < op.operands.size(); ++o) {
      int id = op.operands[o];
      if (ops[i].late || op.phase == Phase::Update ||
          !tensors[id].variants[ops[i].operandVariant[o]].joined)
        continue;
      joined[id] = 1;
      if (joins.empty())
        joins = fmt::format(
            "{} needs '{}' summed over all microbatches before it can run, but "
            "'{}' depends on parameter '{}'",
            opName(int(i)), graph.tensors[id].name, graph.tensors[id].name,
            parameterBehind(id));
    }
  }
  if (joins.empty())
    return true;
  if (!hasBackward)
    return fail(joins + "; use one microbatch");
  std::vector<int> passOf(graph.tensors.size(), 0);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const GraphOp &op = graph.ops[i];
    int pass = op.phase == Phase::Backward;
    for (size_t o = 0; o < op.operands.size(); ++o) {
      int id = op.operands[o];
      bool sum = tensors[id].variants[ops[i].operandVariant[o]].joined;
      pass = std::max(pass, passOf[id] + sum);
    }
    for (int id : op.results)
      passOf[id] = pass;
  }
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const GraphOp &op = graph.ops[i];
    if (ops[i].late || op.phase == Phase::Update)
      continue;
    bool inTime = false;
    int pass = 0;
    for (int id : op.results) {
      inTime |= joined[id] || feeds[id];
      pass = std::max(pass, passOf[id]);
    }
    for (int id : op.operands)
      feeds[id] |= inTime;
    ops[i].join = inTime ? pass : 0;
    ops[i].afterJoin = !inTime && pass > 0 && op.phase == Phase::Forward;
  }
  return true;
}

// Which slots of an op keep their axes: the first slot of an axis wins.
void PartitionEngine::keepAxes(int index) {
  OpState &state = ops[index];
  const OpClasses &op = classes.ops[index];
  state.kept.assign(op.slots.size(), 0);
  AxisMask used = 0;
  for (size_t s = 0; s < op.slots.size(); ++s) {
    const OpSlot &slot = op.slots[s];
    if (slot.kind == FactorKind::Whole || !classMask[slot.cls])
      continue;
    state.kept[s] = freePrefix(axesOf[slot.cls], used);
    if (slot.kind == FactorKind::Samples)
      state.kept[s] &= batchMask;
    // The begin of a range is one coordinate of a rank.
    if (graph.ops[index].rule.factors[size_t(slot.factor)].ranged &&
        state.kept[s]) {
      const AxisMask first = AxisMask(1) << axesOf[slot.cls].front();
      state.kept[s] &= first & ~halfBit;
    }
    // Submicrobatches are worth no more than plain work on parts.
    if (graph.ops[index].phase == Phase::Update ||
        slot.kind == FactorKind::Max || slot.kind == FactorKind::Decompose)
      state.kept[s] &= ~halfBit;
    used |= state.kept[s];
    state.decompose |= slot.kind == FactorKind::Decompose && state.kept[s];
  }
}

// A reduced copy that this op could use instead of the summands.
bool PartitionEngine::hasResolved(int tensor, AxisMask axis,
                                  Phase phase) const {
  for (const Variant &variant : tensors[tensor].variants)
    if (!(variant.partial & axis) &&
        (!variant.joined || axis != microbatchBit) &&
        (variant.phase != Phase::Update || phase == Phase::Update))
      return true;
  return false;
}

// Per operand the axes over which it must be reduced; fills OpState::lazy.
void PartitionEngine::decidePartial(int index, std::vector<AxisMask> &resolve) {
  const GraphOp &op = graph.ops[index];
  OpState &state = ops[index];
  AxisMask used = 0, any = 0;
  for (AxisMask mask : state.kept)
    used |= mask;
  for (int id : op.operands)
    any |= tensors[id].variants[0].partial;
  for (AxisMask axis = 1; axis <= any; axis <<= 1) {
    if (!(any & axis))
      continue;
    std::vector<int> partial;
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (tensors[op.operands[i]].variants[0].partial & axis) {
        int id = op.operands[i];
        if (hasResolved(id, axis, op.phase) ||
            (!(axis & (microbatchBit | halfBit)) &&
             complete.count({index, int(i)})) ||
            (reducedAnyway[id] && axis != microbatchBit) ||
            (axis & (microbatchBit | halfBit) && op.phase == Phase::Update) ||
            // A sum over microbatches is one over their submicrobatches.
            (axis == halfBit && resolve[i] & microbatchBit))
          resolve[i] |= axis;
        else
          partial.push_back(int(i));
      }
    // Candidates: reduce all of them, or keep one linear group of them. The
    // price: bytes to reduce now, and those of the results later. Summing over
    // microbatches early is impossible for what depends on parameters.
    // Gradients of weights are added up over microbatches: now is once for each
    // of them, later once a step, and in f32 where products are of 16 bits,
    // however many microbatches there are.
    const double times = op.weightGradient && axis != microbatchBit
                             ? double(std::max<int64_t>(2, microbatches))
                             : 1;
    auto price = [&](const std::vector<int> &kept) {
      double bytes = 0;
      for (int i : partial) {
        int id = op.operands[i];
        if (std::find(kept.begin(), kept.end(), i) != kept.end())
          continue;
        bytes += times * localBytes(id, tensors[id].variants[0].masks);
        if (axis == microbatchBit)
          bytes += dependsOnParameter[id] ? 1e30 : 1e15;
      }
      if (!kept.empty())
        for (size_t r = 0; r < op.results.size(); ++r) {
          std::vector<AxisMask> masks;
          for (int slot : classes.ops[index].results[r])
            masks.push_back(slot < 0 ? 0 : state.kept[slot]);
          bytes += localBytes(op.results[r], masks);
        }
      return bytes;
    };
    std::vector<int> best;
    if (!partial.empty() && !(used & axis)) {
      double bestPrice = price(best);
      for (const std::vector<int> &group : op.rule.linear) {
        bool inside = !group.empty();
        for (int i : group)
          inside &=
              std::find(partial.begin(), partial.end(), i) != partial.end();
        // A tie goes to the summands: a later sum may join them.
        if (inside && price(group) <= bestPrice) {
          best = group;
          bestPrice = price(group);
        }
      }
    }
    // What waits for one sum over all microbatches may as well wait for two,
    // and is then itself the same for all.
    if (axis == microbatchBit && op.phase == Phase::Forward)
      for (int i : partial)
        if (std::find(best.begin(), best.end(), i) == best.end() &&
            dependsOnParameter[op.operands[i]])
          best.clear();
    if (!best.empty())
      state.lazy |= axis;
    for (int i : partial)
      if (std::find(best.begin(), best.end(), i) == best.end())
        resolve[i] |= axis;
  }
}

// What is the same for all microbatches is so for both submicrobatches of one.
void PartitionEngine::joinHalves(int index,
                                 const std::vector<AxisMask> &resolve) {
  if (!microbatchBit || !halfBit)
    return;
  const GraphOp &op = graph.ops[index];
  AxisMask any = 0;
  for (AxisMask mask : ops[index].kept)
    any |= mask;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const Variant &stored = tensors[op.operands[i]].variants[0];
    any |= stored.partial & ~resolve[i];
    for (AxisMask mask : stored.masks)
      any |= mask;
  }
  if (!(any & microbatchBit))
    for (AxisMask &mask : ops[index].kept)
      mask &= ~halfBit;
}

bool PartitionEngine::runOp(int index) {
  const GraphOp &op = graph.ops[index];
  const OpClasses &opClasses = classes.ops[index];
  OpState &state = ops[index];
  keepAxes(index);
  std::vector<AxisMask> resolve(op.operands.size(), 0);
  decidePartial(index, resolve);
  joinHalves(index, resolve);
  state.operandVariant.reserve(op.operands.size());
  for (size_t i = 0; i < op.operands.size(); ++i) {
    requiredScratch.clear();
    for (int slot : opClasses.operands[i])
      requiredScratch.push_back(slot < 0 ? 0 : state.kept[slot]);
    int variant =
        convert(index, op.operands[i], requiredScratch, resolve[i], op.phase);
    if (variant < 0)
      return false;
    state.operandVariant.push_back(variant);
  }
  for (size_t r = 0; r < op.results.size(); ++r) {
    Variant stored;
    stored.masks.reserve(opClasses.results[r].size());
    for (int slot : opClasses.results[r])
      stored.masks.push_back(slot < 0 ? 0 : state.kept[slot]);
    stored.partial = state.lazy;
    AxisMask maxAxes = 0;
    std::pair<AxisMask, int> expected{0, 0};
    for (size_t s = 0; s < opClasses.slots.size(); ++s) {
      if (!state.kept[s] || resultHas(index, r, s))
        continue;
      switch (opClasses.slots[s].kind) {
      case FactorKind::Sum:
        stored.partial |= state.kept[s];
        break;
      case FactorKind::Max:
        maxAxes |= state.kept[s];
        break;
      case FactorKind::Decompose:
        stored.partial |= state.kept[s] & microbatchBit;
        expected.first |= state.kept[s] & ~microbatchBit;
        expected.second = std::max(
            expected.second, op.rule.factors[opClasses.slots[s].factor].rounds);
        break;
      case FactorKind::Parallel:
      case FactorKind::Whole:
      case FactorKind::Samples:
        break;
      }
    }
    if (maxAxes & microbatchBit &&
        !fail(fmt::format("op '{}' takes a maximum over the batch, which "
                          "cannot be split over microbatches; use one "
                          "microbatch (--microbatch=all samples of a replica)",
                          op.name)))
      return false;
    std::vector<Variant> &variants = tensors[op.results[r]].variants;
    variants.clear();
    variants.push_back(std::move(stored));
    int64_t times = op.phase == Phase::Update ? 1 : microbatches;
    if (maxAxes)
      cost.communicatedBytes +=
          double(times) * bytesAfterOp(op.results[r], maxAxes);
    if (expected.first)
      cost.communicatedBytes += double(times) * expected.second *
                                bytesAfterOp(op.results[r], expected.first);
    state.maxAxes.push_back(maxAxes);
    state.expected.push_back(expected);
  }
  state.localFlops =
      op.flops * double(op.phase == Phase::Update ? 1 : microbatches);
  for (AxisMask mask : state.kept)
    state.localFlops /= double(sizeOf(mask));
  if (op.contraction) {
    cost.contractionFlops += state.localFlops;
    cost.totalContraction += op.flops;
  }
  return true;
}

std::string PartitionEngine::parameterBehind(int tensor) const {
  while (!graph.tensors[tensor].parameter && producer[tensor] >= 0) {
    int next = -1;
    for (int id : graph.ops[producer[tensor]].operands)
      if (dependsOnParameter[id])
        next = id;
    if (next < 0)
      break;
    tensor = next;
  }
  return graph.tensors[tensor].name;
}

void PartitionEngine::markPrologue(int tensor) {
  int op = producer[tensor];
  if (op < 0 || ops[op].prologue)
    return;
  ops[op].prologue = true;
  for (int id : graph.ops[op].operands)
    markPrologue(id);
}

} // namespace merak::planning
