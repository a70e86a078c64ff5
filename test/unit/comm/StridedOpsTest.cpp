#include "runtime/comm/inproc/StridedOps.h"

#include "test/unit/comm/CommTesting.h"

#include <random>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

// A view of random shape, order of dimensions and gaps into `memory`.
View randomView(std::mt19937 &random, const std::vector<int64_t> &shape,
                std::vector<float> &memory) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  View view{nullptr, planpb::F32, shape, std::vector<int64_t>(shape.size())};
  int64_t stride = 1 + int64_t(random() % 2);
  for (size_t d : order) {
    view.strides[d] = stride;
    stride *= shape[d] + int64_t(random() % 3);
  }
  memory.assign(size_t(stride) + 1, -1);
  view.data = memory.data();
  return view;
}

float &element(const View &view, int64_t i) {
  int64_t offset = 0;
  for (size_t d = view.shape.size(); d-- > 0;) {
    offset += i % view.shape[d] * view.strides[d];
    i /= view.shape[d];
  }
  return static_cast<float *>(view.data)[offset];
}

} // namespace

TEST(StridedOps, RandomViewsAgainstElementwiseLoops) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> shape(random() % 5);
    for (int64_t &size : shape)
      size = 1 + int64_t(random() % 5);
    std::vector<float> memoryA, memoryB, memoryC;
    const View a = randomView(random, shape, memoryA);
    const View b = randomView(random, shape, memoryB);
    const View c = randomView(random, shape, memoryC);
    for (int64_t i = 0; i < a.elements(); ++i) {
      element(a, i) = float(random() % 100);
      element(b, i) = float(random() % 100);
      element(c, i) = 5;
    }
    const int64_t untouched = std::count(memoryC.begin(), memoryC.end(), -1.0f);
    const View both[] = {a, b};
    reduceViews(both, c, false, true);
    for (int64_t i = 0; i < a.elements(); ++i)
      ASSERT_EQ(element(c, i), element(a, i) + element(b, i) + 5);
    reduceViews(both, c, true, false);
    for (int64_t i = 0; i < a.elements(); ++i)
      ASSERT_EQ(element(c, i), std::max(element(a, i), element(b, i)));
    copyViews(a, c, false);
    for (int64_t i = 0; i < a.elements(); ++i)
      ASSERT_EQ(element(c, i), element(a, i));
    ASSERT_EQ(std::count(memoryC.begin(), memoryC.end(), -1.0f), untouched);
  }
}

TEST(StridedOps, EmptyTensorsTouchNothing) {
  float x = 3;
  const View empty{&x, planpb::F32, {2, 0}, {0, 1}};
  copyViews(empty, empty, false);
  reduceViews({&empty, 1}, empty, false, true);
  EXPECT_EQ(x, 3);
}
