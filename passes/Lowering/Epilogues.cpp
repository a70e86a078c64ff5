#include "passes/Lowering/Epilogues.h"

#include "dialects/Pipe/PipeDialect.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

using Role = planning::Epilogue;

Role epilogueRoleOf(Operation *op) {
  if (isa<AddOp>(op))
    return Role::Bias;
  if (auto gelu = dyn_cast<GeluOp>(op))
    return gelu.getTanh() ? Role::Gelu : Role::None;
  if (auto slope = dyn_cast<GeluGradOp>(op))
    return slope.getTanh() ? Role::GeluGradient : Role::None;
  return isa<CastOp>(op)        ? Role::Cast
         : isa<ReduceSumOp>(op) ? Role::Sum
                                : Role::None;
}

namespace {

RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

// The product whose result nothing but `use` reads; null otherwise.
template <typename... Products>
Operation *productOf(Value value, Operation *use) {
  Operation *product = value.getDefiningOp();
  if (!product || !isa<Products...>(product) || !value.hasOneUse() ||
      product->getBlock() != use->getBlock())
    return nullptr;
  return product->hasAttr("train.gradient_of") ? nullptr : product;
}

// A vector along the last dimensions of `whole`.
bool isBias(Value bias, RankedTensorType whole) {
  RankedTensorType type = typeOf(bias);
  ArrayRef<int64_t> shape = type.getShape();
  while (!shape.empty() && shape.front() == 1)
    shape = shape.drop_front();
  return !shape.empty() && type.getElementType() == whole.getElementType() &&
         shape.size() <= whole.getShape().size() &&
         shape == whole.getShape().take_back(shape.size()) &&
         type.getNumElements() < whole.getNumElements() &&
         !bias.getDefiningOp<ConstantOp>();
}

// The gradient of a weight is converted to f32. Whatever else the group does,
// so that no bit depends on what a schedule brings together. `isSum`: sums that
// a library forms.
Epilogue matchCast(const KernelGroup &group,
                   llvm::function_ref<bool(Operation *)> isSum) {
  for (Operation *op : group) {
    auto cast = dyn_cast<CastOp>(op);
    auto role = op->getAttrOfType<StringAttr>(kRoleAttr);
    if (!cast || !role || role.getValue() != kBackwardWeight ||
        !typeOf(cast.getY()).getElementType().isF32() ||
        !isa<BFloat16Type, Float16Type>(typeOf(cast.getX()).getElementType()))
      continue;
    Epilogue found;
    found.product = productOf<EinsumOp, ConvGradWeightOp>(cast.getX(), cast);
    if (!found.product && isSum(cast.getX().getDefiningOp()))
      found.product = productOf<ReduceSumOp>(cast.getX(), cast);
    found.result = cast.getY();
    found.ops = {cast};
    if (found.product)
      return found;
  }
  return {};
}

// The group adds a bias to a product, or applies GELU, or both; other ops of it
// do not need the product.
Epilogue matchForward(const KernelGroup &group) {
  Epilogue found;
  Value value; // the product, then what was made of it
  for (Operation *op : group) {
    if (!found.product) {
      for (Value operand : op->getOperands())
        if (Operation *product = productOf<EinsumOp>(operand, op)) {
          found.product = product;
          value = operand;
        }
      if (!found.product)
        continue; // on the way to a bias
    } else if (!llvm::is_contained(op->getOperands(), value)) {
      // Whoever reads an earlier value keeps the kernel in place.
      if (llvm::any_of(op->getOperands(), [&](Value operand) {
            return llvm::is_contained(found.ops, operand.getDefiningOp());
          }))
        return {};
      continue;
    }
    if (auto add = dyn_cast<AddOp>(op)) {
      Value other = add.getLhs() == value ? add.getRhs() : add.getLhs();
      if (found.bias || found.gelu || other == value ||
          add.getType() != value.getType() || !isBias(other, typeOf(value)))
        return {};
      found.bias = other;
    } else if (epilogueRoleOf(op) == Role::Gelu) {
      if (found.gelu)
        return {};
      found.gelu = Epilogue::Forward;
      found.argument = value;
    } else {
      return {};
    }
    value = op->getResult(0);
    found.ops.push_back(op);
  }
  if (!found.product || !isa<FloatType>(typeOf(value).getElementType()) ||
      typeOf(value).getElementType().isF64())
    return {};
  found.result = value;
  // Kept where the backward pass or another kernel reads it.
  if (found.argument && found.argument.hasOneUse())
    found.argument = {};
  return found;
}

// The gradient of a product's operand on its way through GELU, which others
// than this kernel read.
Epilogue matchGradient(const KernelGroup &group) {
  for (Operation *op : group) {
    if (epilogueRoleOf(op) != Role::GeluGradient)
      continue;
    auto slope = cast<GeluGradOp>(op);
    Epilogue found;
    found.product = productOf<EinsumOp>(slope.getDy(), op);
    bool leaves = llvm::any_of(op->getUsers(), [&](Operation *user) {
      return !llvm::is_contained(group, user);
    });
    if (!found.product || slope.getX() == slope.getDy() || !leaves ||
        typeOf(slope.getX()).getElementType().isF64() ||
        llvm::is_contained(group, slope.getX().getDefiningOp()))
      continue;
    found.gelu = Epilogue::Gradient;
    found.argument = slope.getX();
    found.result = slope.getDx();
    found.ops = {op};
    return found;
  }
  return {};
}

// Whether ops between the two change memory that the body reads.
bool crossesBarrier(Operation *from, Operation *to,
                    const llvm::StringSet<> &read) {
  for (Operation *op = from; op && op != to; op = op->getNextNode()) {
    auto store = dyn_cast<pipe::StoreOp>(op);
    if (isa<pipe::UpdateOp>(op) || (store && read.contains(store.getValue())))
      return true;
  }
  return false;
}

// Finds the products that read what a sum adds up; see Epilogue::sums. Sums add
// in f32, whatever they read, so that 16-bit operands are not converted first.
class SumJoiner {
public:
  SumJoiner(Block &body, std::vector<KernelGroup> &groups,
            const llvm::StringSet<> &read, std::vector<Epilogue> &taken)
      : groups(groups), read(read), taken(taken) {
    for (Operation &op : body) {
      position[&op] = static_cast<int>(position.size());
      if (auto load = dyn_cast<pipe::LoadOp>(op))
        loads[load.getValue()].push_back(load);
      else if (auto store = dyn_cast<pipe::StoreOp>(op))
        stored.insert(store.getValue());
    }
    for (const KernelGroup &group : groups)
      grouped.insert(group.begin(), group.end());
    for (auto [i, epilogue] : llvm::enumerate(taken)) {
      of[epilogue.product] = i;
      for (Operation *op : epilogue.ops)
        grouped.insert(op); // no product is among these
    }
  }

  void join(ReduceSumOp sum) {
    if (grouped.contains(sum))
      return;
    auto cast = sum.getX().getDefiningOp<CastOp>();
    if (cast &&
        (cast->getBlock() != sum->getBlock() ||
         !typeOf(cast.getY()).getElementType().isF32() ||
         !isa<BFloat16Type, Float16Type>(typeOf(cast.getX()).getElementType())))
      cast = {};
    Value source = cast ? cast.getX() : sum.getX();
    Operation *start = cast ? cast.getOperation() : sum.getOperation();
    for (auto [product, operand] : readersOf(source)) {
      if (product->getBlock() != sum->getBlock() || grouped.contains(product) ||
          product.getLhs() == product.getRhs() ||
          !sumsTheRest(sum, product, operand))
        continue;
      Epilogue joined = take(product), other = take(sum);
      if (joined.bias || joined.gelu || joined.sums || other.sums)
        continue;
      joined.sums = other.result;
      joined.summed = static_cast<int>(operand);
      joined.ops.push_back(sum);
      joined.ops.append(other.ops);
      llvm::sort(joined.ops, [&](Operation *a, Operation *b) {
        return position[a] < position[b];
      });
      Operation *first = before(start, product) ? start : product;
      joined.last = before(joined.ops.back(), product) ? product.getOperation()
                                                       : joined.ops.back();
      if (crossesBarrier(first, joined.last, read) || !delayStores(joined))
        continue;
      replace(std::move(joined), sum);
      dropUnused(cast);
      return;
    }
    if (!cast || crossesBarrier(cast, sum, read))
      return;
    Epilogue alone = take(sum);
    alone.source = source;
    if (auto known = of.find(sum); known != of.end())
      taken[known->second] = alone;
    else
      taken.push_back(alone);
    dropUnused(cast);
  }

  SmallVector<Operation *> unused; // nobody reads their results any more

private:
  // Products with the value as an operand; a named value may be loaded several
  // times.
  SmallVector<std::pair<EinsumOp, unsigned>> readersOf(Value value) {
    SmallVector<Value, 2> same{value};
    if (auto load = value.getDefiningOp<pipe::LoadOp>();
        load && !stored.contains(load.getValue()))
      for (pipe::LoadOp other : loads[load.getValue()])
        if (other != load && other.getType() == load.getType())
          same.push_back(other.getResult());
    SmallVector<std::pair<EinsumOp, unsigned>> readers;
    for (Value each : same)
      for (OpOperand &use : each.getUses())
        if (auto product = dyn_cast<EinsumOp>(use.getOwner()))
          readers.emplace_back(product, use.getOperandNumber());
    return readers;
  }
  bool before(Operation *a, Operation *b) { return position[a] < position[b]; }

  // Whether the axes are all of the operand that the product lacks.
  static bool sumsTheRest(ReduceSumOp sum, EinsumOp product, unsigned operand) {
    EinsumOp::Letters letters = product.getLetters();
    const std::string &own = operand == 0 ? letters.lhs : letters.rhs;
    for (auto [dim, letter] : llvm::enumerate(own)) {
      bool lacks = letters.out.find(letter) == std::string::npos;
      if (lacks != llvm::is_contained(sum.getAxes(), static_cast<int64_t>(dim)))
        return false;
    }
    return !sum.getAxes().empty();
  }
  Epilogue take(Operation *op) {
    if (auto known = of.find(op); known != of.end())
      return taken[known->second];
    Epilogue plain;
    plain.product = plain.last = op;
    plain.result = op->getResult(0);
    return plain;
  }
  // Nothing may need the results before: stores move behind, also those of
  // reshaped results, if no other op on their named value is in the way.
  bool delayStores(const Epilogue &joined) {
    SmallVector<Operation *> late;
    for (Value result : {joined.result, joined.sums})
      if (!collectLate(result, joined.last, late))
        return false;
    llvm::sort(late, [&](Operation *a, Operation *b) {
      return position[a] < position[b];
    });
    Operation *end = joined.last;
    for (Operation *op : late) {
      op->moveAfter(end);
      end = op;
    }
    return true;
  }
  bool collectLate(Value result, Operation *last,
                   SmallVector<Operation *> &late) {
    for (Operation *user : result.getUsers()) {
      if (user->getBlock() == last->getBlock() && !before(user, last))
        continue;
      late.push_back(user);
      if (auto reshape = dyn_cast<ReshapeOp>(user)) {
        if (!collectLate(reshape.getY(), last, late))
          return false;
        continue;
      }
      auto store = dyn_cast<pipe::StoreOp>(user);
      if (!store || store->getBlock() != last->getBlock())
        return false;
      for (Operation *op = store->getNextNode(); op && op != last;
           op = op->getNextNode())
        if (touches(op, store.getValue()))
          return false;
    }
    return true;
  }
  static bool touches(Operation *op, StringRef name) {
    if (auto load = dyn_cast<pipe::LoadOp>(op))
      return load.getValue() == name;
    if (auto store = dyn_cast<pipe::StoreOp>(op))
      return store.getValue() == name;
    return isa<pipe::UpdateOp>(op);
  }
  // A conversion that only the sum has read.
  void dropUnused(CastOp cast) {
    if (!cast || !cast.getY().hasOneUse())
      return;
    for (KernelGroup &group : groups)
      llvm::erase(group, cast.getOperation());
    unused.push_back(cast);
  }
  void replace(Epilogue joined, ReduceSumOp sum) {
    grouped.insert(sum);
    grouped.insert(joined.product);
    Operation *product = joined.product;
    if (auto known = of.find(product); known != of.end()) {
      taken[known->second] = std::move(joined);
    } else {
      of[product] = taken.size();
      taken.push_back(std::move(joined));
    }
    if (auto known = of.find(sum); known != of.end())
      taken[known->second].product = nullptr; // dropped by the caller
  }

  std::vector<KernelGroup> &groups;
  const llvm::StringSet<> &read;
  std::vector<Epilogue> &taken;
  llvm::DenseMap<Operation *, int> position;
  llvm::StringMap<SmallVector<pipe::LoadOp, 2>> loads; // by named value
  llvm::StringSet<> stored;
  llvm::DenseSet<Operation *> grouped;
  llvm::DenseMap<Operation *, size_t> of; // in `taken`, by product
};

} // namespace

std::vector<Epilogue> takeEpilogues(Block &body,
                                    std::vector<KernelGroup> &groups,
                                    bool forGpu,
                                    SmallVectorImpl<Operation *> &unused) {
  llvm::StringSet<> read;
  for (auto load : body.getOps<pipe::LoadOp>())
    read.insert(load.getValue());
  std::vector<Epilogue> taken;
  auto take = [&](KernelGroup &group, Epilogue found) {
    if (!found.product || crossesBarrier(found.product, found.ops.back(), read))
      return false;
    llvm::erase_if(group, [&](Operation *op) {
      return llvm::is_contained(found.ops, op);
    });
    found.last = found.ops.back();
    taken.push_back(std::move(found));
    return true;
  };
  llvm::DenseSet<Operation *> grouped;
  for (const KernelGroup &group : groups)
    grouped.insert(group.begin(), group.end());
  auto isSum = [&](Operation *op) {
    return forGpu && op && isa<ReduceSumOp>(op) && !grouped.contains(op);
  };
  for (KernelGroup &group : groups) {
    while (take(group, matchCast(group, isSum))) {
    }
    if (forGpu && !take(group, matchForward(group)))
      take(group, matchGradient(group));
  }
  llvm::erase_if(groups,
                 [](const KernelGroup &group) { return group.empty(); });
  if (forGpu) {
    SumJoiner joiner(body, groups, read, taken);
    for (auto sum : llvm::to_vector(body.getOps<ReduceSumOp>()))
      joiner.join(sum);
    llvm::erase_if(taken, [](const Epilogue &e) { return !e.product; });
    llvm::erase_if(groups,
                   [](const KernelGroup &group) { return group.empty(); });
    unused.append(joiner.unused);
  }
  return taken;
}

} // namespace merak::lowering
