// What happened when, in Chrome's trace format (chrome://tracing, Perfetto):
// a process for each rank, a thread for each stream.
//
// The file grows by a step at a time and is whole JSON after each of them; what
// is kept in memory are the events of one step. A process that is killed while
// it writes a step leaves that step's last line cut off.
#pragma once

#include "runtime/comm/rendezvous/Store.h"
#include "runtime/core/Executor.h"

#include <map>

namespace merak::runtime {

class TraceWriter {
public:
  // With a store rank 0 writes what all processes record, all of which call
  // this and `add` together, and times begin when the first of them called
  // this. The clocks of several hosts agree as well as their times of day.
  // The executors must outlive the writer.
  static Result<std::unique_ptr<TraceWriter>>
  open(const std::string &path, std::vector<Executor *> executors,
       Store *store = nullptr);
  ~TraceWriter();
  TraceWriter(const TraceWriter &) = delete;

  // Between steps: appends what the executors recorded, which they forget. A
  // file that cannot be written does not end a run: `close` tells.
  Status add();
  // Between steps: later ones are those of other executors.
  void follow(std::vector<Executor *> executors);
  // Appends what is left, without asking other processes, whose run may be
  // over; then a rank other than 0 writes "PATH.rank-N".
  Status close();

private:
  TraceWriter(std::string path, std::vector<Executor *> executors, Store *store)
      : path_(std::move(path)), executors_(std::move(executors)),
        store_(store) {}
  Status findOrigin();
  Status create(const std::string &path);
  bool leads() const { return !store_ || store_->rank() == 0; }
  std::string takeEvents();
  void append(std::string_view events);

  std::string path_;
  std::vector<Executor *> executors_;
  Store *store_;
  int64_t origin_ = 0; // on the steady clock of this process
  // What the events of one place have in common: steps differ in numbers.
  std::map<std::pair<const LaneCall *, const Op *>, std::string> heads_;
  bool named_ = false; // ranks and streams
  int64_t steps_ = 0;  // added
  int file_ = -1;
  int64_t end_ = 0; // where the closing brackets begin
  bool empty_ = true;
  Status problem_;
};

} // namespace merak::runtime
