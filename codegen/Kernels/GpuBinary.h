// From PTX to what a plan for GPUs holds: a file of machine code for the
// devices we know and PTX for newer ones, made by NVIDIA's tools; or, where
// these are not installed, the PTX itself.
#pragma once

#include "runtime/core/Status.h"

#include <string>

namespace merak::codegen {

struct KernelFile {
  std::string name;  // "kernels.fatbin" or "kernels.ptx"
  std::string bytes; // for cuModuleLoadData; PTX has no terminating zero
};

// `ptxas` and `fatbinary` are looked for in PATH, then in $CUDA_HOME/bin, or in
// /usr/local/cuda/bin if CUDA_HOME is not set. The same PTX gives the same
// bytes with the same tools. An error: a tool that fails.
Result<KernelFile> makeGpuBinary(const std::string &ptx);

} // namespace merak::codegen
