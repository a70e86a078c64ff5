// einsum: a sum of products becomes a batch of matrix products on strided
// views.
//
// Each letter belongs to one group: batch (a, b, out), M (a, out), N (b, out)
// or K (summed). Within a group, letters that the operands walk as one are
// merged, so "btk,kn->btn" on dense tensors is one product of bt rows, and
// "bihd,bjhd->bhij" is a product of i x d by d x j for each b, h, on the given
// strides. What does not merge is looped over, or the operand is made dense
// first if the products would be too small otherwise.
#include "runtime/backends/cpu/Copy.h"
#include "runtime/backends/cpu/Epilogue.h"
#include "runtime/backends/cpu/Equation.h"
#include "runtime/backends/cpu/Gemm.h"
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/RoundedOperand.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/core/DType.h"
#include "runtime/core/Gelu.h"
#include "runtime/layout/Strides.h"

#include <fmt/format.h>
#include <numeric>

namespace merak::cpu {

namespace {

// ------------------------------------------------------------ any type

// One output element after the other, for types without a matrix product and
// for shapes where there is none (every letter in all operands).
template <typename T>
void direct(const Problem &p, const View &a, const View &b, const View &out,
            double alpha, bool accumulate, ThreadPool &pool) {
  using Sum = typename Accumulator<T>::Type;
  int64_t m = p.m.count(), n = p.n.count();
  Nest outerK = p.k;
  Nest::Inner inner = outerK.splitInner();
  int64_t outerCount = outerK.count();
  pool.parallelFor(
      p.elements(),
      std::max<int64_t>(1, 4096 / std::max<int64_t>(1, p.k.count())),
      [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
          int64_t ob[3], om[3], on[3], ok[3];
          // Row-major in [batch, m, n]: of m = 2 and n = 3, 10 is (1, 1, 1).
          p.batch.offsets(at / (m * n), ob);
          p.m.offsets(at / n % m, om);
          p.n.offsets(at % n, on);
          const T *x = static_cast<const T *>(a.data) + ob[kA] + om[kA];
          const T *y = static_cast<const T *>(b.data) + ob[kB] + on[kB];
          Sum sum = 0;
          for (int64_t i = 0; i < outerCount; ++i) {
            outerK.offsets(i, ok);
            for (int64_t j = 0; j < inner.size; ++j)
              sum += static_cast<Sum>(x[ok[kA] + j * inner.strides[kA]]) *
                     static_cast<Sum>(y[ok[kB] + j * inner.strides[kB]]);
          }
          T value = alpha == 1
                        ? static_cast<T>(sum)
                        : static_cast<T>(alpha * static_cast<double>(sum));
          T &target =
              static_cast<T *>(out.data)[ob[kOut] + om[kOut] + on[kOut]];
          target = accumulate ? static_cast<T>(target + value) : value;
        }
      });
}

// ------------------------------------------------------------ matrices

// Takes the dimension for the matrix product out of a group: the largest one.
Nest::Inner takeLargest(Nest &nest) {
  if (nest.sizes.empty())
    return nest.splitInner();
  size_t best = 0;
  for (size_t d = 1; d < nest.sizes.size(); ++d)
    if (nest.sizes[d] >= nest.sizes[best])
      best = d;
  Nest::Inner taken;
  taken.size = nest.sizes[best];
  nest.sizes.erase(nest.sizes.begin() + best);
  for (auto &strides : nest.strides) {
    taken.strides.push_back(strides[best]);
    strides.erase(strides.begin() + best);
  }
  return taken;
}

// A batch of equal matrix products: `loops` of (a, b, out) offsets.
class Matrices {
public:
  explicit Matrices(const Problem &p)
      : batch_(p.batch), m_(p.m), n_(p.n), k_(p.k) {
    im_ = takeLargest(m_);
    in_ = takeLargest(n_);
    ik_ = takeLargest(k_);
  }

  // Loops that did not merge into the product.
  int64_t loops() const { return m_.count() * n_.count() * k_.count(); }
  int64_t work() const { return im_.size * in_.size * ik_.size; }

  void run(const float *a, const float *b, float *out, float alpha,
           bool accumulate, ThreadPool &pool) const {
    const int64_t products = batch_.count() * m_.count() * n_.count();
    const int64_t sums = k_.count();
    // Each product is cut along its longer side into parts of whole tiles, so
    // that there are enough parts and each packs little twice.
    const bool cutColumns = in_.size >= im_.size;
    const int64_t side = cutColumns ? in_.size : im_.size;
    const int64_t unit = cutColumns ? 32 : 14;
    const int64_t units = std::max<int64_t>(1, (side + unit - 1) / unit);
    int64_t parts = 1;
    if (products < 4 * pool.threads())
      parts = std::min<int64_t>(units, pool.threads());
    int64_t flops = work() * sums / parts;
    pool.parallelFor(products * parts,
                     std::max<int64_t>(1, 65536 / std::max<int64_t>(1, flops)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t t = begin; t < end; ++t) {
                         // 100 columns are 4 tiles of 32; of 3 parts the
                         // first two have one tile each, up to 32 and 64,
                         // and the last one the rest.
                         int64_t part = t % parts;
                         int64_t first =
                             std::min(side, units * part / parts * unit);
                         int64_t last =
                             std::min(side, units * (part + 1) / parts * unit);
                         one(t / parts, cutColumns, first, last - first, a, b,
                             out, alpha, accumulate);
                       }
                     });
  }

private:
  void one(int64_t index, bool cutColumns, int64_t first, int64_t length,
           const float *a, const float *b, float *out, float alpha,
           bool accumulate) const {
    int64_t ob[3], om[3], on[3], ok[3];
    int64_t n = n_.count(), m = m_.count();
    batch_.offsets(index / (m * n), ob);
    m_.offsets(index / n % m, om);
    n_.offsets(index % n, on);
    Gemm g;
    g.m = im_.size, g.n = in_.size, g.k = ik_.size;
    g.aRow = im_.strides[kA], g.aCol = ik_.strides[kA];
    g.bRow = ik_.strides[kB], g.bCol = in_.strides[kB];
    g.cRow = im_.strides[kOut], g.cCol = in_.strides[kOut];
    if (g.n == 1)
      g.cCol = 1;
    else if (g.m == 1)
      g.cRow = g.n;
    g.alpha = alpha;
    (cutColumns ? g.n : g.m) = length;
    a += ob[kA] + om[kA] + (cutColumns ? 0 : first * g.aRow);
    b += ob[kB] + on[kB] + (cutColumns ? first * g.bCol : 0);
    g.c = out + ob[kOut] + om[kOut] + on[kOut] +
          first * (cutColumns ? g.cCol : g.cRow);
    int64_t sums = k_.count();
    if (sums == 0) { // an empty sum
      g.k = 0;
      g.accumulate = accumulate;
      gemm(g);
    }
    for (int64_t i = 0; i < sums; ++i) {
      k_.offsets(i, ok);
      g.a = a + ok[kA];
      g.b = b + ok[kB];
      g.accumulate = accumulate || i > 0;
      gemm(g);
    }
  }

  Nest batch_, m_, n_, k_;
  Nest::Inner im_, in_, ik_;
};

// Strides of a dense copy of an operand, group after group.
void densify(Problem &p, Operand operand, std::initializer_list<Nest *> groups,
             View &view) {
  view.shape.clear();
  view.strides.clear();
  for (Nest *nest : groups) {
    view.shape.insert(view.shape.end(), nest->sizes.begin(), nest->sizes.end());
    view.strides.insert(view.strides.end(), nest->strides[operand].begin(),
                        nest->strides[operand].end());
  }
  std::vector<int64_t> dense = layout::denseStrides(view.shape);
  size_t at = 0;
  for (Nest *nest : groups)
    for (int64_t &stride : nest->strides[operand])
      stride = dense[at++];
  for (Nest *nest : groups)
    *nest = Nest(nest->sizes, nest->strides);
}

class Einsum : public Kernel {
public:
  Einsum(Problem problem, Request &request, double alpha)
      : alpha_(alpha), accumulate_(request.instruction.accumulate()),
        matrices_(problem) {
    // Copy operands while the products are small and something is split.
    constexpr int64_t kEnough = 32 * 32 * 32;
    const View *views[] = {&request.inputs[0], &request.inputs[1],
                           &request.outputs[0]};
    for (Operand o : {kA, kB, kOut}) {
      if (matrices_.loops() <= 1 || matrices_.work() >= kEnough)
        break;
      View strided = *views[o];
      if (o == kA)
        densify(problem, o, {&problem.batch, &problem.m, &problem.k}, strided);
      else if (o == kB)
        densify(problem, o, {&problem.batch, &problem.k, &problem.n}, strided);
      else
        densify(problem, o, {&problem.batch, &problem.m, &problem.n}, strided);
      View dense = denseView(strided, nullptr);
      copies_[o] = o == kOut ? CopyPlan(dense, strided, accumulate_)
                             : CopyPlan(strided, dense, false);
      dense_[o].resize(static_cast<size_t>(strided.elements()));
      copied_[o] = true;
      matrices_ = Matrices(problem);
    }
  }

  Status run(const KernelCall &call, ThreadPool &pool) override {
    const float *inputs[] = {f32(call.inputs[0]), f32(call.inputs[1])};
    for (int o : {kA, kB})
      if (copied_[o]) {
        copies_[o].run(inputs[o], dense_[o].data(), pool);
        inputs[o] = dense_[o].data();
      }
    float *out = f32Out(call.outputs[0]);
    float *target = copied_[kOut] ? dense_[kOut].data() : out;
    matrices_.run(inputs[kA], inputs[kB], target, static_cast<float>(alpha_),
                  accumulate_ && !copied_[kOut], pool);
    if (copied_[kOut])
      copies_[kOut].run(target, out, pool);
    return {};
  }

private:
  double alpha_;
  bool accumulate_;
  Matrices matrices_;
  CopyPlan copies_[kOperands];
  std::vector<float> dense_[kOperands];
  bool copied_[kOperands] = {false, false, false};
};

KernelResult createExact(Request &request) {
  Problem problem;
  if (!readEquation(request, problem))
    return request.status();
  double alpha = request.real("alpha", 1.0);
  planpb::DType dtype = request.outputs[0].dtype;
  request.type(request.inputs[0], "input 0", dtype);
  request.type(request.inputs[1], "input 1", dtype);
  request.expect(withNumber(dtype, [](auto) {}),
                 fmt::format("no product of {}", runtime::dtypeName(dtype)));
  if (!request.ok())
    return request.status();
  bool products = problem.m.count() > 1 || problem.n.count() > 1;
  if (dtype == planpb::F32 && products)
    return std::unique_ptr<Kernel>(
        std::make_unique<Einsum>(problem, request, alpha));
  bool accumulate = request.instruction.accumulate();
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    withNumber(dtype, [&](auto type) {
      direct<decltype(type)>(problem, call.inputs[0], call.inputs[1],
                             call.outputs[0], alpha, accumulate, pool);
    });
    return Status();
  });
}

// The product of operands that are rounded to 8 bits first.
class Rounded : public Kernel {
public:
  static KernelResult create(Request &request,
                             const std::array<runtime::Float8, 2> &types) {
    const std::span<const View> inputs = request.inputs.first(2);
    for (const View &view : inputs)
      request.type(view, "a rounded factor", planpb::F32);
    const View dense[] = {denseView(inputs[0], nullptr),
                          denseView(inputs[1], nullptr)};
    Request exact(request.instruction, dense, request.outputs);
    KernelResult product = createExact(exact);
    if (!request.ok() || !product.ok())
      return request.ok() ? product.status() : request.status();
    return std::unique_ptr<Kernel>(
        std::make_unique<Rounded>(types, inputs, std::move(*product)));
  }

  Rounded(const std::array<runtime::Float8, 2> &types,
          std::span<const View> inputs, std::unique_ptr<Kernel> product)
      : a_(types[0], ScratchSlot::RoundedA, inputs[0]),
        b_(types[1], ScratchSlot::RoundedB, inputs[1]),
        product_(std::move(product)) {}

  Status run(const KernelCall &call, ThreadPool &pool) override {
    const View rounded[] = {a_.run(call.inputs[0], pool),
                            b_.run(call.inputs[1], pool)};
    KernelCall inner = call;
    inner.inputs = rounded;
    return product_->run(inner, pool);
  }

private:
  RoundedOperand a_, b_;
  std::unique_ptr<Kernel> product_;
};

KernelResult createProduct(Request &request) {
  const auto types = readRounds(request);
  if (!request.ok())
    return request.status();
  return types ? Rounded::create(request, *types) : createExact(request);
}

// The product in memory of its own, then what is done to it, element by
// element.
class WithEpilogue : public Kernel {
public:
  static KernelResult create(Request &request, const Epilogue &epilogue) {
    request.allF32();
    if (!request.ok())
      return request.status();
    auto kernel = std::make_unique<WithEpilogue>();
    kernel->epilogue_ = epilogue;
    kernel->plain_ = request.instruction;
    kernel->plain_.set_accumulate(false);
    kernel->adds_ = request.instruction.accumulate();
    kernel->dense_ = denseView(request.outputs[0], nullptr);
    Request plain(kernel->plain_, request.inputs.first(2),
                  std::span(&kernel->dense_, 1));
    KernelResult product = createProduct(plain);
    if (!product.ok())
      return product.status();
    kernel->product_ = std::move(*product);
    kernel->values_.resize(static_cast<size_t>(kernel->dense_.elements()));
    kernel->nest_ = epilogueNest(request, epilogue);
    return std::unique_ptr<Kernel>(std::move(kernel));
  }

  Status run(const KernelCall &call, ThreadPool &pool) override {
    dense_.data = values_.data();
    KernelCall inner = call;
    inner.instruction = &plain_;
    inner.inputs = call.inputs.first(2);
    inner.outputs = std::span(&dense_, 1);
    inner.accumulate = false;
    MERAK_RETURN_IF_ERROR(product_->run(inner, pool));
    float *out = f32Out(call.outputs[0]);
    const EpilogueOperands operands =
        operandsOf(epilogue_, call.inputs, call.outputs);
    const float *bias = operands.bias ? f32(*operands.bias) : nullptr;
    const float *at = operands.slopeAt ? f32(*operands.slopeAt) : nullptr;
    float *kept = operands.keep ? f32Out(*operands.keep) : nullptr;
    auto write = [&](float *to, int64_t offset, float value) {
      to[offset] = adds_ ? to[offset] + value : value;
    };
    // The dense product lies in the nest's order.
    pool.parallelFor(dense_.elements(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t offsets[3];
        nest_.offsets(i, offsets);
        float value = values_[i] + (bias ? bias[offsets[1]] : 0.0f);
        if (kept)
          write(kept, offsets[2], value);
        if (at)
          value *= runtime::geluSlope(at[offsets[2]]);
        else if (epilogue_.gelu != Epilogue::None)
          value = runtime::gelu(value);
        write(out, offsets[0], value);
      }
    });
    return {};
  }

private:
  Epilogue epilogue_;
  planpb::Instruction plain_;
  bool adds_ = false;
  View dense_;
  std::unique_ptr<Kernel> product_;
  std::vector<float> values_;
  Nest nest_;
};

// The product, then the sums of one of its factors.
class WithSums : public Kernel {
public:
  static KernelResult create(Request &request, int summed) {
    auto kernel = std::make_unique<WithSums>();
    kernel->parts_ = {request.instruction, summed};
    Request product = kernel->parts_.product(request);
    KernelResult made = createProduct(product);
    if (!made.ok())
      return made.status();
    kernel->multiply_ = std::move(*made);
    Request sum = kernel->parts_.sum(request);
    made = findKernel("reduce_sum")->create(sum);
    if (!made.ok())
      return made.status();
    kernel->reduce_ = std::move(*made);
    return std::unique_ptr<Kernel>(std::move(kernel));
  }

  Status run(const KernelCall &call, ThreadPool &pool) override {
    MERAK_RETURN_IF_ERROR(multiply_->run(parts_.product(call), pool));
    return reduce_->run(parts_.sum(call), pool);
  }

private:
  ProductAndSum parts_;
  std::unique_ptr<Kernel> multiply_, reduce_;
};

KernelResult createEinsum(Request &request) {
  Epilogue epilogue;
  if (!readEpilogue(request, epilogue))
    return request.status();
  if (epilogue.summed >= 0)
    return WithSums::create(request, epilogue.summed);
  return epilogue.any() ? WithEpilogue::create(request, epilogue)
                        : createProduct(request);
}

constexpr KernelEntry kEntries[] = {
    {"einsum", createEinsum, true, true, false},
};

} // namespace

std::span<const KernelEntry> einsumKernels() { return kEntries; }

} // namespace merak::cpu
