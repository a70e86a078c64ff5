// A small GPT and what a search for it on four devices of this machine is
// given.
#pragma once

#include "passes/Planning/PlanSearch.h"
#include "test/unit/planning/ModelGraphs.h"

namespace merak::planning::test {

struct GptSearch {
  TrainGraph model;
  Classes classes;
  SearchInput input; // refers to both

  explicit GptSearch(int64_t layers)
      : model(makeGpt({.layers = layers, .batch = 16})),
        classes(unify(model.graph)) {
    input.graph = &model.graph;
    input.classes = &classes;
    input.batched = {model.find("input_ids"), model.find("labels")};
    input.cluster = costmodel::defaultCluster(4);
    input.globalBatch = 16;
  }
  GptSearch(const GptSearch &) = delete;
};

} // namespace merak::planning::test
