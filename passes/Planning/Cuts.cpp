#include "passes/Planning/Cuts.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace merak::planning {

std::vector<int> uniformFloor(int n, int p) {
  std::vector<int> out;
  int c = n / p, r = n % p;
  for (int q = 0; q < p; ++q)
    out.push_back(n <= p ? std::min(q, n)
                         : q * c + std::min(r, std::max(0, q - 1)));
  out.push_back(n);
  return out;
}

namespace {

// Boundaries of parts, part by part: how heavy the heaviest of the first q is,
// by their end, from that of one part less. Part q weighs what stage
// q % stages says.
class Balancer {
public:
  // All weigh alike, or each slowness[q % its size] times as much.
  Balancer(const std::vector<double> &weights, int parts,
           const std::vector<double> &slowness)
      : Balancer(int(weights.size()), parts) {
    addWeights(weights);
    if (!slowness.empty())
      slow = slowness;
    isAlike = slowness.empty();
  }
  Balancer(const std::vector<std::vector<double>> &weights, int parts)
      : Balancer(int(weights.front().size()), parts) {
    for (const std::vector<double> &of : weights)
      addWeights(of);
    isAlike = false;
  }

  std::vector<int> run() {
    setMost();
    setWindows();
    for (int q = 1; q <= parts; ++q) {
      std::swap(best, before);
      std::fill(best.begin(), best.end(), kNone);
      from[size_t(q)].assign(windows[size_t(q)].size(), 0);
      if (isAlike)
        addAlike(q);
      else
        addPart(q);
    }
    return ends();
  }

private:
  Balancer(int n, int parts)
      : n(n), parts(parts), best(size_t(n) + 1, kNone), before(best),
        windows(size_t(parts) + 1), from(size_t(parts) + 1) {
    best[0] = 0;
  }

  void addWeights(const std::vector<double> &weights) {
    std::vector<double> &sums = prefixes.emplace_back(1, 0.0);
    for (double weight : weights)
      sums.push_back(sums.back() + weight);
  }
  const std::vector<double> &prefixOf(int q) const { // from 1 on
    return prefixes[size_t(q - 1) % prefixes.size()];
  }
  double slownessOf(int q) const { return slow[size_t(q - 1) % slow.size()]; }
  double weightOf(int q, int begin, int end) const {
    const std::vector<double> &prefix = prefixOf(q);
    return slownessOf(q) * (prefix[size_t(end)] - prefix[size_t(begin)]);
  }

  std::vector<int> ends() const {
    std::vector<int> out(size_t(parts) + 1, n);
    for (int q = parts, i = n; q > 0; --q)
      out[size_t(q) - 1] = i =
          from[size_t(q)][size_t(i - windows[size_t(q)].first)];
    return out;
  }

  // ------------------------------------------------- what need not be tried

  // Where a part of no more than `weight` ends at the latest, and begins at the
  // earliest.
  int latestEnd(int q, int begin, double weight) const {
    const std::vector<double> &prefix = prefixOf(q);
    const auto end =
        std::upper_bound(prefix.begin() + begin, prefix.end(),
                         prefix[size_t(begin)] + weight / slownessOf(q));
    return std::max(begin, int(end - prefix.begin()) - 1);
  }
  int earliestBegin(int q, int end, double weight) const {
    const std::vector<double> &prefix = prefixOf(q);
    return int(std::lower_bound(prefix.begin(), prefix.begin() + end,
                                prefix[size_t(end)] - weight / slownessOf(q)) -
               prefix.begin());
  }

  // Whether parts that are each as long as that weight allows hold all of it.
  bool holds(double weight) const {
    int at = 0;
    for (int q = 1; q <= parts; ++q) {
      const int end = std::min(latestEnd(q, at, weight), n - (parts - q));
      if (end == at)
        return false;
      at = end;
    }
    return at == n;
  }

  // So much is enough: about what weighs least, if it could be cut anywhere,
  // and one op. Where that is not so all is tried.
  void setMost() {
    double speed = 0, heaviest = 0;
    for (int q = 1; q <= parts; ++q)
      speed += 1 / std::max(weightOf(q, 0, n), 1e-300);
    const int stages = std::min(parts, int(prefixes.size() * slow.size()));
    for (int q = 1; q <= stages; ++q)
      for (int i = 0; i < n; ++i)
        heaviest = std::max(heaviest, weightOf(q, i, i + 1));
    double low = 1 / speed, high = low + heaviest;
    for (int doubled = 0; doubled < kHalved && !holds(high); ++doubled)
      high *= 2;
    if (!holds(high))
      return;
    for (int halved = 0; halved < kHalved; ++halved)
      (holds((low + high) / 2) ? high : low) = (low + high) / 2;
    most = high * (1 + 1e-9); // sums of floating-point numbers round
  }

  // Ends of a part.
  struct Window {
    int first = 0, last = 0;
    size_t size() const { return size_t(std::max(0, last - first + 1)); }
  };
  // Those of lightest parts: the parts up to there weigh no more than `most`
  // each, and neither do those behind it.
  void setWindows() {
    for (int q = 1, end = 0; q <= parts; ++q)
      windows[size_t(q)].last =
          std::min(n - (parts - q), end = latestEnd(q, end, most));
    windows[size_t(parts)] = {n, n};
    for (int q = parts, begin = n; q > 1; --q)
      windows[size_t(q) - 1].first =
          std::max(q - 1, begin = earliestBegin(q, begin, most));
  }

  // --------------------------------------------------------------- one part

  // Of the last part's begin j, its weight falls and the heaviest before it
  // rises: the best j is where they meet. Of equal ones the last.
  void addAlike(int q) {
    const std::vector<double> &prefix = prefixes.front();
    const Window of = windows[size_t(q)];
    // Neither falls as i grows.
    const int first = windows[size_t(q) - 1].first;
    int low = first, same = low;
    for (int i = of.first; i <= of.last; ++i) {
      int &begin = from[size_t(q)][size_t(i - of.first)];
      auto last = [&](int j) { return prefix[i] - prefix[j]; };
      while (low < i && before[low] < last(low))
        ++low;
      if (low < i) {
        best[i] = before[low];
        if (same < low || before[same] != before[low])
          same = low;
        while (same + 1 < i && before[same + 1] == before[low])
          ++same;
        begin = same;
      }
      if (low > first && last(low - 1) < best[i]) {
        best[i] = last(low - 1);
        begin = low - 1;
      }
    }
  }

  // On stages of unlike speed a longer beginning need not be slower: its last
  // part, which is not empty, may be on a slow one. So all ends are tried.
  void addPart(int q) {
    const Window of = windows[size_t(q)], begins = windows[size_t(q) - 1];
    int first = begins.first;
    for (int i = of.first; i <= of.last; ++i) {
      while (first < i && weightOf(q, first, i) > most)
        ++first;
      for (int j = first; j <= std::min(i - 1, begins.last); ++j) {
        const double heaviest = std::max(before[j], weightOf(q, j, i));
        if (heaviest <= best[i]) {
          best[i] = heaviest;
          from[size_t(q)][size_t(i - of.first)] = j;
        }
      }
    }
  }

  static constexpr int kHalved = 8;
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  const int n, parts;
  std::vector<std::vector<double>> prefixes; // of stages, or of all
  std::vector<double> slow{1};               // likewise
  bool isAlike = true;
  double most = kNone; // no part of lightest ones weighs more
  std::vector<double> best, before;
  std::vector<Window> windows;        // by part
  std::vector<std::vector<int>> from; // by part and end in its window: begins
};

} // namespace

std::vector<int> balance(const std::vector<double> &weights, int parts,
                         const std::vector<double> &slowness) {
  return Balancer(weights, parts, slowness).run();
}

std::vector<int> balance(const std::vector<std::vector<double>> &weights,
                         int parts) {
  return Balancer(weights, parts).run();
}

static Status tooFew(int parts, int found) {
  return Status::error(fmt::format(
      "{} stages need at least as many operations, found {}", parts, found));
}

Result<std::vector<int>> balanced(const StageModel &model, int parts,
                                  const std::vector<double> &slowness) {
  const std::vector<int> &at = model.positions(parts);
  const int n = int(at.size()) - 1;
  if (n < parts)
    return tooFew(parts, n);
  return model.cutsOf(parts, slowness, [&] {
    std::vector<double> weights; // between neighbouring positions
    for (int i = 0; i < n; ++i)
      weights.push_back(model.seconds(at[i], at[i + 1]));
    std::vector<int> begin;
    for (int cut : balance(weights, parts, slowness))
      begin.push_back(at[cut]);
    return begin;
  });
}

Result<std::vector<int>> balanced(const StageModel &model, int parts,
                                  const PipelineShape &shape) {
  if (shape.meshes.empty())
    return balanced(model, parts, shape.slowness);
  const std::vector<int> &at = model.positions(parts);
  const int n = int(at.size()) - 1;
  if (n < parts)
    return tooFew(parts, n);
  std::vector<std::vector<double>> weights;
  for (int s = 0; s < shape.stages; ++s) {
    weights.emplace_back();
    for (int i = 0; i < n; ++i)
      weights.back().push_back(
          shape.slownessOf(s) *
          shape.modelOf(s, model).seconds(at[i], at[i + 1]));
  }
  std::vector<int> begin;
  for (int cut : balance(weights, parts))
    begin.push_back(at[cut]);
  return begin;
}

Result<std::vector<int>> equalLayers(const StageModel &model, int parts) {
  const std::vector<int> &at = model.blockBounds();
  int n = int(at.size()) - 1;
  if (n < parts)
    return Status::error(fmt::format(
        "{} stages need at least as many layers, found {}", parts, n));
  std::vector<int> begin;
  for (int cut : uniformFloor(n, parts))
    begin.push_back(at[cut]);
  return begin;
}

} // namespace merak::planning
