// Parameters that are gathered, and gradients that are scattered, beside the
// computation of an action, in buckets as
// passes/Lowering/PrefetchParameters.cpp and
// passes/Lowering/BucketGradients.cpp fill them: one stream computes, the links
// carry one message after another.
#pragma once

#include <functional>
#include <vector>

namespace merak::planning {

// Over replicas. Of a collective of so many bytes: of what is gathered, of what
// each rank has before it is scattered.
struct ParameterLinks {
  std::function<double(double bytes)> gather, scatter;
  double bucketBytes = 0; // most of several; 0: each by itself
  bool beside = false;    // else the computation waits for each
};

// Of the op at a place of the action.
struct PlacedMessage {
  int at = 0;
  double bytes = 0;
};

// Seconds by which gathers hold up an action whose ops take `ops` seconds, in
// their order; each gather is there before the op `at`. A bucket is issued in
// front of the first op that uses the bucket before it. Messages must be in the
// order of their places.
double exposedGathers(const std::vector<double> &ops,
                      const std::vector<PlacedMessage> &gathers,
                      const ParameterLinks &links);

// The same of gradients that each op leaves, and which are added up when they
// are scattered: the sum of a bucket waits until the next bucket is full, the
// last one for the end.
double exposedScatters(const std::vector<double> &ops,
                       const std::vector<PlacedMessage> &scatters,
                       const ParameterLinks &links);

// The most bytes of a bucket and the one behind it, which are there at a time;
// of one message where the computation waits for each.
double twoBuckets(const std::vector<PlacedMessage> &messages,
                  const ParameterLinks &links);

} // namespace merak::planning
