// Every library kernel against its naive reference, in every memory layout,
// overwriting and accumulating, with one, two and three threads.
#include "test/unit/conformance/Harness.h"

#include "runtime/backends/cpu/Kernel.h"
#include "runtime/core/DType.h"
#include "runtime/plan/SharedPlaces.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>

namespace merak::conformance {
namespace {

// What a backend does not do, and why. Shown by --gtest_filter=*Unsupported*.
struct Unsupported {
  const char *what, *reason;
};
constexpr Unsupported kUnsupported[] = {
    {"f64 normalisation, attention, convolution, optimizers",
     "no plan holds f64 parameters; einsum, reductions, gather and copies take "
     "f64"},
    {"accumulate on sgd_update, adamw_update and adagrad_update",
     "an update in place has nothing to add to"},
};

const std::vector<Case> &cases() {
  static const std::vector<Case> all = allCases();
  return all;
}

// Exact comparisons aside: |found - expected| <= tolerance * magnitude.
void compare(const Case &c, const Tensors &found, const Tensors &expected,
             const std::string &where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size()) << where;
    double magnitude = 1;
    for (double value : expected[i].v)
      if (std::isfinite(value))
        magnitude = std::max(magnitude, std::fabs(value));
    double bound = c.exact ? 0 : c.tolerance * magnitude;
    for (int64_t j = 0; j < found[i].size(); ++j) {
      double a = found[i].v[j], b = expected[i].v[j];
      bool equal = a == b || (std::isnan(a) && std::isnan(b)) ||
                   std::fabs(a - b) <= bound;
      ASSERT_TRUE(equal) << where << ": output " << i << " element " << j
                         << ": found " << a << ", expected " << b << ", bound "
                         << bound;
    }
  }
}

class Conformance : public testing::TestWithParam<size_t> {};

TEST_P(Conformance, MatchesReference) {
  const Case &original = cases()[GetParam()];
  for (MemoryLayout layout : kLayouts) {
    Case c = forLayout(original, layout);
    Tensors expected = c.reference(c);
    for (Tensor &tensor : expected)
      roundToType(tensor);
    for (bool accumulate : {false, true}) {
      if (accumulate && c.updates)
        continue;
      std::string where =
          c.name + " " + layoutName(layout) + (accumulate ? " accumulate" : "");
      Tensors sum = expected;
      for (size_t i = 0; accumulate && i < sum.size(); ++i)
        for (int64_t j = 0; j < sum[i].size(); ++j) {
          if (sum[i].dtype == planpb::BOOL)
            sum[i].v[j] = sum[i].v[j] != 0 || c.outputs[i].v[j] != 0;
          else
            sum[i].v[j] += c.outputs[i].v[j];
        }
      for (Tensor &tensor : sum)
        roundToType(tensor);
      Outcome first = runCase(c, layout, 1, accumulate);
      ASSERT_TRUE(first.status.ok()) << where << ": " << first.status.str();
      EXPECT_TRUE(first.gapsUntouched) << where << " writes between elements";
      compare(c, first.outputs, sum, where);
      for (int threads : {2, 3}) {
        Outcome other = runCase(c, layout, threads, accumulate);
        ASSERT_TRUE(other.status.ok());
        EXPECT_TRUE(other.bits == first.bits)
            << where << " depends on the number of threads";
        EXPECT_TRUE(other.gapsUntouched) << where;
      }
    }
  }
}

// A copy of a parameter in 16 bits has the bits that converting the parameter
// gives; an update that changes nothing leaves it.
TEST_P(Conformance, CopiesAreRoundedParameters) {
  Case c = cases()[GetParam()];
  const planpb::DType half =
      c.outputs.empty() ? planpb::F32 : c.outputs.back().dtype;
  if (!c.updates || (half != planpb::BF16 && half != planpb::F16))
    return;
  for (MemoryLayout layout : kLayouts) {
    Outcome outcome = runCase(c, layout, 2, false);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.str();
    Tensor rounded{half, outcome.outputs[0].shape, outcome.outputs[0].v};
    roundToType(rounded);
    EXPECT_EQ(outcome.outputs.back().v, rounded.v) << layoutName(layout);
  }
  if (c.attrs.at("clip") == "0")
    return;
  c.inputs[1].v = {std::numeric_limits<double>::quiet_NaN()};
  Outcome outcome = runCase(c, MemoryLayout::Dense, 2, false);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.str();
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    roundToType(c.outputs[i]);
    EXPECT_EQ(outcome.outputs[i].v, c.outputs[i].v);
  }
}

// The first operands in 16 bits and the others as they are: computed in f32,
// and rounded once. Statistics (mean, rstd, lse) are never in 16 bits.
void matchesReferenceIn(planpb::DType half, double tolerance, Case c) {
  const bool isSum = c.op == "square_sum" || c.op == "clip_factor";
  if (c.updates || isSum || c.inputs.empty() || c.outputs.empty() ||
      c.inputs[0].dtype != planpb::F32 || c.outputs[0].dtype != planpb::F32)
    return;
  c.inputs[0].dtype = c.outputs[0].dtype = half;
  if (c.op == "einsum")
    c.inputs[1].dtype = half;
  for (Tensor &tensor : c.inputs)
    roundToType(tensor);
  if (c.derive)
    c.derive(c);
  for (Tensors *tensors : {&c.inputs, &c.outputs})
    for (Tensor &tensor : *tensors)
      roundToType(tensor);
  c.exact = false;
  c.tolerance = tolerance;
  for (bool accumulate : {false, true}) {
    Tensors expected = c.reference(c);
    for (size_t i = 0; accumulate && i < expected.size(); ++i)
      for (int64_t j = 0; j < expected[i].size(); ++j)
        expected[i].v[j] += c.outputs[i].v[j];
    Outcome outcome = runCase(c, MemoryLayout::Padded, 2, accumulate);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.str();
    EXPECT_TRUE(outcome.gapsUntouched);
    compare(c, outcome.outputs, expected,
            c.name + " " + runtime::dtypeName(half));
  }
}

TEST_P(Conformance, MatchesReferenceInBf16) {
  matchesReferenceIn(planpb::BF16, 1e-2, cases()[GetParam()]);
}

TEST_P(Conformance, MatchesReferenceInF16) {
  matchesReferenceIn(planpb::F16, 1.25e-3, cases()[GetParam()]);
}

// A result that may take the place of an operand is the same there, bit for
// bit, in each type and with any number of threads.
TEST_P(Conformance, IsTheSameOverAnOperand) {
  const Case &original = cases()[GetParam()];
  const std::optional<int> over = sharedInput(original.op);
  if (!over)
    return;
  for (planpb::DType type : {planpb::F32, planpb::BF16, planpb::F16})
    for (MemoryLayout layout : {MemoryLayout::Dense, MemoryLayout::Unaligned,
                                MemoryLayout::Padded, MemoryLayout::Reversed}) {
      Case c = forLayout(original, layout);
      Tensor &operand = c.inputs[static_cast<size_t>(*over)];
      operand.dtype = c.outputs[0].dtype = type;
      roundToType(operand);
      Outcome apart = runCase(c, layout, 2, false);
      ASSERT_TRUE(apart.status.ok()) << apart.status.str();
      for (int threads : {1, 3}) {
        Outcome shared = runCase(c, layout, threads, false, *over);
        ASSERT_TRUE(shared.status.ok()) << shared.status.str();
        EXPECT_TRUE(shared.bits == apart.bits)
            << c.name << " " << layoutName(layout) << " "
            << runtime::dtypeName(type);
        EXPECT_TRUE(shared.gapsUntouched);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Conformance,
                         testing::Range<size_t>(0, cases().size()),
                         [](const auto &info) {
                           std::string name = cases()[info.param].name;
                           for (char &c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c)))
                               c = '_';
                           return name + "_" + std::to_string(info.param);
                         });

TEST(ConformanceTable, EveryKernelHasACase) {
  std::set<std::string> tested;
  for (const Case &c : cases())
    tested.insert(c.op);
  for (std::span<const cpu::KernelEntry> group : cpu::allKernels())
    for (const cpu::KernelEntry &entry : group)
      EXPECT_TRUE(tested.count(entry.name))
          << entry.name.text << " has no case";
}

// The rows of the table in docs/Kernels.md start with the names in backquotes
// and end with their class of rates.
std::map<std::string, std::string> documentedRates() {
  std::ifstream file(MERAK_SOURCE_DIR "/docs/Kernels.md");
  EXPECT_TRUE(file.good());
  std::map<std::string, std::string> documented;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0)
      continue;
    std::string names = line.substr(2, line.find(" |") - 2);
    const size_t last = line.rfind("| ", line.size() - 3) + 2;
    std::string rates = line.substr(last, line.rfind(" |") - last);
    for (size_t at = names.find('`'); at != std::string::npos;) {
      size_t end = names.find('`', at + 1);
      documented[names.substr(at + 1, end - at - 1)] = rates;
      at = names.find('`', end + 1);
    }
  }
  return documented;
}

TEST(ConformanceTable, EveryDocumentedKernelExists) {
  const std::map<std::string, std::string> documented = documentedRates();
  EXPECT_EQ(documented.size(), kLibraryKernels.size());
  for (const LibraryKernel &kernel : kLibraryKernels) {
    const std::string name(kernel.name);
    EXPECT_TRUE(cpu::findKernel(name)) << name << " is not implemented";
    auto row = documented.find(name);
    ASSERT_NE(row, documented.end()) << name << " is not documented";
    EXPECT_EQ(row->second, nameOf(kernel.rates)) << name;
  }
}

TEST(ConformanceTable, UnsupportedCasesHaveReasons) {
  for (const Unsupported &entry : kUnsupported)
    std::cout << entry.what << ": " << entry.reason << "\n";
  // The refusals behind the list.
  for (const char *op : {"softmax", "adamw_update", "attention"}) {
    auto found = std::find_if(cases().begin(), cases().end(),
                              [&](const Case &c) { return c.op == op; });
    ASSERT_NE(found, cases().end());
    Case c = *found;
    for (Tensor &tensor : c.inputs)
      tensor.dtype = planpb::F64;
    Outcome outcome = runCase(c, MemoryLayout::Dense, 1, false);
    EXPECT_NE(outcome.status.str().find("of type f32, found f64"),
              std::string::npos)
        << op << ": " << outcome.status.str();
  }
  // Of a parameter itself, and of a copy that is none.
  for (auto [dtype, said] :
       {std::pair(planpb::BF16, "of type f32, found bf16"),
        std::pair(planpb::I32, "in bf16 or f16, found i32")}) {
    auto copied =
        std::find_if(cases().begin(), cases().end(), [](const Case &c) {
          return c.updates && c.outputs.back().dtype == planpb::BF16;
        });
    ASSERT_NE(copied, cases().end());
    Case c = *copied;
    (dtype == planpb::BF16 ? c.outputs.front() : c.outputs.back()).dtype =
        dtype;
    const std::string found =
        runCase(c, MemoryLayout::Dense, 1, false).status.str();
    EXPECT_NE(found.find(said), std::string::npos) << found;
  }
  auto update = std::find_if(cases().begin(), cases().end(),
                             [](const Case &c) { return c.updates; });
  Outcome outcome = runCase(*update, MemoryLayout::Dense, 1, true);
  EXPECT_NE(outcome.status.str().find("cannot accumulate"), std::string::npos);
}

// ------------------------------------------------------------ messages

Status prepareOnly(const Case &c) {
  return runCase(c, MemoryLayout::Dense, 1, false).status;
}

TEST(ConformanceErrors, NameTheOpAndAllProblems) {
  Case c{"bad",
         "layer_norm",
         {{"axis", "5"}, {"epsilon", "x"}},
         {random({2, 3}, 1)},
         {zeros({2, 3}), zeros({2}), zeros({2})}};
  std::string text = prepareOnly(c).str();
  EXPECT_NE(text.find("layer_norm: expected 'axis' in [-2, 2), found 5"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("layer_norm: expected a number for 'epsilon', found 'x'"),
            std::string::npos)
      << text;
}

TEST(ConformanceErrors, UnknownKernel) {
  Case c{"bad", "no_such_kernel", {}, {}, {}};
  EXPECT_EQ(prepareOnly(c).str(),
            "the cpu backend has no library kernel 'no_such_kernel'");
}

TEST(ConformanceErrors, EinsumSizesDiffer) {
  Case c{"bad",
         "einsum",
         {{"equation", "ab,bc->ac"}},
         {random({2, 3}, 1), random({4, 5}, 2)},
         {zeros({2, 5})}};
  EXPECT_EQ(prepareOnly(c).str(),
            "einsum: letter 'b' has size 3 and, in input 1, 4");
}

TEST(ConformanceErrors, SliceOutOfRange) {
  Case c{"bad", "slice", {{"axis", "0"}}, {random({5}, 1)}, {zeros({3})}};
  c.scalars = {runtime::ScalarValue::integer(3)};
  EXPECT_EQ(prepareOnly(c).str(), "slice: begins at 3, expected at most 2");
}

TEST(ConformanceErrors, LabelOutOfRange) {
  Case c{"bad",
         "softmax_cross_entropy",
         {},
         {random({2, 3}, 1), integers({2}, {0, 3})},
         {zeros({2}), zeros({2})}};
  EXPECT_EQ(prepareOnly(c).str(),
            "softmax_cross_entropy: label 3 of row 1 is outside [0, 3)");
}

} // namespace
} // namespace merak::conformance
