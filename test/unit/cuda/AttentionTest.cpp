// Attention and its gradient at the sizes of models, in bf16 by the library's
// kernel where it has one, beside the CPU's in f32 on the same numbers. On a
// GPU (MERAK_CUDA_TEST_DEVICE) up to 1024 tokens.
#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Driver.h"
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/core/ThreadPool.h"
#include "runtime/layout/Strides.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

namespace merak::cuda {
namespace {

using runtime::View;

constexpr int64_t kBatch = 2, kHeads = 4;

// q, k and v lie in one tensor [b, t, features], as a packed product leaves
// them, or each in its own; so do their gradients.
struct Example {
  int64_t tokens, size, keyHeads;
  bool causal, packed, masked;
  std::string name() const {
    return fmt::format("t {} d {} key heads {}{}{}{}", tokens, size, keyHeads,
                       causal ? " causal" : "", packed ? " packed" : "",
                       masked ? " masked" : "");
  }
};

// Memory of a test, for one backend; f32 there and here for the CPU, bf16
// on the device. Values are bf16's in both.
class Operands {
public:
  Operands(runtime::Backend &backend, planpb::DType dtype)
      : backend_(backend), dtype_(dtype) {}
  ~Operands() {
    for (void *memory : memory_)
      backend_.release(memory);
  }

  View make(std::vector<int64_t> shape, planpb::DType dtype) {
    View view{nullptr, dtype, shape, layout::denseStrides(shape)};
    auto memory = backend_.allocate(bytes(view));
    EXPECT_TRUE(memory.ok()) << memory.status().str();
    view.data = *memory;
    memory_.push_back(*memory);
    return view;
  }
  View make(std::vector<int64_t> shape) { return make(shape, dtype_); }
  View filled(std::vector<int64_t> shape, unsigned seed, float spread) {
    View view = make(shape);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(view.elements());
    for (float &value : values)
      value = runtime::bf16ToFloat(runtime::floatToBf16(normal(random)));
    write(view, values);
    return view;
  }
  void write(const View &view, const std::vector<float> &values) {
    std::vector<uint16_t> half;
    const void *from = values.data();
    if (view.dtype == planpb::BF16) {
      for (float value : values)
        half.push_back(runtime::floatToBf16(value));
      from = half.data();
    }
    EXPECT_TRUE(
        backend_.copyToDevice(view.data, from, bytes(view), nullptr).ok());
  }
  // Of a dense view.
  std::vector<float> read(const View &view) {
    EXPECT_TRUE(backend_.synchronize(nullptr).ok());
    std::vector<char> raw(bytes(view));
    EXPECT_TRUE(
        backend_.copyToHost(raw.data(), view.data, raw.size(), nullptr).ok());
    std::vector<float> values(view.elements());
    for (size_t i = 0; i < values.size(); ++i)
      if (view.dtype == planpb::BF16) {
        uint16_t half;
        std::memcpy(&half, &raw[2 * i], 2);
        values[i] = runtime::bf16ToFloat(half);
      } else {
        std::memcpy(&values[i], &raw[4 * i], 4);
      }
    return values;
  }

private:
  static uint64_t bytes(const View &view) {
    return uint64_t(view.elements()) * runtime::dtypeSize(view.dtype);
  }
  runtime::Backend &backend_;
  planpb::DType dtype_;
  std::vector<void *> memory_;
};

// Heads of a packed tensor [b, t, f] from feature `begin` on, [b, t, h, d].
View headsOf(const View &packed, int64_t begin, int64_t heads, int64_t size) {
  View view = packed;
  view.data = static_cast<char *>(packed.data) +
              begin * runtime::dtypeSize(packed.dtype);
  view.shape = {packed.shape[0], packed.shape[1], heads, size};
  view.strides = {packed.strides[0], packed.strides[1], size, 1};
  return view;
}

struct Results {
  std::vector<std::vector<float>> values; // out, lse, dq, dk, dv (or packed)
  int fused = 0;
};

void run(runtime::Backend &backend, planpb::Instruction instruction,
         std::vector<View> in, std::vector<View> out, int &fused) {
  instruction.set_kind(planpb::Instruction::LIBRARY);
  auto prepared = backend.prepare(instruction, in, out);
  ASSERT_TRUE(prepared.ok()) << prepared.status().str();
  runtime::KernelCall call;
  call.instruction = &instruction;
  call.prepared = prepared->get();
  call.inputs = in;
  call.outputs = out;
  const Status status = backend.run(call);
  ASSERT_TRUE(status.ok()) << status.str();
  EXPECT_TRUE(backend.synchronize(nullptr).ok());
  if (!backend.isHost())
    fused += static_cast<Kernel *>(prepared->get())->ranFused();
}

Results attend(runtime::Backend &backend, planpb::DType dtype,
               const Example &e) {
  Operands memory(backend, dtype);
  const int64_t width = (kHeads + 2 * e.keyHeads) * e.size;
  const int64_t heads[] = {kHeads, e.keyHeads, e.keyHeads};
  std::vector<View> qkv, grads, whole;
  if (e.packed) {
    const View all = memory.filled({kBatch, e.tokens, width}, 1, 1);
    const View gradient = memory.make({kBatch, e.tokens, width});
    whole = {gradient};
    int64_t begin = 0;
    for (int64_t count : heads) {
      qkv.push_back(headsOf(all, begin, count, e.size));
      grads.push_back(headsOf(gradient, begin, count, e.size));
      begin += count * e.size;
    }
  } else {
    unsigned seed = 2;
    for (int64_t count : heads) {
      qkv.push_back(
          memory.filled({kBatch, e.tokens, count, e.size}, seed++, 1));
      grads.push_back(memory.make({kBatch, e.tokens, count, e.size}));
    }
    whole = grads;
  }
  const View out = memory.make({kBatch, e.tokens, kHeads, e.size});
  const View lse = memory.make({kBatch, kHeads, e.tokens}, planpb::F32);
  const View dout = memory.filled({kBatch, e.tokens, kHeads, e.size}, 9, 1);
  planpb::Instruction instruction;
  auto &attributes = *instruction.mutable_attrs();
  attributes["scale"] = fmt::format("{}", 1 / std::sqrt(double(e.size)));
  attributes["causal"] = e.causal ? "1" : "0";
  attributes["mask"] = e.masked ? "float" : "none";
  std::vector<View> in = qkv, masks;
  if (e.masked) { // the last quarter of the keys of the second sample is
                  // padding
    View mask = memory.make({kBatch, 1, 1, e.tokens});
    std::vector<float> values(mask.elements(), 0);
    for (int64_t j = e.tokens * 3 / 4; j < e.tokens; ++j)
      values[e.tokens + j] = -30000;
    memory.write(mask, values);
    masks = {mask};
  }
  in.insert(in.end(), masks.begin(), masks.end());
  Results results;
  instruction.set_op("attention");
  run(backend, instruction, in, {out, lse}, results.fused);
  in = qkv;
  in.insert(in.end(), {out, lse, dout});
  in.insert(in.end(), masks.begin(), masks.end());
  instruction.set_op("attention_grad");
  run(backend, instruction, in, grads, results.fused);
  results.values = {memory.read(out), memory.read(lse)};
  for (const View &view : whole)
    results.values.push_back(memory.read(view));
  return results;
}

// The length of the difference by that of what is expected.
double error(const std::vector<float> &found,
             const std::vector<float> &expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double(found[i]) - expected[i], 2);
    size += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(difference / size); // not a number where one is found
}

TEST(CudaAttention, IsThatOfTheCpuAtTheSizesOfModels) {
  const char *ordinal = std::getenv("MERAK_CUDA_TEST_DEVICE");
  std::shared_ptr<Device> device = std::make_shared<EmulatedDevice>();
  if (ordinal) {
    auto opened = openDevice(std::atoi(ordinal));
    ASSERT_TRUE(opened.ok()) << opened.status().str();
    device = *opened;
  }
  CudaBackend backend(device);
  runtime::ThreadPool pool(2);
  cpu::CpuBackend reference(pool);
  int fused = 0, all = 0;
  std::string others;
  double worst[3] = {};
  for (int64_t tokens : {64, 128, 256, 1024})
    for (int64_t size : {64, 128})
      for (int way = 0; way < 10; ++way) {
        if (tokens > 64 && !ordinal)
          continue;
        const Example e{tokens,           size,
                        way % 2 ? 2 : 4,  way / 2 % 2 == 1,
                        way / 4 % 2 == 1, way >= 8};
        const Results expected = attend(reference, planpb::F32, e);
        const Results found = attend(backend, planpb::BF16, e);
        ASSERT_FALSE(HasFatalFailure()) << e.name();
        // A backward pass whose last tile of keys is not full is not the
        // library's unless it is causal, and none with a mask of numbers is.
        EXPECT_GE(found.fused,
                  e.masked ? 0 : 1 + (e.causal || e.tokens % 128 == 0))
            << e.name();
        fused += found.fused;
        all += 2;
        if (found.fused < 2)
          others += (others.empty() ? "" : ", ") + e.name();
        ASSERT_EQ(found.values.size(), expected.values.size());
        for (size_t i = 0; i < expected.values.size(); ++i) {
          const double off = error(found.values[i], expected.values[i]);
          // Eight digits of out and its inputs; of gradients, those of the
          // weights between as well. Log-sum-exps are f32.
          const double bounds[] = {5e-3, 1e-4, 1e-2};
          const size_t kind = std::min<size_t>(i, 2);
          EXPECT_LT(off, bounds[kind]) << e.name() << ", result " << i;
          worst[kind] = std::max(worst[kind], off);
        }
      }
  std::printf("attention: %d of %d calls ran fused; errors at most %.2g of "
              "out, %.2g of lse, %.2g of gradients; not fused: %s\n",
              fused, all, worst[0], worst[1], worst[2],
              others.empty() ? "none" : others.c_str());
}

} // namespace
} // namespace merak::cuda
