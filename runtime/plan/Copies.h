// Copies of parameters in a smaller type that outlive a step, for those who
// read them so: kBeginEntry (Entries.h) makes them of parameters that were
// loaded, and whatever updates a parameter writes its copy. They are no tensors
// of the model: nothing else knows of them.
#pragma once

#include "runtime/plan/plan.pb.h"

#include <map>

namespace merak {

inline bool isKeptCopy(const planpb::Buffer &buffer) {
  return buffer.category() == planpb::Buffer::PARAMETERS &&
         buffer.tensor().empty();
}

// What each of them is a copy of, by buffers. The plan need not be verified:
// those that nothing is copied to are missing.
std::map<uint32_t, uint32_t> keptCopies(const planpb::Program &program);

} // namespace merak
