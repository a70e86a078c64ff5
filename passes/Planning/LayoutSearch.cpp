#include "passes/Planning/LayoutSearch.h"

#include "passes/Planning/FrontierGraph.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

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

class Searcher {
public:
  Searcher(const Graph &graph, const Classes &unified, const Assignment &base,
           const LayoutSearchOptions &options)
      : graph(graph), unified(unified), base(base), options(options),
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
    Result<LayoutRegions> found = findRegions(graph, unified);
    if (!found.ok())
      return found.status();
    regions = std::move(*found);
    index();
    for (int r = 0; r < regions.count; ++r)
      addNode(r);
    for (const auto &[sides, ops] : crossing)
      addEdge(sides.first, sides.second, ops);
    return frontier.check(projection());
  }

  const Classes &classes() const { return regions.classes; }
  const ClassInfo &info(int cls) const {
    return classes().classes[size_t(cls)];
  }
  bool isSample(int cls) const { return base.samples.count(info(cls).root); }

  // Ops and classes by region, and what crosses between two of them.
  void index() {
    opsOf.resize(size_t(regions.count));
    classesOf.resize(size_t(regions.count));
    producer.assign(graph.tensors.size(), -1);
    users.resize(graph.tensors.size());
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      for (int id : graph.ops[o].results)
        producer[size_t(id)] = int(o);
      for (int id : graph.ops[o].operands)
        users[size_t(id)].push_back(int(o));
      const int region = regions.ofOp[o];
      if (region < 0)
        continue;
      opsOf[size_t(region)].push_back(int(o));
      for (const OpSlot &slot : classes().ops[o].slots)
        addClass(region, slot.cls);
    }
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      for (int user : users[t])
        addCrossing(int(t), user);
  }

  void addClass(int region, int cls) {
    std::vector<int> &of = classesOf[size_t(region)];
    if (std::find(of.begin(), of.end(), cls) == of.end())
      of.push_back(cls);
  }

  // Maker and user, and the user's own users: what is partial behind it is
  // summed there.
  void addCrossing(int tensor, int user) {
    const int maker = producer[size_t(tensor)];
    if (maker < 0)
      return;
    const int from = regions.ofOp[size_t(maker)],
              to = regions.ofOp[size_t(user)];
    if (from < 0 || to < 0 || from == to)
      return;
    std::set<int> &ops = crossing[std::minmax(from, to)];
    ops.insert({maker, user});
    for (int id : graph.ops[size_t(user)].results)
      for (int next : users[size_t(id)])
        if (regions.ofOp[size_t(next)] == to)
          ops.insert(next);
  }

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
        for (int op : opsOf[size_t(region)])
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
      if (!regions.weights[size_t(op.operands[i])])
        for (int slot : of.operands[i])
          values.insert(slot);
    size_t seen = 0;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!regions.weights[size_t(op.operands[i])])
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
            (tp > 1 && divides(cls, base.axesOn(kTensorAxis))));
  }

  std::vector<int> tokensOf(int region) const {
    std::vector<int> found;
    for (int cls : classesOf[size_t(region)])
      if (regions.ofTokens[size_t(info(cls).root)] && !isSample(cls) &&
          divides(cls, base.axesOn(kTensorAxis)))
        found.push_back(cls);
    return found;
  }

  // What samples have in a region: `data`: the axes of the batch, `tensor`: tp
  // behind them.
  bool addSamples(int region, bool data, bool tensor, Config &config) const {
    bool any = false;
    for (int cls : classesOf[size_t(region)]) {
      auto known = base.axes.find(info(cls).root);
      if (!isSample(cls) || known == base.axes.end())
        continue;
      Axes axes;
      for (const std::string &axis : known->second)
        if (data || axis == kMicrobatchAxis)
          axes.push_back(axis);
      if (tensor)
        for (const std::string &axis : base.axesOn(kTensorAxis))
          axes.push_back(axis);
      if (!divides(cls, axes))
        return false;
      any = true;
      config[cls] = std::move(axes);
    }
    return any || !tensor;
  }

  bool append(const std::set<int> &chosen, const char *axis,
              Config &config) const {
    for (int cls : chosen) {
      for (const std::string &part : base.axesOn(axis))
        config[cls].push_back(part);
      if (!divides(cls, config[cls]))
        return false;
    }
    return true;
  }

  // Of one region; the first one has one layout everywhere, and samples alone.
  std::vector<Config> configsOf(int region) const {
    std::vector<Config> all;
    auto add = [&](bool ok, Config config) {
      if (ok && std::find(all.begin(), all.end(), config) == all.end())
        all.push_back(std::move(config));
    };
    const std::set<std::set<int>> sets = weightSets(region);
    std::vector<const std::set<int> *> overData{nullptr};
    if (dp > 1 && !regions.isFree[size_t(region)])
      for (const std::set<int> &set : sets)
        overData.push_back(&set);
    for (const std::set<int> *data : overData) {
      auto make = [&](bool tensor, const std::set<int> *split) {
        Config config;
        bool ok = addSamples(region, !data, tensor, config);
        ok = ok && (!data || append(*data, kDataAxis, config));
        ok = ok && (!split || append(*split, kTensorAxis, config));
        add(ok, std::move(config));
      };
      make(false, nullptr);
      if (tp <= 1 || regions.isFree[size_t(region)])
        continue;
      for (const std::set<int> &set : sets)
        make(false, &set);
      for (int cls : tokensOf(region)) {
        const std::set<int> one{cls};
        make(false, &one);
      }
      make(true, nullptr);
    }
    return all;
  }

  // ------------------------------------------------------------------ prices

  LayoutPiece &pieceOf(const std::vector<int> &ops) {
    pieces.push_back(std::make_unique<LayoutPiece>(graph, classes(), ops));
    return *pieces.back();
  }

  // What a piece has of two regions' configurations.
  LayoutCost price(const LayoutPiece &piece, const Config &a, const Config &b) {
    std::vector<Axes> axes;
    std::string key = piece.key();
    for (int cls : piece.classes()) {
      auto in = a.find(cls);
      auto other = b.find(cls);
      axes.push_back(in != a.end()      ? in->second
                     : other != b.end() ? other->second
                                        : othersAxes(cls));
      fmt::format_to(std::back_inserter(key), "|{}",
                     fmt::join(axes.back(), ","));
    }
    auto [it, isNew] = prices.try_emplace(std::move(key));
    if (isNew)
      it->second = piece.cost(piece.assignment(base, axes), options.costs,
                              options.reduce);
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
    const LayoutPiece &piece = pieceOf(opsOf[size_t(region)]);
    frontier.addNode(fmt::format("region {}", region), int(of.size()));
    static const Config none;
    bool any = false;
    for (size_t k = 0; k < of.size(); ++k)
      if (LayoutCost cost = price(piece, of[k], none); cost.feasible) {
        frontier.allow(region, int(k), lifeOf(cost));
        any = true;
      }
    // What cannot stand alone is judged as a whole later.
    if (!any)
      frontier.allow(region, 0, LifeCost());
  }

  // What a pair costs besides its two sides: the conversions between them.
  void addEdge(int from, int to, const std::set<int> &ops) {
    std::vector<int> all(ops.begin(), ops.end()), left, right;
    for (int op : all)
      (regions.ofOp[size_t(op)] == from ? left : right).push_back(op);
    const LayoutPiece &both = pieceOf(all), &a = pieceOf(left),
                      &b = pieceOf(right);
    const std::vector<Config> &of = configs[size_t(from)],
                              &with = configs[size_t(to)];
    const int edge = frontier.addEdge(from, to);
    static const Config none;
    for (size_t i = 0; i < of.size(); ++i)
      for (size_t k = 0; k < with.size(); ++k) {
        LayoutCost cost = price(both, of[i], with[k]);
        cost -= price(a, of[i], none);
        cost -= price(b, none, with[k]);
        if (cost.feasible || (i == 0 && k == 0))
          frontier.allow(edge, int(i), int(k), lifeOf(cost));
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
    out.regions = regions.count;
    out.priced = int64_t(prices.size());
    std::set<std::string> keys;
    for (const std::unique_ptr<LayoutPiece> &piece : pieces)
      keys.insert(piece->key());
    out.distinct = int(keys.size());
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
    const int region = regions.ofClass[size_t(cls)];
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
    for (const TensorUse &use : regions.uses)
      differs.push_back(differsAt(use, chosen));
    Seams seams;
    seams.implied = seamsBetween(graph, regions, differs);
    Result<Classes> separated = separate(graph, unified, seams);
    if (!separated.ok())
      return separated.status();
    FoundLayout out;
    const std::vector<std::string> names = forwardNames(graph);
    for (const TensorUse &use : seams.implied)
      out.seams.push_back({names[size_t(use.op)], use.operand});
    addClasses(*separated, chosen, out);
    return out;
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
    for (const auto &[cls, over] : axes)
      if (!over.empty() || isNamed(separated, cls))
        out.classes.push_back({anchorOf(graph, separated, cls), over});
  }

  // Without a word of it the class would have what its root has.
  bool isNamed(const Classes &separated, int cls) const {
    return base.axes.count(separated.classes[size_t(cls)].root) > 0;
  }

  const Graph &graph;
  const Classes &unified;
  const Assignment &base;
  const LayoutSearchOptions &options;
  const int64_t dp = base.sizeOf(kDataAxis), tp = base.sizeOf(kTensorAxis);
  LayoutRegions regions;
  std::vector<std::vector<int>> opsOf, classesOf; // by region
  std::vector<int> producer;
  std::vector<std::vector<int>> users;
  std::map<std::pair<int, int>, std::set<int>> crossing; // ops, by regions
  std::vector<std::vector<Config>> configs;              // by region
  std::vector<std::unique_ptr<LayoutPiece>> pieces;
  std::map<std::string, LayoutCost> prices;
  FrontierAlgebra algebra;
  FrontierGraph frontier;
};

} // namespace

Result<LayoutFrontier> searchLayouts(const Graph &graph, const Classes &unified,
                                     const Assignment &base,
                                     const LayoutSearchOptions &options) {
  return Searcher(graph, unified, base, options).run();
}

Result<std::vector<FoundLayout>>
everyLayout(const Graph &graph, const Classes &unified, const Assignment &base,
            const LayoutSearchOptions &options, int64_t most) {
  return Searcher(graph, unified, base, options).every(most);
}

} // namespace merak::planning
