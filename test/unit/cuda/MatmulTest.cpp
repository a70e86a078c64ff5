// Products planned from einsums: random equations, sizes and strides against
// sums over all letters.
#include "runtime/backends/cuda/Matmul.h"
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/layout/Strides.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace merak::cuda {
namespace {

using runtime::View;

struct Operand {
  std::string letters;
  std::vector<float> memory;
  View view;
};

// Letters in random order, dimensions in another random order in memory, with
// gaps now and then.
Operand makeOperand(std::mt19937 &random, std::string letters,
                    const std::map<char, int64_t> &sizes) {
  Operand operand;
  std::shuffle(letters.begin(), letters.end(), random);
  operand.letters = letters;
  std::vector<size_t> order(letters.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  if (random() % 2)
    std::shuffle(order.begin(), order.end(), random);
  View &view = operand.view;
  view.dtype = planpb::F32;
  for (char c : letters)
    view.shape.push_back(sizes.at(c));
  view.strides.assign(letters.size(), 0);
  int64_t step = random() % 4 == 0 ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    view.strides[order[i]] = step;
    step = step * view.shape[order[i]] + (random() % 4 == 0 ? 3 : 0);
  }
  operand.memory.resize(step + 1);
  for (float &value : operand.memory)
    value = static_cast<float>(int(random() % 17) - 8);
  view.data = operand.memory.data();
  return operand;
}

float &element(Operand &operand, const std::map<char, int64_t> &at) {
  int64_t offset = 0;
  for (size_t d = 0; d < operand.letters.size(); ++d)
    offset += at.at(operand.letters[d]) * operand.view.strides[d];
  return operand.memory[offset];
}

TEST(CudaMatmul, RandomEinsums) {
  std::mt19937 random(7);
  CudaBackend backend(std::make_shared<EmulatedDevice>());
  int copied = 0, batched = 0, looped = 0;
  for (int round = 0; round < 1500; ++round) {
    std::map<char, int64_t> sizes;
    std::string parts[3];
    const std::string groups[] = {"ab", "mn", "xy", "kl"};
    for (int g = 0; g < 4; ++g)
      for (char c : groups[g]) {
        if (random() % 3 == 0)
          continue;
        sizes[c] = 1 + random() % 4;
        if (g != 2)
          parts[0] += c;
        if (g != 1)
          parts[1] += c;
        if (g != 3)
          parts[2] += c;
      }
    Operand operands[3];
    for (int o = 0; o < 3; ++o)
      operands[o] = makeOperand(random, parts[o], sizes);
    const bool accumulate = random() % 2;
    planpb::Instruction instruction;
    instruction.set_kind(planpb::Instruction::LIBRARY);
    instruction.set_op("einsum");
    instruction.set_accumulate(accumulate);
    const std::string equation = operands[0].letters + "," +
                                 operands[1].letters + "->" +
                                 operands[2].letters;
    (*instruction.mutable_attrs())["equation"] = equation;
    (*instruction.mutable_attrs())["alpha"] = "0.5";
    // Whole numbers: every order of summation gives the same.
    Operand expected = operands[2];
    expected.view.data = nullptr;
    std::map<char, int64_t> at;
    for (const auto &[letter, size] : sizes)
      at[letter] = 0;
    if (!accumulate) {
      int64_t count = operands[2].view.elements();
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, offset = 0;
        for (size_t d = expected.letters.size(); d-- > 0;) {
          offset += rest % expected.view.shape[d] * expected.view.strides[d];
          rest /= expected.view.shape[d];
        }
        expected.memory[offset] = 0;
      }
    }
    for (bool more = true; more;) {
      element(expected, at) +=
          0.5f * element(operands[0], at) * element(operands[1], at);
      more = false;
      for (auto &[letter, position] : at) {
        if (++position < sizes[letter]) {
          more = true;
          break;
        }
        position = 0;
      }
    }
    std::vector<View> in = {operands[0].view, operands[1].view};
    std::vector<View> out = {operands[2].view};
    auto prepared = backend.prepare(instruction, in, out);
    ASSERT_TRUE(prepared.ok()) << equation << prepared.status().str();
    runtime::KernelCall call;
    call.instruction = &instruction;
    call.prepared = prepared->get();
    call.inputs = in;
    call.outputs = out;
    call.accumulate = accumulate;
    Status status = backend.run(call);
    ASSERT_TRUE(status.ok()) << equation << ": " << status.str();
    ASSERT_EQ(operands[2].memory, expected.memory)
        << equation << " round " << round;

    cpu::Request request(instruction, in, out);
    cpu::Problem problem;
    ASSERT_TRUE(cpu::readEquation(request, problem));
    const MatmulPlan plan = planMatmul(problem, Type::F32, Type::F32);
    copied += plan.copied[0] || plan.copied[1] || plan.copied[2];
    batched += plan.product.batch > 1;
    looped += plan.steps.size() > 1;
  }
  // The rounds have met every way to run a product.
  EXPECT_GT(copied, 50);
  EXPECT_GT(batched, 50);
  EXPECT_GT(looped, 50);
}

// More products than a dimension of a grid has blocks; the device refuses such
// a batch.
TEST(CudaMatmul, BatchesBeyondAGrid) {
  CudaBackend backend(std::make_shared<EmulatedDevice>());
  const int64_t batch = 2 * kMaxBatch + 5;
  std::vector<float> a(batch * 2), b(batch * 2), out(batch * 4, 0.5f);
  for (int64_t i = 0; i < 2 * batch; ++i) {
    a[i] = static_cast<float>(i % 251);
    b[i] = static_cast<float>(i % 13);
  }
  planpb::Instruction instruction;
  instruction.set_kind(planpb::Instruction::LIBRARY);
  instruction.set_op("einsum");
  instruction.set_accumulate(true);
  (*instruction.mutable_attrs())["equation"] = "bm,bn->bmn";
  std::vector<View> in = {{a.data(), planpb::F32, {batch, 2}, {2, 1}},
                          {b.data(), planpb::F32, {batch, 2}, {2, 1}}};
  std::vector<View> result = {
      {out.data(), planpb::F32, {batch, 2, 2}, {4, 2, 1}}};
  auto prepared = backend.prepare(instruction, in, result);
  ASSERT_TRUE(prepared.ok()) << prepared.status().str();
  Status status = backend.run(
      {&instruction, prepared->get(), in, result, {}, true, nullptr, -1});
  ASSERT_TRUE(status.ok()) << status.str();
  for (int64_t i = 0; i < batch * 4; ++i)
    ASSERT_EQ(out[i], 0.5f + a[i / 4 * 2 + i % 4 / 2] * b[i / 4 * 2 + i % 2])
        << i;
}

cpu::Problem problemOf(const std::string &equation,
                       std::vector<std::vector<int64_t>> shapes) {
  std::vector<View> views;
  for (const std::vector<int64_t> &shape : shapes)
    views.push_back({nullptr, planpb::F32, shape, layout::denseStrides(shape)});
  planpb::Instruction instruction;
  (*instruction.mutable_attrs())["equation"] = equation;
  cpu::Request request(instruction, std::span(views).first(2),
                       std::span(views).subspan(2));
  cpu::Problem problem;
  EXPECT_TRUE(cpu::readEquation(request, problem));
  return problem;
}

// The products of a transformer block run as they lie, each in one call.
TEST(CudaMatmul, TransformerProductsNeedNoCopy) {
  struct Example {
    const char *equation;
    std::vector<std::vector<int64_t>> shapes;
  };
  const Example examples[] = {
      {"btk,kn->btn", {{8, 1024, 768}, {768, 2304}, {8, 1024, 2304}}},
      {"btn,kn->btk", {{8, 1024, 2304}, {768, 2304}, {8, 1024, 768}}},
      {"btk,btn->kn", {{8, 1024, 768}, {8, 1024, 2304}, {768, 2304}}},
      {"btd,vd->btv", {{8, 1024, 768}, {50257, 768}, {8, 1024, 50257}}},
  };
  for (const Example &example : examples) {
    const MatmulPlan plan = planMatmul(
        problemOf(example.equation, example.shapes), Type::BF16, Type::BF16);
    EXPECT_FALSE(plan.copied[0] || plan.copied[1] || plan.copied[2])
        << example.equation;
    EXPECT_EQ(plan.steps.size(), 1u) << example.equation;
    EXPECT_EQ(plan.product.batch, 1) << example.equation;
  }
}

// Products of ragged extents, in pieces: each has extents that the library's
// fast kernels take, or is a rest, and together they give what the whole gives.
TEST(CudaMatmul, RaggedExtentsAreCut) {
  std::mt19937 random(11);
  int cuts = 0, sums = 0;
  for (int round = 0; round < 400; ++round) {
    auto extent = [&] { return 1 + int64_t(random() % 20); };
    MatmulPlan plan;
    Matmul &p = plan.product;
    p.m = extent(), p.n = extent(), p.k = extent();
    p.transA = random() % 2, p.transB = random() % 2;
    auto up = [](int64_t n) { return (n + 7) / 8 * 8; };
    p.lda = up(p.transA ? p.k : p.m);
    p.ldb = up(p.transB ? p.n : p.k);
    p.ldc = up(p.m);
    p.ab = p.c = Type::BF16;
    EXPECT_EQ(hasRaggedExtents(p), p.m % 8 || (p.transB && p.n % 8) ||
                                       ((p.transA || !p.transB) && p.k % 8));
    Matmul other = p;
    other.ldc += 1; // nothing is aligned then
    EXPECT_FALSE(hasRaggedExtents(other));
    other = p;
    other.ab = other.c = Type::F32;
    EXPECT_FALSE(hasRaggedExtents(other));
    p.ab = p.c = Type::F32; // to compute with below
    plan.swapped = random() % 2;
    plan.steps = {{{0, 0, 0}, false, p.m, p.n, p.k}};
    cutRaggedExtents(plan);
    std::vector<float> a(p.lda * (p.transA ? p.m : p.k)),
        b(p.ldb * (p.transB ? p.k : p.n)), whole(p.ldc * p.n), pieces;
    for (std::vector<float> *matrix : {&a, &b})
      for (float &value : *matrix)
        value = static_cast<float>(int(random() % 17) - 8);
    pieces.assign(whole.size(), 0);
    EmulatedDevice device;
    char workspace = 0;
    auto run = [&](const Matmul &product, const int64_t *offsets, bool adds,
                   std::vector<float> &out) {
      const int64_t atA = offsets[plan.swapped ? 1 : 0];
      const int64_t atB = offsets[plan.swapped ? 0 : 1];
      MatmulCall call;
      call.a = a.data() + atA;
      call.b = b.data() + atB;
      call.c = out.data() + offsets[2];
      call.beta = adds ? 1 : 0;
      ASSERT_TRUE(device.matmul(product, call, &workspace, nullptr).ok());
    };
    const int64_t none[3] = {0, 0, 0};
    run(p, none, false, whole);
    for (const MatmulPlan::Step &step : plan.steps) {
      run(plan.of(step), step.offsets, step.adds, pieces);
      for (int64_t size : {step.m, step.n, step.k})
        EXPECT_GE(size, 1);
      sums += step.adds;
    }
    EXPECT_EQ(pieces, whole) << "round " << round;
    cuts += plan.steps.size() > 1;
    // The first piece of rows and columns, the last of sums.
    const MatmulPlan::Step &large = *std::max_element(
        plan.steps.begin(), plan.steps.end(), [](const auto &x, const auto &y) {
          return x.m * x.n * x.k < y.m * y.n * y.k;
        });
    Matmul aligned = plan.of(large);
    aligned.ab = Type::BF16;
    if (p.m >= 8 && p.n >= 8 && p.k >= 8) {
      EXPECT_FALSE(hasRaggedExtents(aligned)) << "round " << round;
    }
  }
  EXPECT_GT(cuts, 100);
  EXPECT_GT(sums, 50);
}

// Factors of 8 bits lie along what is summed over, whichever way they came;
// what is no multiple of 16 is not for the library.
TEST(CudaMatmul, FactorsOfEightBits) {
  for (const char *equation :
       {"btk,kn->btn", "btn,kn->btk", "btk,btn->kn", "btk,btn->nk"})
    for (int64_t b : {1, 3})
      for (int64_t size : {16, 24, 48}) {
        std::map<char, int64_t> sizes = {
            {'b', b}, {'t', 16}, {'k', size}, {'n', 32}};
        const std::string text = equation;
        std::vector<std::vector<int64_t>> shapes(1);
        for (char c : text)
          if (sizes.count(c))
            shapes.back().push_back(sizes[c]);
          else if (c != '>')
            shapes.emplace_back();
        MatmulPlan plan = planMatmul(problemOf(text, shapes), Type::BF16,
                                     Type::F32, 3, /*sumsLast=*/true);
        const bool takes = toEight(plan, Eight::E5M2, Eight::E4M3);
        const Matmul &p = plan.product;
        EXPECT_EQ(takes, size % 16 == 0) << equation << " " << size;
        EXPECT_EQ(plan.steps.size(), 1u);
        EXPECT_TRUE(p.transA && !p.transB) << equation;
        EXPECT_EQ(p.lda, p.k);
        EXPECT_EQ(p.ldb, p.k);
        EXPECT_EQ(p.a8, plan.swapped ? Eight::E4M3 : Eight::E5M2);
        EXPECT_EQ(p.b8, plan.swapped ? Eight::E5M2 : Eight::E4M3);
      }
  // Loops outside of the product begin at multiples of 16 bytes, too.
  MatmulPlan plan = planMatmul(
      problemOf("etk,ekn->ten", {{3, 16, 32}, {3, 32, 16}, {16, 3, 16}}),
      Type::BF16, Type::BF16, 3, true);
  EXPECT_TRUE(toEight(plan, Eight::E4M3, Eight::E4M3));
  EXPECT_EQ(plan.product.batch, 3);
  plan.product.ldc += 4;
  EXPECT_FALSE(toEight(plan, Eight::E4M3, Eight::E4M3));
}

class EightBits : public EmulatedDevice {
public:
  explicit EightBits(bool has) : EmulatedDevice({.epilogues = has}) {}
  using EmulatedDevice::launch;
  Status launch(KernelId kernel, Grid grid, const void *args,
                Stream stream) override {
    turned += kernel == KernelId::RoundTurned;
    return EmulatedDevice::launch(kernel, grid, args, stream);
  }
  Status matmul(const Matmul &problem, const MatmulCall &call, void *workspace,
                Stream stream) override {
    ++(problem.isEight() ? eight : wide);
    return EmulatedDevice::matmul(problem, call, workspace, stream);
  }
  int eight = 0, wide = 0, turned = 0;
};

// A library that has them multiplies numbers of 8 bits, in which a weight is
// turned; one that has none, and sizes that are no multiples of 16, the same
// numbers in wider types. Both give the same.
TEST(CudaMatmul, MultipliesEightBitsWhereItCan) {
  for (int64_t k : {32, 40}) {
    std::vector<float> a(size_t(16 * k)), b(size_t(k * 48)), results[2];
    std::mt19937 random(3);
    for (std::vector<float> *values : {&a, &b})
      for (float &value : *values)
        value = float(int(random() % 401) - 200) / 64;
    for (bool has : {true, false}) {
      std::vector<float> &out = results[has];
      out.resize(16 * 48);
      auto device = std::make_shared<EightBits>(has);
      CudaBackend backend(device);
      runtime::StreamHandle stream = *backend.createStream();
      auto viewOf = [](std::vector<float> &values, std::vector<int64_t> shape) {
        return View{values.data(), planpb::F32, shape,
                    layout::denseStrides(shape)};
      };
      const std::vector<View> in = {viewOf(a, {16, k}), viewOf(b, {k, 48})};
      const std::vector<View> outs = {viewOf(out, {16, 48})};
      planpb::Instruction instruction;
      instruction.set_kind(planpb::Instruction::LIBRARY);
      instruction.set_op("einsum");
      (*instruction.mutable_attrs())["equation"] = "tk,kn->tn";
      (*instruction.mutable_attrs())["rounds"] = "e5m2,e4m3";
      auto prepared = backend.prepare(instruction, in, outs);
      ASSERT_TRUE(prepared.ok()) << prepared.status().str();
      const Status status = backend.run({&instruction,
                                         prepared->get(),
                                         in,
                                         outs,
                                         {},
                                         false,
                                         stream,
                                         -1,
                                         false});
      ASSERT_TRUE(status.ok()) << status.str();
      ASSERT_TRUE(backend.synchronize(stream).ok());
      backend.destroyStream(stream);
      const bool eight = has && k == 32;
      EXPECT_EQ(device->eight, eight ? 1 : 0);
      EXPECT_EQ(device->wide, eight ? 0 : 1);
      EXPECT_EQ(device->turned, eight ? 1 : 0);
    }
    EXPECT_EQ(results[0], results[1]); // sums of few digits are exact
  }
}

// The products of a transformer block end with their bias and GELU; those that
// cuBLASLt could not end so are left alone.
TEST(CudaMatmul, EpiloguesOfATransformer) {
  using cpu::Epilogue;
  auto ends = [](std::vector<int64_t> out, Epilogue epilogue,
                 std::vector<int64_t> biasStrides, int64_t ldAux) {
    const std::vector<int64_t> dense = layout::denseStrides(out);
    const cpu::Problem problem =
        problemOf("btk,kn->btn", {{out[0], out[1], 96}, {96, out[2]}, out});
    std::vector<int64_t> aux = dense;
    for (int64_t &stride : aux)
      stride = stride == 1 ? 1 : stride / out[2] * ldAux;
    Matmul product;
    const MatmulPlan plan = planMatmul(problem, Type::BF16, Type::BF16);
    const bool done = addEpilogue(
        plan, epilogue, cpu::Nest(out, {dense, biasStrides, aux}), product);
    if (done) {
      EXPECT_EQ(product.m, out[2]);
      EXPECT_EQ(product.n, out[0] * out[1]);
      EXPECT_EQ(product.hasEpilogue(), true);
    }
    return done;
  };
  const std::vector<int64_t> out = {4, 64, 384}, bias = {0, 0, 1};
  EXPECT_TRUE(ends(out, {true, Epilogue::None}, bias, 384));
  EXPECT_TRUE(ends(out, {true, Epilogue::Keep}, bias, 384));
  EXPECT_TRUE(ends(out, {true, Epilogue::Keep}, bias, 400));
  EXPECT_TRUE(ends(out, {false, Epilogue::Gradient}, {0, 0, 0}, 384));
  EXPECT_TRUE(ends(out, {false, Epilogue::Forward}, {0, 0, 0}, 384));
  // A bias for each token; rows of the argument that begin anywhere.
  EXPECT_FALSE(ends(out, {true, Epilogue::None}, {0, 1, 0}, 384));
  EXPECT_FALSE(ends(out, {true, Epilogue::Keep}, bias, 387));
  EXPECT_FALSE(ends({4, 64, 387}, {false, Epilogue::Gradient}, {0, 0, 0}, 387));
}

// The gradient of a bias, the sum of dy [b, t, n] over tokens, as rows or
// columns of the product for the gradient of its weight.
TEST(CudaMatmul, SumsBesideTheGradientOfAWeight) {
  const std::vector<std::vector<int64_t>> shapes = {
      {4, 64, 96}, {4, 64, 384}, {96, 384}};
  const std::vector<int64_t> size = {384}, one = {1}, two = {2};
  const cpu::Nest kept(size, {one, one}), apart(size, {one, two});
  Matmul product;
  MatmulPlan plan =
      planMatmul(problemOf("btk,btn->kn", shapes), Type::BF16, Type::F32);
  ASSERT_TRUE(addSums(plan, 1, kept, 256, product));
  EXPECT_TRUE(product.sumsA && !product.sumsB && product.hasEpilogue());
  EXPECT_EQ(product.m, 384);
  EXPECT_FALSE(addSums(plan, 1, kept, 64, product));   // of other elements
  EXPECT_FALSE(addSums(plan, 1, apart, 256, product)); // not packed
  EXPECT_FALSE(addSums(plan, 0, kept, 256, product));  // the other factor's
  plan = planMatmul(problemOf("btk,btn->nk", {shapes[0], shapes[1], {384, 96}}),
                    Type::BF16, Type::F32);
  ASSERT_TRUE(addSums(plan, 1, kept, 256, product));
  EXPECT_TRUE(product.sumsB && !product.sumsA);
  EXPECT_EQ(product.n, 384);
}

TEST(CudaGeometry, FillsTheDeviceAndNoMore) {
  const DeviceInfo info{"", 9, 0, 132};
  EXPECT_EQ(itemGrid(0, info).blocks, 0);
  EXPECT_EQ(itemGrid(1, info).blocks, 1);
  EXPECT_EQ(itemGrid(257, info).blocks, 2);
  EXPECT_EQ(itemGrid(int64_t{1} << 40, info).blocks, 132 * 16 * 8);
  EXPECT_EQ(rowGrid(0, 5, info).blocks, 0);
  EXPECT_EQ(rowGrid(7, 5, info).threads, 32);
  EXPECT_EQ(rowGrid(7, 0, info).threads, 32);
  EXPECT_EQ(rowGrid(7, 100, info).threads, 128);
  EXPECT_EQ(rowGrid(7, 50257, info).threads, 512);
  EXPECT_EQ(pieceCount(1, 10, 512, info), 1);
  EXPECT_GT(pieceCount(768, 8192, 1, info), 32);
  EXPECT_EQ(pieceCount(int64_t{1} << 30, 8192, 1, info), 1);
  // 1600 columns are 200 packs of bf16, 13 tiles: two blocks a processor, or
  // with an element a lane eight.
  EXPECT_EQ(tileCount(200, kPackLanes), 13);
  EXPECT_EQ(tilePieceCount(13, 8192, 2, info), 2 * 132 / 13);
  EXPECT_EQ(tilePieceCount(50, 8192, 8, info), 8 * 132 / 50);
  EXPECT_EQ(tilePieceCount(7, 130, 2, info), 2);
  EXPECT_EQ(tilePieceCount(0, 0, 2, info), 1);
  EXPECT_EQ(tilePieceCount(100000, 8192, 2, info), 1);
  EXPECT_EQ(tilePieceCount(160, 8192, 2, info), 1);
  // A second stage has a group for each piece.
  EXPECT_EQ(finishLanes(1), 32);
  EXPECT_EQ(kTileThreads / finishLanes(20), 32);
}

} // namespace
} // namespace merak::cuda
