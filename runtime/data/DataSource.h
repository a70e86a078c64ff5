// Samples for the inputs of a plan. Step s takes the `global_batch` samples
// after those of step s-1; after the last sample the next epoch begins, in the
// same step. Which sample stands at a position depends on the seed of the order
// and the position alone: not on layouts, batches or where a run was resumed.
//
//   DIR         one <input>.npy for each input; the first axis counts samples
//   FILE.bin    token ids without header, uint16 or uint32: sample s of the
//               first integer input is tokens [s*T, s*T + T), of the second
//               (or the one called labels or targets) the same shifted by
//               `labelShift`. Samples do not overlap.
//   FILE.sqlite the table `samples`, a column for each input: see
//   RecordData.cpp DIR         of shards: folders of .npy files, or files of
//   the kinds above,
//               in the order of their names
//   synthetic   values that depend on seed, input and sample only
#pragma once

#include "runtime/core/InputReader.h"
#include "runtime/plan/Plan.h"

#include <memory>
#include <optional>
#include <unordered_map>

namespace merak::runtime {

struct DataOptions {
  std::string path; // DIR, FILE or "synthetic"
  int tokenBytes = 2;
  int64_t labelShift = 1;
  uint64_t seed = 0;
  // Each epoch in an order of its own, made of this seed; none: as stored.
  std::optional<uint64_t> shuffle = {};
};

class DataSource : public InputReader {
public:
  // Step `step` begins at sample `samples`: what a checkpoint restores.
  void setPosition(int64_t step, int64_t samples) {
    firstStep_ = step;
    firstSample_ = samples;
  }
  // Samples consumed before `step`.
  int64_t position(int64_t step) const;
  // Epochs that begin before `step` begins, with the part of the last one that
  // is done; 0 if the data have no end.
  double epochs(int64_t step) const;
  // In which order the samples come; none: as they are stored.
  void setShuffle(std::optional<uint64_t> seed) { shuffle_ = seed; }
  std::optional<uint64_t> shuffleSeed() const { return shuffle_; }
  Status read(const std::string &input, int64_t step,
              const std::vector<layout::Box> &boxes, void *data,
              const std::vector<int64_t> &shape) final;

  // What the samples are and how they are ordered: the same for every plan and
  // wherever the files lie. A checkpoint keeps it; a run that goes on compares.
  std::string identity() const;
  // The first of the two.
  virtual std::string contents() const = 0;
  // How many there are; 0: they have no end.
  virtual int64_t samples() const = 0;
  // Copies samples [sample, sample + box.extent[0]) of the input (or, if it is
  // not batched, the box itself) into the box's place in `data`. All of them
  // are below samples(), if there is an end.
  virtual Status readBox(int input, int64_t sample, const layout::Box &box,
                         void *data, const std::vector<int64_t> &shape) = 0;
  // The file and the sample in it, for messages.
  virtual std::string describe(int input, int64_t sample) const = 0;

protected:
  explicit DataSource(const planpb::PlanFile &plan);
  const planpb::PlanFile &plan() const { return plan_; }

  // Of the bytes that come first, as identities spell it.
  static std::string hashOf(const void *data, uint64_t bytes);

private:
  int64_t sampleAt(int64_t position) const;
  Status readRows(int input, int64_t first, const layout::Box &box, void *data,
                  const std::vector<int64_t> &shape);
  Status checkIds(int input, int64_t sample, const layout::Box &box,
                  const void *data, const std::vector<int64_t> &shape) const;

  const planpb::PlanFile &plan_;
  std::unordered_map<std::string, int> inputs_;
  int64_t firstStep_ = 0, firstSample_ = 0;
  std::optional<uint64_t> shuffle_;
};

// Checks every input and reports all problems. The plan must outlive the
// source.
Result<std::unique_ptr<DataSource>> openData(const planpb::PlanFile &plan,
                                             const DataOptions &options);

// The kinds; openData chooses.
Result<std::unique_ptr<DataSource>> openNpyData(const planpb::PlanFile &plan,
                                                const DataOptions &options);
Result<std::unique_ptr<DataSource>> openTokenData(const planpb::PlanFile &plan,
                                                  const DataOptions &options);
// Reports that a build without SQLite reads no such files.
Result<std::unique_ptr<DataSource>> openRecordData(const planpb::PlanFile &plan,
                                                   const DataOptions &options);
Result<std::unique_ptr<DataSource>>
openShardedData(const planpb::PlanFile &plan, const DataOptions &options,
                const std::vector<std::string> &paths);
// "a/b" as a file is called; as --out names the files of outputs.
std::string inputFileName(const std::string &input);
std::unique_ptr<DataSource> makeSyntheticData(const planpb::PlanFile &plan,
                                              const DataOptions &options);

} // namespace merak::runtime
