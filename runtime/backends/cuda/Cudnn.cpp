#include "runtime/backends/cuda/Cudnn.h"

#include "runtime/backends/cuda/CudnnGraph.h"
#include "runtime/backends/cuda/Library.h"

#include <cuda.h>
#include <fmt/format.h>

#include <dlfcn.h>
#include <mutex>

namespace merak::cuda {

struct Cudnn::State {
  bool opened = false;
  std::string why; // it is not used
  void *handle = nullptr;
  std::mutex mutex; // a handle has one stream at a time

  bool open() {
    if (opened)
      return why.empty();
    opened = true;
    if (cudnnMajor() == 0) {
      why = createCudnn(nullptr).status().str();
      return false;
    }
    // The frontend finds the runtime library by its name once it is loaded.
    const std::string runtime =
        fmt::format("libcudart.so.{}", CUDA_VERSION / 1000);
    for (const std::string &name :
         {runtime, "/usr/local/cuda/lib64/" + runtime})
      if (dlopen(name.c_str(), RTLD_NOW))
        break;
    const std::string name = fmt::format("libcudnn.so.{}", cudnnMajor());
    void *library = nullptr;
    for (const std::string &path : {name, "/usr/local/cuda/lib64/" + name})
      if (!library)
        library = dlopen(path.c_str(), RTLD_NOW);
    if (!library) {
      const char *text = dlerror();
      why = text ? text : "cannot open " + name;
      return false;
    }
    auto made = createCudnn(library);
    if (made.ok())
      handle = *made;
    else
      why = made.status().str();
    return why.empty();
  }
  ~State() {
    if (handle)
      destroyCudnn(handle);
  }
};

namespace {

// cuDNN fills the last tile of keys (128) and of queries (64) with zeros. Where
// neither lengths nor a causal mask keep these out of its backward pass, rows
// of strongly negative scores get gradients that are not numbers (seen by
// others up to 9.26).
bool isSafe(const FusedAttention &a) {
  return !a.backward ||
         (a.q.sizes[2] % 64 == 0 && (a.causal || a.k.sizes[2] % 128 == 0));
}
bool isSafe(const FusedConvolution &) { return true; }

// cuDNN's state must outlive its plans.
template <typename State> struct GraphPlan : FusedPlan {
  std::shared_ptr<State> state;
  std::unique_ptr<CudnnGraph> graph;

  Status run(std::span<void *const> operands, void *memory,
             void *stream) override {
    std::lock_guard lock(state->mutex);
    return graph->run(state->handle, operands, memory, stream);
  }
};

template <typename State, typename Problem>
std::shared_ptr<FusedPlan> planOf(const std::shared_ptr<State> &state,
                                  const Problem &problem, int major,
                                  int minor) {
  std::lock_guard lock(state->mutex);
  if (!isSafe(problem) || !state->open())
    return nullptr;
  auto graph = cudnnGraph(problem, state->handle, major, minor);
  if (!graph)
    return nullptr;
  auto plan = std::make_shared<GraphPlan<State>>();
  plan->state = state;
  plan->workspace = (*graph)->workspace;
  plan->graph = std::move(*graph);
  return plan;
}

} // namespace

Cudnn::Cudnn() : state_(std::make_shared<State>()) {}
Cudnn::~Cudnn() = default;

std::shared_ptr<FusedPlan> Cudnn::plan(const FusedAttention &attention,
                                       int major, int minor) {
  return planOf(state_, attention, major, minor);
}
std::shared_ptr<FusedPlan> Cudnn::plan(const FusedConvolution &convolution,
                                       int major, int minor) {
  return planOf(state_, convolution, major, minor);
}

std::string Cudnn::describe() {
  std::lock_guard lock(state_->mutex);
  if (!state_->open())
    return "not by cuDNN: " + state_->why;
  const size_t version = cudnnVersion();
  return fmt::format("by cuDNN {}.{}.{} where it has a kernel", version / 10000,
                     version / 100 % 100, version % 100);
}

} // namespace merak::cuda
