// Matrix products through cuBLASLt. Algorithms are asked for once per shape,
// type and alignment and kept.
//
// f32 products are computed in f32; with MERAK_TF32=1 in the environment on
// tensor cores, with factors rounded to 10 bits. 16-bit products accumulate in
// f32.
#pragma once

#include "runtime/backends/cuda/Device.h"
#include "runtime/backends/cuda/Library.h"

#include <map>
#include <mutex>

namespace merak::cuda {

class Blas {
public:
  Blas();
  ~Blas();
  // Opens the library; needs a current context. The first answer is kept.
  Status open();
  // Whether there is an algorithm for the product at these addresses.
  Result<bool> takes(const Matmul &problem, const MatmulCall &call);
  Status run(const Matmul &problem, const MatmulCall &call, void *workspace,
             Stream stream);

private:
  struct Api;
  struct Prepared;
  using Key = std::pair<std::vector<int64_t>, int>;
  // Null if the library has no algorithm. Needs the mutex.
  Result<Prepared *> prepare(const Matmul &problem, const MatmulCall &call);

  std::unique_ptr<Api> api_;
  void *handle_ = nullptr;
  bool opened_ = false, tf32_ = false;
  Status status_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Prepared>> cache_;
};

} // namespace merak::cuda
