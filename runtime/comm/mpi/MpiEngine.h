// The one thread of a process that talks to MPI (private to this folder).
//
// Streams of a rank communicate at the same time and must not wait for each
// other; they hand their messages to this thread and sleep until these are
// done. It keeps all messages going, also while the streams compute, and naps
// when nothing is under way. MPI needs no more than
// MPI_THREAD_SERIALIZED for that, and waiting ranks leave the processor to
// those that compute.
#pragma once

#include "runtime/core/Gate.h"
#include "runtime/core/Status.h"

#include <deque>
#include <memory>
#include <mpi.h>
#include <span>
#include <thread>
#include <vector>

namespace merak::runtime {

// As long as MPI can count in a message.
constexpr int64_t kLongestPiece = int64_t(1) << 30;
// One message; matched by peer and tag, in order.
struct MpiMessage {
  bool send = false;
  int peer = 0, tag = 0;
  char *data = nullptr;
  int64_t bytes = 0;
  // Both ends: zeros at its end need not be sent; the receiver puts them there.
  // `live`: of a message that is sent, the bytes before them.
  bool trims = false;
  int64_t live = 0;
  int64_t longest = kLongestPiece; // of its pieces; both ends say the same
};

class MpiEngine {
public:
  // `comm` is the engine's own until it ends. Once `abort` is raised the engine
  // does nothing more.
  MpiEngine(MPI_Comm comm, const std::atomic<bool> &abort);
  ~MpiEngine();

  // Starts all messages together and returns when all are done. Errors: MPI's,
  // a message of another length than expected; with an empty text: the run was
  // aborted. Afterwards nothing touches the messages' memory.
  Status run(std::span<const MpiMessage> messages) {
    return wait(begin(messages));
  }

  // The same in two calls.
  struct Batch;
  std::shared_ptr<Batch> begin(std::span<const MpiMessage> messages);
  Status wait(const std::shared_ptr<Batch> &batch);

  // Largest tag.
  int tagLimit() const { return tagLimit_; }

private:
  struct Piece { // of a message
    std::shared_ptr<Batch> batch;
    bool send;
    int peer;
    int64_t bytes;
    char *zeros = nullptr; // where they go if fewer bytes arrive
  };

  void main();
  void serve();
  void start(const std::shared_ptr<Batch> &batch);
  // Lets MPI go on with what no request stands for.
  void progress();
  // Looks after the requests; whether one was done.
  bool poll();
  void finish(const Piece &piece, int error, const MPI_Status &status);

  MPI_Comm comm_;
  const std::atomic<bool> &abort_;
  int tagLimit_ = 32767;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Batch>> queue_;
  std::atomic<bool> queued_{false}, ended_{false};
  bool stop_ = false;
  Gate gate_; // batches done

  // The thread's own.
  std::vector<MPI_Request> requests_;
  std::vector<Piece> pieces_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::thread thread_;
};

// The messages of one call.
struct MpiEngine::Batch {
  std::vector<MpiMessage> messages;
  int open = 0; // requests under way
  Status failure;
  std::atomic<bool> done{false};
};

} // namespace merak::runtime
