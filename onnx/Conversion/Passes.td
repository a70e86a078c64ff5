// The pass that converts ONNX carriers to train ops.
#ifndef MERAK_ONNX_PASSES
#define MERAK_ONNX_PASSES

include "mlir/Pass/PassBase.td"

def LegalizeOnnx : Pass<"legalize-onnx", "::mlir::ModuleOp"> {
  let summary = "replace every train.onnx_node by train ops, or list all that cannot be";
  let description = [{
    The table is keyed by (op, since-version); attributes that became inputs in
    a later version are read from either place.

    ```mlir
    %0 = train.onnx_node "MatMul" opset 17(%x, %w) {} : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
    ```
    becomes
    ```mlir
    %0 = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf32>, tensor<4x2xf32>
    ```
  }];
  let options = [Option<"dropout", "dropout", "bool", "true", "else Dropout is the identity">,
                 Option<"train", "train", "bool", "true", "else batch norm uses its running statistics">];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

#endif
