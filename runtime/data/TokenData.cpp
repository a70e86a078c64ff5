#include "runtime/core/DType.h"
#include "runtime/core/MappedFile.h"
#include "runtime/data/DataSource.h"

#include <fmt/format.h>

#include <cstring>

namespace merak::runtime {
namespace {

class TokenData : public DataSource {
public:
  explicit TokenData(const planpb::PlanFile &plan) : DataSource(plan) {}
  std::shared_ptr<MappedFile> file;
  int tokenBytes = 2;
  int64_t window = 0, count = 0;
  std::vector<int64_t> shifts; // by input

  std::string contents() const override {
    return fmt::format("tokens: {} of {} bytes {}",
                       file->size() / uint64_t(tokenBytes), tokenBytes,
                       hashOf(file->data(), file->size()));
  }

  int64_t samples() const override { return count; }

  Status readBox(int input, int64_t sample, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    for (int64_t r = 0; r < box.extent[0]; ++r) {
      const int64_t first =
          (sample + r) * window + shifts[input] + box.globalOrigin[1];
      const int64_t to =
          (box.localOrigin[0] + r) * shape[1] + box.localOrigin[1];
      for (int64_t i = 0; i < box.extent[1]; ++i) {
        const int64_t token = tokenAt(first + i);
        if (plan().inputs(input).dtype() == planpb::I64)
          static_cast<int64_t *>(data)[to + i] = token;
        else
          static_cast<int32_t *>(data)[to + i] = static_cast<int32_t>(token);
      }
    }
    return file->intact();
  }

  std::string describe(int input, int64_t sample) const override {
    return fmt::format("\"{}\" sample {} (tokens {}..{})", file->path(), sample,
                       sample * window + shifts[input],
                       sample * window + shifts[input] + window - 1);
  }

private:
  int64_t tokenAt(int64_t index) const {
    const char *at = file->data() + index * tokenBytes;
    if (tokenBytes == 2) {
      uint16_t token;
      std::memcpy(&token, at, sizeof(token));
      return token;
    }
    uint32_t token;
    std::memcpy(&token, at, sizeof(token));
    return token;
  }
};

bool isLabelName(const std::string &name) {
  return name == "labels" || name == "targets" || name == "label" ||
         name == "target";
}

} // namespace

Result<std::unique_ptr<DataSource>> openTokenData(const planpb::PlanFile &plan,
                                                  const DataOptions &options) {
  auto file = MappedFile::open(options.path);
  if (!file)
    return file.status();
  auto source = std::make_unique<TokenData>(plan);
  source->file = *file;
  source->tokenBytes = options.tokenBytes;
  source->shifts.resize(plan.inputs_size(), 0);
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format("\"{}\": {}", options.path, what));
  };
  Status problems;
  int integers = 0;
  bool named = false;
  for (const planpb::Input &input : plan.inputs())
    named |= isLabelName(input.name());
  for (int i = 0; i < plan.inputs_size(); ++i) {
    const planpb::Input &input = plan.inputs(i);
    const bool integer =
        input.dtype() == planpb::I64 || input.dtype() == planpb::I32;
    if (!integer || !input.batched() || input.shape_size() != 2) {
      problems.merge(fail(fmt::format(
          "a file of tokens has nothing for input \"{}\" (give a folder of "
          ".npy files)",
          input.name())));
      continue;
    }
    if (++integers > 2)
      problems.merge(fail(fmt::format("a file of tokens has two inputs, \"{}\" "
                                      "is one more",
                                      input.name())));
    if (source->window != 0 && source->window != input.shape(1))
      problems.merge(
          fail(fmt::format("input \"{}\" has {} tokens, expected {}",
                           input.name(), input.shape(1), source->window)));
    source->window = input.shape(1);
    if (named ? isLabelName(input.name()) : integers == 2)
      source->shifts[i] = options.labelShift;
  }
  if (integers == 0 && problems.ok())
    problems.merge(fail("the plan has no integer input"));
  if ((*file)->size() % options.tokenBytes != 0)
    problems.merge(fail(fmt::format("{} bytes are not a multiple of {}",
                                    (*file)->size(), options.tokenBytes)));
  if (!problems.ok())
    return problems;
  const int64_t tokens =
      static_cast<int64_t>((*file)->size()) / options.tokenBytes;
  if (source->window < 1)
    return fail("the plan's input has no tokens");
  if (tokens - options.labelShift < source->window)
    return fail(
        fmt::format("{} tokens, expected at least {}", tokens,
                    uint64_t(source->window) + uint64_t(options.labelShift)));
  source->count = (tokens - options.labelShift) / source->window;
  return std::unique_ptr<DataSource>(std::move(source));
}

} // namespace merak::runtime
