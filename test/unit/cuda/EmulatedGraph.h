// Stream capture of the emulated device, by the driver's rules: work on a
// captured stream is written down and not done; a stream joins by waiting for
// an event of the capture and must be awaited before the end; waiting on the
// host, for events from outside, or taking memory ends the capture with an
// error.
//
// A launch does the work in an order that the dependencies allow and that
// differs from launch to launch, so that a missing dependency shows; with a
// seed each time in one that it draws.
#pragma once

#include "test/unit/cuda/EmulatedStreams.h"

#include <set>

namespace merak::cuda {

class EmulatedGraph : public Graph {
public:
  struct Entry {
    EmulatedWork work;
    const void *kernel = nullptr; // what may be updated: with the same one
    std::vector<size_t> after;
  };
  using Rework = std::function<EmulatedWork(KernelId, Grid, const void *)>;
  using ReworkFunction = std::function<EmulatedWork(
      Function, Grid, size_t, const std::vector<uint64_t> &)>;

  // `submit` does the work of a launch in its stream's turn.
  using Submit = std::function<Status(Stream, EmulatedWork)>;

  EmulatedGraph(std::vector<Entry> entries, Rework rework,
                ReworkFunction reworkFunction, Submit submit, uint64_t seed)
      : entries_(std::move(entries)), rework_(std::move(rework)),
        reworkFunction_(std::move(reworkFunction)), submit_(std::move(submit)),
        seed_(seed) {}
  size_t operations() const override { return entries_.size(); }
  Status launch(Stream stream) override;
  Status update(Node node, KernelId kernel, Grid grid,
                const void *args) override;
  Status update(Node node, Function function, Grid grid, size_t operands,
                const std::vector<uint64_t> &words) override;

private:
  Result<Entry *> entry(Node node, const void *kernel);
  std::vector<Entry> entries_;
  Rework rework_;
  ReworkFunction reworkFunction_;
  Submit submit_;
  uint64_t seed_, launches_ = 0;
};

// What identifies a kernel of kernels/Kernels.h among entries.
const void *kernelMark(KernelId kernel);

// Streams and events as captures see them.
class EmulatedCaptures {
public:
  Status begin(Stream stream);
  Result<std::vector<EmulatedGraph::Entry>> end(Stream stream);
  // Whether the stream is captured; then the work is written down, unless there
  // is more than `most` of it.
  Result<bool> take(Stream stream, const EmulatedWork &work, const void *kernel,
                    size_t most);
  Status record(Event event, Stream stream);
  Status wait(Stream stream, Event event);
  // The host waits for a stream, or for an event, or takes memory.
  Status hostWaits(Stream stream);
  Status hostWaitsFor(Event event);
  Status allocates();
  bool captures(Stream stream);
  Result<Node> last(Stream stream);
  void forget(Event event);

private:
  struct Capture {
    Stream origin = nullptr;
    std::vector<EmulatedGraph::Entry> entries;
    std::string broken; // why it ends with an error
  };
  // What the next work of a stream, or work behind an event, comes after.
  struct Tail {
    std::shared_ptr<Capture> capture;
    std::set<size_t> entries;
  };
  static Status breaks(Capture &capture, const std::string &why);

  std::mutex mutex_;
  std::map<Stream, Tail> streams_; // captured ones
  std::map<Event, Tail> events_;   // recorded last in a capture
  std::set<Event> recorded_;       // recorded last outside of one
};

} // namespace merak::cuda
