// Matrix products through cuBLASLt. Algorithms are asked for once per shape,
// type and alignment, timed (Tuning.h), and the fastest is kept; so is whether
// a product that ends with GELU or sums is worth it beside one that is followed
// by a kernel for these.
//
// f32 products are computed in f32; with MERAK_TF32=1 in the environment on
// tensor cores, with factors rounded to 10 bits. 16-bit products accumulate in
// f32.
#pragma once

#include "runtime/backends/cuda/Device.h"
#include "runtime/backends/cuda/Library.h"
#include "runtime/backends/cuda/Tuning.h"
#include "runtime/backends/cuda/Workbench.h"

#include <map>
#include <mutex>

namespace merak::cuda {

class Blas {
public:
  // On this device, which outlives it.
  explicit Blas(Device &device, Tuning &tuning = Tuning::ofProcess());
  ~Blas();
  // Opens the library; needs a current context. The first answer is kept.
  Status open();
  // Whether there is an algorithm for the product at these addresses, and it is
  // not slower than the product without its epilogue and the rest after it.
  Result<bool> takes(const Matmul &problem, const MatmulCall &call,
                     const RestOf &rest);
  Status run(const Matmul &problem, const MatmulCall &call, void *workspace,
             Stream stream);

private:
  struct Api;
  struct Prepared;
  using Key = std::pair<std::vector<int64_t>, int>;
  // Null if the library has no algorithm. Needs the mutex.
  Result<Prepared *> prepare(const Matmul &problem, const MatmulCall &call);
  // Moves the fastest algorithm to the front.
  void tune(const Matmul &problem, const MatmulCall &call, Prepared &prepared);
  // The library's status.
  int start(Prepared &prepared, const MatmulCall &call, size_t algorithm,
            void *workspace, Stream stream);
  // Whether a product that takes so long with its epilogue is not slower than
  // one without, and the rest. True where that is not known.
  bool pays(const Matmul &problem, const MatmulCall &call, const Rest &rest,
            double seconds);

  Device &device_;
  Tuning &tuning_;
  Workbench bench_;
  std::unique_ptr<Api> api_;
  void *handle_ = nullptr;
  bool opened_ = false, tf32_ = false;
  Status status_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Prepared>> cache_;
};

} // namespace merak::cuda
