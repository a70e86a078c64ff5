#include "runtime/comm/inproc/StridedOps.h"

#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/layout/Strides.h"

#include <algorithm>
#include <cstring>

namespace merak::runtime {
namespace {

// Elements reduced at a time: the accumulators stay in the first-level cache.
constexpr int64_t kBlock = 1024;

template <typename T> struct Plain {
  using Storage = T;
  using Value = T;
  static Value load(Storage x) { return x; }
  static Storage store(Value x) { return x; }
};
struct BFloat16 {
  using Storage = uint16_t;
  using Value = float;
  static Value load(Storage x) { return bf16ToFloat(x); }
  static Storage store(Value x) { return floatToBf16(x); }
};
struct Float16 {
  using Storage = uint16_t;
  using Value = float;
  static Value load(Storage x) { return f16ToFloat(x); }
  static Storage store(Value x) { return floatToF16(x); }
};
struct Boolean {
  using Storage = uint8_t;
  using Value = uint8_t;
  static Value load(Storage x) { return x != 0; }
  static Storage store(Value x) { return x != 0; }
};

// Calls fn.operator()<Codec>() for the type.
template <typename Fn> void dispatch(planpb::DType dtype, Fn &&fn) {
  switch (dtype) {
  case planpb::F32:
    return fn.template operator()<Plain<float>>();
  case planpb::F64:
    return fn.template operator()<Plain<double>>();
  case planpb::I64:
    return fn.template operator()<Plain<int64_t>>();
  case planpb::I32:
    return fn.template operator()<Plain<int32_t>>();
  case planpb::U8:
    return fn.template operator()<Plain<uint8_t>>();
  case planpb::I8:
    return fn.template operator()<Plain<int8_t>>();
  case planpb::I16:
    return fn.template operator()<Plain<int16_t>>();
  case planpb::U16:
    return fn.template operator()<Plain<uint16_t>>();
  case planpb::U32:
    return fn.template operator()<Plain<uint32_t>>();
  case planpb::U64:
    return fn.template operator()<Plain<uint64_t>>();
  case planpb::BF16:
    return fn.template operator()<BFloat16>();
  case planpb::F16:
    return fn.template operator()<Float16>();
  case planpb::BOOL:
    return fn.template operator()<Boolean>();
  default:
    return;
  }
}

// A loop nest over views of one shape with unit dimensions dropped and
// dimensions merged that are contiguous in every view.
struct Nest {
  std::vector<int64_t> shape;
  std::vector<std::vector<int64_t>> strides; // by dimension, then view

  explicit Nest(std::span<const View *const> views) {
    const View &first = *views[0];
    for (size_t d = 0; d < first.shape.size(); ++d) {
      if (first.shape[d] == 1)
        continue;
      std::vector<int64_t> stride;
      for (const View *view : views)
        stride.push_back(view->strides[d]);
      if (!shape.empty() && mergeable(strides.back(), stride, first.shape[d])) {
        shape.back() *= first.shape[d];
        strides.back() = std::move(stride);
      } else {
        shape.push_back(first.shape[d]);
        strides.push_back(std::move(stride));
      }
    }
    if (shape.empty()) {
      shape.push_back(1);
      strides.emplace_back(views.size(), 1);
    }
  }

  static bool mergeable(const std::vector<int64_t> &outer,
                        const std::vector<int64_t> &inner, int64_t size) {
    for (size_t v = 0; v < outer.size(); ++v)
      if (outer[v] != inner[v] * size)
        return false;
    return true;
  }

  // Calls body(offsets) for every index of the outer dimensions; offsets in
  // elements, one a view.
  template <typename Body> void outer(Body &&body) const {
    const size_t views = strides[0].size(), depth = shape.size() - 1;
    for (int64_t size : shape)
      if (size == 0)
        return;
    std::vector<int64_t> index(depth, 0), offsets(views, 0);
    while (true) {
      body(offsets);
      size_t d = depth;
      while (d-- > 0) {
        for (size_t v = 0; v < views; ++v)
          offsets[v] += strides[d][v];
        if (++index[d] < shape[d])
          break;
        for (size_t v = 0; v < views; ++v)
          offsets[v] -= strides[d][v] * shape[d];
        index[d] = 0;
      }
      if (d == size_t(-1))
        return;
    }
  }
};

template <typename Codec, bool kMaximum>
void combine(typename Codec::Value *acc, const typename Codec::Storage *in,
             int64_t stride, int64_t count) {
  auto step = [](typename Codec::Value a, typename Codec::Value b) {
    if constexpr (kMaximum)
      return b > a || b != b ? b : a; // a NaN stays
    else
      return static_cast<typename Codec::Value>(a + b);
  };
  if (stride == 1)
    for (int64_t i = 0; i < count; ++i)
      acc[i] = step(acc[i], Codec::load(in[i]));
  else
    for (int64_t i = 0; i < count; ++i)
      acc[i] = step(acc[i], Codec::load(in[i * stride]));
}

template <typename Codec>
void reduceTyped(std::span<const View> in, const View &out, bool maximum,
                 bool accumulate) {
  std::vector<const View *> views;
  for (const View &view : in)
    views.push_back(&view);
  views.push_back(&out);
  const Nest nest(views);
  const int64_t inner = nest.shape.back();
  const std::vector<int64_t> &stride = nest.strides.back();
  using Storage = typename Codec::Storage;
  typename Codec::Value acc[kBlock];
  nest.outer([&](const std::vector<int64_t> &offsets) {
    for (int64_t begin = 0; begin < inner; begin += kBlock) {
      const int64_t count = std::min(kBlock, inner - begin);
      for (size_t v = 0; v < in.size(); ++v) {
        const Storage *data = static_cast<const Storage *>(in[v].data) +
                              offsets[v] + begin * stride[v];
        if (v == 0)
          for (int64_t i = 0; i < count; ++i)
            acc[i] = Codec::load(data[i * stride[v]]);
        else if (maximum)
          combine<Codec, true>(acc, data, stride[v], count);
        else
          combine<Codec, false>(acc, data, stride[v], count);
      }
      const size_t last = in.size();
      Storage *data = static_cast<Storage *>(out.data) + offsets[last] +
                      begin * stride[last];
      if (accumulate)
        combine<Codec, false>(acc, data, stride[last], count);
      for (int64_t i = 0; i < count; ++i)
        data[i * stride[last]] = Codec::store(acc[i]);
    }
  });
}

template <typename Word> void copyTyped(const View &in, const View &out) {
  const View *views[] = {&in, &out};
  const Nest nest(views);
  const int64_t inner = nest.shape.back();
  const int64_t from = nest.strides.back()[0], to = nest.strides.back()[1];
  nest.outer([&](const std::vector<int64_t> &offsets) {
    const Word *source = static_cast<const Word *>(in.data) + offsets[0];
    Word *target = static_cast<Word *>(out.data) + offsets[1];
    if (from == 1 && to == 1)
      std::memcpy(target, source, inner * sizeof(Word));
    else
      for (int64_t i = 0; i < inner; ++i)
        target[i * to] = source[i * from];
  });
}

} // namespace

View sliceView(const View &view, int64_t dim, int64_t begin, int64_t size) {
  View slice = view;
  slice.shape[dim] = size;
  slice.data = static_cast<char *>(view.data) +
               begin * view.strides[dim] * dtypeSize(view.dtype);
  return slice;
}

View denseLike(const View &view, void *data) {
  View dense = view;
  dense.data = data;
  dense.strides = layout::denseStrides(dense.shape);
  return dense;
}

void copyViews(const View &in, const View &out, bool accumulate) {
  if (accumulate)
    return reduceViews({&in, 1}, out, false, true);
  switch (dtypeSize(in.dtype)) {
  case 1:
    return copyTyped<uint8_t>(in, out);
  case 2:
    return copyTyped<uint16_t>(in, out);
  case 4:
    return copyTyped<uint32_t>(in, out);
  case 8:
    return copyTyped<uint64_t>(in, out);
  }
}

void reduceViews(std::span<const View> in, const View &out, bool maximum,
                 bool accumulate) {
  dispatch(out.dtype, [&]<typename Codec>() {
    reduceTyped<Codec>(in, out, maximum, accumulate);
  });
}

int64_t liveBytes(const void *data, int64_t bytes) {
  const char *begin = static_cast<const char *>(data);
  int64_t live = bytes;
  if (live % 8 != 0) { // the last, shorter word
    const int64_t rest = live % 8;
    if (std::any_of(begin + live - rest, begin + live,
                    [](char c) { return c != 0; }))
      return bytes;
    live -= rest;
  }
  for (; live > 0; live -= 8) {
    uint64_t word;
    std::memcpy(&word, begin + live - 8, sizeof(word));
    if (word != 0)
      break;
  }
  return live;
}

bool canReduce(planpb::DType dtype, bool maximum) {
  return dtypeSize(dtype) != 0 && (maximum || dtype != planpb::BOOL);
}

} // namespace merak::runtime
