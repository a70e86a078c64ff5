// Samples for the inputs of a plan. Step s takes the `global_batch` samples
// after those of step s-1, in order, wrapping around at the end.
//
//   DIR         one <input>.npy for each input; the first axis counts samples
//   FILE.bin    token ids without header, uint16 or uint32: sample s of the
//               first integer input is tokens [s*T, s*T + T), of the second
//               (or the one called labels or targets) the same shifted by
//               `labelShift`. Samples do not overlap.
//   synthetic   values that depend on seed, input and sample only
#pragma once

#include "runtime/core/InputReader.h"
#include "runtime/plan/Plan.h"

#include <memory>
#include <unordered_map>

namespace merak::runtime {

struct DataOptions {
  std::string path; // DIR, FILE.bin or "synthetic"
  int tokenBytes = 2;
  int64_t labelShift = 1;
  uint64_t seed = 0;
};

class DataSource : public InputReader {
public:
  // Step `step` begins at sample `samples`: what a checkpoint restores.
  void setPosition(int64_t step, int64_t samples) {
    firstStep_ = step;
    firstSample_ = samples;
  }
  // Samples consumed before `step`.
  int64_t position(int64_t step) const {
    return firstSample_ + (step - firstStep_) * plan_.global_batch();
  }
  Status read(const std::string &input, int64_t step,
              const std::vector<layout::Box> &boxes, void *data,
              const std::vector<int64_t> &shape) final;

  // What the samples are and how they are ordered: the same for every plan and
  // wherever the files lie. A checkpoint keeps it; a run that goes on compares.
  virtual std::string identity() const = 0;

protected:
  explicit DataSource(const planpb::PlanFile &plan);
  const planpb::PlanFile &plan() const { return plan_; }

  // Copies rows [row, row + box.extent[0]) of the input's samples (or, if it
  // is not batched, the box itself) into the box's place in `data`. `row` may
  // exceed the number of samples.
  virtual Status readBox(int input, int64_t row, const layout::Box &box,
                         void *data, const std::vector<int64_t> &shape) = 0;
  // The file and sample of a row, for messages.
  virtual std::string describe(int input, int64_t row) const = 0;

  // Of the bytes that come first, as identities spell it.
  static std::string hashOf(const void *data, uint64_t bytes);

private:
  Status checkIds(int input, int64_t row, const layout::Box &box,
                  const void *data, const std::vector<int64_t> &shape) const;

  const planpb::PlanFile &plan_;
  std::unordered_map<std::string, int> inputs_;
  int64_t firstStep_ = 0, firstSample_ = 0;
};

// Checks every input and reports all problems. The plan must outlive the
// source.
Result<std::unique_ptr<DataSource>> openData(const planpb::PlanFile &plan,
                                             const DataOptions &options);

// The three kinds; openData chooses.
Result<std::unique_ptr<DataSource>> openNpyData(const planpb::PlanFile &plan,
                                                const DataOptions &options);
Result<std::unique_ptr<DataSource>> openTokenData(const planpb::PlanFile &plan,
                                                  const DataOptions &options);
std::unique_ptr<DataSource> makeSyntheticData(const planpb::PlanFile &plan,
                                              const DataOptions &options);

} // namespace merak::runtime
