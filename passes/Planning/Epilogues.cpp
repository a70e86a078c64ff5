#include "passes/Planning/Epilogues.h"

#include <algorithm>
#include <map>

namespace merak::planning {

namespace {

using Group = std::vector<int>; // ops, in order
using Gelu = FusedProduct::Gelu;

bool has(const std::vector<int> &list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Letters of an equation "btk,kn->btn": "btk", "kn" and "btn".
struct Letters {
  std::string operands[2], result;
  explicit Letters(const std::string &equation) {
    const size_t comma = equation.find(','), arrow = equation.find("->");
    operands[0] = equation.substr(0, comma);
    operands[1] = equation.substr(comma + 1, arrow - comma - 1);
    result = equation.substr(arrow + 2);
  }
};

// Questions about ops and values that all matches ask.
class View {
public:
  explicit View(const EpilogueList &list) : list(list) {}

  const EpilogueOp &op(int number) const { return list.ops[size_t(number)]; }
  const EpilogueValue &value(int number) const {
    return list.values[size_t(number)];
  }
  int resultOf(int number) const { return op(number).results[0]; }
  Epilogue roleOf(int number) const {
    return number < 0 ? Epilogue::None : op(number).role;
  }
  bool is16Bits(int number) const {
    return value(number).isFloat && value(number).bits == 16;
  }
  bool isF32(int number) const {
    return value(number).isFloat && value(number).bits == 32;
  }
  // Floats of a type in which libraries offer epilogues.
  bool isNarrowFloat(int number) const {
    return value(number).isFloat && value(number).bits < 64;
  }

  // The op that makes a value which nothing but one op reads; -1: none.
  int soleMakerOf(int number) const {
    const EpilogueValue &of = value(number);
    return of.maker >= 0 && of.isUsedOnce() && !of.named ? of.maker : -1;
  }
  int productOf(int number) const {
    const int maker = soleMakerOf(number);
    return maker >= 0 && !op(maker).equation.empty() ? maker : -1;
  }

  // A vector along the last dimensions of `whole`: of [8, 32, 64] those of 64
  // and of 32 x 64 elements, not [8, 1, 64], which is several vectors.
  bool isBias(int bias, int whole) const {
    const std::vector<int64_t> &shape = value(bias).shape;
    const std::vector<int64_t> &all = value(whole).shape;
    auto first = std::find_if(shape.begin(), shape.end(),
                              [](int64_t size) { return size != 1; });
    return first != shape.end() && size_t(shape.end() - first) <= all.size() &&
           std::equal(std::make_reverse_iterator(shape.end()),
                      std::make_reverse_iterator(first), all.rbegin()) &&
           elements(bias) < elements(whole) && !value(bias).constant;
  }

  // Whether a group's op has results that others than the group read.
  bool leaves(int number, const Group &group) const {
    const EpilogueValue &of = value(resultOf(number));
    return of.otherUses > 0 ||
           std::any_of(of.users.begin(), of.users.end(),
                       [&](int user) { return !has(group, user); });
  }

private:
  int64_t elements(int number) const {
    int64_t all = 1;
    for (int64_t size : value(number).shape)
      all *= size;
    return all;
  }
  const EpilogueList &list;
};

// Matches inside of one group.
class Matcher {
public:
  Matcher(const View &view, bool forGpu, const std::vector<Group> &groups)
      : view(view), forGpu(forGpu) {
    for (const Group &group : groups)
      grouped.insert(group.begin(), group.end());
  }

  // The gradient of a weight is converted to f32. Whatever else the group does,
  // so that no bit depends on what a schedule brings together.
  FusedProduct cast(const Group &group) const {
    for (int op : group) {
      const EpilogueOp &of = view.op(op);
      if (of.role != Epilogue::Cast || !of.weightGradient ||
          !view.isF32(view.resultOf(op)) || !view.is16Bits(of.operands[0]))
        continue;
      const int maker = view.soleMakerOf(of.operands[0]);
      if (maker < 0 || (!view.op(maker).widensResult && !isLibrarySum(maker)))
        continue;
      FusedProduct found;
      found.op = maker;
      found.result = view.resultOf(op);
      found.ops = {op};
      return found;
    }
    return {};
  }

  // The group adds a bias to a product, or applies GELU, or both; other ops of
  // it do not need the product.
  FusedProduct forward(const Group &group) const {
    FusedProduct found;
    int value = -1; // the product, then what was made of it
    for (int op : group) {
      if (found.op < 0)
        findProduct(op, found, value);
      if (found.op < 0)
        continue; // on the way to a bias
      const std::vector<int> &operands = view.op(op).operands;
      if (!has(operands, value)) {
        // Whoever reads an earlier value keeps the kernel in place.
        for (int operand : operands)
          if (has(found.ops, view.value(operand).maker))
            return {};
        continue;
      }
      if (!append(op, value, found))
        return {};
      value = view.resultOf(op);
      found.ops.push_back(op);
    }
    if (found.op < 0 || !view.isNarrowFloat(value))
      return {};
    found.result = value;
    // Kept where the backward pass or another kernel reads it.
    if (found.argument >= 0 && view.value(found.argument).isUsedOnce())
      found.argument = -1;
    return found;
  }

  // The gradient of a product's operand on its way through GELU, which others
  // than this kernel read.
  FusedProduct gradient(const Group &group) const {
    for (int op : group) {
      if (view.roleOf(op) != Epilogue::GeluGradient)
        continue;
      const int dy = view.op(op).operands[0], x = view.op(op).operands[1];
      FusedProduct found;
      found.op = view.productOf(dy);
      if (found.op < 0 || x == dy || !view.leaves(op, group) ||
          !view.isNarrowFloat(x) || has(group, view.value(x).maker))
        continue;
      found.gelu = Gelu::Gradient;
      found.argument = x;
      found.result = view.resultOf(op);
      found.ops = {op};
      return found;
    }
    return {};
  }

private:
  bool isLibrarySum(int op) const {
    return forGpu && view.roleOf(op) == Epilogue::Sum && !grouped.count(op);
  }
  void findProduct(int op, FusedProduct &found, int &value) const {
    for (int operand : view.op(op).operands)
      if (int product = view.productOf(operand); product >= 0) {
        found.op = product;
        value = operand;
      }
  }
  // Adds an op that reads the product's value to it; false: it cannot do that.
  bool append(int op, int value, FusedProduct &found) const {
    const EpilogueOp &of = view.op(op);
    if (found.gelu != Gelu::None)
      return false;
    if (of.role == Epilogue::Gelu) {
      found.gelu = Gelu::Forward;
      found.argument = value;
      return true;
    }
    if (of.role != Epilogue::Bias || found.bias >= 0)
      return false;
    const int other = of.operands[of.operands[0] == value];
    if (other == value ||
        view.value(view.resultOf(op)).shape != view.value(value).shape ||
        !view.isBias(other, value))
      return false;
    found.bias = other;
    return true;
  }

  const View &view;
  bool forGpu;
  std::set<int> grouped;
};

// Finds the products that read what a sum adds up; see FusedProduct::sums. Sums
// add in f32, whatever they read, so that 16-bit operands are not converted
// first.
class SumJoiner {
public:
  SumJoiner(const EpilogueList &list, std::vector<Group> &groups,
            const EpilogueOrder &order, std::vector<FusedProduct> &taken)
      : list(list), view(list), groups(groups), order(order), taken(taken) {
    for (const Group &group : groups)
      grouped.insert(group.begin(), group.end());
    for (size_t i = 0; i < taken.size(); ++i) {
      at[taken[i].op] = i;
      grouped.insert(taken[i].ops.begin(), taken[i].ops.end());
    }
    for (size_t v = 0; v < list.values.size(); ++v)
      if (list.values[v].memory >= 0)
        inMemory[list.values[v].memory].push_back(int(v));
  }

  std::vector<int> run() {
    for (size_t i = 0; i < list.ops.size(); ++i)
      if (view.roleOf(int(i)) == Epilogue::Sum && !grouped.count(int(i)))
        join(int(i));
    std::erase_if(taken, [](const FusedProduct &p) { return p.op < 0; });
    return std::move(unused);
  }

private:
  void join(int sum) {
    int source = view.op(sum).operands[0];
    const int cast = castBefore(sum);
    if (cast >= 0)
      source = view.op(cast).operands[0];
    const int start = cast >= 0 ? cast : sum;
    for (auto [product, operand] : readersOf(source))
      if (joinTo(product, operand, sum, start))
        return dropUnused(cast);
    if (cast < 0 || !order.mayMove(cast, sum))
      return;
    FusedProduct alone = take(sum);
    alone.source = source;
    keep(std::move(alone));
    dropUnused(cast);
  }

  // The conversion to f32 of what a sum reads; -1: none.
  int castBefore(int sum) const {
    const int operand = view.op(sum).operands[0];
    const int maker = view.value(operand).maker;
    return view.roleOf(maker) == Epilogue::Cast && view.isF32(operand) &&
                   view.is16Bits(view.op(maker).operands[0])
               ? maker
               : -1;
  }

  // Products with the value as an operand, which may have been read from
  // memory several times.
  std::vector<std::pair<int, int>> readersOf(int value) const {
    std::vector<int> same = {value};
    if (auto others = inMemory.find(view.value(value).memory);
        others != inMemory.end())
      for (int other : others->second)
        if (other != value)
          same.push_back(other);
    std::vector<std::pair<int, int>> readers;
    for (int each : same)
      for (int user : view.value(each).users)
        if (const EpilogueOp &op = view.op(user); !op.equation.empty())
          readers.push_back({user, op.operands[0] == each ? 0 : 1});
    return readers;
  }

  // Whether the axes are all of the operand that the product lacks: for
  // "btk,btn->kn", the gradient of a weight, the sum of operand 1 over b and t.
  bool sumsTheRest(int sum, int product, int operand) const {
    const Letters letters(view.op(product).equation);
    const std::string &own = letters.operands[operand];
    const std::vector<bool> &sums = view.op(sum).sums;
    for (size_t d = 0; d < own.size() && d < sums.size(); ++d)
      if ((letters.result.find(own[d]) == std::string::npos) != sums[d])
        return false;
    return own.size() == sums.size() && has(sums);
  }
  static bool has(const std::vector<bool> &sums) {
    return std::find(sums.begin(), sums.end(), true) != sums.end();
  }

  bool joinTo(int product, int operand, int sum, int start) {
    const std::vector<int> &operands = view.op(product).operands;
    if (grouped.count(product) || operands[0] == operands[1] ||
        !sumsTheRest(sum, product, operand))
      return false;
    FusedProduct joined = take(product), other = take(sum);
    if (joined.bias >= 0 || joined.gelu != Gelu::None || joined.sums >= 0 ||
        other.sums >= 0)
      return false;
    joined.sums = other.result;
    joined.summed = operand;
    joined.ops.push_back(sum);
    joined.ops.insert(joined.ops.end(), other.ops.begin(), other.ops.end());
    std::sort(joined.ops.begin(), joined.ops.end());
    joined.last = std::max(product, joined.ops.back());
    if (!order.mayMove(std::min(start, product), joined.last) ||
        !delayReaders(joined))
      return false;
    if (auto known = at.find(sum); known != at.end())
      taken[known->second].op = -1; // erased in the end
    grouped.insert({sum, product});
    keep(std::move(joined));
    return true;
  }

  FusedProduct take(int op) const {
    if (auto known = at.find(op); known != at.end())
      return taken[known->second];
    FusedProduct plain;
    plain.op = plain.last = op;
    plain.result = view.resultOf(op);
    return plain;
  }
  void keep(FusedProduct product) {
    auto [known, isNew] = at.try_emplace(product.op, taken.size());
    if (isNew)
      taken.push_back(std::move(product));
    else
      taken[known->second] = std::move(product);
  }

  // Nothing may need the results before: stores move behind, also those of
  // reshaped results.
  bool delayReaders(const FusedProduct &joined) {
    std::vector<int> late;
    for (int result : {joined.result, joined.sums})
      if (!collectLate(result, joined.last, late))
        return false;
    std::sort(late.begin(), late.end());
    order.delay(late, joined.last);
    return true;
  }
  bool collectLate(int result, int last, std::vector<int> &late) const {
    for (int user : view.value(result).users) {
      const EpilogueOp &op = view.op(user);
      if (user >= last)
        continue;
      late.push_back(user);
      if (op.reshapes ? !collectLate(op.results[0], last, late)
                      : !op.stores || !order.mayDelay(user, last))
        return false;
    }
    return true;
  }

  // A conversion that only the sum has read.
  void dropUnused(int cast) {
    if (cast < 0 || !view.value(view.resultOf(cast)).isUsedOnce())
      return;
    for (Group &group : groups)
      std::erase(group, cast);
    unused.push_back(cast);
  }

  const EpilogueList &list;
  View view;
  std::vector<Group> &groups;
  const EpilogueOrder &order;
  std::vector<FusedProduct> &taken;
  std::set<int> grouped;    // ops of groups, and of joined products
  std::map<int, size_t> at; // in `taken`, by product
  std::vector<int> unused;
  std::map<int, std::vector<int>> inMemory; // values
};

} // namespace

Epilogues takeEpilogues(const EpilogueList &list, std::vector<Group> &groups,
                        bool forGpu, const EpilogueOrder &order) {
  Epilogues out;
  const View view(list);
  const Matcher match(view, forGpu, groups);
  auto take = [&](Group &group, FusedProduct found) {
    if (found.op < 0 || !order.mayMove(found.op, found.ops.back()))
      return false;
    std::erase_if(group, [&](int op) { return has(found.ops, op); });
    found.last = found.ops.back();
    out.products.push_back(std::move(found));
    return true;
  };
  for (Group &group : groups) {
    while (take(group, match.cast(group))) {
    }
    if (forGpu && !take(group, match.forward(group)))
      take(group, match.gradient(group));
  }
  std::erase_if(groups, [](const Group &group) { return group.empty(); });
  if (forGpu)
    out.unused = SumJoiner(list, groups, order, out.products).run();
  std::erase_if(groups, [](const Group &group) { return group.empty(); });
  return out;
}

} // namespace merak::planning
