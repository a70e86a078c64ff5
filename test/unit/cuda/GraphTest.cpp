// The emulated device captures as the driver does, so that what runs on it
// would run on a GPU: nothing is done before a launch, what a capture forbids
// fails, and what is not ordered shows.
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

namespace merak::cuda {
namespace {

class GraphTest : public testing::Test {
protected:
  void SetUp() override {
    for (Stream *stream : {&first, &second})
      *stream = *device.createStream();
    for (Event *event : {&fork, &join, &outside})
      *event = *device.createEvent();
  }
  void TearDown() override {
    for (Stream stream : {first, second})
      device.destroyStream(stream);
    for (Event event : {fork, join, outside})
      device.destroyEvent(event);
    EXPECT_EQ(device.live(), 0u);
  }
  Status copy(int &to, const int &from, Stream stream) {
    return device.copy(&to, &from, sizeof(int), stream);
  }
  // Begins a capture that both streams are in.
  void beginBoth() {
    ASSERT_TRUE(device.beginCapture(first).ok());
    ASSERT_TRUE(device.record(fork, first).ok());
    ASSERT_TRUE(device.wait(second, fork).ok());
  }
  Result<std::unique_ptr<Graph>> endBoth() {
    EXPECT_TRUE(device.record(join, second).ok());
    EXPECT_TRUE(device.wait(first, join).ok());
    return device.endCapture(first);
  }
  // The capture must have become useless.
  void expectBroken(const std::string &why) {
    EXPECT_FALSE(copy(a, one, first).ok());
    auto graph = device.endCapture(first);
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.status().str(), "the capture is broken: " + why);
    // The stream works again.
    EXPECT_TRUE(copy(b, one, first).ok());
    EXPECT_EQ(b, 1);
    EXPECT_EQ(a, 0);
  }

  EmulatedDevice device;
  Stream first = nullptr, second = nullptr;
  Event fork = nullptr, join = nullptr, outside = nullptr;
  int a = 0, b = 0;
  const int one = 1, two = 2;
};

TEST_F(GraphTest, DoesNothingBeforeItsLaunch) {
  beginBoth();
  ASSERT_TRUE(copy(a, one, first).ok());
  ASSERT_TRUE(copy(b, two, second).ok());
  auto graph = endBoth();
  ASSERT_TRUE(graph.ok()) << graph.status().str();
  EXPECT_EQ((*graph)->operations(), 2u);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 0);
  for (int launch = 0; launch < 3; ++launch) {
    a = b = 0;
    ASSERT_TRUE((*graph)->launch(first).ok());
    EXPECT_EQ(a, 1);
    EXPECT_EQ(b, 2);
  }
}

TEST_F(GraphTest, KeepsTheOrderOfStreamsAndEvents) {
  beginBoth();
  // a = 1; then b = a on the other stream; then a = 2.
  ASSERT_TRUE(copy(a, one, first).ok());
  ASSERT_TRUE(device.record(join, first).ok());
  ASSERT_TRUE(device.wait(second, join).ok());
  ASSERT_TRUE(copy(b, a, second).ok());
  ASSERT_TRUE(device.record(outside, second).ok());
  ASSERT_TRUE(device.wait(first, outside).ok());
  ASSERT_TRUE(copy(a, two, first).ok());
  auto graph = endBoth();
  ASSERT_TRUE(graph.ok()) << graph.status().str();
  for (int launch = 0; launch < 4; ++launch) {
    a = b = 0;
    ASSERT_TRUE((*graph)->launch(first).ok());
    EXPECT_EQ(a, 2);
    EXPECT_EQ(b, 1);
  }
}

TEST_F(GraphTest, AMissingDependencyShows) {
  beginBoth();
  ASSERT_TRUE(copy(a, one, first).ok());
  ASSERT_TRUE(copy(b, a, second).ok()); // waits for nothing
  auto graph = endBoth();
  ASSERT_TRUE(graph.ok());
  int found[2];
  for (int &value : found) {
    a = b = 0;
    ASSERT_TRUE((*graph)->launch(first).ok());
    value = b;
  }
  EXPECT_NE(found[0], found[1]);
}

TEST_F(GraphTest, TheHostMayNotWait) {
  ASSERT_TRUE(device.beginCapture(first).ok());
  EXPECT_FALSE(device.synchronize(first).ok());
  expectBroken("the host waits for a captured stream");
  ASSERT_TRUE(device.beginCapture(first).ok());
  ASSERT_TRUE(device.record(fork, first).ok());
  EXPECT_FALSE(device.synchronizeEvent(fork).ok());
  b = 0;
  expectBroken("the host waits for a captured event");
}

TEST_F(GraphTest, TakesNoMemory) {
  ASSERT_TRUE(device.beginCapture(first).ok());
  EXPECT_FALSE(device.allocate(8).ok());
  expectBroken("memory is taken during a capture");
}

TEST_F(GraphTest, WaitsForNothingFromOutside) {
  ASSERT_TRUE(device.record(outside, second).ok());
  ASSERT_TRUE(device.beginCapture(first).ok());
  EXPECT_FALSE(device.wait(first, outside).ok());
  expectBroken("a captured stream waits for an event from outside");
}

TEST_F(GraphTest, EveryStreamMustBeJoined) {
  beginBoth();
  ASSERT_TRUE(copy(b, two, second).ok());
  auto graph = device.endCapture(first);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().str(), "a captured stream was not joined");
  EXPECT_EQ(b, 0);
}

TEST_F(GraphTest, EventsOfACaptureEndWithIt) {
  beginBoth();
  ASSERT_TRUE(endBoth().ok());
  EXPECT_FALSE(device.wait(second, fork).ok());
  ASSERT_TRUE(device.record(fork, first).ok());
  EXPECT_TRUE(device.wait(second, fork).ok());
}

TEST_F(GraphTest, UpdatesOnlyTheSameKernel) {
  float value = 0;
  FillArgs args;
  args.to = {reinterpret_cast<char *>(&value), Type::F32};
  args.isFloat = true;
  args.real = 1;
  args.loops.count = 1;
  const Grid grid = itemGrid(1, device.info());
  ASSERT_TRUE(device.beginCapture(first).ok());
  ASSERT_TRUE(device.launch(KernelId::Fill, grid, &args, first).ok());
  auto node = device.lastCaptured(first);
  ASSERT_TRUE(node.ok());
  args.real = 7; // the arguments were copied
  auto graph = device.endCapture(first);
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE((*graph)->launch(first).ok());
  EXPECT_EQ(value, 1);
  ASSERT_TRUE((*graph)->update(*node, KernelId::Fill, grid, &args).ok());
  ASSERT_TRUE((*graph)->launch(first).ok());
  EXPECT_EQ(value, 7);
  EXPECT_FALSE((*graph)->update(*node, KernelId::Copy, grid, &args).ok());
}

} // namespace
} // namespace merak::cuda
