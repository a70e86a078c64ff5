// From an einsum to products that a BLAS runs: which dimensions make the
// matrices, which the batch, which are looped over, and which operands have to
// be copied first. Plain arithmetic on shapes, so tests check it without a
// device.
#pragma once

#include "runtime/backends/cpu/Epilogue.h"
#include "runtime/backends/cpu/Equation.h"
#include "runtime/backends/cuda/kernels/Element.h"

#include <cstdint>
#include <vector>

namespace merak::cuda {

// Of a factor in 8 bits, which is multiplied by a number on the device besides.
enum class Eight : uint8_t { No, E4M3, E5M2 };

// C = alpha op(A) op(B) + beta C, column major as BLAS has it: element (i, j)
// of a matrix lies at i + j * ld. op(A) is m x k, op(B) k x n, C m x n.
struct Matmul {
  int64_t m = 0, n = 0, k = 0;
  bool transA = false, transB = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch = 1;
  int64_t strideA = 0, strideB = 0, strideC = 0; // elements
  Type ab = Type::F32, c = Type::F32;
  Eight a8 = Eight::No, b8 = Eight::No; // both or none: `ab` does not count
  // What is done to a single product (batch 1) before it is written: a bias for
  // each row of C; GELU's tanh form, its argument written to `aux` with `keep`;
  // or a product with GELU's slope at `aux`. Element (i, j) of aux lies at
  // i + j * ldAux.
  bool biased = false, gelu = false, keep = false, gradient = false;
  int64_t ldAux = 0;
  // Or the sums over k of op(A), one for each row of C, or of op(B), one for
  // each column, are written beside; they are of C's type.
  bool sumsA = false, sumsB = false;
  bool hasEpilogue() const {
    return biased || gelu || gradient || sumsA || sumsB;
  }
  bool isEight() const { return a8 != Eight::No; }
  int64_t factorBytes() const {
    return isEight() ? 1 : ab == Type::F32 ? 4 : 2;
  }
  bool operator==(const Matmul &) const = default;
};
// Batches beyond are cut: they are a dimension of the library's grids.
constexpr int64_t kMaxBatch = 65535;
struct MatmulCall {
  const void *a = nullptr, *b = nullptr;
  void *c = nullptr;
  float alpha = 1, beta = 0;
  const float *scaleA = nullptr, *scaleB = nullptr; // of factors in 8 bits
  const void *bias = nullptr;
  void *aux = nullptr;
  void *sums = nullptr;
};

// Matrices in a larger tensor: sizes and strides of rows and columns.
struct MatrixLayout {
  int64_t rows = 0, columns = 0, rowStride = 0, columnStride = 0;
};

// Whether column-major BLAS can address the matrix, as it is or transposed.
bool blasLayout(const MatrixLayout &matrix, bool &transposed, int64_t &ld);

// The product with operands laid out so; false if BLAS cannot address them.
// With the result's rows contiguous the transposed product is computed, and
// `swapped` says that A and B change places.
bool blasProduct(const MatrixLayout &a, const MatrixLayout &b,
                 const MatrixLayout &c, Matmul &product, bool &swapped);

// All products of an einsum. Operands: 0 a, 1 b, 2 out.
struct MatmulPlan {
  bool copied[3] = {false, false, false};
  // Of a copied operand: the view it is copied from (or to), in the order of
  // its dense copy.
  std::vector<int64_t> copyShape[3], copyStrides[3];
  Matmul product;
  bool swapped = false; // BLAS's A is operand 1
  // Products that are run one after the other: offsets of a, b and out, whether
  // the product adds to what earlier ones left, and its extents where they are
  // not those of `product`.
  struct Step {
    int64_t offsets[3];
    bool adds;
    int64_t m, n, k;
  };
  std::vector<Step> steps;
  Matmul of(const Step &step) const;
};

// The library's fast kernels for 2-byte types move 16 bytes at once: they take
// extents along which elements are contiguous that are multiples of this.
constexpr int64_t kFastExtent = 8;

// Whether such extents are not, and only these are in the way: rows and columns
// begin at multiples of 16 bytes.
bool hasRaggedExtents(const Matmul &product);

// Cuts every product of the plan into one of extents that are multiples of
// kFastExtent and narrow ones for the rest. A sum over k is begun by its rest,
// so that what a 16-bit result rounds in between is the smaller part.
// The vocabulary of GPT-2, 50257, takes 6.7 times as long in one piece
// (docs/performance.md).
void cutRaggedExtents(MatmulPlan &plan);

// Adds to the plan's only product that it ends with the epilogue. False if the
// product's rows and columns are not those of the bias or the argument, or
// there are several products; `nest` is cpu::epilogueNest's.
bool addEpilogue(const MatmulPlan &plan, const cpu::Epilogue &epilogue,
                 cpu::Nest nest, Matmul &product);

// Adds to the plan's only product that it writes the sums of operand `summed`
// over `length` elements each. False if its rows or columns are not `kept`: the
// operand's and the sums' offsets of what is not summed.
bool addSums(const MatmulPlan &plan, int summed, const cpu::Nest &kept,
             int64_t length, Matmul &product);

// Requires output elements. An empty sum gives a plan without steps.
// `ab`, `c`: types of the factors and the result in the products; operands in
// the bit set `forced` are copied in any case. `sumsLast`: copies of factors
// have what is summed over as their last dimension.
MatmulPlan planMatmul(const cpu::Problem &problem, Type ab, Type c,
                      int forced = 0, bool sumsLast = false);

// The product of factors of 8 bits, both copied with what is summed last. False
// if the library's kernels, which move 16 bytes at once, do not take it.
bool toEight(MatmulPlan &plan, Eight first, Eight second);

} // namespace merak::cuda
