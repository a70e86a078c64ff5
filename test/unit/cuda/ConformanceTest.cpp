// The cases of the conformance suite on the CUDA backend over the emulated
// device: every library kernel against its naive reference.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Driver.h"
#include "runtime/backends/cuda/Kernel.h"
#include "test/unit/conformance/Harness.h"
#include "test/unit/cuda/EmulatedDevice.h"
#include "test/unit/cuda/EmulatedFused.h"

#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <set>

namespace merak::conformance {
namespace {

const std::vector<Case> &cases() {
  static const std::vector<Case> all = allCases();
  return all;
}

// Device kernels sum in another order than the references expect of the CPU.
constexpr double kSlack = 4;

std::string difference(const Case &c, const Tensors &found,
                       const Tensors &expected) {
  for (size_t i = 0; i < found.size(); ++i) {
    double magnitude = 1;
    for (double value : expected[i].v)
      if (std::isfinite(value))
        magnitude = std::max(magnitude, std::fabs(value));
    const double bound = c.exact ? 0 : kSlack * c.tolerance * magnitude;
    for (int64_t j = 0; j < found[i].size(); ++j) {
      const double a = found[i].v[j], b = expected[i].v[j];
      if (a == b || (std::isnan(a) && std::isnan(b)) ||
          std::fabs(a - b) <= bound)
        continue;
      return "output " + std::to_string(i) + " element " + std::to_string(j) +
             ": found " + std::to_string(a) + ", expected " +
             std::to_string(b) + ", bound " + std::to_string(bound);
    }
  }
  return {};
}

// MERAK_CUDA_TEST_DEVICE: the ordinal of a GPU to use instead of the emulation.
const char *testDevice() { return std::getenv("MERAK_CUDA_TEST_DEVICE"); }

void setThreads(int threads, bool libraries = true) {
  if (const char *ordinal = testDevice()) {
    auto device = cuda::openDevice(std::atoi(ordinal));
    ASSERT_TRUE(device.ok()) << device.status().str();
    backendMaker() = [device = *device](runtime::ThreadPool &) {
      return std::make_unique<cuda::CudaBackend>(device);
    };
    return;
  }
  backendMaker() = [threads, libraries](runtime::ThreadPool &) {
    return std::make_unique<cuda::CudaBackend>(
        std::make_shared<cuda::EmulatedDevice>(cuda::Emulation{
            .threads = threads, .epilogues = libraries, .fused = libraries}));
  };
}

class CudaConformance : public testing::TestWithParam<size_t> {};

TEST_P(CudaConformance, MatchesReference) {
  const Case &original = cases()[GetParam()];
  for (MemoryLayout layout : kLayouts)
    for (bool accumulate : {false, true}) {
      if (accumulate && original.updates)
        continue;
      Case c = forLayout(original, layout);
      Tensors expected = c.reference(c);
      for (size_t i = 0; i < expected.size(); ++i) {
        roundToType(expected[i]);
        for (int64_t j = 0; accumulate && j < expected[i].size(); ++j)
          if (expected[i].dtype == planpb::BOOL)
            expected[i].v[j] = expected[i].v[j] != 0 || c.outputs[i].v[j] != 0;
          else
            expected[i].v[j] += c.outputs[i].v[j];
        roundToType(expected[i]);
      }
      for (int threads : {1, 3}) {
        // Fibers are slow: two layouts tell what they can.
        if (threads > 1 && testDevice())
          continue;
        if (threads > 1 && layout != MemoryLayout::Dense &&
            layout != MemoryLayout::Padded)
          continue;
        setThreads(threads, threads == 1); // the library refuses, otherwise
        const std::string where = c.name + " " + layoutName(layout) +
                                  (accumulate ? " accumulate" : "") + ", " +
                                  std::to_string(threads) + " threads";
        const Outcome outcome = runCase(c, layout, 1, accumulate);
        ASSERT_TRUE(outcome.status.ok())
            << where << ": " << outcome.status.str();
        EXPECT_TRUE(outcome.gapsUntouched) << where << " writes into gaps";
        ASSERT_EQ(difference(c, outcome.outputs, expected), "") << where;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Emulated, CudaConformance,
                         testing::Range<size_t>(0, cases().size()),
                         [](const auto &info) {
                           std::string name = cases()[info.param].name;
                           for (char &c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c)))
                               c = '_';
                           return name + "_" + std::to_string(info.param);
                         });

// Every case once more with 16 bits in place of f32, within what the eight
// digits of bf16, and the eleven of f16, leave; a gather and its adjoint also
// with a table in f32.
Case lowered(Case c, bool keepTable, planpb::DType half = planpb::BF16) {
  auto lower = [half](Tensor &tensor) {
    if (tensor.dtype != planpb::F32)
      return;
    tensor.dtype = half;
    roundToType(tensor);
  };
  // Statistics and norms are f32 in every plan.
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (!(keepTable && c.op == "gather" && i == 0) &&
        !(c.op == "attention_grad" && i == 4))
      lower(c.inputs[i]);
  for (size_t i = 0; i < c.outputs.size(); ++i)
    if (!(keepTable && c.op == "scatter_add") && c.op != "square_sum" &&
        !(c.op == "attention" && i == 1))
      lower(c.outputs[i]);
  c.tolerance = half == planpb::F16 ? 0.002 : 0.015;
  c.exact = false;
  return c;
}

void takesAll(planpb::DType half) {
  std::set<std::string> tested;
  for (const Case &original : cases())
    for (bool keepTable : {false, true}) {
      // Attention and convolutions both by a library and without.
      setThreads(1, !keepTable);
      const bool table =
          original.op == "gather" || original.op == "scatter_add";
      const bool fuses = original.op.rfind("attention", 0) == 0 ||
                         original.op.rfind("conv", 0) == 0;
      if (original.updates || (keepTable && !table && !fuses))
        continue;
      Case c = forLayout(original, MemoryLayout::Padded);
      c = lowered(c, keepTable, half);
      Tensors expected = c.reference(c);
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i].dtype = c.outputs[i].dtype;
      const Outcome outcome = runCase(c, MemoryLayout::Padded, 1, false);
      ASSERT_TRUE(outcome.status.ok())
          << c.name << ": " << outcome.status.str();
      EXPECT_TRUE(outcome.gapsUntouched) << c.name;
      ASSERT_EQ(difference(c, outcome.outputs, expected), "") << c.name;
      tested.insert(c.op);
    }
  EXPECT_GT(tested.size(), 25u);
}

TEST(CudaKernels, TakeBf16) { takesAll(planpb::BF16); }
TEST(CudaKernels, TakeF16) { takesAll(planpb::F16); }

// As many threads as a tile of columns has, and numbers that lanes and groups
// do not divide.
TEST(CudaKernels, SumDownColumnsWithAnyThreads) {
  if (testDevice())
    GTEST_SKIP() << "a device's blocks have the threads that they have";
  int tested = 0;
  for (const Case &original : cases()) {
    if (original.op.find("_param_grad") == std::string::npos &&
        original.op.rfind("reduce_", 0) != 0 && original.op != "square_sum")
      continue;
    const bool isReal = original.inputs[0].dtype == planpb::F32;
    for (MemoryLayout layout : {MemoryLayout::Dense, MemoryLayout::Reversed})
      for (bool half : {false, true}) {
        if (half && !isReal)
          continue;
        Case c = forLayout(original, layout);
        if (half)
          c = lowered(c, false);
        Tensors expected = c.reference(c);
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i].dtype = c.outputs[i].dtype;
          roundToType(expected[i]);
        }
        for (int threads : {20, 25, 256}) {
          if (threads > 200 && c.inputs[0].size() > 5000)
            continue; // fibers are slow
          setThreads(threads);
          const Outcome outcome = runCase(c, layout, 1, false);
          const std::string where = c.name + " " + layoutName(layout) + ", " +
                                    std::to_string(threads) + " threads";
          ASSERT_TRUE(outcome.status.ok())
              << where << ": " << outcome.status.str();
          EXPECT_TRUE(outcome.gapsUntouched) << where;
          ASSERT_EQ(difference(c, outcome.outputs, expected), "") << where;
          ++tested;
        }
      }
  }
  EXPECT_GT(tested, 100);
}

// 16-bit operands with the gradient of the weight in f32: by the library, which
// has such a kernel or one for 16 bits, or without it.
TEST(CudaKernels, ConvolutionsGiveGradientsInF32) {
  if (testDevice())
    GTEST_SKIP() << "counts what the emulated library runs";
  int tested = 0;
  for (const Case &original : cases()) {
    if (original.op != "conv_grad_weight")
      continue;
    for (MemoryLayout layout : kLayouts)
      for (int way = 0; way < 6; ++way) {
        const bool adds = way >= 3;
        backendMaker() = [way](runtime::ThreadPool &) {
          return std::make_unique<cuda::CudaBackend>(
              std::make_shared<cuda::EmulatedDevice>(
                  cuda::Emulation{.fused = way % 3 > 0, .mixed = way % 3 > 1}));
        };
        Case c = lowered(forLayout(original, layout), false);
        c.outputs[0].dtype = planpb::F32;
        const int before = cuda::fusedRuns();
        Tensors expected = c.reference(c);
        expected[0].dtype = planpb::F32;
        for (int64_t j = 0; adds && j < expected[0].size(); ++j)
          expected[0].v[j] += c.outputs[0].v[j];
        const Outcome outcome = runCase(c, layout, 1, adds);
        ASSERT_TRUE(outcome.status.ok())
            << c.name << ": " << outcome.status.str();
        EXPECT_TRUE(outcome.gapsUntouched) << c.name;
        ASSERT_EQ(difference(c, outcome.outputs, expected), "")
            << c.name << " " << layoutName(layout) << " way " << way;
        if (way % 3 == 0) {
          EXPECT_EQ(cuda::fusedRuns(), before);
        }
        tested += cuda::fusedRuns() - before;
      }
  }
  EXPECT_GT(tested, 4);
}

// Of dense 16-bit operands, all that a library has a kernel for.
TEST(CudaKernels, AreTheLibrarysWhereItHasOne) {
  if (testDevice())
    GTEST_SKIP() << "counts what the emulated library runs";
  setThreads(1);
  for (const Case &original : cases()) {
    const bool attention = original.op.rfind("attention", 0) == 0;
    const bool conv = original.op.rfind("conv", 0) == 0;
    if (!attention && !conv)
      continue;
    const Case c = lowered(original, false);
    auto text = [&](const char *name) {
      auto found = c.attrs.find(name);
      return found == c.attrs.end() ? std::string() : found->second;
    };
    const Shape &q = c.inputs[0].shape, &k = c.inputs[1].shape;
    const bool wanted =
        attention
            ? (text("mask").empty() || text("mask") == "none") &&
                  q[3] % 8 == 0 && elements(q) * elements(k) > 0 &&
                  !(text("causal") == "1" && q[1] > k[1])
            : text("bias") != "1" && c.inputs[0].shape.size() > 3 &&
                  elements(c.inputs[0].shape) * elements(c.inputs[1].shape) *
                          elements(c.outputs[0].shape) >
                      0;
    const int before = cuda::fusedRuns();
    ASSERT_TRUE(runCase(c, MemoryLayout::Dense, 1, false).status.ok());
    EXPECT_EQ(cuda::fusedRuns() - before, wanted ? 1 : 0) << c.name;
    ASSERT_TRUE(runCase(c, MemoryLayout::Unaligned, 1, false).status.ok());
    EXPECT_EQ(cuda::fusedRuns() - before, wanted ? 1 : 0) << c.name;
  }
}

TEST(CudaKernels, IncludeThoseOfTheCpu) {
  for (std::span<const cpu::KernelEntry> group : cpu::allKernels())
    for (const cpu::KernelEntry &entry : group)
      EXPECT_TRUE(cuda::findKernel(entry.name)) << entry.name.text;
}

} // namespace
} // namespace merak::conformance
