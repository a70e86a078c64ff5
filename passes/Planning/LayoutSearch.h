// The search for layouts that differ between parts of a model, at given degrees
// (Cai et al., 2020, TensorOpt, arXiv 2004.10856): regions (LayoutRegions.h)
// are the operators of its graph, the uses between them its edges, and a
// configuration of a region says what the classes in it are split over. Every
// region and every pair of neighbours is priced as a piece of the model
// (LayoutPieces.h) by the functions that price whole plans; equal pieces once.
// FrontierGraph finds the frontier of (bytes, time) of all combinations.
//
// Configurations of a region, over dp and over tp:
//   samples          as everywhere (dp), or over tp besides
//   one class of     what a product's weights have alone, what it sums, or what
//   weights          both its operands have (experts); columns of a table. Over
//                    dp: all samples of a microbatch are then on each replica
//   tokens           a dimension of values only (tp)
//   nothing          (tp)
//
// A tp of composite size is used in parts (MeshAxes.h): a region's weights or
// tokens are split over all of it or over the first of its prime factors, and
// over the rest of them samples or nothing. So a narrow layer between wide ones
// has a lower degree.
#pragma once

#include "passes/Planning/LayoutModel.h"
#include "passes/Planning/Strategy.h"

namespace merak::planning {

struct LayoutSearchOptions {
  StageCostOptions costs;
  GradientReduction reduce;
  // Of a stage: microbatches in flight and in a step.
  int64_t inFlight = 1, microbatches = 1;
  double memoryBytes = 0; // of all stages together; 0: not limited
  // Of the points that fit, so many: the fastest, the smallest, and between
  // these nearer to the fastest. 0: all, also those that do not fit.
  size_t most = 0;
  // Frontiers keep the fastest in so many buckets of bytes.
  int64_t buckets = 512;
  int threads = 1;
  bool parts = true; // of a tp of composite size
  // Of values between layouts; false: they are free, and most of the work is
  // saved.
  bool conversions = true;
  // Points say where their seams are and what classes are split over; false:
  // what they take alone.
  bool named = true;
};

// A point of the frontier, as a strategy says it.
struct FoundLayout {
  std::vector<Strategy::SeamUse> seams;
  std::vector<Strategy::SplitClass> classes;
  // Of tp, where some class is split over some of them only.
  std::map<std::string, std::vector<int64_t>> parts;
  bool isUniform = true;         // there are no seams
  double bytes = 0, seconds = 0; // as sums of pieces
};

struct LayoutFrontier {
  std::vector<FoundLayout> points; // fastest first
  int regions = 0, distinct = 0;   // and different pieces priced
  int64_t priced = 0;              // pieces with an assignment each
  double slackBytes = 0;           // of buckets (Frontier::slack)
};

// `base` has the mesh and the samples over the axes of the batch.
Result<LayoutFrontier> searchLayouts(const LayoutModel &model,
                                     const Assignment &base,
                                     const LayoutSearchOptions &options);

// Every combination of configurations instead, to compare with. Errors: there
// are more than `most`.
Result<std::vector<FoundLayout>> everyLayout(const LayoutModel &model,
                                             const Assignment &base,
                                             const LayoutSearchOptions &options,
                                             int64_t most);

} // namespace merak::planning
