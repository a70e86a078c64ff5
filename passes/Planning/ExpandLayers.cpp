// From the stage problem of a few layers to that of all (EqualLayers.h).
#include "passes/Planning/EqualLayers.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace merak::planning {

// Whatever is said of an op or a tensor of the few layers is moved: to a layer
// of the whole, with all that it names of its own layer and of others.
class EqualLayers::Expander {
public:
  Expander(const EqualLayers &layers, StageProblem problem)
      : of(layers), from(std::move(problem)),
        stageOfFew(layers.few.ops.size(), -1) {
    for (size_t i = 0; i < of.fewStageOps.size(); ++i)
      stageOfFew[size_t(of.fewStageOps[i])] = int(i);
    findPlaces();
    findParameters();
    // In the whole all have names of their own.
    for (StageOp &op : from.ops) {
      op.name = {};
      op.key = {};
    }
    for (StageTensor &tensor : from.tensors) {
      named.push_back(!tensor.name.empty());
      tensor.name = {};
    }
    for (StageParameter &parameter : from.parameters)
      parameter.name = {};
  }

  std::optional<StageProblem> run() {
    if (!from.joins.empty() || from.ops.size() != of.fewStageOps.size() ||
        !areOpsAlike() || !addTensors() || !addParameters() || !addTasks())
      return std::nullopt;
    addOps();
    addWeightSums();
    // Each with a neighbour that is like it.
    out.repeats = {of.firstOp + 2 * of.opsOfLayer, of.opsOfLayer,
                   of.layers() - 4};
    out.train = from.train;
    out.links = from.links;
    out.smallKernel = from.smallKernel;
    out.overlap = from.overlap;
    if (fails)
      return std::nullopt;
    return std::move(out);
  }

private:
  // ------------------------------------------------------------------ places

  void findPlaces() {
    for (int few : of.fewStageOps) {
      const int op = of.wholeOp[size_t(few)];
      const Place place = of.opPlace[size_t(op)];
      places.push_back(
          {place.layer < 0 ? -1 : of.fewLayer(place.layer), place.at, op});
    }
    for (int tensor : of.wholeTensor) {
      const Place place = of.tensorPlace[size_t(tensor)];
      tensorPlaces.push_back(
          {place.layer < 0 ? -1 : of.fewLayer(place.layer), place.at, tensor});
    }
  }
  void findParameters() {
    std::map<std::string, int> named;
    for (size_t p = 0; p < from.parameters.size(); ++p)
      named.emplace(from.parameters[p].name.str(), int(p));
    parameterOf.assign(of.few.tensors.size(), -1);
    for (size_t t = 0; t < of.few.tensors.size(); ++t)
      if (of.few.tensors[t].parameter)
        if (auto known = named.find(of.few.tensors[t].name);
            known != named.end())
          parameterOf[t] = known->second;
  }

  // Of a stage op or a tensor of the few: its layer of the few (-1: outside),
  // its number there, and that of the whole.
  struct FewPlace {
    int layer = -1, at = -1, same = -1;
  };
  int layerOfOp(int stageOp) const { return places[size_t(stageOp)].layer; }
  // From a layer of the few (-1: outside) to one of the whole.
  struct Move {
    int layer = -1, to = -1;
    int operator()(int other, const EqualLayers &of) const {
      return layer < 0 ? of.wholeLayer(other) : to + other - layer;
    }
  };
  Move moveTo(int wholeLayer) const {
    return wholeLayer < 0 ? Move{} : Move{of.fewLayer(wholeLayer), wholeLayer};
  }

  int moved(const FewPlace &place, const Move &move,
            const std::vector<std::vector<int>> &all) {
    if (place.layer < 0)
      return place.same;
    const int layer = move(place.layer, of);
    if (layer >= 0 && layer < of.layers() &&
        place.at < int(all[size_t(layer)].size()))
      return all[size_t(layer)][size_t(place.at)];
    fails = true;
    return place.same;
  }
  int movedTensor(int tensor, const Move &move) {
    return moved(tensorPlaces[size_t(tensor)], move, of.tensorAt);
  }
  int movedOp(int stageOp, const Move &move) {
    return of.stageOf[size_t(moved(places[size_t(stageOp)], move, of.opAt))];
  }

  // --------------------------------------------------------- ops and tensors

  StageOp movedOp(const StageOp &op, const Move &move) {
    StageOp to = op;
    for (std::vector<int> *ids :
         {&to.operands, &to.results, &to.kept, &to.keptForWeights})
      for (int &id : *ids)
        id = movedTensor(id, move);
    std::sort(to.kept.begin(), to.kept.end());
    std::sort(to.keptForWeights.begin(), to.keptForWeights.end());
    for (StageOp::Pending &gradient : to.pending) {
      gradient.from = movedOp(gradient.from, move);
      if (gradient.over >= 0)
        gradient.over = movedTensor(gradient.over, move);
    }
    return to;
  }

  // The layers that are beside such as are left out say the same of a layer in
  // the middle, whichever stands for it.
  bool areOpsAlike() {
    for (size_t i = 0; i < from.ops.size(); ++i) {
      if (layerOfOp(int(i)) != kFew / 2 - 1)
        continue;
      const int at =
          of.opPlace[size_t(of.wholeOp[size_t(of.fewStageOps[i])])].at;
      std::optional<StageOp> first;
      for (int layer = 1; layer + 1 < kFew; ++layer) {
        const int stage = fewStageOp(layer, at);
        StageOp op = movedOp(from.ops[size_t(stage)], {layer, kFew / 2});
        op.piece = -1;
        if (first && !(*first == op))
          return false;
        first = std::move(op);
      }
    }
    return !fails;
  }
  int fewStageOp(int layer, int at) const {
    return stageOfFew[size_t(
        of.fewOp[size_t(of.opAt[size_t(of.wholeLayer(layer))][size_t(at)])])];
  }

  void addOps() {
    out.ops.reserve(of.stageOps.size());
    for (int op : of.stageOps) {
      const Place place = of.opPlace[size_t(op)];
      const int few = place.layer < 0
                          ? stageOfFew[size_t(of.fewOp[size_t(op)])]
                          : fewStageOp(of.fewLayer(place.layer), place.at);
      out.ops.push_back(movedOp(from.ops[size_t(few)], moveTo(place.layer)));
      out.ops.back().name = of.opNames[size_t(op)];
      out.ops.back().key = of.keys[size_t(op)];
      out.ops.back().piece = of.whole.ops[size_t(op)].piece;
    }
  }

  int fewTensorAt(int layer, int at) const {
    return of.fewTensor[size_t(
        of.tensorAt[size_t(of.wholeLayer(layer))][size_t(at)])];
  }
  // The tensor of the few that stands for one of the whole.
  int fewTensorFor(size_t t) const {
    const Place place = of.tensorPlace[t];
    return place.layer < 0 ? of.fewTensor[t]
                           : fewTensorAt(of.fewLayer(place.layer), place.at);
  }
  StageTensor movedTensor(const StageTensor &tensor, const Move &move) {
    StageTensor to = tensor;
    if (to.viewOf >= 0)
      to.viewOf = movedTensor(to.viewOf, move);
    return to;
  }

  bool addTensors() {
    for (size_t at = 0; at < of.tensorAt[1].size(); ++at) {
      std::optional<StageTensor> first;
      for (int layer = 1; layer + 1 < kFew; ++layer) {
        StageTensor tensor =
            movedTensor(from.tensors[size_t(fewTensorAt(layer, int(at)))],
                        {layer, kFew / 2});
        if (first && !(*first == tensor))
          return false;
        first = std::move(tensor);
      }
    }
    out.tensors.reserve(of.whole.tensors.size());
    for (size_t t = 0; t < of.whole.tensors.size(); ++t) {
      const auto few = size_t(fewTensorFor(t));
      out.tensors.push_back(
          movedTensor(from.tensors[few], moveTo(of.tensorPlace[t].layer)));
      if (named[few])
        out.tensors.back().name = of.tensorNames[t];
    }
    return !fails;
  }

  // -------------------------------------------------------------- parameters

  StageParameter movedParameter(const StageParameter &parameter,
                                const Move &move) {
    StageParameter to = parameter;
    const auto moveAll = [&](std::vector<int> &ops) {
      for (int &op : ops) {
        // What many layers share, those left out share too.
        const int layer = layerOfOp(op);
        fails |= move.layer < 0 && layer > 0 && layer + 1 < kFew;
        op = movedOp(op, move);
      }
    };
    moveAll(to.users);
    moveAll(to.summands);
    for (StageParameter::Copy &copy : to.copies)
      moveAll(copy.users);
    return to;
  }

  const StageParameter *parameterAt(int fewTensor) const {
    const int known = parameterOf[size_t(fewTensor)];
    return known < 0 ? nullptr : &from.parameters[size_t(known)];
  }

  bool addParameters() {
    for (size_t at = 0; at < of.tensorAt[1].size(); ++at)
      if (!isParameterAlike(int(at)))
        return false;
    out.parameters.reserve(
        size_t(std::count_if(of.whole.tensors.begin(), of.whole.tensors.end(),
                             [](auto &tensor) { return tensor.parameter; })));
    for (size_t t = 0; t < of.whole.tensors.size(); ++t)
      if (of.whole.tensors[t].parameter)
        if (const StageParameter *few = parameterAt(fewTensorFor(t))) {
          out.parameters.push_back(
              movedParameter(*few, moveTo(of.tensorPlace[t].layer)));
          out.parameters.back().name = of.tensorNames[t];
        }
    return !fails;
  }

  // At that place in all layers in the middle.
  bool isParameterAlike(int at) {
    std::optional<StageParameter> first;
    for (int layer = 1; layer + 1 < kFew; ++layer) {
      const StageParameter *here = parameterAt(fewTensorAt(layer, at));
      if (!here && layer == 1)
        return true; // no parameter, or nobody's
      if (!here)
        return false;
      StageParameter to = movedParameter(*here, {layer, kFew / 2});
      if (first && !(*first == to))
        return false;
      first = std::move(to);
    }
    return true;
  }

  void addWeightSums() {
    for (auto [a, b] : from.weightSums) {
      const int layer = layerOfOp(a) >= 0 ? layerOfOp(a) : layerOfOp(b);
      if (layer < 0) {
        out.weightSums.emplace_back(movedOp(a, Move{}), movedOp(b, Move{}));
        continue;
      }
      for (int k = 0; k < of.layers(); ++k)
        if (of.fewLayer(k) == layer)
          out.weightSums.emplace_back(movedOp(a, moveTo(k)),
                                      movedOp(b, moveTo(k)));
    }
    std::sort(out.weightSums.begin(), out.weightSums.end());
    out.weightSums.erase(
        std::unique(out.weightSums.begin(), out.weightSums.end()),
        out.weightSums.end());
  }

  // ------------------------------------------------------------------- tasks

  // A run of an action's tasks in which those of the layers in the middle come
  // one after the other: four periods of so many tasks. Copies of the second
  // period stand for the layers that are left out. An action may have several:
  // gradients are made, and later reduced.
  struct Segment {
    int begin = 0, length = 0;
    int step = 1; // from the layer of a period to that of the next one
    int end() const { return begin + kPeriods * length; }
  };
  static constexpr int kPeriods = kFew - 2;

  const std::vector<SubmicrobatchTask> &tasks(int action) const {
    return from.submicrobatches[size_t(action)];
  }
  int layerOfTask(int action, int task) const {
    return layerOfOp(tasks(action)[size_t(task)].op);
  }

  bool findSegments(int action) {
    const int count = int(tasks(action).size());
    for (int i = 0; i < count; ++i) {
      const int layer = layerOfTask(action, i);
      if (layer <= 0 || layer == kFew - 1)
        continue;
      if (layer != 1 && layer != kPeriods)
        return false;
      Segment found{i, 0, layer == 1 ? 1 : -1};
      while (i + found.length < count &&
             layerOfTask(action, i + found.length) != layer + found.step)
        ++found.length;
      if (found.end() > count)
        return false;
      segments[size_t(action)].push_back(found);
      i = found.end() - 1;
    }
    return true;
  }

  // Where a task of the few is in the whole, if it is moved to that layer.
  int position(int action, int task, int wholeLayer) {
    const int layer = layerOfTask(action, task);
    int shift = 0;
    for (const Segment &segment : segments[size_t(action)]) {
      if (task < segment.begin)
        break;
      if (task < segment.end()) {
        const int copies = segment.step > 0
                               ? wholeLayer - layer
                               : layer + of.layersBetween() - wholeLayer;
        fails |= copies < 0 || copies > of.layersBetween();
        return task + shift + copies * segment.length;
      }
      shift += of.layersBetween() * segment.length;
    }
    fails |= layer >= 0 && wholeLayer != of.wholeLayer(layer);
    return task + shift;
  }

  SubmicrobatchTask movedTask(int action, int i, const Move &move) {
    SubmicrobatchTask to = tasks(action)[size_t(i)];
    to.op = movedOp(to.op, move);
    for (int &value : to.values)
      value = movedTensor(value, move);
    const auto moveAll = [&](int ofAction, std::vector<int> &all) {
      for (int &other : all) {
        const int layer = layerOfTask(ofAction, other);
        other = position(ofAction, other, layer < 0 ? -1 : move(layer, of));
      }
    };
    moveAll(action, to.needs);
    moveAll(1, to.backward);
    return to;
  }

  // The second period and the third one say the same of a layer.
  bool areAlike(int action, const Segment &segment) {
    for (int i = segment.begin + segment.length;
         i < segment.begin + 2 * segment.length; ++i) {
      const int layer = layerOfTask(action, i);
      if (layer < 0 ||
          layerOfTask(action, i + segment.length) != layer + segment.step ||
          !(movedTask(action, i, {layer, kFew / 2}) ==
            movedTask(action, i + segment.length,
                      {layer + segment.step, kFew / 2})))
        return false;
    }
    return !fails;
  }

  bool addTasks() {
    for (int action = 0; action < 3; ++action)
      if (!findSegments(action))
        return false;
    for (int action = 0; action < 3; ++action) {
      size_t count = tasks(action).size();
      for (const Segment &segment : segments[size_t(action)])
        count += size_t(segment.length) * size_t(of.layersBetween());
      out.submicrobatches[size_t(action)].reserve(count);
      int next = 0;
      for (const Segment &segment : segments[size_t(action)]) {
        if (!areAlike(action, segment))
          return false;
        addOutside(action, next, segment.begin);
        for (int copies = 0; copies <= of.layersBetween(); ++copies)
          addPeriods(action, segment, copies);
        next = segment.end();
      }
      addOutside(action, next, int(tasks(action).size()));
    }
    return !fails;
  }

  void addOutside(int action, int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const int layer = layerOfTask(action, i);
      add(action, i, layer < 0 ? Move{} : Move{layer, of.wholeLayer(layer)});
    }
  }

  // The first two without copies before them, each copy of the second one, and
  // the rest behind the last.
  void addPeriods(int action, const Segment &segment, int copies) {
    const bool last = copies == of.layersBetween();
    for (int period = copies == 0 ? 0 : 1; period < (last ? kPeriods : 2);
         ++period)
      for (int i = 0; i < segment.length; ++i) {
        const int task = segment.begin + period * segment.length + i;
        const int layer = layerOfTask(action, task);
        add(action, task,
            {layer, segment.step > 0 ? layer + copies
                                     : layer + of.layersBetween() - copies});
      }
  }

  void add(int action, int task, const Move &move) {
    out.submicrobatches[size_t(action)].push_back(
        movedTask(action, task, move));
  }

  const EqualLayers &of;
  StageProblem from;       // without names
  std::vector<char> named; // tensors of it that had one
  StageProblem out;
  std::vector<int> stageOfFew;                  // by op of the few, or -1
  std::vector<FewPlace> places, tensorPlaces;   // stage ops, tensors
  std::vector<int> parameterOf;                 // by tensor of the few, or -1
  std::array<std::vector<Segment>, 3> segments; // by action
  bool fails = false;
};

std::optional<StageProblem> EqualLayers::expand(StageProblem problem) const {
  return Expander(*this, std::move(problem)).run();
}

} // namespace merak::planning
