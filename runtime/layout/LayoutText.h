// Layouts as a user writes them and as Layout::str prints them.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/layout/Layout.h"

namespace merak::layout {

// "[3 x 8@(dp,tp) x 64, 1024] partial(pp)": dimensions, each a product of
// factors, major to minor, with the axes that split it. "[]" is a scalar.
// Errors: what was expected, at which character (from 1).
Result<Layout> parseLayout(const std::string &text);

} // namespace merak::layout
