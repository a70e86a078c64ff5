// The packing around NCCL, with a stand-in for NCCL that passes arrays between
// threads: every collective, type and stride against in-process ranks.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/comm/inproc/StridedOps.h"
#include "test/unit/cuda/CommExamples.h"
#include "test/unit/cuda/EmulatedDevice.h"

#ifdef MERAK_HAS_NCCL
#include "runtime/comm/nccl/DenseCommunicator.h"

#include <condition_variable>

namespace merak::runtime::test {
namespace {

// Arrays under way between ranks, in order for each pair and purpose.
class Mailbox {
public:
  void post(const std::string &key, std::vector<char> bytes) {
    std::lock_guard lock(mutex_);
    boxes_[key].push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::vector<char> take(const std::string &key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !boxes_[key].empty(); });
    std::vector<char> bytes = std::move(boxes_[key].front());
    boxes_[key].pop_front();
    return bytes;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::deque<std::vector<char>>> boxes_;
};

class FakeLink : public DenseLink {
public:
  FakeLink(Mailbox &mail, std::string name, int me, int members)
      : mail_(mail), name_(std::move(name)), me_(me), members_(members) {}

  Status begin() override { return {}; }
  // Sends were posted at once; what is received comes at the end of the group.
  Status end() override {
    for (auto &receive : pending_)
      receive();
    pending_.clear();
    return {};
  }
  Status allReduce(const void *in, void *out, int64_t count, planpb::DType type,
                   bool maximum, StreamHandle) override {
    toAll(in, count * dtypeSize(type));
    pending_.push_back([=, this] {
      auto parts = fromAll();
      reduce(parts, 0, out, count, type, maximum);
    });
    return {};
  }
  Status allGather(const void *in, void *out, int64_t count, planpb::DType type,
                   StreamHandle) override {
    const int64_t bytes = count * dtypeSize(type);
    toAll(in, bytes);
    pending_.push_back([=, this] {
      auto parts = fromAll();
      for (int i = 0; i < members_; ++i)
        std::memcpy(static_cast<char *>(out) + i * bytes, parts[i].data(),
                    bytes);
    });
    return {};
  }
  Status reduceScatter(const void *in, void *out, int64_t count,
                       planpb::DType type, bool maximum,
                       StreamHandle) override {
    const int64_t bytes = count * dtypeSize(type);
    toAll(in, bytes * members_);
    pending_.push_back([=, this] {
      auto parts = fromAll();
      reduce(parts, me_ * bytes, out, count, type, maximum);
    });
    return {};
  }
  Status broadcast(const void *in, void *out, int64_t count, planpb::DType type,
                   StreamHandle) override {
    const int64_t bytes = count * dtypeSize(type);
    if (me_ == 0)
      for (int i = 0; i < members_; ++i)
        post(i, in, bytes);
    pending_.push_back(
        [=, this] { std::memcpy(out, take(0).data(), size_t(bytes)); });
    return {};
  }
  Status send(const void *in, int64_t count, planpb::DType type, int peer,
              StreamHandle) override {
    post(peer, in, count * dtypeSize(type));
    return {};
  }
  Status receive(void *out, int64_t count, planpb::DType type, int peer,
                 StreamHandle) override {
    pending_.push_back([=, this] {
      std::memcpy(out, take(peer).data(), size_t(count * dtypeSize(type)));
    });
    return {};
  }

private:
  void post(int to, const void *data, int64_t bytes) {
    const char *begin = static_cast<const char *>(data);
    mail_.post(name_ + " " + std::to_string(me_) + ">" + std::to_string(to),
               {begin, begin + bytes});
  }
  std::vector<char> take(int from) {
    return mail_.take(name_ + " " + std::to_string(from) + ">" +
                      std::to_string(me_));
  }
  void toAll(const void *data, int64_t bytes) {
    for (int i = 0; i < members_; ++i)
      post(i, data, bytes);
  }
  std::vector<std::vector<char>> fromAll() {
    std::vector<std::vector<char>> parts;
    for (int i = 0; i < members_; ++i)
      parts.push_back(take(i));
    return parts;
  }
  void reduce(std::vector<std::vector<char>> &parts, int64_t at, void *out,
              int64_t count, planpb::DType type, bool maximum) {
    std::vector<View> inputs;
    for (std::vector<char> &part : parts)
      inputs.push_back({part.data() + at, type, {count}, {1}});
    reduceViews(inputs, {out, type, {count}, {1}}, maximum, false);
  }

  Mailbox &mail_;
  std::string name_;
  int me_, members_;
  std::vector<std::function<void()>> pending_;
};

class FakeLinks : public DenseLinks {
public:
  using Name = std::pair<std::vector<int>, std::string>;
  std::vector<Name> opened; // in this order
  int closed = 0;

  FakeLinks(Mailbox &mail, InprocWorld &world, int rank)
      : mail_(mail), world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  Result<DenseLink *> open(const std::vector<int> &members,
                           const std::string &purpose, bool) override {
    const std::string name =
        fmt::format("{} {}", fmt::join(members, ","), purpose);
    auto &link = links_[name];
    if (!link)
      opened.push_back({members, purpose});
    const auto me = std::find(members.begin(), members.end(), rank_);
    if (!link)
      link = std::make_unique<FakeLink>(mail_, name, int(me - members.begin()),
                                        int(members.size()));
    return static_cast<DenseLink *>(link.get());
  }
  void close(DenseLink *link) override {
    closed += int(std::erase_if(
        links_, [&](const auto &entry) { return entry.second.get() == link; }));
  }
  void abort(const Status &reason) override { world_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return world_.aborted(); }
  Status abortReason() const override { return world_.abortReason(); }

private:
  Mailbox &mail_;
  InprocWorld &world_;
  int rank_;
  std::map<std::string, std::unique_ptr<FakeLink>> links_;
};

TEST(DenseComm, CollectivesEqualThoseOfTheHost) {
  std::mt19937 random(5);
  for (int ranks : {1, 2, 3, 4}) {
    std::vector<Example> examples;
    for (int i = 0; i < 80; ++i)
      examples.push_back(randomExample(random, ranks));
    InprocWorld host(ranks), world(ranks);
    const auto expected =
        runAll(examples, ranks, host,
               [&](int rank, Backend **) { return host.communicator(rank); });
    Mailbox mail;
    auto device = std::make_shared<cuda::EmulatedDevice>();
    std::vector<std::unique_ptr<cuda::CudaBackend>> backends;
    std::vector<std::unique_ptr<FakeLinks>> links;
    for (int rank = 0; rank < ranks; ++rank) {
      backends.push_back(std::make_unique<cuda::CudaBackend>(device));
      links.push_back(std::make_unique<FakeLinks>(mail, world, rank));
    }
    const auto found =
        runAll(examples, ranks, world, [&](int rank, Backend **backend) {
          *backend = backends[rank].get();
          return denseCommunicator(*links[rank], *backends[rank]);
        });
    for (size_t i = 0; i < examples.size(); ++i)
      EXPECT_EQ(found[i], expected[i])
          << commKindName(examples[i].spec.kind) << " of "
          << dtypeName(examples[i].dtype) << " over " << ranks << " ranks";
  }
}

TEST(DenseComm, TransfersPackWhatIsStrided) {
  Mailbox mail;
  InprocWorld world(2);
  auto device = std::make_shared<cuda::EmulatedDevice>();
  cuda::CudaBackend backend(device);
  FakeLinks first(mail, world, 0), second(mail, world, 1);
  auto sender = denseCommunicator(first, backend);
  auto receiver = denseCommunicator(second, backend);
  Tensor from(planpb::BF16, {3, 5}, 2), to(planpb::BF16, {3, 5}, 1);
  for (int64_t i = 0; i < 15; ++i) {
    from.set(i, double(i));
    to.set(i, 100);
  }
  CommSpec send, recv;
  send.kind = CommSpec::Send;
  send.peer = 1;
  send.channel = recv.channel = "h.3";
  recv.kind = CommSpec::Recv;
  recv.peer = 0;
  recv.accumulate = true;
  const View out[] = {from.view()}, in[] = {to.view()};
  auto a = sender->prepare(send, out, {});
  auto b = receiver->prepare(recv, {}, in);
  ASSERT_TRUE(a.ok() && b.ok());
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(sender->run({a->get(), out, {}, nullptr}).ok());
    ASSERT_TRUE(receiver->run({b->get(), {}, in, nullptr}).ok());
    for (int64_t i = 0; i < 15; ++i)
      EXPECT_EQ(to.at(i), 100 + double(step * i));
  }
}

// Communicators that ranks prepare in any order are opened before a step, each
// once, in an order in which no two ranks wait for each other: as long as some
// are not open, one of them is what all of its members open next.
TEST(DenseComm, AllRanksOpenInAnOrderThatEnds) {
  std::mt19937 random(9);
  auto device = std::make_shared<cuda::EmulatedDevice>();
  cuda::CudaBackend backend(device);
  Mailbox mail;
  for (int round = 0; round < 40; ++round) {
    const int ranks = 2 + int(random() % 5);
    InprocWorld world(ranks);
    struct Use {
      std::vector<int> members;
      std::string channel;
      bool transfer;
    };
    std::vector<Use> uses;
    for (int i = 0; i < 12; ++i) {
      Use use{{}, i % 3 ? "gradients" : "compute", random() % 2 == 0};
      while (use.members.size() < 2) {
        use.members.clear();
        for (int r = 0; r < ranks; ++r)
          if (random() % 2)
            use.members.push_back(r);
      }
      if (use.transfer)
        use.members.resize(2);
      uses.push_back(use);
    }
    Tensor tensor(planpb::F32, {4});
    const View views[] = {tensor.view()};
    std::vector<std::unique_ptr<FakeLinks>> links;
    std::set<FakeLinks::Name> distinct;
    for (int rank = 0; rank < ranks; ++rank) {
      links.push_back(std::make_unique<FakeLinks>(mail, world, rank));
      auto comm = denseCommunicator(*links.back(), backend);
      std::shuffle(uses.begin(), uses.end(), random);
      for (const Use &use : uses) {
        const auto &members = use.members;
        if (std::find(members.begin(), members.end(), rank) == members.end())
          continue;
        CommSpec spec;
        spec.members = members;
        spec.channel = use.channel;
        const bool sends = members[0] == rank;
        if (use.transfer) {
          spec.kind = sends ? CommSpec::Send : CommSpec::Recv;
          spec.peer = sends ? members[1] : members[0];
        }
        const std::span<const View> all(views), none;
        auto made = comm->prepare(spec, use.transfer && !sends ? none : all,
                                  use.transfer && sends ? none : all);
        ASSERT_TRUE(made.ok()) << made.status().str();
      }
      EXPECT_TRUE(links.back()->opened.empty());
      ASSERT_TRUE(comm->open().ok());
      for (const auto &name : links.back()->opened)
        distinct.insert(name);
    }
    std::vector<size_t> next(size_t(ranks), 0);
    size_t open = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto &name : distinct) {
        const bool all =
            std::all_of(name.first.begin(), name.first.end(), [&](int member) {
              const auto &order = links[size_t(member)]->opened;
              return next[size_t(member)] < order.size() &&
                     order[next[size_t(member)]] == name;
            });
        if (!all)
          continue;
        for (int member : name.first)
          ++next[size_t(member)];
        ++open;
        moved = true;
      }
    }
    EXPECT_EQ(open, distinct.size());
  }
}

// The plan that a run goes on with has streams of its own: it shares nothing
// with the one before, which closes what it has opened.
TEST(DenseComm, SessionsOpenAndCloseTheirOwn) {
  InprocWorld world(2);
  Mailbox mail;
  FakeLinks links(mail, world, 0);
  cuda::CudaBackend backend(std::make_shared<cuda::EmulatedDevice>());
  Tensor tensor(planpb::F32, {4});
  const View views[] = {tensor.view()};
  auto begin = [&](int session) {
    auto comm = denseCommunicator(links, backend, session);
    CommSpec spec;
    spec.members = {0, 1};
    spec.channel = "main";
    auto made = comm->prepare(std::move(spec), views, views);
    EXPECT_TRUE(made.ok()) << made.status().str();
    EXPECT_TRUE(comm->open().ok());
    return comm;
  };
  auto before = begin(0), next = begin(1);
  ASSERT_EQ(links.opened.size(), 2u);
  EXPECT_EQ(links.opened[0], (FakeLinks::Name{{0, 1}, "main"}));
  EXPECT_EQ(links.opened[1], (FakeLinks::Name{{0, 1}, "main of session 1"}));
  before.reset();
  EXPECT_EQ(links.closed, 1);
  next.reset();
  EXPECT_EQ(links.closed, 2);
}

} // namespace
} // namespace merak::runtime::test
#endif
