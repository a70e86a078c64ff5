// A run that goes on where another one ended: what of it must be the same.
#pragma once

#include "runtime/launch/Session.h"

namespace merak::runtime {

// The seed to run with: of the checkpoint, if the user gives none. Refuses
// another one than the checkpoint's, unless `force`.
Result<uint64_t> seedToUse(const std::string &load,
                           std::optional<uint64_t> given, bool force);

// Whether all processes loaded the same generation of the same run: hosts may
// have folders of their own, one of which may be a step behind.
Status sameGeneration(Store *store, const std::string &load,
                      const CheckpointState &state);

} // namespace merak::runtime
