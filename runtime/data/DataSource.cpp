#include "runtime/data/DataSource.h"

#include "runtime/core/DType.h"
#include "runtime/data/Shuffle.h"
#include "runtime/plan/Checksum.h"
#include "support/ReadFile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace merak::runtime {

DataSource::DataSource(const planpb::PlanFile &plan) : plan_(plan) {
  for (int i = 0; i < plan.inputs_size(); ++i)
    inputs_[plan.inputs(i).name()] = i;
}

int64_t DataSource::position(int64_t step) const {
  // A checkpoint may hold any number.
  int64_t done = 0, at = 0;
  if (__builtin_mul_overflow(step - firstStep_, plan_.global_batch(), &done) ||
      __builtin_add_overflow(firstSample_, done, &at))
    return INT64_MAX;
  return at;
}

double DataSource::epochs(int64_t step) const {
  const int64_t count = samples();
  return count > 0 ? double(position(step)) / double(count) : 0;
}

// Which sample stands at a position.
int64_t DataSource::sampleAt(int64_t position) const {
  const int64_t count = samples();
  if (count <= 0)
    return position;
  return shuffle_ ? shuffledIndex(position % count, count, *shuffle_,
                                  uint64_t(position / count))
                  : position % count;
}

Status DataSource::read(const std::string &input, int64_t step,
                        const std::vector<layout::Box> &boxes, void *data,
                        const std::vector<int64_t> &shape) {
  const auto found = inputs_.find(input);
  if (found == inputs_.end())
    return Status::error(fmt::format("the plan has no input \"{}\"", input));
  const planpb::Input &proto = plan_.inputs(found->second);
  for (const layout::Box &box : boxes) {
    if (box.elements() == 0)
      continue;
    if (!proto.batched() || box.globalOrigin.empty()) {
      MERAK_RETURN_IF_ERROR(readBox(found->second, 0, box, data, shape));
      if (proto.limit() > 0)
        MERAK_RETURN_IF_ERROR(checkIds(found->second, 0, box, data, shape));
      continue;
    }
    int64_t first = 0;
    if (__builtin_add_overflow(position(step), box.globalOrigin[0], &first) ||
        first < 0 || first > INT64_MAX - box.extent[0])
      return Status::error(fmt::format("no sample has the number {} + {}",
                                       position(step), box.globalOrigin[0]));
    MERAK_RETURN_IF_ERROR(readRows(found->second, first, box, data, shape));
  }
  return {};
}

std::string DataSource::hashOf(const void *data, uint64_t bytes) {
  constexpr uint64_t kFirst = 1 << 16; // is read in no time
  return checksumText(Checksum::of(data, std::min(bytes, kFirst)));
}

std::string DataSource::identity() const {
  return contents() + (shuffle_
                           ? fmt::format(", shuffled by seed {}", *shuffle_)
                           : ", in order");
}

// The samples at positions [first, first + box.extent[0]), neighbours at once.
Status DataSource::readRows(int input, int64_t first, const layout::Box &box,
                            void *data, const std::vector<int64_t> &shape) {
  const bool checked = plan_.inputs(input).limit() > 0;
  layout::Box part = box;
  for (int64_t done = 0; done < box.extent[0]; done += part.extent[0]) {
    const int64_t sample = sampleAt(first + done);
    int64_t run = 1;
    while (done + run < box.extent[0] &&
           sampleAt(first + done + run) == sample + run)
      ++run;
    part.globalOrigin[0] = box.globalOrigin[0] + done;
    part.localOrigin[0] = box.localOrigin[0] + done;
    part.extent[0] = run;
    MERAK_RETURN_IF_ERROR(readBox(input, sample, part, data, shape));
    if (checked)
      MERAK_RETURN_IF_ERROR(checkIds(input, sample, part, data, shape));
  }
  return {};
}

Status DataSource::checkIds(int input, int64_t sample, const layout::Box &box,
                            const void *data,
                            const std::vector<int64_t> &shape) const {
  const planpb::Input &proto = plan_.inputs(input);
  if (proto.dtype() != planpb::I64 && proto.dtype() != planpb::I32)
    return {};
  const size_t rank = shape.size();
  // Runs along the last dimension of the box.
  std::vector<int64_t> index(rank, 0);
  const int64_t run = rank ? box.extent[rank - 1] : 1;
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d)
      offset = offset * shape[d] + box.localOrigin[d] + index[d];
    for (int64_t i = 0; i < run; ++i) {
      const int64_t value =
          proto.dtype() == planpb::I64
              ? static_cast<const int64_t *>(data)[offset + i]
              : static_cast<const int32_t *>(data)[offset + i];
      if ((value < 0 || value >= proto.limit()) &&
          !(proto.has_allowed() && value == proto.allowed()))
        return Status::error(fmt::format(
            "{}: value {} of \"{}\" is not in [0, {}){}",
            describe(input, sample + (rank > 1 ? index[0]
                                      : rank   ? i
                                               : 0)),
            value, proto.name(), proto.limit(),
            proto.has_allowed() ? fmt::format(" and not {}", proto.allowed())
                                : std::string()));
    }
    size_t d = rank ? rank - 1 : 0;
    while (d > 0 && ++index[d - 1] == box.extent[d - 1])
      index[--d] = 0;
    if (d == 0)
      return {};
  }
}

std::string inputFileName(const std::string &input) {
  std::string name = input;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

namespace {

namespace fs = std::filesystem;

bool endsWith(const std::string &text, std::string_view end) {
  return text.size() > end.size() &&
         text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool isRecordFile(const std::string &path) {
  for (const char *end : {".sqlite", ".sqlite3", ".db"})
    if (endsWith(path, end))
      return true;
  return false;
}

// What the folder is divided into; none if it is one shard itself.
std::vector<std::string> shardsOf(const std::string &dir) {
  std::vector<std::string> folders, files;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string path = it->path().string();
    if (it->path().filename().string()[0] == '.')
      continue;
    if (endsWith(path, ".npy"))
      return {};
    if (it->is_directory(error))
      folders.push_back(path);
    else if (endsWith(path, ".bin") || isRecordFile(path))
      files.push_back(path);
  }
  std::vector<std::string> &shards = files.empty() ? folders : files;
  std::sort(shards.begin(), shards.end());
  return shards;
}

Result<std::unique_ptr<DataSource>> openStored(const planpb::PlanFile &plan,
                                               const DataOptions &options) {
  const std::string why = whyNoFile(options.path);
  if (why == "is a directory") {
    const std::vector<std::string> shards = shardsOf(options.path);
    return shards.empty() ? openNpyData(plan, options)
                          : openShardedData(plan, options, shards);
  }
  if (why == "is not a file")
    return Status::error(fmt::format("\"{}\" {}", options.path, why));
  if (!why.empty())
    return Status::error(
        fmt::format("\"{}\": no such file or folder (give a folder of .npy "
                    "files, tokens.bin, FILE.sqlite, a folder of such shards "
                    "or \"synthetic\")",
                    options.path));
  return isRecordFile(options.path) ? openRecordData(plan, options)
                                    : openTokenData(plan, options);
}

} // namespace

Result<std::unique_ptr<DataSource>> openData(const planpb::PlanFile &plan,
                                             const DataOptions &options) {
  if (options.path == "synthetic")
    return makeSyntheticData(plan, options);
  auto data = openStored(plan, options);
  if (!data)
    return data;
  const int64_t samples = (*data)->samples();
  if (samples > 0 && samples < plan.global_batch())
    return Status::error(
        fmt::format("\"{}\": {} samples are fewer than the {} of one step",
                    options.path, samples, plan.global_batch()));
  (*data)->setShuffle(options.shuffle);
  return data;
}

} // namespace merak::runtime
