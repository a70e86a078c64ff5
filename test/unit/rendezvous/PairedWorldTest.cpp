// Two transports between the same processes: each has its memory, both one
// store.
#include "runtime/comm/rendezvous/PairedWorld.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/HostMemory.h"
#include "test/unit/rendezvous/StoreTesting.h"

#include <gtest/gtest.h>

namespace merak::runtime::test {
namespace {

// Says which transport was asked.
class NamedWorld : public ProcessWorld {
public:
  NamedWorld(std::unique_ptr<Store> store, std::string name)
      : ProcessWorld(std::move(store)), name_(std::move(name)) {}
  Result<std::unique_ptr<Communicator>> communicator(int, Backend &) override {
    return Status::error(name_);
  }

private:
  std::string name_;
};

// Of a device, of which nobody asks anything.
class DeviceMemory final : public Backend {
public:
  const char *name() const override { return "device"; }
  bool isHost() const override { return false; }
  Result<void *> allocate(uint64_t) override { return none(); }
  void release(void *) override {}
  Status copyToDevice(void *, const void *, uint64_t, StreamHandle) override {
    return none();
  }
  Status copyToHost(void *, const void *, uint64_t, StreamHandle) override {
    return none();
  }
  Status clear(void *, uint64_t, StreamHandle) override { return none(); }
  Status loadKernels(const std::string &) override { return none(); }
  Result<std::unique_ptr<Prepared>> prepare(const planpb::Instruction &,
                                            std::span<const View>,
                                            std::span<const View>) override {
    return none();
  }
  Status run(const KernelCall &) override { return none(); }

private:
  static Status none() { return Status::error("nothing is there"); }
};

std::unique_ptr<World> namedWorld(const char *name) {
  auto listener = StoreListener::open(0);
  EXPECT_TRUE(listener.ok());
  const int port = (*listener)->port();
  auto store = openTcpStore({0, 1, {"127.0.0.1"}, port, "token", 20, 7},
                            std::move(*listener));
  EXPECT_TRUE(store.ok()) << store.status().str();
  return std::make_unique<NamedWorld>(std::move(*store), name);
}

TEST(PairedWorld, EachMemoryHasItsTransport) {
  World *devices = nullptr;
  auto world = pairWorlds(
      namedWorld("hosts"),
      [&](std::unique_ptr<Store> store) -> Result<std::unique_ptr<World>> {
        auto made = std::make_unique<NamedWorld>(std::move(store), "devices");
        devices = made.get();
        return std::unique_ptr<World>(std::move(made));
      });
  ASSERT_TRUE(world.ok());
  HostMemory host;
  DeviceMemory device;
  EXPECT_EQ((*world)->communicator(0, host).status().str(), "hosts");
  EXPECT_EQ((*world)->communicator(0, device).status().str(), "devices");
  EXPECT_EQ((*world)->size(), 1);
  EXPECT_EQ((*world)->ranks(), std::vector<int>{0});
  // What one of them says in the store, the other finds.
  ASSERT_TRUE(devices->store()->put("key", "value").ok());
  auto found = (*world)->store()->get("key", 5);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, "value");
  EXPECT_EQ(*devices->store()->number("tag"),
            *(*world)->store()->number("tag"));
  // A link that is lost ends both.
  EXPECT_FALSE((*world)->aborted());
  devices->abort(Status::error("a link is lost"));
  EXPECT_TRUE((*world)->aborted());
  EXPECT_NE((*world)->abortReason().str().find("a link is lost"),
            std::string::npos);
}

TEST(PairedWorld, DevicesThatCannotBeOpenedAreAnError) {
  auto world =
      pairWorlds(namedWorld("hosts"),
                 [](std::unique_ptr<Store>) -> Result<std::unique_ptr<World>> {
                   return Status::error("no library");
                 });
  EXPECT_EQ(world.status().str(), "no library");
}

} // namespace
} // namespace merak::runtime::test
