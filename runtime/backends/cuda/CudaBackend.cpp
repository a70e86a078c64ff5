#include "runtime/backends/cuda/CudaBackend.h"

#include "runtime/backends/cuda/Captured.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace merak::cuda {

using runtime::EventHandle;
using runtime::StreamHandle;

struct CudaBackend::Lane {
  Stream stream = nullptr;
  void *workspace = nullptr;
  uint64_t bytes = 0, asked = 0;
  runtime::MemorySource *source = nullptr; // of the workspace; null: the device
  // Calls that the next one may join, and the last one's KernelCall::changes.
  std::unique_ptr<Joint> waiting;
  int changes = -1;

  void release(Device &device) {
    if (workspace && source)
      source->release(workspace);
    else if (workspace)
      device.release(workspace);
    workspace = nullptr;
    bytes = 0;
  }
};

// Pinned memory that copies pass through in pieces: the host's memory may be
// reused as soon as the last piece was taken over. Two pieces alternate.
struct CudaBackend::Staging {
  static constexpr uint64_t kPiece = 4 << 20;
  struct Piece {
    void *memory = nullptr;
    Event used = nullptr; // by the last copy from it
    bool pending = false;
  };

  explicit Staging(Device &device) : device(device) {}
  ~Staging() {
    for (Piece &piece : pieces) {
      if (piece.used)
        device.destroyEvent(piece.used);
      if (piece.memory)
        device.releaseHost(piece.memory);
    }
  }
  Result<Piece *> next() {
    Piece &piece = pieces[turn++ % 2];
    if (!piece.memory) {
      auto memory = device.allocateHost(kPiece);
      if (!memory)
        return memory.status();
      piece.memory = *memory;
      auto event = device.createEvent();
      if (!event)
        return event.status();
      piece.used = *event;
    }
    if (piece.pending)
      MERAK_RETURN_IF_ERROR(device.synchronizeEvent(piece.used));
    piece.pending = false;
    return &piece;
  }

  Device &device;
  std::mutex mutex;
  Piece pieces[2];
  uint64_t turn = 0;
};

namespace {

struct Generated : runtime::Prepared {
  Function function = nullptr;
  int64_t rows = 0; // blocks
  int threads = 0;  // of a block
  std::vector<uint64_t> words;
};

} // namespace

CudaBackend::CudaBackend(std::shared_ptr<Device> device)
    : device_(std::move(device)), default_(std::make_unique<Lane>()),
      staging_(std::make_unique<Staging>(*device_)) {}

CudaBackend::~CudaBackend() {
  staging_.reset();
  default_->release(*device_);
}

CudaBackend::Lane &CudaBackend::lane(StreamHandle stream) const {
  return stream ? *static_cast<Lane *>(stream) : *default_;
}

Stream CudaBackend::native(StreamHandle stream) {
  return stream ? static_cast<Lane *>(stream)->stream : nullptr;
}

Result<void *> CudaBackend::allocate(uint64_t bytes) {
  auto memory = device_->allocate(bytes);
  if (!memory)
    return memory.status();
  Status status = device_->clear(*memory, bytes, nullptr);
  if (status.ok())
    status = device_->synchronize(nullptr);
  if (!status.ok()) {
    device_->release(*memory);
    return status;
  }
  return *memory;
}

void CudaBackend::release(void *memory) { device_->release(memory); }

Status CudaBackend::copyToDevice(void *device, const void *host, uint64_t bytes,
                                 StreamHandle stream) {
  std::lock_guard lock(staging_->mutex);
  for (uint64_t at = 0; at < bytes; at += Staging::kPiece) {
    const uint64_t size = std::min(Staging::kPiece, bytes - at);
    auto piece = staging_->next();
    if (!piece)
      return piece.status();
    std::memcpy((*piece)->memory, static_cast<const char *>(host) + at, size);
    MERAK_RETURN_IF_ERROR(device_->copy(static_cast<char *>(device) + at,
                                        (*piece)->memory, size,
                                        native(stream)));
    MERAK_RETURN_IF_ERROR(device_->record((*piece)->used, native(stream)));
    (*piece)->pending = true;
  }
  return {};
}

Status CudaBackend::copyToHost(void *host, const void *device, uint64_t bytes,
                               StreamHandle stream) {
  std::lock_guard lock(staging_->mutex);
  for (uint64_t at = 0; at < bytes; at += Staging::kPiece) {
    const uint64_t size = std::min(Staging::kPiece, bytes - at);
    auto piece = staging_->next();
    if (!piece)
      return piece.status();
    MERAK_RETURN_IF_ERROR(device_->copy((*piece)->memory,
                                        static_cast<const char *>(device) + at,
                                        size, native(stream)));
    MERAK_RETURN_IF_ERROR(device_->synchronize(native(stream)));
    std::memcpy(static_cast<char *>(host) + at, (*piece)->memory, size);
  }
  return {};
}

Status CudaBackend::clear(void *device, uint64_t bytes, StreamHandle stream) {
  return device_->clear(device, bytes, native(stream));
}

Result<StreamHandle> CudaBackend::createStream(runtime::Priority priority) {
  auto stream = device_->createStream(priority);
  if (!stream)
    return stream.status();
  auto lane = std::make_unique<Lane>();
  lane->stream = *stream;
  lanes_.push_back(lane.get());
  return static_cast<StreamHandle>(lane.release());
}

void CudaBackend::destroyStream(StreamHandle stream) {
  std::unique_ptr<Lane> lane(static_cast<Lane *>(stream));
  lanes_.erase(std::find(lanes_.begin(), lanes_.end(), lane.get()));
  device_->destroyStream(lane->stream);
  lane->release(*device_);
}

Result<EventHandle> CudaBackend::createEvent() {
  return device_->createEvent();
}
void CudaBackend::destroyEvent(EventHandle event) {
  device_->destroyEvent(event);
}
Status CudaBackend::recordEvent(EventHandle event, StreamHandle stream) {
  return device_->record(event, native(stream));
}
Status CudaBackend::waitEvent(StreamHandle stream, EventHandle event) {
  return device_->wait(native(stream), event);
}
Status CudaBackend::synchronize(StreamHandle stream) {
  lane(stream).waiting.reset(); // of a step that failed
  return device_->synchronize(native(stream));
}

Status CudaBackend::loadKernels(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  if (file)
    bytes << file.rdbuf();
  if (!file)
    return Status::error(fmt::format("cannot read kernels \"{}\"", path));
  auto module = device_->loadModule(bytes.str(), path);
  if (!module)
    return module.status();
  module_ = *module;
  modulePath_ = path;
  return {};
}

Status CudaBackend::growWorkspace(Lane &lane, uint64_t bytes) {
  if (bytes <= lane.bytes)
    return {};
  if (lane.workspace)
    MERAK_RETURN_IF_ERROR(device_->synchronize(lane.stream));
  lane.release(*device_);
  auto memory =
      lane.source ? lane.source->allocate(bytes) : device_->allocate(bytes);
  if (!memory)
    return memory.status();
  lane.workspace = *memory;
  lane.bytes = bytes;
  return {};
}

Result<std::unique_ptr<runtime::Prepared>>
CudaBackend::prepare(const planpb::Instruction &instruction,
                     std::span<const View> inputs,
                     std::span<const View> outputs) {
  if (instruction.kind() == planpb::Instruction::KERNEL)
    return prepareGenerated(instruction, inputs.size() + outputs.size());
  KernelResult kernel = prepareKernel(instruction, inputs, outputs, *device_);
  if (!kernel.ok())
    return kernel.status();
  Lane &lane = instruction.stream() < lanes_.size()
                   ? *lanes_[instruction.stream()]
                   : *default_;
  lane.asked = std::max(lane.asked, (*kernel)->workspace);
  if ((*kernel)->workspace >= kMatmulWorkspace)
    MERAK_RETURN_IF_ERROR(device_->checkMatmul());
  return std::unique_ptr<runtime::Prepared>(std::move(*kernel));
}

Result<std::unique_ptr<runtime::Prepared>>
CudaBackend::prepareGenerated(const planpb::Instruction &instruction,
                              size_t operands) {
  if (!module_)
    return Status::error(fmt::format(
        "kernel \"{}\": the plan has no file of kernels", instruction.op()));
  auto kernel = std::make_unique<Generated>();
  kernel->function = device_->function(module_, instruction.op());
  if (!kernel->function)
    return Status::error(fmt::format("kernel \"{}\" is not in \"{}\"",
                                     instruction.op(), modulePath_));
  auto threads = device_->threadsOf(kernel->function);
  if (!threads)
    return threads.status();
  kernel->threads = *threads;
  kernel->rows = instruction.rows();
  if (kernel->rows > INT32_MAX)
    return Status::error(fmt::format("kernel \"{}\" has {} rows, a grid has "
                                     "at most {} blocks",
                                     instruction.op(), kernel->rows,
                                     INT32_MAX));
  kernel->words.resize(operands + size_t(instruction.scalars_size()));
  return std::unique_ptr<runtime::Prepared>(std::move(kernel));
}

Status CudaBackend::run(const KernelCall &call) {
  Lane &own = lane(call.stream);
  std::unique_ptr<Joint> joint;
  if (own.waiting || call.followed)
    joint = jointOf(call);
  bool taken = false;
  if (own.waiting) {
    // What a graph is told anew every step is not joined with what it keeps.
    taken = joint && (own.changes < 0) == (call.changes < 0) &&
            own.waiting->join(*joint);
    if (taken && own.changes >= 0)
      capturing_->hold(own.changes);
    if (!taken)
      MERAK_RETURN_IF_ERROR(flush(own));
  }
  if (!joint) {
    if (!capturing_ || call.changes < 0)
      return enqueue(call, nullptr);
    return enqueue(call,
                   capturing_->recorder(call.changes, native(call.stream)));
  }
  if (!taken)
    own.waiting = std::move(joint);
  own.changes = call.changes;
  return call.followed ? Status() : flush(own);
}

std::unique_ptr<Joint> CudaBackend::jointOf(const KernelCall &call) {
  return call.instruction->kind() == planpb::Instruction::KERNEL
             ? nullptr
             : static_cast<Kernel &>(*call.prepared).joint(call);
}

Status CudaBackend::flush(Lane &own) {
  const std::unique_ptr<Joint> joint = std::move(own.waiting);
  return enqueue(*joint, own,
                 capturing_ && own.changes >= 0
                     ? capturing_->recorder(own.changes, own.stream)
                     : nullptr);
}

Status CudaBackend::enqueue(const Joint &joint, Lane &own, LaunchTap *tap) {
  MERAK_RETURN_IF_ERROR(growWorkspace(own, joint.workspace()));
  Launcher launcher(*device_, own.stream, own.workspace);
  launcher.tap = tap;
  launcher.capturing = capturing_ != nullptr;
  return joint.run(launcher);
}

Status CudaBackend::enqueue(const KernelCall &call, LaunchTap *tap) {
  if (call.instruction->kind() == planpb::Instruction::KERNEL) {
    auto &kernel = static_cast<Generated &>(*call.prepared);
    if (kernel.rows == 0)
      return {};
    size_t next = 0;
    for (std::span<const View> views : {call.inputs, call.outputs})
      for (const View &view : views)
        kernel.words[next++] = reinterpret_cast<uint64_t>(view.data);
    for (const runtime::ScalarValue &scalar : call.scalars)
      kernel.words[next++] = static_cast<uint64_t>(scalar.bits());
    const Grid grid{kernel.rows, kernel.threads};
    const size_t operands = call.inputs.size() + call.outputs.size();
    return tap ? tap->launch(kernel.function, grid, operands, kernel.words)
               : device_->launch(kernel.function, grid, operands, kernel.words,
                                 native(call.stream));
  }
  auto &kernel = static_cast<Kernel &>(*call.prepared);
  Lane &own = lane(call.stream);
  MERAK_RETURN_IF_ERROR(growWorkspace(own, kernel.workspace));
  Launcher launcher(*device_, own.stream, own.workspace);
  launcher.tap = tap;
  launcher.capturing = capturing_ != nullptr;
  return kernel.run(call, launcher);
}

Status CudaBackend::beginCapture(StreamHandle stream) {
  MERAK_RETURN_IF_ERROR(device_->beginCapture(native(stream)));
  capturing_ = std::make_unique<Captured>(*device_, *this);
  return {};
}

Result<std::unique_ptr<runtime::CapturedStep>>
CudaBackend::endCapture(StreamHandle stream) {
  std::unique_ptr<Captured> captured = std::move(capturing_);
  default_->waiting.reset(); // of a capture that failed
  for (Lane *lane : lanes_)
    lane->waiting.reset();
  auto graph = device_->endCapture(native(stream));
  if (!graph)
    return graph.status();
  captured->setGraph(std::move(*graph));
  return std::unique_ptr<runtime::CapturedStep>(std::move(captured));
}

Result<void *> CudaBackend::allocateStaging(uint64_t bytes) {
  return device_->allocateHost(bytes);
}
void CudaBackend::releaseStaging(void *memory) { device_->releaseHost(memory); }

Status CudaBackend::upload(void *device, const void *staging, uint64_t bytes,
                           StreamHandle stream) {
  return device_->copy(device, staging, bytes, native(stream));
}

void CudaBackend::askWorkspace(StreamHandle stream, uint64_t bytes) {
  Lane &own = lane(stream);
  own.asked = std::max(own.asked, bytes);
}

uint64_t CudaBackend::workspaceBytes(StreamHandle stream) const {
  return lane(stream).asked;
}

Status CudaBackend::takeWorkspaces(runtime::MemorySource *source) {
  MERAK_RETURN_IF_ERROR(growWorkspace(*default_, default_->asked));
  for (Lane *lane : lanes_) {
    if (!lane->workspace)
      lane->source = source;
    MERAK_RETURN_IF_ERROR(growWorkspace(*lane, lane->asked));
  }
  return {};
}

Result<void *> CudaBackend::workspace(StreamHandle stream, uint64_t bytes) {
  Lane &own = lane(stream);
  MERAK_RETURN_IF_ERROR(growWorkspace(own, bytes));
  return own.workspace;
}

Status CudaBackend::combine(std::span<const View> in, const View &out,
                            bool maximum, bool accumulate,
                            StreamHandle stream) {
  if (out.elements() == 0)
    return {};
  Launcher launcher(*device_, native(stream), nullptr);
  const planpb::Instruction none;
  Request request(none, in, std::span(&out, 1));
  if (in.size() == 1) {
    const CopyArgs args = makeCopy(request, in[0], out, accumulate);
    return request.ok() ? runCopy(launcher, args, in[0].data, out.data)
                        : request.status();
  }
  CombineArgs args;
  const size_t members = std::min<size_t>(in.size(), kMaxMembers);
  std::vector<std::vector<int64_t>> strides(kMaxMembers + 1, out.strides);
  for (size_t i = 0; i < members; ++i) {
    args.in[i] = ref(in[i]);
    strides[i] = in[i].strides;
  }
  args.out = ref(out);
  args.members = static_cast<int32_t>(members);
  args.maximum = maximum;
  args.add = accumulate;
  args.loops = makeLoops<kMaxMembers + 1>(request, Nest(out.shape, strides));
  if (!request.ok())
    return request.status();
  if (in.size() > kMaxMembers)
    return Status::error(fmt::format("{} ranks on one device, expected at most "
                                     "{}",
                                     in.size(), kMaxMembers));
  return launcher.items<KernelId::Combine>(args, args.loops.count);
}

} // namespace merak::cuda
