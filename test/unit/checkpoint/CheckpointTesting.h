// Plans that only hold tensors, in any layout on any mesh.
#pragma once

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/Safetensors.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <cstring>

namespace merak::runtime::test {

using Dims = std::vector<std::pair<int64_t, std::vector<std::string>>>;

// A plan on a pp x dp x tp mesh without instructions.
class Holder {
public:
  Holder(int64_t pp, int64_t dp, int64_t tp);
  // A tensor whose values are numbered, held in `layout` by the stages given
  // (empty: none). `role` FROZEN, OPTIMIZER as the plan has them.
  void add(const std::string &name, std::vector<int64_t> shape, Dims layout,
           std::vector<int> stages = {0},
           planpb::Tensor::Role role = planpb::Tensor::PARAMETER);
  // A factored layout.
  void add(const std::string &name, std::vector<int64_t> shape,
           planpb::Layout layout, std::vector<int> stages,
           planpb::Tensor::Role role);
  // Makes the ranks; no tensors are added after it.
  void start();
  // Element i of every tensor becomes base + i, on every rank that holds it.
  void fill(float base);

  LoadedPlan plan;
  std::vector<RankMemory> ranks;
  std::string gather(const std::string &name); // bytes of the global tensor

private:
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<RankProgram>> programs_;
};

} // namespace merak::runtime::test
