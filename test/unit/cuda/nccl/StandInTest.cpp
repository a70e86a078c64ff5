// What the stand-in for libnccl tells apart, with both members of a
// communicator in one process; test/e2e/cuda_nccl.py has them in two.
#include "test/unit/cuda/nccl/StandInDevice.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <thread>

namespace merak::cuda {
namespace {

class NcclStandIn : public testing::Test {
protected:
  // A device that failed says so ever after: each test has its own.
  void SetUp() override {
    Emulation emulation;
    emulation.processors = 64;
    emulation.seed = 2;
    device = std::make_shared<EmulatedDevice>(emulation);
    ASSERT_TRUE(useNcclStandIn(MERAK_NCCL_STAND_IN, device).ok());
    library = dlopen(MERAK_NCCL_STAND_IN, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    (void)*device->createStream(); // computes
    for (Member &member : members)
      member.stream = *device->createStream(Priority::High);
  }
  template <typename Function> Function *find(const char *name) {
    return reinterpret_cast<Function *>(dlsym(library, name));
  }
#define MERAK_FUNCTION(name) find<decltype(::nccl##name)>("nccl" #name)

  // An abort waits until streams have passed what is under way.
  void TearDown() override {
    std::vector<std::thread> aborts;
    for (Member &member : members)
      if (member.comm)
        aborts.emplace_back([this, comm = member.comm] {
          EXPECT_EQ(MERAK_FUNCTION(CommAbort)(comm), ncclSuccess);
        });
    for (Member &member : members)
      (void)device->synchronize(member.stream);
    for (std::thread &abort : aborts)
      abort.join();
    for (Member &member : members)
      device->destroyStream(member.stream);
  }
  // Both members begin to open, with so many thread blocks an operation.
  void open(int blocks = 8, int of = 2) {
    ncclUniqueId id;
    ASSERT_EQ(MERAK_FUNCTION(GetUniqueId)(&id), ncclSuccess);
    for (int i = 0; i < 2; ++i) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      config.maxCTAs = blocks;
      EXPECT_EQ(MERAK_FUNCTION(CommInitRankConfig)(
                    &members[i].comm, i == 0 ? 2 : of, id, i, &config),
                i == 0    ? ncclInProgress
                : of == 2 ? ncclSuccess
                          : ncclInvalidUsage);
    }
  }
  ncclResult_t state(int member) {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(MERAK_FUNCTION(CommGetAsyncError)(members[member].comm, &state),
              ncclSuccess);
    return state;
  }
  ncclResult_t settled(int member) {
    ncclResult_t found = ncclInProgress;
    for (int i = 0; i < 10 && found == ncclInProgress; ++i)
      found = state(member);
    return found;
  }
  ncclResult_t sum(int member, size_t count, Stream stream = nullptr) {
    return MERAK_FUNCTION(AllReduce)(
        members[member].in, members[member].out, count, ncclFloat32, ncclSum,
        members[member].comm,
        static_cast<cudaStream_t>(stream ? stream : members[member].stream));
  }
  std::string complaint() { return MERAK_FUNCTION(GetLastError)(nullptr); }

  struct Member {
    ncclComm_t comm = nullptr;
    Stream stream = nullptr;
    float in[4] = {1, 2, 3, 4}, out[4] = {};
  };
  Member members[2];
  std::shared_ptr<EmulatedDevice> device;
  void *library = nullptr;
};

TEST_F(NcclStandIn, AddsUpAndComesToAnEnd) {
  open();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(settled(i), ncclSuccess);
    EXPECT_EQ(sum(i, 4), ncclInProgress); // launched by a thread of NCCL's
    EXPECT_EQ(settled(i), ncclSuccess);
  }
  for (Member &member : members) {
    EXPECT_TRUE(device->synchronize(member.stream).ok());
    EXPECT_EQ(member.out[3], 8);
  }
  for (Member &member : members) {
    EXPECT_EQ(MERAK_FUNCTION(CommDestroy)(member.comm), ncclSuccess);
    EXPECT_EQ(MERAK_FUNCTION(CommDestroy)(member.comm), ncclInvalidUsage);
    EXPECT_EQ(complaint(), "the end of a communicator that has ended");
    member.comm = nullptr;
  }
}

TEST_F(NcclStandIn, MembersAskForTheSame) {
  open();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(settled(i), ncclSuccess);
    sum(i, i == 0 ? 4 : 3);
    EXPECT_EQ(settled(i), ncclSuccess);
  }
  const Status status = device->synchronize(members[0].stream);
  EXPECT_EQ(status.str(),
            "NCCL: operation 0 of a communicator: member 0 asks for AllReduce "
            "of 4 float32 (sum), member 1 for AllReduce of 3 float32 (sum)");
  EXPECT_EQ(state(0), ncclInvalidUsage);
}

TEST_F(NcclStandIn, CallsComeAfterTheLastOneIsDone) {
  open();
  EXPECT_EQ(sum(0, 4), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a communicator that is not open yet");
  EXPECT_EQ(settled(1), ncclSuccess);
  EXPECT_EQ(sum(1, 4), ncclInProgress);
  EXPECT_EQ(sum(1, 4), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a communicator whose last call is in progress");
}

TEST_F(NcclStandIn, OneUrgentStreamUsesACommunicator) {
  open();
  EXPECT_EQ(settled(0), ncclSuccess);
  EXPECT_EQ(sum(0, 4), ncclInProgress);
  EXPECT_EQ(settled(0), ncclSuccess);
  EXPECT_EQ(sum(0, 4, members[1].stream), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a communicator that another stream uses");
  EXPECT_EQ(settled(1), ncclSuccess);
  const Stream usual = *device->createStream();
  EXPECT_EQ(sum(1, 4, usual), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a communicator on a stream that computes");
  device->destroyStream(usual);
}

TEST_F(NcclStandIn, KernelsOfAllCommunicatorsFit) {
  open(33);
  EXPECT_EQ(settled(0), ncclSuccess);
  EXPECT_EQ(sum(0, 4), ncclInvalidUsage);
  EXPECT_EQ(complaint(),
            "66 thread blocks of all communicators on 64 multiprocessors");
}

TEST_F(NcclStandIn, MembersOpenTheSame) {
  open(8, 3);
  EXPECT_EQ(settled(0), ncclInvalidUsage);
  EXPECT_EQ(complaint(),
            "member 1 opens a communicator of 3, member 0 one of 2");
}

TEST_F(NcclStandIn, NothingComesAfterAnAbort) {
  open();
  EXPECT_EQ(settled(0), ncclSuccess);
  EXPECT_EQ(sum(0, 4), ncclInProgress);
  EXPECT_EQ(settled(0), ncclSuccess);
  // The operation waits for the other member; the abort ends it, and waits for
  // the stream to pass it.
  std::thread passes(
      [&] { EXPECT_TRUE(device->synchronize(members[0].stream).ok()); });
  EXPECT_EQ(MERAK_FUNCTION(CommAbort)(members[0].comm), ncclSuccess);
  passes.join();
  EXPECT_EQ(sum(0, 4), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a call on a communicator that has ended");
  members[0].comm = nullptr;
}

TEST_F(NcclStandIn, CommunicatorsEndWhenNothingIsUnderWay) {
  open();
  EXPECT_EQ(settled(0), ncclSuccess);
  EXPECT_EQ(sum(0, 4), ncclInProgress);
  EXPECT_EQ(settled(0), ncclSuccess);
  std::thread passes([&] { (void)device->synchronize(members[0].stream); });
  EXPECT_EQ(MERAK_FUNCTION(CommDestroy)(members[0].comm), ncclInvalidUsage);
  EXPECT_EQ(complaint(),
            "a communicator ends that streams or graphs hold operations of");
  passes.join();
  members[0].comm = nullptr;
}

TEST_F(NcclStandIn, MemoryIsForgottenBeforeItIsReleased) {
  open();
  void *memory = nullptr, *handle = nullptr;
  ASSERT_EQ(MERAK_FUNCTION(MemAlloc)(&memory, 4096), ncclSuccess);
  auto tell = [&](void *begin, size_t bytes) {
    return MERAK_FUNCTION(CommRegister)(members[0].comm, begin, bytes, &handle);
  };
  EXPECT_EQ(tell(memory, 4096), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "memory for a communicator that is not open yet");
  EXPECT_EQ(settled(0), ncclSuccess);
  for (auto [begin, bytes] : {std::pair<void *, size_t>{memory, 4097},
                              {members[0].in, sizeof(members[0].in)}}) {
    EXPECT_EQ(tell(begin, bytes), ncclInvalidUsage);
    EXPECT_EQ(complaint(),
              "a communicator is told of memory that is not NCCL's");
  }
  EXPECT_EQ(tell(memory, 4096), ncclSuccess);
  EXPECT_EQ(tell(memory, 4096), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a communicator is told of memory that it knows");
  EXPECT_EQ(MERAK_FUNCTION(MemFree)(memory), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "the release of memory that communicators still know");
  EXPECT_EQ(MERAK_FUNCTION(CommDestroy)(members[0].comm), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "a communicator ends that still knows memory");
  members[0].comm = nullptr;
  EXPECT_EQ(MERAK_FUNCTION(MemFree)(memory), ncclSuccess);
  EXPECT_EQ(MERAK_FUNCTION(MemFree)(memory), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "the release of memory that is not NCCL's");
}

TEST_F(NcclStandIn, GroupsBeginBeforeTheyEnd) {
  EXPECT_EQ(MERAK_FUNCTION(GroupEnd)(), ncclInvalidUsage);
  EXPECT_EQ(complaint(), "the end of a group that did not begin");
}

} // namespace
} // namespace merak::cuda
