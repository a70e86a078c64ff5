#include "runtime/launch/StopTogether.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace merak::runtime {
namespace {

constexpr const char *kTopic = "round", *kPart = "steps begun";

std::string pack(int64_t begun, const Wish &wish) {
  return fmt::format("{} {} {} {}", begun, int(wish.save), wish.look,
                     wish.stop);
}

int64_t unpack(const std::string &text, Wish &wish) {
  std::istringstream words(text);
  int64_t begun = 0;
  Wish other;
  words >> begun >> other.save >> other.look >> std::ws;
  std::getline(words, other.stop);
  wish.merge(other);
  return begun;
}

} // namespace

StopTogether::StopTogether(Store *store) : store_(store) {
  if (store_)
    store_->listen(
        [this](int, const std::string &topic, const std::string &text) {
          if (topic == kTopic)
            hear(text);
        });
}

StopTogether::~StopTogether() {
  if (store_)
    store_->listen(nullptr);
}

// On a thread of the store. Rounds that are over need nothing more; whoever is
// ahead has ended this one already.
void StopTogether::hear(const std::string &round) {
  std::lock_guard lock(mutex_);
  const int64_t number = std::stoll(round);
  if (number == round_ && !joined_)
    join();
  else if (number > round_)
    awaited_ = true;
}

// Under the lock: no step begins from here to the end of the round.
void StopTogether::join() {
  joined_ = true;
  const Wish wish = std::exchange(mine_, Wish());
  if (store_)
    (void)store_->contribute(kPart, pack(begun_, wish));
  else
    decided_ = wish;
}

Status StopTogether::decide(std::unique_lock<std::mutex> &lock) {
  limit_ = begun_;
  if (!store_)
    return {};
  lock.unlock();
  auto all = store_->collect(kPart, kPatienceSeconds);
  lock.lock();
  if (!all.ok())
    return all.status();
  decided_ = Wish();
  for (const std::string &part : *all)
    limit_ = std::max(limit_, unpack(part, decided_));
  return {};
}

Result<StopTogether::Turn> StopTogether::next(const Wish &wish) {
  Turn turn;
  std::unique_lock lock(mutex_);
  mine_.merge(wish);
  while (true) {
    if (!joined_ && mine_.any()) {
      const std::string round = std::to_string(round_);
      join();
      if (store_) {
        lock.unlock();
        MERAK_RETURN_IF_ERROR(store_->notify(kTopic, round));
        lock.lock();
      }
    }
    if (joined_ && limit_ < 0)
      MERAK_RETURN_IF_ERROR(decide(lock));
    if (!joined_ || begun_ < limit_)
      break;
    turn.save |= decided_.save;
    turn.look = decided_.look;
    if (!decided_.stop.empty() || turn.look > 0) {
      turn.step = false; // for good: the round stays
      return turn;
    }
    ++round_;
    joined_ = false;
    limit_ = -1;
    if (std::exchange(awaited_, false))
      join();
  }
  ++begun_;
  return turn;
}

std::string StopTogether::cause() const {
  std::lock_guard lock(mutex_);
  return decided_.stop;
}

} // namespace merak::runtime
