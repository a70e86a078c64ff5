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
// by their end, from that of one part less.
class Balancer {
public:
  Balancer(int n, int parts)
      : n(n), parts(parts), best(size_t(n) + 1, kNone), before(best),
        from(size_t(parts) + 1, std::vector<int>(size_t(n) + 1)) {
    best[0] = 0;
  }

  // All parts weigh alike, or part q slowness[q % its size] times as much.
  std::vector<int> run(const std::vector<double> &weights,
                       const std::vector<double> &slowness) {
    setWeights(weights);
    for (int q = 1; q <= parts; ++q) {
      nextPart();
      if (slowness.empty())
        addPart(q);
      else
        addPart(q, slowness[size_t(q - 1) % slowness.size()]);
    }
    return ends();
  }

  std::vector<int> run(const std::vector<std::vector<double>> &weights) {
    for (int q = 1; q <= parts; ++q) {
      setWeights(weights[size_t(q - 1) % weights.size()]);
      nextPart();
      addPart(q, 1);
    }
    return ends();
  }

private:
  void setWeights(const std::vector<double> &weights) {
    prefix = {0};
    for (double weight : weights)
      prefix.push_back(prefix.back() + weight);
  }

  void nextPart() {
    std::swap(best, before);
    std::fill(best.begin(), best.end(), kNone);
  }

  std::vector<int> ends() const {
    std::vector<int> out(size_t(parts) + 1, n);
    for (int q = parts, i = n; q > 0; --q)
      out[size_t(q) - 1] = i = from[size_t(q)][size_t(i)];
    return out;
  }

  // Of the last part's begin j, its weight falls and the heaviest before it
  // rises: the best j is where they meet. Of equal ones the last.
  void addPart(int q) {
    // Neither falls as i grows.
    int low = q - 1, same = low;
    for (int i = q; i <= n; ++i) {
      auto last = [&](int j) { return prefix[i] - prefix[j]; };
      while (low < i && before[low] < last(low))
        ++low;
      if (low < i) {
        best[i] = before[low];
        if (same < low || before[same] != before[low])
          same = low;
        while (same + 1 < i && before[same + 1] == before[low])
          ++same;
        from[q][i] = same;
      }
      if (low > q - 1 && last(low - 1) < best[i]) {
        best[i] = last(low - 1);
        from[q][i] = low - 1;
      }
    }
  }

  // On stages of unlike speed a longer beginning need not be slower: its last
  // part, which is not empty, may be on a slow one. So all ends are tried.
  void addPart(int q, double slow) {
    for (int i = q; i <= n; ++i)
      for (int j = q - 1; j < i; ++j) {
        const double most = std::max(before[j], slow * (prefix[i] - prefix[j]));
        if (most <= best[i]) {
          best[i] = most;
          from[q][i] = j;
        }
      }
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();
  const int n, parts;
  std::vector<double> prefix, best, before;
  std::vector<std::vector<int>> from; // by parts and end: where the last begins
};

} // namespace

std::vector<int> balance(const std::vector<double> &weights, int parts,
                         const std::vector<double> &slowness) {
  return Balancer(int(weights.size()), parts).run(weights, slowness);
}

std::vector<int> balance(const std::vector<std::vector<double>> &weights,
                         int parts) {
  return Balancer(int(weights.front().size()), parts).run(weights);
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
