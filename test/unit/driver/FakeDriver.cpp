// A libcuda.so.1 without a GPU: memory is the host's, kernels are names that
// are written to a log when they run, streams are captured as the driver does
// it. For what the program says about drivers and devices that this machine
// does not have, and for the calls it makes of the driver.
//
//   MERAK_FAKE_CUDA   "devices=1 capability=90 version=13000 bytes=1000000000"
//                     in any part; devices=0: the driver sees none
#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

long setting(const char *name, long otherwise) {
  const char *text = std::getenv("MERAK_FAKE_CUDA");
  const std::string key = std::string(name) + "=";
  const char *found = text ? std::strstr(text, key.c_str()) : nullptr;
  return found ? std::strtol(found + key.size(), nullptr, 10) : otherwise;
}

struct Kernel {
  std::string name;
};
// What a captured kernel would do: its name and the first word of its
// arguments.
struct Entry {
  Kernel *kernel;
  uint64_t word;
};
struct Capture {
  std::vector<Entry *> entries;
  bool active = false;
  CUstream origin = nullptr;
  Entry *last = nullptr;
};

std::mutex mutex;
std::string logged;
std::map<std::string, Kernel> kernels;
std::map<CUdeviceptr, size_t> memory;
Capture capture;
thread_local CUcontext current = nullptr; // threads begin without one

size_t used() {
  size_t bytes = 0;
  for (const auto &[address, size] : memory)
    bytes += size;
  return bytes;
}
void run(const Entry &entry) {
  logged += entry.kernel->name + " " + std::to_string(entry.word) + "\n";
}

struct GraphOf {
  std::vector<Entry *> entries;
};
struct EventOf {
  bool timed;
  float milliseconds = 0; // when it was recorded; 0: it was not
};
int recorded = 0;

} // namespace

extern "C" {

// The kernels that ran since the last call, with their first argument.
const char *merakFakeLog() {
  static std::string text;
  std::lock_guard lock(mutex);
  text = std::move(logged);
  logged.clear();
  return text.c_str();
}

CUresult CUDAAPI cuInit(unsigned) {
  return setting("devices", 1) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult CUDAAPI cuDriverGetVersion(int *version) {
  *version = int(setting("version", CUDA_VERSION));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetCount(int *count) {
  *count = int(setting("devices", 1));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice) {
  std::strncpy(name, "Fake GPU", size_t(length));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute which,
                                      CUdevice) {
  const int capability = int(setting("capability", 90));
  *value =
      which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
      : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
                                                              : 2;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&capture);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  if (used() + bytes > size_t(setting("bytes", 1000000000)))
    return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(std::calloc(bytes + 256, 1));
  memory[*address] = bytes;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  if (memory.erase(address) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::free(reinterpret_cast<void *>(address));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  *total = size_t(setting("bytes", 1000000000));
  *free = *total - used();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  *address = std::calloc(bytes, 1);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemFreeHost(void *address) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::free(address);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                               CUstream) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::memmove(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from),
               bytes);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                 size_t bytes, CUstream) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::memset(reinterpret_cast<void *>(to), value, bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
// Streams begin with their priority.
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned,
                                            int priority) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  *stream = reinterpret_cast<CUstream>(new int(priority));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  delete reinterpret_cast<int *>(stream);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  return capture.active && capture.origin == stream
             ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
             : CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  *event = reinterpret_cast<CUevent>(
      new EventOf{(flags & CU_EVENT_DISABLE_TIMING) == 0});
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventDestroy(CUevent event) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  delete reinterpret_cast<EventOf *>(event);
  return CUDA_SUCCESS;
}
// Each is recorded a millisecond after the one before.
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  reinterpret_cast<EventOf *>(event)->milliseconds = float(++recorded);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent from,
                                    CUevent to) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  const auto *begin = reinterpret_cast<EventOf *>(from);
  const auto *end = reinterpret_cast<EventOf *>(to);
  if (!begin->timed || !end->timed)
    return CUDA_ERROR_INVALID_HANDLE;
  if (begin->milliseconds == 0 || end->milliseconds == 0)
    return CUDA_ERROR_NOT_READY;
  *milliseconds = end->milliseconds - begin->milliseconds;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventSynchronize(CUevent) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image,
                                    unsigned, CUjit_option *, void **) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  *module = reinterpret_cast<CUmodule>(const_cast<void *>(image));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
// Any module has any function.
CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule,
                                     const char *name) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  Kernel &kernel = kernels[name];
  kernel.name = name;
  *function = reinterpret_cast<CUfunction>(&kernel);
  return CUDA_SUCCESS;
}
// As a generated kernel of one row a warp has.
CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
                                    CUfunction) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    return CUDA_ERROR_INVALID_VALUE;
  *value = 64;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned blocks, unsigned,
                                unsigned, unsigned threads, unsigned, unsigned,
                                unsigned, CUstream stream, void **arguments,
                                void **) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (blocks == 0 || blocks > INT32_MAX || threads == 0 || threads > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  Entry entry{reinterpret_cast<Kernel *>(function), 0};
  std::memcpy(&entry.word, arguments[0], sizeof(entry.word));
  std::lock_guard lock(mutex);
  if (capture.active && capture.origin == stream) {
    capture.last = new Entry(entry);
    capture.entries.push_back(capture.last);
  } else {
    run(entry);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  if (capture.active)
    return CUDA_ERROR_ILLEGAL_STATE;
  capture = {};
  capture.active = true;
  capture.origin = stream;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  if (!capture.active || capture.origin != stream)
    return CUDA_ERROR_ILLEGAL_STATE;
  capture.active = false;
  *graph = reinterpret_cast<CUgraph>(new GraphOf{capture.entries});
  return CUDA_SUCCESS;
}
#if CUDA_VERSION >= 13000
CUresult CUDAAPI cuStreamGetCaptureInfo(
    CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *, CUgraph *,
    const CUgraphNode **nodes, const CUgraphEdgeData **, size_t *count) {
#else
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream,
                                        CUstreamCaptureStatus *status,
                                        cuuint64_t *, CUgraph *,
                                        const CUgraphNode **nodes,
                                        size_t *count) {
#endif
  std::lock_guard lock(mutex);
  const bool active = capture.active && capture.origin == stream;
  *status =
      active ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  *nodes = reinterpret_cast<const CUgraphNode *>(&capture.last);
  *count = active && capture.last ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes,
                                 size_t *count) {
  if (nodes)
    return CUDA_ERROR_NOT_SUPPORTED;
  *count = reinterpret_cast<GraphOf *>(graph)->entries.size();
  return CUDA_SUCCESS;
}
// What is launched is a copy: changes of it leave the graph as it was.
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph,
                                    unsigned long long flags) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
    return CUDA_ERROR_NOT_SUPPORTED; // streams would lose their priorities
  auto *copy = new std::map<Entry *, Entry>;
  for (Entry *entry : reinterpret_cast<GraphOf *>(graph)->entries)
    (*copy)[entry] = *entry;
  *exec = reinterpret_cast<CUgraphExec>(copy);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecKernelNodeSetParams(
    CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  auto &copy = *reinterpret_cast<std::map<Entry *, Entry> *>(exec);
  const auto found = copy.find(reinterpret_cast<Entry *>(node));
  if (found == copy.end() || params->gridDimX == 0 || params->gridDimY != 1 ||
      params->gridDimZ != 1 || params->blockDimX == 0 ||
      params->blockDimY != 1 || params->blockDimZ != 1 ||
      found->second.kernel != reinterpret_cast<Kernel *>(params->func))
    return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&found->second.word, params->kernelParams[0],
              sizeof(found->second.word));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream) {
  if (!current)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  for (const auto &[node, entry] :
       *reinterpret_cast<std::map<Entry *, Entry> *>(exec))
    run(entry);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  delete reinterpret_cast<std::map<Entry *, Entry> *>(exec);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  auto *all = reinterpret_cast<GraphOf *>(graph);
  for (Entry *entry : all->entries)
    delete entry;
  delete all;
  return CUDA_SUCCESS;
}

} // extern "C"
