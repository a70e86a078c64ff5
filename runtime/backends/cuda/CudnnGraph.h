// cuDNN's graphs without its headers: what CudnnGraph.cpp, the one file that
// includes the frontend, gives to Cudnn.cpp. Built without these headers,
// nothing can be created.
#pragma once

#include "runtime/backends/cuda/Fused.h"

#include <memory>

namespace merak::cuda {

// A graph with a plan that the library promises to run.
class CudnnGraph {
public:
  virtual ~CudnnGraph() = default;
  uint64_t workspace = 0;
  // One call at a time for a handle.
  virtual Status run(void *handle, std::span<void *const> operands,
                     void *memory, void *stream) = 0;
};

// Of the library that the headers describe; 0 without them.
int cudnnMajor();
size_t cudnnBuilt(); // as cudnnVersion
// A handle, of the library that `dlopen` returned.
Result<void *> createCudnn(void *library);
void destroyCudnn(void *handle);
size_t cudnnVersion(); // 91900: 9.19.0

// Operands in the order of Fused.h, numbered from 1.
Result<std::unique_ptr<CudnnGraph>>
cudnnGraph(const FusedAttention &attention, void *handle, int major, int minor);
Result<std::unique_ptr<CudnnGraph>>
cudnnGraph(const FusedConvolution &convolution, void *handle, int major,
           int minor);

} // namespace merak::cuda
