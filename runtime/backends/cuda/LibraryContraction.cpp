// einsum: matrix products through the BLAS of the device; what is none (every
// letter in all operands, integers, f64) through a kernel of our own.
#include "runtime/backends/cpu/Epilogue.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/RoundedOperand.h"
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/backends/cuda/Matmul.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>

namespace merak::cuda {

using runtime::Float8;

namespace {

// A product of fewer multiplications takes less than launching its narrow rest.
constexpr double kLeastCut = 4e9;

KernelResult createDirect(Request &request, const cpu::Problem &problem,
                          double alpha) {
  ContractArgs args;
  args.batch = makeLoops<3>(request, problem.batch);
  args.m = makeLoops<3>(request, problem.m);
  args.n = makeLoops<3>(request, problem.n);
  args.k = makeLoops<3>(request, problem.k);
  args.alpha = alpha;
  if (!request.ok())
    return request.status();
  const bool whole = request.outputs[0].dtype == planpb::I64 ||
                     request.outputs[0].dtype == planpb::I32;
  return makeKernel([=](const KernelCall &call, Launcher &launcher) {
    ContractArgs now = args;
    now.a = ref(call.inputs[0]);
    now.b = ref(call.inputs[1]);
    now.out = ref(call.outputs[0]);
    now.add = call.accumulate;
    const int64_t count = now.batch.count * now.m.count * now.n.count;
    return whole ? launcher.items<KernelId::ContractWhole>(now, count)
                 : launcher.items<KernelId::ContractReal>(now, count);
  });
}

// A factor that is rounded to 8 bits, into a dense copy: as these bits, or as
// what they stand for.
class Rounder {
public:
  Rounder() = default;
  Rounder(Request &request, const Float8 &type, const View &from,
          const View &to, bool bits) {
    constexpr int64_t kPieces = 1024, kPiece = 4096;
    Nest nest(from.shape, {from.strides});
    nest.sortBy(0);
    largest_.from = ref(from);
    largest_.loops = makeLoops<1>(request, nest);
    const int64_t count = largest_.loops.count;
    largest_.pieces =
        std::clamp<int64_t>((count + kPiece - 1) / kPiece, 1, kPieces);
    largest_.pieceSize = (count + largest_.pieces - 1) / largest_.pieces;
    Nest copy(from.shape, {from.strides, to.strides});
    copy.sortBy(1);
    turns_ = turn(copy);
    round_.from = ref(from);
    round_.to = ref(to);
    round_.loops = makeLoops<2>(request, copy);
    round_.type = type;
    round_.bits = bits;
    round_.pieces = largest_.pieces;
  }
  uint64_t workspace() const {
    return alignUp(uint64_t(largest_.pieces) * sizeof(uint32_t)) +
           alignUp(sizeof(float));
  }
  // Where the inverse of the scale is going to be.
  float *reserve(Launcher &launcher) {
    largest_.largest = launcher.workspace<uint32_t>(uint64_t(largest_.pieces));
    round_.largest = largest_.largest;
    return round_.inverse = launcher.workspace<float>(1);
  }
  Status run(Launcher &launcher, void *from, void *to) {
    largest_.from.data = round_.from.data = static_cast<char *>(from);
    round_.to.data = static_cast<char *>(to);
    MERAK_RETURN_IF_ERROR(launcher.rows<KernelId::Largest>(
        largest_, largest_.pieces, kTileThreads));
    if (!turns_)
      return launcher.items<KernelId::Round>(round_, round_.loops.count);
    const TurnedMatrix &m = round_.turned;
    return launcher.rows<KernelId::RoundTurned>(
        round_,
        round_.loops.count * TurnedMatrix::tilesOf(m.rows) *
            TurnedMatrix::tilesOf(m.columns),
        kTileThreads);
  }

private:
  // Takes two dimensions out of a copy that turns them: the one along which it
  // writes, and another one along which it reads.
  bool turn(Nest &copy) {
    const size_t last = copy.sizes.size() - 1;
    if (copy.sizes.empty() || copy.strides[1][last] != 1)
      return false;
    for (size_t d = 0; d < last; ++d)
      if (copy.strides[0][d] == 1 && copy.strides[0][last] != 1 &&
          copy.sizes[d] > 1) {
        round_.turned = {copy.sizes[last], copy.sizes[d], copy.strides[0][last],
                         copy.strides[1][d]};
        for (size_t taken : {last, d}) {
          copy.sizes.erase(copy.sizes.begin() + ptrdiff_t(taken));
          for (std::vector<int64_t> &strides : copy.strides)
            strides.erase(strides.begin() + ptrdiff_t(taken));
        }
        return true;
      }
    return false;
  }

  LargestArgs largest_;
  RoundArgs round_;
  bool turns_ = false;
};

// To which 8 bits a product's factors are rounded, and whether these are
// multiplied or what they stand for.
struct Rounds {
  std::array<Float8, 2> types;
  bool bits = false;
};

Eight eightOf(const Float8 &type) {
  return type == runtime::kE4M3 ? Eight::E4M3 : Eight::E5M2;
}

class Product : public Kernel {
public:
  Product(Request &request, const cpu::Problem &problem, double alpha,
          planpb::DType ab, planpb::DType c, int forced,
          const cpu::Epilogue &epilogue,
          const std::optional<Rounds> &rounds = std::nullopt)
      : plan_(planMatmul(problem, typeOf(ab), typeOf(c), forced,
                         rounds && rounds->bits)),
        alpha_(static_cast<float>(alpha)), epilogue_(epilogue),
        rounds_(rounds) {
    if (rounds_ && rounds_->bits)
      takesEight_ = toEight(plan_, eightOf(rounds_->types[0]),
                            eightOf(rounds_->types[1]));
    const Matmul &whole = plan_.product;
    if (!whole.isEight() && hasRaggedExtents(whole) &&
        double(whole.m) * whole.n * whole.k * whole.batch >= kLeastCut)
      cutRaggedExtents(plan_);
    fast_ = epilogue.any() &&
            addEpilogue(plan_, epilogue, epilogueNest(request, epilogue),
                        product_) &&
            hasTypeOf(request, c);
    const View *views[] = {&request.inputs[0], &request.inputs[1],
                           &request.outputs[0]};
    workspace = kMatmulWorkspace;
    const bool adds = request.instruction.accumulate();
    for (int o = 0; o < 3; ++o) {
      View strided = *views[o];
      elementSize_[o] = runtime::dtypeSize(strided.dtype);
      if (!plan_.copied[o])
        continue;
      strided.shape = plan_.copyShape[o];
      strided.strides = plan_.copyStrides[o];
      View dense = denseView(strided);
      const bool bits = rounds_ && rounds_->bits;
      dense.dtype = o == 2 ? c : bits ? planpb::U8 : ab;
      elementSize_[o] = runtime::dtypeSize(dense.dtype);
      if (rounds_ && o < 2) {
        rounders_[o] =
            Rounder(request, rounds_->types[size_t(o)], strided, dense, bits);
        workspace += rounders_[o].workspace();
      }
      copies_[o] = o == 2 ? makeCopy(request, dense, strided, adds)
                          : makeCopy(request, strided, dense, false);
      bytes_[o] = denseBytes(dense);
      workspace += bytes_[o];
    }
    const View &out = request.outputs[0];
    all_ = makeLoops<1>(request, Nest(out.shape, {out.strides}));
  }

  // Whether the shapes allow a product of 8 bits; the library decides when it
  // runs.
  bool takesEight() const { return takesEight_; }

  // From now on the product also writes the sums of a factor, if it can; see
  // addSums.
  bool takeSums(int summed, const Nest &kept, int64_t length) {
    return fast_ = summed_ =
               alpha_ == 1 && addSums(plan_, summed, kept, length, product_);
  }

  // Without an epilogue, or with one that the library does itself; `finished`
  // says whether it did. `rest`: what is to do otherwise. Of a product of 8
  // bits whether the library has it; nothing is done otherwise.
  Status run(const KernelCall &call, Launcher &launcher, bool &finished,
             const RestOf &rest, void *sums = nullptr) {
    finished = false;
    if (plan_.steps.empty()) // an empty sum
      return call.accumulate ? Status()
                             : runClear(launcher, all_, ref(call.outputs[0]));
    char *data[3] = {static_cast<char *>(call.inputs[0].data),
                     static_cast<char *>(call.inputs[1].data),
                     static_cast<char *>(call.outputs[0].data)};
    char *const given[3] = {data[0], data[1], data[2]};
    const float *scales[2] = {nullptr, nullptr};
    for (int o = 0; o < 3; ++o) {
      if (plan_.copied[o])
        data[o] = launcher.workspace(bytes_[o]);
      if (rounds_ && o < 2)
        scales[o] = rounders_[o].reserve(launcher);
    }
    void *blas = launcher.workspace(kMatmulWorkspace);
    auto callOf = [&](const MatmulPlan::Step &step) {
      auto at = [&](int o) {
        return data[o] + step.offsets[o] * elementSize_[o];
      };
      MatmulCall product;
      product.a = at(plan_.swapped ? 1 : 0);
      product.b = at(plan_.swapped ? 0 : 1);
      product.c = at(2);
      product.alpha = alpha_;
      product.beta = step.adds || (call.accumulate && !plan_.copied[2]) ? 1 : 0;
      if (plan_.product.isEight()) {
        product.scaleA = scales[plan_.swapped ? 1 : 0];
        product.scaleB = scales[plan_.swapped ? 0 : 1];
      }
      return product;
    };
    if (takesEight_) {
      auto taken = launcher.device.takes(plan_.of(plan_.steps.front()),
                                         callOf(plan_.steps.front()), {});
      if (!taken)
        return taken.status();
      if (!*taken)
        return {};
    }
    for (int o = 0; o < 2; ++o)
      if (plan_.copied[o])
        MERAK_RETURN_IF_ERROR(
            rounds_ ? rounders_[o].run(launcher, given[o], data[o])
                    : runCopy(launcher, copies_[o], given[o], data[o]));
    for (const MatmulPlan::Step &step : plan_.steps) {
      MatmulCall product = callOf(step);
      if (fast_ && (summed_ || !call.accumulate)) {
        product.sums = sums;
        MERAK_RETURN_IF_ERROR(
            runFast(call, product, blas, launcher, rest, finished));
        if (finished)
          return {};
        product.sums = nullptr;
      }
      MERAK_RETURN_IF_ERROR(launcher.multiply(plan_.of(step), product, blas));
    }
    finished = takesEight_;
    return plan_.copied[2] ? runCopy(launcher, copies_[2], data[2], given[2])
                           : Status();
  }

  Status run(const KernelCall &call, Launcher &launcher) override {
    bool finished = false;
    return run(call, launcher, finished, {});
  }

private:
  // The library wants bias and argument in the type of the result.
  bool hasTypeOf(const Request &request, planpb::DType c) const {
    bool same = true;
    for (const View &view : request.inputs.subspan(2))
      same = same && view.dtype == c;
    for (const View &view : request.outputs.subspan(1))
      same = same && view.dtype == c;
    return same;
  }
  Status runFast(const KernelCall &call, MatmulCall product, void *workspace,
                 Launcher &launcher, const RestOf &rest, bool &finished) {
    const cpu::EpilogueOperands operands =
        cpu::operandsOf(epilogue_, call.inputs, call.outputs);
    if (operands.bias)
      product.bias = operands.bias->data;
    if (operands.keep)
      product.aux = operands.keep->data;
    if (operands.slopeAt)
      product.aux = operands.slopeAt->data;
    auto taken = launcher.device.takes(product_, product, rest);
    if (!taken)
      return taken.status();
    finished =
        *taken &&
        launcher.device.matmul(product_, product, workspace, launcher.stream)
            .ok();
    // What it refuses once it would refuse again.
    fast_ = finished || !*taken;
    return {};
  }

  MatmulPlan plan_;
  float alpha_;
  cpu::Epilogue epilogue_;
  std::optional<Rounds> rounds_;
  Rounder rounders_[2];
  Matmul product_; // the plan's, with the epilogue
  bool fast_ = false, summed_ = false, takesEight_ = false;
  CopyArgs copies_[3];
  Loops<1> all_;
  uint64_t bytes_[3] = {0, 0, 0};
  int64_t elementSize_[3] = {0, 0, 0};
};

// The product of factors that are rounded to 8 bits: in these, where the
// library has it, or of the same numbers in the type they came in, which holds
// them.
class Rounded : public Kernel {
public:
  Rounded(std::unique_ptr<Product> eight, std::unique_ptr<Product> wide)
      : eight_(std::move(eight)), wide_(std::move(wide)) {
    workspace = std::max(eight_->workspace, wide_->workspace);
  }
  Status run(const KernelCall &call, Launcher &launcher) override {
    Launcher part = launcher; // both use the same workspace
    bool finished = false;
    if (eight_->takesEight())
      MERAK_RETURN_IF_ERROR(eight_->run(call, part, finished, {}));
    return finished ? Status() : wide_->run(call, launcher);
  }

private:
  std::unique_ptr<Product> eight_, wide_;
};

// A kernel that multiplies; `matmul`: the same, if it is a product of the BLAS,
// which can do more than multiply.
struct Multiply {
  std::unique_ptr<Kernel> kernel;
  Product *matmul = nullptr;

  // `finished`: see Product::run.
  Status run(const KernelCall &call, Launcher &launcher, bool &finished,
             const RestOf &rest) const {
    finished = false;
    return matmul ? matmul->run(call, launcher, finished, rest)
                  : kernel->run(call, launcher);
  }
};

// Bias and GELU of a product that lies in output 0; operands are the einsum's
// but for the factors.
class Finish : public Kernel {
public:
  Finish(Request &request, const cpu::Epilogue &epilogue) {
    args_.biased = epilogue.biased;
    args_.gelu = epilogue.activates();
    args_.keep = epilogue.keeps();
    args_.gradient = epilogue.slopes();
    Nest nest = epilogueNest(request, epilogue);
    nest.sortBy(0);
    args_.loops = makeLoops<3>(request, nest);
  }
  Status run(const KernelCall &call, Launcher &launcher) override {
    EpilogueArgs now = args_;
    now.out = ref(call.outputs[0]);
    if (args_.biased)
      now.bias = ref(call.inputs.front());
    if (args_.keep)
      now.argument = ref(call.outputs[1]);
    if (args_.gradient)
      now.argument = ref(call.inputs.back());
    return launcher.items<KernelId::FinishProduct>(now, now.loops.count);
  }

private:
  EpilogueArgs args_;
};

// A product and a kernel for what the library does not do to its result.
class Finished : public Kernel {
public:
  Finished(Request &request, Multiply product, const cpu::Epilogue &epilogue)
      : product_(std::move(product)), finish_(request, epilogue) {
    workspace = product_.kernel->workspace;
  }

  Status run(const KernelCall &call, Launcher &launcher) override {
    KernelCall finish = call;
    finish.inputs = call.inputs.subspan(2);
    bool finished = false;
    MERAK_RETURN_IF_ERROR(product_.run(call, launcher, finished, [&] {
      return restOf(finish_, finish, launcher.device);
    }));
    return finished ? Status() : finish_.run(finish, launcher);
  }

private:
  Multiply product_;
  Finish finish_;
};

Result<Multiply> asMultiply(KernelResult kernel) {
  if (!kernel.ok())
    return kernel.status();
  return Multiply{std::move(*kernel)};
}

Result<Multiply> createProduct(Request &request,
                               const cpu::Epilogue &epilogue) {
  cpu::Problem problem;
  if (!cpu::readEquation(request, problem))
    return request.status();
  const double alpha = request.real("alpha", 1.0);
  const planpb::DType a = request.inputs[0].dtype, b = request.inputs[1].dtype;
  const planpb::DType out = request.outputs[0].dtype;
  const bool real = isReal(a) && isReal(b) && isReal(out);
  const bool same =
      a == out && b == out &&
      (out == planpb::F64 || out == planpb::I64 || out == planpb::I32);
  request.expect(real || same,
                 fmt::format("no product of {} and {} in {}",
                             runtime::dtypeName(a), runtime::dtypeName(b),
                             runtime::dtypeName(out)));
  if (!request.ok())
    return request.status();
  const bool products = problem.m.count() > 1 || problem.n.count() > 1;
  const auto types = cpu::readRounds(request);
  request.expect(!types || real, "expected factors of floats to round");
  if (!request.ok())
    return request.status();
  if (!real || (!products && !types))
    return asMultiply(createDirect(request, problem, alpha));
  if (problem.elements() == 0)
    return asMultiply(
        makeKernel([](const KernelCall &, Launcher &) { return Status(); }));
  // Both factors have one type, and the result that type or f32. What is
  // rounded to 8 bits may leave the range of f16.
  const bool wide = types && a == planpb::F16;
  const planpb::DType ab = a == b && !wide ? a : planpb::F32;
  const planpb::DType c = out == ab ? out : planpb::F32;
  const int forced = (a != ab ? 1 : 0) | (b != ab ? 2 : 0) | (out != c ? 4 : 0);
  if (types) {
    auto make = [&](bool bits) {
      return std::make_unique<Product>(request, problem, alpha, ab, c,
                                       forced | 3, cpu::Epilogue(),
                                       Rounds{*types, bits});
    };
    auto eight = make(true), other = make(false);
    if (!request.ok())
      return request.status();
    return asMultiply(std::unique_ptr<Kernel>(
        std::make_unique<Rounded>(std::move(eight), std::move(other))));
  }
  auto product = std::make_unique<Product>(request, problem, alpha, ab, c,
                                           forced, epilogue);
  if (!request.ok())
    return request.status();
  Product *matmul = product.get();
  return Multiply{std::move(product), matmul};
}

// The product, and the sums of one of its factors: by the product itself, which
// overwrites them in the type of its result, or by reduce_sum.
class Summed : public Kernel {
public:
  static KernelResult create(Request &request, int summed,
                             const Device &device) {
    auto kernel = std::make_unique<Summed>();
    kernel->parts_ = {request.instruction, summed};
    Request multiply = kernel->parts_.product(request);
    Result<Multiply> product = createProduct(multiply, {});
    if (!product.ok())
      return product.status();
    Request add = kernel->parts_.sum(request);
    KernelResult sums = findKernel("reduce_sum")->create(add, device);
    if (!sums.ok())
      return sums.status();
    kernel->product_ = std::move(*product);
    kernel->sums_ = std::move(*sums);
    kernel->workspace =
        std::max(kernel->product_.kernel->workspace, kernel->sums_->workspace);
    kernel->join(request);
    if (!request.ok())
      return request.status();
    return std::unique_ptr<Kernel>(std::move(kernel));
  }

  Status run(const KernelCall &call, Launcher &launcher) override {
    const KernelCall multiply = parts_.product(call), sum = parts_.sum(call);
    void *const to = call.outputs[1].data;
    bool finished = false;
    Launcher part = launcher; // the sums use the same workspace
    if (joined_) {
      void *sums = bytes_ > 0 ? part.workspace(bytes_) : to;
      MERAK_RETURN_IF_ERROR(product_.matmul->run(
          multiply, part, finished,
          [&] { return restOf(*sums_, sum, launcher.device); }, sums));
      if (finished)
        return bytes_ > 0 ? runCopy(launcher, copy_, sums, to) : Status();
    } else {
      MERAK_RETURN_IF_ERROR(product_.kernel->run(multiply, part));
    }
    return sums_->run(sum, launcher);
  }

private:
  void join(Request &request) {
    const View &to = request.outputs[1];
    View dense = denseView(to);
    dense.dtype = request.outputs[0].dtype; // unless it is copied: not joined
    Request add = parts_.sum(request, std::span(&dense, 1));
    cpu::ReduceRequest read;
    if (!product_.matmul || to.elements() == 0 || !cpu::readReduce(add, read) ||
        !product_.matmul->takeSums(parts_.summed(), read.kept,
                                   read.reduced.count()))
      return;
    joined_ = true;
    const bool adds = request.instruction.accumulate();
    if (adds || !to.dense() || to.dtype != dense.dtype) {
      copy_ = makeCopy(request, dense, to, adds);
      bytes_ = denseBytes(dense);
    }
    workspace += bytes_;
  }

  cpu::ProductAndSum parts_;
  Multiply product_;
  std::unique_ptr<Kernel> sums_;
  bool joined_ = false; // the product writes the sums
  CopyArgs copy_;
  uint64_t bytes_ = 0;
};

KernelResult createEinsum(Request &request, const Device &device) {
  cpu::Epilogue epilogue;
  if (!cpu::readEpilogue(request, epilogue))
    return request.status();
  if (epilogue.summed >= 0)
    return Summed::create(request, epilogue.summed, device);
  Result<Multiply> product = createProduct(request, epilogue);
  if (!product.ok())
    return product.status();
  if (!epilogue.any())
    return std::move(product->kernel);
  expectAllReal(request);
  auto finished =
      std::make_unique<Finished>(request, std::move(*product), epilogue);
  if (!request.ok())
    return request.status();
  return std::unique_ptr<Kernel>(std::move(finished));
}

// What GELU and biases are applied to is the product, not a sum with what the
// output holds.
bool overwrites(const planpb::Instruction &instruction) {
  return instruction.attrs().count("bias") || instruction.attrs().count("gelu");
}

constexpr KernelEntry kEntries[] = {
    {"einsum", createEinsum, Strides::Any, false, overwrites},
};

} // namespace

std::span<const KernelEntry> contractionKernels() { return kEntries; }

} // namespace merak::cuda
