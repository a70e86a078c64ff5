#include "passes/Planning/SequenceSeams.h"

#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

namespace merak::planning {

namespace {

bool mentions(const layout::Layout &layout, const std::string &axis) {
  for (const layout::DimLayout &dim : layout.dims)
    for (const layout::Factor &factor : dim.factors)
      if (hasAxisOn(factor.axes, axis))
        return true;
  return hasAxisOn(layout.partial, axis);
}

class Finder {
public:
  Finder(const Graph &graph, const Classes &classes,
         const std::vector<int> &batched, const Assignment &base,
         const Outcome &outcome)
      : graph(graph), classes(classes), base(base), outcome(outcome),
        varies(graph.tensors.size(), 0), producer(graph.tensors.size(), -1) {
    for (int id : batched)
      if (const TensorClasses &of = classes.tensors[size_t(id)];
          of.dimBegin.size() > 1)
        samples.insert(of.atoms.begin(), of.atoms.begin() + of.dimBegin[1]);
  }

  Result<SequenceSeams> run() {
    findVarying();
    findDivided();
    for (size_t o = 0; o < graph.ops.size(); ++o)
      if (graph.ops[o].phase == Phase::Forward)
        for (size_t i = 0; i < graph.ops[o].operands.size(); ++i)
          addUse(int(o), int(i));
    MERAK_RETURN_IF_ERROR(chooseTokens());
    return seams;
  }

private:
  // Values that ops make of inputs: weights have no tokens.
  void findVarying() {
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      varies[t] = graph.tensors[t].input;
    for (const GraphOp &op : graph.ops) {
      bool any = false;
      for (int id : op.operands)
        any |= bool(varies[size_t(id)]);
      for (int id : op.results)
        varies[size_t(id)] = any;
    }
  }

  void findDivided() {
    divided.assign(graph.ops.size(), 0);
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const std::vector<OperandUse> &uses = outcome.ops[o].operands;
      for (size_t i = 0; i < uses.size(); ++i)
        divided[o] |=
            mentions(operandLayout(outcome, uses[i], graph.ops[o].operands[i]),
                     kTensorAxis);
      for (const layout::Layout &made : outcome.ops[o].produced)
        divided[o] |= mentions(made, kTensorAxis);
      for (int id : graph.ops[o].results)
        producer[size_t(id)] = int(o);
    }
  }

  bool sumsOverTensor(const std::vector<int> &conversions) const {
    return std::any_of(conversions.begin(), conversions.end(), [&](int c) {
      const Conversion &of = outcome.conversions[size_t(c)];
      return of.kind == ConversionKind::AllReduceSum &&
             hasAxisOn(of.axes, kTensorAxis);
    });
  }

  // Between an op that tp divides and one that it does not.
  void addUse(int op, int operand) {
    const int id = graph.ops[size_t(op)].operands[size_t(operand)];
    const int maker = producer[size_t(id)];
    if (maker < 0 || !varies[size_t(id)] ||
        divided[size_t(maker)] == divided[size_t(op)])
      return;
    if (divided[size_t(op)]) {
      seams.entries.push_back({op, operand});
      return;
    }
    seams.exits.push_back({op, operand});
    const OpOutcome &from = outcome.ops[size_t(maker)];
    bool sums = sumsOverTensor(
        outcome.ops[size_t(op)].operands[size_t(operand)].conversions);
    // Ops that are to be decomposed sum their own results.
    for (const std::vector<int> &after : from.after)
      sums |= sumsOverTensor(after);
    if (sums)
      summed.push_back({op, operand});
  }

  const std::vector<int> &atomsOf(const TensorUse &use) const {
    return classes
        .tensors[size_t(
            graph.ops[size_t(use.op)].operands[size_t(use.operand)])]
        .atoms;
  }

  // The class that most of the bytes that are summed have.
  Status chooseTokens() {
    if (summed.empty())
      return Status::error(
          "sequence parallelism splits tokens between sums over "
          "tp, and nothing is summed over tp");
    std::map<int, double> bytes;
    const int64_t tp = base.sizeOf(kTensorAxis);
    for (const TensorUse &use : summed)
      for (int cls : std::set<int>(atomsOf(use).begin(), atomsOf(use).end())) {
        const ClassInfo &info = classes.classes[size_t(cls)];
        if (info.splittable && info.size % tp == 0 && !base.axes.count(cls) &&
            !samples.count(cls))
          bytes[cls] += double(
              graph
                  .tensors[size_t(
                      graph.ops[size_t(use.op)].operands[size_t(use.operand)])]
                  .bytes());
      }
    for (const auto &[cls, of] : bytes)
      if (!isContracted(graph, classes, cls) &&
          (seams.tokens < 0 || of > bytes.at(seams.tokens)))
        seams.tokens = cls;
    return seams.tokens >= 0
               ? Status()
               : Status::error(fmt::format(
                     "sequence parallelism finds no dimension of tokens that "
                     "tp={} divides in what is summed over tp",
                     tp));
  }

  const Graph &graph;
  const Classes &classes;
  const Assignment &base;
  const Outcome &outcome;
  std::vector<char> varies;  // by tensor
  std::vector<char> divided; // by op
  std::vector<int> producer; // by tensor
  std::vector<TensorUse> summed;
  std::set<int> samples; // classes
  SequenceSeams seams;
};

} // namespace

Result<SequenceSeams> sequenceSeams(const Graph &graph, const Classes &classes,
                                    const std::vector<int> &batched,
                                    const Assignment &base) {
  Result<Outcome> outcome = apply(graph, classes, base);
  if (!outcome.ok())
    return outcome.status();
  return Finder(graph, classes, batched, base, *outcome).run();
}

} // namespace merak::planning
