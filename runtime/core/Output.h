// Lines of text for the user and for logs. A disk that is full, or a reader
// that is gone, is an error to report, never a reason to crash.
#pragma once

#include "runtime/core/Status.h"

#include <cstdio>
#include <string>

namespace merak::runtime {

// The line and what is still buffered; `name` of the file is for the message.
Status writeLine(std::FILE *file, const std::string &name,
                 const std::string &line);
// To standard output.
Status printLine(const std::string &line);
// To standard error, whatever becomes of it there.
void complain(const std::string &line);

} // namespace merak::runtime
