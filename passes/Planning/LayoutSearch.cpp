#include "passes/Planning/LayoutSearch.h"

#include "passes/Planning/FrontierGraph.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <set>
#include <unordered_map>

namespace merak::planning {

namespace {

// Of a weight with several dimensions that a rank could have a part of, so many
// are tried.
constexpr size_t kAlternatives = 3;
// Microseconds are too coarse for a norm, and sums of picoseconds still fit.
constexpr double kTicksPerSecond = 1e12;

using Axes = std::vector<std::string>;
// Of one region: by class of the whole graph.
using Config = std::map<int, Axes>;

// Prime factors, ascending.
std::vector<int64_t> factorsOf(int64_t size) {
  std::vector<int64_t> factors;
  for (int64_t factor = 2; size > 1; ++factor)
    for (; size % factor == 0; size /= factor)
      factors.push_back(factor);
  return factors;
}

// tp of composite size in parts, as fine as they get.
Assignment inParts(const Assignment &base) {
  Assignment out = base;
  out.mesh.clear();
  for (const AxisSize &axis : base.mesh) {
    const std::vector<int64_t> parts = axis.name == kTensorAxis
                                           ? factorsOf(axis.size)
                                           : std::vector<int64_t>();
    if (parts.size() < 2)
      out.mesh.push_back(axis);
    else
      for (size_t part = 0; part < parts.size(); ++part)
        out.mesh.push_back({partOf(axis.name, part), parts[part]});
  }
  return out;
}

class Searcher {
public:
  Searcher(const LayoutModel &model, const Assignment &whole,
           const LayoutSearchOptions &options)
      : model(model), graph(model.graph()),
        base(options.parts ? inParts(whole) : whole),
        hasParts(base.mesh.size() > whole.mesh.size()), options(options),
        algebra({options.threads, 0}) {}

  Result<LayoutFrontier> run() {
    MERAK_RETURN_IF_ERROR(build());
    return solveAll();
  }

  Result<std::vector<FoundLayout>> every(int64_t most) {
    MERAK_RETURN_IF_ERROR(build());
    int64_t count = 1;
    for (const std::vector<Config> &of : configs)
      count *= int64_t(of.size());
    if (count > most)
      return Status::error(fmt::format("{} combinations", count));
    std::vector<FoundLayout> all;
    for (int64_t n = 0; n < count; ++n) {
      std::vector<int> chosen;
      int64_t rest = n;
      for (const std::vector<Config> &of : configs) {
        chosen.push_back(int(rest % int64_t(of.size())));
        rest /= int64_t(of.size());
      }
      Result<FoundLayout> layout = layoutOf(chosen);
      if (!layout.ok())
        return layout.status();
      const Cost cost = project(costOf(chosen), projection());
      layout->bytes = double(cost.bytes);
      layout->seconds = double(cost.nanoseconds) / kTicksPerSecond;
      all.push_back(std::move(*layout));
    }
    return all;
  }

private:
  Status build() {
    for (size_t r = 0; r < model.nodes().size(); ++r)
      addNode(int(r));
    if (options.conversions)
      for (const LayoutModel::Edge &edge : model.edges())
        addEdge(edge);
    return {};
  }

  const LayoutRegions &regions() const { return model.regions(); }
  const Classes &classes() const { return model.classes(); }
  const ClassInfo &info(int cls) const {
    return classes().classes[size_t(cls)];
  }
  bool isSample(int cls) const { return base.samples.count(info(cls).root); }

  // ---------------------------------------------------------- configurations

  bool divides(int cls, const Axes &axes) const {
    int64_t ways = 1;
    for (const std::string &axis : axes)
      ways *= base.sizeOf(axis);
    return info(cls).splittable && info(cls).size % ways == 0;
  }

  // A class of each weight of a region's products and lookups, the same in all:
  // what the values have not, what is summed, what both have.
  enum class Role { Own, Summed, Both };
  std::set<std::set<int>> weightSets(int region) const {
    std::set<std::set<int>> sets;
    for (Role role : {Role::Own, Role::Summed, Role::Both})
      for (size_t turn = 0; turn < kAlternatives; ++turn) {
        std::set<int> chosen;
        for (int op : model.nodes()[size_t(region)].ops)
          if (graph.ops[size_t(op)].phase == Phase::Forward)
            choose(op, role, turn, chosen);
        if (!chosen.empty())
          sets.insert(std::move(chosen));
      }
    return sets;
  }

  void choose(int index, Role role, size_t turn, std::set<int> &chosen) const {
    const GraphOp &op = graph.ops[size_t(index)];
    if (!op.contraction && !op.looksUp)
      return;
    const OpClasses &of = classes().ops[size_t(index)];
    std::set<int> values;
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (!regions().weights[size_t(op.operands[i])])
        for (int slot : of.operands[i])
          values.insert(slot);
    size_t seen = 0;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!regions().weights[size_t(op.operands[i])])
        continue;
      for (int slot : of.operands[i]) {
        if (slot < 0 || roleOf(of, slot, values) != role ||
            !canSplit(of.slots[size_t(slot)].cls))
          continue;
        if (seen++ == turn)
          chosen.insert(of.slots[size_t(slot)].cls);
      }
    }
  }

  Role roleOf(const OpClasses &op, int slot,
              const std::set<int> &values) const {
    const bool both = values.count(slot) > 0;
    const FactorKind kind = op.slots[size_t(slot)].kind;
    return !both                          ? Role::Own
           : kind == FactorKind::Parallel ? Role::Both
                                          : Role::Summed;
  }

  bool canSplit(int cls) const {
    return !isSample(cls) &&
           ((dp > 1 && divides(cls, base.axesOn(kDataAxis))) ||
            (tp > 1 && divides(cls, {tensor.front()})));
  }

  std::vector<int> tokensOf(int region) const {
    std::vector<int> found;
    for (int cls : model.nodes()[size_t(region)].classes)
      if (regions().ofTokens[size_t(info(cls).root)] && !isSample(cls) &&
          divides(cls, {tensor.front()}))
        found.push_back(cls);
    return found;
  }

  // Roots of samples that are divided: those of the batch's axes, without any
  // (one replica, one microbatch) the first that a part of tp divides.
  std::set<int> dividedSamples() const {
    std::set<int> found;
    for (int root : base.samples)
      if (auto known = base.axes.find(root);
          known != base.axes.end() && !known->second.empty())
        found.insert(root);
    for (int root : base.samples)
      if (found.empty() && !tensor.empty() && divides(root, {tensor.front()}))
        found.insert(root);
    return found;
  }

  // What samples have in a region: `data`: the axes of the batch; behind them
  // the `others`.
  bool addSamples(int region, bool data, const Axes &others,
                  Config &config) const {
    bool any = false;
    for (int cls : model.nodes()[size_t(region)].classes) {
      if (!isSample(cls) || !divided.count(info(cls).root))
        continue;
      Axes axes;
      if (auto known = base.axes.find(info(cls).root); known != base.axes.end())
        for (const std::string &axis : known->second)
          if (data || axis == kMicrobatchAxis)
            axes.push_back(axis);
      axes.insert(axes.end(), others.begin(), others.end());
      if (!divides(cls, axes))
        return false;
      any = true;
      if (!axes.empty())
        config[cls] = std::move(axes);
    }
    return any || others.empty();
  }

  bool append(const std::set<int> &chosen, const Axes &axes,
              Config &config) const {
    for (int cls : chosen) {
      Axes &of = config[cls];
      of.insert(of.end(), axes.begin(), axes.end());
      if (!divides(cls, config[cls]))
        return false;
    }
    return true;
  }

  std::map<int, std::vector<std::pair<int, int>>> twinsByRegion() const {
    std::map<int, std::vector<std::pair<int, int>>> found;
    for (const auto &[cls, forward] : gradientTwins(graph, model.classes()))
      found[regions().ofClass[size_t(cls)]].emplace_back(cls, forward);
    return found;
  }

  // Of gradients alone: as in the forward pass.
  void follow(int region, Config &config) const {
    const auto ofRegion = twins.find(region);
    if (ofRegion == twins.end())
      return;
    for (const auto &[cls, forward] : ofRegion->second) {
      if (auto known = config.find(forward); known != config.end())
        config[cls] = known->second;
      else
        config.erase(cls);
    }
  }

  // Of one region; the first one has one layout everywhere, and samples alone.
  std::vector<Config> configsOf(int region) const {
    std::vector<Config> all;
    auto add = [&](bool ok, Config config) {
      if (ok && std::find(all.begin(), all.end(), config) == all.end())
        all.push_back(std::move(config));
    };
    const std::set<std::set<int>> sets = weightSets(region);
    const std::vector<std::set<int>> setsOver(sets.begin(), sets.end());
    std::vector<const std::set<int> *> overData{nullptr};
    if (dp > 1 && !regions().isFree[size_t(region)])
      for (const std::set<int> &set : sets)
        overData.push_back(&set);
    std::vector<std::set<int>> tokens;
    for (int cls : tokensOf(region))
      tokens.push_back({cls});
    for (const std::set<int> *data : overData) {
      auto make = [&](const std::set<int> &split, const Axes &over,
                      const Axes &samples) {
        Config config;
        bool ok = addSamples(region, !data, samples, config);
        ok = ok && (!data || append(*data, base.axesOn(kDataAxis), config));
        ok = ok && append(split, over, config);
        follow(region, config);
        add(ok, std::move(config));
      };
      make({}, {}, {});
      if (tp <= 1 || regions().isFree[size_t(region)])
        continue;
      for (const std::vector<std::set<int>> &of : {setsOver, tokens})
        for (const std::set<int> &split : of)
          make(split, tensor, {});
      make({}, {}, tensor);
      // The first parts of tp: on the ranks of the others are copies, or they
      // share the samples.
      for (size_t n = 1; n < tensor.size() && !data; ++n) {
        const Axes first(tensor.begin(), tensor.begin() + long(n)),
            rest(tensor.begin() + long(n), tensor.end());
        for (const std::vector<std::set<int>> &of : {setsOver, tokens})
          for (const std::set<int> &split : of)
            make(split, first, {});
        for (const std::set<int> &split : setsOver)
          make(split, first, rest);
      }
    }
    return all;
  }

  // ------------------------------------------------------------------ prices

  // Lists of axes by number, so that keys are short.
  uint8_t numberOf(const Axes &axes) {
    auto [it, isNew] = axesNumbers.try_emplace(axes, uint8_t(lists.size()));
    if (isNew)
      lists.push_back(axes);
    return it->second;
  }

  // What the classes of a piece have of a configuration; kOther: nothing.
  using Side = std::string;
  static constexpr char kOther = char(255);
  Side sideOf(const LayoutModel::PieceUse &use, const Config &config) {
    Side side;
    for (int cls : use.classes) {
      auto known = config.find(cls);
      const bool own = regions().ofClass[size_t(cls)] == regionOf(config);
      side += known != config.end() ? char(numberOf(known->second))
              : own                 ? char(numberOf({}))
                                    : kOther;
    }
    return side;
  }
  int regionOf(const Config &config) const {
    return config.empty() ? -1
                          : regions().ofClass[size_t(config.begin()->first)];
  }

  const LayoutCost &price(const LayoutModel::PieceUse &use, const Side &a,
                          const Side &b) {
    std::string key = std::to_string(use.piece) + ':' + a;
    for (size_t c = 0; c < b.size(); ++c)
      if (key[key.size() - a.size() + c] == kOther)
        key[key.size() - a.size() + c] =
            b[c] == kOther ? char(numberOf(othersAxes(use.classes[c]))) : b[c];
    auto [it, isNew] = prices.try_emplace(std::move(key));
    if (isNew) {
      std::vector<Axes> axes;
      for (size_t c = 0; c < a.size(); ++c)
        axes.push_back(
            lists[uint8_t(it->first[it->first.size() - a.size() + c])]);
      const LayoutPiece &piece = model.piece(use.piece);
      it->second = piece.cost(piece.assignment(base, axes), options.costs,
                              options.reduce);
    }
    return it->second;
  }

  // Of a region that the piece borders on and that is not asked about: samples.
  Axes othersAxes(int cls) const {
    auto known = base.axes.find(info(cls).root);
    return isSample(cls) && known != base.axes.end() ? known->second : Axes();
  }

  LifeCost lifeOf(const LayoutCost &cost) const {
    auto whole = [](double value, double unit) {
      return std::max<int64_t>(0, std::llround(value * unit));
    };
    return {whole(cost.stay, 1), whole(cost.inFlight, 1),
            whole(cost.perMicrobatch, kTicksPerSecond),
            whole(cost.perStep, kTicksPerSecond)};
  }

  void addNode(int region) {
    configs.push_back(configsOf(region));
    const std::vector<Config> &of = configs.back();
    const LayoutModel::PieceUse &use = model.nodes()[size_t(region)].piece;
    const Side none(use.classes.size(), kOther);
    frontier.addNode(fmt::format("region {}", region), int(of.size()));
    bool any = false;
    for (size_t k = 0; k < of.size(); ++k)
      if (const LayoutCost &cost = price(use, sideOf(use, of[k]), none);
          cost.feasible) {
        frontier.allow(region, int(k), lifeOf(cost));
        any = true;
      }
    // What cannot stand alone is judged as a whole later.
    if (!any)
      frontier.allow(region, 0, LifeCost());
  }

  // By configuration, what a piece has of it: many have the same.
  struct Sides {
    std::vector<Side> different;
    std::vector<size_t> of; // by configuration
  };
  Sides sidesOf(const LayoutModel::PieceUse &use,
                const std::vector<Config> &configs) {
    Sides out;
    std::map<Side, size_t> known;
    for (const Config &config : configs) {
      auto [it, isNew] =
          known.try_emplace(sideOf(use, config), out.different.size());
      if (isNew)
        out.different.push_back(it->first);
      out.of.push_back(it->second);
    }
    return out;
  }

  // What a pair costs besides its two sides: the conversions between them.
  void addEdge(const LayoutModel::Edge &edge) {
    const std::vector<Config> &of = configs[size_t(edge.from)],
                              &with = configs[size_t(edge.to)];
    const Sides from = sidesOf(edge.both, of), to = sidesOf(edge.both, with);
    const Sides left = sidesOf(edge.left, of),
                right = sidesOf(edge.right, with);
    const Side noLeft(edge.left.classes.size(), kOther),
        noRight(edge.right.classes.size(), kOther);
    // A side of the edge decides its side alone.
    std::vector<std::vector<std::optional<LayoutCost>>> known(
        from.different.size(),
        std::vector<std::optional<LayoutCost>>(to.different.size()));
    const int number = frontier.addEdge(edge.from, edge.to);
    for (size_t i = 0; i < of.size(); ++i)
      for (size_t k = 0; k < with.size(); ++k) {
        std::optional<LayoutCost> &cost = known[from.of[i]][to.of[k]];
        if (!cost) {
          cost = price(edge.both, from.different[from.of[i]],
                       to.different[to.of[k]]);
          *cost -= price(edge.left, left.different[left.of[i]], noLeft);
          *cost -= price(edge.right, right.different[right.of[k]], noRight);
        }
        if (cost->feasible || (i == 0 && k == 0))
          frontier.allow(number, int(i), int(k), lifeOf(*cost));
      }
  }

  // ----------------------------------------------------------------- answers

  LifeCost costOf(const std::vector<int> &chosen) const {
    LifeCost sum;
    for (const FrontierGraph::Leaf &leaf : frontier.leaves()) {
      const FrontierGraph::Edge *edge =
          leaf.isEdge ? &frontier.edges()[size_t(leaf.of)] : nullptr;
      if (edge ? chosen[size_t(edge->from)] == leaf.a &&
                     chosen[size_t(edge->to)] == leaf.b
               : chosen[size_t(leaf.of)] == leaf.a)
        sum = sum + leaf.cost;
    }
    return sum;
  }

  Projection projection() const {
    return {options.inFlight, options.microbatches};
  }

  Result<LayoutFrontier> solveAll() {
    EliminationOptions elimination;
    elimination.projection = projection();
    // With buckets in parts of what the first strategy takes.
    double bytes = 0;
    std::vector<char> seen(frontier.nodes().size(), 0);
    for (const FrontierGraph::Leaf &leaf : frontier.leaves())
      if (!leaf.isEdge && !seen[size_t(leaf.of)]++)
        bytes += double(project(leaf.cost, projection()).bytes);
    FrontierOptions with{options.threads,
                         int64_t(bytes / double(options.buckets))};
    algebra = FrontierAlgebra(with);
    Result<FrontierTable> table = solve(algebra, frontier, elimination);
    if (!table.ok())
      return table.status();
    LayoutFrontier out;
    out.regions = regions().count;
    out.priced = int64_t(prices.size());
    out.distinct = int(model.pieces());
    const Frontier &points = table->entries.front();
    out.slackBytes = double(points.slack);
    for (FrontierArena::Index point : worthHaving(points)) {
      const FrontierGraph::Choice choice =
          frontier.choice(table->leaves(algebra.arena(), point));
      Result<FoundLayout> layout = layoutOf(choice.configs);
      if (!layout.ok())
        return layout.status();
      const Cost cost = algebra.cost(point);
      layout->bytes = double(cost.bytes);
      layout->seconds = double(cost.nanoseconds) / kTicksPerSecond;
      out.points.push_back(std::move(*layout));
    }
    return out;
  }

  // Fastest first.
  std::vector<FrontierArena::Index> worthHaving(const Frontier &points) const {
    std::vector<FrontierArena::Index> all(points.points.rbegin(),
                                          points.points.rend());
    if (options.most == 0 || all.empty())
      return all;
    auto fits = [&](FrontierArena::Index point) {
      return options.memoryBytes <= 0 ||
             double(algebra.cost(point).bytes) <= options.memoryBytes;
    };
    const FrontierArena::Index smallest = all.back();
    std::erase_if(all, [&](FrontierArena::Index p) { return !fits(p); });
    if (all.empty())
      return {smallest};
    std::vector<FrontierArena::Index> chosen;
    // Places 0, 1/4, 1 of three: squares of thirds.
    for (size_t i = 0; i < options.most; ++i) {
      const double part =
          options.most > 1 ? double(i) / double(options.most - 1) : 0;
      const FrontierArena::Index point =
          all[size_t(part * part * double(all.size() - 1))];
      if (chosen.empty() || chosen.back() != point)
        chosen.push_back(point);
    }
    return chosen;
  }

  Axes axesOf(int cls, const std::vector<int> &chosen) const {
    const int region = regions().ofClass[size_t(cls)];
    if (region < 0)
      return othersAxes(cls);
    const Config &config =
        configs[size_t(region)][size_t(std::max(0, chosen[size_t(region)]))];
    auto known = config.find(cls);
    return known == config.end() ? Axes() : known->second;
  }

  // Seams where the two sides differ, and what the classes are split over with
  // these seams alone.
  Result<FoundLayout> layoutOf(const std::vector<int> &chosen) const {
    std::vector<char> differs;
    for (const TensorUse &use : regions().uses)
      differs.push_back(differsAt(use, chosen));
    Seams seams;
    seams.implied = seamsBetween(graph, regions(), differs);
    FoundLayout out;
    out.isUniform = seams.implied.empty();
    if (!options.named)
      return out;
    Result<Classes> separated = separate(graph, model.unified(), seams);
    if (!separated.ok())
      return separated.status();
    const std::vector<std::string> names = forwardNames(graph);
    for (const TensorUse &use : seams.implied)
      out.seams.push_back({names[size_t(use.op)], use.operand});
    addClasses(*separated, chosen, out);
    nameParts(out);
    return out;
  }

  // Where all classes that tp splits are split over all of it, it has no parts.
  void nameParts(FoundLayout &out) const {
    if (!hasParts)
      return;
    auto first = [](Axes &axes) {
      return std::find_if(axes.begin(), axes.end(), [](const std::string &of) {
        return isOn(of, kTensorAxis);
      });
    };
    for (Strategy::SplitClass &split : out.classes)
      if (auto begin = first(split.axes);
          begin != split.axes.end() &&
          !std::equal(tensor.begin(), tensor.end(), begin, split.axes.end())) {
        for (const AxisSize &axis : base.mesh)
          if (isOn(axis.name, kTensorAxis))
            out.parts[kTensorAxis].push_back(axis.size);
        return;
      }
    for (Strategy::SplitClass &split : out.classes)
      if (auto begin = first(split.axes); begin != split.axes.end()) {
        split.axes.erase(begin, split.axes.end());
        split.axes.push_back(kTensorAxis);
      }
  }

  bool differsAt(const TensorUse &use, const std::vector<int> &chosen) const {
    const int id = graph.ops[size_t(use.op)].operands[size_t(use.operand)];
    const OpClasses &op = classes().ops[size_t(use.op)];
    const std::vector<int> &slots = op.operands[size_t(use.operand)];
    const std::vector<int> &atoms = classes().tensors[size_t(id)].atoms;
    for (size_t a = 0; a < slots.size(); ++a)
      if (slots[a] >= 0 && axesOf(atoms[a], chosen) !=
                               axesOf(op.slots[size_t(slots[a])].cls, chosen))
        return true;
    return false;
  }

  void addClasses(const Classes &separated, const std::vector<int> &chosen,
                  FoundLayout &out) const {
    std::map<int, Axes> axes;
    for (size_t o = 0; o < graph.ops.size(); ++o)
      for (size_t s = 0; s < separated.ops[o].slots.size(); ++s)
        axes.try_emplace(separated.ops[o].slots[s].cls,
                         axesOf(classes().ops[o].slots[s].cls, chosen));
    const std::vector<ClassAnchor> anchors = anchorsOf(graph, separated);
    for (const auto &[cls, over] : axes)
      if (!anchors[size_t(cls)].tensor.empty() &&
          (!over.empty() || isNamed(separated, cls)))
        out.classes.push_back({anchors[size_t(cls)], over});
  }

  // Without a word of it the class would have what its root has.
  bool isNamed(const Classes &separated, int cls) const {
    return base.axes.count(separated.classes[size_t(cls)].root) > 0;
  }

  const LayoutModel &model;
  const Graph &graph;
  const Assignment base;
  const bool hasParts; // of tp, which the caller has whole
  const LayoutSearchOptions &options;
  const Axes tensor = base.axesOn(kTensorAxis);
  const std::set<int> divided = dividedSamples();
  // By region: classes of gradients alone, and those of the forward pass.
  const std::map<int, std::vector<std::pair<int, int>>> twins = twinsByRegion();
  const int64_t dp = base.sizeOf(kDataAxis), tp = base.sizeOf(kTensorAxis);
  std::vector<std::vector<Config>> configs; // by region
  std::map<Axes, uint8_t> axesNumbers;
  std::vector<Axes> lists; // by number
  std::unordered_map<std::string, LayoutCost> prices;
  FrontierAlgebra algebra;
  FrontierGraph frontier;
};

} // namespace

Result<LayoutFrontier> searchLayouts(const LayoutModel &model,
                                     const Assignment &base,
                                     const LayoutSearchOptions &options) {
  return Searcher(model, base, options).run();
}

Result<std::vector<FoundLayout>> everyLayout(const LayoutModel &model,
                                             const Assignment &base,
                                             const LayoutSearchOptions &options,
                                             int64_t most) {
  return Searcher(model, base, options).every(most);
}

} // namespace merak::planning
