#include "passes/Planning/FusionGroups.h"

#include <algorithm>
#include <optional>
#include <span>

namespace merak::planning {

FusionOptions fusionFor(bool gpu) {
  FusionOptions options;
  if (gpu) {
    options.minRows = 128;
    options.minColumns = 32768;
  }
  return options;
}

namespace {

constexpr int kUnknown = -2;

bool contains(const std::vector<int> &list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Of values the domain dimension of each of their own ones; kNoLoop: size 1.
class ValueDims {
public:
  using Dims = std::span<const int>;
  size_t count() const { return values.size(); }
  int value(size_t i) const { return values[i]; }
  Dims of(size_t i) const {
    return {dims.data() + begin[i], dims.data() + begin[i + 1]};
  }
  std::optional<Dims> find(int value) const {
    const auto at = std::find(values.begin(), values.end(), value);
    if (at == values.end())
      return std::nullopt;
    return of(size_t(at - values.begin()));
  }
  // A value that is not there; `dimOf(d)` of each of the dimensions `own`.
  template <typename DimOf> void add(int value, Dims own, const DimOf &dimOf) {
    values.push_back(value);
    for (int dim : own)
      dims.push_back(dim == kNoLoop ? kNoLoop : dimOf(dim));
    begin.push_back(int(dims.size()));
  }

private:
  std::vector<int> values, begin = {0}, dims;
};

// A group under construction. Its domain is the iteration space of its first
// op without loops of size 1; every value knows the domain dimension of each
// of its own dimensions.
struct Group {
  std::vector<int64_t> sizes;
  std::vector<bool> reduced;
  std::vector<int> ops; // in order
  ValueDims dims;       // of results
  bool alive = true;

  bool reduces() const {
    return std::find(reduced.begin(), reduced.end(), true) != reduced.end();
  }
};

class Former {
public:
  Former(const std::vector<FusionOp> &ops, const FusionOptions &options,
         const std::function<bool(int, int)> &mayDelay,
         const std::function<bool(const std::vector<int> &)> &mayBe)
      : ops(ops), options(options), mayDelay(mayDelay), mayBe(mayBe) {
    int barriers = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      barriersBefore.push_back(barriers);
      barriers += ops[i].barrier;
      for (int value : ops[i].operands)
        usersOf(value).push_back(int(i));
      for (int value : ops[i].results) {
        usersOf(value);
        producer[size_t(value)] = int(i);
      }
    }
  }

  std::vector<std::vector<int>> run() {
    groupOf.assign(ops.size(), -1);
    for (size_t i = 0; i < ops.size(); ++i)
      if (ops[i].loops && isWorthwhile(ops[i].sizes, ops[i].loops->reduced))
        place(int(i));
    std::vector<std::vector<int>> result;
    for (Group &group : groups)
      if (group.alive)
        result.push_back(std::move(group.ops));
    std::sort(result.begin(), result.end(),
              [](const auto &a, const auto &b) { return a.back() < b.back(); });
    return result;
  }

private:
  using LoopDims = std::vector<int>; // domain dimension of each loop

  std::vector<int> &usersOf(int value) {
    if (size_t(value) >= users.size()) {
      users.resize(size_t(value) + 1);
      producer.resize(size_t(value) + 1, -1);
    }
    return users[size_t(value)];
  }

  // Whether a reduction has enough independent results to keep threads busy.
  bool isWorthwhile(const std::vector<int64_t> &sizes,
                    const std::vector<bool> &reduced) const {
    int64_t kept = 1, all = 1;
    int last = -1;
    bool reduces = false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      all *= sizes[i];
      kept *= reduced[i] ? 1 : sizes[i];
      reduces |= reduced[i];
      if (sizes[i] > 1)
        last = int(i);
    }
    if (!reduces || all <= options.smallElements)
      return true;
    bool rows = last >= 0 && reduced[size_t(last)];
    return kept >= (rows ? options.minRows : options.minColumns);
  }

  void addResults(Group &group, int op, const LoopDims &loops) const {
    for (size_t i = 0; i < ops[size_t(op)].results.size(); ++i)
      group.dims.add(ops[size_t(op)].results[i],
                     ops[size_t(op)].loops->results[i],
                     [&](int loop) { return loops[size_t(loop)]; });
    group.ops.push_back(op);
  }

  Group start(int op) const {
    const std::vector<int64_t> &sizes = ops[size_t(op)].sizes;
    Group group;
    LoopDims loops;
    for (size_t loop = 0; loop < sizes.size(); ++loop) {
      if (sizes[loop] == 1) {
        loops.push_back(kNoLoop);
        continue;
      }
      loops.push_back(int(group.sizes.size()));
      group.sizes.push_back(sizes[loop]);
      group.reduced.push_back(ops[size_t(op)].loops->reduced[loop]);
    }
    addResults(group, op, loops);
    return group;
  }

  // The domain dimension of each loop of `op` if it can be computed in the
  // group's domain: over all of it, or over the kept dimensions alone.
  std::optional<LoopDims> place(const Group &group, int op) const {
    const Loops &it = *ops[size_t(op)].loops;
    const std::vector<int64_t> &sizes = ops[size_t(op)].sizes;
    const std::vector<int> &operands = ops[size_t(op)].operands;
    LoopDims loops(sizes.size(), kUnknown);
    std::vector<bool> used(group.sizes.size(), false);
    for (size_t loop = 0; loop < loops.size(); ++loop)
      if (sizes[loop] == 1)
        loops[loop] = kNoLoop;
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto known = group.dims.find(operands[i]);
      if (!known)
        continue;
      for (size_t d = 0; d < it.operands[i].size(); ++d) {
        int loop = it.operands[i][d];
        if (loop == kNoLoop || sizes[size_t(loop)] == 1)
          continue;
        int &dim = loops[size_t(loop)];
        if (dim != kUnknown && dim != (*known)[d])
          return std::nullopt;
        dim = (*known)[d];
      }
    }
    for (int dim : loops)
      if (dim >= 0) {
        if (used[size_t(dim)])
          return std::nullopt;
        used[size_t(dim)] = true;
      }
    // Loops that no value of the group walks take free dimensions of their
    // size.
    for (size_t loop = 0; loop < loops.size(); ++loop) {
      for (size_t dim = 0; loops[loop] == kUnknown && dim < used.size(); ++dim)
        if (group.sizes[dim] == sizes[loop] && !used[dim]) {
          used[dim] = true;
          loops[loop] = int(dim);
        }
      if (loops[loop] == kUnknown)
        return std::nullopt;
    }
    // All dimensions, or exactly those that are kept.
    bool all = true, keptOnly = group.reduces();
    for (size_t dim = 0; dim < used.size(); ++dim) {
      all &= used[dim];
      keptOnly &= used[dim] != group.reduced[dim];
    }
    return all || keptOnly ? std::optional(loops) : std::nullopt;
  }

  // The group with `op`.
  std::optional<Group> join(const Group &group, int op) const {
    const Loops &it = *ops[size_t(op)].loops;
    std::optional<LoopDims> loops = place(group, op);
    if (!loops)
      return std::nullopt;
    std::vector<bool> reduced(group.sizes.size(), false);
    bool reduces = false;
    for (size_t loop = 0; loop < loops->size(); ++loop)
      if (it.reduced[loop] && (*loops)[loop] >= 0)
        reduced[size_t((*loops)[loop])] = reduces = true;
    if (reduces && ((group.reduces() && reduced != group.reduced) ||
                    !isWorthwhile(group.sizes, reduced)))
      return std::nullopt;
    Group joined = group;
    if (reduces)
      joined.reduced = std::move(reduced);
    addResults(joined, op, *loops);
    return joined;
  }

  // The union of two groups that `op` would join: its loops say which of their
  // dimensions are the same.
  std::optional<Group> merge(const Group &a, const Group &b, int op) const {
    std::optional<LoopDims> inA = place(a, op), inB = place(b, op);
    if (!inA || !inB || a.sizes.size() != b.sizes.size())
      return std::nullopt;
    std::vector<int> toA(b.sizes.size(), kUnknown);
    for (size_t i = 0; i < inA->size(); ++i)
      if ((*inB)[i] >= 0)
        toA[size_t((*inB)[i])] = (*inA)[i];
    // Dimensions that `op` does not walk correspond if their order does.
    if (contains(toA, kUnknown)) {
      if (a.sizes != b.sizes || a.reduced != b.reduced)
        return std::nullopt;
      for (int dim = 0; dim < int(toA.size()); ++dim) {
        if (toA[size_t(dim)] != kUnknown && toA[size_t(dim)] != dim)
          return std::nullopt;
        toA[size_t(dim)] = dim;
      }
    }
    Group merged = a;
    for (size_t dim = 0; dim < toA.size(); ++dim)
      if (b.sizes[dim] != a.sizes[size_t(toA[dim])])
        return std::nullopt;
    if (b.reduces()) {
      std::vector<bool> reduced(a.sizes.size(), false);
      for (size_t dim = 0; dim < toA.size(); ++dim)
        reduced[size_t(toA[dim])] = b.reduced[dim];
      if (a.reduces() && a.reduced != reduced)
        return std::nullopt;
      if (!isWorthwhile(a.sizes, reduced))
        return std::nullopt;
      merged.reduced = reduced;
    }
    for (size_t i = 0; i < b.dims.count(); ++i)
      merged.dims.add(b.dims.value(i), b.dims.of(i),
                      [&](int dim) { return toA[size_t(dim)]; });
    merged.ops.insert(merged.ops.end(), b.ops.begin(), b.ops.end());
    std::sort(merged.ops.begin(), merged.ops.end());
    return merged;
  }

  // Whether nobody outside needs a result of the group before `last`.
  bool canRunAt(const Group &group, int last) const {
    if (barriersBefore[size_t(group.ops.front())] !=
        barriersBefore[size_t(last)])
      return false;
    for (int op : group.ops)
      for (int value : ops[size_t(op)].results)
        for (int user : users[size_t(value)])
          if (user < last && !contains(group.ops, user) &&
              !mayDelay(user, last))
            return false;
    return true;
  }

  bool isSmallEnough(const Group &group) const {
    if (group.ops.size() > options.maxOps)
      return false;
    std::vector<int> inputs;
    size_t outputs = 0;
    for (int op : group.ops) {
      for (int value : ops[size_t(op)].operands)
        if (!contains(group.ops, producer[size_t(value)]) &&
            !contains(inputs, value))
          inputs.push_back(value);
      for (int value : ops[size_t(op)].results)
        outputs += std::any_of(
            users[size_t(value)].begin(), users[size_t(value)].end(),
            [&](int user) { return !contains(group.ops, user); });
    }
    return inputs.size() + outputs <= options.maxValues;
  }

  // Groups of producers that an op may join: largest first.
  std::vector<int> candidatesOf(int op) const {
    std::vector<int> candidates;
    for (int value : ops[size_t(op)].operands) {
      int from = producer[size_t(value)];
      int group = from < 0 ? -1 : groupOf[size_t(from)];
      if (group >= 0 && groups[size_t(group)].alive &&
          groups[size_t(group)].ops.size() < options.maxOps &&
          !contains(candidates, group))
        candidates.push_back(group);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) {
      return groups[size_t(a)].ops.size() > groups[size_t(b)].ops.size();
    });
    return candidates;
  }

  // The op in the best union of groups, or in one of its own.
  void place(int op) {
    std::optional<Group> both, best; // without and with `op`
    std::vector<int> taken;
    for (int candidate : candidatesOf(op)) {
      const Group &first = groups[size_t(taken.empty() ? candidate : taken[0])];
      std::optional<Group> wider;
      if (!taken.empty()) {
        wider = merge(both ? *both : first, groups[size_t(candidate)], op);
        if (!wider)
          continue;
      }
      std::optional<Group> joined = join(wider ? *wider : first, op);
      if (!joined || !canRunAt(*joined, op) || !isSmallEnough(*joined) ||
          !mayBe(joined->ops))
        continue;
      both = std::move(wider);
      best = std::move(joined);
      taken.push_back(candidate);
    }
    const int number = int(groups.size());
    if (!best)
      best = start(op);
    for (int old : taken)
      groups[size_t(old)].alive = false;
    for (int member : best->ops)
      groupOf[size_t(member)] = number;
    groups.push_back(std::move(*best));
  }

  const std::vector<FusionOp> &ops;
  const FusionOptions &options;
  const std::function<bool(int, int)> &mayDelay;
  const std::function<bool(const std::vector<int> &)> &mayBe;
  std::vector<std::vector<int>> users; // by value
  std::vector<int> producer;           // by value
  std::vector<int> barriersBefore;     // by op
  std::vector<Group> groups;
  std::vector<int> groupOf; // by op; -1: none
};

} // namespace

std::vector<std::vector<int>>
formFusionGroups(const std::vector<FusionOp> &ops, const FusionOptions &options,
                 const std::function<bool(int, int)> &mayDelay,
                 const std::function<bool(const std::vector<int> &)> &mayBe) {
  return Former(ops, options, mayDelay, mayBe).run();
}

} // namespace merak::planning
