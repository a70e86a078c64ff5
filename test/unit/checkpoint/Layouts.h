// The same tensors on four meshes.
#pragma once

#include "test/unit/checkpoint/CheckpointTesting.h"

namespace merak::runtime::test {

constexpr int kLayouts = 4;
constexpr const char *kNames[] = {"w",      "qkv",  "tied",
                                  "scalar", "mask", "w.exp_avg"};
// 0: one rank; 1: replicas and rows; 2: two stages, columns, a tied weight on
// both; 3: stages that hold the tied weight in different layouts.
std::unique_ptr<Holder> holder(int kind);

// Writes one generation as a run of its own.
Status save(Holder &h, const std::string &dir, const CheckpointState &state,
            int keep = 3, Files &files = Files::system());
// Into the ranks' memory.
Status load(Holder &h, const std::string &path, CheckpointState &state);

} // namespace merak::runtime::test
