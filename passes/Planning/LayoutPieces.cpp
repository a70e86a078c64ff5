#include "passes/Planning/LayoutPieces.h"

#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace merak::planning {

LayoutCost &LayoutCost::operator+=(const LayoutCost &other) {
  feasible &= other.feasible;
  stay += other.stay;
  inFlight += other.inFlight;
  perMicrobatch += other.perMicrobatch;
  perStep += other.perStep;
  return *this;
}

LayoutCost &LayoutCost::operator-=(const LayoutCost &other) {
  feasible &= other.feasible;
  stay -= other.stay;
  inFlight -= other.inFlight;
  perMicrobatch -= other.perMicrobatch;
  perStep -= other.perStep;
  return *this;
}

LayoutPiece::LayoutPiece(const Graph &graph, const Classes &classes,
                         std::vector<int> ops)
    : whole(graph), wholeClasses(classes) {
  std::set<int> all(ops.begin(), ops.end());
  for (int op : ops)
    if (int of = graph.ops[size_t(op)].gradientOf; of >= 0)
      all.insert(of);
  for (int op : all)
    addOp(op);
  markInputs();
  write();
}

void LayoutPiece::markInputs() {
  std::vector<char> made(own.tensors.size(), 0);
  for (const GraphOp &op : own.ops)
    for (int id : op.results)
      made[size_t(id)] = 1;
  for (size_t t = 0; t < own.tensors.size(); ++t)
    if (GraphTensor &tensor = own.tensors[t];
        !made[t] && !tensor.parameter && !tensor.constant)
      tensor.input = true;
}

int LayoutPiece::classOf(int cls) {
  auto [it, isNew] = numbers.try_emplace(cls, int(outer.size()));
  if (isNew) {
    ClassInfo info = wholeClasses.classes[size_t(cls)];
    info.root = roots.try_emplace(info.root, it->second).first->second;
    ownClasses.classes.push_back(std::move(info));
    outer.push_back(cls);
  }
  return it->second;
}

int LayoutPiece::tensorOf(int id) {
  auto [it, isNew] = tensors.try_emplace(id, int(own.tensors.size()));
  if (isNew) {
    own.addTensor(whole.tensors[size_t(id)]);
    own.tensors.back().output = false;
    TensorClasses of = wholeClasses.tensors[size_t(id)];
    for (int &cls : of.atoms)
      cls = classOf(cls);
    ownClasses.tensors.push_back(std::move(of));
  }
  return it->second;
}

void LayoutPiece::addOp(int index) {
  GraphOp op = whole.ops[size_t(index)];
  for (std::vector<int> *ids : {&op.operands, &op.results})
    for (int &id : *ids)
      id = tensorOf(id);
  auto of = opsOf.find(op.gradientOf);
  op.gradientOf = of == opsOf.end() ? -1 : of->second;
  OpClasses classes = wholeClasses.ops[size_t(index)];
  for (OpSlot &slot : classes.slots)
    slot.cls = classOf(slot.cls);
  opsOf[index] = own.addOp(std::move(op));
  ownClasses.ops.push_back(std::move(classes));
}

// All that a price depends on, without names.
void LayoutPiece::write() {
  auto out = std::back_inserter(text);
  for (size_t t = 0; t < own.tensors.size(); ++t) {
    const GraphTensor &tensor = own.tensors[t];
    fmt::format_to(out, "t{}*{}:{}{}{}{}:{};", fmt::join(tensor.shape, "x"),
                   tensor.elementBytes, int(tensor.parameter),
                   int(tensor.input), int(tensor.constant), int(tensor.isFloat),
                   fmt::join(ownClasses.tensors[t].atoms, ","));
  }
  for (size_t o = 0; o < own.ops.size(); ++o) {
    const GraphOp &op = own.ops[o];
    fmt::format_to(
        out, "o{}:{}:{}:{}:{:.17g}:{:.17g}:{}{}{}{}{}{}:{}:", op.kernel,
        op.equation, int(op.phase), int(op.epilogue), op.flops, op.bytes,
        int(op.rounds), int(op.contraction), int(op.weightGradient),
        int(op.sumOfUses), int(op.pointwise), int(op.viewLike), op.gradientOf);
    for (const RuleFactor &factor : op.rule.factors)
      fmt::format_to(out, "{}/{},", factor.size, int(factor.kind));
    for (const OpSlot &slot : ownClasses.ops[o].slots)
      fmt::format_to(out, "s{}.{}.{},", slot.cls, slot.factor, int(slot.kind));
    for (const std::vector<int> &group : op.rule.linear)
      fmt::format_to(out, "l{},", fmt::join(group, "+"));
    auto lists = [&](const std::vector<int> &ids,
                     const std::vector<std::vector<int>> &slots) {
      for (size_t i = 0; i < ids.size(); ++i)
        fmt::format_to(out, "{}[{}]", ids[i], fmt::join(slots[i], ","));
    };
    lists(op.operands, ownClasses.ops[o].operands);
    text += "->";
    lists(op.results, ownClasses.ops[o].results);
    text += ";";
  }
}

Assignment LayoutPiece::assignment(
    const Assignment &base,
    const std::vector<std::vector<std::string>> &axes) const {
  Assignment out;
  out.mesh = base.mesh;
  for (size_t c = 0; c < axes.size(); ++c)
    if (!axes[c].empty())
      out.axes[int(c)] = axes[c];
  for (const auto &[root, own] : roots)
    if (base.samples.count(root))
      out.samples.insert(own);
  return out;
}

static double bytesKept(const StageProblem &problem) {
  std::set<int> kept;
  for (const StageOp &op : problem.ops)
    for (const std::vector<int> *of : {&op.kept, &op.keptForWeights})
      for (int id : *of) {
        while (problem.tensors[size_t(id)].viewOf >= 0)
          id = problem.tensors[size_t(id)].viewOf;
        kept.insert(id);
      }
  double bytes = 0;
  for (int id : kept)
    if (!problem.tensors[size_t(id)].available)
      bytes += problem.tensors[size_t(id)].bytes;
  return bytes;
}

// The part of all bytes that each of so many ranks sends around a ring.
static double shareSent(const Assignment &assignment,
                        const std::vector<std::string> &axes) {
  int64_t ranks = 1;
  for (const std::string &axis : axes)
    ranks *= assignment.sizeOf(axis);
  return double(ranks - 1) / double(ranks);
}

// Of the gradients that are summed over ranks once a step. Buckets share their
// latency with those of other pieces, so only what more bytes take counts; over
// some parts of tp as much less as they send less than all ranks of a stage.
static double reductionSeconds(const Graph &graph, const Outcome &outcome,
                               const Assignment &assignment,
                               const GradientReduction &reduce) {
  double seconds = 0;
  std::set<int> seen;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (!graph.ops[o].isUpdate() || graph.ops[o].operands.size() < 2)
      continue;
    for (int c : outcome.ops[o].operands[1].conversions) {
      const Conversion &conversion = outcome.conversions[size_t(c)];
      if (conversion.kind != ConversionKind::AllReduceSum ||
          !seen.insert(c).second)
        continue;
      const bool tensor = hasAxisOn(conversion.axes, kTensorAxis);
      const auto &over = tensor ? reduce.tensorSeconds : reduce.seconds;
      double bytes = graph.tensors[size_t(conversion.tensor)].elementBytes;
      for (int64_t size : conversion.to.localShape(assignment.axisMap()))
        bytes *= double(size);
      if (tensor)
        bytes *= shareSent(assignment, conversion.axes) /
                 shareSent(assignment, {kDataAxis, kTensorAxis});
      if (over)
        seconds += over(2 * bytes) - over(bytes);
    }
  }
  return seconds;
}

// Of sums that are open where the piece ends, a microbatch: whoever reads them
// closes them, or has open sums of his own.
static double openSeconds(const Graph &graph, const Outcome &outcome,
                          const Assignment &assignment,
                          const StageCostOptions &options) {
  std::vector<char> isRead(graph.tensors.size(), 0);
  for (const GraphOp &op : graph.ops)
    for (int id : op.operands)
      isRead[size_t(id)] = 1;
  const StageProblemBuilder prices(graph, assignment, outcome, options);
  double seconds = 0;
  for (const GraphOp &op : graph.ops)
    for (int id : op.results) {
      const layout::Layout &made = outcome.tensors[size_t(id)];
      Conversion sum;
      for (const std::string &axis : made.partial)
        if (isOn(axis, kDataAxis) || isOn(axis, kTensorAxis))
          sum.axes.push_back(axis);
      if (isRead[size_t(id)] || op.weightGradient || sum.axes.empty())
        continue;
      sum.kind = ConversionKind::AllReduceSum;
      sum.tensor = id;
      sum.bytes = 2 * shareSent(assignment, sum.axes) *
                  graph.tensors[size_t(id)].elementBytes;
      for (int64_t size : made.localShape(assignment.axisMap()))
        sum.bytes *= double(size);
      seconds += prices.collective(sum);
    }
  return seconds;
}

LayoutCost LayoutPiece::cost(const Assignment &assignment,
                             const StageCostOptions &options,
                             const GradientReduction &reduce) const {
  LayoutCost out;
  Result<Outcome> outcome = apply(own, ownClasses, assignment);
  if (!outcome.ok()) {
    out.feasible = false;
    return out;
  }
  const StageProblem problem =
      makeStageProblem(own, assignment, *outcome, options);
  for (const StageOp &op : problem.ops) {
    out.perMicrobatch += op.forward + op.backward + op.weight + op.prologue;
    out.perStep += op.update + op.clear;
  }
  for (const StageParameter &parameter : problem.parameters) {
    const int all = int(problem.ops.size());
    out.stay += parameter.bytes + parameter.gradientsOn(0, all) +
                parameter.stateBytes + parameter.copiesOn(0, all);
    out.perStep +=
        parameter.updateSeconds + parameter.normSeconds + parameter.ownSeconds;
  }
  out.perMicrobatch += openSeconds(own, *outcome, assignment, options);
  out.perStep += reductionSeconds(own, *outcome, assignment, reduce);
  out.inFlight = bytesKept(problem);
  return out;
}

} // namespace merak::planning
