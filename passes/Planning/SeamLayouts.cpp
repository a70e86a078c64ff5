#include "passes/Planning/SeamLayouts.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace merak::planning {

namespace {

std::vector<int> trainedParameters(const Graph &graph) {
  std::vector<int> out;
  for (const GraphOp &op : graph.ops)
    if (op.isUpdate() && !op.operands.empty() &&
        graph.tensors[size_t(op.operands[0])].parameter)
      out.push_back(op.operands[0]);
  return out;
}

// Whether the anchored dimension is of samples, however many.
bool isBatch(const Graph &graph, const Classes &classes,
             const ClassAnchor &anchor, const Assignment &out) {
  if (!anchor.op.empty() || anchor.dim < 0)
    return false;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const TensorClasses &tensor = classes.tensors[t];
    if (graph.tensors[t].name != anchor.tensor ||
        size_t(anchor.dim) + 1 >= tensor.dimBegin.size())
      continue;
    for (int i = tensor.dimBegin[size_t(anchor.dim)];
         i < tensor.dimBegin[size_t(anchor.dim) + 1]; ++i)
      if (out.samples.count(
              classes.classes[size_t(tensor.atoms[size_t(i)])].root))
        return true;
  }
  return false;
}

StoredParameter ofLevel(int64_t zero) {
  return {zero >= 3 ? GatherLife::Use : GatherLife::Step, zero >= 2};
}

} // namespace

int majorPart(const Classes &classes, const std::vector<int> &parts,
              const Assignment &mesh, const std::vector<std::string> &axes) {
  int64_t ways = 1;
  for (const std::string &axis : axes)
    ways *= mesh.sizeOf(axis);
  for (int cls : parts)
    if (classes.classes[size_t(cls)].splittable &&
        classes.classes[size_t(cls)].size % ways == 0)
      return cls;
  return parts.front();
}

Status splitBy(const Graph &graph, const Classes &classes,
               const Strategy::SplitClass &split, bool samples,
               Assignment &out) {
  const ClassAnchor &anchor = split.anchor;
  const std::string where = fmt::format(
      "strategy splits dimension {} of '{}'{}", anchor.dim, anchor.tensor,
      anchor.op.empty() ? "" : fmt::format(" in front of op '{}'", anchor.op));
  const std::vector<int> found = findAnchor(graph, classes, anchor);
  if (found.empty() && !samples && isBatch(graph, classes, anchor, out))
    return {}; // of another size than where the strategy was written
  if (found.empty())
    return Status::error(fmt::format(
        "{}{}, which the model lacks", where,
        anchor.size ? fmt::format(" as a factor of size {}", anchor.size)
                    : ""));
  const int cls = majorPart(classes, found, out, split.axes);
  const ClassInfo &info = classes.classes[size_t(cls)];
  std::vector<std::string> axes, asked = out.inParts(split.axes);
  if (auto known = out.axes.find(cls); known != out.axes.end())
    for (const std::string &axis : known->second)
      if (axis == kMicrobatchAxis || (!samples && isOn(axis, kDataAxis)))
        axes.push_back(axis);
  const bool batch = !samples && out.samples.count(info.root) > 0;
  for (const std::string &axis : asked)
    if (axis != kMicrobatchAxis && !(batch && isOn(axis, kDataAxis)))
      axes.push_back(axis);
  int64_t ways = 1;
  for (const std::string &axis : axes)
    ways *= out.sizeOf(axis);
  if (ways > 1 && (!info.splittable || info.size % ways != 0))
    return Status::error(fmt::format(
        "{} over {}, {} parts, which do not divide {} of size {}", where,
        fmt::join(axes, ", "), ways,
        found.size() > 1 ? "any factor of it, as one" : "it", info.size));
  out.axes[cls] = std::move(axes);
  return {};
}

Result<SeamLayouts> SeamLayouts::make(const Graph &graph,
                                      const Classes &unified,
                                      const Strategy &strategy,
                                      const std::vector<int> &batched,
                                      const Assignment &base) {
  SeamLayouts out(graph, strategy);
  Status status = out.findUses();
  status.merge(out.findStored());
  if (strategy.sequence.value_or(0) > 0)
    status.merge(out.findSequence(unified, batched, base));
  MERAK_RETURN_IF_ERROR(status);
  Result<Classes> classes = separate(graph, unified, out.seams);
  if (!classes.ok())
    return classes.status();
  out.separated = std::move(*classes);
  return out;
}

Status SeamLayouts::findUses() {
  Status status;
  if (strategy.seams.empty())
    return status;
  const std::vector<std::string> names = forwardNames(*graph);
  for (const Strategy::SeamUse &use : strategy.seams) {
    auto it = std::find(names.begin(), names.end(), use.op);
    if (it == names.end() || use.op.empty())
      status.merge(Status::error(fmt::format(
          "strategy has a seam in front of op '{}', which the model lacks",
          use.op)));
    else
      seams.uses.push_back({int(it - names.begin()), use.operand});
  }
  return status;
}

Status SeamLayouts::findStored() {
  Status status;
  const std::vector<int> trained = trainedParameters(*graph);
  const bool all = strategy.zero.value_or(0) > 0;
  for (int id : trained)
    if (all || strategy.stored.count(graph->tensors[size_t(id)].name)) {
      seams.stored.push_back(id);
      if (howStored(id).scatterEach)
        seams.scattered.push_back(id);
    }
  for (const auto &[name, layout] : strategy.stored) {
    bool found = false;
    for (int id : trained)
      found |= graph->tensors[size_t(id)].name == name;
    if (!found)
      status.merge(Status::error(fmt::format(
          "strategy stores parameter '{}', which the model lacks or does not "
          "train",
          name)));
  }
  return status;
}

StoredParameter SeamLayouts::howStored(int id) const {
  auto named = strategy.stored.find(graph->tensors[size_t(id)].name);
  return named == strategy.stored.end() ? ofLevel(strategy.zero.value_or(0))
                                        : named->second.how;
}

Status SeamLayouts::findSequence(const Classes &unified,
                                 const std::vector<int> &batched,
                                 const Assignment &base) {
  Result<SequenceSeams> found = sequenceSeams(*graph, unified, batched, base);
  if (!found.ok())
    return found.status();
  sequence = std::move(*found);
  seams.implied = sequence.uses();
  return {};
}

// The tokens outside of what tp divides: of the values that enter it and of the
// sums that leave it. What a product gathers of them is not kept for its weight
// gradient: of a block nothing is left whole.
void SeamLayouts::splitTokens(Assignment &out) const {
  std::set<int> classes;
  auto add = [&](int cls) {
    if (separated.classes[size_t(cls)].root == sequence.tokens)
      classes.insert(cls);
  };
  for (const TensorUse &use : sequence.entries)
    for (int cls :
         separated
             .tensors[size_t(
                 graph->ops[size_t(use.op)].operands[size_t(use.operand)])]
             .atoms)
      add(cls);
  for (const TensorUse &use : sequence.exits)
    for (int slot : separated.ops[size_t(use.op)].operands[size_t(use.operand)])
      if (slot >= 0)
        add(separated.ops[size_t(use.op)].slots[size_t(slot)].cls);
  for (int cls : classes)
    if (append(cls, kTensorAxis, out))
      out.regathered.insert(cls);
}

// Appends an axis, or all its parts, where the class can be cut once more.
bool SeamLayouts::append(int cls, const std::string &axis,
                         Assignment &out) const {
  const ClassInfo &info = separated.classes[size_t(cls)];
  int64_t ways = out.sizeOf(axis);
  auto known = out.axes.find(cls);
  if (known != out.axes.end())
    for (const std::string &other : known->second)
      ways *= out.sizeOf(other);
  if (!info.splittable || info.size % ways != 0)
    return false;
  for (const std::string &part : out.axesOn(axis))
    out.axes[cls].push_back(part);
  return true;
}

// Over the first factor that divides: its parts are contiguous if that is of
// the first dimension.
void SeamLayouts::storeOver(int tensor, const std::string &axis,
                            Assignment &out) const {
  if (out.sizeOf(axis) == 1)
    return;
  for (int cls : separated.tensors[size_t(tensor)].atoms)
    if (out.splits(cls, axis))
      return;
  for (int cls : separated.tensors[size_t(tensor)].atoms)
    if (append(cls, axis, out))
      return;
}

Status SeamLayouts::storeNamed(int tensor, const Strategy::StoredLayout &layout,
                               Assignment &out) const {
  const GraphTensor &of = graph->tensors[size_t(tensor)];
  const TensorClasses &atoms = separated.tensors[size_t(tensor)];
  if (layout.dims.size() > of.shape.size())
    return Status::error(fmt::format(
        "strategy stores parameter '{}' with {} dimensions, it has {}", of.name,
        layout.dims.size(), of.shape.size()));
  Status status;
  for (size_t d = 0; d < layout.dims.size(); ++d)
    for (const std::string &axis : layout.dims[d]) {
      bool done = out.sizeOf(axis) == 1;
      for (int i = atoms.dimBegin[d]; i < atoms.dimBegin[d + 1]; ++i)
        done |= out.splits(atoms.atoms[size_t(i)], axis);
      for (int i = atoms.dimBegin[d]; i < atoms.dimBegin[d + 1] && !done; ++i)
        done = append(atoms.atoms[size_t(i)], axis, out);
      if (!done)
        status.merge(Status::error(fmt::format(
            "dimension {} of parameter '{}' ({}) has no factor that {}={} "
            "divides besides what splits it already",
            d, of.name, separated.dimStr(tensor, int(d)), axis,
            out.sizeOf(axis))));
    }
  return status;
}

// What the strategy says of a class holds for that side of a seam only. The
// batch goes on being split over microbatches.
Status SeamLayouts::assignClasses(Assignment &out) const {
  Status status;
  for (const Strategy::SplitClass &split : strategy.classes)
    status.merge(splitBy(*graph, separated, split, /*samples=*/true, out));
  return status;
}

// What no class of the strategy can name.
void SeamLayouts::followForward(Assignment &out) const {
  std::set<int> said;
  for (const Strategy::SplitClass &split : strategy.classes)
    for (int cls : findAnchor(*graph, separated, split.anchor))
      said.insert(cls);
  for (const auto &[cls, forward] : gradientTwins(*graph, separated)) {
    if (said.count(cls))
      continue;
    if (auto known = out.axes.find(forward); known != out.axes.end())
      out.axes[cls] = known->second;
    else
      out.axes.erase(cls);
  }
}

Result<Assignment> SeamLayouts::assign(const Assignment &unified) const {
  if (empty())
    return unified;
  Assignment out;
  out.mesh = unified.mesh;
  out.samples = unified.samples;
  for (size_t c = 0; c < separated.classes.size(); ++c)
    if (auto known = unified.axes.find(separated.classes[c].root);
        known != unified.axes.end())
      out.axes[int(c)] = known->second;
  Status status;
  if (!strategy.seams.empty()) {
    status = assignClasses(out);
    followForward(out);
  }
  splitTokens(out);
  for (int id : seams.stored) {
    out.stored[id] = howStored(id);
    auto named = strategy.stored.find(graph->tensors[size_t(id)].name);
    if (named == strategy.stored.end())
      storeOver(id, kDataAxis, out);
    else
      status.merge(storeNamed(id, named->second, out));
  }
  MERAK_RETURN_IF_ERROR(status);
  return out;
}

std::vector<std::string>
SeamLayouts::whole(const Assignment &assignment) const {
  std::vector<std::string> out;
  for (const auto &[id, how] : assignment.stored) {
    bool split = false;
    for (int cls : separated.tensors[size_t(id)].atoms)
      split |= assignment.splits(cls, kDataAxis);
    if (!split)
      out.push_back(graph->tensors[size_t(id)].name);
  }
  return out;
}

} // namespace merak::planning
