#include "runtime/checkpoint/CopyTransport.h"

#include "runtime/core/HostMemory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace merak::runtime {
namespace {

// So that what training sends is never far behind in the queues of a link.
constexpr uint64_t kPiece = 1 << 20;

View bytesView(char *data, uint64_t bytes) {
  return {data, planpb::U8, {int64_t(bytes)}, {1}};
}

// One direction, with an endpoint for each peer.
class Lane {
public:
  Lane(World &world, std::string channel)
      : world_(world), channel_(std::move(channel)) {}

  Status run(std::span<const CopyLeg> legs, bool send) {
    for (const CopyLeg &leg : legs)
      if (leg.send == send)
        for (uint64_t done = 0; done < leg.bytes; done += kPiece)
          MERAK_RETURN_IF_ERROR(
              piece(leg, leg.data + done, std::min(kPiece, leg.bytes - done)));
    return {};
  }

private:
  Status piece(const CopyLeg &leg, char *data, uint64_t bytes) {
    const View view = bytesView(data, bytes);
    const std::span<const View> one(&view, 1), none;
    const std::span<const View> in = leg.send ? one : none,
                                out = leg.send ? none : one;
    auto &endpoint = endpoints_[leg.peer];
    if (!communicator_) {
      auto made = world_.communicator(world_.ranks().front(), memory_);
      if (!made)
        return made.status();
      communicator_ = std::move(*made);
    }
    if (!endpoint) {
      CommSpec spec;
      spec.kind = leg.send ? CommSpec::Send : CommSpec::Recv;
      spec.peer = leg.peer;
      spec.channel = spec.name = channel_;
      auto made = communicator_->prepare(std::move(spec), in, out);
      if (!made)
        return made.status();
      endpoint = std::move(*made);
    }
    return communicator_->run({endpoint.get(), in, out, nullptr});
  }

  World &world_;
  HostMemory memory_;
  std::string channel_;
  std::unique_ptr<Communicator> communicator_;
  std::map<int, std::unique_ptr<Endpoint>> endpoints_;
};

} // namespace

Result<CopyFile> CopyFile::make(const std::string &path, uint64_t bytes) {
  const int file = ::open(
      path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  int error = 0;
  do
    error = bytes > 0 ? posix_fallocate(file, 0, off_t(bytes)) : 0;
  while (error == EINTR);
  CopyFile result;
  void *data = MAP_FAILED;
  if (error == 0) {
    data = mmap(nullptr, std::max<uint64_t>(bytes, 1), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_POPULATE, file, 0);
    error = data == MAP_FAILED ? errno : 0;
  }
  ::close(file);
  if (error != 0) {
    (void)::unlink(path.c_str());
    return Status::error(fmt::format("cannot write \"{}\", {} bytes: {}", path,
                                     bytes, std::strerror(error)));
  }
  result.data_ = static_cast<char *>(data);
  result.bytes_ = bytes;
  return result;
}

CopyFile &CopyFile::operator=(CopyFile &&other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

CopyFile::~CopyFile() {
  if (data_)
    munmap(data_, std::max<uint64_t>(bytes_, 1));
}

Status carry(World &world, const std::string &channel,
             std::span<const CopyLeg> legs) {
  const auto goes = [](bool send) {
    return [send](const CopyLeg &leg) { return leg.send == send; };
  };
  Lane out(world, channel), in(world, channel);
  Status sent, received;
  std::thread sender;
  if (std::any_of(legs.begin(), legs.end(), goes(true)))
    sender = std::thread([&] { sent = out.run(legs, true); });
  received = in.run(legs, false);
  if (sender.joinable())
    sender.join();
  sent.merge(received);
  return sent;
}

} // namespace merak::runtime
