#include "runtime/backends/cuda/Versions.h"

#include "runtime/backends/cuda/CudnnGraph.h"

#include <cublasLt.h>
#include <cuda.h>
#include <fmt/format.h>

#include <dlfcn.h>

namespace merak::cuda {

namespace {

std::string cudaText(size_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
std::string cublasText(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100,
                     version % 100);
}

// The driver gives its version through a pointer.
std::string foundDriver() {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    return fmt::format("not found: {}", dlerror());
  auto get = reinterpret_cast<decltype(&cuDriverGetVersion)>(
      dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (!get || get(&version) != CUDA_SUCCESS)
    return "found, of no known version";
  return "found " + cudaText(size_t(version));
}

std::vector<std::string> namesOf(const std::string &name) {
  return {name, "/usr/local/cuda/lib64/" + name};
}

} // namespace

std::string foundVersion(const std::vector<std::string> &names,
                         const char *function, std::string (*text)(size_t)) {
  std::string why;
  for (const std::string &name : names) {
    if (void *library = dlopen(name.c_str(), RTLD_NOW)) {
      auto get = reinterpret_cast<size_t (*)()>(dlsym(library, function));
      return get ? "found " + text(get()) : "found, of no known version";
    }
    if (const char *error = dlerror(); error && why.empty())
      why = error;
  }
  return "not found: " + why;
}

std::vector<std::string> libraryVersions() {
  std::vector<std::string> lines = {
      fmt::format("CUDA: built with {}, the driver {}", cudaText(CUDA_VERSION),
                  foundDriver()),
      fmt::format("cuBLASLt: built with {}.{}.{}, {}", CUBLAS_VER_MAJOR,
                  CUBLAS_VER_MINOR, CUBLAS_VER_PATCH,
                  foundVersion(namesOf(fmt::format("libcublasLt.so.{}",
                                                   CUBLAS_VER_MAJOR)),
                               "cublasLtGetVersion", cublasText))};
  if (cudnnMajor() == 0)
    lines.push_back("cuDNN: not built in, attention and convolutions are slow");
  else
    lines.push_back(fmt::format(
        "cuDNN: built with {}, {}", cublasText(cudnnBuilt()),
        foundVersion(namesOf(fmt::format("libcudnn.so.{}", cudnnMajor())),
                     "cudnnGetVersion", cublasText)));
  return lines;
}

} // namespace merak::cuda
