#include "passes/CostModel/Calibrate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace merak::costmodel {
namespace {

// Sizes closer than this are one point.
constexpr double kSameSize = 1.02;

bool communicates(const Sample &sample) {
  Collective kind;
  return sample.work.name == "transfer" ||
         parseCollective(sample.work.name, kind);
}
bool contracts(const Sample &sample) { return sample.work.k > 0; }

// Time beyond the launch; a kernel that is all launch keeps a tenth, so that
// its rate stays finite.
double net(const Sample &sample, double launch) {
  return std::max(sample.seconds - launch, 0.1 * sample.seconds);
}

// The shortest call of a kernel that does nearly nothing.
double launchOf(const std::vector<Sample> &samples) {
  double least = 1;
  for (const Sample &sample : samples)
    if (!communicates(sample))
      least = std::min(least, sample.seconds);
  return least;
}

// Rates of one shape or size by distance; 0: not measured there.
using Levels = std::vector<double>;

// Where nothing was measured holds what was at the nearest distance.
void complete(Levels &levels) {
  for (size_t i = 0; i < levels.size(); ++i)
    for (size_t away = 1; levels[i] <= 0 && away < levels.size(); ++away) {
      if (i >= away && levels[i - away] > 0)
        levels[i] = levels[i - away];
      else if (i + away < levels.size() && levels[i + away] > 0)
        levels[i] = levels[i + away];
    }
}

size_t levelOf(const Device &device, const Sample &sample) {
  auto it = std::find(device.distances.begin(), device.distances.end(),
                      sample.distance);
  return it == device.distances.end() ? 0
                                      : size_t(it - device.distances.begin());
}
size_t levelsOf(const Device &device) {
  return std::max<size_t>(1, device.distances.size());
}

// Bandwidth of a sample of so many bytes at a level.
struct Rate {
  double bytes, bandwidth;
  size_t level;
};

std::vector<SizePoint> sizePoints(std::vector<Rate> rates, size_t levels) {
  std::sort(rates.begin(), rates.end(),
            [](const Rate &a, const Rate &b) { return a.bytes < b.bytes; });
  std::vector<SizePoint> points;
  for (size_t i = 0; i < rates.size();) {
    // The geometric mean of what was measured at one size.
    double bytes = rates[i].bytes;
    Levels sums(levels, 0), counts(levels, 0), means(levels, 0);
    for (; i < rates.size() && rates[i].bytes <= bytes * kSameSize; ++i) {
      sums[rates[i].level] += std::log(rates[i].bandwidth);
      ++counts[rates[i].level];
    }
    for (size_t level = 0; level < levels; ++level)
      means[level] =
          counts[level] > 0 ? std::exp(sums[level] / counts[level]) : 0;
    complete(means);
    points.push_back({bytes, means[0], {means.begin() + 1, means.end()}});
  }
  return points;
}

void fitContractions(const std::vector<Sample> &samples, Device &device) {
  device.rates["f32"] = 0; // is always there
  auto rate = [&](const Sample &sample) {
    return sample.work.flops / net(sample, device.launchSeconds);
  };
  for (const Sample &sample : samples)
    if (contracts(sample)) {
      double &peak = device.rates[sample.work.dtype];
      peak = std::max(peak, rate(sample));
    }
  // The geometric mean of what was measured of one shape.
  using Shape = std::array<double, 3>;
  std::map<std::pair<std::string, Shape>, std::pair<Levels, Levels>> points;
  for (const Sample &sample : samples)
    if (contracts(sample)) {
      const Kernel &work = sample.work;
      auto &[sums, counts] =
          points[{ratesName(work.name, work.dtype), {work.m, work.n, work.k}}];
      sums.resize(levelsOf(device), 0);
      counts.resize(levelsOf(device), 0);
      sums[levelOf(device, sample)] +=
          std::log(rate(sample) / device.rates[work.dtype]);
      ++counts[levelOf(device, sample)];
    }
  for (const auto &[key, measured] : points) {
    Levels levels(levelsOf(device), 0);
    for (size_t i = 0; i < levels.size(); ++i)
      if (measured.second[i] > 0)
        levels[i] =
            std::min(1.0, std::exp(measured.first[i] / measured.second[i]));
    complete(levels);
    const auto &[m, n, k] = key.second;
    device.kernels[key.first].shapes.push_back(
        {m, n, k, levels[0], {levels.begin() + 1, levels.end()}});
  }
}

void fitSizes(const std::vector<Sample> &samples, Device &device) {
  // A class that is no kernel itself has what its kernels have together.
  std::map<std::string, std::vector<Rate>> rates, classes;
  for (const Sample &sample : samples) {
    const std::string &name = sample.work.name;
    if (contracts(sample) || kernelClass(name) == "elementwise" ||
        sample.work.bytes <= 0)
      continue;
    const double seconds =
        net(sample, communicates(sample) ? 0 : device.launchSeconds);
    Rate rate{sample.work.bytes, sample.work.bytes / seconds,
              levelOf(device, sample)};
    rates[name].push_back(rate);
    if (!communicates(sample))
      classes[kernelClass(name)].push_back(rate);
  }
  for (auto &[name, points] : rates)
    device.kernels[name].sizes =
        sizePoints(points, communicates({"", {name}}) ? 1 : levelsOf(device));
  for (auto &[name, points] : classes)
    if (!rates.count(name))
      device.kernels[name].sizes = sizePoints(points, levelsOf(device));
}

// flops / rate + bytes / bandwidth(bytes), on a GPU, where they overlap, the
// longer of the two, with a bandwidth for what is small (on a CPU: what fits
// into a cache) and one for what is large: the three numbers with the least sum
// of |log(predicted / measured)|, on a grid of a sixth of an octave. Arithmetic
// is as fast at every distance.
KernelRates fitGenerated(const std::vector<const Sample *> &samples,
                         const Device &measured) {
  Device device = measured;
  constexpr int kSteps = 36;
  const bool overlaps = measured.backend == "cuda";
  const double small = overlaps ? 1 << 20 : 256 << 10; // bytes
  const double large = overlaps ? 64 << 20 : 4 << 20;
  const size_t levels = levelsOf(device);
  device.distances.clear(); // one level at a time
  const std::string &name = samples.front()->work.name;
  double fastest = 0, widest = 0;
  for (const Sample *sample : samples) {
    double time = net(*sample, device.launchSeconds);
    fastest = std::max(fastest, 2 * sample->work.flops / time);
    widest = std::max(widest, 2 * sample->work.bytes / time);
  }
  auto step = [](double most, int i) {
    return most * std::pow(2.0, -double(i) / 6);
  };
  auto error = [&](const KernelRates &rates, size_t level) {
    device.kernels[name] = rates;
    double sum = 0;
    for (const Sample *sample : samples)
      if (levelOf(measured, *sample) == level)
        sum += std::abs(
            std::log(kernelSeconds(device, sample->work) / sample->seconds));
    return sum;
  };
  KernelRates best;
  double least = 1e300;
  for (int r = 0; r < kSteps; ++r) {
    KernelRates rates;
    rates.adds = !overlaps;
    rates.flops = step(fastest, r);
    Levels atSmall, atLarge;
    double total = 0;
    for (size_t level = 0; level < levels; ++level) {
      double here = 1e300;
      atSmall.push_back(0);
      atLarge.push_back(0);
      for (int a = 0; a < kSteps; ++a)
        for (int b = 0; b < kSteps; ++b) {
          rates.sizes = {{small, step(widest, a)}, {large, step(widest, b)}};
          double found = error(rates, level);
          if (found >= here)
            continue;
          here = found;
          atSmall.back() = rates.sizes[0].bandwidth;
          atLarge.back() = rates.sizes[1].bandwidth;
        }
      total += here;
    }
    if (total >= least)
      continue;
    least = total;
    best = rates;
    best.sizes = {{small, atSmall[0], {atSmall.begin() + 1, atSmall.end()}},
                  {large, atLarge[0], {atLarge.begin() + 1, atLarge.end()}}};
  }
  return best;
}

void fitElementwise(const std::vector<Sample> &samples, Device &device) {
  std::map<std::string, std::vector<const Sample *>> used;
  for (const Sample &sample : samples)
    if (kernelClass(sample.work.name) == "elementwise" &&
        sample.work.flops > 0 && sample.work.bytes > 0)
      used[sample.work.name].push_back(&sample);
  for (const auto &[name, list] : used)
    device.kernels[name] = fitGenerated(list, device);
}

} // namespace

Status fitDevice(const std::vector<Sample> &samples, Device &device) {
  device.rates.clear();
  device.kernels.clear();
  device.distances.clear();
  for (const Sample &sample : samples)
    if (sample.distance > 0)
      device.distances.push_back(sample.distance);
  std::sort(device.distances.begin(), device.distances.end());
  device.distances.erase(
      std::unique(device.distances.begin(), device.distances.end()),
      device.distances.end());
  device.launchSeconds = launchOf(samples);
  fitContractions(samples, device);
  fitSizes(samples, device);
  Status status;
  if (device.flops() <= 0)
    status.merge(Status::error("no contraction was measured"));
  auto copies = device.kernels.find("copy");
  if (copies == device.kernels.end() || copies->second.sizes.empty())
    status.merge(Status::error("no copy was measured"));
  if (!status.ok())
    return status;
  const SizePoint &largest = copies->second.sizes.back();
  device.memoryBandwidth =
      largest.farther.empty() ? largest.bandwidth : largest.farther.back();
  fitElementwise(samples, device);
  return status;
}

// Least squares of (latency + bytes / bandwidth) / measured = 1, where no
// message takes longer than a larger one: what disturbed it did.
Result<Link> fitLink(const std::vector<Sample> &samples) {
  std::vector<std::pair<double, double>> transfers; // bytes, seconds
  for (const Sample &sample : samples)
    if (sample.work.name == "transfer" && sample.seconds > 0)
      transfers.emplace_back(sample.work.bytes, sample.seconds);
  std::sort(transfers.rbegin(), transfers.rend());
  double ww = 0, wx = 0, xx = 0, w1 = 0, x1 = 0;
  double least = std::numeric_limits<double>::infinity();
  for (auto [bytes, seconds] : transfers) {
    least = std::min(least, seconds);
    double w = 1 / least, x = bytes / least;
    ww += w * w;
    wx += w * x;
    xx += x * x;
    w1 += w;
    x1 += x;
  }
  double determinant = ww * xx - wx * wx;
  if (transfers.size() < 2 || determinant <= 1e-12 * ww * xx)
    return Status::error("fewer than two sizes of a transfer were measured");
  double latency = (w1 * xx - x1 * wx) / determinant;
  double perByte = (x1 * ww - w1 * wx) / determinant;
  // Below this, a rounding error: all took as long as the largest.
  if (perByte * transfers.front().first <= 1e-6 * least)
    return Status::error("transfers do not take longer with more bytes: other "
                         "work on the machine disturbs them");
  return Link{1 / perByte, std::max(latency, 0.0)};
}

} // namespace merak::costmodel
