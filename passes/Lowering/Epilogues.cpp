#include "passes/Lowering/Epilogues.h"

#include "dialects/Pipe/PipeDialect.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

// The ops of an action numbered in their order, and their values, as the rule
// wants to see them.
class NumberedBody {
public:
  explicit NumberedBody(Block &body) {
    for (Operation &op : body) {
      numbers[&op] = static_cast<int>(ops.size());
      ops.push_back(&op);
      if (auto store = dyn_cast<pipe::StoreOp>(op))
        stored.insert(store.getValue());
      else if (auto load = dyn_cast<pipe::LoadOp>(op))
        loaded.insert(load.getValue());
    }
    for (Operation &op : body)
      list.ops.push_back(describe(&op));
  }

  // Whether ops from one up to the other change memory that the body reads.
  bool crossesBarrier(int from, int to) const {
    for (Operation *op = ops[from]; op && op != ops[to];
         op = op->getNextNode()) {
      auto store = dyn_cast<pipe::StoreOp>(op);
      if (isa<pipe::UpdateOp>(op) ||
          (store && loaded.contains(store.getValue())))
        return true;
    }
    return false;
  }
  // No other op on the store's named value is in the way.
  bool mayDelay(int number, int last) const {
    auto store = cast<pipe::StoreOp>(ops[number]);
    for (Operation *op = store->getNextNode(); op && op != ops[last];
         op = op->getNextNode())
      if (touches(op, store.getValue()))
        return false;
    return true;
  }
  void moveBehind(ArrayRef<int> late, int last) const {
    Operation *end = ops[last];
    for (int op : late) {
      ops[op]->moveAfter(end);
      end = ops[op];
    }
  }

  int numberOf(Operation *op) const { return numbers.lookup(op); }
  Operation *opOf(int number) const {
    return number < 0 ? nullptr : ops[number];
  }
  Value valueOf(int number) const {
    return number < 0 ? Value() : values[number];
  }

  planning::EpilogueList list;

private:
  static bool touches(Operation *op, StringRef name) {
    if (auto load = dyn_cast<pipe::LoadOp>(op))
      return load.getValue() == name;
    if (auto store = dyn_cast<pipe::StoreOp>(op))
      return store.getValue() == name;
    return isa<pipe::UpdateOp>(op);
  }

  planning::EpilogueOp describe(Operation *op) {
    planning::EpilogueOp out;
    if (auto epilogue = dyn_cast<EpilogueOpInterface>(op))
      out.role = epilogue.getEpilogue();
    if (auto product = dyn_cast<EinsumOp>(op))
      out.equation = product.getEquation().str();
    if (auto sum = dyn_cast<ReduceSumOp>(op)) {
      out.sums.resize(cast<RankedTensorType>(sum.getX().getType()).getRank());
      for (int64_t axis : sum.getAxes())
        out.sums[axis] = true;
    }
    auto role = op->getAttrOfType<StringAttr>(kRoleAttr);
    out.weightGradient = role && role.getValue() == kBackwardWeight;
    out.widensResult = op->hasTrait<WidensResult>();
    out.reshapes = isa<ReshapeOp>(op);
    out.stores = isa<pipe::StoreOp>(op);
    for (Value operand : op->getOperands())
      out.operands.push_back(numberOf(operand));
    for (Value result : op->getResults())
      out.results.push_back(numberOf(result));
    return out;
  }

  int numberOf(Value value) {
    auto [it, isNew] =
        valueNumbers.try_emplace(value, static_cast<int>(values.size()));
    if (isNew) {
      values.push_back(value);
      list.values.push_back(describe(value));
    }
    return it->second;
  }

  planning::EpilogueValue describe(Value value) {
    auto type = cast<RankedTensorType>(value.getType());
    planning::EpilogueValue out;
    out.shape = type.getShape().vec();
    out.isFloat = isa<FloatType>(type.getElementType());
    out.bits = static_cast<int>(type.getElementTypeBitWidth());
    Operation *maker = value.getDefiningOp();
    if (auto known = numbers.find(maker); known != numbers.end())
      out.maker = known->second;
    for (Operation *user : value.getUsers()) {
      auto known = numbers.find(user);
      if (known != numbers.end())
        out.users.push_back(known->second);
      else
        ++out.otherUses;
    }
    llvm::sort(out.users);
    out.constant = maker && isa<ConstantOp>(maker);
    out.named = maker && maker->hasAttr("train.gradient_of");
    if (auto load = dyn_cast_or_null<pipe::LoadOp>(maker);
        load && !stored.contains(load.getValue()))
      out.memory =
          memories
              .try_emplace(load.getValue(), static_cast<int>(memories.size()))
              .first->second;
    return out;
  }

  std::vector<Operation *> ops;
  std::vector<Value> values;
  llvm::DenseMap<Operation *, int> numbers;
  llvm::DenseMap<Value, int> valueNumbers;
  llvm::StringSet<> loaded, stored; // named values
  llvm::StringMap<int> memories;
};

Epilogue epilogueOf(const planning::FusedProduct &found,
                    const NumberedBody &body) {
  Epilogue out;
  out.product = body.opOf(found.op);
  out.last = body.opOf(found.last);
  for (int op : found.ops)
    out.ops.push_back(body.opOf(op));
  out.gelu = found.gelu;
  out.summed = found.summed;
  out.bias = body.valueOf(found.bias);
  out.argument = body.valueOf(found.argument);
  out.result = body.valueOf(found.result);
  out.sums = body.valueOf(found.sums);
  out.source = body.valueOf(found.source);
  return out;
}

} // namespace

std::vector<Epilogue> takeEpilogues(Block &block,
                                    std::vector<KernelGroup> &groups,
                                    bool forGpu,
                                    SmallVectorImpl<Operation *> &unused) {
  const NumberedBody body(block);
  std::vector<std::vector<int>> numbered;
  for (const KernelGroup &group : groups) {
    std::vector<int> &ops = numbered.emplace_back();
    for (Operation *op : group)
      ops.push_back(body.numberOf(op));
  }
  planning::Epilogues found = planning::takeEpilogues(
      body.list, numbered, forGpu,
      {[&](int from, int to) { return !body.crossesBarrier(from, to); },
       [&](int store, int last) { return body.mayDelay(store, last); },
       [&](ArrayRef<int> late, int last) { body.moveBehind(late, last); }});
  groups.clear();
  for (const std::vector<int> &group : numbered) {
    groups.emplace_back();
    for (int op : group)
      groups.back().push_back(body.opOf(op));
  }
  for (int op : found.unused)
    unused.push_back(body.opOf(op));
  std::vector<Epilogue> out;
  for (const planning::FusedProduct &product : found.products)
    out.push_back(epilogueOf(product, body));
  return out;
}

} // namespace merak::lowering
