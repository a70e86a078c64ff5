// The pass over carriers: converts all, reports all that it cannot.
#include "onnx/Conversion/OnnxNode.h"
#include "onnx/Conversion/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringMap.h"

namespace merak {
#define GEN_PASS_DEF_LEGALIZEONNX
#include "onnx/Conversion/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;

namespace {
struct LegalizeOnnxPass : merak::impl::LegalizeOnnxBase<LegalizeOnnxPass> {
  using LegalizeOnnxBase::LegalizeOnnxBase;

  void runOnOperation() override {
    bool failed = false;
    getOperation().walk([&](func::FuncOp function) {
      failed |= mlir::failed(convert(function));
    });
    if (failed)
      signalPassFailure();
  }

  LogicalResult convert(func::FuncOp function) {
    SmallVector<train::OnnxNodeOp> carriers;
    function.walk([&](train::OnnxNodeOp op) { carriers.push_back(op); });
    bool ok = true;
    llvm::StringMap<int64_t> numbers;
    for (train::OnnxNodeOp op : carriers) {
      OnnxNode node = nodeOf(op);
      node.number = numbers[node.type]++;
      node.dropout = dropout;
      node.train = train;
      // Behind an op without a known type: that one has been reported.
      std::string reason;
      bool isKnown =
          findConversion(node, reason) || isAtImport(node.domain, node.type);
      if (!ok && isKnown && (!node.isTyped() || node.type == "Gradient"))
        continue;
      OpBuilder builder(op);
      SmallVector<Value> results;
      if (failed(convertNode(node, builder, results))) {
        ok = false;
        continue;
      }
      for (auto [output, result] : llvm::zip(op.getOutputs(), results))
        if (result)
          output.replaceAllUsesWith(result);
    }
    if (!ok)
      return failure();
    for (train::OnnxNodeOp op : llvm::reverse(carriers))
      op.erase();
    SmallVector<train::NoneOp> nones;
    function.walk([&](train::NoneOp op) { nones.push_back(op); });
    for (train::NoneOp op : nones)
      op.erase();
    // Unknown results of import have become known ones.
    Block &body = function.getBody().front();
    auto type = function.getFunctionType();
    function.setFunctionType(
        FunctionType::get(type.getContext(), type.getInputs(),
                          body.getTerminator()->getOperandTypes()));
    return success();
  }
};
} // namespace
