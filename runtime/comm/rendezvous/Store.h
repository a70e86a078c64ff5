// Where the processes of one run meet: they exchange small values by name,
// wait for each other, and learn at once when one of them fails or is gone.
//
// Every process holds one Store; `rank` is its number among `size` processes.
// Communicators use it to set up (an NCCL id, the number of a tag), a run to
// agree on errors, outputs and checkpoints. Any thread may call at any time.
#pragma once

#include "runtime/core/Status.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace merak::runtime {

// For what surely comes unless a rank is lost, which aborts the wait sooner:
// longer than any step or checkpoint.
constexpr double kPatienceSeconds = 24 * 3600;

class Store {
public:
  virtual ~Store() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Makes `value` known to all under `key`; a later value replaces it. Does not
  // wait for anybody.
  virtual Status put(const std::string &key, const std::string &value) = 0;
  // Waits until a process has put the key. Errors: nobody did so in `seconds`,
  // or the run was aborted.
  virtual Result<std::string> get(const std::string &key, double seconds) = 0;
  // The same; afterwards nobody has put the key.
  virtual Result<std::string> take(const std::string &key, double seconds) = 0;

  // This rank's part of a collection; does not wait. A name may be used again
  // and again: the k-th contribution of every rank belong together.
  virtual Status contribute(const std::string &name,
                            const std::string &value) = 0;
  // All parts in the order of ranks, after one's own contribution. The error
  // names the ranks that did not contribute in `seconds`.
  virtual Result<std::vector<std::string>> collect(const std::string &name,
                                                   double seconds) = 0;
  // The number of a key: the same on every rank, 0, 1, 2 in the order in which
  // the keys were first asked for.
  virtual Result<int64_t> number(const std::string &key) = 0;

  // Tells all other processes; each calls its listener on a thread of the
  // store. The listener may use what does not wait.
  virtual Status notify(const std::string &topic, const std::string &text) = 0;
  using Listener = std::function<void(int from, const std::string &topic,
                                      const std::string &text)>;
  // Behind it the listener before is not called any more, nor still running:
  // hold no lock that it takes.
  virtual void listen(Listener listener) = 0;

  // Stops the run: pending and later calls fail on every rank. Also happens by
  // itself when a process ends without `leave`, or answers no more; the reason
  // then names its rank and host. The first reason stays.
  virtual void abort(const Status &reason) = 0;
  virtual const std::atomic<bool> &aborted() const = 0;
  virtual Status abortReason() const = 0;
  // The rank that aborted, is gone or is silent; -1 without an abort.
  virtual int abortedBy() const = 0;

  // The last call: this process ends on purpose, and waits up to `seconds`
  // until all others do, so that whoever is first does not look lost.
  virtual void leave(double seconds) = 0;

  Result<std::vector<std::string>>
  gather(const std::string &name, const std::string &value, double seconds) {
    if (Status status = contribute(name, value); !status.ok())
      return status;
    return collect(name, seconds);
  }
  Status barrier(const std::string &name, double seconds) {
    return gather(name, "", seconds).status();
  }
};

} // namespace merak::runtime
