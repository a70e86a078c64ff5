#include "passes/Planning/Partition.h"

#include "passes/Planning/PartitionEngine.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::planning {

const char *str(ConversionKind kind) {
  switch (kind) {
  case ConversionKind::AllReduceSum:
    return "all_reduce";
  case ConversionKind::AllReduceMax:
    return "all_reduce_max";
  case ConversionKind::ReduceScatter:
    return "reduce_scatter";
  case ConversionKind::AllGather:
    return "all_gather";
  case ConversionKind::AllToAll:
    return "all_to_all";
  case ConversionKind::Slice:
    return "slice";
  case ConversionKind::Place:
    return "place";
  case ConversionKind::Accumulate:
    return "accumulate";
  }
  return "?";
}

bool isOfEach(const Graph &graph, const Conversion &conversion) {
  return conversion.phase == Phase::Backward && conversion.op >= 0 &&
         graph.ops[conversion.op].phase == Phase::Update;
}

bool isStacked(const Graph &graph, const Conversion &conversion) {
  return isOfEach(graph, conversion) &&
         conversion.kind != ConversionKind::ReduceScatter;
}

layout::AxisMap Assignment::axisMap() const {
  layout::AxisMap map;
  for (const AxisSize &axis : mesh)
    map[axis.name] = axis.size;
  return map;
}

int64_t Assignment::sizeOf(const std::string &axis) const {
  int64_t all = 1;
  for (const AxisSize &known : mesh)
    if (isOn(known.name, axis))
      all *= known.size;
  return all;
}

std::vector<std::string> Assignment::axesOn(const std::string &axis) const {
  std::vector<std::string> all;
  for (const AxisSize &known : mesh)
    if (isOn(known.name, axis))
      all.push_back(known.name);
  return all;
}

std::vector<std::string>
Assignment::inParts(const std::vector<std::string> &axes) const {
  std::vector<std::string> all;
  for (const std::string &axis : axes)
    for (const std::string &part : axesOn(axis))
      all.push_back(part);
  return all;
}

bool hasAxisOn(const std::vector<std::string> &axes, const std::string &axis) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const std::string &of) { return isOn(of, axis); });
}

bool Assignment::splits(int cls, const std::string &axis) const {
  auto known = axes.find(cls);
  return known != axes.end() && hasAxisOn(known->second, axis);
}

void Assignment::addAxis(const AxisSize &axis) {
  for (AxisSize &known : mesh)
    if (known.name == axis.name) {
      known.size = axis.size;
      return;
    }
  mesh.push_back(axis);
}

namespace {

// Distributes axes over the atoms of a dimension, major to minor; false if
// some axis finds no factor that it divides.
bool distribute(const Classes &classes, const std::vector<int> &atoms,
                const std::vector<AxisSize> &axes,
                std::map<int, std::vector<std::string>> &out) {
  size_t i = 0;
  int64_t left = atoms.empty() ? 1 : classes.classes[atoms[0]].size;
  for (const AxisSize &axis : axes) {
    if (axis.size == 1)
      continue;
    while (i < atoms.size() &&
           (!classes.classes[atoms[i]].splittable || left % axis.size != 0)) {
      ++i;
      left = i < atoms.size() ? classes.classes[atoms[i]].size : 1;
    }
    if (i == atoms.size())
      return false;
    out[atoms[i]].push_back(axis.name);
    left /= axis.size;
  }
  return true;
}

std::string axesStr(const std::vector<AxisSize> &axes) {
  std::string text;
  for (const AxisSize &axis : axes)
    if (axis.size > 1)
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", axis.name,
                          axis.size);
  return text;
}

} // namespace

Status assignBatch(const Graph &graph, const Classes &classes,
                   const std::vector<int> &batched,
                   const std::vector<AxisSize> &axes, Assignment &assignment) {
  Status status;
  for (const AxisSize &axis : axes)
    assignment.addAxis(axis);
  for (int id : batched) {
    const GraphTensor &tensor = graph.tensors[id];
    if (tensor.shape.empty()) {
      status.merge(Status::error(fmt::format(
          "'{}' is a scalar, which has no batch dimension", tensor.name)));
      continue;
    }
    const TensorClasses &all = classes.tensors[id];
    std::vector<int> atoms(all.atoms.begin(),
                           all.atoms.begin() + all.dimBegin[1]);
    for (int cls : atoms)
      assignment.samples.insert(classes.classes[cls].root);
    bool known = false;
    for (int cls : atoms)
      known |= assignment.axes.count(cls) > 0;
    if (known || axesStr(axes).empty())
      continue;
    std::map<int, std::vector<std::string>> axesOf;
    bool fits = distribute(classes, atoms, axes, axesOf);
    if (!fits) {
      axesOf.clear();
      fits = distribute(classes, atoms, {axes.rbegin(), axes.rend()}, axesOf);
    }
    if (fits) {
      assignment.axes.merge(axesOf);
      continue;
    }
    std::string message = fmt::format(
        "the batch of '{}', {}, cannot be split over {}", tensor.name,
        atoms.size() > 1
            ? fmt::format("{} = {}", tensor.shape[0], classes.dimStr(id, 0))
            : fmt::format("{}", tensor.shape[0]),
        axesStr(axes));
    for (int cls : atoms)
      if (!classes.classes[cls].reason.empty()) {
        message += ": " + classes.classes[cls].reason;
        break;
      } else if (!classes.classes[cls].refinedBy.empty()) {
        message += fmt::format(": op '{}' takes it apart",
                               classes.classes[cls].refinedBy);
        break;
      }
    status.merge(Status::error(message));
  }
  return status;
}

std::string shapeStr(const GraphTensor &tensor) {
  return fmt::format("{}", fmt::join(tensor.shape, "x"));
}

std::string readerOf(const Graph &graph, int tensor) {
  for (const GraphOp &op : graph.ops)
    if (op.phase == Phase::Forward &&
        std::find(op.operands.begin(), op.operands.end(), tensor) !=
            op.operands.end())
      return op.name;
  return "nothing";
}

// An input of another kind may have a first dimension as large as the batch by
// chance: what most of the inputs have there is the batch.
static int batchClass(const Classes &classes, const std::vector<int> &batched) {
  std::map<int, int> votes;
  int best = -1;
  for (int id : batched)
    if (const TensorClasses &all = classes.tensors[id];
        all.dimBegin.size() > 1 && all.dimBegin[1] > 0)
      ++votes[all.atoms[0]];
  for (int id : batched)
    if (const TensorClasses &all = classes.tensors[id];
        all.dimBegin.size() > 1 && all.dimBegin[1] > 0)
      if (best < 0 || votes[all.atoms[0]] > votes[best])
        best = all.atoms[0];
  return best;
}

Status checkRepeated(const Graph &graph, const Classes &classes,
                     const std::vector<int> &batched,
                     const std::vector<Repeated> &repeated) {
  Status status;
  const int batch = batchClass(classes, batched);
  for (const Repeated &repeat : repeated) {
    const GraphTensor &tensor = graph.tensors[repeat.tensor];
    const TensorClasses &of = classes.tensors[repeat.tensor];
    auto end = of.atoms.begin() + of.dimBegin[repeat.dim + 1];
    if (std::find(of.atoms.begin() + of.dimBegin[repeat.dim], end, batch) ==
        end)
      continue;
    status.merge(Status::error(fmt::format(
        "initializer '{}' of shape {}, read by node '{}', has the batch in "
        "dimension {} and the same values for all {} samples: the exporter "
        "expanded it, and each sample would train a copy of its own; export "
        "with optimize=False or with a dynamic batch, or freeze it "
        "(--freeze={})",
        tensor.name, shapeStr(tensor), readerOf(graph, repeat.tensor),
        repeat.dim, tensor.shape[repeat.dim], tensor.name)));
  }
  return status;
}

namespace {

// Turns a recorded run into layouts and conversions.
class OutcomeBuilder {
public:
  OutcomeBuilder(const Graph &graph, const Classes &classes,
                 PartitionEngine &engine)
      : graph(graph), classes(classes), engine(engine) {}

  Outcome build() {
    conversionOf.resize(graph.tensors.size());
    out.tensors.reserve(graph.tensors.size());
    out.ops.reserve(graph.ops.size());
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const auto &variants = engine.tensors[t].variants;
      out.tensors.push_back(
          layoutOf(int(t), variants[0].masks, variants[0].partial));
      conversionOf[t].assign(variants.size(), -1);
      noteAccumulation(int(t));
    }
    for (size_t i = 0; i < graph.ops.size(); ++i)
      buildOp(int(i));
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].output)
        out.outputs.push_back(
            {int(t), chainTo(int(t), engine.outputVariant[t])});
    out.joins = engine.joins;
    return std::move(out);
  }

  // `places`: for each atom its dimension and factor in the layout.
  layout::Layout layoutOf(int tensor, const std::vector<AxisMask> &masks,
                          AxisMask partial,
                          std::vector<std::pair<int, int>> *places = nullptr) {
    layout::Layout layout;
    const TensorClasses &atoms = classes.tensors[tensor];
    layout.dims.reserve(atoms.dimBegin.size());
    for (size_t d = 0; d + 1 < atoms.dimBegin.size(); ++d) {
      layout::DimLayout &dim = layout.dims.emplace_back();
      dim.factors.reserve(size_t(atoms.dimBegin[d + 1] - atoms.dimBegin[d]));
      for (int i = atoms.dimBegin[d]; i < atoms.dimBegin[d + 1]; ++i) {
        int64_t size = classes.classes[atoms.atoms[i]].size;
        // Neighbours that are not split are one factor.
        if (masks[i] == 0 && !dim.factors.empty() &&
            dim.factors.back().axes.empty()) {
          dim.factors.back().size *= size;
        } else {
          layout::Factor &factor = dim.factors.emplace_back();
          factor.size = size;
          if (masks[i] != 0)
            for (int axis : engine.orderOf(atoms.atoms[i]))
              if (masks[i] >> axis & 1)
                factor.axes.push_back(engine.axes()[axis].name);
        }
        if (places)
          places->push_back({int(d), int(dim.factors.size()) - 1});
      }
    }
    layout.partial = names(partial);
    return layout;
  }

private:
  std::vector<std::string> names(AxisMask mask) const {
    std::vector<std::string> out;
    for (int a = 0; mask != 0 && a < engine.axisCount(); ++a)
      if (mask >> a & 1)
        out.push_back(engine.axes()[a].name);
    return out;
  }

  void noteAccumulation(int tensor) {
    bool step = false, prologue = false;
    for (const auto &variant : engine.tensors[tensor].variants)
      if (variant.kind == ConversionKind::Accumulate)
        (variant.prologue ? prologue : step) = true;
    if (step)
      out.accumulated.push_back(tensor);
    if (prologue)
      out.prologueValues.push_back(tensor);
  }

  // Conversions from the stored layout to a variant, in order.
  std::vector<int> chainTo(int tensor, int variant) {
    std::vector<int> chain;
    for (; variant > 0;
         variant = engine.tensors[tensor].variants[variant].parent)
      chain.insert(chain.begin(), conversion(tensor, variant));
    return chain;
  }

  int conversion(int tensor, int index) {
    int &known = conversionOf[tensor][index];
    if (known >= 0)
      return known;
    const auto &variants = engine.tensors[tensor].variants;
    const auto &to = variants[index];
    const auto &from = variants[to.parent];
    Conversion c;
    c.kind = to.kind;
    c.tensor = tensor;
    c.op = to.op;
    c.axes = names(to.axes);
    std::vector<std::pair<int, int>> fromPlaces, toPlaces;
    c.from = layoutOf(tensor, from.masks, from.partial, &fromPlaces);
    c.to = layoutOf(tensor, to.masks, to.partial, &toPlaces);
    if (to.atom >= 0) {
      bool byTarget = to.kind == ConversionKind::Slice ||
                      to.kind == ConversionKind::ReduceScatter;
      std::tie(c.dim, c.factor) = (byTarget ? toPlaces : fromPlaces)[to.atom];
    }
    if (to.toAtom >= 0)
      std::tie(c.toDim, c.toFactor) = toPlaces[to.toAtom];
    c.bytes = to.bytes;
    c.times = to.times;
    c.life = to.life;
    c.phase = to.phase;
    c.prologue = to.prologue;
    c.joined = to.joined;
    known = int(out.conversions.size());
    out.conversions.push_back(std::move(c));
    return known;
  }

  // A conversion of a result right after its op.
  int reduceResult(int tensor, int op, ConversionKind kind, AxisMask axes) {
    Conversion c;
    c.kind = kind;
    c.tensor = tensor;
    c.op = op;
    c.axes = names(axes);
    const auto &stored = engine.tensors[tensor].variants[0];
    c.from = layoutOf(tensor, stored.masks, stored.partial | axes);
    c.to = layoutOf(tensor, stored.masks, stored.partial);
    c.bytes = engine.bytesAfterOp(tensor, axes);
    c.phase = graph.ops[op].phase;
    c.times = c.phase == Phase::Update ? 1 : engine.microbatchCount();
    out.conversions.push_back(std::move(c));
    return int(out.conversions.size()) - 1;
  }

  void buildOp(int index) {
    const GraphOp &op = graph.ops[index];
    const PartitionEngine::OpState &state = engine.ops[index];
    OpOutcome outcome;
    outcome.decompose = state.decompose;
    outcome.prologue = state.prologue;
    outcome.late = state.late;
    outcome.join = state.join;
    outcome.afterJoin = state.afterJoin;
    outcome.localFlops = state.localFlops;
    outcome.operands.reserve(op.operands.size());
    for (size_t i = 0; i < op.operands.size(); ++i)
      outcome.operands.push_back(
          {chainTo(op.operands[i], state.operandVariant[i])});
    outcome.produced.reserve(op.results.size());
    outcome.after.reserve(op.results.size());
    for (size_t r = 0; r < op.results.size(); ++r) {
      int id = op.results[r];
      const auto &stored = engine.tensors[id].variants[0];
      outcome.produced.push_back(
          state.maxAxes[r] == 0
              ? out.tensors[size_t(id)]
              : layoutOf(id, stored.masks, stored.partial | state.maxAxes[r]));
      std::vector<int> after;
      if (state.maxAxes[r])
        after.push_back(reduceResult(id, index, ConversionKind::AllReduceMax,
                                     state.maxAxes[r]));
      if (state.expected[r].first)
        for (int round = 0; round < state.expected[r].second; ++round)
          after.push_back(reduceResult(id, index, ConversionKind::AllReduceSum,
                                       state.expected[r].first));
      outcome.after.push_back(std::move(after));
    }
    out.ops.push_back(std::move(outcome));
  }

  const Graph &graph;
  const Classes &classes;
  PartitionEngine &engine;
  std::vector<std::vector<int>> conversionOf; // per tensor and variant
  Outcome out;
};

} // namespace

Result<Outcome> apply(const Graph &graph, const Classes &classes,
                      const Assignment &assignment) {
  PartitionEngine engine(graph, classes);
  engine.run(assignment, /*wantErrors=*/true);
  if (!engine.status.ok())
    return engine.status;
  return OutcomeBuilder(graph, classes, engine).build();
}

std::vector<int> opsToDecompose(const Graph &graph, const Classes &classes,
                                const Assignment &assignment) {
  PartitionEngine engine(graph, classes);
  engine.run(assignment, /*wantErrors=*/true);
  std::vector<int> ops;
  for (size_t i = 0; i < engine.ops.size(); ++i)
    if (engine.ops[i].decompose)
      ops.push_back(int(i));
  return ops;
}

layout::Layout canonicalLayout(const Graph &graph, const Classes &classes,
                               int tensor, const Assignment &assignment) {
  PartitionEngine engine(graph, classes);
  engine.setAssignment(assignment);
  return OutcomeBuilder(graph, classes, engine)
      .layoutOf(tensor, engine.canonicalMasks(tensor), 0);
}

PartitionCost costOf(const Graph &graph, const Classes &classes,
                     const Assignment &assignment) {
  PartitionEngine engine(graph, classes);
  engine.run(assignment, /*wantErrors=*/false);
  return engine.cost;
}

} // namespace merak::planning
