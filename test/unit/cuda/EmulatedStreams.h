// Streams that run when they like: work waits in a queue for each stream, and
// is done in an order that streams and events allow and that a seed draws. Work
// is done one at a time, while whoever calls holds the lock.
//
// At any moment a stream is eager, and does whatever it may as soon as it may,
// or lazy, and does nothing that nobody waits for; it changes now and then, or
// never. With every other seed eager streams make lazy ones do what they wait
// for, and no more. So of two operations that nothing orders each comes first
// with some seed: one on an eager stream overtakes what a lazy one was asked
// for long before.
#pragma once

#include "runtime/backends/cuda/Device.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>

namespace merak::cuda {

// What a stream does. `ready` is asked, again and again, once all that comes
// before it is done: work that other processes take part in (a collective)
// begins then, and ends no sooner than they have begun theirs.
struct EmulatedWork {
  std::function<bool()> ready; // null: at once
  std::function<Status()> run;

  EmulatedWork() = default;
  EmulatedWork(std::function<bool()> ready, std::function<Status()> run)
      : ready(std::move(ready)), run(std::move(run)) {}
  template <typename Run>
  requires std::is_invocable_r_v<Status, Run &> EmulatedWork(Run run)
      : run(std::move(run)) {}
  bool isReady() const { return !ready || ready(); }
};

class EmulatedStreams {
public:
  explicit EmulatedStreams(uint64_t seed);

  // What work failed since, as later calls of a driver say it; also below.
  Status enqueue(Stream stream, EmulatedWork work);
  // `passed` is called when the stream comes to the event.
  Status record(Event event, Stream stream, std::function<void()> passed);
  // For what was recorded last; nothing if the event never was.
  Status wait(Stream stream, Event event);

  // The host waits: returns when the work is done, and what it waits for. With
  // some seeds only begins when no other thread asks for more, since a stream
  // need not be done as soon as its thread has nothing more for it.
  Status synchronize(Stream stream);
  Status synchronizeEvent(Event event);
  // The host waits for other processes, in a library: something is done
  // meanwhile that may be.
  void advance();
  // For all streams.
  void drain();
  void forget(Event event);
  void destroy(Stream stream);

private:
  // A place in a stream that an event was recorded at.
  struct Mark {
    Stream stream;
    bool passed = false;
  };
  struct Item {
    EmulatedWork work;
    std::shared_ptr<Mark> after;
  };
  struct Queue {
    std::deque<Item> items;
    bool eager = false;
  };

  Queue &queue(Stream stream);
  bool oneIn(uint64_t n) { return draw_() % n == 0; }
  // Whether its first work may be done; may begin it.
  static bool ready(const Queue &queue);
  void push(Stream stream, Item item);
  void runHead(Queue &queue);
  // Eager streams do what they may.
  void stir();
  // Until the stream has nothing left, or passed the mark. Without `waits` only
  // as far as this process gets by itself; whether it is done.
  bool force(Stream stream, const Mark *until, bool waits = true);
  // Another process has to come first: whatever may be done meanwhile is.
  void waitForOthers();
  // What the next work of an eager stream waits for; whether there is any.
  bool pull();
  void letOthersAsk() const;

  std::mutex mutex_;
  std::mt19937_64 draw_;
  bool pulls_, patient_;
  std::atomic<uint64_t> asked_{0};
  uint64_t changes_; // one in so many operations changes its stream's mood
  std::map<Stream, Queue> queues_;
  std::map<Event, std::shared_ptr<Mark>> events_;
  Status failure_;
};

} // namespace merak::cuda
