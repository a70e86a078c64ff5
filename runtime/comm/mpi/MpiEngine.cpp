#include "runtime/comm/mpi/MpiEngine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sys/prctl.h>

namespace merak::runtime {
namespace {

// Without progress: polls in a row, then polls with yields, then sleeps.
constexpr int kSpins = 50, kYields = 100;
constexpr auto kNap = std::chrono::microseconds(20);
// Without requests, naps become this long.
constexpr auto kLongestNap = std::chrono::milliseconds(10);

std::string errorText(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  return std::string(text, size_t(length));
}

} // namespace

MpiEngine::MpiEngine(MPI_Comm comm, const std::atomic<bool> &abort)
    : comm_(comm), abort_(abort) {
  int *limit = nullptr, found = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &limit, &found);
  if (found)
    tagLimit_ = *limit;
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  thread_ = std::thread([this] { main(); });
}

MpiEngine::~MpiEngine() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<MpiEngine::Batch>
MpiEngine::begin(std::span<const MpiMessage> messages) {
  auto batch = std::make_shared<Batch>();
  if (messages.empty()) {
    batch->done = true;
    return batch;
  }
  batch->messages.assign(messages.begin(), messages.end());
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(batch);
    queued_ = true;
  }
  wake_.notify_one();
  return batch;
}

Status MpiEngine::wait(const std::shared_ptr<Batch> &batch) {
  if (gate_.wait([&] { return batch->done.load(); }, abort_))
    return batch->failure;
  static const std::atomic<bool> kNever{false};
  gate_.wait([&] { return ended_.load(); }, kNever);
  return Status::error("");
}

void MpiEngine::main() {
  prctl(PR_SET_TIMERSLACK, 1000); // naps are short
  serve();
  ended_ = true;
  gate_.notify();
}

void MpiEngine::serve() {
  int idle = 0;
  std::chrono::microseconds nap = kNap;
  while (!abort_) {
    if (queued_ || requests_.empty()) {
      std::unique_lock lock(mutex_);
      if (requests_.empty() && !wake_.wait_for(lock, nap, [&] {
            return stop_ || !queue_.empty();
          })) {
        nap = std::min<std::chrono::microseconds>(2 * nap, kLongestNap);
        lock.unlock();
        progress();
        continue;
      }
      nap = kNap;
      if (stop_)
        return;
      std::deque<std::shared_ptr<Batch>> batches;
      batches.swap(queue_);
      queued_ = false;
      lock.unlock();
      for (const auto &batch : batches)
        start(batch);
      idle = 0;
    }
    if (poll()) {
      idle = 0;
    } else if (++idle > kSpins + kYields) {
      std::unique_lock lock(mutex_);
      if (stop_)
        return;
      wake_.wait_for(lock, kNap, [&] { return stop_ || !queue_.empty(); });
    } else if (idle > kSpins) {
      std::this_thread::yield();
    }
  }
}

// A send is done when MPI has taken it over, not when it has left: what a full
// socket did not take goes out in a later call of MPI, of which there may be
// none for as long as the receiver waits.
void MpiEngine::progress() {
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE);
}

void MpiEngine::start(const std::shared_ptr<Batch> &batch) {
  batch->open = 1; // until all are started
  for (const MpiMessage &message : batch->messages) {
    // An empty message is sent too: it says that the sender has come.
    int64_t begin = 0;
    do {
      const int64_t bytes = std::min(message.longest, message.bytes - begin);
      MPI_Request request = MPI_REQUEST_NULL;
      // Of a message that is trimmed each piece is, down to nothing.
      const int64_t sent =
          message.trims ? std::clamp<int64_t>(message.live - begin, 0, bytes)
                        : bytes;
      const int error =
          message.send ? MPI_Isend(message.data + begin, int(sent), MPI_BYTE,
                                   message.peer, message.tag, comm_, &request)
                       : MPI_Irecv(message.data + begin, int(bytes), MPI_BYTE,
                                   message.peer, message.tag, comm_, &request);
      ++batch->open;
      Piece piece{batch, message.send, message.peer, bytes,
                  message.trims ? message.data + begin : nullptr};
      if (error == MPI_SUCCESS) {
        requests_.push_back(request);
        pieces_.push_back(std::move(piece));
      } else {
        finish(piece, error, MPI_Status{});
      }
      begin += bytes;
    } while (begin < message.bytes);
  }
  if (--batch->open == 0) {
    batch->done = true;
    gate_.notify();
  }
}

bool MpiEngine::poll() {
  if (requests_.empty())
    return false;
  const int count = int(requests_.size());
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int done = 0;
  const int error = MPI_Testsome(count, requests_.data(), &done,
                                 indices_.data(), statuses_.data());
  if (done == MPI_UNDEFINED || done == 0)
    return false;
  for (int i = 0; i < done; ++i)
    finish(pieces_[size_t(indices_[size_t(i)])],
           error == MPI_ERR_IN_STATUS ? statuses_[size_t(i)].MPI_ERROR : error,
           statuses_[size_t(i)]);
  // MPI has cleared the requests that are done.
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL) {
      requests_[kept] = requests_[i];
      if (kept != i)
        pieces_[kept] = std::move(pieces_[i]);
      ++kept;
    }
  requests_.resize(kept);
  pieces_.resize(kept);
  return true;
}

void MpiEngine::finish(const Piece &piece, int error,
                       const MPI_Status &status) {
  Batch &batch = *piece.batch;
  int bytes = int(piece.bytes);
  if (error == MPI_SUCCESS && !piece.send)
    MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (error != MPI_SUCCESS)
    batch.failure.merge(Status::error(fmt::format(
        "{} rank {}: {}", piece.send ? "sending to" : "receiving from",
        piece.peer, errorText(error))));
  else if (piece.zeros && !piece.send)
    std::memset(piece.zeros + bytes, 0, size_t(piece.bytes - bytes));
  else if (bytes != piece.bytes)
    batch.failure.merge(Status::error(fmt::format(
        "rank {} sent {} bytes, expected {}", piece.peer, bytes, piece.bytes)));
  if (--batch.open == 0) {
    batch.done = true;
    gate_.notify();
  }
}

} // namespace merak::runtime
