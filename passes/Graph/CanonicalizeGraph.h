// Patterns of `canonicalize-graph`, by file.
#pragma once

#include "mlir/IR/PatternMatch.h"

namespace merak {

// Constants, neutral operands, powers, expands (CanonicalizeGraph.cpp).
void addArithmeticPatterns(mlir::RewritePatternSet &patterns);
// Tensors without elements (FoldEmpty.cpp).
void addEmptyPatterns(mlir::RewritePatternSet &patterns);
// Transposes into einsum equations (CanonicalizeTranspose.cpp).
void addTransposePatterns(mlir::RewritePatternSet &patterns);
// Reshapes behind ops that do not look at them (CanonicalizeReshape.cpp).
void addReshapePatterns(mlir::RewritePatternSet &patterns);

// Known ids, ids inside a sample (CanonicalizeGather.cpp).
void addGatherPatterns(mlir::RewritePatternSet &patterns);

} // namespace merak
