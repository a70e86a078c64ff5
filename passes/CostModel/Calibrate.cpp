#include "passes/CostModel/Calibrate.h"

#include <algorithm>
#include <cmath>

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

std::vector<SizePoint>
sizePoints(std::vector<std::pair<double, double>> rates) {
  std::sort(rates.begin(), rates.end());
  std::vector<SizePoint> points;
  for (size_t i = 0; i < rates.size();) {
    // The geometric mean of what was measured at one size.
    double bytes = rates[i].first, sum = 0;
    size_t end = i;
    for (; end < rates.size() && rates[end].first <= bytes * kSameSize; ++end)
      sum += std::log(rates[end].second);
    points.push_back({bytes, std::exp(sum / double(end - i))});
    i = end;
  }
  return points;
}

void fitContractions(const std::vector<Sample> &samples, Device &device) {
  double &peak = device.rates["f32"];
  for (const Sample &sample : samples)
    if (contracts(sample))
      peak =
          std::max(peak, sample.work.flops / net(sample, device.launchSeconds));
  for (const Sample &sample : samples)
    if (contracts(sample)) {
      const Kernel &work = sample.work;
      double rate = work.flops / net(sample, device.launchSeconds);
      device.kernels[work.name].shapes.push_back(
          {work.m, work.n, work.k, std::min(1.0, rate / peak)});
    }
}

void fitSizes(const std::vector<Sample> &samples, Device &device) {
  // A class that is no kernel itself has what its kernels have together.
  std::map<std::string, std::vector<std::pair<double, double>>> rates, classes;
  for (const Sample &sample : samples) {
    const std::string &name = sample.work.name;
    if (contracts(sample) || kernelClass(name) == "elementwise" ||
        sample.work.bytes <= 0)
      continue;
    std::pair<double, double> point(
        sample.work.bytes,
        sample.work.bytes /
            net(sample, communicates(sample) ? 0 : device.launchSeconds));
    rates[name].push_back(point);
    if (!communicates(sample))
      classes[kernelClass(name)].push_back(point);
  }
  for (auto &[name, points] : rates)
    device.kernels[name].sizes = sizePoints(points);
  for (auto &[name, points] : classes)
    if (!rates.count(name))
      device.kernels[name].sizes = sizePoints(points);
}

// flops / rate + bytes / bandwidth(bytes), with a bandwidth for what fits into
// a cache and one for what does not: the three numbers with the least sum of
// |log(predicted / measured)|, on a grid of a sixth of an octave.
KernelRates fitGenerated(const std::vector<const Sample *> &samples,
                         Device device) {
  constexpr double kCached = 256, kUncached = 4096; // bytes, in 1024
  constexpr int kSteps = 36;
  double fastest = 0, widest = 0;
  for (const Sample *sample : samples) {
    double time = net(*sample, device.launchSeconds);
    fastest = std::max(fastest, 2 * sample->work.flops / time);
    widest = std::max(widest, 2 * sample->work.bytes / time);
  }
  auto step = [](double most, int i) {
    return most * std::pow(2.0, -double(i) / 6);
  };
  KernelRates best;
  double least = 1e300;
  for (int r = 0; r < kSteps; ++r)
    for (int a = 0; a < kSteps; ++a)
      for (int b = 0; b < kSteps; ++b) {
        KernelRates rates;
        rates.adds = true;
        rates.flops = step(fastest, r);
        rates.sizes = {{kCached * 1024, step(widest, a)},
                       {kUncached * 1024, step(widest, b)}};
        device.kernels[samples.front()->work.name] = rates;
        double error = 0;
        for (const Sample *sample : samples)
          error += std::abs(
              std::log(kernelSeconds(device, sample->work) / sample->seconds));
        if (error < least) {
          least = error;
          best = rates;
        }
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
  device.memoryBandwidth = copies->second.sizes.back().bandwidth;
  fitElementwise(samples, device);
  return status;
}

// Least squares of (latency + bytes / bandwidth) / measured = 1.
Result<Link> fitLink(const std::vector<Sample> &samples) {
  double ww = 0, wx = 0, xx = 0, w1 = 0, x1 = 0;
  int count = 0;
  for (const Sample &sample : samples) {
    if (sample.work.name != "transfer" || sample.seconds <= 0)
      continue;
    double w = 1 / sample.seconds, x = sample.work.bytes / sample.seconds;
    ww += w * w;
    wx += w * x;
    xx += x * x;
    w1 += w;
    x1 += x;
    ++count;
  }
  double determinant = ww * xx - wx * wx;
  if (count < 2 || determinant <= 1e-12 * ww * xx)
    return Status::error("fewer than two sizes of a transfer were measured");
  double latency = (w1 * xx - x1 * wx) / determinant;
  double perByte = (x1 * ww - w1 * wx) / determinant;
  if (perByte <= 0)
    return Status::error("transfers do not take longer with more bytes");
  return Link{1 / perByte, std::max(latency, 0.0)};
}

} // namespace merak::costmodel
