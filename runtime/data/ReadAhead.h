// Reads the samples of the next step while this one computes. A step asks for
// the same boxes as the step before, so what it will ask for is known; one
// thread reads it into memory of the size of the inputs of one step.
#pragma once

#include "runtime/data/DataSource.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace merak::runtime {

class ReadAhead : public InputReader {
public:
  // The source must outlive this, and its position is set by then.
  explicit ReadAhead(DataSource &source, const planpb::PlanFile &plan);
  ~ReadAhead() override;

  Status read(const std::string &input, int64_t step,
              const std::vector<layout::Box> &boxes, void *data,
              const std::vector<int64_t> &shape) override;

  int64_t hits() const { return hits_.load(); }

private:
  // What was asked for in one step, and is read for the next one.
  struct Request {
    std::string input;
    int64_t step = 0;
    std::vector<layout::Box> boxes;
    std::vector<int64_t> shape;
    enum { Waiting, Reading, Done } state = Waiting;
    bool taken = false; // somebody waits for it
    Status status;
    std::vector<char> data; // dense, of `shape`
  };

  std::shared_ptr<Request> take(const std::string &input, int64_t step,
                                const std::vector<layout::Box> &boxes,
                                const std::vector<int64_t> &shape);
  void order(std::shared_ptr<Request> request);
  void work();
  int64_t elementSize(const std::string &input) const;

  DataSource &source_;
  const planpb::PlanFile &plan_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> requests_;
  std::atomic<int64_t> hits_{0};
  bool stop_ = false;
  std::thread thread_;
};

} // namespace merak::runtime
