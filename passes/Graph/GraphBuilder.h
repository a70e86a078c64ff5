// Builds train ops from values that may come from a user's file: every helper
// checks its operands, reports at the builder's location and returns a null
// value instead of building a wrong op. Null operands give null results, so a
// conversion can be written straight down and checked once at its end.
#pragma once

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/Builders.h"

namespace merak {

using Shape = llvm::SmallVector<int64_t>;

inline mlir::RankedTensorType tensorType(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}
inline mlir::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return tensorType(value).getShape();
}
inline int64_t rankOf(mlir::Value value) { return tensorType(value).getRank(); }

// A type as users know it: "f32[8,32]".
std::string describeType(mlir::Type type);
std::string describeShape(mlir::ArrayRef<int64_t> shape);
// Sizes are not negative, and their product stays far inside 64 bits.
bool isSaneShape(mlir::ArrayRef<int64_t> shape);

// The value of a train.constant, null for anything else.
mlir::DenseElementsAttr constantOf(mlir::Value value);
// The number that every element of a float constant equals.
std::optional<double> splatOf(mlir::Value value);

class GraphBuilder {
public:
  GraphBuilder(mlir::OpBuilder &builder, mlir::Location loc)
      : builder(builder), loc(loc) {}

  mlir::OpBuilder &builder;
  mlir::Location loc;
  // Stands before every message, e.g. "Gemm (opset 13): ".
  std::string prefix;

  mlir::Value fail(const llvm::Twine &message);

  mlir::Value constant(mlir::DenseElementsAttr value);
  // A rank-0 constant of the element type of `like`.
  mlir::Value scalar(double number, mlir::Type element);
  mlir::Value scalarLike(double number, mlir::Value like);

  template <typename OpTy> mlir::Value unary(mlir::Value x) {
    return x ? OpTy::create(builder, loc, x.getType(), x).getResult() : x;
  }
  template <typename OpTy> mlir::Value binary(mlir::Value l, mlir::Value r) {
    if (!broadcasts({l, r}))
      return {};
    return OpTy::create(builder, loc, l, r).getResult();
  }
  template <typename OpTy> mlir::Value binary(mlir::Value l, double r) {
    return l ? binary<OpTy>(l, scalarLike(r, l)) : l;
  }
  mlir::Value compare(train::ComparePredicate predicate, mlir::Value l,
                      mlir::Value r);
  mlir::Value select(mlir::Value condition, mlir::Value l, mlir::Value r);
  mlir::Value cast(mlir::Value x, mlir::Type element);

  mlir::Value reshape(mlir::Value x, mlir::ArrayRef<int64_t> shape);
  mlir::Value transpose(mlir::Value x, mlir::ArrayRef<int64_t> perm);
  mlir::Value expand(mlir::Value x, mlir::ArrayRef<int64_t> shape);
  mlir::Value slice(mlir::Value x, mlir::ArrayRef<int64_t> starts,
                    mlir::ArrayRef<int64_t> sizes,
                    mlir::ArrayRef<int64_t> steps);
  // The range [start, start + size) of one dimension.
  mlir::Value sliceDim(mlir::Value x, int64_t dim, int64_t start, int64_t size);
  mlir::Value concat(mlir::ValueRange inputs, int64_t axis);
  // `batch`: leading dimensions that the table and the ids share.
  mlir::Value gather(mlir::Value table, mlir::Value ids, int64_t axis,
                     int64_t batch = 0);

  template <typename OpTy>
  mlir::Value reduce(mlir::Value x, mlir::ArrayRef<int64_t> axes, bool keep) {
    if (!x || !axesFit(x, axes))
      return {};
    if (axes.empty())
      return x;
    return OpTy::create(builder, loc, x, axes, keep).getResult();
  }
  // reduce_sum times 1/N.
  mlir::Value mean(mlir::Value x, mlir::ArrayRef<int64_t> axes, bool keep);
  mlir::Value einsum(llvm::StringRef equation, mlir::Value l, mlir::Value r);

private:
  bool broadcasts(mlir::ValueRange operands, bool skipFirstElement = false);
  bool axesFit(mlir::Value x, mlir::ArrayRef<int64_t> axes);
};

} // namespace merak
