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
        from(size_t(parts) + 1) {
    best[0] = 0;
  }

  // All parts weigh alike, or part q slowness[q % its size] times as much.
  std::vector<int> run(const std::vector<double> &weights,
                       const std::vector<double> &slowness) {
    setWeights(weights);
    if (slowness.empty())
      return runAlike();
    for (int q = 1; q <= parts; ++q) {
      nextPart();
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
      out[size_t(q) - 1] = i = from[size_t(q)].at(i);
    return out;
  }

  // Ends of a part that may be among the first q of the lightest parts: no
  // heavier than so many of `most`, and what is left no heavier than the rest.
  struct Window {
    int first = 0, last = 0;
  };
  Window windowOf(int q, double most) const {
    const auto least = std::lower_bound(prefix.begin(), prefix.end(),
                                        prefix.back() - (parts - q) * most);
    const auto end = std::upper_bound(prefix.begin(), prefix.end(), q * most);
    return {std::max(q, int(least - prefix.begin())),
            std::min(n - (parts - q), int(end - prefix.begin()) - 1)};
  }

  // Whether so many parts of at most that weight hold all of it.
  bool holds(double most) const {
    int at = 0;
    for (int q = 0; q < parts && at < n; ++q) {
      const auto end = std::upper_bound(prefix.begin() + at, prefix.end(),
                                        prefix[size_t(at)] + most);
      at = std::max(at, int(end - prefix.begin()) - 1);
    }
    return at == n;
  }

  // A little more than what the heaviest part must weigh; no more than the mean
  // and one op.
  double mostWeight() const {
    double low = prefix.back() / parts, most = 0;
    for (int i = 0; i < n; ++i)
      most = std::max(most, prefix[size_t(i) + 1] - prefix[size_t(i)]);
    double high = low + most;
    for (int halved = 0; halved < kHalved; ++halved)
      (holds((low + high) / 2) ? high : low) = (low + high) / 2;
    return high * (1 + 1e-9); // sums of floating-point numbers round
  }

  std::vector<int> runAlike() {
    const double most = mostWeight();
    Window last{0, 0};
    for (int q = 1; q <= parts; ++q) {
      nextPart();
      const Window window = windowOf(q, most);
      addPart(q, last, window);
      last = window;
    }
    return ends();
  }

  // Of the last part's begin j, its weight falls and the heaviest before it
  // rises: the best j is where they meet. Of equal ones the last. Begins and
  // ends outside of the windows belong to no lightest parts.
  void addPart(int q, Window begins, Window of) {
    from[size_t(q)].resize(of.first, of.last);
    // Neither falls as i grows.
    int low = begins.first, same = low;
    for (int i = of.first; i <= of.last; ++i) {
      auto last = [&](int j) { return prefix[i] - prefix[j]; };
      while (low < i && before[low] < last(low))
        ++low;
      if (low < i) {
        best[i] = before[low];
        if (same < low || before[same] != before[low])
          same = low;
        while (same + 1 < i && before[same + 1] == before[low])
          ++same;
        from[size_t(q)].at(i) = same;
      }
      if (low > begins.first && last(low - 1) < best[i]) {
        best[i] = last(low - 1);
        from[size_t(q)].at(i) = low - 1;
      }
    }
  }

  // On stages of unlike speed a longer beginning need not be slower: its last
  // part, which is not empty, may be on a slow one. So all ends are tried.
  void addPart(int q, double slow) {
    from[size_t(q)].resize(q, n);
    for (int i = q; i <= n; ++i)
      for (int j = q - 1; j < i; ++j) {
        const double most = std::max(before[j], slow * (prefix[i] - prefix[j]));
        if (most <= best[i]) {
          best[i] = most;
          from[size_t(q)].at(i) = j;
        }
      }
  }

  // Of a part, by its end: where it begins.
  class Begins {
  public:
    void resize(int firstEnd, int lastEnd) {
      first = firstEnd;
      begins.assign(size_t(std::max(0, lastEnd - firstEnd + 1)), 0);
    }
    int &at(int end) { return begins[size_t(end - first)]; }
    int at(int end) const { return begins[size_t(end - first)]; }

  private:
    int first = 0;
    std::vector<int> begins;
  };

  static constexpr int kHalved = 8;
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  const int n, parts;
  std::vector<double> prefix, best, before;
  std::vector<Begins> from; // by part
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
