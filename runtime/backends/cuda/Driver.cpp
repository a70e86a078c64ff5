#include "runtime/backends/cuda/Driver.h"

#include "runtime/backends/cuda/Blas.h"
#include "runtime/backends/cuda/Cudnn.h"
#include "runtime/backends/cuda/Fatbins.h"
#include "runtime/backends/cuda/Library.h"

#include <cuda.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>

namespace merak::cuda {

namespace {

// Names as the header maps them to versions (cuMemAlloc is cuMemAlloc_v2).
#define MERAK_DRIVER_SYMBOLS(X)                                                \
  X(cuInit)                                                                    \
  X(cuDriverGetVersion)                                                        \
  X(cuGetErrorString)                                                          \
  X(cuDeviceGetCount)                                                          \
  X(cuDeviceGet)                                                               \
  X(cuDeviceGetName)                                                           \
  X(cuDeviceGetAttribute)                                                      \
  X(cuDevicePrimaryCtxRetain)                                                  \
  X(cuCtxSetCurrent)                                                           \
  X(cuMemAlloc)                                                                \
  X(cuMemFree)                                                                 \
  X(cuMemGetInfo)                                                              \
  X(cuMemHostAlloc)                                                            \
  X(cuMemFreeHost)                                                             \
  X(cuMemcpyAsync)                                                             \
  X(cuMemsetD8Async)                                                           \
  X(cuCtxGetStreamPriorityRange)                                               \
  X(cuStreamCreateWithPriority)                                                \
  X(cuStreamDestroy)                                                           \
  X(cuStreamSynchronize)                                                       \
  X(cuStreamWaitEvent)                                                         \
  X(cuEventCreate)                                                             \
  X(cuEventDestroy)                                                            \
  X(cuEventRecord)                                                             \
  X(cuEventSynchronize)                                                        \
  X(cuEventElapsedTime)                                                        \
  X(cuModuleLoadDataEx)                                                        \
  X(cuModuleUnload)                                                            \
  X(cuModuleGetFunction)                                                       \
  X(cuFuncGetAttribute)                                                        \
  X(cuLaunchKernel)                                                            \
  X(cuStreamBeginCapture)                                                      \
  X(cuStreamEndCapture)                                                        \
  X(cuStreamGetCaptureInfo)                                                    \
  X(cuGraphGetNodes)                                                           \
  X(cuGraphInstantiate)                                                        \
  X(cuGraphExecKernelNodeSetParams)                                            \
  X(cuGraphLaunch)                                                             \
  X(cuGraphExecDestroy)                                                        \
  X(cuGraphDestroy)
#define MERAK_TEXT(x) #x
#define MERAK_EXPANDED(x) MERAK_TEXT(x)

std::string versionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

struct Api {
  Library library;
#define MERAK_SYMBOL(name) decltype(&::name) p_##name = nullptr;
  MERAK_DRIVER_SYMBOLS(MERAK_SYMBOL)
#undef MERAK_SYMBOL

  // Each time asked for: what is wrong stays wrong.
  Status open() {
    if (!library.isOpen()) {
      MERAK_RETURN_IF_ERROR(library.open({"libcuda.so.1"}, "NVIDIA's driver"));
#define MERAK_SYMBOL(name)                                                     \
  p_##name = reinterpret_cast<decltype(&::name)>(                              \
      library.symbol(MERAK_EXPANDED(name)));
      MERAK_DRIVER_SYMBOLS(MERAK_SYMBOL)
#undef MERAK_SYMBOL
    }
    // An older driver lacks functions, but the reason is its age.
    int version = 0;
    if (p_cuDriverGetVersion &&
        p_cuDriverGetVersion(&version) == CUDA_SUCCESS &&
        version / 1000 < CUDA_VERSION / 1000)
      return Status::error(fmt::format(
          "the driver knows CUDA {}, the kernels were built with {}",
          versionText(version), versionText(CUDA_VERSION)));
    return library.complete();
  }
  Status check(CUresult result, const std::string &what) const {
    if (result == CUDA_SUCCESS)
      return {};
    const char *text = nullptr;
    p_cuGetErrorString(result, &text);
    return Status::error(fmt::format("{}: {}", what, text ? text : "?"));
  }
};

CUstream native(Stream stream) { return static_cast<CUstream>(stream); }
CUevent nativeEvent(Event event) { return static_cast<CUevent>(event); }
CUdeviceptr address(const void *memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

std::vector<void *> parametersOf(const std::vector<uint64_t> &words) {
  std::vector<void *> parameters;
  for (const uint64_t &word : words)
    parameters.push_back(const_cast<uint64_t *>(&word));
  return parameters;
}

// A graph of the driver, made ready to launch. The device outlives it.
class DriverGraph : public Graph {
public:
  // `bind`: makes the device's context current.
  DriverGraph(const Api &api, std::function<Status()> bind, CUgraph graph,
              const std::vector<CUfunction> &kernels)
      : api_(api), bind_(std::move(bind)), graph_(graph), kernels_(kernels) {}
  ~DriverGraph() override {
    if (!bind_().ok())
      return;
    if (exec_)
      api_.p_cuGraphExecDestroy(exec_);
    api_.p_cuGraphDestroy(graph_);
  }
  Status start() {
    MERAK_RETURN_IF_ERROR(api_.check(
        api_.p_cuGraphGetNodes(graph_, nullptr, &size_), "cuGraphGetNodes"));
    // Kernels keep the priorities of the streams they were captured on.
    return api_.check(
        api_.p_cuGraphInstantiate(
            &exec_, graph_, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY),
        "cuGraphInstantiate");
  }

  size_t operations() const override { return size_; }
  Status launch(Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind_());
    return api_.check(api_.p_cuGraphLaunch(exec_, native(stream)),
                      "cuGraphLaunch");
  }
  Status update(Node node, KernelId kernel, Grid grid,
                const void *args) override {
    void *parameters[] = {const_cast<void *>(args)};
    return update(node, kernels_[static_cast<int>(kernel)], grid, parameters);
  }
  Status update(Node node, Function function, Grid grid, size_t,
                const std::vector<uint64_t> &words) override {
    return update(node, static_cast<CUfunction>(function), grid,
                  parametersOf(words).data());
  }

private:
  // The driver copies the parameters.
  Status update(Node node, CUfunction function, Grid grid, void **parameters) {
    MERAK_RETURN_IF_ERROR(bind_());
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = static_cast<unsigned>(grid.blocks);
    params.blockDimX = static_cast<unsigned>(grid.threads);
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = parameters;
    return api_.check(api_.p_cuGraphExecKernelNodeSetParams(
                          exec_, static_cast<CUgraphNode>(node), &params),
                      "cuGraphExecKernelNodeSetParams");
  }

  const Api &api_;
  std::function<Status()> bind_;
  CUgraph graph_;
  const std::vector<CUfunction> &kernels_; // by KernelId
  CUgraphExec exec_ = nullptr;
  size_t size_ = 0;
};

// In the primary context: what the libraries use as well. It stays until the
// process ends, as they keep what they loaded into it.
class DriverDevice : public Device {
public:
  DriverDevice(Api &api, CUdevice device, CUcontext context)
      : api_(api), device_(device), context_(context) {}

  ~DriverDevice() override {
    if (!bind().ok())
      return;
    blas_.reset();
    cudnn_.reset();
    for (CUmodule module : modules_)
      api_.p_cuModuleUnload(module);
  }

  Status start() {
    MERAK_RETURN_IF_ERROR(bind());
    char name[256] = {};
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuDeviceGetName(name, sizeof(name) - 1, device_),
              "cuDeviceGetName"));
    info_.name = name;
    const std::pair<CUdevice_attribute, int *> attributes[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info_.major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info_.minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info_.processors}};
    for (const auto &[attribute, value] : attributes)
      MERAK_RETURN_IF_ERROR(
          check(api_.p_cuDeviceGetAttribute(value, attribute, device_),
                "cuDeviceGetAttribute"));
    if (info_.major < kOldestMajor)
      return Status::error(fmt::format(
          "{} has compute capability {}.{}, the kernels need {}.{} or newer",
          info_.name, info_.major, info_.minor, kOldestMajor, kOldestMinor));
    return loadKernels();
  }

  const DeviceInfo &info() const override { return info_; }

  Result<void *> allocate(uint64_t bytes) override {
    MERAK_RETURN_IF_ERROR(bind());
    CUdeviceptr memory = 0;
    Status status =
        check(api_.p_cuMemAlloc(&memory, std::max<uint64_t>(bytes, 1)),
              fmt::format("cannot allocate {} bytes on {}", bytes, info_.name));
    if (!status.ok())
      return status;
    return reinterpret_cast<void *>(memory);
  }
  void release(void *memory) override {
    if (bind().ok())
      api_.p_cuMemFree(address(memory));
  }
  Result<uint64_t> freeBytes() override {
    MERAK_RETURN_IF_ERROR(bind());
    size_t free = 0, total = 0;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuMemGetInfo(&free, &total), "cuMemGetInfo"));
    return static_cast<uint64_t>(free);
  }
  Result<void *> allocateHost(uint64_t bytes) override {
    MERAK_RETURN_IF_ERROR(bind());
    void *memory = nullptr;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuMemHostAlloc(&memory, std::max<uint64_t>(bytes, 1), 0),
              fmt::format("cannot pin {} bytes of host memory", bytes)));
    return memory;
  }
  void releaseHost(void *memory) override {
    if (bind().ok())
      api_.p_cuMemFreeHost(memory);
  }
  Status copy(void *to, const void *from, uint64_t bytes,
              Stream stream) override {
    if (bytes == 0)
      return {};
    MERAK_RETURN_IF_ERROR(bind());
    return check(
        api_.p_cuMemcpyAsync(address(to), address(from), bytes, native(stream)),
        "cuMemcpyAsync");
  }
  Status clear(void *memory, uint64_t bytes, Stream stream) override {
    if (bytes == 0)
      return {};
    MERAK_RETURN_IF_ERROR(bind());
    return check(
        api_.p_cuMemsetD8Async(address(memory), 0, bytes, native(stream)),
        "cuMemsetD8Async");
  }

  Result<Stream> createStream(Priority priority) override {
    MERAK_RETURN_IF_ERROR(bind());
    int least = 0, greatest = 0; // the least is the greatest number, usually 0
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuCtxGetStreamPriorityRange(&least, &greatest),
              "cuCtxGetStreamPriorityRange"));
    CUstream stream = nullptr;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuStreamCreateWithPriority(
                  &stream, CU_STREAM_NON_BLOCKING,
                  priority == Priority::High ? greatest : least),
              "cuStreamCreateWithPriority"));
    return static_cast<Stream>(stream);
  }
  void destroyStream(Stream stream) override {
    if (bind().ok())
      api_.p_cuStreamDestroy(native(stream));
  }
  Status synchronize(Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind());
    return check(api_.p_cuStreamSynchronize(native(stream)),
                 "a kernel or copy failed");
  }
  Result<Event> createEvent() override {
    return createEvent(CU_EVENT_DISABLE_TIMING);
  }
  Result<Event> createTimer() override { return createEvent(CU_EVENT_DEFAULT); }
  Result<double> elapsed(Event from, Event to) override {
    MERAK_RETURN_IF_ERROR(bind());
    float milliseconds = 0;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuEventElapsedTime(&milliseconds, nativeEvent(from),
                                        nativeEvent(to)),
              "cuEventElapsedTime"));
    return double(milliseconds) * 1e-3;
  }
  void destroyEvent(Event event) override {
    if (bind().ok())
      api_.p_cuEventDestroy(nativeEvent(event));
  }
  Status record(Event event, Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind());
    return check(api_.p_cuEventRecord(nativeEvent(event), native(stream)),
                 "cuEventRecord");
  }
  Status wait(Stream stream, Event event) override {
    MERAK_RETURN_IF_ERROR(bind());
    return check(
        api_.p_cuStreamWaitEvent(native(stream), nativeEvent(event), 0),
        "cuStreamWaitEvent");
  }
  Status synchronizeEvent(Event event) override {
    MERAK_RETURN_IF_ERROR(bind());
    return check(api_.p_cuEventSynchronize(nativeEvent(event)),
                 "a kernel or copy failed");
  }

  // Relaxed: other threads, and libraries on threads of their own, may call
  // the driver meanwhile.
  Status beginCapture(Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind());
    return check(api_.p_cuStreamBeginCapture(native(stream),
                                             CU_STREAM_CAPTURE_MODE_RELAXED),
                 "cuStreamBeginCapture");
  }
  Result<std::unique_ptr<Graph>> endCapture(Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind());
    CUgraph graph = nullptr;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuStreamEndCapture(native(stream), &graph),
              "cuStreamEndCapture"));
    auto made = std::make_unique<DriverGraph>(
        api_, [this] { return bind(); }, graph, kernels_);
    MERAK_RETURN_IF_ERROR(made->start());
    return std::unique_ptr<Graph>(std::move(made));
  }
  Result<Node> lastCaptured(Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind());
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = nullptr;
    size_t count = 0;
#if CUDA_VERSION >= 13000
    const CUresult result = api_.p_cuStreamGetCaptureInfo(
        native(stream), &state, nullptr, nullptr, &nodes, nullptr, &count);
#else
    const CUresult result = api_.p_cuStreamGetCaptureInfo(
        native(stream), &state, nullptr, nullptr, &nodes, &count);
#endif
    MERAK_RETURN_IF_ERROR(check(result, "cuStreamGetCaptureInfo"));
    if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE || count != 1)
      return Status::error("the stream captures no kernel");
    return static_cast<Node>(nodes[0]);
  }

  Result<void *> loadModule(const std::string &image,
                            const std::string &name) override {
    MERAK_RETURN_IF_ERROR(bind());
    auto module = load(image.c_str(), name); // c_str: PTX ends with a zero
    if (!module)
      return module.status();
    return static_cast<void *>(*module);
  }
  Function function(void *module, const std::string &name) override {
    CUfunction found = nullptr;
    if (!bind().ok() ||
        api_.p_cuModuleGetFunction(&found, static_cast<CUmodule>(module),
                                   name.c_str()) != CUDA_SUCCESS)
      return nullptr;
    return found;
  }
  Result<int> threadsOf(Function function) override {
    MERAK_RETURN_IF_ERROR(bind());
    int threads = 0;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuFuncGetAttribute(&threads,
                                        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                        static_cast<CUfunction>(function)),
              "cuFuncGetAttribute"));
    return threads;
  }
  Status launch(Function function, Grid grid, size_t,
                const std::vector<uint64_t> &words, Stream stream) override {
    return start(static_cast<CUfunction>(function), grid,
                 parametersOf(words).data(), stream);
  }
  Status launch(KernelId kernel, Grid grid, const void *args,
                Stream stream) override {
    void *parameters[] = {const_cast<void *>(args)};
    return start(kernels_[static_cast<int>(kernel)], grid, parameters, stream);
  }
  Status matmul(const Matmul &problem, const MatmulCall &call, void *workspace,
                Stream stream) override {
    MERAK_RETURN_IF_ERROR(bind());
    return blas_->run(problem, call, workspace, stream);
  }
  Result<bool> takes(const Matmul &problem, const MatmulCall &call,
                     const RestOf &rest) override {
    MERAK_RETURN_IF_ERROR(bind());
    return blas_->takes(problem, call, rest);
  }
  std::shared_ptr<FusedPlan> fused(const FusedAttention &a) const override {
    return bind().ok() ? cudnn_->plan(a, info_.major, info_.minor) : nullptr;
  }
  std::shared_ptr<FusedPlan> fused(const FusedConvolution &c) const override {
    return bind().ok() ? cudnn_->plan(c, info_.major, info_.minor) : nullptr;
  }
  std::string fusedBy() const override {
    return bind().ok() ? cudnn_->describe() : "not by cuDNN";
  }
  Status checkMatmul() override {
    MERAK_RETURN_IF_ERROR(bind());
    return blas_->open();
  }

private:
  Result<Event> createEvent(unsigned flags) {
    MERAK_RETURN_IF_ERROR(bind());
    CUevent event = nullptr;
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuEventCreate(&event, flags), "cuEventCreate"));
    return static_cast<Event>(event);
  }
  Status check(CUresult result, const std::string &what) const {
    return api_.check(result, what);
  }
  // The context is a property of threads, and lanes have their own.
  Status bind() const {
    thread_local CUcontext current = nullptr;
    if (current == context_)
      return {};
    MERAK_RETURN_IF_ERROR(
        check(api_.p_cuCtxSetCurrent(context_), "cuCtxSetCurrent"));
    current = context_;
    return {};
  }
  Status start(CUfunction function, Grid grid, void **parameters,
               Stream stream) {
    MERAK_RETURN_IF_ERROR(bind());
    return check(
        api_.p_cuLaunchKernel(function, static_cast<unsigned>(grid.blocks), 1,
                              1, static_cast<unsigned>(grid.threads), 1, 1, 0,
                              native(stream), parameters, nullptr),
        "cuLaunchKernel");
  }

  Result<CUmodule> load(const void *image, const std::string &name) {
    char log[2048] = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER,
                              CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof(log) - 1)};
    CUmodule module = nullptr;
    const CUresult result =
        api_.p_cuModuleLoadDataEx(&module, image, 2, options, values);
    if (result == CUDA_SUCCESS) {
      modules_.push_back(module);
      return module;
    }
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU)
      return Status::error(
          fmt::format("\"{}\" has no code for {} (compute capability {}.{})",
                      name, info_.name, info_.major, info_.minor));
    Status status = check(result, fmt::format("cannot load \"{}\"", name));
    std::string text = log;
    for (char &c : text)
      c = c == '\n' ? ' ' : c;
    return text.empty() ? std::move(status)
                        : Status::error(status.str() + ": " + text);
  }

  // Every entry of kernels/Kernels.h, from the module that has it.
  Status loadKernels() {
    std::vector<CUmodule> own;
    for (const Fatbin &fatbin : fatbins()) {
      auto module = load(fatbin.data, fatbin.name);
      if (!module)
        return module.status();
      own.push_back(*module);
    }
    static const char *const kNames[] = {
#define MERAK_NAME(name, args, body) "merak_" #name,
        MERAK_CUDA_KERNELS(MERAK_NAME)
#undef MERAK_NAME
    };
    for (const char *name : kNames) {
      CUfunction found = nullptr;
      for (CUmodule module : own)
        if (api_.p_cuModuleGetFunction(&found, module, name) == CUDA_SUCCESS)
          break;
      if (!found)
        return Status::error(fmt::format("no embedded kernel {}", name));
      kernels_.push_back(found);
    }
    return {};
  }

  Api &api_;
  CUdevice device_;
  CUcontext context_;
  DeviceInfo info_;
  std::vector<CUmodule> modules_;
  std::vector<CUfunction> kernels_;
  std::unique_ptr<Blas> blas_ = std::make_unique<Blas>(*this);
  std::unique_ptr<Cudnn> cudnn_ = std::make_unique<Cudnn>();
};

} // namespace

Result<std::shared_ptr<Device>> openDevice(int ordinal) {
  // Ranks of one process share the device: kernels are loaded once. Driver and
  // devices stay until the process ends, when it is too late to call them.
  static std::mutex mutex;
  static auto &open = *new std::vector<std::shared_ptr<Device>>;
  static Api *const api = new Api;
  std::lock_guard lock(mutex);
  MERAK_RETURN_IF_ERROR(api->open());
  const CUresult result = api->p_cuInit(0);
  if (result == CUDA_ERROR_NO_DEVICE)
    return Status::error("the cuda backend needs a GPU: the driver sees none");
  MERAK_RETURN_IF_ERROR(api->check(result, "cuInit"));
  int count = 0;
  MERAK_RETURN_IF_ERROR(
      api->check(api->p_cuDeviceGetCount(&count), "cuDeviceGetCount"));
  // Launchers may show each process only its own.
  if (count == 1 && !std::getenv("MERAK_CUDA_DEVICE"))
    ordinal = 0;
  if (ordinal < 0 || ordinal >= count)
    return Status::error(
        fmt::format("device {} was asked for, the driver sees {} device{}",
                    ordinal, count, count == 1 ? "" : "s"));
  if (size_t(ordinal) < open.size() && open[ordinal])
    return open[ordinal];
  CUdevice device = 0;
  CUcontext context = nullptr;
  MERAK_RETURN_IF_ERROR(
      api->check(api->p_cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  MERAK_RETURN_IF_ERROR(
      api->check(api->p_cuDevicePrimaryCtxRetain(&context, device),
                 "cuDevicePrimaryCtxRetain"));
  auto opened = std::make_shared<DriverDevice>(*api, device, context);
  MERAK_RETURN_IF_ERROR(opened->start());
  if (open.size() <= size_t(ordinal))
    open.resize(ordinal + 1);
  open[ordinal] = opened;
  return std::shared_ptr<Device>(opened);
}

Result<int> deviceOrdinal(int localRank) {
  const char *text = std::getenv("MERAK_CUDA_DEVICE");
  if (!text)
    return localRank;
  char *end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end || value < 0 || value > 1023)
    return Status::error(fmt::format(
        "MERAK_CUDA_DEVICE: expected a number, found \"{}\"", text));
  return static_cast<int>(value);
}

Result<std::shared_ptr<Device>> openLocalDevice(int localRank) {
  auto ordinal = deviceOrdinal(localRank);
  if (!ordinal)
    return ordinal.status();
  return openDevice(*ordinal);
}

} // namespace merak::cuda
