#include "runtime/launch/Resume.h"

#include <fmt/format.h>

namespace merak::runtime {

Result<uint64_t> seedToUse(const std::string &load,
                           std::optional<uint64_t> given, bool force) {
  if (load.empty())
    return given.value_or(0);
  auto state = readCheckpointState(load);
  if (!state)
    return state.status();
  if (given && state->seed && *given != *state->seed && !force)
    return Status::error(
        fmt::format("\"{}\" was trained with --seed={}, this run has --seed={} "
                    "(--force-resume goes on with it)",
                    load, *state->seed, *given));
  return given.value_or(state->seed.value_or(0));
}

Status sameGeneration(Store *store, const std::string &load,
                      const CheckpointState &state) {
  if (!store)
    return {};
  const std::string mine =
      state.run.empty()
          ? fmt::format("step {}", state.step)
          : fmt::format("step {} of run {}", state.step, state.run);
  auto all = store->gather("generation", mine, kPatienceSeconds);
  if (!all)
    return all.status();
  for (size_t rank = 0; rank < all->size(); ++rank)
    if ((*all)[rank] != all->front())
      return Status::error(
          store->rank() != 0
              ? ""
              : fmt::format("\"{}\" is not the same for all: rank 0 has {}, "
                            "rank {} has {}",
                            load, all->front(), rank, (*all)[rank]));
  return {};
}

} // namespace merak::runtime
