// Shards one behind the other: sample 0 of a shard follows the last one of the
// shard before.
#include "runtime/data/DataSource.h"

#include <fmt/format.h>

#include <algorithm>

namespace merak::runtime {
namespace {

class ShardedData : public DataSource {
public:
  explicit ShardedData(const planpb::PlanFile &plan) : DataSource(plan) {}

  void add(std::unique_ptr<DataSource> shard) {
    starts_.push_back(count_);
    count_ += shard->samples();
    shards_.push_back(std::move(shard));
  }

  std::string contents() const override {
    std::string text = "shards:";
    for (const std::unique_ptr<DataSource> &shard : shards_)
      text += " (" + shard->contents() + ")";
    return text;
  }

  int64_t samples() const override { return count_; }

  Status readBox(int input, int64_t sample, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    if (!plan().inputs(input).batched() || box.globalOrigin.empty())
      return shards_[0]->readBox(input, 0, box, data, shape);
    layout::Box part = box;
    for (int64_t done = 0; done < box.extent[0]; done += part.extent[0]) {
      const size_t at = shardOf(sample + done);
      const int64_t first = sample + done - starts_[at];
      part.globalOrigin[0] = box.globalOrigin[0] + done;
      part.localOrigin[0] = box.localOrigin[0] + done;
      part.extent[0] =
          std::min(box.extent[0] - done, shards_[at]->samples() - first);
      MERAK_RETURN_IF_ERROR(
          shards_[at]->readBox(input, first, part, data, shape));
    }
    return {};
  }

  std::string describe(int input, int64_t sample) const override {
    if (!plan().inputs(input).batched())
      return shards_[0]->describe(input, 0);
    const size_t at = shardOf(sample);
    return shards_[at]->describe(input, sample - starts_[at]);
  }

private:
  size_t shardOf(int64_t sample) const {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), sample);
    return static_cast<size_t>(after - starts_.begin()) - 1;
  }

  std::vector<std::unique_ptr<DataSource>> shards_;
  std::vector<int64_t> starts_;
  int64_t count_ = 0;
};

bool endsWith(const std::string &text, const char *end) {
  const size_t at = text.rfind(end);
  return at != std::string::npos && text.size() - at == std::string(end).size();
}

Result<std::unique_ptr<DataSource>> openShard(const planpb::PlanFile &plan,
                                              const DataOptions &options) {
  if (endsWith(options.path, ".bin"))
    return openTokenData(plan, options);
  if (endsWith(options.path, ".db") || endsWith(options.path, ".sqlite") ||
      endsWith(options.path, ".sqlite3"))
    return openRecordData(plan, options);
  return openNpyData(plan, options);
}

} // namespace

Result<std::unique_ptr<DataSource>>
openShardedData(const planpb::PlanFile &plan, const DataOptions &options,
                const std::vector<std::string> &paths) {
  auto all = std::make_unique<ShardedData>(plan);
  Status problems;
  for (const std::string &path : paths) {
    DataOptions one = options;
    one.path = path;
    auto shard = openShard(plan, one);
    if (!shard)
      problems.merge(shard.status());
    else if ((*shard)->samples() == 0)
      problems.merge(Status::error(
          fmt::format("\"{}\": no input of the plan counts samples, so there "
                      "is nothing to divide into shards",
                      path)));
    else
      all->add(std::move(*shard));
  }
  if (!problems.ok())
    return problems;
  return std::unique_ptr<DataSource>(std::move(all));
}

} // namespace merak::runtime
