// Which of NVIDIA's libraries the backend was built with, and which of them
// this machine has, for `merak-run --version`.
#pragma once

#include <string>
#include <vector>

namespace merak::cuda {

// One line for each: `cuDNN: built with 9.1.0, found 9.19.0`; `..., not found:
// <why>`; `cuDNN: not built in`. Opens the libraries, but no device.
std::vector<std::string> libraryVersions();

// How a library of these names, and its function that returns the version as a
// number, is found: `found 9.19.0`, or `not found: <why>`. `text` spells it.
std::string foundVersion(const std::vector<std::string> &names,
                         const char *function, std::string (*text)(size_t));

} // namespace merak::cuda
