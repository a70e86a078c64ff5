// Ranks as threads, and tensors of any type filled with small integers, which
// every type adds exactly.
#pragma once

#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace merak::runtime::test {

inline void put(planpb::DType dtype, void *data, int64_t at, double value) {
  switch (dtype) {
  case planpb::F32:
    static_cast<float *>(data)[at] = float(value);
    break;
  case planpb::F64:
    static_cast<double *>(data)[at] = value;
    break;
  case planpb::I64:
    static_cast<int64_t *>(data)[at] = int64_t(value);
    break;
  case planpb::I32:
    static_cast<int32_t *>(data)[at] = int32_t(value);
    break;
  case planpb::BF16:
    static_cast<uint16_t *>(data)[at] = floatToBf16(float(value));
    break;
  case planpb::F16:
    static_cast<uint16_t *>(data)[at] = floatToF16(float(value));
    break;
  case planpb::I8:
    static_cast<int8_t *>(data)[at] = int8_t(value);
    break;
  default:
    static_cast<uint8_t *>(data)[at] = uint8_t(value);
  }
}

inline double get(planpb::DType dtype, const void *data, int64_t at) {
  switch (dtype) {
  case planpb::F32:
    return static_cast<const float *>(data)[at];
  case planpb::F64:
    return static_cast<const double *>(data)[at];
  case planpb::I64:
    return double(static_cast<const int64_t *>(data)[at]);
  case planpb::I32:
    return static_cast<const int32_t *>(data)[at];
  case planpb::BF16:
    return bf16ToFloat(static_cast<const uint16_t *>(data)[at]);
  case planpb::F16:
    return f16ToFloat(static_cast<const uint16_t *>(data)[at]);
  case planpb::I8:
    return static_cast<const int8_t *>(data)[at];
  default:
    return static_cast<const uint8_t *>(data)[at];
  }
}

// A tensor that owns its memory; `pad` > 0 leaves gaps after each row, so that
// the view is strided. Values by row-major index of the shape.
class Tensor {
public:
  Tensor(planpb::DType dtype, std::vector<int64_t> shape, int64_t pad = 0) {
    view_.dtype = dtype;
    view_.shape = std::move(shape);
    view_.strides.resize(view_.shape.size());
    int64_t stride = 1;
    for (size_t d = view_.shape.size(); d-- > 0;) {
      view_.strides[d] = stride;
      stride *= view_.shape[d] + (d + 1 == view_.shape.size() ? pad : 0);
    }
    memory_.assign(size_t(stride * dtypeSize(dtype)) + 8, 99);
    view_.data = memory_.data();
  }
  const View &view() const { return view_; }
  int64_t elements() const { return view_.elements(); }
  void set(int64_t index, double value) {
    put(view_.dtype, memory_.data(), offset(index), value);
  }
  double at(int64_t index) const {
    return get(view_.dtype, memory_.data(), offset(index));
  }

private:
  int64_t offset(int64_t index) const {
    int64_t offset = 0;
    for (size_t d = view_.shape.size(); d-- > 0;) {
      offset += index % view_.shape[d] * view_.strides[d];
      index /= view_.shape[d];
    }
    return offset;
  }
  View view_;
  std::vector<char> memory_;
};

// Runs `body` as every rank and returns their statuses.
inline std::vector<Status>
runRanks(InprocWorld &world,
         const std::function<Status(Communicator &comm)> &body) {
  std::vector<Status> statuses(size_t(world.size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank)
    threads.emplace_back([&, rank] {
      auto comm = world.communicator(rank);
      statuses[size_t(rank)] = body(*comm);
      if (!statuses[size_t(rank)].ok())
        comm->abort(statuses[size_t(rank)]);
    });
  for (std::thread &thread : threads)
    thread.join();
  return statuses;
}

inline std::vector<int> everybody(const InprocWorld &world) {
  std::vector<int> ranks(size_t(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Prepares and runs one operation.
inline Status runOnce(Communicator &comm, const CommSpec &spec,
                      const View *input, const View *output) {
  std::span<const View> in, out;
  if (input)
    in = {input, 1};
  if (output)
    out = {output, 1};
  auto endpoint = comm.prepare(spec, in, out);
  if (!endpoint.ok())
    return endpoint.status();
  return comm.run({endpoint->get(), in, out});
}

} // namespace merak::runtime::test
