// Which products take their operands in 8 bits (--precision=fp8): those of data
// with a parameter. What is multiplied last keeps 16: a model's logits have no
// product after them whose sums would even out what is rounded, and the loss
// reads their differences. Gradients follow (Gradients.cpp).
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Pass/Pass.h"
#include "passes/Graph/Passes.h"
#include "passes/Graph/PrecisionRules.h"

#include <fmt/format.h>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_ROUNDPRODUCTS
#include "passes/Graph/Passes.h.inc"
} // namespace merak

namespace {

class Rounding {
public:
  explicit Rounding(Block &body) : body(body) {
    for (BlockArgument argument : body.getArguments())
      made[argument] = Made::OfData;
    for (Operation &op : body)
      for (Value result : op.getResults())
        made[result] = madeBy(&op);
    for (Operation &op : llvm::reverse(body))
      for (Operation *user : op.getUsers())
        if (precisionKindOf(user) == PrecisionKind::Low &&
            user->hasTrait<Contraction>())
          multiplied.insert(&op);
        else if (multiplied.contains(user))
          multiplied.insert(&op);
  }

  void run() {
    Builder b(body.getParentOp()->getContext());
    const Type type = Float8E4M3FNType::get(b.getContext());
    for (auto product : body.getOps<EinsumOp>()) {
      const std::string why = whyNot(product);
      ++(why.empty() ? rounded : kept[why]);
      if (why.empty())
        product.setRoundsAttr(b.getTypeArrayAttr({type, type}));
    }
  }

  // "fp8: 8 of 13 products; 4 of activations alone, 1 last stay in bf16"
  std::string described() const {
    int64_t all = rounded;
    std::string rest;
    for (const auto &[why, count] : kept) {
      all += count;
      rest += fmt::format("{}{} {}", rest.empty() ? "; " : ", ", count, why);
    }
    return fmt::format("fp8: {} of {} products in 8 bits{}", rounded, all,
                       rest);
  }

  int64_t rounded = 0;

private:
  enum class Made { OfConstants, OfParameters, OfData };

  Made madeBy(Operation *op) const {
    Made most = isa<ReadOp>(op) ? Made::OfParameters : Made::OfConstants;
    for (Value operand : op->getOperands())
      most = std::max(most, made.lookup(operand));
    return most;
  }

  std::string whyNot(EinsumOp product) const {
    if (!getElementTypeOrSelf(product.getLhs().getType()).isBF16())
      return "of other types";
    const auto isWeight = [&](Value value) {
      return made.lookup(value) == Made::OfParameters &&
             cast<RankedTensorType>(value.getType()).getRank() >= 2;
    };
    const bool ofData = std::max(made.lookup(product.getLhs()),
                                 made.lookup(product.getRhs())) == Made::OfData;
    if (!ofData || !(isWeight(product.getLhs()) || isWeight(product.getRhs())))
      return "not of data with a weight";
    if (!multiplied.contains(product))
      return "after which nothing is multiplied";
    return "";
  }

  Block &body;
  llvm::DenseMap<Value, Made> made;
  llvm::DenseSet<Operation *> multiplied; // what comes of their results
  std::map<std::string, int64_t> kept;    // by reason
};

struct RoundProductsPass : merak::impl::RoundProductsBase<RoundProductsPass> {
  using RoundProductsBase::RoundProductsBase;

  void runOnOperation() override {
    auto model = getOperation().lookupSymbol<func::FuncOp>("model");
    if (!model) {
      getOperation().emitError("expected a function @model");
      return signalPassFailure();
    }
    Rounding rounding(model.getBody().front());
    rounding.run();
    productsRounded += rounding.rounded;
    remark::passed(model.getLoc(),
                   remark::RemarkOpts::name("Rounded").category("precision"))
        << rounding.described();
    if (rounding.rounded)
      getOperation()->setAttr(
          kConfigAttr,
          ConfigAttr::of(getOperation())
              .withLowPrecision(Float8E4M3FNType::get(&getContext())));
  }
};

} // namespace
