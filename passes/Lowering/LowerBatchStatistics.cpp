// Batch statistics are those of the samples that are here: once shapes are
// local, sums over dimension 0.
#include "dialects/Train/Builders.h"
#include "passes/Lowering/Passes.h"

using namespace mlir;
using namespace merak::train;

namespace merak {

#define GEN_PASS_DEF_LOWERBATCHSTATISTICS
#include "passes/Lowering/Passes.h.inc"

namespace {

// The mean, repeated for each sample.
Value meanOfSamples(OpBuilder &b, BatchMeanOp op) {
  RankedTensorType type = tensorTypeOf(op.getX());
  int64_t samples = type.getDimSize(0);
  if (samples == 1)
    return op.getX();
  Value sum = reduceSum(b, op.getLoc(), op.getX(), {0}, /*keepdims=*/true);
  Value mean = scale(b, op.getLoc(), sum, 1.0 / static_cast<double>(samples));
  return ExpandOp::create(b, op.getLoc(), type, mean);
}

// running * keep + statistic of the first sample * (1 - keep).
FailureOr<Value> nextAverage(OpBuilder &b, TrackOp op) {
  Location loc = op.getLoc();
  RankedTensorType type = tensorTypeOf(op.getStatistic());
  double keep = op.getKeep().convertToDouble();
  double part = 1 - keep;
  if (op.getVariance()) {
    double count = static_cast<double>(type.getDimSize(0)) *
                   static_cast<double>(op.getEach());
    if (count < 2)
      return op.emitError("batch norm of one number a channel has no "
                          "variance; expected larger microbatches "
                          "(--microbatch)");
    part *= count / (count - 1);
  }
  Value first = reshapeTo(b, loc, sliceAxis(b, loc, op.getStatistic(), 0, 0, 1),
                          type.getShape().drop_front());
  Value before = scale(b, loc, op.getRunning(), keep);
  Value added = scale(b, loc, first, part);
  return Value(AddOp::create(b, loc, before, added));
}

struct LowerBatchStatisticsPass
    : impl::LowerBatchStatisticsBase<LowerBatchStatisticsPass> {
  void runOnOperation() override {
    bool failed = false;
    getOperation().walk([&](Operation *op) {
      OpBuilder b(op);
      Value made;
      if (auto mean = dyn_cast<BatchMeanOp>(op)) {
        made = meanOfSamples(b, mean);
      } else if (auto track = dyn_cast<TrackOp>(op)) {
        FailureOr<Value> next = nextAverage(b, track);
        failed |= mlir::failed(next);
        made = mlir::failed(next) ? Value() : *next;
      }
      if (!made)
        return;
      op->getResult(0).replaceAllUsesWith(made);
      op->erase();
    });
    if (failed)
      signalPassFailure();
  }
};

} // namespace
} // namespace merak
