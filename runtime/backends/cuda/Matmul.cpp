#include "runtime/backends/cuda/Matmul.h"
#include "runtime/layout/Strides.h"

#include <algorithm>
#include <optional>

namespace merak::cuda {

using cpu::Nest;
using cpu::Problem;

bool blasLayout(const MatrixLayout &x, bool &transposed, int64_t &ld) {
  auto fits = [](int64_t inner, int64_t innerStride, int64_t outer,
                 int64_t outerStride, int64_t &ld) {
    ld = outer == 1 ? std::max<int64_t>(inner, 1) : outerStride;
    return (innerStride == 1 || inner == 1) && ld >= inner;
  };
  transposed = false;
  if (fits(x.rows, x.rowStride, x.columns, x.columnStride, ld))
    return true;
  transposed = true;
  return fits(x.columns, x.columnStride, x.rows, x.rowStride, ld);
}

bool blasProduct(const MatrixLayout &a, const MatrixLayout &b,
                 const MatrixLayout &c, Matmul &product, bool &swapped) {
  if (!blasLayout(c, swapped, product.ldc))
    return false;
  auto flip = [](const MatrixLayout &x) {
    return MatrixLayout{x.columns, x.rows, x.columnStride, x.rowStride};
  };
  const MatrixLayout &first = swapped ? flip(b) : a;
  const MatrixLayout &second = swapped ? flip(a) : b;
  product.m = first.rows;
  product.k = first.columns;
  product.n = second.columns;
  return blasLayout(first, product.transA, product.lda) &&
         blasLayout(second, product.transB, product.ldb);
}

namespace {

constexpr int64_t kMostSteps = 64; // before operands are copied instead

Nest::Inner take(Nest &nest, size_t d) {
  Nest::Inner taken;
  taken.strides.assign(nest.strides.size(), 0);
  if (nest.sizes.empty())
    return taken;
  taken.size = nest.sizes[d];
  nest.sizes.erase(nest.sizes.begin() + d);
  for (size_t o = 0; o < nest.strides.size(); ++o) {
    taken.strides[o] = nest.strides[o][d];
    nest.strides[o].erase(nest.strides[o].begin() + d);
  }
  return taken;
}

// One way to run the problem as it lies; steps not filled in yet.
struct Choice {
  Matmul product;
  bool swapped = false;
  Nest loops, sums; // outside of the product
  int64_t steps() const { return loops.count() * sums.count(); }
};

// The dimensions `im`, `in`, `ik` of the groups make the matrices.
std::optional<Choice> choose(Problem p, size_t im, size_t in, size_t ik) {
  const Nest::Inner m = take(p.m, im), n = take(p.n, in), k = take(p.k, ik);
  Choice choice;
  if (!blasProduct({m.size, k.size, m.strides[0], k.strides[0]},
                   {k.size, n.size, k.strides[1], n.strides[1]},
                   {m.size, n.size, m.strides[2], n.strides[2]}, choice.product,
                   choice.swapped))
    return std::nullopt;
  // All that is left of the result's dimensions is looped over; the longest of
  // them in one batched product.
  Nest &loops = choice.loops;
  loops.strides.resize(3);
  for (const Nest *nest : {&p.batch, &p.m, &p.n}) {
    loops.sizes.insert(loops.sizes.end(), nest->sizes.begin(),
                       nest->sizes.end());
    for (int o = 0; o < 3; ++o)
      loops.strides[o].insert(loops.strides[o].end(), nest->strides[o].begin(),
                              nest->strides[o].end());
  }
  if (!loops.sizes.empty()) {
    const auto longest =
        std::max_element(loops.sizes.begin(), loops.sizes.end());
    const Nest::Inner batch =
        take(loops, size_t(longest - loops.sizes.begin()));
    Matmul &product = choice.product;
    product.batch = batch.size;
    product.strideA = batch.strides[choice.swapped ? 1 : 0];
    product.strideB = batch.strides[choice.swapped ? 0 : 1];
    product.strideC = batch.strides[2];
  }
  choice.sums = p.k;
  return choice;
}

std::optional<Choice> best(const Problem &p) {
  std::optional<Choice> found;
  auto dims = [](const Nest &nest) {
    return std::max<size_t>(nest.sizes.size(), 1);
  };
  for (size_t im = 0; im < dims(p.m); ++im)
    for (size_t in = 0; in < dims(p.n); ++in)
      for (size_t ik = 0; ik < dims(p.k); ++ik) {
        std::optional<Choice> choice = choose(p, im, in, ik);
        if (choice && (!found || choice->steps() < found->steps()))
          found = std::move(choice);
      }
  return found;
}

// Replaces an operand by a dense copy, its groups one after the other.
void densify(Problem &p, int operand, MatmulPlan &plan, bool sumsLast) {
  Nest *groups[3] = {&p.batch, operand == 1 ? &p.k : &p.m,
                     operand == 0 ? &p.k : &p.n};
  if (operand == 1 && sumsLast)
    std::swap(groups[1], groups[2]);
  std::vector<int64_t> &shape = plan.copyShape[operand];
  std::vector<int64_t> &strides = plan.copyStrides[operand];
  shape.clear();
  strides.clear();
  for (const Nest *nest : groups) {
    shape.insert(shape.end(), nest->sizes.begin(), nest->sizes.end());
    strides.insert(strides.end(), nest->strides[operand].begin(),
                   nest->strides[operand].end());
  }
  const std::vector<int64_t> dense = layout::denseStrides(shape);
  size_t at = 0;
  for (Nest *nest : groups)
    for (int64_t &stride : nest->strides[operand])
      stride = dense[at++];
  plan.copied[operand] = true;
}

void merge(Problem &p) {
  for (Nest *nest : {&p.batch, &p.m, &p.n, &p.k})
    *nest = Nest(nest->sizes, nest->strides);
}

int64_t operandElements(const Problem &p, int operand) {
  const int64_t batch = p.batch.count(), m = p.m.count(), n = p.n.count();
  const int64_t k = p.k.count();
  return batch * (operand == 0 ? m * k : operand == 1 ? k * n : m * n);
}

} // namespace

MatmulPlan planMatmul(const Problem &problem, Type ab, Type c, int forced,
                      bool sumsLast) {
  // The cheapest set of copies with which few enough products are left; with
  // all three copied there is a single one.
  MatmulPlan plan;
  std::optional<Choice> chosen;
  int64_t leastCopied = 0;
  for (int set = 0; set < 8; ++set) {
    if ((set & forced) != forced)
      continue;
    Problem p = problem;
    MatmulPlan attempt;
    int64_t copied = 0;
    for (int operand = 0; operand < 3; ++operand)
      if (set >> operand & 1) {
        densify(p, operand, attempt, sumsLast);
        copied += operandElements(p, operand);
      }
    merge(p);
    std::optional<Choice> choice = best(p);
    if (!choice || (choice->steps() > kMostSteps && set != 7))
      continue;
    if (chosen && copied >= leastCopied)
      continue;
    plan = std::move(attempt);
    chosen = std::move(choice);
    leastCopied = copied;
  }
  plan.product = chosen->product;
  plan.product.ab = ab;
  plan.product.c = c;
  plan.swapped = chosen->swapped;
  if (problem.k.count() == 0)
    return plan;
  for (int64_t i = 0; i < chosen->loops.count(); ++i)
    for (int64_t s = 0; s < chosen->sums.count(); ++s) {
      int64_t loop[3] = {0, 0, 0}, sum[3] = {0, 0, 0};
      chosen->loops.offsets(i, loop);
      chosen->sums.offsets(s, sum);
      plan.steps.push_back(
          {{loop[0] + sum[0], loop[1] + sum[1], loop[2] + sum[2]},
           s > 0,
           plan.product.m,
           plan.product.n,
           plan.product.k});
    }
  return plan;
}

Matmul MatmulPlan::of(const Step &step) const {
  Matmul cut = product;
  cut.m = step.m;
  cut.n = step.n;
  cut.k = step.k;
  return cut;
}

namespace {

// An extent, and by how many elements operands are passed from one of its
// places to the next.
struct Extent {
  int64_t size, a, b, c;
  bool contiguous; // in some operand
  bool ragged() const { return contiguous && size % kFastExtent != 0; }
};

Extent rowsOf(const Matmul &p) {
  return {p.m, p.transA ? p.lda : 1, 0, 1, true};
}
Extent columnsOf(const Matmul &p) {
  return {p.n, 0, p.transB ? 1 : p.ldb, p.ldc, p.transB};
}
Extent summedOf(const Matmul &p) {
  return {p.k, p.transA ? 1 : p.lda, p.transB ? p.ldb : 1, 0,
          p.transA || !p.transB};
}

} // namespace

bool hasRaggedExtents(const Matmul &p) {
  // Of C, whose type may be of 4 bytes, the same is asked for simplicity.
  for (int64_t step : {p.lda, p.ldb, p.ldc, p.strideA, p.strideB, p.strideC})
    if (step % kFastExtent != 0)
      return false;
  return p.ab != Type::F32 &&
         (rowsOf(p).ragged() || columnsOf(p).ragged() || summedOf(p).ragged());
}

void cutRaggedExtents(MatmulPlan &plan) {
  using Step = MatmulPlan::Step;
  const int a = plan.swapped ? 1 : 0, b = 1 - a;
  // Every step as it was and, where it is cut, its rest; `first`: the rest's
  // place among the two.
  auto cut = [&](const Extent &extent, int64_t Step::*size, bool first) {
    const int64_t rest = extent.size % kFastExtent;
    if (!extent.ragged() || extent.size < kFastExtent)
      return;
    std::vector<Step> steps;
    for (const Step &step : plan.steps) {
      Step whole = step, end = step;
      whole.*size -= rest;
      end.*size = rest;
      end.offsets[a] += (extent.size - rest) * extent.a;
      end.offsets[b] += (extent.size - rest) * extent.b;
      end.offsets[2] += (extent.size - rest) * extent.c;
      if (first) {
        whole.adds = true;
        std::swap(whole, end);
      }
      steps.push_back(whole);
      steps.push_back(end);
    }
    plan.steps = std::move(steps);
  };
  cut(summedOf(plan.product), &Step::k, true);
  cut(rowsOf(plan.product), &Step::m, false);
  cut(columnsOf(plan.product), &Step::n, false);
}

bool toEight(MatmulPlan &plan, Eight first, Eight second) {
  constexpr int64_t kBytes = 16;
  Matmul &p = plan.product;
  p.a8 = plan.swapped ? second : first;
  p.b8 = plan.swapped ? first : second;
  const int64_t c = p.c == Type::F32 ? 4 : 2;
  bool fits = !plan.steps.empty() && plan.copied[0] && plan.copied[1] &&
              p.transA && !p.transB;
  for (int64_t size : {p.m, p.n, p.k, p.lda, p.ldb, p.strideA, p.strideB,
                       p.ldc * c, p.strideC * c})
    fits = fits && size % kBytes == 0;
  for (const MatmulPlan::Step &step : plan.steps)
    fits = fits && step.offsets[0] % kBytes == 0 &&
           step.offsets[1] % kBytes == 0 && step.offsets[2] * c % kBytes == 0;
  return fits;
}

bool addEpilogue(const MatmulPlan &plan, const cpu::Epilogue &epilogue,
                 Nest nest, Matmul &product) {
  product = plan.product;
  if (plan.steps.size() != 1 || plan.copied[2] || product.batch != 1)
    return false;
  // In the order of memory: columns of C, then its rows.
  nest.sortBy(0);
  const bool needsAux = epilogue.keeps() || epilogue.slopes();
  product.ldAux = 0;
  if (nest.rank() == 1 && nest.sizes[0] == product.m * product.n &&
      !epilogue.biased && product.ldc == product.m) {
    // One run: out and argument are both without gaps.
    if (nest.strides[0][0] != 1 || nest.strides[2][0] != 1)
      return false;
    product.ldAux = product.m;
  } else {
    if (nest.rank() != 2 || nest.sizes[0] != product.n ||
        nest.sizes[1] != product.m || nest.strides[0][0] != product.ldc ||
        nest.strides[0][1] != 1)
      return false;
    if (epilogue.biased && (nest.strides[1][0] != 0 || nest.strides[1][1] != 1))
      return false;
    if (needsAux && nest.strides[2][1] != 1)
      return false;
    product.ldAux = nest.strides[2][0];
  }
  // cuBLASLt: rows of the argument begin at multiples of 8 elements.
  if (needsAux && (product.ldAux < product.m || product.ldAux % 8 != 0))
    return false;
  product.biased = epilogue.biased;
  product.gelu = epilogue.activates();
  product.keep = epilogue.keeps();
  product.gradient = epilogue.slopes();
  return true;
}

bool addSums(const MatmulPlan &plan, int summed, const Nest &kept,
             int64_t length, Matmul &product) {
  product = plan.product;
  if (plan.steps.size() != 1 || plan.copied[2] || plan.copied[summed] ||
      product.batch != 1 || product.k != length || kept.rank() > 1)
    return false;
  const bool isA = (summed == 0) != plan.swapped;
  const int64_t size = isA ? product.m : product.n;
  const int64_t step = isA ? (product.transA ? product.lda : 1)
                           : (product.transB ? 1 : product.ldb);
  if (kept.count() != size ||
      (size > 1 && (kept.strides[0][0] != step || kept.strides[1][0] != 1)))
    return false;
  (isA ? product.sumsA : product.sumsB) = true;
  return true;
}

} // namespace merak::cuda
