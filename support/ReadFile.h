// Small files of the user, read whole.
#pragma once

#include <string>

namespace merak {

// Why nothing can be read at `path`, as "no such file or directory"; empty if
// there is a file. Pipes and devices are none: they would wait for a writer, or
// never end.
std::string whyNoFile(const std::string &path);

// Reads the file. Empty, or why it cannot be read.
std::string readFile(const std::string &path, std::string &contents);

} // namespace merak
