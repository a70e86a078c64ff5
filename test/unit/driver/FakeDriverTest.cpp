// The device behind a driver, with a libcuda.so.1 of the test: what is asked of
// it, and what is said about drivers and devices that cannot be used.
#include "runtime/backends/cuda/Driver.h"

#include <cstdlib>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <set>
#include <thread>

namespace merak::cuda {
namespace {

class FakeDriver : public testing::Test {
protected:
  // The program finds it by its name once it is loaded.
  static void SetUpTestSuite() {
    library = dlopen(MERAK_FAKE_DRIVER, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
  }
  Result<std::shared_ptr<Device>> open(const char *settings, int ordinal = 0) {
    setenv("MERAK_FAKE_CUDA", settings, 1);
    return openDevice(ordinal);
  }
  std::string why(const char *settings, int ordinal = 0) {
    auto device = open(settings, ordinal);
    return device.ok() ? "it opens" : device.status().str();
  }
  std::string log() {
    using Log = const char *();
    return reinterpret_cast<Log *>(dlsym(library, "merakFakeLog"))();
  }
  static void *library;
};
void *FakeDriver::library = nullptr;

TEST_F(FakeDriver, SaysWhatCannotBeUsed) {
  EXPECT_EQ(why("devices=0"),
            "the cuda backend needs a GPU: the driver sees none");
  EXPECT_EQ(why("capability=75"),
            "Fake GPU has compute capability 7.5, the kernels need 8.0 or "
            "newer");
  EXPECT_EQ(
      why("version=11080")
          .rfind("the driver knows CUDA 11.8, the kernels were built with ", 0),
      0u);
  EXPECT_EQ(why("devices=2", 2),
            "device 2 was asked for, the driver sees 2 devices");
  EXPECT_EQ(why("capability=80"), "it opens");
  EXPECT_EQ(why("devices=1", 3), "it opens"); // a process that sees only one
}

TEST_F(FakeDriver, MemoryIsCounted) {
  auto device = open("bytes=1000");
  ASSERT_TRUE(device.ok()) << device.status().str();
  EXPECT_EQ(*(*device)->freeBytes(), 1000u);
  auto memory = (*device)->allocate(600);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(*(*device)->freeBytes(), 400u);
  auto more = (*device)->allocate(401);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().str(),
            "cannot allocate 401 bytes on Fake GPU: out of memory");
  (*device)->release(*memory);
  EXPECT_EQ(*(*device)->freeBytes(), 1000u);
}

// The driver's context belongs to a thread; lanes come and go, and each must
// find its own.
TEST_F(FakeDriver, AnyThreadMayCall) {
  auto opened = open("");
  ASSERT_TRUE(opened.ok()) << opened.status().str();
  for (int round = 0; round < 2; ++round)
    std::thread([&device = **opened] {
      auto memory = device.allocate(16);
      ASSERT_TRUE(memory.ok()) << memory.status().str();
      EXPECT_TRUE(device.clear(*memory, 16, nullptr).ok());
      device.release(*memory);
    }).join();
  EXPECT_EQ(*open(""), *opened); // stays open
}

TEST_F(FakeDriver, TimersTellHowLongWorkTook) {
  auto opened = open("");
  ASSERT_TRUE(opened.ok()) << opened.status().str();
  Device &device = **opened;
  const Event plain = *device.createEvent();
  const Event first = *device.createTimer(), second = *device.createTimer();
  ASSERT_TRUE(device.record(plain, nullptr).ok());
  ASSERT_TRUE(device.record(first, nullptr).ok());
  EXPECT_FALSE(device.elapsed(first, second).ok());
  ASSERT_TRUE(device.record(second, nullptr).ok());
  EXPECT_DOUBLE_EQ(*device.elapsed(first, second), 1e-3);
  EXPECT_FALSE(device.elapsed(plain, second).ok());
  for (Event event : {plain, first, second})
    device.destroyEvent(event);
}

TEST_F(FakeDriver, GraphsAreCapturedUpdatedAndLaunched) {
  auto opened = open("");
  ASSERT_TRUE(opened.ok()) << opened.status().str();
  Device &device = **opened;
  auto stream = device.createStream();
  ASSERT_TRUE(stream.ok());
  const Grid grid{1, 32};
  ASSERT_TRUE(
      device.launch(device.function(nullptr, "eager"), grid, 1, {1}, *stream)
          .ok());
  EXPECT_EQ(log(), "eager 1\n");
  ASSERT_TRUE(device.beginCapture(*stream).ok());
  const Function plain = device.function(nullptr, "plain");
  const Function changing = device.function(nullptr, "changing");
  EXPECT_FALSE(device.lastCaptured(*stream).ok());
  ASSERT_TRUE(device.launch(plain, grid, 1, {2}, *stream).ok());
  ASSERT_TRUE(device.launch(changing, grid, 1, {3}, *stream).ok());
  auto node = device.lastCaptured(*stream);
  ASSERT_TRUE(node.ok());
  FillArgs args;
  args.to.data = reinterpret_cast<char *>(4);
  ASSERT_TRUE(device.launch(KernelId::Fill, grid, &args, *stream).ok());
  auto fill = device.lastCaptured(*stream);
  ASSERT_TRUE(fill.ok());
  EXPECT_NE(*fill, *node);
  EXPECT_FALSE(device.synchronize(*stream).ok());
  auto graph = device.endCapture(*stream);
  ASSERT_TRUE(graph.ok()) << graph.status().str();
  EXPECT_EQ(log(), "");
  EXPECT_EQ((*graph)->operations(), 3u);

  auto launched = [&] {
    EXPECT_TRUE((*graph)->launch(*stream).ok());
    const std::string text = log();
    std::set<std::string> lines;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      lines.insert(text.substr(at, end - at));
      at = end + 1;
    }
    return lines;
  };
  using Lines = std::set<std::string>;
  EXPECT_EQ(launched(), (Lines{"plain 2", "changing 3", "merak_Fill 4"}));
  ASSERT_TRUE((*graph)->update(*node, changing, grid, 1, {5}).ok());
  args.to.data = reinterpret_cast<char *>(6);
  ASSERT_TRUE((*graph)->update(*fill, KernelId::Fill, grid, &args).ok());
  EXPECT_EQ(launched(), (Lines{"plain 2", "changing 5", "merak_Fill 6"}));
  EXPECT_FALSE((*graph)->update(*node, plain, grid, 1, {7}).ok());
  graph->reset();
  device.destroyStream(*stream);
}

TEST_F(FakeDriver, StreamsHaveTheHighestPriorityOrTheLowest) {
  auto opened = open("");
  ASSERT_TRUE(opened.ok()) << opened.status().str();
  const Stream usual = *(*opened)->createStream();
  const Stream high = *(*opened)->createStream(Priority::High);
  EXPECT_EQ(*static_cast<int *>(usual), 0);
  EXPECT_EQ(*static_cast<int *>(high), -5);
  (*opened)->destroyStream(usual);
  (*opened)->destroyStream(high);
}

} // namespace
} // namespace merak::cuda
