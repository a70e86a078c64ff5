// A machine is made up, measured by its own formulas, and found again.
#include "passes/CostModel/Calibrate.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace merak::costmodel {
namespace {

Sample measured(const Device &device, Kernel work) {
  return {"", work, kernelSeconds(device, work)};
}

TEST(Calibrate, GivesBackWhatWasMeasured) {
  std::mt19937 random(5);
  auto uniform = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution<double>(
        std::log(low), std::log(high))(random));
  };
  for (int round = 0; round < 10; ++round) {
    Device truth;
    truth.rates["f32"] = uniform(1e9, 1e14);
    truth.memoryBandwidth = uniform(1e9, 1e12);
    truth.launchSeconds = uniform(1e-8, 1e-5);
    std::vector<Sample> samples{measured(truth, {"fill", 0, 1})};
    std::vector<Kernel> works;
    for (double size : {64.0, 256.0, 1024.0})
      for (const char *name : {"einsum:nn", "einsum:tn"}) {
        double efficiency = uniform(0.2, 1);
        truth.kernels[name].shapes.push_back({size, size, 64, efficiency});
        works.push_back({name, 2 * size * size * 64, 0, "f32", size, size, 64});
      }
    for (double bytes : {1e4, 1e6, 1e8})
      for (const char *name : {"copy", "softmax", "adamw_update"}) {
        truth.kernels[name].sizes.push_back({bytes, uniform(1e9, 1e11)});
        works.push_back({name, 0, bytes});
      }
    for (const Kernel &work : works)
      samples.push_back(measured(truth, work));
    Device found;
    ASSERT_EQ(fitDevice(samples, found).str(), "");
    for (const Sample &sample : samples)
      EXPECT_NEAR(kernelSeconds(found, sample.work) / sample.seconds, 1, 0.15)
          << sample.work.name << " " << sample.work.bytes;
    EXPECT_EQ(found.memoryBandwidth,
              found.kernels["copy"].sizes.back().bandwidth);
    // A kernel nobody measured has the rates of its class.
    EXPECT_EQ(findRates(found, "rms_norm"), &found.kernels["rows"]);
  }
}

TEST(Calibrate, GeneratedKernelsAddArithmeticAndMemory) {
  std::mt19937 random(6);
  std::uniform_real_distribution<double> logarithm(0, 1);
  Device truth;
  truth.rates["f32"] = 1e11;
  truth.memoryBandwidth = 1e10;
  truth.launchSeconds = 1e-8;
  KernelRates &rates = truth.kernels["elementwise"];
  rates.adds = true;
  rates.flops = 5e10;
  rates.sizes = {{256 << 10, 8e10}, {4 << 20, 1.5e10}};
  std::vector<Sample> samples{
      measured(truth, {"fill", 0, 1}), measured(truth, {"copy", 0, 1e6}),
      measured(truth, {"einsum:nn", 2e6, 0, "f32", 100, 100, 100})};
  for (int i = 0; i < 40; ++i) {
    double bytes = 1e4 * std::pow(2000.0, logarithm(random));
    samples.push_back(
        measured(truth, {"elementwise", bytes * 4 * logarithm(random), bytes}));
  }
  Device found;
  ASSERT_EQ(fitDevice(samples, found).str(), "");
  double sum = 0;
  for (const Sample &sample : samples)
    if (sample.work.name == "elementwise")
      sum += std::abs(
          std::log(kernelSeconds(found, sample.work) / sample.seconds));
  EXPECT_LT(sum / 40, 0.05);
  EXPECT_TRUE(found.kernels["elementwise"].adds);
}

// A made-up machine whose rates depend on the distance is found again.
TEST(Calibrate, GivesBackWhatWasMeasuredAtEachDistance) {
  std::mt19937 random(9);
  auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int round = 0; round < 5; ++round) {
    Device truth;
    truth.rates["f32"] = 1e11;
    truth.memoryBandwidth = 1e10;
    truth.launchSeconds = 1e-8;
    truth.distances = {1e6, 1e7, 1e8};
    auto slower = [&](double first) {
      double second = first * uniform(0.5, 1);
      return std::vector<double>{second, second * uniform(0.3, 1)};
    };
    std::vector<Kernel> works;
    for (double size : {64.0, 256.0}) {
      double efficiency = uniform(0.5, 1);
      truth.kernels["einsum:nn"].shapes.push_back(
          {size, size, size, efficiency, slower(efficiency)});
      works.push_back(
          {"einsum:nn", 2 * size * size * size, 0, "f32", size, size, size});
    }
    for (double bytes : {1e4, 1e6})
      for (const char *name : {"copy", "softmax"}) {
        double bandwidth = uniform(1e10, 1e11);
        truth.kernels[name].sizes.push_back(
            {bytes, bandwidth, slower(bandwidth)});
        works.push_back({name, 0, bytes});
      }
    KernelRates &generated = truth.kernels["elementwise"];
    generated.adds = true;
    generated.flops = 8e10;
    generated.sizes = {{256 << 10, 8e10, {4e10, 2e10}},
                       {4 << 20, 4e10, {3e10, 1e10}}};
    for (int i = 0; i < 12; ++i) {
      double bytes = 1e5 * std::pow(60.0, uniform(0, 1));
      works.push_back({"elementwise", bytes * uniform(0, 8), bytes});
    }
    std::vector<Sample> samples;
    for (size_t level = 0; level < 3; ++level)
      for (Kernel work : works) {
        work.shares.assign(3, 0);
        work.shares[level] = 1;
        Sample sample = measured(truth, work);
        sample.work.shares.clear();
        sample.distance = truth.distances[level];
        samples.push_back(sample);
      }
    samples.push_back(measured(truth, {"fill", 0, 1}));
    Device found;
    ASSERT_EQ(fitDevice(samples, found).str(), "");
    EXPECT_EQ(found.distances, truth.distances);
    double generatedError = 0;
    for (const Sample &sample : samples) {
      if (sample.distance == 0)
        continue;
      Kernel work = sample.work;
      for (double distance : truth.distances)
        work.shares.push_back(distance == sample.distance);
      double error =
          std::abs(std::log(kernelSeconds(found, work) / sample.seconds));
      if (work.name == "elementwise")
        generatedError += error / 36;
      else
        EXPECT_LT(error, 0.05) << work.name << " " << sample.distance;
    }
    EXPECT_LT(generatedError, 0.08);
  }
}

TEST(Calibrate, LinksAreLatencyAndBandwidth) {
  std::vector<Sample> samples;
  for (double bytes : {256.0, 4096.0, 65536.0, 1048576.0})
    samples.push_back({"", {"transfer", 0, bytes}, 3e-6 + bytes / 2e9});
  Result<Link> link = fitLink(samples);
  ASSERT_TRUE(link.ok());
  EXPECT_NEAR(link->latency, 3e-6, 1e-11);
  EXPECT_NEAR(link->bandwidth, 2e9, 1e3);
  samples.resize(1);
  EXPECT_EQ(fitLink(samples).status().str(),
            "fewer than two sizes of a transfer were measured");
}

TEST(Calibrate, ASmallTransferThatWasDisturbedTakesNoLongerThanALargerOne) {
  std::vector<Sample> samples;
  for (double bytes : {256.0, 4096.0, 65536.0, 1048576.0})
    samples.push_back({"", {"transfer", 0, bytes}, 3e-6 + bytes / 2e9});
  // Waited for a core: longer than a megabyte takes.
  samples[0].seconds = samples[1].seconds = 0.01;
  Result<Link> link = fitLink(samples);
  ASSERT_TRUE(link.ok());
  samples[0].seconds = samples[1].seconds = samples[2].seconds;
  Result<Link> same = fitLink(samples);
  ASSERT_TRUE(same.ok());
  EXPECT_DOUBLE_EQ(link->latency, same->latency);
  EXPECT_DOUBLE_EQ(link->bandwidth, same->bandwidth);
  // Nothing is known of the bandwidth where all were disturbed but the largest.
  for (size_t i = 0; i + 1 < samples.size(); ++i)
    samples[i].seconds = 0.01;
  EXPECT_EQ(fitLink(samples).status().str(),
            "transfers do not take longer with more bytes: other work on the "
            "machine disturbs them");
}

TEST(Calibrate, SaysWhatIsMissing) {
  Device device;
  EXPECT_EQ(fitDevice({{"", {"softmax", 0, 64}, 1e-6}}, device).str(),
            "no contraction was measured\nno copy was measured");
}

} // namespace
} // namespace merak::costmodel
