#include "passes/Planning/EqualLayers.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace merak::planning {

namespace {

// Numbers for ops by what they are, whatever they are called and fed by.
class Kinds {
public:
  int of(const Graph &graph, int index) {
    Kind kind{graph.ops[size_t(index)], {}};
    for (const std::vector<int> *ids : {&kind.op.operands, &kind.op.results})
      for (int id : *ids) {
        kind.tensors.push_back(graph.tensors[size_t(id)]);
        kind.tensors.back().name.clear();
      }
    const std::pair counts(kind.op.operands.size(), kind.op.results.size());
    kind.op.name.clear();
    kind.op.operands.clear();
    kind.op.results.clear();
    kind.op.gradientOf = kind.op.gradientOf < 0 ? -1 : 0;
    kind.op.piece = kind.op.piece < 0 ? -1 : 0;
    std::vector<std::pair<Kind, int>> &like =
        known[{kind.op.kernel, kind.op.flops, kind.op.bytes, counts}];
    for (const auto &[other, number] : like)
      if (other == kind)
        return number;
    like.emplace_back(std::move(kind), count);
    return count++;
  }

private:
  struct Kind {
    GraphOp op;
    std::vector<GraphTensor> tensors;
    bool operator==(const Kind &) const = default;
  };
  std::map<std::tuple<std::string, double, double, std::pair<size_t, size_t>>,
           std::vector<std::pair<Kind, int>>>
      known;
  int count = 0;
};

// Equal pieces one after the other.
struct Run {
  int begin = 0, period = 0, count = 0;
  int length() const { return period * count; }
};

// Distances between equal numbers and the next ones, the most frequent ones.
std::vector<int> periodsOf(const std::vector<int> &kinds) {
  constexpr size_t kMost = 16;
  std::map<int, int> last, times;
  for (size_t i = 0; i < kinds.size(); ++i) {
    auto [it, isNew] = last.try_emplace(kinds[i], int(i));
    if (!isNew) {
      ++times[int(i) - it->second];
      it->second = int(i);
    }
  }
  std::vector<std::pair<int, int>> sorted;
  for (auto [period, count] : times)
    sorted.emplace_back(-count, period);
  std::sort(sorted.begin(), sorted.end());
  sorted.resize(std::min(sorted.size(), kMost));
  std::vector<int> periods;
  for (auto [count, period] : sorted)
    periods.push_back(period);
  std::sort(periods.begin(), periods.end());
  return periods;
}

// The longest run; of equal ones that of the shortest pieces.
Run longestRun(const std::vector<int> &kinds) {
  Run best;
  for (int period : periodsOf(kinds)) {
    int begin = 0;
    for (int i = 0; i + period <= int(kinds.size()); ++i) {
      const bool goesOn = i + period < int(kinds.size()) &&
                          kinds[size_t(i)] == kinds[size_t(i + period)];
      if (goesOn)
        continue;
      const Run run{begin, period, (i - begin) / period + 1};
      if (run.count > 1 && run.length() > best.length())
        best = run;
      begin = i + 1;
    }
  }
  return best;
}

} // namespace

std::shared_ptr<const EqualLayers> EqualLayers::find(const Graph &graph,
                                                     const Classes &classes) {
  std::shared_ptr<EqualLayers> found(new EqualLayers(graph, classes));
  if (!found->findLayers() || !found->makeFew() || !found->alignClasses())
    return nullptr;
  return found;
}

bool EqualLayers::findLayers() {
  Kinds known;
  for (size_t i = 0; i < whole.ops.size(); ++i) {
    kinds.push_back(known.of(whole, int(i)));
    if (whole.ops[i].phase == Phase::Forward)
      stageOps.push_back(int(i));
  }
  std::vector<int> forward;
  for (int op : stageOps)
    forward.push_back(kinds[size_t(op)]);
  const Run run = longestRun(forward);
  if (run.count < kWorthWhile)
    return false;
  firstOp = run.begin;
  opsOfLayer = run.period;
  placeOps(run.begin, run.period, run.count);
  placeTensors();
  return areFedAlike();
}

// Gradients lie where the op lies whose gradients they are, updates where the
// gradients come from.
void EqualLayers::placeOps(int begin, int period, int count) {
  opPlace.resize(whole.ops.size());
  opAt.resize(size_t(count));
  for (int i = 0; i < period * count; ++i)
    opPlace[size_t(stageOps[size_t(begin + i)])].layer = i / period;
  std::vector<int> producer(whole.tensors.size(), -1);
  for (size_t i = 0; i < whole.ops.size(); ++i) {
    const GraphOp &op = whole.ops[i];
    Place &place = opPlace[i];
    if (op.phase == Phase::Backward && op.gradientOf >= 0)
      place.layer = opPlace[size_t(op.gradientOf)].layer;
    if (op.phase == Phase::Update) {
      std::set<int> of;
      for (int t : op.operands)
        if (producer[size_t(t)] >= 0)
          of.insert(opPlace[size_t(producer[size_t(t)])].layer);
      place.layer = of.size() == 1 ? *of.begin() : -1;
    }
    if (place.layer >= 0) {
      place.at = int(opAt[size_t(place.layer)].size());
      opAt[size_t(place.layer)].push_back(int(i));
    }
    for (int t : op.results)
      producer[size_t(t)] = int(i);
  }
}

// A parameter or a constant lies where all lie that read it.
void EqualLayers::placeTensors() {
  constexpr int kNobody = -2;
  std::vector<int> layer(whole.tensors.size(), kNobody);
  std::vector<char> made(whole.tensors.size(), 0);
  for (size_t i = 0; i < whole.ops.size(); ++i) {
    for (int t : whole.ops[i].operands)
      if (int &of = layer[size_t(t)]; !made[size_t(t)])
        of = of == kNobody || of == opPlace[i].layer ? opPlace[i].layer : -1;
    for (int t : whole.ops[i].results) {
      made[size_t(t)] = 1;
      layer[size_t(t)] = opPlace[i].layer;
    }
  }
  tensorPlace.resize(whole.tensors.size());
  tensorAt.resize(opAt.size());
  const auto add = [&](int t) {
    Place &place = tensorPlace[size_t(t)];
    if (place.at >= 0 || layer[size_t(t)] < 0)
      return;
    std::vector<int> &of = tensorAt[size_t(layer[size_t(t)])];
    place = {layer[size_t(t)], int(of.size())};
    of.push_back(t);
  };
  for (size_t i = 0; i < whole.ops.size(); ++i) {
    for (int t : whole.ops[i].operands)
      if (layer[size_t(t)] == opPlace[i].layer)
        add(t);
    for (int t : whole.ops[i].results)
      add(t);
  }
}

EqualLayers::Place EqualLayers::seenFrom(int layer, Place place) const {
  return place.layer < 0 ? place : Place{place.layer - layer, place.at};
}

// Whether all layers but the first and the last one have the same ops with the
// same operands, of their own, of their neighbours, or of nobody's.
bool EqualLayers::areFedAlike() const {
  constexpr int kOutside = -100;
  const auto sameFrom = [&](int k, const std::vector<int> &ids,
                            const std::vector<int> &first) {
    if (ids.size() != first.size())
      return false;
    for (size_t i = 0; i < ids.size(); ++i) {
      Place here = tensorPlace[size_t(ids[i])],
            there = tensorPlace[size_t(first[i])];
      if (here.layer < 0 || there.layer < 0) {
        if (ids[i] != first[i])
          return false;
        continue;
      }
      here = seenFrom(k, here);
      there = seenFrom(1, there);
      if (!(here == there) || std::abs(here.layer) > 1)
        return false;
    }
    return true;
  };
  const auto gradientOf = [&](int k, int op) {
    const int of = whole.ops[size_t(op)].gradientOf;
    const Place place = of < 0 ? Place{} : opPlace[size_t(of)];
    return place.layer < 0 ? Place{kOutside, of} : seenFrom(k, place);
  };
  for (int k = 1; k + 1 < layers(); ++k) {
    if (opAt[size_t(k)].size() != opAt[1].size() ||
        tensorAt[size_t(k)].size() != tensorAt[1].size())
      return false;
    for (size_t at = 0; at < opAt[1].size(); ++at) {
      const int op = opAt[size_t(k)][at], first = opAt[1][at];
      if (kinds[size_t(op)] != kinds[size_t(first)] ||
          !(gradientOf(k, op) == gradientOf(1, first)) ||
          !sameFrom(k, whole.ops[size_t(op)].operands,
                    whole.ops[size_t(first)].operands) ||
          !sameFrom(k, whole.ops[size_t(op)].results,
                    whole.ops[size_t(first)].results))
        return false;
    }
  }
  return true;
}

bool EqualLayers::makeFew() {
  fewOp.assign(whole.ops.size(), -1);
  fewTensor.assign(whole.tensors.size(), -1);
  for (size_t t = 0; t < whole.tensors.size(); ++t)
    if (isKept(tensorPlace[t].layer)) {
      fewTensor[t] = few.addTensor(whole.tensors[t]);
      wholeTensor.push_back(int(t));
    }
  for (size_t i = 0; i < whole.ops.size(); ++i)
    if (isKept(opPlace[i].layer) && !addFew(int(i)))
      return false;
  stageOf.assign(whole.ops.size(), -1);
  for (size_t i = 0; i < stageOps.size(); ++i)
    stageOf[size_t(stageOps[i])] = int(i);
  for (int op : stageOps)
    if (fewOp[size_t(op)] >= 0)
      fewStageOps.push_back(fewOp[size_t(op)]);
  for (const GraphOp &op : whole.ops)
    opNames.emplace_back(op.name);
  for (const GraphTensor &tensor : whole.tensors)
    tensorNames.emplace_back(tensor.name);
  for (const std::string &key : forwardNames(whole))
    keys.emplace_back(key);
  return few.check().ok();
}

// What the layers left out make for those behind (and before) them comes from
// the ones that are next to these now.
bool EqualLayers::addFew(int index) {
  GraphOp op = whole.ops[size_t(index)];
  const int layer = opPlace[size_t(index)].layer;
  const auto find = [&](Place place, int same,
                        const std::vector<std::vector<int>> &all) {
    if (place.layer < 0)
      return same;
    if (layer < 0)
      return isKept(place.layer) ? same : -1;
    const int of = fewLayer(layer) + place.layer - layer;
    if (of < 0 || of >= kFew)
      return -1;
    const std::vector<int> &there = all[size_t(wholeLayer(of))];
    return place.at < int(there.size()) ? there[size_t(place.at)] : -1;
  };
  for (std::vector<int> *ids : {&op.operands, &op.results})
    for (int &id : *ids) {
      const int there = find(tensorPlace[size_t(id)], id, tensorAt);
      if (there < 0)
        return false;
      id = fewTensor[size_t(there)];
    }
  if (op.gradientOf >= 0) {
    const int there = find(opPlace[size_t(op.gradientOf)], op.gradientOf, opAt);
    if (there < 0)
      return false;
    op.gradientOf = fewOp[size_t(there)];
  }
  fewOp[size_t(index)] = few.addOp(std::move(op));
  wholeOp.push_back(index);
  return true;
}

// Both graphs refine their factors alike.
bool EqualLayers::alignClasses() {
  fewClasses = unify(few);
  fewOfClass.resize(wholeClasses.classes.size());
  const auto add = [&](int cls, int of) {
    const ClassInfo &a = wholeClasses.classes[size_t(cls)],
                    &b = fewClasses.classes[size_t(of)];
    std::vector<int> &all = fewOfClass[size_t(cls)];
    if (std::find(all.begin(), all.end(), of) == all.end())
      all.push_back(of);
    return a.size == b.size && a.splittable == b.splittable;
  };
  for (size_t t = 0; t < wholeTensor.size(); ++t) {
    const TensorClasses &a = wholeClasses.tensors[size_t(wholeTensor[t])],
                        &b = fewClasses.tensors[t];
    if (a.dimBegin != b.dimBegin)
      return false;
    for (size_t i = 0; i < a.atoms.size(); ++i)
      if (!add(a.atoms[i], b.atoms[i]))
        return false;
  }
  for (size_t o = 0; o < wholeOp.size(); ++o) {
    const OpClasses &a = wholeClasses.ops[size_t(wholeOp[o])],
                    &b = fewClasses.ops[o];
    if (a.slots.size() != b.slots.size())
      return false;
    for (size_t i = 0; i < a.slots.size(); ++i)
      if (a.slots[i].factor != b.slots[i].factor ||
          a.slots[i].kind != b.slots[i].kind ||
          !add(a.slots[i].cls, b.slots[i].cls))
        return false;
  }
  return true;
}

std::vector<int> EqualLayers::tensorsOf(const std::vector<int> &ofWhole) const {
  std::vector<int> out;
  for (int t : ofWhole)
    if (fewTensor[size_t(t)] >= 0)
      out.push_back(fewTensor[size_t(t)]);
  return out;
}

std::optional<std::vector<int>>
EqualLayers::classesOf(const std::vector<int> &ofWhole) const {
  std::vector<char> chosen(wholeClasses.classes.size(), 0);
  std::set<int> out;
  for (int cls : ofWhole) {
    chosen[size_t(cls)] = 1;
    out.insert(fewOfClass[size_t(cls)].begin(), fewOfClass[size_t(cls)].end());
  }
  const auto isChosen = [&](int layer, size_t at, size_t atom) {
    const int t = tensorAt[size_t(layer)][at];
    return chosen[size_t(wholeClasses.tensors[size_t(t)].atoms[atom])];
  };
  for (int k = 1; k + 1 < layers(); ++k)
    for (size_t at = 0; at < tensorAt[1].size(); ++at) {
      const int t = tensorAt[1][at];
      for (size_t i = 0; i < wholeClasses.tensors[size_t(t)].atoms.size(); ++i)
        if (isChosen(k, at, i) != isChosen(1, at, i))
          return std::nullopt;
    }
  return std::vector<int>(out.begin(), out.end());
}

} // namespace merak::planning
