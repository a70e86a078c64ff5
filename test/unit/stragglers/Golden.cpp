#include "Golden.h"

#include <cmath>
#include <fstream>

namespace merak::stragglers {

using nlohmann::json;

const json &golden() {
  static const json all = [] {
    std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/stragglers.json");
    return json::parse(file);
  }();
  return all;
}

int64_t tenThousandths(const json &number) {
  return std::llround(number.get<double>() * double(kOne));
}

namespace {

int64_t megabytes(const json &number) {
  return std::llround(number.get<double>() * 1e6);
}

} // namespace

Problem goldenModel(const std::string &name, int64_t scale) {
  const json &model = golden()["models"][name];
  Problem problem;
  const int64_t count = model["gpus"].get<int64_t>() * scale;
  for (int64_t i = 0; i < count; ++i)
    problem.devices.push_back(
        {i / model["gpus_per_node"].get<int64_t>(), kOne});
  problem.layers = model["layers"];
  problem.microbatches = model["microbatches"].get<int64_t>() * scale;
  problem.dp = model["dp"].get<int64_t>() * scale;
  problem.tp = model["tp"];
  problem.pp = model["pp"];
  problem.shrink.clear();
  for (const json &rho : model["rho"])
    if ((problem.tp >> problem.shrink.size()) > 0)
      problem.shrink.push_back(tenThousandths(rho));
  problem.memory.limit = megabytes(model["bound"]) - megabytes(model["gap"]);
  problem.memory.fixed = megabytes(model["extra"]);
  problem.memory.edge = megabytes(model["emb"]);
  for (const json &mu : model["mu_from_end"])
    problem.memory.layer.push_back(megabytes(mu));
  return problem;
}

Problem goldenProblem(const json &entry) {
  Problem problem = goldenModel(entry["model"]);
  for (const auto &[device, rate] : entry["rates"].items())
    problem.devices[std::stoul(device)].rate = tenThousandths(rate);
  return problem;
}

Plan goldenBest(const json &entry) {
  Plan plan;
  for (const json &pipeline : entry["best"]["pipelines"]) {
    Pipeline &own = plan.pipelines.emplace_back();
    own.microbatches = pipeline["microbatches"];
    for (const json &stage : pipeline["stages"])
      own.stages.push_back({stage["devices"], stage["layers"]});
  }
  return plan;
}

} // namespace merak::stragglers
