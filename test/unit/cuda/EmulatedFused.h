// How often the emulated library ran an operation as one kernel.
#pragma once

namespace merak::cuda {

int fusedRuns();

} // namespace merak::cuda
