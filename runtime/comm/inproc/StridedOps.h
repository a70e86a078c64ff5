// Copies and reductions between strided host tensors of one shape.
#pragma once

#include "runtime/core/Backend.h"

namespace merak::runtime {

// The part [begin, begin + size) of dimension `dim`.
View sliceView(const View &view, int64_t dim, int64_t begin, int64_t size);

// A dense view of the same shape at `data`.
View denseLike(const View &view, void *data);

// out = in, element by element; with `accumulate` out += in. Requires equal
// shapes and types and no overlap.
void copyViews(const View &in, const View &out, bool accumulate);

// out = in[0] op in[1] op ..., from left to right, in the element type (bf16
// and f16 in f32, rounded once). `out` may be the same view as an input; other
// overlaps are not allowed. With `accumulate` the result is added to out.
void reduceViews(std::span<const View> in, const View &out, bool maximum,
                 bool accumulate);

// Of dense memory the bytes before the zeros at its end, a multiple of 8 or
// all.
int64_t liveBytes(const void *data, int64_t bytes);

// True if values of the type can be reduced so.
bool canReduce(planpb::DType dtype, bool maximum);

} // namespace merak::runtime
