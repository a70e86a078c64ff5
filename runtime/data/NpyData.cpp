#include "runtime/core/DType.h"
#include "runtime/data/DataSource.h"
#include "runtime/data/Npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace merak::runtime {
namespace {

class NpyData : public DataSource {
public:
  explicit NpyData(const planpb::PlanFile &plan) : DataSource(plan) {}
  std::vector<NpyArray> arrays; // by input

protected:
  Status readBox(int input, int64_t row, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    const NpyArray &array = arrays[input];
    const int64_t size = dtypeSize(array.dtype);
    std::vector<int64_t> from = box.globalOrigin;
    if (!plan().inputs(input).batched() || from.empty()) {
      layout::copyBox(array.data, array.shape, from, data, shape,
                      box.localOrigin, box.extent, size);
      return {};
    }
    // The rows may wrap around at the end of the file.
    std::vector<int64_t> to = box.localOrigin, extent = box.extent;
    for (int64_t done = 0; done < box.extent[0]; done += extent[0]) {
      from[0] = (row + done) % array.shape[0];
      to[0] = box.localOrigin[0] + done;
      extent[0] = std::min(box.extent[0] - done, array.shape[0] - from[0]);
      layout::copyBox(array.data, array.shape, from, data, shape, to, extent,
                      size);
    }
    return {};
  }

  std::string describe(int input, int64_t row) const override {
    const NpyArray &array = arrays[input];
    if (!plan().inputs(input).batched())
      return fmt::format("\"{}\"", array.file->path());
    return fmt::format("\"{}\" sample {}", array.file->path(),
                       row % array.shape[0]);
  }
};

Status check(const planpb::Input &input, const NpyArray &array) {
  std::vector<int64_t> expected(input.shape().begin(), input.shape().end());
  std::vector<int64_t> found = array.shape;
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format("\"{}\": {}", array.file->path(), what));
  };
  if (input.batched() && !expected.empty()) {
    if (found.empty() || found[0] == 0)
      return fail("no samples");
    expected.erase(expected.begin());
    found.erase(found.begin());
  }
  Status status;
  if (array.dtype != input.dtype())
    status.merge(fail(fmt::format("expected {} for input \"{}\", found {}",
                                  dtypeName(input.dtype()), input.name(),
                                  dtypeName(array.dtype))));
  if (found != expected)
    status.merge(fail(fmt::format(
        "expected {} of shape [{}] for input \"{}\", found [{}]",
        input.batched() ? "samples" : "values", fmt::join(expected, ","),
        input.name(), fmt::join(found, ","))));
  return status;
}

} // namespace

Result<std::unique_ptr<DataSource>> openNpyData(const planpb::PlanFile &plan,
                                                const DataOptions &options) {
  auto source = std::make_unique<NpyData>(plan);
  Status problems;
  for (const planpb::Input &input : plan.inputs()) {
    // As --out names the files of outputs.
    std::string file = input.name();
    std::replace(file.begin(), file.end(), '/', '_');
    auto array = openNpy(options.path + "/" + file + ".npy");
    if (!array) {
      problems.merge(array.status());
      continue;
    }
    problems.merge(check(input, *array));
    source->arrays.push_back(*array);
  }
  // Inputs must count the same samples, or step k would mix them up.
  int64_t samples = -1;
  for (size_t i = 0; problems.ok() && i < source->arrays.size(); ++i) {
    if (!plan.inputs(int(i)).batched() || source->arrays[i].shape.empty())
      continue;
    const int64_t count = source->arrays[i].shape[0];
    if (samples >= 0 && count != samples)
      problems.merge(Status::error(
          fmt::format("\"{}\": {} samples, the inputs before have {}",
                      source->arrays[i].file->path(), count, samples)));
    else
      samples = count;
  }
  if (!problems.ok())
    return problems;
  return std::unique_ptr<DataSource>(std::move(source));
}

} // namespace merak::runtime
