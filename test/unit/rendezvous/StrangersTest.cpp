// What connects to a store's port and is no rank: it is told nothing, costs
// little, and changes nothing.
#include "runtime/comm/rendezvous/Strangers.h"
#include "runtime/comm/rendezvous/Handshake.h"
#include "runtime/comm/rendezvous/Sockets.h"
#include "runtime/trust/Hmac.h"
#include "test/unit/rendezvous/StoreTesting.h"

#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

const std::string kToken = trust::toHex(std::string(16, 'k'));

// Rank 0 of a run whose other ranks are still to come.
class Waiting : public testing::Test {
protected:
  void SetUp() override { open(2); }
  void open(int size) {
    auto listener = StoreListener::open(0);
    ASSERT_TRUE(listener.ok()) << listener.status().str();
    port_ = (*listener)->port();
    size_ = size;
    server_ = std::thread([this, own = std::move(*listener)]() mutable {
      auto store = openTcpStore(options(0), std::move(own));
      ASSERT_TRUE(store.ok()) << store.status().str();
      EXPECT_TRUE((*store)->barrier("use", 20).ok());
      (*store)->leave(20);
    });
  }
  TcpStoreOptions options(int rank) const {
    return {rank, size_, {"127.0.0.1"}, port_, kToken, 20, 7};
  }
  // The other rank comes; the store then does what it is for.
  void TearDown() override {
    auto store = openTcpStore(options(1));
    ASSERT_TRUE(store.ok()) << store.status().str();
    // Nobody listens to those who come now.
    EXPECT_LT(connectTo("127.0.0.1", port_, 5), 0);
    EXPECT_TRUE((*store)->barrier("use", 20).ok());
    EXPECT_FALSE((*store)->aborted()) << (*store)->abortReason().str();
    (*store)->leave(20);
    server_.join();
  }
  int stranger() const {
    const int socket = connectTo("127.0.0.1", port_, 5);
    EXPECT_GE(socket, 0);
    return socket;
  }
  std::string challengeOf(int socket) const {
    std::string bytes(kChallengeBytes, '\0');
    EXPECT_EQ(recv(socket, bytes.data(), bytes.size(), MSG_WAITALL),
              ssize_t(bytes.size()));
    return decodeChallenge(bytes).value_or("");
  }
  int port_ = 0, size_ = 2;
  std::thread server_;
};

// All that still comes on a connection until its end.
std::string restOf(int socket) {
  std::string bytes;
  char buffer[4096];
  for (ssize_t count; (count = recv(socket, buffer, sizeof(buffer), 0)) > 0;)
    bytes.append(buffer, size_t(count));
  close(socket);
  return bytes;
}

std::string refusalWithoutProof() {
  return encodeFrame({Frame::Refuse, 0, 0, "", ""});
}

int64_t residentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int openDescriptors() {
  int count = 0;
  for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += !entry.path().empty();
  return count;
}

} // namespace

// Before there were tokens, an empty one was as good as any.
TEST_F(Waiting, AGuessedTokenTakesNoRank) {
  for (const std::string &guess : {std::string(), std::string("token"),
                                   std::string(16, '\0'), kToken + "0"}) {
    const int socket = stranger();
    const std::string challenge = challengeOf(socket);
    const Hello hello{1, 2, "host", std::string(kNonceBytes, 'n')};
    EXPECT_TRUE(sendAll(socket, encodeHello(hello, challenge, guess)));
    EXPECT_EQ(restOf(socket), refusalWithoutProof());
  }
}

// What a rank once showed opens nothing a second time.
TEST_F(Waiting, AnOverheardHelloTakesNoRank) {
  const Hello hello{1, 2, "host", std::string(kNonceBytes, 'n')};
  const int heard = stranger(), again = stranger();
  const std::string bytes = encodeHello(hello, challengeOf(heard), kToken);
  EXPECT_NE(challengeOf(again), "");
  EXPECT_TRUE(sendAll(again, bytes));
  EXPECT_EQ(restOf(again), refusalWithoutProof());
  close(heard);
}

// Another rank, size or host than was proven.
TEST_F(Waiting, AChangedHelloTakesNoRank) {
  for (const size_t at : {kMarkBytes, kMarkBytes + 8, kMarkBytes + 16,
                          kHelloBytes - 33, kHelloBytes - 1}) {
    const int socket = stranger();
    std::string bytes =
        encodeHello({1, 2, "host", std::string(kNonceBytes, 'n')},
                    challengeOf(socket), kToken);
    bytes[at] = char(bytes[at] ^ 1);
    EXPECT_TRUE(sendAll(socket, bytes));
    EXPECT_EQ(restOf(socket), refusalWithoutProof()) << at;
  }
}

// Nothing is kept of what strangers send, however much it is.
TEST_F(Waiting, NoiseIsNotKept) {
  const int64_t before = residentBytes();
  // Made once: AddressSanitizer keeps for a while what is freed.
  const std::string noise(1 << 20, 'x'), mark = encodeChallenge("");
  const std::string hello = mark + noise; // as it looks at first
  for (int round = 0; round < 32; ++round) {
    const int socket = stranger();
    const std::string &bytes = round % 2 ? hello : noise;
    for (int i = 0; i < 4 && sendAll(socket, bytes); ++i)
      ;
    (void)restOf(socket);
  }
  // The tests' own megabytes among them.
  EXPECT_LT(residentBytes() - before, 16 << 20);
}

TEST_F(Waiting, IdleStrangersPushOutEachOther) {
  const int64_t before = residentBytes();
  std::vector<int> sockets;
  for (int i = 0; i < 400; ++i)
    sockets.push_back(stranger());
  // The oldest have gone, without a time having passed.
  for (size_t i = 0; i < sockets.size() - kMostStrangersOfOneAddress; ++i)
    EXPECT_EQ(restOf(sockets[i]).size(), kChallengeBytes);
  EXPECT_LE(openDescriptors(), 400);
  EXPECT_LT(residentBytes() - before, 16 << 20);
  for (size_t i = sockets.size() - kMostStrangersOfOneAddress;
       i < sockets.size(); ++i)
    close(sockets[i]);
}

TEST_F(Waiting, AnIdleStrangerIsDropped) {
  const int idle = stranger(), slow = stranger();
  EXPECT_TRUE(sendAll(slow, "merak-2"));
  EXPECT_EQ(restOf(idle).size(), kChallengeBytes);
  EXPECT_EQ(restOf(slow).size(), kChallengeBytes);
}

TEST_F(Waiting, StrangersGoWhenAllRanksHaveCome) {
  const int idle = stranger();
  EXPECT_NE(challengeOf(idle), "");
  std::thread rest([&] { EXPECT_EQ(restOf(idle), ""); });
  auto store = openTcpStore(options(1));
  ASSERT_TRUE(store.ok()) << store.status().str();
  rest.join();
  EXPECT_LT(connectTo("127.0.0.1", port_, 5), 0);
  EXPECT_TRUE((*store)->barrier("use", 20).ok());
  (*store)->leave(20);
  server_.join();
  open(2); // for TearDown
}

// Of the size that docs/Reliability.md reports; by hand:
// rendezvous_test --gtest_also_run_disabled_tests --gtest_filter=*Reported
TEST_F(Waiting, DISABLED_Reported) {
  const int64_t before = residentBytes();
  std::vector<int> sockets;
  for (int i = 0; i < 2000; ++i)
    sockets.push_back(connectTo("127.0.0.1", port_, 5));
  printf("%zu connections that say nothing: %d descriptors, %ld KiB more\n",
         sockets.size(), openDescriptors(),
         long(residentBytes() - before) >> 10);
  for (const int socket : sockets)
    close(socket);
  std::string bytes(1 << 20, 'x');
  bytes.replace(0, kMarkBytes, encodeChallenge(""));
  int64_t sent = 0;
  int connections = 0;
  for (; sent < int64_t(10) << 30; ++connections) {
    const int socket = connectTo("127.0.0.1", port_, 5);
    for (ssize_t count;
         (count = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL)) > 0;)
      sent += count;
    close(socket);
  }
  printf("%.1f GB of noise in %d connections: %ld KiB more\n",
         double(sent) / 1e9, connections, long(residentBytes() - before) >> 10);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i)
    sockets[size_t(i)] = connectTo("127.0.0.1", port_, 5);
  auto store = openTcpStore(options(1));
  ASSERT_TRUE(store.ok()) << store.status().str();
  printf("2000 connections and a rank behind them, which comes in: %.2f s\n",
         std::chrono::duration<double>(std::chrono::steady_clock::now() - began)
             .count());
  for (const int socket : sockets)
    close(socket);
  EXPECT_TRUE((*store)->barrier("use", 20).ok());
  (*store)->leave(20);
  server_.join();
  open(2); // for TearDown
}

// A process with few descriptors: strangers leave it its own.
TEST(Strangers, LeaveDescriptorsToTheRun) {
  int ports[2];
  ASSERT_EQ(pipe(ports), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit few{160, 160};
    setrlimit(RLIMIT_NOFILE, &few);
    auto listener = StoreListener::open(0);
    const int port = (*listener)->port();
    (void)!write(ports[1], &port, sizeof(port));
    auto store =
        openTcpStore({0, 2, {}, 0, kToken, 20, 7}, std::move(*listener));
    if (!store.ok())
      _exit(3);
    int opened = 0; // as a run opens its checkpoint
    while (opened < 64 && open("/dev/null", 0) >= 0)
      ++opened;
    (*store)->leave(20);
    store->reset(); // tells the other rank, too
    _exit(opened == 64 ? 0 : 4);
  }
  int port = 0;
  ASSERT_EQ(read(ports[0], &port, sizeof(port)), ssize_t(sizeof(port)));
  std::vector<int> sockets;
  for (int i = 0; i < 300; ++i)
    sockets.push_back(connectTo("127.0.0.1", port, 5));
  auto store = openTcpStore({1, 2, {"127.0.0.1"}, port, kToken, 20, 7});
  ASSERT_TRUE(store.ok()) << store.status().str();
  (*store)->leave(20);
  int code = 0;
  waitpid(child, &code, 0);
  EXPECT_EQ(code, 0);
  for (const int socket : sockets)
    close(socket);
  close(ports[0]);
  close(ports[1]);
}

TEST(Strangers, ARankIsClaimedOnce) {
  auto listener = StoreListener::open(0);
  ASSERT_TRUE(listener.ok());
  TcpStoreOptions options{0,  3, {"127.0.0.1"}, (*listener)->port(), kToken,
                          20, 7};
  Status first, twice[2];
  std::thread server(
      [&] { first = openTcpStore(options, std::move(*listener)).status(); });
  std::vector<std::thread> both;
  for (Status &status : twice)
    both.emplace_back([&] {
      TcpStoreOptions mine = options;
      mine.rank = 1;
      status = openTcpStore(mine).status();
    });
  for (std::thread &thread : both)
    thread.join();
  server.join();
  const std::string why = "there is a rank 1 already, on host " + hostName();
  EXPECT_EQ(first.str(), why);
  EXPECT_EQ(twice[0].str(), why);
  EXPECT_EQ(twice[1].str(), why);
}

// A rank believes nobody who does not know the token either.
TEST(Strangers, AFalseRankZeroIsNotBelieved) {
  auto listener = StoreListener::open(0);
  ASSERT_TRUE(listener.ok());
  const int port = (*listener)->port(), socket = (*listener)->release();
  std::thread impostor([&] {
    for (const std::string &value : {std::string(), std::string(32, 'p')}) {
      const int rank = accept(socket, nullptr, nullptr);
      EXPECT_TRUE(
          sendAll(rank, encodeChallenge(std::string(kNonceBytes, 'c'))));
      std::string hello(kHelloBytes, '\0');
      EXPECT_EQ(recv(rank, hello.data(), hello.size(), MSG_WAITALL),
                ssize_t(kHelloBytes));
      EXPECT_TRUE(
          sendAll(rank, encodeFrame({Frame::Welcome, 0, 7000, "n1", value})));
      (void)restOf(rank);
    }
    close(socket);
  });
  for (int i = 0; i < 2; ++i) {
    const std::string why =
        openTcpStore({1, 2, {"127.0.0.1"}, port, kToken, 20, 7}).status().str();
    EXPECT_NE(why.find("know different secrets"), std::string::npos) << why;
  }
  impostor.join();
}

TEST(Strangers, SomethingElseAtThePortIsNamed) {
  auto listener = StoreListener::open(0);
  ASSERT_TRUE(listener.ok());
  const int port = (*listener)->port(), socket = (*listener)->release();
  std::thread other([&] {
    const int rank = accept(socket, nullptr, nullptr);
    EXPECT_TRUE(sendAll(rank, "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"));
    (void)restOf(rank);
    close(socket);
  });
  EXPECT_EQ(
      openTcpStore({1, 2, {"127.0.0.1"}, port, kToken, 20, 7}).status().str(),
      "something else than rank 0 of this version listens at 127.0.0.1 port " +
          std::to_string(port));
  other.join();
}

TEST(Wire, FramesHaveBounds) {
  const std::string whole = encodeFrame({Frame::Put, 1, 2, "key", "value"});
  auto decoded = [](std::string bytes, bool &broken) {
    size_t position = 0;
    broken = false;
    return decodeFrame(bytes, position, broken).has_value();
  };
  bool broken = false;
  EXPECT_TRUE(decoded(whole, broken));
  for (const uint64_t length : {uint64_t(0), uint64_t(20), ~uint64_t(0),
                                kLongestValue + kLongestKey + 64}) {
    std::string bytes = whole;
    std::memcpy(bytes.data(), &length, sizeof(length));
    EXPECT_FALSE(decoded(bytes, broken)) << length;
    EXPECT_TRUE(broken) << length;
  }
  // A key that is longer than its frame.
  std::string bytes = whole;
  bytes[25] = 100;
  EXPECT_FALSE(decoded(bytes, broken));
  EXPECT_TRUE(broken);
  // The first part of a frame is none yet.
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decoded(whole.substr(0, size), broken));
    EXPECT_FALSE(broken);
  }
}
