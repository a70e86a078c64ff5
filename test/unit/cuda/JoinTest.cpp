// Calls that follow each other are joined to one launch, and give what they
// give one by one.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/layout/Strides.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

namespace merak::cuda {
namespace {

using runtime::KernelCall;
using runtime::ScalarValue;
using runtime::View;

class CountingDevice : public EmulatedDevice {
public:
  using EmulatedDevice::launch;
  Status launch(KernelId kernel, Grid grid, const void *args,
                Stream stream) override {
    ++launches[kernel];
    return EmulatedDevice::launch(kernel, grid, args, stream);
  }
  std::map<KernelId, int> launches;
};

// One instruction, with operands in memory of its own.
struct Step {
  planpb::Instruction instruction;
  std::vector<View> inputs, outputs;
  std::vector<ScalarValue> scalars;
  std::unique_ptr<runtime::Prepared> prepared;
};

class JoinTest : public testing::Test {
protected:
  JoinTest()
      : device(std::make_shared<CountingDevice>()), backend(device),
        stream(*backend.createStream()) {
    memory.reserve(kFloats);
    std::mt19937 random(7);
    std::uniform_real_distribution<float> value(0.1f, 1);
    for (size_t i = 0; i < kFloats; ++i)
      memory.push_back(value(random));
    original = memory;
  }
  ~JoinTest() override { backend.destroyStream(stream); }

  // Floats behind those that were given away; `shift`: from the next pack.
  View floats(std::vector<int64_t> shape, int64_t shift = 0) {
    int64_t count = 1;
    for (int64_t size : shape)
      count *= size;
    auto first = reinterpret_cast<uintptr_t>(memory.data() + used);
    first = (first + 15) / 16 * 16 + uintptr_t(shift) * 4;
    auto *data = reinterpret_cast<float *>(first);
    used = size_t(data + count - memory.data());
    EXPECT_LE(used, kFloats);
    return {data, planpb::F32, shape, layout::denseStrides(shape)};
  }
  void step(const std::string &op, std::vector<View> inputs,
            std::vector<View> outputs, std::vector<ScalarValue> scalars = {},
            std::map<std::string, std::string> attrs = {}) {
    Step made;
    made.instruction.set_kind(planpb::Instruction::LIBRARY);
    made.instruction.set_op(op);
    for (const ScalarValue &scalar : scalars)
      if (scalar.isFloat && op != "fill")
        made.instruction.add_scalars()->set_runtime("lr");
      else if (scalar.isFloat)
        made.instruction.add_scalars()->set_f(scalar.f);
      else
        made.instruction.add_scalars()->set_runtime("step");
    for (const auto &[key, value] : attrs)
      (*made.instruction.mutable_attrs())[key] = value;
    made.inputs = std::move(inputs);
    made.outputs = std::move(outputs);
    made.scalars = std::move(scalars);
    std::vector<View> in = made.inputs, out = made.outputs;
    for (std::vector<View> *views : {&in, &out})
      for (View &view : *views)
        view.data = nullptr;
    auto prepared = backend.prepare(made.instruction, in, out);
    ASSERT_TRUE(prepared.ok()) << prepared.status().str();
    made.prepared = std::move(*prepared);
    steps.push_back(std::move(made));
  }
  KernelCall callOf(size_t i, int changes, bool followed) {
    Step &s = steps[i];
    return {&s.instruction, s.prepared.get(), s.inputs, s.outputs, s.scalars,
            false,          stream,           changes,  followed};
  }
  void adam(int64_t count, double decay = 0.1, int64_t shift = 0) {
    const View grad = floats({count}, shift), param = floats({count}, shift);
    const View first = floats({count}, shift), second = floats({count}, shift);
    step("adamw_update", {grad}, {param, first, second},
         {ScalarValue::real(0.01), ScalarValue::integer(3)},
         {{"beta1", "0.9"},
          {"beta2", "0.99"},
          {"eps", "1e-8"},
          {"weight_decay", std::to_string(decay)}});
  }
  // One whose parameter has a copy in 16 bits.
  void copied(int64_t count, planpb::DType dtype, int64_t shift = 0) {
    adam(count);
    Step whole = std::move(steps.back());
    steps.pop_back();
    View copy = floats({count}, shift);
    copy.dtype = dtype;
    whole.outputs.push_back(copy);
    std::map<std::string, std::string> attrs(whole.instruction.attrs().begin(),
                                             whole.instruction.attrs().end());
    step("adamw_update", whole.inputs, whole.outputs, whole.scalars, attrs);
  }
  // All steps as they would be run, and what memory holds then.
  std::vector<float> run(bool followed) {
    std::copy(original.begin(), original.end(), memory.begin());
    device->launches.clear();
    for (size_t i = 0; i < steps.size(); ++i) {
      const Status status =
          backend.run(callOf(i, -1, followed && i + 1 < steps.size()));
      EXPECT_TRUE(status.ok()) << status.str();
    }
    EXPECT_TRUE(backend.synchronize(stream).ok());
    return memory;
  }
  // Runs both ways; how often the kernel was launched the joined way.
  int joined(KernelId kernel) {
    const std::vector<float> alone = run(false), together = run(true);
    EXPECT_EQ(std::memcmp(alone.data(), together.data(), kFloats * 4), 0);
    EXPECT_NE(std::memcmp(alone.data(), original.data(), kFloats * 4), 0);
    return device->launches[kernel];
  }

  static constexpr size_t kFloats = 1 << 20;
  std::shared_ptr<CountingDevice> device;
  CudaBackend backend;
  runtime::StreamHandle stream;
  std::vector<float> memory, original;
  size_t used = 0;
  std::vector<Step> steps;
};

TEST_F(JoinTest, UpdatesOfManyTensors) {
  for (int i = 0; i < 130; ++i)
    adam(i % 5 == 4 ? 4096 + i : i);
  EXPECT_EQ(joined(KernelId::JoinedAdamW), 3); // 64 tensors each
}

TEST_F(JoinTest, UpdatesWithCopiesAndWithout) {
  for (int i = 0; i < 100; ++i)
    if (i % 3 == 0)
      adam(100 + i);
    else
      copied(i % 5 == 4 ? 4096 + i : i, planpb::BF16);
  EXPECT_EQ(joined(KernelId::JoinedAdamW), 2); // 64 tensors each
  copied(9, planpb::F16);
  adam(9);
  copied(9, planpb::BF16);
  EXPECT_EQ(joined(KernelId::JoinedAdamW), 4); // copies of one type each
  copied(100, planpb::BF16, 1);
  copied(100, planpb::BF16);
  EXPECT_EQ(joined(KernelId::JoinedAdamW), 5);
  EXPECT_EQ(device->launches[KernelId::AdamW], 1);
  for (const Step &s : steps)
    for (int64_t i = 0; s.outputs.size() > 3 && i < s.outputs[3].shape[0];
         ++i) {
      const float param = static_cast<float *>(s.outputs[0].data)[i];
      ASSERT_EQ(static_cast<uint16_t *>(s.outputs[3].data)[i],
                s.outputs[3].dtype == planpb::BF16
                    ? runtime::floatToBf16(param)
                    : runtime::floatToF16(param));
    }
}

TEST_F(JoinTest, UpdatesOfOneKindOnly) {
  for (double decay : {0.1, 0.1, 0.0, 0.0, 0.0, 0.1})
    adam(100, decay);
  EXPECT_EQ(joined(KernelId::JoinedAdamW), 3);
}

TEST_F(JoinTest, WhatDoesNotLieInPacksIsByItself) {
  adam(100);
  adam(100, 0.1, 1);
  adam(100);
  adam(100);
  EXPECT_EQ(joined(KernelId::JoinedAdamW), 2);
  EXPECT_EQ(device->launches[KernelId::AdamW], 1);
}

// The two ways to update are one in what they compute.
TEST_F(JoinTest, PacksChangeNoBits) {
  adam(1000);
  adam(1000, 0.1, 1);
  for (const auto &views : {&Step::inputs, &Step::outputs})
    for (size_t i = 0; i < (steps[0].*views).size(); ++i)
      std::memcpy(
          &original[size_t(static_cast<float *>((steps[1].*views)[i].data) -
                           memory.data())],
          &original[size_t(static_cast<float *>((steps[0].*views)[i].data) -
                           memory.data())],
          4000);
  run(false);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(
        std::memcmp(steps[0].outputs[i].data, steps[1].outputs[i].data, 4000),
        0);
}

TEST_F(JoinTest, SumsOfSquares) {
  const View sums = floats({100});
  for (int i = 0; i < 100; ++i) {
    View sum = sums;
    sum.data = static_cast<float *>(sums.data) + i;
    sum.shape = sum.strides = {};
    step("square_sum", {floats({i % 7 == 0 ? 20000 : 3 * i})}, {sum});
  }
  EXPECT_EQ(joined(KernelId::SquareSums), 2); // 96 tensors each
  EXPECT_EQ(device->launches[KernelId::SquareSumsFinish], 2);
  double expected = 0;
  for (int64_t i = 0; i < 20000; ++i) {
    const double x = static_cast<float *>(steps[7].inputs[0].data)[i];
    expected += x * x;
  }
  EXPECT_FLOAT_EQ(static_cast<float *>(sums.data)[7], float(expected));
}

TEST_F(JoinTest, NotWhatReadsWhatAnotherWrites) {
  const View first = floats({}), second = floats({}), x = floats({50});
  step("square_sum", {x}, {first});
  step("square_sum", {first}, {second});
  EXPECT_EQ(joined(KernelId::SquareSums), 2);
}

TEST_F(JoinTest, Fills) {
  for (double value : {0.0, 0.0, 0.0, 1.5, 1.5})
    step("fill", {}, {floats({7, 4099})}, {ScalarValue::real(value)});
  step("fill", {}, {floats({33}, 2)}, {ScalarValue::real(1.5)});
  EXPECT_EQ(joined(KernelId::FillDense), 2);
  EXPECT_EQ(device->launches[KernelId::Fill], 1);
  EXPECT_EQ(static_cast<float *>(steps[4].outputs[0].data)[7 * 4099 - 1], 1.5f);
}

// What changes from step to step is changed in the one operation of all.
TEST_F(JoinTest, InGraphs) {
  for (int i = 1; i < 70; ++i)
    adam(i);
  step("fill", {}, {floats({5})}, {ScalarValue::real(0)});
  step("fill", {}, {floats({5})}, {ScalarValue::real(0)});
  adam(5);
  auto changes = [&](size_t i) { return i < 69 ? int(i) : i == 71 ? 69 : -1; };
  auto setRate = [&](double lr, int64_t number) {
    for (Step &s : steps)
      if (s.scalars.size() == 2)
        s.scalars = {ScalarValue::real(lr), ScalarValue::integer(number)};
  };
  ASSERT_TRUE(backend.takeWorkspaces(nullptr).ok());
  setRate(0, 1); // decay has no effect now
  ASSERT_TRUE(backend.beginCapture(stream).ok());
  for (size_t i = 0; i < steps.size(); ++i)
    ASSERT_TRUE(backend.run(callOf(i, changes(i), i + 1 < steps.size())).ok());
  auto graph = backend.endCapture(stream);
  ASSERT_TRUE(graph.ok()) << graph.status().str();
  EXPECT_EQ((*graph)->operations(), 4u);
  EXPECT_EQ(std::memcmp(memory.data(), original.data(), kFloats * 4), 0);
  for (int64_t number = 1; number < 4; ++number) {
    setRate(0.1 * double(number), number);
    const std::vector<float> expected = run(false);
    std::copy(original.begin(), original.end(), memory.begin());
    for (size_t i = 0; i < steps.size(); ++i)
      if (changes(i) >= 0) {
        const Status status = (*graph)->update(callOf(i, changes(i), false));
        ASSERT_TRUE(status.ok()) << status.str();
      }
    ASSERT_TRUE((*graph)->launch(stream).ok());
    ASSERT_TRUE(backend.synchronize(stream).ok());
    EXPECT_EQ(std::memcmp(memory.data(), expected.data(), kFloats * 4), 0);
  }
}

// What waited when a capture or a step failed is never done.
TEST_F(JoinTest, NothingIsLeftOfWhatFailed) {
  adam(10);
  ASSERT_TRUE(backend.beginCapture(stream).ok());
  ASSERT_TRUE(backend.run(callOf(0, 0, true)).ok());
  auto graph = backend.endCapture(stream);
  ASSERT_TRUE(backend.run(callOf(0, -1, true)).ok());
  ASSERT_TRUE(backend.synchronize(stream).ok());
  EXPECT_EQ(std::memcmp(memory.data(), original.data(), kFloats * 4), 0);
  ASSERT_TRUE(backend.run(callOf(0, -1, false)).ok());
  ASSERT_TRUE(backend.synchronize(stream).ok());
  EXPECT_EQ(device->launches[KernelId::JoinedAdamW], 1);
}

} // namespace
} // namespace merak::cuda
