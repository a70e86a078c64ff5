#include "passes/Planning/OverlapModel.h"

#include <algorithm>
#include <map>

namespace merak::planning {

namespace {

class Writer {
public:
  std::vector<StreamOp> ops;

  void compute(double seconds) { ops.push_back({StreamOp::Compute, seconds}); }
  int start(double seconds) {
    ops.push_back({StreamOp::Start, seconds, collectives});
    return collectives++;
  }
  void wait(int collective) { ops.push_back({StreamOp::Wait, 0, collective}); }

private:
  int collectives = 0;
};

} // namespace

double runStreams(const std::vector<StreamOp> &ops) {
  double compute = 0, link = 0;
  std::map<int, double> ends;
  for (const StreamOp &op : ops)
    switch (op.kind) {
    case StreamOp::Compute:
      compute += op.seconds;
      break;
    case StreamOp::Start:
      ends[op.collective] = link = std::max(link, compute) + op.seconds;
      break;
    case StreamOp::Wait:
      compute = std::max(compute, ends[op.collective]);
      break;
    }
  return std::max(compute, link);
}

std::vector<StreamOp> layerProgram(int level, int layers,
                                   const LayerTimes &times) {
  Writer w;
  if (level == 0) {
    for (int layer = 0; layer < layers; ++layer)
      for (double block : {times.attention, times.mlp}) {
        w.compute(block);
        w.wait(w.start(times.allReduce));
        w.compute(times.join);
      }
    return w.ops;
  }
  if (level != 2 && level != 3)
    return {};
  // MLP outputs of the layer below that are still to be joined.
  int pending[2] = {-1, -1};
  auto join = [&](int half) {
    if (pending[half] < 0)
      return;
    w.wait(pending[half]);
    w.compute(times.join / 2);
    pending[half] = -1;
  };
  for (int layer = 0; layer < layers; ++layer) {
    int attention[2];
    for (int half : {0, 1}) {
      join(half);
      w.compute(times.attention / 2);
      attention[half] = w.start(times.allReduce / 2);
    }
    for (int half : {0, 1}) {
      w.wait(attention[half]);
      w.compute((times.join + times.mlp) / 2);
      pending[half] = w.start(times.allReduce / 2);
    }
    if (level == 2 || layer + 1 == layers)
      for (int half : {0, 1})
        join(half);
  }
  return w.ops;
}

double steadyLayer(int level, const LayerTimes &t) {
  double A = t.attention, M = t.mlp, D = t.join, C = t.allReduce;
  switch (level) {
  case 2:
    return (A + std::max(A, C) + 2 * std::max(M + D, C) + std::max(D, C) + D) /
           2;
  case 3:
    return std::max(A + D, C) + std::max(M + D, C);
  default:
    return A + M + 2 * D + 2 * C;
  }
}

} // namespace merak::planning
