#include "runtime/core/ConvertFloats.h"
#include "runtime/core/DType.h"
#include "runtime/core/Finite.h"
#include "runtime/data/DataSource.h"
#include "runtime/data/Npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace merak::runtime {
namespace {

class NpyData : public DataSource {
public:
  explicit NpyData(const planpb::PlanFile &plan) : DataSource(plan) {}
  std::vector<NpyArray> arrays; // by input

  std::string contents() const override {
    std::map<std::string, std::string> inputs; // plans may order them otherwise
    for (size_t i = 0; i < arrays.size(); ++i) {
      const NpyArray &array = arrays[i];
      uint64_t bytes = dtypeSize(array.dtype);
      for (int64_t size : array.shape)
        bytes *= uint64_t(size);
      inputs[plan().inputs(int(i)).name()] =
          fmt::format("{}[{}] {}", dtypeName(array.dtype),
                      fmt::join(array.shape, ","), hashOf(array.data, bytes));
    }
    std::string text = "arrays:";
    for (const auto &[name, array] : inputs)
      text += fmt::format(" {} {}", name, array);
    return text;
  }

  int64_t count = 0; // samples; 0 if no input counts any

  int64_t samples() const override { return count; }

  Status readBox(int input, int64_t sample, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    std::vector<int64_t> from = box.globalOrigin;
    if (plan().inputs(input).batched() && !from.empty())
      from[0] = sample;
    copy(input, from, data, shape, box.localOrigin, box.extent);
    return arrays[input].file->intact();
  }

  std::string describe(int input, int64_t sample) const override {
    const NpyArray &array = arrays[input];
    if (!plan().inputs(input).batched())
      return fmt::format("\"{}\"", array.file->path());
    return fmt::format("\"{}\" sample {}", array.file->path(), sample);
  }

private:
  // Floats are rounded to the input's type.
  void copy(int input, const std::vector<int64_t> &from, void *data,
            const std::vector<int64_t> &shape, const std::vector<int64_t> &to,
            const std::vector<int64_t> &extent) const {
    const NpyArray &array = arrays[input];
    const planpb::DType wanted = plan().inputs(input).dtype();
    const int64_t size = dtypeSize(array.dtype);
    if (array.dtype == wanted) {
      layout::copyBox(array.data, array.shape, from, data, shape, to, extent,
                      size);
      return;
    }
    int64_t elements = 1;
    for (int64_t n : extent)
      elements *= n;
    const std::vector<int64_t> zero(extent.size(), 0);
    std::vector<char> part(elements * size), made(elements * dtypeSize(wanted));
    layout::copyBox(array.data, array.shape, from, part.data(), extent, zero,
                    extent, size);
    convertFloats(array.dtype, part.data(), wanted, made.data(), elements);
    layout::copyBox(made.data(), extent, zero, data, shape, to, extent,
                    dtypeSize(wanted));
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
  // NumPy has no bf16; whoever has f32 or f64 means the nearest f16.
  const bool rounds = isFloat(array.dtype) && isFloat(input.dtype());
  if (array.dtype != input.dtype() && !rounds)
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
  std::map<std::string, std::string> names; // of inputs, by file
  for (const planpb::Input &input : plan.inputs()) {
    const std::string path =
        options.path + "/" + inputFileName(input.name()) + ".npy";
    if (const std::string *other = &names[path]; !other->empty())
      problems.merge(Status::error(
          fmt::format("\"{}\": inputs \"{}\" and \"{}\" have one file", path,
                      *other, input.name())));
    names[path] = input.name();
    auto array = openNpy(path);
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
  source->count = std::max<int64_t>(samples, 0);
  return std::unique_ptr<DataSource>(std::move(source));
}

} // namespace merak::runtime
