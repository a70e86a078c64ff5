// Between the buffers of ranks and global tensors.
#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/HostCopy.h"
#include "runtime/checkpoint/Safetensors.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/ConvertFloats.h"
#include "runtime/core/DType.h"
#include "runtime/plan/Ahead.h"
#include "runtime/plan/LibraryKernels.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <set>

namespace merak::runtime {

Result<HostCopy> HostCopy::of(const RankMemory &rank, int buffer, int slot) {
  const planpb::Buffer &proto = rank.program->proto().buffers(buffer);
  HostCopy copy;
  copy.data_ = static_cast<char *>(rank.program->bufferData(buffer, slot));
  if (!rank.backend->isHost()) {
    copy.bytes_.resize(proto.bytes());
    MERAK_RETURN_IF_ERROR(rank.backend->copyToHost(
        copy.bytes_.data(), copy.data_, proto.bytes(), nullptr));
    copy.data_ = copy.bytes_.data();
  }
  copy.shape_.assign(proto.shape().begin(), proto.shape().end());
  return copy;
}

namespace {

// Values in the float type of a buffer: a rounded copy of f32, or weights that
// the model holds in another type than they are trained in.
Status convert(planpb::DType from, const std::vector<char> &in,
               int64_t elements, planpb::DType to, std::vector<char> &out) {
  if (!convertFloats(from, in.data(), to, out.data(), elements))
    return Status::error(
        fmt::format("cannot turn {} into {}", dtypeName(from), dtypeName(to)));
  return {};
}

// Host memory that values pass through, for one tensor after the other: pages
// that are touched for the first time take longer than everything else here.
struct Passage {
  std::vector<char> read, converted;
  static char *atLeast(std::vector<char> &bytes, int64_t size) {
    if (bytes.size() < static_cast<size_t>(size))
      bytes.resize(size);
    return bytes.data();
  }
};

Status loadBuffer(const RankMemory &rank, int index,
                  const std::vector<layout::Box> &boxes,
                  const StoredTensor &tensor, const TensorStore &store,
                  Passage &passage) {
  const planpb::Buffer &buffer = rank.program->proto().buffers(index);
  const std::vector<int64_t> shape(buffer.shape().begin(),
                                   buffer.shape().end());
  void *device = rank.program->bufferData(index);
  if (tensor.pieces.empty()) // zeros
    return rank.backend->clear(device, buffer.bytes(), nullptr);
  const bool direct = rank.backend->isHost() && tensor.dtype == buffer.dtype();
  int64_t elements = 1;
  for (int64_t size : shape)
    elements *= size;
  const int64_t bytes = elements * dtypeSize(buffer.dtype());
  void *to = direct ? device
                    : Passage::atLeast(passage.read,
                                       elements * dtypeSize(tensor.dtype));
  for (const layout::Box &box : boxes)
    MERAK_RETURN_IF_ERROR(store.read(buffer.tensor(), box, to, shape));
  if (direct)
    return {};
  if (tensor.dtype != buffer.dtype()) {
    to = Passage::atLeast(passage.converted, bytes);
    MERAK_RETURN_IF_ERROR(convert(tensor.dtype, passage.read, elements,
                                  buffer.dtype(), passage.converted));
  }
  return rank.backend->copyToDevice(device, to, bytes, nullptr);
}

} // namespace

Status loadTensors(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                   const TensorStore &store) {
  Status problems;
  Passage passage;
  for (const RankMemory &rank : ranks) {
    const planpb::Program &program = rank.program->proto();
    for (int i = 0; i < program.buffers_size(); ++i) {
      const planpb::Buffer &buffer = program.buffers(i);
      const StoredTensor *tensor = store.find(buffer.tensor());
      if (!holdsTensor(buffer) || !tensor)
        continue;
      const layout::Layout layout = fromProto(buffer.layout());
      Status status;
      if (layout.globalShape() != tensor->shape)
        status = Status::error(
            fmt::format("layout {} is not of this shape", layout.str()));
      else
        status = loadBuffer(
            rank, i,
            layout::boxes(layout, rank.program->mesh(), rank.program->coords()),
            *tensor, store, passage);
      problems.merge(std::move(status).withContext(fmt::format(
          "rank {} · tensor \"{}\"", rank.program->rank(), buffer.tensor())));
    }
    // The program's streams do not wait for the default one.
    problems.merge(rank.backend->synchronize(nullptr));
  }
  return problems;
}

const RankMemory *Relay::local(int rank) const {
  for (const RankMemory &memory : ranks_)
    if (memory.program->rank() == rank)
      return &memory;
  return nullptr;
}

Result<bool>
Relay::piece(int rank, std::vector<char> &bytes,
             const std::function<Status(const RankMemory &)> &make) {
  const std::string key = fmt::format("{}/{}", name_, next_++);
  const RankMemory *memory = local(rank);
  if (memory)
    MERAK_RETURN_IF_ERROR(make(*memory));
  if (leads() && !memory) {
    auto sent = store_->take(key, kPatienceSeconds);
    if (!sent.ok())
      return sent.status();
    bytes.assign(sent->begin(), sent->end());
  } else if (!leads() && memory) {
    MERAK_RETURN_IF_ERROR(
        store_->put(key, std::string(bytes.begin(), bytes.end())));
  }
  return leads();
}

Status gatherTensor(const LoadedPlan &plan, Relay &relay,
                    const std::vector<HeldBuffer> &held,
                    const std::vector<int64_t> &shape, planpb::DType dtype,
                    char *data) {
  const int64_t size = dtypeSize(dtype);
  int64_t expected = 1, covered = 0;
  for (int64_t extent : shape)
    expected *= extent;
  if (relay.leads())
    std::memset(data, 0, expected * size);
  // Replicas hold equal boxes; summands differ on the partial axes.
  std::set<std::pair<std::vector<int64_t>, std::vector<int64_t>>> boxesSeen;
  std::set<std::vector<int64_t>> originsSeen;
  std::vector<char> part, sum;
  for (const HeldBuffer &where : ofOneMesh(plan, held)) {
    const layout::AxisMap mesh = layoutMesh(plan.file, where.rank);
    const layout::Layout layout =
        fromProto(plan.programOf(where.rank).buffers(where.buffer).layout());
    const layout::AxisMap coords = coordsOf(plan.file, where.rank);
    std::vector<int64_t> summand;
    for (const std::string &axis : layout.partial) {
      const auto coordinate = coords.find(axis);
      summand.push_back(coordinate == coords.end() ? 0 : coordinate->second);
    }
    if (!layout.partial.empty() && dtype != planpb::F32)
      return Status::error(
          fmt::format("cannot sum parts of type {}", dtypeName(dtype)));
    for (const layout::Box &box : layout::boxes(layout, mesh, coords)) {
      if (!boxesSeen.insert({box.globalOrigin, summand}).second)
        continue;
      if (originsSeen.insert(box.globalOrigin).second)
        covered += box.elements();
      const std::vector<int64_t> zero(box.extent.size(), 0);
      part.resize(box.elements() * size);
      auto here = relay.piece(where.rank, part, [&](const RankMemory &rank) {
        auto copy = HostCopy::of(rank, where.buffer);
        if (!copy)
          return copy.status();
        layout::copyBox(copy->data(), copy->shape(), box.localOrigin,
                        part.data(), box.extent, zero, box.extent, size);
        return Status();
      });
      if (!here.ok())
        return here.status();
      if (!*here)
        continue;
      if (!layout.partial.empty()) {
        sum.resize(part.size());
        layout::copyBox(data, shape, box.globalOrigin, sum.data(), box.extent,
                        zero, box.extent, size);
        auto *total = reinterpret_cast<float *>(sum.data());
        const auto *addend = reinterpret_cast<const float *>(part.data());
        for (int64_t i = 0; i < box.elements(); ++i)
          total[i] += addend[i];
        part.swap(sum);
      }
      layout::copyBox(part.data(), box.extent, zero, data, shape,
                      box.globalOrigin, box.extent, size);
    }
  }
  if (covered < expected)
    return Status::error(
        fmt::format("the ranks hold {} of {} elements", covered, expected));
  return {};
}

// Tensors whose gradients nothing holds as a whole at the end of a step: an
// update takes steps on them by rows, or the next step will sum them.
static std::set<std::string> withoutGradients(const LoadedPlan &plan) {
  std::set<std::string> names;
  for (const planpb::Program &program : plan.programs)
    for (const planpb::Procedure &procedure : program.procedures())
      for (const planpb::Instruction &inst : procedure.instructions())
        if (const LibraryKernel *kernel = findLibraryKernel(inst.op());
            (kernel && kernel->touches == Touches::Named) ||
            isOfStepBefore(inst))
          names.insert(program.buffers(int(inst.outputs(0).buffer())).tensor());
  return names;
}

static void unscale(char *data, int64_t elements, double scale) {
  auto *values = reinterpret_cast<float *>(data);
  for (int64_t i = 0; i < elements; ++i)
    values[i] = static_cast<float>(values[i] / scale);
}

Status saveGradients(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                     const std::string &path, Store *store, double lossScale) {
  std::map<std::string, std::vector<HeldBuffer>> held;
  for (int r = 0; r < plan.file.ranks_size(); ++r) {
    const planpb::Program &program = plan.programOf(r);
    for (int i = 0; i < program.buffers_size(); ++i)
      if (std::string name = gradientOf(program.buffers(i)); !name.empty())
        held[name].push_back({r, i});
  }
  const std::set<std::string> without = withoutGradients(plan);
  Relay relay(ranks, store, "gradients");
  std::vector<SafetensorsOutput> outputs;
  Status problems;
  for (const planpb::Tensor &tensor : plan.file.tensors()) {
    if (tensor.role() != planpb::Tensor::PARAMETER ||
        without.count(tensor.name()))
      continue;
    const auto found = held.find(tensor.name());
    if (found == held.end()) {
      problems.merge(Status::error(
          fmt::format("no rank keeps the gradient of \"{}\"", tensor.name())));
      continue;
    }
    const HeldBuffer first = found->second[0];
    SafetensorsOutput output;
    output.name = tensor.name();
    output.dtype = plan.programOf(first.rank).buffers(first.buffer).dtype();
    output.shape.assign(tensor.shape().begin(), tensor.shape().end());
    if (lossScale != 1 && output.dtype != planpb::F32) {
      problems.merge(Status::error(
          fmt::format("gradient of \"{}\": expected f32 of a scaled loss, "
                      "found {}",
                      tensor.name(), dtypeName(output.dtype))));
      continue;
    }
    output.fill = [&plan, &relay, &buffers = found->second,
                   shape = output.shape, dtype = output.dtype,
                   name = tensor.name(), lossScale](char *data) -> Status {
      MERAK_RETURN_IF_ERROR(
          gatherTensor(plan, relay, buffers, shape, dtype, data)
              .withContext(fmt::format("gradient of \"{}\"", name)));
      if (data && lossScale != 1)
        unscale(data,
                std::accumulate(shape.begin(), shape.end(), int64_t{1},
                                std::multiplies<>()),
                lossScale);
      return {};
    };
    outputs.push_back(std::move(output));
  }
  // Every process comes to the same problems: they are in the plan.
  if (problems.ok() && relay.leads())
    problems = writeSafetensors(path, outputs);
  else if (problems.ok())
    for (const SafetensorsOutput &output : outputs)
      MERAK_RETURN_IF_ERROR(output.fill(nullptr)); // rank 0 waits: aborts
  return agree(store, "gradients written", problems);
}

} // namespace merak::runtime
