#include "tools/merak-bench/Measure.h"
#include "tools/merak-bench/Operands.h"

#include <algorithm>
#include <chrono>

using namespace merak::runtime;

namespace merak::bench {

double steadySeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double lowerQuartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

namespace {

// Launches a case over its sets of operands, all of them so often.
class Batch {
public:
  Batch(Backend &backend, StreamHandle stream, PreparedSets &prepared, int sets)
      : backend_(backend), stream_(stream), prepared_(prepared), sets_(sets) {}

  // From now on so many rounds, as one graph where that can be.
  Status setRounds(int64_t rounds) {
    rounds_ = rounds;
    graph_.reset();
    if (!backend_.beginCapture(stream_).ok())
      return {};
    Status status = enqueue();
    auto captured = backend_.endCapture(stream_);
    if (status.ok() && captured.ok())
      graph_ = std::move(*captured);
    return {};
  }
  // Seconds of one run.
  Result<double> seconds() {
    const double begin = steadySeconds();
    MERAK_RETURN_IF_ERROR(graph_ ? graph_->launch(stream_) : enqueue());
    MERAK_RETURN_IF_ERROR(backend_.synchronize(stream_));
    return (steadySeconds() - begin) / double(rounds_ * sets_);
  }

private:
  Status enqueue() {
    for (int64_t i = 0; i < rounds_; ++i)
      for (int set = 0; set < sets_; ++set)
        MERAK_RETURN_IF_ERROR(prepared_.run(set, stream_));
    return {};
  }

  Backend &backend_;
  StreamHandle stream_;
  PreparedSets &prepared_;
  int sets_;
  int64_t rounds_ = 1;
  std::unique_ptr<CapturedStep> graph_;
};

} // namespace

Result<std::vector<double>> measureOnDevice(const Case &one, Backend &backend,
                                            const MeasureOptions &options) {
  constexpr int64_t kMostCalls = 1024; // of a graph
  const uint64_t each = operandBytes(one);
  const int64_t farthest = options.distances.back();
  const int most = setsFor(one, farthest);
  Arena arena(backend);
  OwnStream stream(backend);
  PreparedSets prepared(one, backend);
  auto located = [&](Status status) {
    return std::move(status).withContext(one.key);
  };
  Status status =
      arena.reserve(std::max(each * uint64_t(most), uint64_t(farthest)));
  if (status.ok())
    status = stream.create();
  if (status.ok())
    status = prepared.add(arena, OperandValues(one), most);
  if (!status.ok())
    return located(status);
  std::vector<double> result;
  for (int64_t distance : options.distances) {
    const int sets = std::min(most, setsFor(one, distance));
    const bool sweeps = each * uint64_t(sets) < uint64_t(distance) / 2;
    Batch batch(backend, stream.get(), prepared, sets);
    // Libraries choose algorithms at the first call, which a capture forbids.
    Result<double> once = batch.seconds();
    if (once.ok())
      once = batch.seconds();
    if (!once)
      return located(once.status());
    const int64_t rounds =
        int64_t(kBatchSeconds / (std::max(*once, 1e-8) * sets));
    MERAK_RETURN_IF_ERROR(located(batch.setRounds(
        sweeps ? 1 : std::clamp<int64_t>(rounds, 1, kMostCalls / sets))));
    std::vector<double> batches;
    const double begin = steadySeconds();
    while (int(batches.size()) < kLeastBatches ||
           (steadySeconds() - begin < options.secondsPerCase &&
            int(batches.size()) < kMostBatches)) {
      if (sweeps)
        MERAK_RETURN_IF_ERROR(
            located(arena.sweep(each * uint64_t(sets), uint64_t(distance))));
      Result<double> seconds = batch.seconds();
      if (!seconds)
        return located(seconds.status());
      batches.push_back(*seconds);
    }
    result.push_back(lowerQuartile(batches));
  }
  return result;
}

} // namespace merak::bench
