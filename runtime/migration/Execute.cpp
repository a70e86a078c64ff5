#include "runtime/migration/Execute.h"

#include "runtime/core/ConvertFloats.h"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <memory>
#include <thread>

namespace merak::migration {

namespace {

using runtime::CommSpec;
using runtime::Communicator;
using runtime::RankMemory;
using runtime::View;

// Of kept buffers of devices, through host memory.
constexpr int64_t kKeptPiece = 4 << 20; // bytes

// Bytes of host memory that a device has taken beside its arenas.
class Extra {
public:
  void add(int64_t bytes) {
    const int64_t now = bytes_ += bytes;
    int64_t most = most_.load();
    while (now > most && !most_.compare_exchange_weak(most, now))
      ;
  }
  int64_t most() const { return most_.load(); }

private:
  std::atomic<int64_t> bytes_{0}, most_{0};
};

// A dense local tensor, or a part of a message.
struct Dense {
  char *data = nullptr;
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  runtime::Backend *device = nullptr; // whose memory it is; null: the host's
};

Dense bufferOf(const RankMemory &rank, int index) {
  const planpb::Buffer &buffer = rank.program->proto().buffers(index);
  return {static_cast<char *>(rank.program->bufferData(index)),
          buffer.dtype(),
          {buffer.shape().begin(), buffer.shape().end()},
          rank.backend->isHost() ? nullptr : rank.backend};
}

// Rows of a box one by one, in the float type of the target.
Status convertBox(const Dense &from, const std::vector<int64_t> &fromOrigin,
                  const Dense &to, const std::vector<int64_t> &toOrigin,
                  const std::vector<int64_t> &extent) {
  const size_t rank = extent.size();
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < rank; ++d)
    rows *= extent[d];
  const int64_t count = rank ? extent[rank - 1] : 1;
  auto address = [&](const Dense &tensor, const std::vector<int64_t> &origin,
                     int64_t row) {
    // Row r of an extent [2, 3, n] is at (r / 3, r % 3).
    int64_t element = rank ? origin[rank - 1] : 0;
    int64_t stride = rank ? tensor.shape[rank - 1] : 1;
    for (size_t d = rank; d-- > 1;) {
      element += (origin[d - 1] + row % extent[d - 1]) * stride;
      row /= extent[d - 1];
      stride *= tensor.shape[d - 1];
    }
    return tensor.data + element * dtypeSize(tensor.dtype);
  };
  for (int64_t row = 0; row < rows; ++row)
    if (!runtime::convertFloats(from.dtype, address(from, fromOrigin, row),
                                to.dtype, address(to, toOrigin, row),
                                size_t(count)))
      return Status::error(fmt::format("cannot turn {} into {}",
                                       dtypeName(from.dtype),
                                       dtypeName(to.dtype)));
  return {};
}

Status moveOnHost(const Dense &from, const std::vector<int64_t> &fromOrigin,
                  const Dense &to, const std::vector<int64_t> &toOrigin,
                  const std::vector<int64_t> &extent) {
  if (from.dtype != to.dtype)
    return convertBox(from, fromOrigin, to, toOrigin, extent);
  layout::copyBox(from.data, from.shape, fromOrigin, to.data, to.shape,
                  toOrigin, extent, dtypeSize(to.dtype));
  return {};
}

// The rows of a tensor that a box lies in, in host memory: the tensor's own, or
// a copy of those of a device, as long as the box is moved. Rows are what the
// first dimension counts.
class Rows {
public:
  Rows(const Dense &tensor, const std::vector<int64_t> &origin,
       const std::vector<int64_t> &extent, Extra &extra)
      : rows_(tensor), origin_(origin), extra_(extra) {
    if (!tensor.device)
      return;
    bytes_ = dtypeSize(tensor.dtype);
    for (size_t d = 1; d < extent.size(); ++d) {
      bytes_ *= tensor.shape[d];
      isWhole_ = isWhole_ && extent[d] == tensor.shape[d];
    }
    there_ = tensor.data;
    if (!extent.empty()) {
      there_ += origin[0] * bytes_;
      bytes_ *= extent[0];
      rows_.shape[0] = extent[0];
      origin_[0] = 0;
    }
    copy_.reset(new char[size_t(bytes_)]);
    rows_.data = copy_.get();
    extra_.add(bytes_);
  }
  Rows(const Rows &) = delete;
  ~Rows() {
    if (copy_)
      extra_.add(-bytes_);
  }

  const Dense &tensor() const { return rows_; }
  const std::vector<int64_t> &origin() const { return origin_; }
  Status read() {
    return copy_ ? rows_.device->copyToHost(copy_.get(), there_,
                                            uint64_t(bytes_), nullptr)
                 : Status();
  }
  // What of them the box does not cover stays as it is.
  Status readRest() { return isWhole_ ? Status() : read(); }
  Status write() {
    return copy_ ? rows_.device->copyToDevice(there_, copy_.get(),
                                              uint64_t(bytes_), nullptr)
                 : Status();
  }

private:
  Dense rows_;
  std::vector<int64_t> origin_;
  Extra &extra_;
  std::unique_ptr<char[]> copy_;
  char *there_ = nullptr;
  int64_t bytes_ = 0;
  bool isWhole_ = true;
};

// Through host memory where one of them is a device's.
Status moveBox(const Dense &from, const std::vector<int64_t> &fromOrigin,
               const Dense &to, const std::vector<int64_t> &toOrigin,
               const std::vector<int64_t> &extent, Extra &extra) {
  Rows source(from, fromOrigin, extent, extra);
  Rows target(to, toOrigin, extent, extra);
  MERAK_RETURN_IF_ERROR(source.read());
  MERAK_RETURN_IF_ERROR(target.readRest());
  MERAK_RETURN_IF_ERROR(moveOnHost(source.tensor(), source.origin(),
                                   target.tensor(), target.origin(), extent));
  return target.write();
}

// Memory of one message; counted as long as it lives.
class Packed {
public:
  Packed(const Message &message, Extra &extra)
      : message(&message), bytes_(new char[size_t(message.bytes)]),
        extra_(&extra) {
    extra.add(message.bytes);
  }
  Packed(Packed &&) = default;
  ~Packed() {
    if (bytes_)
      extra_->add(-message->bytes);
  }
  View view() const {
    return {bytes_.get(), planpb::U8, {message->bytes}, {1}};
  }
  // Calls `each` for every piece and its place here.
  template <typename Each> Status forPieces(Each each) const {
    char *at = bytes_.get();
    for (const Piece &piece : message->pieces) {
      MERAK_RETURN_IF_ERROR(each(piece, Dense{at, piece.dtype, piece.extent},
                                 std::vector<int64_t>(piece.extent.size(), 0)));
      at += piece.bytes;
    }
    return {};
  }

  const Message *message;

private:
  std::unique_ptr<char[]> bytes_;
  Extra *extra_;
};

class Device {
public:
  Device(const Migration &migration, const DeviceMemory &memory)
      : migration_(migration), memory_(memory) {}

  Status run() {
    MERAK_RETURN_IF_ERROR(keep());
    for (const LocalCopy &copy : migration_.copies)
      if (copy.device == memory_.device) {
        const Piece &piece = copy.piece;
        MERAK_RETURN_IF_ERROR(moveBox(bufferOf(*memory_.source, piece.source),
                                      piece.from,
                                      bufferOf(*memory_.target, piece.target),
                                      piece.to, piece.extent, extra_));
        moved_.copiedBytes += piece.bytes;
      }
    for (size_t b = 0; b < migration_.buckets.size(); ++b)
      MERAK_RETURN_IF_ERROR(bucket(migration_.buckets[b])
                                .withContext(fmt::format("bucket {}", b)));
    // What was written is on its way; the next step uses other streams.
    return memory_.target ? memory_.target->backend->synchronize(nullptr)
                          : Status();
  }

  Moved moved() const {
    Moved moved = moved_;
    moved.peakBytes = extra_.most();
    return moved;
  }

private:
  Status keep() {
    for (const Kept &kept : migration_.kept) {
      if (kept.device != memory_.device)
        continue;
      const Dense from = bufferOf(*memory_.source, kept.source);
      const Dense to = bufferOf(*memory_.target, kept.target);
      if (from.data == to.data) {
        moved_.keptBytes += kept.bytes;
        continue;
      }
      MERAK_RETURN_IF_ERROR(copyKept(from, to, kept.bytes));
      moved_.keptByCopyBytes += kept.bytes;
    }
    return {};
  }

  // As they are, a piece at a time where a device has them.
  Status copyKept(const Dense &from, const Dense &to, int64_t bytes) {
    if (!from.device && !to.device) {
      std::copy_n(from.data, bytes, to.data);
      return {};
    }
    for (int64_t at = 0; at < bytes; at += kKeptPiece) {
      const int64_t size = std::min(kKeptPiece, bytes - at);
      const auto part = [&](const Dense &tensor) {
        return Dense{tensor.data + at, planpb::U8, {size}, tensor.device};
      };
      MERAK_RETURN_IF_ERROR(
          moveBox(part(from), {0}, part(to), {0}, {size}, extra_));
    }
    return {};
  }

  Status pack(const Packed &packed) {
    return packed.forPieces([&](const Piece &piece, const Dense &place,
                                const std::vector<int64_t> &zero) {
      return moveBox(bufferOf(*memory_.source, piece.source), piece.from, place,
                     zero, piece.extent, extra_);
    });
  }
  Status unpack(const Packed &packed) {
    return packed.forPieces([&](const Piece &piece, const Dense &place,
                                const std::vector<int64_t> &zero) {
      return moveBox(place, zero, bufferOf(*memory_.target, piece.target),
                     piece.to, piece.extent, extra_);
    });
  }

  Status transfer(CommSpec::Kind kind, const Packed &packed) const {
    const Message &message = *packed.message;
    const bool sends = kind == CommSpec::Send;
    CommSpec spec;
    spec.kind = kind;
    spec.peer = sends ? message.receiver : message.sender;
    spec.channel = "migration";
    spec.name =
        fmt::format("state from {} to {}", message.sender, message.receiver);
    const View view = packed.view();
    const std::span<const View> one(&view, 1);
    const std::span<const View> in = sends ? one : std::span<const View>();
    const std::span<const View> out = sends ? std::span<const View>() : one;
    auto endpoint = memory_.communicator->prepare(std::move(spec), in, out);
    if (!endpoint)
      return endpoint.status();
    return memory_.communicator->run({endpoint->get(), in, out, nullptr});
  }

  Status bucket(const Bucket &bucket) {
    std::vector<Packed> out, in;
    for (const Message &message : bucket.messages) {
      if (message.sender == memory_.device)
        MERAK_RETURN_IF_ERROR(pack(out.emplace_back(message, extra_)));
      else if (message.receiver == memory_.device)
        in.emplace_back(message, extra_);
    }
    // Both at the same time: in a circle of devices each sends to the next.
    Status received;
    auto receive = [&] {
      for (const Packed &packed : in)
        if (received.ok())
          received = transfer(CommSpec::Recv, packed);
    };
    std::thread receiver;
    if (!in.empty() && !out.empty())
      receiver = std::thread(receive);
    else
      receive();
    Status problems;
    for (const Packed &packed : out)
      if (problems.ok())
        problems = transfer(CommSpec::Send, packed);
    if (!problems.ok()) // its receiver may wait for somebody else
      memory_.communicator->abort(problems);
    if (receiver.joinable())
      receiver.join();
    problems.merge(received);
    MERAK_RETURN_IF_ERROR(problems);
    for (const Packed &packed : out) {
      moved_.sentBytes += packed.message->bytes;
      ++moved_.messages;
    }
    for (const Packed &packed : in) {
      moved_.receivedBytes += packed.message->bytes;
      MERAK_RETURN_IF_ERROR(unpack(packed));
    }
    return {};
  }

  const Migration &migration_;
  const DeviceMemory &memory_;
  Extra extra_;
  Moved moved_;
};

// What the program takes for granted of the memories.
Status checkMemory(const Migration &migration, const DeviceMemory &memory) {
  const int device = memory.device;
  if (device < 0 || device >= migration.devices())
    return Status::error(
        fmt::format("there are {} devices", migration.devices()));
  Status problems;
  auto check = [&](const RankMemory *rank, int expected, const char *plan) {
    const int found = rank ? rank->program->rank() : -1;
    if (found != expected)
      problems.merge(Status::error(fmt::format(
          "has rank {} of the {} plan, not {}", found, plan, expected)));
  };
  check(memory.source, migration.sourceRank[size_t(device)], "source");
  check(memory.target, migration.targetRank[size_t(device)], "target");
  const Communicator *communicator = memory.communicator;
  if (migration.messages() > 0 && !communicator)
    problems.merge(Status::error("has nothing to communicate by"));
  else if (communicator && (communicator->rank() != device ||
                            communicator->size() != migration.devices()))
    problems.merge(Status::error(
        fmt::format("communicates as {} of {}, not of {}", communicator->rank(),
                    communicator->size(), migration.devices())));
  return problems;
}

} // namespace

Result<std::vector<Moved>>
executeMigration(const Migration &migration,
                 std::span<const DeviceMemory> memories) {
  Status problems;
  for (const DeviceMemory &memory : memories)
    problems.merge(checkMemory(migration, memory)
                       .withContext(fmt::format("device {}", memory.device)));
  if (!problems.ok())
    return problems;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Status> results(memories.size());
  std::vector<std::thread> threads;
  for (const DeviceMemory &memory : memories)
    devices.push_back(std::make_unique<Device>(migration, memory));
  for (size_t i = 0; i < devices.size(); ++i)
    threads.emplace_back([&, i] {
      results[i] = devices[i]->run();
      if (!results[i].ok() && memories[i].communicator)
        memories[i].communicator->abort(results[i]);
    });
  for (std::thread &thread : threads)
    thread.join();
  std::vector<Moved> moved;
  for (size_t i = 0; i < devices.size(); ++i) {
    problems.merge(
        std::move(results[i])
            .withContext(fmt::format("device {}", memories[i].device)));
    moved.push_back(devices[i]->moved());
  }
  if (!problems.ok())
    return problems;
  return moved;
}

} // namespace merak::migration
