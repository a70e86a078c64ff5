#include "runtime/backends/cuda/Blas.h"

#include <cublasLt.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace merak::cuda {

constexpr int kAlternatives = 16; // algorithms asked for; 8 are what 13.1 knows
// Products of fewer multiplications are not timed.
constexpr double kLeastTimed = 1e8;

struct Blas::Api {
  Library library;
#define MERAK_SYMBOL(name) decltype(&::cublasLt##name) name = nullptr;
#define MERAK_SYMBOLS                                                          \
  MERAK_SYMBOL(Create)                                                         \
  MERAK_SYMBOL(Destroy)                                                        \
  MERAK_SYMBOL(Matmul)                                                         \
  MERAK_SYMBOL(MatmulDescCreate)                                               \
  MERAK_SYMBOL(MatmulDescDestroy)                                              \
  MERAK_SYMBOL(MatmulDescSetAttribute)                                         \
  MERAK_SYMBOL(MatrixLayoutCreate)                                             \
  MERAK_SYMBOL(MatrixLayoutDestroy)                                            \
  MERAK_SYMBOL(MatrixLayoutSetAttribute)                                       \
  MERAK_SYMBOL(MatmulPreferenceCreate)                                         \
  MERAK_SYMBOL(MatmulPreferenceDestroy)                                        \
  MERAK_SYMBOL(MatmulPreferenceSetAttribute)                                   \
  MERAK_SYMBOL(MatmulAlgoGetHeuristic)                                         \
  MERAK_SYMBOL(GetVersion)                                                     \
  MERAK_SYMBOL(GetStatusString)
  MERAK_SYMBOLS
#undef MERAK_SYMBOL

  Status open() {
    const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    MERAK_RETURN_IF_ERROR(
        library.open({name, "/usr/local/cuda/lib64/" + name}, "cuBLASLt"));
#define MERAK_SYMBOL(name)                                                     \
  name = reinterpret_cast<decltype(name)>(library.symbol("cublasLt" #name));
    MERAK_SYMBOLS
#undef MERAK_SYMBOL
    return library.complete();
  }
  Status check(cublasStatus_t status, const char *what) const {
    return status == CUBLAS_STATUS_SUCCESS
               ? Status()
               : Status::error(
                     fmt::format("{}: {}", what, GetStatusString(status)));
  }
};

// Descriptors and the algorithm of one kind of product.
struct Blas::Prepared {
  explicit Prepared(const Api &api) : api(api) {}
  ~Prepared() {
    for (cublasLtMatrixLayout_t layout : {a, b, c})
      if (layout)
        api.MatrixLayoutDestroy(layout);
    if (desc)
      api.MatmulDescDestroy(desc);
  }
  Prepared(const Prepared &) = delete;
  Prepared &operator=(const Prepared &) = delete;

  const Api &api;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms; // the best first
  std::optional<double> seconds;                // of the best, where timed
  // Whether its epilogue is worth it; see Blas::pays.
  std::optional<bool> pays;

  // Addresses are properties of the descriptor: set before each call.
  Status setAddresses(const Matmul &problem, const MatmulCall &call) {
    auto set = [&](cublasLtMatmulDescAttributes_t which, const void *address) {
      return api.check(
          api.MatmulDescSetAttribute(desc, which, &address, sizeof(address)),
          "cublasLtMatmulDescSetAttribute");
    };
    Status status;
    if (problem.isEight()) {
      status.merge(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.scaleA));
      status.merge(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.scaleB));
    }
    if (problem.biased)
      status.merge(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias));
    if (problem.sumsA || problem.sumsB)
      status.merge(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.sums));
    if (problem.keep || problem.gradient)
      status.merge(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux));
    return status;
  }
};

Blas::Blas(Device &device, Tuning &tuning)
    : device_(device), tuning_(tuning), bench_(device) {}

Blas::~Blas() {
  cache_.clear();
  if (handle_)
    api_->Destroy(static_cast<cublasLtHandle_t>(handle_));
}

Status Blas::open() {
  std::lock_guard lock(mutex_);
  if (opened_)
    return status_;
  opened_ = true;
  const char *tf32 = std::getenv("MERAK_TF32");
  tf32_ = tf32 && std::strcmp(tf32, "1") == 0;
  api_ = std::make_unique<Api>();
  status_ = api_->open();
  if (!status_.ok())
    return status_;
  cublasLtHandle_t handle = nullptr;
  status_ = api_->check(api_->Create(&handle), "cublasLtCreate");
  handle_ = handle;
  return status_;
}

namespace {

cudaDataType_t dataType(Type type) {
  return type == Type::BF16  ? CUDA_R_16BF
         : type == Type::F16 ? CUDA_R_16F
                             : CUDA_R_32F;
}
cudaDataType_t dataType(Eight eight, Type type) {
  return eight == Eight::E4M3   ? CUDA_R_8F_E4M3
         : eight == Eight::E5M2 ? CUDA_R_8F_E5M2
                                : dataType(type);
}
bool hasAddresses(const Matmul &p) { return p.hasEpilogue() || p.isEight(); }

// The largest power of two up to 256 that divides the address.
int alignmentOf(const void *address) {
  const uint64_t bits = reinterpret_cast<uint64_t>(address) | 256;
  return static_cast<int>(bits & (~bits + 1));
}

// Files of choices (Tuning.h) hold it.
std::vector<int64_t> keyOf(const Matmul &p) {
  std::vector<int64_t> key = {
      p.m,           p.n,          p.k,      p.transA,  p.transB,  p.lda,
      p.ldb,         p.ldc,        p.batch,  p.strideA, p.strideB, p.strideC,
      int64_t(p.ab), int64_t(p.c), p.biased, p.gelu,    p.keep,    p.gradient,
      p.ldAux,       p.sumsA,      p.sumsB};
  if (p.isEight())
    key.insert(key.end(), {int64_t(p.a8), int64_t(p.b8)});
  return key;
}

// The least alignment of all operands.
int alignmentOf(const Matmul &problem, const MatmulCall &call) {
  int least =
      std::min({alignmentOf(call.a), alignmentOf(call.b), alignmentOf(call.c)});
  if (problem.biased)
    least = std::min(least, alignmentOf(call.bias));
  if (problem.keep || problem.gradient)
    least = std::min(least, alignmentOf(call.aux));
  if (problem.sumsA || problem.sumsB)
    least = std::min(least, alignmentOf(call.sums));
  return least;
}

cublasLtEpilogue_t epilogueOf(const Matmul &p) {
  if (p.sumsA || p.sumsB)
    return p.sumsA ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
  if (p.gradient)
    return CUBLASLT_EPILOGUE_DGELU;
  if (p.keep)
    return p.biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                    : CUBLASLT_EPILOGUE_GELU_AUX;
  if (p.gelu)
    return p.biased ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return p.biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

std::string describe(const Matmul &p) {
  return fmt::format("product of {} x {} x {}, batch {}", p.m, p.n, p.k,
                     p.batch);
}

} // namespace

Result<Blas::Prepared *> Blas::prepare(const Matmul &problem,
                                       const MatmulCall &call) {
  const int alignment = alignmentOf(problem, call);
  std::unique_ptr<Prepared> &slot = cache_[{keyOf(problem), alignment}];
  if (slot)
    return slot->algorithms.empty() ? nullptr : slot.get();
  const Api &api = *api_;
  auto prepared = std::make_unique<Prepared>(api);
  const cublasComputeType_t compute =
      problem.ab == Type::F32 && !problem.isEight() && tf32_
          ? CUBLAS_COMPUTE_32F_FAST_TF32
          : CUBLAS_COMPUTE_32F;
  MERAK_RETURN_IF_ERROR(
      api.check(api.MatmulDescCreate(&prepared->desc, compute, CUDA_R_32F),
                "cublasLtMatmulDescCreate"));
  auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool yes) {
    const cublasOperation_t op = yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    return api.check(
        api.MatmulDescSetAttribute(prepared->desc, which, &op, sizeof(op)),
        "cublasLtMatmulDescSetAttribute");
  };
  MERAK_RETURN_IF_ERROR(transpose(CUBLASLT_MATMUL_DESC_TRANSA, problem.transA));
  MERAK_RETURN_IF_ERROR(transpose(CUBLASLT_MATMUL_DESC_TRANSB, problem.transB));
  if (problem.hasEpilogue()) {
    const cublasLtEpilogue_t epilogue = epilogueOf(problem);
    MERAK_RETURN_IF_ERROR(
        api.check(api.MatmulDescSetAttribute(prepared->desc,
                                             CUBLASLT_MATMUL_DESC_EPILOGUE,
                                             &epilogue, sizeof(epilogue)),
                  "cublasLtMatmulDescSetAttribute"));
    if (problem.keep || problem.gradient)
      MERAK_RETURN_IF_ERROR(api.check(
          api.MatmulDescSetAttribute(prepared->desc,
                                     CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                     &problem.ldAux, sizeof(problem.ldAux)),
          "cublasLtMatmulDescSetAttribute"));
  }
  if (hasAddresses(problem))
    MERAK_RETURN_IF_ERROR(prepared->setAddresses(problem, call));
  auto layout = [&](cublasLtMatrixLayout_t &to, cudaDataType_t type,
                    int64_t rows, int64_t columns, int64_t ld,
                    int64_t stride) -> Status {
    MERAK_RETURN_IF_ERROR(
        api.check(api.MatrixLayoutCreate(&to, type, uint64_t(rows),
                                         uint64_t(columns), ld),
                  "cublasLtMatrixLayoutCreate"));
    const int32_t count = static_cast<int32_t>(problem.batch);
    MERAK_RETURN_IF_ERROR(api.check(
        api.MatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                     &count, sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute"));
    return api.check(api.MatrixLayoutSetAttribute(
                         to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                         &stride, sizeof(stride)),
                     "cublasLtMatrixLayoutSetAttribute");
  };
  const Matmul &p = problem;
  MERAK_RETURN_IF_ERROR(layout(prepared->a, dataType(p.a8, p.ab),
                               p.transA ? p.k : p.m, p.transA ? p.m : p.k,
                               p.lda, p.strideA));
  MERAK_RETURN_IF_ERROR(layout(prepared->b, dataType(p.b8, p.ab),
                               p.transB ? p.n : p.k, p.transB ? p.k : p.n,
                               p.ldb, p.strideB));
  MERAK_RETURN_IF_ERROR(
      layout(prepared->c, dataType(p.c), p.m, p.n, p.ldc, p.strideC));

  cublasLtMatmulPreference_t preference = nullptr;
  MERAK_RETURN_IF_ERROR(api.check(api.MatmulPreferenceCreate(&preference),
                                  "cublasLtMatmulPreferenceCreate"));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which,
                    const void *value, size_t size) {
    return api.check(
        api.MatmulPreferenceSetAttribute(preference, which, value, size),
        "cublasLtMatmulPreferenceSetAttribute");
  };
  const uint64_t bytes = kMatmulWorkspace;
  const uint32_t least = static_cast<uint32_t>(alignment);
  Status status =
      prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    status.merge(prefer(which, &least, sizeof(least)));
  cublasLtMatmulHeuristicResult_t results[kAlternatives] = {};
  int found = 0;
  if (status.ok()) {
    const cublasStatus_t asked = api.MatmulAlgoGetHeuristic(
        static_cast<cublasLtHandle_t>(handle_), prepared->desc, prepared->a,
        prepared->b, prepared->c, prepared->c, preference, kAlternatives,
        results, &found);
    // "Not supported" and "none found" are answers, not failures.
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED)
      found = 0;
    else
      status = api.check(asked, "cublasLtMatmulAlgoGetHeuristic");
  }
  api.MatmulPreferenceDestroy(preference);
  if (!status.ok())
    return std::move(status).withContext(describe(p));
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS)
      prepared->algorithms.push_back(results[i].algo);
  tune(problem, call, *prepared);
  slot = std::move(prepared);
  return slot->algorithms.empty() ? nullptr : slot.get();
}

namespace {

double multiplications(const Matmul &p) {
  return double(p.m) * p.n * p.k * p.batch;
}

uint64_t sizeOf(Type type) { return type == Type::F32 ? 4 : 2; }

// Bytes of a batch of matrices of so many columns.
uint64_t bytesOf(int64_t ld, int64_t columns, int64_t stride, int64_t batch,
                 uint64_t size) {
  return uint64_t(ld * columns + std::max<int64_t>(stride, 0) * (batch - 1)) *
         size;
}

} // namespace

void Blas::tune(const Matmul &p, const MatmulCall &call, Prepared &prepared) {
  if (prepared.algorithms.empty() || !tuning_.active() ||
      multiplications(p) < kLeastTimed)
    return;
  const std::string key = fmt::format(
      "{}, cuBLASLt {}: {}, alignment {}{}{}", device_.info().name,
      api_->GetVersion(), fmt::join(keyOf(p), " "), alignmentOf(p, call),
      call.beta != 0 ? ", adds" : "", tf32_ ? ", tf32" : "");
  std::vector<char *> blocks; // a, b, c, bias or sums, aux, workspace
  Status ready;
  auto time = [&](size_t algorithm) -> Result<double> {
    if (blocks.empty() && ready.ok()) {
      const uint64_t bytes[] = {
          bytesOf(p.lda, p.transA ? p.m : p.k, p.strideA, p.batch,
                  uint64_t(p.factorBytes())),
          bytesOf(p.ldb, p.transB ? p.k : p.n, p.strideB, p.batch,
                  uint64_t(p.factorBytes())),
          bytesOf(p.ldc, p.n, p.strideC, p.batch, sizeOf(p.c)),
          uint64_t(std::max(p.m, p.n)) * 4,
          p.keep || p.gradient ? bytesOf(p.ldAux, p.n, 0, 1, sizeOf(p.c)) : 0,
          kMatmulWorkspace};
      auto taken = bench_.take(bytes);
      if (taken)
        blocks = *taken;
      else
        ready = taken.status();
    }
    MERAK_RETURN_IF_ERROR(ready);
    MatmulCall here = call;
    here.a = blocks[0];
    here.b = blocks[1];
    here.c = blocks[2];
    here.bias = blocks[3];
    here.sums = blocks[3];
    here.scaleA = here.scaleB = reinterpret_cast<const float *>(blocks[3]);
    here.aux = blocks[4];
    if (hasAddresses(p))
      MERAK_RETURN_IF_ERROR(prepared.setAddresses(p, here));
    return bench_.time([&](Stream stream) {
      return api_->check(static_cast<cublasStatus_t>(start(
                             prepared, here, algorithm, blocks[5], stream)),
                         "cublasLtMatmul");
    });
  };
  if (const auto choice =
          tuning_.choose(key, prepared.algorithms.size(), time)) {
    std::rotate(prepared.algorithms.begin(),
                prepared.algorithms.begin() + choice->index,
                prepared.algorithms.begin() + choice->index + 1);
    prepared.seconds = choice->seconds;
  }
  bench_.giveBack();
}

bool Blas::pays(const Matmul &problem, const MatmulCall &call, const Rest &rest,
                double seconds) {
  Matmul plain = problem;
  plain.biased = plain.gelu = plain.keep = plain.gradient = false;
  plain.sumsA = plain.sumsB = false;
  plain.ldAux = 0;
  MatmulCall without = call;
  without.bias = nullptr;
  without.aux = without.sums = nullptr;
  auto apart = prepare(plain, without);
  if (!apart.ok() || !*apart || !(*apart)->seconds)
    return true;
  std::vector<char *> blocks;
  Status ready;
  const auto after =
      tuning_.choose(fmt::format("{}: {}", device_.info().name, rest.name), 1,
                     [&](size_t) -> Result<double> {
                       if (blocks.empty() && ready.ok()) {
                         auto taken = bench_.take(rest.bytes);
                         if (taken)
                           blocks = *taken;
                         else
                           ready = taken.status();
                       }
                       MERAK_RETURN_IF_ERROR(ready);
                       return bench_.time([&](Stream stream) {
                         return rest.run(blocks, stream);
                       });
                     });
  bench_.giveBack();
  return !after || seconds <= *(*apart)->seconds + after->seconds;
}

Result<bool> Blas::takes(const Matmul &problem, const MatmulCall &call,
                         const RestOf &rest) {
  MERAK_RETURN_IF_ERROR(open());
  std::lock_guard lock(mutex_);
  auto found = prepare(problem, call);
  if (found.ok()) {
    Prepared *const prepared = *found;
    if (!prepared || !problem.hasEpilogue() || !prepared->seconds)
      return prepared != nullptr;
    if (!prepared->pays)
      prepared->pays = pays(problem, call, rest(), *prepared->seconds);
    return *prepared->pays;
  }
  // A combination of attributes that the library does not know is no failure:
  // the caller has another way. Not asked again.
  cache_[{keyOf(problem), alignmentOf(problem, call)}] =
      std::make_unique<Prepared>(*api_);
  return false;
}

int Blas::start(Prepared &prepared, const MatmulCall &call, size_t algorithm,
                void *workspace, Stream stream) {
  return api_->Matmul(static_cast<cublasLtHandle_t>(handle_), prepared.desc,
                      &call.alpha, call.a, prepared.a, call.b, prepared.b,
                      &call.beta, call.c, prepared.c, call.c, prepared.c,
                      &prepared.algorithms[algorithm], workspace,
                      kMatmulWorkspace, static_cast<cudaStream_t>(stream));
}

Status Blas::run(const Matmul &problem, const MatmulCall &call, void *workspace,
                 Stream stream) {
  MERAK_RETURN_IF_ERROR(open());
  std::lock_guard lock(mutex_);
  auto found = prepare(problem, call);
  if (!found)
    return found.status();
  Prepared *prepared = *found;
  if (!prepared)
    return Status::error("cuBLASLt has no algorithm")
        .withContext(describe(problem));
  if (hasAddresses(problem))
    MERAK_RETURN_IF_ERROR(prepared->setAddresses(problem, call));
  // What a heuristic proposes may be refused after all, then the next one's
  // turn has come; a refusal has enqueued nothing.
  std::vector<cublasLtMatmulAlgo_t> &algorithms = prepared->algorithms;
  while (true) {
    const auto status = static_cast<cublasStatus_t>(
        start(*prepared, call, 0, workspace, stream));
    if (status == CUBLAS_STATUS_SUCCESS)
      return {};
    if (algorithms.size() == 1 || (status != CUBLAS_STATUS_NOT_SUPPORTED &&
                                   status != CUBLAS_STATUS_INVALID_VALUE))
      return api_->check(status, "cublasLtMatmul")
          .withContext(describe(problem));
    algorithms.erase(algorithms.begin());
  }
}

} // namespace merak::cuda
