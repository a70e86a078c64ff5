// The files of page/, put into the program by the build.
#pragma once

namespace merak::report::page {

extern const char *const kReport; // report.html
extern const char *const kStyle;  // report.css
extern const char *const kScript; // report.js

} // namespace merak::report::page
