#include "passes/Planning/ParameterLinks.h"

#include <algorithm>
#include <numeric>

namespace merak::planning {

namespace {

// Messages [first, last) as one.
struct Bucket {
  size_t first = 0, last = 0;
  double begin = 0, bytes = 0; // of the messages in front of it, of its own
};

std::vector<Bucket> fill(const std::vector<PlacedMessage> &messages,
                         double most) {
  std::vector<Bucket> buckets;
  double sum = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const double bytes = messages[i].bytes;
    if (buckets.empty() || buckets.back().bytes + bytes > most)
      buckets.push_back({i, i, sum, 0});
    buckets.back().last = i + 1;
    buckets.back().bytes += bytes;
    sum += bytes;
  }
  return buckets;
}

double inTurn(const std::vector<PlacedMessage> &messages,
              const std::function<double(double)> &seconds) {
  double sum = 0;
  for (const PlacedMessage &message : messages)
    sum += seconds(message.bytes);
  return sum;
}

// By bucket the op in front of which it is issued; 0: the begin.
std::vector<int> issuedAt(const std::vector<PlacedMessage> &messages,
                          const std::vector<Bucket> &buckets, double most) {
  std::vector<int> at;
  size_t before = 0;
  double begin = 0;
  for (const Bucket &of : buckets) {
    while (before + 1 < of.first && begin < of.begin - most)
      begin += messages[before++].bytes;
    at.push_back(of.first == 0 ? 0 : messages[before].at);
  }
  return at;
}

} // namespace

double exposedGathers(const std::vector<double> &ops,
                      const std::vector<PlacedMessage> &gathers,
                      const ParameterLinks &links) {
  if (gathers.empty() || !links.gather)
    return 0;
  if (!links.beside)
    return inTurn(gathers, links.gather);
  const std::vector<Bucket> buckets = fill(gathers, links.bucketBytes);
  const std::vector<int> at = issuedAt(gathers, buckets, links.bucketBytes);
  double computed = 0, carried = 0;
  size_t issued = 0, used = 0;
  std::vector<double> end(buckets.size(), 0);
  for (int op = 0; op < int(ops.size()); ++op) {
    for (; issued < buckets.size() && at[issued] <= op; ++issued)
      end[issued] = carried =
          std::max(carried, computed) + links.gather(buckets[issued].bytes);
    for (; used < issued && gathers[buckets[used].first].at <= op; ++used)
      computed = std::max(computed, end[used]);
    computed += ops[size_t(op)];
  }
  return computed - std::accumulate(ops.begin(), ops.end(), 0.0);
}

double exposedScatters(const std::vector<double> &ops,
                       const std::vector<PlacedMessage> &scatters,
                       const ParameterLinks &links) {
  if (scatters.empty() || !links.scatter)
    return 0;
  if (!links.beside)
    return inTurn(scatters, links.scatter);
  const std::vector<Bucket> buckets = fill(scatters, links.bucketBytes);
  double computed = 0, carried = 0;
  size_t next = 0;
  for (int op = 0; op < int(ops.size()); ++op) {
    computed += ops[size_t(op)];
    for (; next < buckets.size() && scatters[buckets[next].last - 1].at <= op;
         ++next) {
      const double ready = computed;
      computed = std::max(computed, carried); // the sums of the one before
      carried = std::max(carried, ready) + links.scatter(buckets[next].bytes);
    }
  }
  return std::max(computed, carried) -
         std::accumulate(ops.begin(), ops.end(), 0.0);
}

double twoBuckets(const std::vector<PlacedMessage> &messages,
                  const ParameterLinks &links) {
  double most = 0, before = 0;
  if (!links.beside) {
    for (const PlacedMessage &message : messages)
      most = std::max(most, message.bytes);
    return most;
  }
  for (const Bucket &bucket : fill(messages, links.bucketBytes)) {
    most = std::max(most, before + bucket.bytes);
    before = bucket.bytes;
  }
  return most;
}

} // namespace merak::planning
